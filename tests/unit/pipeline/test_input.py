"""`input_fn` against `pipeline.order.order` and the data set's own bytes."""

import dataclasses
import functools
import json

import numpy as np
import pytest
import tensorflow as tf

import pipeline
from pipeline import input_fn, order_spec, steps_per_epoch
from pipeline import manifest as manifests
from pipeline.audit.contract import Contract
from pipeline.errors import DataError, UsageError
from pipeline.graph_calls import UserFunction
from pipeline.manifest import manifest
from pipeline.manifest.splits import select
from pipeline.order import hashing
from pipeline.order.hashing import Domain
from pipeline.order.order import make_order
from pipeline.order.sharding import Shard
from pipeline.read import memory
from tests.helpers.datasets import images_of, write_dataset

SHAPE = (8, 6, 3)


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    path = tmp_path_factory.mktemp("made")
    write_dataset(path, (5, 0, 4, 3), SHAPE)
    return path


@pytest.fixture(scope="module")
def whole(folder):
    """Returns a function from a global batch size and JSON of other arguments to all elements of two epochs."""

    @functools.cache
    def of(size, others):
        arguments = {"global_batch_size": size, "training": True, "epochs": 2, "record_ids": True}
        return elements(input_fn(folder, **arguments, **json.loads(others)))

    return of


def order_of(folder, split="train", **arguments):
    spec = order_spec(folder, split, **arguments)
    manifest = manifests.load(folder)
    counts = tuple(s.num_examples for s in select(manifest, split).segments)
    return Contract(*dataclasses.astuple(make_order(spec, counts, int(np.prod(SHAPE)))))


def elements(dataset, count=None):
    return list((dataset if count is None else dataset.take(count)).as_numpy_iterator())


@pytest.mark.parametrize(
    ("streams", "shuffle_bytes"),
    [
        pytest.param(1, 1 << 30, marks=pytest.mark.slow),
        (4, 1 << 30),
        pytest.param(1, 720, marks=pytest.mark.slow),
        (2, 864),
        (4, 576),
    ],
)
@pytest.mark.parametrize("remainder", ["pad", "drop"])
@pytest.mark.quick(1)
def test_batches_are_the_orders_records_with_their_pixels_and_labels(folder, streams, shuffle_bytes, remainder):
    arguments = {"global_batch_size": 8, "training": True, "seed": 3, "streams": streams, "remainder": remainder}
    arguments["shuffle_bytes"] = shuffle_bytes
    order = order_of(folder, **arguments)
    images = images_of(0, 12, SHAPE)
    got = elements(input_fn(folder, epochs=3, record_ids=True, **arguments))
    assert len(got) == 3 * order.steps_per_epoch == (6 if remainder == "pad" else 3)
    for step, (x, y, w, records) in enumerate(got):
        expected, real = order.batch(step)
        assert np.array_equal(records, expected)
        assert np.array_equal(w, real.astype(np.float32))
        assert np.array_equal(x, images[expected])
        assert np.array_equal(y, expected % 3)
        assert (x.dtype, y.dtype, w.dtype) == (np.uint8, np.int64, np.float32)


@pytest.mark.parametrize("shuffle_bytes", [1 << 30, 720])
@pytest.mark.parametrize("start", [1, *(pytest.param(step, marks=pytest.mark.slow) for step in (2, 3, 6)), 5])
@pytest.mark.quick(1)
def test_starting_at_a_step_gives_the_tail_of_the_run(folder, whole, start, shuffle_bytes):
    arguments = {"augment": "shift", "shuffle_bytes": shuffle_bytes, "streams": 1}
    expected = whole(4, json.dumps(arguments))
    arguments |= {"global_batch_size": 4, "training": True, "epochs": 2, "record_ids": True}
    tail = elements(input_fn(folder, start_step=start, **arguments))
    assert len(expected) == 6
    assert len(tail) == 6 - start
    for one, other in zip(expected[start:], tail, strict=True):
        assert all(np.array_equal(a, b) for a, b in zip(one, other, strict=True))


