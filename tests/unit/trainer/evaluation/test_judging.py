import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from pipeline import RandomAccess
from pipeline.errors import DataError, UsageError
from tests.helpers.datasets import Kind, write_dataset
from trainer.evaluation.judging import Judge, Mistake, Report, Tally, summary

NAMES = ("ape", "bee", "cat", "dog")


def tally_of(labels, logits, batch=3, worst=10, keys=True):
    tally = Tally(NAMES, worst)
    labels, logits = np.asarray(labels), np.asarray(logits, np.float32)
    for start in range(0, len(labels), batch):
        records = np.arange(start, min(start + batch, len(labels)))
        named = [b"train#%d" % record for record in records] if keys else None
        images = np.broadcast_to(records[:, None, None, None], (len(records), 2, 2, 1))
        tally.add(records, named, labels[records], logits[records], images)
    return tally


def sure_of(*predictions, by=4.0):
    return np.eye(len(NAMES))[list(predictions)] * by


def test_the_numbers_of_a_split_that_is_counted_by_hand():
    """Of three apes one is taken for a bee; no dog is there, but one cat is taken for it."""
    tally = tally_of([0, 0, 0, 1, 1, 2], sure_of(0, 0, 1, 1, 1, 3))
    report = tally.report()
    assert report.matrix.tolist() == [[2, 1, 0, 0], [0, 2, 0, 0], [0, 0, 0, 1], [0, 0, 0, 0]]
    assert (report.num_examples, report.num_mistakes, report.accuracy) == (6, 2, 4 / 6)
    assert report.support.tolist() == [3, 2, 1, 0]
    np.testing.assert_array_equal(report.recall, [2 / 3, 1, 0, np.nan])
    np.testing.assert_array_equal(report.precision, [1, 2 / 3, np.nan, 0])
    right, wrong = -np.log(np.exp(4) / (np.exp(4) + 3)), -np.log(1 / (np.exp(4) + 3))
    assert report.loss == pytest.approx((4 * right + 2 * wrong) / 6, rel=1e-12)
    assert [(c.label, c.prediction, c.count, c.support) for c in report.confusions(9)] == [(0, 1, 1, 3), (2, 3, 1, 1)]
    found = report.to_json()
    assert found["classes"][3] == {"name": "dog", "examples": 0, "precision": 0.0, "recall": None}
    assert found["classes"][2]["precision"] is None
    assert found["mistakes"][0]["key"] == "train#2"


def test_the_worst_mistakes_come_first_with_their_images():
    logits = np.zeros((6, 4))
    logits[:, 1] = [1, 5, 3, 9, 2, 0]  # all taken for bees, but the fourth, which is one, and the last
    tally = tally_of([0, 0, 2, 1, 3, 0], logits, worst=3)
    mistakes = tally.report().mistakes
    assert [(m.record, m.key, m.label, m.prediction) for m in mistakes] == [
        (1, "train#1", 0, 1),
        (2, "train#2", 2, 1),
        (4, "train#4", 3, 1),
    ]
    assert [int(image[0, 0, 0]) for image in tally.images()] == [1, 2, 4]
    sure, rest = np.exp(5) / (np.exp(5) + 3), 1 / (np.exp(5) + 3)
    assert (mistakes[0].probability, mistakes[0].label_probability) == pytest.approx((sure, rest))
    assert mistakes[0].loss == pytest.approx(-np.log(rest))


def test_of_equal_mistakes_the_first_are_kept_whatever_the_batches():
    for batch in (1, 2, 5):
        tally = tally_of([0] * 5, sure_of(1, 1, 1, 1, 1), batch, worst=2)
        assert [m.record for m in tally.report().mistakes] == [0, 1]


@given(st.lists(st.tuples(st.integers(0, 3), st.integers(0, 3)), min_size=1, max_size=40), st.integers(1, 7))
def test_batches_do_not_matter(pairs, batch):
    labels, predictions = zip(*pairs, strict=True)
    logits = sure_of(*predictions) + np.random.default_rng(0).normal(size=(len(pairs), 4)) / 9
    one, other = (tally_of(labels, logits, size, 5).report() for size in (batch, 100))
    assert one.matrix.tolist() == other.matrix.tolist()
    assert one.mistakes == other.mistakes
    assert one.num_examples == len(pairs)
    assert one.accuracy == np.mean(np.equal(labels, predictions))


def test_logits_too_large_for_a_softmax_have_a_loss():
    report = tally_of([0, 1], [[1000, 0, 0, 0], [2000, 0, 0, 0]]).report()
    assert (report.loss, report.mistakes[0].loss, report.mistakes[0].label_probability) == (1000, 2000, 0)


def test_without_keys_a_mistake_has_its_number_alone():
    assert tally_of([0], sure_of(1), keys=False).report().mistakes[0].key is None


def test_no_mistake_may_be_asked_for():
    tally = tally_of([0, 1], sure_of(1, 1), worst=0)
    assert (tally.report().mistakes, tally.images()) == ((), [])


