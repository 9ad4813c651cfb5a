"""Mixtures: each source is an input of its own, on any number of replicas; resuming; incompatible sources."""

import json
import pathlib

import numpy as np
import pytest
import tensorflow as tf

from pipeline import Shard, StepIterator, distribute, input_fn, order_spec, steps_per_epoch
from pipeline.errors import UsageError
from pipeline.request import Request
from pipeline.resolved import parts_of
from tests.helpers.datasets import Kind, edit_manifest, extra_of, key_of, write_dataset

# 36 rows of a step: 24 and 12, so that 1, 2, 3, 4 replicas divide them. a: 53 records, 3 steps; b: 40 records, 4 steps.
STEPS = 12
OPTIONS = {"global_batch_size": 36, "training": True, "seed": 5, "record_ids": True}
WINDOWS = {"shuffle_bytes": 7000, "streams": 4}  # of a 2 windows a stream, of b 3


@pytest.fixture(scope="module")
def folders(tmp_path_factory):
    path = tmp_path_factory.mktemp("made")
    write_dataset(path / "a", (20, 0, 18, 15))
    write_dataset(path / "b", (33, 27), kind=Kind("png"))
    return [str(path / "a"), str(path / "b")]


@pytest.fixture(scope="module")
def mixture(folders):
    a, b = folders
    return [(a, 2), (f"{b}:train[:40]", 1)]


def taken(mixture, **options):
    return list(input_fn(mixture, **{**OPTIONS, "epochs": 4, **options}).as_numpy_iterator())


def of_sources(values):
    """Returns the rows of each source of a whole batch of 36, said plainly: 12 blocks of two rows of a and one of b."""
    blocks = values.reshape(12, 3, *values.shape[1:])
    return blocks[:, :2].reshape(24, *values.shape[1:]), blocks[:, 2]


@pytest.fixture(
    scope="module", params=[pytest.param({}, marks=pytest.mark.slow), WINDOWS], ids=["in memory", "windows"]
)
def memory(request):
    return request.param


@pytest.fixture(scope="module")
def whole(mixture, memory):
    return taken(mixture, **memory)


@pytest.mark.slow
def test_each_source_is_an_input_of_its_own(mixture, memory, whole):
    parts = parts_of(Request(mixture, **{**OPTIONS, **memory}))
    assert [part.global_batch_size for part in parts] == [24, 12]
    assert parts[0].seed == 5 != parts[1].seed
    for number, part in enumerate(parts):
        own = {"seed": part.seed, "shuffle_bytes": part.shuffle_bytes, "global_batch_size": part.global_batch_size}
        alone = input_fn(part.folder, part.split, **{**OPTIONS, **memory, **own}).take(STEPS)
        for got, expected in zip(whole, alone.as_numpy_iterator(), strict=True):
            for component, own in zip(got[:3], expected[:3], strict=True):
                np.testing.assert_array_equal(of_sources(component)[number], own)
            np.testing.assert_array_equal(of_sources(got[3])[number], expected[3] + 53 * number)


@pytest.mark.slow
def test_a_single_data_set_is_a_mixture_of_one(folders):
    a = folders[0]
    alone = taken(a, **WINDOWS)
    schedule = [(0, {a: 1}), (5, {a: 3})]  # however much of itself: it has all rows
    for one in (taken([(a, 7)], **WINDOWS), taken([(a, 7)], **WINDOWS, schedule=schedule)):
        for got, expected in zip(one, alone, strict=True):
            for component, other in zip(got, expected, strict=True):
                np.testing.assert_array_equal(component, other)


