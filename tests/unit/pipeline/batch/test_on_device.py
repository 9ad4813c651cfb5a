"""`augment_on="device"`: uint8 and keys are fed, and the step turns them into what the host would have fed."""

import numpy as np
import pytest
import tensorflow as tf

from pipeline import Shard, augment_fn, distribute, input_fn, uniform
from pipeline.errors import UsageError
from tests.helpers.datasets import Kind, write_dataset

SHAPE = (10, 8, 3)
TRAIN = {"global_batch_size": 8, "training": True, "seed": 5, "epochs": 2}
MIXED = "shift | mixup(alpha=1.0, until_epoch=1)"


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    path = tmp_path_factory.mktemp("made")
    write_dataset(path, (20, 0, 9, 8), SHAPE)
    return path


@pytest.fixture(scope="module")
def jpegs(tmp_path_factory):
    path = tmp_path_factory.mktemp("jpegs")
    write_dataset(path, (11, 10), (20, 18, 3), kind=Kind("jpeg", varied=True))
    return path


def compiled(augment):
    return tf.function(lambda batch: augment(*batch), autograph=False)


def check_alike(data_dir, place="device", **options):
    """Compares every batch of an input with the result of a step, and returns the element_spec of the latter's x."""
    augment = compiled(augment_fn(data_dir, **options, augment_on=place))
    fed = input_fn(data_dir, **options, augment_on=place)
    expected = list(input_fn(data_dir, **options))
    assert len(expected) == len(fed) > 1
    for batch, (x, labels, weights) in zip(fed, expected, strict=True):
        made = augment(batch)
        assert made[0].dtype == x.dtype
        np.testing.assert_allclose(made[0], x, rtol=0, atol=2e-5 if place == "device" else 0)
        np.testing.assert_allclose(made[1], labels, rtol=0, atol=1e-6)
        np.testing.assert_array_equal(made[2], weights)
    return fed.element_spec[0]


def test_a_step_makes_what_the_host_would_have_fed(folder):
    check_alike(folder, **TRAIN, augment="color_jitter | pad_crop_flip(pad=2)")
    spec = check_alike(folder, **TRAIN, augment="flip", shuffle_bytes=3000, streams=2)
    assert spec == {"image": tf.TensorSpec([8, *SHAPE], tf.uint8), "distort_key": tf.TensorSpec([8], tf.uint64)}


WINDOWS = {"shuffle_bytes": 3000, "streams": 2}


@pytest.mark.parametrize(
    ("text", "memory", "fed"),
    [
        ("normalize", WINDOWS, SHAPE),
        ("flip | shift", {}, SHAPE),
        ("color_jitter | pad_crop_flip(pad=2) | cutout(size=3) | mixup(alpha=1.0)", {}, SHAPE),
        ("flip | cifar10_tutorial(crop=6)", {}, (6, 6, 3)),  # of this one the input takes the crops
        pytest.param("cifar10_tutorial(crop=6)", {}, (6, 6, 3), marks=pytest.mark.slow),
        pytest.param("cifar10_tutorial(crop=6)", WINDOWS, (6, 6, 3), marks=pytest.mark.slow),
        pytest.param("pad_crop_flip(pad=2) | cutmix", WINDOWS, SHAPE, marks=pytest.mark.slow),
    ],
)
@pytest.mark.quick(2)
def test_the_input_keeps_pixels_and_the_step_makes_floats(text, memory, fed, folder):
    """What crosses the bus is uint8, and what comes out has the bits of the host's images."""
    spec = check_alike(folder, "both", **TRAIN, **memory, augment=text)
    assert spec["image"] == tf.TensorSpec([8, *fed], tf.uint8)


@pytest.mark.slow
def test_the_two_parts_evaluate_as_one(folder):
    for text in ("pad_crop_flip | mixup", "cifar10_tutorial(crop=6)"):
        check_alike(folder, "both", split="test", global_batch_size=2, training=False, augment=text)


@pytest.mark.slow
def test_mixed_floats_have_the_same_bits_in_a_compiled_step(folder):
    """XLA would fuse the normalisation into the mixing, and round otherwise than the host."""
    options = {**TRAIN, "augment": "normalize | mixup(alpha=1.0)"}
    augment = augment_fn(folder, **options, augment_on="device")
    step = tf.function(lambda batch: augment(*batch)[0], autograph=False, jit_compile=True)
    fed = input_fn(folder, **options, augment_on="device")
    for batch, (x, _, _) in zip(fed, input_fn(folder, **options), strict=True):
        np.testing.assert_array_equal(step(batch), x)


@pytest.mark.slow
def test_rows_are_mixed_until_an_epoch(folder):
    spec = check_alike(folder, **TRAIN, augment=MIXED, weights="mean", shuffle_bytes=3000)
    assert spec["distort_epoch"] == tf.TensorSpec([8], tf.int64)