@pytest.mark.parametrize(("keys", "name"), [(True, "key train#1"), (False, "record 1")])
def test_an_output_that_is_not_finite_is_named(keys, name):
    logits = sure_of(0, 1)
    logits[1, 2] = np.nan
    with pytest.raises(DataError) as error:
        tally_of([0, 1], logits, keys=keys)
    assert str(error.value).startswith(f"{name}: ")


@pytest.mark.parametrize("shape", [(2, 5), (2, 4, 1)])
def test_outputs_that_are_not_a_logit_per_class_are_refused(shape):
    with pytest.raises(UsageError) as error:
        Tally(NAMES, 3).add(np.arange(2), None, np.zeros(2, int), np.zeros(shape), np.zeros((2, 1)))
    assert str(shape[1:]) in str(error.value)


def answers(trained, folder):
    """Returns images, labels and logits of the test split, read one by one from a copy that is not compressed."""
    write_dataset(folder, (2,), (4, 3, 1), (4, 3, 4), 5)
    examples = RandomAccess(folder, "test")
    images = np.stack([examples[i]["image"] for i in range(11)])
    return images, [int(examples[i]["label"]) for i in range(11)], trained.model(images, training=False).numpy()


@pytest.mark.parametrize("kind", [Kind(), Kind(compression="GZIP")], ids=["seekable", "forward only"])
@pytest.mark.quick(1)
def test_a_model_is_judged_on_each_example_of_the_split_once(make_trained, tmp_path, kind):
    trained = make_trained(kind)
    judgement = Judge(trained, most_mistakes=3).judge()
    images, labels, logits = answers(trained, tmp_path / "copy")
    matrix = np.zeros((5, 5), int)
    np.add.at(matrix, (labels, logits.argmax(1)), 1)
    assert judgement.report.matrix.tolist() == matrix.tolist()
    assert judgement.evaluation.num_examples == judgement.report.num_examples == 11
    losses = np.log(np.exp(logits).sum(1)) - logits[np.arange(11), labels]
    assert judgement.evaluation.loss == pytest.approx(losses.mean(), rel=1e-5)
    wrong = [i for i in np.argsort(-losses, kind="stable").tolist() if logits[i].argmax() != labels[i]][:3]
    mistakes = judgement.report.mistakes
    assert [(one.record, one.key) for one in mistakes] == [(i, f"test#{i:05}") for i in wrong]
    for found, number in zip(judgement.images, wrong, strict=True):  # as stored, or as the model got them
        np.testing.assert_array_equal(found, images[number])


@pytest.mark.slow
def test_several_splits_are_judged_together_and_told_apart_by_their_keys(make_trained, tmp_path):
    write_dataset(tmp_path / "other", (2,), (4, 3, 1), (4, 3, 4), 5)
    trained = make_trained(data_dir=f"{tmp_path}/data=1,{tmp_path}/other=1")
    assert len(trained.splits) == 2
    judgement = Judge(trained, most_mistakes=40).judge()
    images, labels, logits = answers(trained, tmp_path / "copy")
    wrong = [i for i in range(11) if logits[i].argmax() != labels[i]]
    assert judgement.report.num_examples == 22
    mistakes = judgement.report.mistakes
    assert sorted(one.record for one in mistakes) == [*wrong, *(11 + i for i in wrong)]
    assert len({one.key for one in mistakes}) == 2 * len(wrong)
    for one, found in zip(mistakes, judgement.images, strict=True):
        np.testing.assert_array_equal(found, images[one.record % 11])


def lines_of(report):
    return [" ".join(line.split()) for line in summary(report)]


def test_classes_and_mistakes_are_listed():
    mistakes = (Mistake(7, "train#7", 0, 1, 0.75, 0.125, 2.0794), Mistake(9, None, 0, 1, 0.5, 0.25, 1.3863))
    report = Report(("ape", "bee", "cat"), np.array([[1198, 2, 0], [0, 3, 0], [0, 0, 0]]), 0.5, mistakes)
    assert lines_of(report) == [
        "class examples precision recall most confused with",
        "ape 1,200 1.0000 0.9983 bee (2)",
        "bee 3 0.6000 1.0000",
        "cat 0 - -",
        "",
        "worst mistakes label prediction probability loss",
        "train#7 ape bee 0.7500 2.08",
        "record 9 ape bee 0.5000 1.39",
    ]


def test_of_many_classes_those_of_the_lowest_recall_are_shown():
    matrix = np.diag(np.arange(30))  # class 0 has no examples
    matrix[:, 0] += 30 - np.arange(30)
    matrix[0, 0] = 0
    found = lines_of(Report(tuple(f"c{i}" for i in range(30)), matrix, 0.5, ()))
    assert len(found) == 22
    assert found[1].startswith("c1 30 1.0000 0.0333 c0 (29)")
    assert found[-1] == "and 10 more classes of higher recall"