def test_each_source_is_seen_once_in_each_of_its_epochs(whole):
    assert len(whole) == STEPS
    for number, (count, steps) in enumerate([(53, 3), (40, 4)]):
        for epoch in range(STEPS // steps):
            batches = whole[epoch * steps : (epoch + 1) * steps]
            weights = np.concatenate([of_sources(w)[number] for _, _, w, _ in batches])
            ids = np.concatenate([of_sources(ids)[number] for *_, ids in batches])
            assert sorted(ids[weights == 1]) == list(range(53 * number, 53 * number + count))
            assert set(weights) == {0.0, 1.0}
    assert len({tuple(batch[3]) for batch in whole}) == STEPS


@pytest.mark.parametrize("replicas", [3, pytest.param(4, marks=pytest.mark.slow)])
def test_the_global_batch_is_the_same_on_any_number_of_replicas(mixture, memory, whole, replicas):
    rows = 36 // replicas
    for replica in (0, replicas - 1):
        part = taken(mixture, **memory, shard=Shard(replica, replicas))
        for got, expected in zip(part, whole, strict=True):
            assert (got[3] >= 53).sum() == 12 // replicas
            for component, all_rows in zip(got, expected, strict=True):
                np.testing.assert_array_equal(component, all_rows[replica * rows : (replica + 1) * rows])


@pytest.mark.slow
def test_several_replicas_of_a_worker_take_turns(mixture):
    got = taken(mixture, **WINDOWS, shard=Shard(1, 2, local_replicas=2))
    expected = taken(mixture, **WINDOWS)
    assert len(got) == 2 * STEPS
    for number, element in enumerate(got):
        first = 18 + 9 * (number % 2)
        for component, all_rows in zip(element, expected[number // 2], strict=True):
            np.testing.assert_array_equal(component, all_rows[first : first + 9])


def test_it_resumes_anywhere(mixture, memory, whole):
    for start in (3, 7):
        tail = taken(mixture, **memory, start_step=start)
        assert len(tail) == STEPS - start
        for got, expected in zip(tail, whole[start:], strict=True):
            for component, other in zip(got, expected, strict=True):
                np.testing.assert_array_equal(component, other)


@pytest.mark.slow
def test_a_stored_state_resumes_and_belongs_to_its_sources_and_shares(mixture, memory, whole):
    batches = StepIterator(mixture, **OPTIONS, **memory)
    for _ in range(5):
        next(batches)
    state = json.loads(json.dumps(batches.get_state()))
    again = StepIterator(mixture, **OPTIONS, **memory)
    again.set_state(state)
    for expected in whole[5:8]:
        for got, other in zip(next(again), expected, strict=True):
            np.testing.assert_array_equal(got, other)
    (a, _), (b, _) = mixture
    for other, message in [
        ([(a, 7), (b, 2)], "source 0: global_batch_size .* 24, .* 28; .*source 1: global_batch_size .* 12, .* 8"),
        ([(a, 2), (b.replace("[:40", "[:41"), 1)], r"source 1: split .*\[:40\], .*\[:41\]"),
        ([(a, 2), (a, 1)], "source 1: manifest_digest .* [0-9a-f]{64}, "),
        ([(b, 2), (a, 1)], "source 0: manifest_digest "),
        ([(a, 20), (b, 8), (b, 8)], "sources .* 2, .* 3"),
        (a, "sources .* 2, .* 1"),
    ]:
        with pytest.raises(UsageError, match=message):
            StepIterator(other, **OPTIONS, **memory).set_state(state)
    alone = StepIterator(a, **OPTIONS, **memory)
    with pytest.raises(UsageError, match="sources .* 1, .* 2"):
        again.set_state(alone.get_state())


def test_the_epoch_is_that_of_the_first_source(mixture):
    a, b = mixture
    options = {"global_batch_size": 36, "training": True}
    assert (steps_per_epoch(mixture, global_batch_size=36), steps_per_epoch([b, a], global_batch_size=36)) == (3, 4)
    assert steps_per_epoch([a, b], global_batch_size=36, remainder="drop") == 2
    assert [len(input_fn(m, epochs=2, **options)) for m in ([a, b], [b, a])] == [2 * 3, 2 * 4]
    assert input_fn(mixture, **options).cardinality() == tf.data.INFINITE_CARDINALITY
    spec = order_spec(mixture, **options)
    assert json.loads(spec.to_json())["source 1: global_batch_size"] == 12
    assert spec.global_batch_size == 36
    assert len({spec.digest, order_spec([a, (b[0], 1.5)], **options).digest}) == 2


def test_two_halves_are_not_permuted_alike(folders):
    halves = [(f"{folders[1]}:train[:30]", 1), (f"{folders[1]}:train[30:]", 1)]
    pairs = set()
    for *_, ids in taken(halves, epochs=2, global_batch_size=60):
        pairs |= {(int(x), int(y)) for x, y in ids.reshape(30, 2)}
    assert sum(y - x == 30 for x, y in pairs) < 10  # of 60; the same seed would give all of them
    assert len(pairs) > 55


@pytest.mark.slow
def test_augmentations_are_keyed_by_record_and_mixing_stays_within_a_source(mixture):
    options = {"augment": "pad_crop_flip(pad=2) | mixup(alpha=1.0)", "weights": "mean"}
    whole = taken(mixture, **options)
    for replica in range(2):
        for got, expected in zip(taken(mixture, **options, shard=Shard(replica, 2)), whole, strict=True):
            for component, all_rows in zip(got, expected, strict=True):
                np.testing.assert_allclose(component, all_rows[18 * replica : 18 * replica + 18], atol=2e-5)
    for _, labels, weights, _ in whole:
        np.testing.assert_allclose(labels.sum(axis=1), 1, atol=1e-6)
        np.testing.assert_allclose([part.sum() for part in of_sources(weights)], [24, 12], rtol=1e-6)
    with pytest.raises(UsageError, match=r"source '.*b:train\[:40\]': augment: .* 4 replicas 3"):
        taken(mixture, **options, shard=Shard(0, 4))


@pytest.mark.slow
def test_replicas_of_a_strategy_get_equal_shares(folders, tmp_path):
    kind = Kind(extra=True)  # strings, and vectors whose length varies, which are ragged
    for name in "ab":
        write_dataset(tmp_path / name, (20, 21), kind=kind)
    mixture = [(tmp_path / "a", 2), (tmp_path / "b", 1)]
    options = {**OPTIONS, "global_batch_size": 18, "epochs": 1, "features": ("scores", "tags", "key")}
    whole = list(input_fn(mixture, **options))
    for features, _, _, ids in whole:
        for record, key, scores in zip(ids.numpy(), features["key"].numpy(), features["scores"], strict=True):
            assert key == key_of("train", record % 41)
            np.testing.assert_array_equal(scores, extra_of(record % 41)["scores"])
    strategy = tf.distribute.MirroredStrategy([f"CPU:{i}" for i in range(3)])
    for virtual in (None, 6):
        got = list(distribute(strategy, mixture, virtual_replicas=virtual, **options))
        for element, expected in zip(got, whole, strict=True):
            ids = [value.numpy() for value in strategy.experimental_local_results(element[3])]
            np.testing.assert_array_equal(np.concatenate(ids).reshape(-1), expected[3])
            assert [(part >= 41).sum() for part in ids] == [2, 2, 2]
            if virtual is None:
                for name in options["features"]:
                    rows = [v for each in strategy.experimental_local_results(element[0][name]) for v in each]
                    for row, other in zip(rows, expected[0][name], strict=True):
                        np.testing.assert_array_equal(row, other)
    with pytest.raises(UsageError, match=r"12, .*b:train 6 .* 9 virtual replicas"):
        distribute(strategy, mixture, virtual_replicas=9, **options)
    four = tf.distribute.MirroredStrategy([f"CPU:{i}" for i in range(4)])
    with pytest.raises(UsageError, match=r" 4 replicas .*=12 and 24"):
        distribute(four, mixture, **options)


@pytest.mark.slow
def test_it_reads_in_other_processes_and_inside_a_function(mixture):
    options = {**WINDOWS, "portable": True, "start_step": 2, "epochs": 1}

    @tf.function(autograph=False)
    def first_ids():
        return next(iter(input_fn(mixture, **OPTIONS, **options)))[3]

    np.testing.assert_array_equal(first_ids(), taken(mixture, **options)[0][3])
    np.testing.assert_array_equal(first_ids(), taken(mixture, **WINDOWS)[2][3])


@pytest.mark.slow
def test_all_are_normalised_by_the_first_sources_statistics(folders, mixture):
    a, b = folders
    whole = next(iter(input_fn(mixture, **OPTIONS, augment="normalize")))
    plain = next(iter(input_fn(mixture, **OPTIONS)))
    made = json.loads((pathlib.Path(a) / "manifest.json").read_text())
    expected = (plain[0].numpy() - made["image_mean"]) / made["image_std"]
    np.testing.assert_allclose(whole[0], expected, atol=1e-5)
    options = {"global_batch_size": 8, "training": False, "augment": "normalize"}
    images, *_ = next(iter(input_fn(b, "test", statistics=a, **options)))
    stored, *_ = next(iter(input_fn(b, "test", **{**options, "augment": None})))
    np.testing.assert_allclose(images, (stored.numpy() - made["image_mean"]) / made["image_std"], atol=1e-5)


def parse(records):
    """Returns two numbers for each of 12 records, else one."""
    return tf.zeros([records.shape[0], 1 + int(records.shape[0] == 12)])


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"training": False}, "training=False .* 2 sources"),
        ({"global_batch_size": 1}, r"source '.*b:train\[:40\]': .* 1 of 3"),
        ({"shard": Shard(0, 5)}, r"a:train 24, .*b:train\[:40\] 12 .* 5 replicas"),
        ({"streams": 9}, "source '.*a:train': streams=9 .*=24"),
        ({"shuffle_bytes": 200}, "source '.*a:train': shuffle_bytes=133: .* 144 "),
        ({"features": ("box",)}, "box"),
        ({"parse": parse}, r"a:train' .*b:train\[:40\]' .*\(1,\).*\(2,\)"),
        ({"statistics": "nowhere"}, "nowhere: there is no such folder"),
    ],
)
def test_wrong_options(mixture, options, message):
    with pytest.raises((UsageError, OSError), match=message):
        taken(mixture, **options)


