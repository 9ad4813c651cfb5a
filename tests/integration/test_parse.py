"""Examples that are not images, in files of any name: indexed, parsed by the user's function, fed in our order."""

import gzip
import os

import keras
import numpy as np
import pytest
import tensorflow as tf

from beam_jobs import convert, validate
from pipeline import (
    RandomAccess,
    Shard,
    StepIterator,
    distribute,
    input_fn,
    order_spec,
    skipped_records,
    steps_per_epoch,
)
from pipeline.audit import __main__ as audit
from pipeline.errors import DataError, UsageError
from pipeline.index import __main__ as index
from pipeline.inspect import __main__ as inspect
from pipeline.records import framing, tf_example
from pipeline.request import Request
from pipeline.resolved import resolve
from tests.helpers.datasets import flip
from trainer import run as trainer

FILES = {"odd name.rec": 17, "empty": 0, "z=3.tfrecord": 24}
COUNT, SIZE, STEPS = 41, 8, 6
RESIDENT, WINDOWS, STREAMS = 1 << 30, 500, 2  # shuffle_bytes: all at once, or several windows of two streams
EACH_WAY = pytest.mark.parametrize("shuffle_bytes", [RESIDENT, WINDOWS])
MOSTLY_RESIDENT = pytest.mark.parametrize("shuffle_bytes", [RESIDENT, pytest.param(WINDOWS, marks=pytest.mark.slow)])
EACH_PACKING = pytest.mark.parametrize("packing", ["folder", pytest.param("compressed", marks=pytest.mark.slow)])


def text_of(number):
    return " ".join(f"w{number}" for _ in range(number % 5))


def record_of(number):
    return tf_example.encode({"text": text_of(number).encode(), "id": number})


def made(folder, compression=""):
    """Writes the files as a user has them, and indexes them as a user does."""
    folder.mkdir()
    first = 0
    for name, count in FILES.items():
        data = b"".join(framing.frame(record_of(number)) for number in range(first, first + count))
        (folder / name).write_bytes(gzip.compress(data) if compression else data)
        first += count
    index.main([str(folder), *(f"--split=train:{name}" for name in FILES), f"--compression={compression}"])
    return folder


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    return made(tmp_path_factory.mktemp("parse") / "texts")


@pytest.fixture(scope="module")
def compressed(tmp_path_factory):
    return made(tmp_path_factory.mktemp("parse") / "packed", "GZIP")


def parse(records):
    kinds = {"text": tf.io.FixedLenFeature([], tf.string), "id": tf.io.FixedLenFeature([], tf.int64)}
    found = tf.io.parse_example(records, kinds)
    return {**found, "words": tf.strings.split(found["text"])}


def ids(records):
    return tf.io.parse_example(records, {"id": tf.io.FixedLenFeature([], tf.int64)})["id"]


def elements(folder, parse=ids, **more):
    given = {"global_batch_size": SIZE, "training": True, "epochs": 1, "shuffle_bytes": RESIDENT} | more
    given |= {"streams": STREAMS} if given["shuffle_bytes"] == WINDOWS else {}
    return list(input_fn(folder, parse=parse, **given))


@EACH_PACKING
@EACH_WAY
def test_each_record_once_an_epoch_on_two_workers_as_on_one(packing, shuffle_bytes, request):
    data_dir = request.getfixturevalue(packing)
    given = {"epochs": 2, "shuffle_bytes": shuffle_bytes}
    alone = [(found.numpy(), weights.numpy()) for found, weights in elements(data_dir, **given)]
    assert len(alone) == 2 * STEPS == 2 * steps_per_epoch(data_dir, global_batch_size=SIZE)
    workers = [elements(data_dir, shard=Shard(index, 2), **given) for index in range(2)]
    together = [[np.concatenate(parts) for parts in zip(*step, strict=True)] for step in zip(*workers, strict=True)]
    np.testing.assert_equal(together, [list(step) for step in alone])
    epochs = [alone[:STEPS], alone[STEPS:]]
    orders = [np.concatenate([found[weights > 0] for found, weights in epoch]).tolist() for epoch in epochs]
    assert [sorted(order) for order in orders] == [list(range(COUNT))] * 2
    assert orders[0] != orders[1]


