import collections
import threading

import numpy as np
import pytest
import tensorflow as tf

from pipeline import operations
from pipeline.decode import user
from pipeline.decode.forms import UserParsed
from pipeline.decode.records import ExampleParser
from pipeline.errors import DataError, UsageError
from pipeline.graph_calls import UserFunction
from pipeline.manifest import Feature
from pipeline.read.shards import in_parallel
from pipeline.records import tf_example
from tests.unit.pipeline.conftest import UNPACKED


@pytest.fixture
def records():
    return tf.constant([b"a b", b"", b"c d e"])


def parsed(function, records):
    return user.parsed(UserFunction.of("parse", function), records, list, training=True)


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


def test_nor_is_a_list_within_what_is_returned(records):
    """A named tuple stays one."""
    pair = collections.namedtuple("pair", "x y")
    found = parsed(lambda given: pair({"a": [given, (given, [given])]}, [given]), records)
    tf.nest.assert_same_structure(found, pair({"a": (records, (records, (records,)))}, (records,)))


@pytest.mark.parametrize("form", [lambda one: (one,), lambda one: (one,) * 4, lambda one: {"image": one, "label": one}])
def test_what_is_neither_a_pair_nor_three_parts_is_not_taken_apart(form, records):
    found = UserParsed(UserFunction.of("parse", form), training=True).examples({"record": records}, list, tf.range(3))
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


@pytest.mark.skipif(not operations.is_compiled(), reason="the operations are not compiled")
@pytest.mark.parametrize("unusual", [[], [UNPACKED]])
def test_images_that_stay_in_their_records_are_those_that_are_parsed(unusual):
    made = [{"image": b"i" * size, "label": size, "key": b"%d" % size, "a": np.arange(size)} for size in (0, 5, 300)]
    records = tf.constant([*map(tf_example.encode, made), *unusual])
    features = {} if unusual else {"key": Feature("string"), "a": Feature("int64", (None,))}
    parser = ExampleParser(Feature("uint8"), Feature("int64"), features)
    (images, labels, features), (encoded, others, more) = parser.parse(records), parser.find(records)
    found = [
        operations.part(encoded.strings, encoded.bounds, row).numpy() for row in tf.range(len(records), dtype="int64")
    ]
    assert found == images.numpy().tolist()
    assert labels.numpy().tolist() == others.numpy().tolist()
    assert features.keys() == more.keys()
    assert all((more[name] == features[name]).numpy().all() for name in features if name != "a")
    assert unusual or more["a"].to_list() == features["a"].to_list()


@pytest.mark.skipif(not operations.is_compiled(), reason="the operations are not compiled")
def test_what_is_wrong_with_a_record_is_said_as_tensorflow_says_it():
    records = tf.constant([tf_example.encode({"image": b"i", "label": 1}), tf_example.encode({"image": b"i"})])
    with pytest.raises(tf.errors.InvalidArgumentError, match="label.*required but could not be found"):
        ExampleParser(Feature("uint8"), Feature("int64"), {}).find(records)


def test_a_judge_traces_the_parser_before_threads_ask_it():
    """Threads that trace would wait for each other: see `pipeline.read.shards.in_parallel`."""
    traces = []

    def parse(records):
        traces.append(threading.current_thread())
        return tf.strings.length(records)

    judge = user.ParseJudge(UserFunction.of("parse", parse), rows=2)
    assert set(traces) == {threading.current_thread()}
    count = len(traces)
    assert in_parallel(judge.problems, [[b"a", b"b"], [b"c"]]) == [[None, None], [None]]
    assert len(traces) == count