@pytest.mark.parametrize(
    ("made", "options", "message"),
    [
        ({"shape": (9, 6, 3)}, {}, r"images: \(8, 6, 3\) .* \(9, 6, 3\)"),
        ({"shape": (8, 6, 1)}, {}, "channels: 3 .* 1"),
        ({"classes": 4}, {}, "classes: 3 .* 4"),
    ],
)
def test_sources_that_do_not_fit_together(folders, tmp_path, made, options, message):
    write_dataset(tmp_path / "c", **made)
    with pytest.raises(UsageError, match=f"'.*a:train' .*'.*c:train' .*{message}"):
        taken([(folders[0], 1), (tmp_path / "c", 1)], **options)


def test_sources_with_other_class_names_or_features_do_not_fit_together(tmp_path):
    for name in "ab":
        write_dataset(tmp_path / name, kind=Kind(extra=True))
    mixture = [(tmp_path / "a", 1), (tmp_path / "b", 1)]
    edit_manifest(tmp_path / "b", lambda made: made["features"]["scores"].update(shape=[7]))
    with pytest.raises(UsageError, match=r"'scores': float32 \(None,\) .* float32 \(7,\)"):
        taken(mixture, features=("scores",))
    edit_manifest(tmp_path / "b", lambda made: made["class_names"].reverse())
    with pytest.raises(UsageError, match="class names: class 0, class 1, class 2 and class 2, class 1"):
        taken(mixture)