@pytest.mark.parametrize(("packing", "windows"), [("folder", 6), ("compressed", 2)])
def test_what_is_called_windows_here_is_several_a_stream(packing, windows, request):
    given = {"global_batch_size": SIZE, "training": True, "parse": ids}
    data_dir = request.getfixturevalue(packing)
    order = resolve(Request(data_dir, "train", shuffle_bytes=WINDOWS, streams=STREAMS, **given)).order
    assert order.windows == windows
    order = resolve(Request(data_dir, "train", shuffle_bytes=RESIDENT, **given)).order
    assert (order.streams, order.windows) == (1, 1)


@EACH_WAY
def test_strings_and_ragged_tensors_are_those_of_the_record(folder, shuffle_bytes):
    seen = []
    for found, weights, record_ids in elements(folder, parse, record_ids=True, shuffle_bytes=shuffle_bytes):
        assert found["id"].shape == weights.shape == (SIZE,)
        assert found["words"].shape[0] == SIZE
        assert found["id"].numpy().tolist() == record_ids.numpy().tolist()
        for number, text, words in zip(record_ids.numpy(), found["text"].numpy(), found["words"], strict=True):
            assert text.decode() == text_of(number)
            assert [word.decode() for word in words.numpy()] == text_of(number).split()
        seen += record_ids.numpy()[weights.numpy() > 0].tolist()
    assert sorted(seen) == list(range(COUNT))


def a_pair(records):
    found = parse(records)
    return tf.one_hot(found["id"], COUNT), found["id"]


def a_list(records):
    return list(a_pair(records))


def a_pair_of_structures(records):
    found = parse(records)
    return {"text": found["text"], "words": found["words"]}, (found["id"], -found["id"])


SOURCES = [("{folder}", 3), ("{compressed}:train[:20]", 1)]


@MOSTLY_RESIDENT
@pytest.mark.parametrize("function", [a_pair, pytest.param(a_list, marks=pytest.mark.slow)])
def test_a_pair_becomes_two_components_however_it_is_fed(folder, compressed, function, shuffle_bytes):
    given = {"global_batch_size": SIZE, "training": True, "epochs": 1, "parse": function}
    memory = {"shuffle_bytes": shuffle_bytes, "streams": None if shuffle_bytes == RESIDENT else STREAMS}
    mirrored = tf.distribute.MirroredStrategy([f"CPU:{i}" for i in range(4)])
    sources = [(text.format(folder=folder, compressed=compressed), weight) for text, weight in SOURCES]
    feeds = {
        "input_fn": input_fn(folder, **given, **memory),
        "record ids": input_fn(folder, record_ids=True, **given, **memory),
        "portable": input_fn(folder, portable=True, **given),
        "a shard": input_fn(folder, shard=Shard(1, 2), **given, **memory),
        "a mixture": input_fn(sources, **given),
        "NumPy": StepIterator(folder, **given, **memory),
        "replicas": distribute(mirrored, folder, **given),
        "virtual replicas": distribute(mirrored, folder, virtual_replicas=8, **given),
    }
    for name, feed in feeds.items():
        x, y, weights, *ids = next(iter(feed))
        values = [mirrored.experimental_local_results(value)[0] for value in (x, y, weights)]
        x, y, weights = (np.asarray(value) for value in values)
        assert x.shape == (*y.shape, COUNT), name
        assert (x.argmax(-1) == y).all(), name
        assert (weights == 1).all(), name
        assert [found.numpy().tolist() for found in ids] == [y.tolist()] * (name == "record ids"), name


def test_a_pair_of_structures_keeps_them(folder):
    for features, (ids, negative), weights in elements(folder, a_pair_of_structures):
        assert weights.shape == (SIZE,)
        assert [text.decode() for text in features["text"].numpy()] == [text_of(number) for number in ids.numpy()]
        assert (negative.numpy() == -ids.numpy()).all()


