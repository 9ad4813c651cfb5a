"""Simulated splits: dealt at random, sorted by class, sorted and dealt in chunks."""

import math
import re

import numpy as np
import pytest

from beam_jobs.examples.statistics import entropy, label_histogram
from beam_jobs.report import mixing
from pipeline.manifest import Manifest, ShardInfo, SplitInfo


def split_of(pieces, classes):
    shards = tuple(
        ShardInfo("x", len(piece), 0, "00000000", None, None, entropy(label_histogram(piece, classes)))
        for piece in pieces
    )
    return SplitInfo(shards, label_histogram(np.concatenate(pieces), classes))


def judge(pieces, classes):
    return mixing.judge("train", split_of(pieces, classes))


def drawn(draw, records, classes, kind):
    weights = np.ones(classes) if kind == "even" else 1.0 / np.arange(1, classes + 1) ** 1.5
    if kind == "rare":
        weights = np.array([1.0] + [0.01 / (classes - 1)] * (classes - 1))
    return draw.choice(classes, records, p=weights / weights.sum())


@pytest.mark.parametrize("kind", ["even", "uneven", "rare"])
@pytest.mark.parametrize("classes", [2, 10, 100, 1000])
@pytest.mark.parametrize("shards", [2, 4, 16, 100])
@pytest.mark.parametrize("records", [5, 50, 500, 5000])
def test_shards_that_are_dealt_at_random_never_warn(records, shards, classes, kind):
    draw = np.random.default_rng([records, shards, classes, len(kind)])
    for _ in range(3 if records * shards < 10**5 else 1):
        found = judge(np.array_split(drawn(draw, records * shards, classes, kind), shards), classes)
        assert found is None or not found.is_bad, found


@pytest.mark.parametrize(("classes", "records"), [(2, 50), (10, 50), (10, 5000), (100, 500), (1000, 5000)])
@pytest.mark.parametrize("shards", [2, 4, 16, 100])
def test_shards_of_a_source_that_is_sorted_by_class_always_warn(shards, classes, records):
    labels = np.sort(drawn(np.random.default_rng(classes), records * shards, classes, "even"))
    found = judge(np.array_split(labels, shards), classes)
    assert found.is_bad, found


@pytest.mark.parametrize("shards", [4, 16])
@pytest.mark.parametrize("classes", [10, 100])
def test_chunks_of_one_class_each_that_are_dealt_to_shards_warn(classes, shards):
    draw = np.random.default_rng(0)
    chunks = np.array_split(np.sort(drawn(draw, 1000 * shards, classes, "even")), 4 * shards)
    dealt = np.concatenate([chunks[i] for i in draw.permutation(len(chunks))])
    assert judge(np.array_split(dealt, shards), classes).is_bad


def test_one_shard_one_class_or_no_record_is_nothing_to_mix():
    assert judge([np.array([0, 0, 1, 1])], 2) is None
    assert judge([np.array([0, 0]), np.array([], np.int64), np.array([0])], 2) is None
    assert judge([np.array([0, 1]), np.array([], np.int64)], 2) is None
    assert mixing.judge("train", SplitInfo((), ())) is None


@pytest.mark.parametrize("records", [5, 50, 500, 5000])
@pytest.mark.parametrize("classes", [2, 10, 100, 1000])
def test_the_expected_entropy_is_that_of_random_samples_or_somewhat_less(classes, records):
    draw = np.random.default_rng(1)
    samples = draw.multinomial(records, np.ones(classes) / classes, 200)
    found = float(np.mean([entropy(sample.tolist()) for sample in samples]))
    expected = mixing.expected_entropy(math.log2(classes), classes, 1 / classes, records)
    assert 0.85 * found < expected < found + 0.1


def manifest(passes=None, **splits):
    options = {"seed": 0} | ({"passes": passes} if passes else {})
    return Manifest("mine", (), {}, splits, (), (), (), options)


def test_the_warning_names_the_splits_and_the_remedy_once():
    bad = split_of([np.zeros(100, int), np.ones(100, int)], 2)
    good = split_of([np.arange(100) % 2, np.arange(100) % 2], 2)
    text = mixing.warning(manifest(train=bad, validation=good, test=bad))
    assert re.search(r"train \(0\.00 .*0\.99 .*test \(0\.00 ", text)
    assert "validation" not in text
    assert text.count("--passes=2") == 1
    assert "\n" not in text
    assert mixing.warning(manifest(train=good)) is None


def test_two_passes_are_no_remedy_after_two_passes():
    bad = split_of([np.zeros(100, int), np.ones(100, int)], 2)
    assert "--passes" not in mixing.warning(manifest(2, train=bad))