def test_images_of_other_sizes_are_stretched_to_one(folders, tmp_path):
    write_dataset(tmp_path / "c", shape=(9, 7, 3))
    images, *_ = taken([(folders[0], 1), (tmp_path / "c", 1)], resize="5x4", epochs=1)[0]
    assert images.shape == (36, 5, 4, 3)


def test_each_source_has_its_part_of_the_memory_and_the_first_one_ends_the_run():
    options = {"global_batch_size": 36, "training": True, "seed": 5, "epochs": 4}
    parts = parts_of(Request([("a", 2), ("b", 1)], **options, shuffle_bytes=999))
    assert [(part.shuffle_bytes, part.epochs) for part in parts] == [(666, 4), (333, None)]
    parts = parts_of(Request([("a", 2), ("b", 1)], **options, shuffle_bytes=1))
    assert [part.shuffle_bytes for part in parts] == [1, 1]


def test_every_source_is_compared_with_the_first(folders, tmp_path):
    write_dataset(tmp_path / "c", shape=(8, 6, 1))
    with pytest.raises(UsageError, match="'.*a:train' .*'.*c:train' .* channels: 3 .* 1"):
        order_spec([(folders[0], 1), (folders[1], 1), (tmp_path / "c", 1)], global_batch_size=36, training=True)