def test_keras_fits_the_labels_of_a_pair(folder):
    """One step over all records, each with its own class: weights of 0 give the loss log(classes)."""
    model = keras.Sequential([keras.Input((COUNT,)), keras.layers.Dense(COUNT, kernel_initializer="zeros")])
    loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
    model.compile(keras.optimizers.SGD(100.0), loss, weighted_metrics=["accuracy"])
    given = {"global_batch_size": COUNT + 3, "parse": a_pair, "weights": "mean"}
    fitted = model.fit(input_fn(folder, training=True, **given), steps_per_epoch=1, epochs=1, verbose=0)
    np.testing.assert_allclose(fitted.history["loss"], np.log(COUNT), rtol=1e-5)
    assert model.evaluate(input_fn(folder, training=False, **given), verbose=0, return_dict=True)["accuracy"] == 1.0


@EACH_WAY
@EACH_PACKING
def test_a_run_goes_on_at_any_step(packing, shuffle_bytes, request):
    data_dir = request.getfixturevalue(packing)
    whole = elements(data_dir, epochs=2, shuffle_bytes=shuffle_bytes)
    for step in (STEPS - 1, STEPS + 2):
        rest = elements(data_dir, epochs=2, shuffle_bytes=shuffle_bytes, start_step=step)
        assert len(rest) == 2 * STEPS - step
        for one, other in zip(whole[step:], rest, strict=True):
            np.testing.assert_equal([tensor.numpy() for tensor in one], [tensor.numpy() for tensor in other])


def test_the_numpy_iterator_gives_the_same_and_its_state_goes_on(folder):
    given = {"global_batch_size": SIZE, "training": True, "parse": parse}
    batches = StepIterator(folder, **given)
    next(batches)
    state = batches.get_state()
    found, _ = next(batches)
    again = StepIterator(folder, **given)
    again.set_state(state)
    assert next(again)[0]["id"].tolist() == found["id"].tolist()
    assert order_spec(folder, **given) == batches.spec == order_spec(folder, global_batch_size=SIZE, training=True)


def test_evaluation_is_in_the_stored_order(folder):
    found = [found.numpy()[weights.numpy() > 0] for found, weights in elements(folder, training=False)]
    assert np.concatenate(found).tolist() == list(range(COUNT))


def test_replicas_of_a_strategy(folder):
    strategy = tf.distribute.MirroredStrategy([f"CPU:{i}" for i in range(4)])
    batches = distribute(strategy, folder, global_batch_size=SIZE, training=True, epochs=1, parse=ids)
    alone = elements(folder)
    for (found, weights), (whole, whole_weights) in zip(batches, alone, strict=True):
        assert np.concatenate(strategy.experimental_local_results(found)).tolist() == whole.numpy().tolist()
        assert np.concatenate(strategy.experimental_local_results(weights)).tolist() == whole_weights.numpy().tolist()


@pytest.mark.slow
@EACH_PACKING
def test_a_dataset_made_inside_a_function_of_tensorflow(packing, request):
    data_dir = request.getfixturevalue(packing)

    def add(total, batch):
        return total + tf.reduce_sum(tf.where(batch[1] > 0, batch[0], 0))

    @tf.function
    def total():
        batches = input_fn(data_dir, global_batch_size=SIZE, training=True, epochs=1, parse=ids)
        return batches.reduce(tf.constant(0, tf.int64), add)

    assert total().numpy() == sum(range(COUNT))


@EACH_WAY
def test_a_record_that_is_corrupt_is_named_or_skipped(tmp_path, shuffle_bytes):
    folder = made(tmp_path / "texts")
    offset = sum(len(record_of(number)) + 16 for number in range(17, 20))
    path = folder / "z=3.tfrecord"
    flip(path, offset + 20)
    with pytest.raises((DataError, tf.errors.OpError), match=f"z=3.tfrecord, record 3, byte offset {offset}: the rec"):
        elements(folder, shuffle_bytes=shuffle_bytes)
    found = elements(folder, shuffle_bytes=shuffle_bytes, on_corrupt="skip")
    seen = np.concatenate([found.numpy()[weights.numpy() > 0] for found, weights in found])
    assert sorted(seen.tolist()) == [number for number in range(COUNT) if number != 20]
    assert [(r.file, r.record, r.offset) for r in skipped_records(folder)] == [(str(path), 3, offset)]


def test_a_file_that_changed_since_it_was_indexed_is_refused(tmp_path):
    folder = made(tmp_path / "texts")
    path = folder / "odd name.rec"
    path.write_bytes(path.read_bytes() + framing.frame(b"more"))
    with pytest.raises(DataError, match=r"odd name.rec: \d+ bytes, but the manifest says \d+"):
        elements(folder)


