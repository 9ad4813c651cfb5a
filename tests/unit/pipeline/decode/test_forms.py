import numpy as np
import pytest
import tensorflow as tf

from pipeline.decode import UserParsed, parsed
from pipeline.errors import DataError, UsageError


@pytest.fixture
def records():
    return tf.constant([b"a b", b"", b"c d e"])


def test_tensors_of_every_kind_pass_as_they_are(records):
    def function(records):
        words = tf.strings.split(records)
        return {"words": words, "pair": (tf.strings.length(records), words.to_sparse())}

    found = parsed(function, records)
    assert found["words"].to_list() == [[b"a", b"b"], [], [b"c", b"d", b"e"]]
    assert found["pair"][0].numpy().tolist() == [3, 0, 5]
    assert found["pair"][1].dense_shape.numpy().tolist() == [3, 3]


def test_a_list_of_tensors_is_not_stacked(records):
    found = parsed(lambda given: [given, tf.strings.length(given)], records)
    assert isinstance(found, tuple)
    assert found[1].numpy().tolist() == [3, 0, 5]


@pytest.mark.parametrize("form", [lambda one: (one,), lambda one: (one,) * 3, lambda one: {"image": one, "label": one}])
def test_what_is_no_pair_is_not_taken_apart(form, records):
    found = UserParsed(form).examples({"record": records}, list)
    tf.nest.assert_same_structure(found.images, form(records))
    assert found.labels is None


@pytest.mark.parametrize(
    "value", [None, (), {}, 3, b"x", [1, 2], {"a": None}, {"a": np.zeros(3), "b": np.zeros((2, 3))}]
)
def test_what_has_not_a_row_a_record_is_refused(value, records):
    with pytest.raises(UsageError, match="^parse: .* 3 rows"):
        parsed(lambda _: value, records)


def test_errors_keep_their_cause_and_ours_pass(records):
    def fails(error):
        raise error

    with pytest.raises(UsageError, match=r"fails on string \(3,\): .*test_forms\.py:\d+: KeyError: 'text'") as caught:
        parsed(lambda _: fails(KeyError("text")), records)
    assert isinstance(caught.value.__cause__, KeyError)
    with pytest.raises(DataError, match="^own$"):
        parsed(lambda _: fails(DataError("own")), records)


@pytest.mark.parametrize("kind", ["dense", "ragged", "sparse"])
def test_rows_that_are_not_known_are_counted(kind, records):
    @tf.function(input_signature=[tf.TensorSpec([None], tf.string), tf.TensorSpec([3], tf.string)])
    def check(made, whole):
        words = tf.strings.split(made)
        return parsed(lambda _: {"dense": made, "ragged": words, "sparse": words.to_sparse()}[kind], whole)

    check(records[::-1], records)
    with pytest.raises(tf.errors.InvalidArgumentError, match="parse: .*2 rows for 3 records"):
        check(records[:2], records)