def test_starting_far_away_costs_no_replay_and_gives_that_epoch(folder):
    arguments = {"global_batch_size": 4, "training": True, "record_ids": True}
    order = order_of(folder, global_batch_size=4, training=True)
    start = 3 * 10**12 + 1
    for step, element in enumerate(input_fn(folder, start_step=start, **arguments).take(3)):
        assert np.array_equal(element[3].numpy(), order.batch(start + step)[0])


@pytest.mark.parametrize(
    ("count", "local"),
    [pytest.param(1, 1, marks=pytest.mark.slow), (1, 4), (2, 2), pytest.param(8, 1, marks=pytest.mark.slow)],
)
@pytest.mark.quick(1)
def test_shards_give_each_replica_its_rows(folder, whole, count, local):
    augment = {"augment": "cifar10_tutorial(crop=6)"}
    expected = whole(8, json.dumps(augment))
    arguments = {"global_batch_size": 8, "training": True, "epochs": 2, "record_ids": True, **augment}
    rows = 8 // (count * local)
    for index in {0, count - 1}:
        part = elements(input_fn(folder, shard=Shard(index, count, local), **arguments))
        assert len(part) == len(expected) * local
        for number, (x, y, w, records) in enumerate(part):
            step, replica = number // local, index * local + number % local
            take = slice(replica * rows, (replica + 1) * rows)
            np.testing.assert_allclose(x, expected[step][0][take], atol=2e-5)
            assert np.array_equal(y, expected[step][1][take])
            assert np.array_equal(w, expected[step][2][take])
            assert np.array_equal(records, expected[step][3][take])


def test_cardinality_and_shapes_are_known(folder):
    train = {"global_batch_size": 8, "training": True}
    assert input_fn(folder, **train).cardinality() == tf.data.INFINITE_CARDINALITY
    assert input_fn(folder, epochs=5, start_step=3, **train).cardinality() == 7
    assert input_fn(folder, epochs=5, shard=Shard(0, 2, 2), **train).cardinality() == 20
    assert input_fn(folder, "test", global_batch_size=3, training=False).cardinality() == 2
    spec = input_fn(folder, augment="shift", **train).element_spec
    assert [s.shape.as_list() for s in spec] == [[8, *SHAPE], [8], [8]]
    assert [s.dtype for s in spec] == [tf.float32, tf.int64, tf.float32]
    assert steps_per_epoch(folder, global_batch_size=8) == 2
    assert steps_per_epoch(folder, global_batch_size=8, remainder="drop") == 1
    assert steps_per_epoch(folder, "train[:3]", global_batch_size=1) == 3


def test_evaluation_is_the_split_once_in_its_order(folder):
    got = elements(input_fn(folder, "train", global_batch_size=5, training=False, record_ids=True, streams=5))
    records = np.concatenate([r[w > 0] for _, _, w, r in got])
    assert records.tolist() == list(range(12))
    assert [w.sum() for _, _, w, _ in got] == [5, 5, 2]


def test_mean_weights_make_the_mean_over_the_batch_the_mean_over_real_rows(folder):
    got = elements(input_fn(folder, global_batch_size=8, training=True, epochs=1, weights="mean", streams=4))
    assert [w.tolist() for _, _, w in got] == [[1.0] * 8, [2.0, 0.0] * 4]
    values = np.random.default_rng(0).random(8)
    assert np.isclose((got[1][2] * values).mean(), values[[0, 2, 4, 6]].mean())