def test_a_row_is_not_mixed_with_padding(folder):
    options = {**TRAIN, "augment": MIXED, "augment_on": "device"}
    images, labels, weights = next(iter(input_fn(folder, **options)))
    augment = compiled(augment_fn(folder, **options))
    pair = next(row for row in (0, 2, 4, 6) if labels[row] != labels[row + 1])
    for real, mixed in ((weights, 2), (weights - tf.one_hot(pair + 1, 8), 0)):
        _, probabilities, _ = augment((images, labels, real))
        assert (np.max(probabilities[pair : pair + 2], axis=1) < 1).sum() == mixed


def test_an_evaluation_gets_the_evaluation_twin(folder):
    options = {"split": "test", "global_batch_size": 2, "training": False}
    check_alike(folder, **options, augment=MIXED)
    stored, twins = input_fn(folder, **options), input_fn(folder, **options, augment=MIXED)
    for (images, labels, _), (twin, probabilities, _) in zip(stored, twins, strict=True):
        np.testing.assert_allclose(twin, images / 255, rtol=1e-6)
        np.testing.assert_array_equal(probabilities, tf.one_hot(labels, 3))


@pytest.mark.slow
def test_the_part_that_is_decoded_is_chosen_on_the_host(jpegs):
    text = "random_resized_crop(size=8) | cutout(size=3)"
    spec = check_alike(jpegs, **TRAIN, augment=text)
    assert spec["image"] == tf.TensorSpec([8, 8, 8, 3], tf.uint8)
    check_alike(jpegs, **TRAIN, resize="9x8", augment="flip")
    assert check_alike(jpegs, "both", **TRAIN, augment=text)["image"] == spec["image"]


def test_a_function_of_the_users(folder):
    def darker(images, keys):
        return tf.cast(images, tf.float32) * uniform(keys, 0)[:, None, None, None]

    check_alike(folder, **TRAIN, augment=darker)


@pytest.mark.slow
def test_a_mixture_has_the_keys_of_each_source(folder, jpegs):
    sources = [(str(folder), 0.5), (str(jpegs), 0.5)]
    check_alike(sources, **TRAIN, resize="10x8", augment="shift")


def test_features_are_handed_on(folder):
    options = {**TRAIN, "augment": "shift", "features": ["key"], "augment_on": "device"}
    images, labels, weights = next(iter(input_fn(folder, **options)))
    x, _, _ = augment_fn(folder, **options)(images, labels, weights)
    assert set(x) == {"image", "key"}
    np.testing.assert_array_equal(x["key"], images["key"])


@pytest.mark.slow
@pytest.mark.parametrize("virtual", [None, 4])
def test_replicas_get_their_rows(folder, virtual):
    strategy = tf.distribute.MirroredStrategy(["CPU:0", "CPU:1"])
    options = {**TRAIN, "augment": "shift"}
    augment = augment_fn(folder, **options, augment_on="device")
    fed = distribute(strategy, folder, **options, augment_on="device", virtual_replicas=virtual)

    @tf.function(autograph=False)
    def step(batch):
        def of_replica(*rows):
            if virtual is None:
                return augment(*rows)[0]
            return tf.concat([augment(*tf.nest.map_structure(lambda r, i=i: r[i], rows))[0] for i in range(2)], axis=0)

        return strategy.run(of_replica, batch)

    replicas = [list(input_fn(folder, **options, shard=Shard(r, 2)).as_numpy_iterator()) for r in range(2)]
    for number, batch in enumerate(fed):
        for made, batches in zip(strategy.experimental_local_results(step(batch)), replicas, strict=True):
            np.testing.assert_allclose(made, batches[number][0], rtol=0, atol=2e-5)


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"augment_on": "both", "augment": "flip | mixup"}, "augment_on='both' with augment='flip [|] mixup': "),
        ({"augment_on": "both", "augment": lambda images, keys: images}, "augment_on='both' .*'host' or 'device'"),
        ({"augment_on": "both"}, "augment_on='both' with no augment"),
        ({"augment_on": "gpu", "augment": "shift"}, "augment_on: .*'gpu'.* both, device, host"),
        ({}, "augment_on='device' "),
        ({"augment": "none"}, "augment_on='device' "),
        ({"parse": lambda records: records}, "augment_on='device' .*parse"),
    ],
)
def test_what_a_device_cannot_augment(folder, options, said):
    with pytest.raises(UsageError, match=said):
        input_fn(folder, **{**TRAIN, "augment_on": "device", **options})


def test_what_augments_for_a_device_only(folder, jpegs):
    with pytest.raises(UsageError, match="augment_on='host': .*'device'"):
        augment_fn(folder, **TRAIN, augment="shift")
    sources = [(str(folder), 0.5), (str(jpegs), 0.5)]
    with pytest.raises(UsageError, match="augment_on='device' .* 2 sources: "):
        input_fn(sources, **TRAIN, resize="10x8", augment="mixup", augment_on="device")