def raises(records):
    return tf.io.parse_example(records, {"id": 7})


def of_one(record):
    return tf.io.parse_single_example(record, {"id": tf.io.FixedLenFeature([], tf.int64)})


def too_few(records):
    return {"id": ids(records), "first": records[:2]}


def scalar(records):
    return tf.size(records)


def nothing(records):
    parse(records)


def some(records):
    return tf.boolean_mask(records, tf.strings.length(records) > 35)


def some_ragged(records):
    return tf.ragged.boolean_mask(tf.strings.split(records), tf.strings.length(records) > 35)


@pytest.mark.parametrize(
    ("function", "message"),
    [
        (raises, r"^parse: the function fails on string .8,.: .*test_parse.py:.* Unsupported int 7[^.]*$"),
        (of_one, r"^parse: the function fails on string .* It works on one row, .*: tf.io.parse_example takes "),
        (
            too_few,
            r"^parse: the function .* 8 rows.* are {'id': '\(8,\)', 'first': '\(2",
        ),
        (scalar, r"^parse: the function .* 8 rows.* are \(\)$"),
        (nothing, r"^parse: the function .* 8 rows.* are None$"),
    ],
)
@MOSTLY_RESIDENT
def test_a_function_that_cannot_work_is_one_error_of_input_fn(folder, function, message, shuffle_bytes):
    with pytest.raises(UsageError, match=message):
        input_fn(folder, global_batch_size=SIZE, training=True, parse=function, shuffle_bytes=shuffle_bytes)


@pytest.mark.parametrize("function", [some, some_ragged])
def test_rows_that_only_a_batch_tells_are_counted_in_each(folder, function):
    with pytest.raises(tf.errors.InvalidArgumentError, match=r"parse: .*\d rows for 8 records"):
        elements(folder, function)


def test_rows_that_are_as_many_have_a_static_shape(folder):
    def same(records):
        return tf.boolean_mask(records, tf.strings.length(records) >= 0)

    dataset = input_fn(folder, global_batch_size=SIZE, training=True, epochs=1, parse=same)
    assert dataset.element_spec[0] == tf.TensorSpec([SIZE], tf.string)
    assert len(list(dataset)) == STEPS


@pytest.mark.parametrize("more", [{}, {"augment": "shift"}, {"augment": tf.identity}, {"resize": "8x8"}])
def test_without_a_function_one_line_says_what_to_give(folder, more):
    with pytest.raises(UsageError, match=r"^texts: .*pipeline.index .*parse="):
        input_fn(folder, global_batch_size=SIZE, training=True, **more)


def test_records_by_their_number(folder):
    assert RandomAccess(folder)[30] == {"record": record_of(30)}
    assert len(RandomAccess(folder)) == COUNT


def test_inspect_and_audit_and_validate_work(folder, capsys):
    inspect.main([str(folder)])
    out = [" ".join(line.split()) for line in capsys.readouterr().out.splitlines()]
    assert out[0].startswith(f"texts: {COUNT} examples, ")
    assert "train 3 41 2.1 KiB 0 to 24 0" in out
    assert not any(line.startswith("label") for line in out)
    audit.main([str(folder), f"--global_batch_size={SIZE}", "--workers=4", "--exhaustive", "--shuffle_bytes=500"])
    assert f"proof holds: each of {COUNT} records once per epoch" in capsys.readouterr().out
    validate.main([str(folder)])
    assert f"{COUNT} records in 3 shards" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("main", "arguments"),
    [
        (inspect.main, ["{folder}", "--png={out}.png"]),
        (audit.main, ["{folder}", "--global_batch_size=8", "--resize=8x8"]),
        (validate.main, ["{folder}", "--deep"]),
        (convert.main, ["--dataset=tfrecord", "--source={folder}", "--data_dir={out}"]),
        (trainer.main, ["--data_dir={folder}", "--model_dir={out}", "--model=lenet"]),
    ],
)
def test_commands_that_need_images_say_so_in_one_line(folder, tmp_path, main, arguments):
    with pytest.raises(UsageError, match="pipeline.index"):
        main([argument.format(folder=folder, out=tmp_path / "out") for argument in arguments])
    assert os.listdir(tmp_path) == []