def test_the_users_own_function_gets_pixels_and_keys_by_seed_epoch_and_record(folder):
    def draws(images, keys):
        assert images.dtype == tf.uint8
        return tf.stack([pipeline.uniform(keys, 0), pipeline.uniform(keys, 1)], axis=1)

    arguments = {"global_batch_size": 4, "training": True, "seed": 11, "epochs": 2, "record_ids": True}
    for step, (x, _, _, records) in enumerate(elements(input_fn(folder, augment=draws, **arguments))):
        keys = hashing.derive_key(Domain.AUGMENT, 11, step // 3, records)
        assert np.array_equal(x, np.stack([hashing.uniform(keys, 0), hashing.uniform(keys, 1)], 1))


def scalar_or_rows(batch, keys=None, *, training):
    """Takes keys and training by their names, and a batch of records or of images."""
    assert batch.shape[0] == keys.shape[0] == 4
    return tf.stack([pipeline.uniform(keys, 0), tf.fill([4], 1.0 if training else 0.0)], axis=1)


@pytest.mark.parametrize("what", ["augment", "parse"])
@pytest.mark.parametrize("training", [True, False])
def test_the_users_own_function_gets_keys_and_training_by_their_names(folder, what, training):
    arguments = {"global_batch_size": 4, "training": training, "seed": 11, "epochs": 1, "record_ids": True}
    for x, *_, records in elements(input_fn(folder, **arguments, **{what: scalar_or_rows})):
        keys = hashing.derive_key(Domain.AUGMENT, 11, 0, records)
        assert np.array_equal(x, np.stack([hashing.uniform(keys, 0), np.full(4, float(training))], 1))


def called_by(function, what="parse"):
    """Returns the arguments that a function gets for a batch of two: by position, and by name."""
    given = UserFunction.of(what, function, any_keys=what == "augment")
    return given(tf.zeros([2]), lambda: tf.zeros([2], tf.uint64), training=True)


def test_arguments_are_given_by_name_or_have_defaults():
    def shown(*arguments, **named):
        return tf.constant([len(arguments), "keys" in named, "training" in named])

    functions = [
        lambda records, size=3: shown(records),
        lambda records, keys, size=3: shown(records, keys=keys),
        lambda records, *, training, keys=None: shown(records, training=training, keys=keys),
        lambda records, keys, /: shown(records, keys),
        functools.partial(lambda size, records: shown(records), 3),
        shown,
        functools.wraps(lambda records, keys: None)(functools.partial(shown)),
        lambda records, *rest, keys=None: shown(records, *rest, keys=keys),
    ]
    found = [called_by(function).numpy().tolist() for function in functions]
    assert found == [[1, 0, 0], [1, 1, 0], [1, 1, 1], [2, 0, 0], [1, 0, 0], [1, 0, 0], [2, 0, 0], [1, 1, 0]]
    bound = functools.partial(lambda records, keys, training: tf.constant([keys, training]), keys=7, training=False)
    assert called_by(bound).numpy().tolist() == called_by(bound, "augment").numpy().tolist() == [7, 0]
    of_images = [lambda images, key: shown(images, key, 0), lambda images, size=3: shown(images), shown]
    assert [int(called_by(function, "augment")[0]) for function in of_images] == [3, 1, 2]


def in_a_loop(function):
    """Returns an augmentation that applies a function to each image in the body of a loop."""
    return lambda images, keys: tf.map_fn(function, images)


@pytest.mark.parametrize("what", ["augment", "parse"])
def test_the_users_own_function_may_branch_on_tensors(folder, what):
    """AutoGraph converts it, though nothing of ours."""

    def large_or_small(values, keys=None):
        if tf.shape(values)[0] > 3:
            return tf.zeros_like(values, tf.int32)
        return tf.ones_like(values, tf.int32)

    for size, expected in ((4, 0), (3, 1)):
        arguments = {"global_batch_size": size, "training": True, "epochs": 1, what: large_or_small}
        assert all((x == expected).all() for x, *_ in elements(input_fn(folder, **arguments)))


@pytest.mark.parametrize(
    ("arguments", "facts"),
    [
        ({"global_batch_size": 0}, "global_batch_size=0"),
        ({"remainder": "padd"}, "'padd'.*'pad'"),
        ({"weights": "mask2"}, "'mask2'.*'mask'"),
        ({"augment": "shfit"}, "'shfit'.*'shift'"),
        ({"augment": "shift(pixels=6)"}, r"augment: shift\(pixels=6\): must be in 0\.\.5 for images of 8x6"),
        ({"split": "tets"}, "'tets'.*'test'"),
        ({"streams": 3}, "streams=3 .*global_batch_size=8.* 2 and 4"),
        ({"start_step": -1}, "start_step=-1"),
        ({"start_step": 5, "epochs": 2}, "start_step=5.* step 4"),
        ({"epochs": 0}, "epochs=0"),
        ({"start_step": 2**62 + 1}, "step 4611686018427387904"),
        ({"start_step": 2**63}, "start_step=9223372036854775808"),
        ({"start_step": 1.0}, "start_step=1.0"),
        ({"epochs": 1.5}, "epochs=1.5"),
        ({"global_batch_size": 8.0}, "global_batch_size=8.0"),
        ({"seed": "a"}, "seed='a'"),
        ({"training": False, "streams": 3}, "streams=3"),
        ({"augment": 5}, "augment=5"),
        ({"augment": ""}, "augment: ''"),
        ({"augment": lambda images, keys: images[:3]}, "8 rows"),
        ({"augment": lambda images, keys: None}, "8 rows.* None"),
        ({"augment": lambda images, keys: {"image": images}}, "8 rows.*'image': 'uint8"),
        ({"augment": lambda images, keys: tf.as_string(keys)}, r"8 rows.* string \(8,\)"),
        (
            {"augment": lambda images, keys: images + "a"},
            r"augment: the function fails on .*test_input\.py:\d+: \w+Error: ",
        ),
        ({"augment": lambda images, keys: tf.random.normal(images.shape)}, "RandomStandardNormal.*pipeline.uniform"),
        ({"augment": lambda image, label: image}, "augment: the function needs 'label', .*keys .*training"),
        ({"parse": lambda records, size: records}, "parse: the function needs 'size', .*functools.partial"),
        ({"parse": lambda self, records, training: records}, "parse: the function takes 'self', .*@staticmethod"),
        ({"augment": lambda self, images: images}, "augment: the function takes 'self', .*an object"),
        (
            {"parse": lambda r: tf.numpy_function(lambda v: v, [r], tf.string), "portable": True, "epochs": 1},
            r"parse: the function calls Python \(the op PyFunc\), but portable=True runs the input in other",
        ),
        ({"augment": in_a_loop(tf.image.random_flip_left_right)}, "RandomUniform.*pipeline.uniform"),
        ({"training": "false"}, "training='false'"),
        ({"training": None}, "training=None"),
        ({"record_ids": 1}, "record_ids=1"),
        ({"global_batch_size": True}, "global_batch_size=True"),
        ({"split": None}, "split=None"),
        ({"split": 3}, "split=3"),
        ({"data_dir": None}, "data_dir=None"),
        ({"data_dir": ""}, "data_dir=''"),
        ({"data_dir": b"d"}, "data_dir=b'd'"),
        ({"shard": (0, 2)}, r"shard=\(0, 2\): .*Shard\(0, 2\)"),
        ({"split": "train[:" + "9" * 5000 + "]"}, "slice"),
        ({"shuffle_bytes": 0}, "shuffle_bytes=0"),
        ({"shuffle_bytes": 143, "streams": 1}, "shuffle_bytes=143: 1 streams .*144"),
        ({"features": ["kye"]}, "'kye'.*'key'"),
        ({"features": "key"}, "features='key'"),
        ({"on_corrupt": "skp"}, "'skp'.*'skip'"),
        ({"max_corrupt": -1}, "max_corrupt=-1"),
        ({"on_corrupt": "skip", "weights": "mean", "shard": Shard(0, 2)}, "weights='mean'.*on_corrupt='skip'"),
        ({"seed": 2**63}, "seed=9223372036854775808"),
        ({"shard": Shard(0, 3)}, "8 .* 3 replicas.* 6 and 9"),
        ({"global_batch_size": 16, "remainder": "drop"}, "16.*remainder='drop'"),
    ],
)
def test_what_cannot_work_is_one_clear_error(folder, arguments, facts):
    fields = {"data_dir": folder, "global_batch_size": 8, "training": True} | arguments
    with pytest.raises(UsageError, match=facts) as caught:
        input_fn(**fields)
    assert "\n" not in str(caught.value)


def test_without_a_manifest_there_is_no_input():
    with pytest.raises(DataError, match="^/nowhere: there is no such folder"):
        input_fn("/nowhere", global_batch_size=8, training=True)


@pytest.mark.parametrize(
    ("image", "arguments", "message"),
    [
        ({"encoding": "any", "shape": [None, None, 3]}, {}, "resize .*random_resized_crop"),
        ({}, {"augment": "random_crop(size=4)"}, r"random_crop\(size=4\).*raw images"),
        ({"encoding": "png"}, {"augment": "random_crop", "resize": "4x4"}, r"random_crop.* resize=\(4, 4\)"),
        ({}, {"resize": "4x4x4"}, "resize='4x4x4'"),
        ({}, {"resize": (0, 4)}, r"resize=\(0, 4\)"),
        ({}, {"parse": 3}, "parse=3"),
        ({}, {"parse": len, "augment": "shift"}, "augment='shift' with parse"),
    ],
)
def test_what_cannot_be_fed_is_said_before_a_shard_is_looked_at(folder, tmp_path, image, arguments, message):
    content = json.loads((folder / "manifest.json").read_text())
    content["features"]["image"].update(image)
    for shard in (shard for split in content["splits"].values() for shard in split["shards"]):
        shard["stride"] = None
    (tmp_path / "manifest.json").write_text(json.dumps(manifest.sealed(content)))
    assert not list(tmp_path.glob("*.tfrecord"))
    for function in (input_fn, order_spec):
        with pytest.raises(UsageError, match=message):
            function(tmp_path, global_batch_size=8, training=True, **arguments)
    assert steps_per_epoch(tmp_path, global_batch_size=8) == 2


def test_the_spec_does_not_depend_on_the_topology(folder):
    spec = order_spec(folder, global_batch_size=8, training=True)
    fields = {field.name for field in dataclasses.fields(spec)}
    assert not fields & {"workers", "replicas", "shard", "start_step", "epochs"}
    assert spec.streams == 1
    assert order_spec(folder, global_batch_size=8, training=True, shuffle_bytes=1200).streams == 8


def test_importing_pipeline_loads_no_tensorflow_and_unknown_names_fail():
    with pytest.raises(AttributeError, match="no attribute 'nothing'"):
        _ = pipeline.nothing
    assert set(pipeline.__all__) == {"Shard", "distribute", "input_fn", "order_spec", "steps_per_epoch", "uniform"} | {
        "ExactResume",
        "InputMeter",
        "RandomAccess",
        "StepIterator",
        "augment",
        "augment_fn",
        "skipped_records",
    }
    assert callable(pipeline.distribute)


def test_numpy_integers_are_integers(folder):
    spec = order_spec(folder, global_batch_size=np.int64(8), training=True, seed=np.int32(3), streams=np.uint8(2))
    assert spec.digest == order_spec(folder, global_batch_size=8, training=True, seed=3, streams=2).digest


def test_windows_that_no_memory_holds_are_refused(folder, monkeypatch):
    monkeypatch.setattr(memory, "available", lambda: 1200)
    input_fn(folder, global_batch_size=8, training=True, shuffle_bytes=4 * 144, streams=1)
    with pytest.raises(UsageError, match="shuffle_bytes=864, 1 of 1 streams"):
        input_fn(folder, global_batch_size=8, training=True, shuffle_bytes=6 * 144, streams=1)
