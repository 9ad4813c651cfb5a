"""Invalid records with a good CRC: named by shard and record on every path, or skipped."""

import io
import os
import re

import numpy as np
import PIL.Image
import pytest
import tensorflow as tf

from beam_jobs.validation.shard import check_shard
from pipeline import StepIterator, images, input_fn, manifest, skipped_records
from pipeline.errors import DataError
from pipeline.files.paths import folder as folder_of
from pipeline.records import tf_example
from tests.helpers import forked
from tests.helpers.converting import convert_in_process

RESIDENT, WINDOWS = 1 << 30, 60_000
COUNT, SIDE = 48, 40


def encoded(number):
    stream = io.BytesIO()
    pixels = np.random.default_rng(number).integers(0, 255, (SIDE, SIDE, 3), dtype=np.uint8)
    PIL.Image.fromarray(pixels).save(stream, "JPEG", quality=90)
    return stream.getvalue()


def write_images(source):
    for number in range(COUNT):
        path = source / "train" / "ab"[number % 2] / f"{number:02}.jpg"
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(encoded(number))


@pytest.fixture(scope="module")
def data(tmp_path_factory):
    """A data set of an earlier release, whose conversion did not notice one such file: (folder, shard, record)."""
    source, folder = tmp_path_factory.mktemp("source"), tmp_path_factory.mktemp("data") / "out"
    write_images(source)
    whole, bad = encoded(29), encoded(29)[:900]
    path = source / "train" / "b" / "29.jpg"
    path.write_bytes(bad)
    with pytest.MonkeyPatch.context() as patched:
        really_open = images.open_file
        patched.setattr(images, "open_file", lambda data: really_open(whole if data == bad else data))
        flags = ["--dataset=image_folder", f"--source={source}", f"--data_dir={folder}", "--num_shards=3"]
        convert_in_process(*flags)
    for shard in manifest.load(folder).splits["train"].shards:
        found = tf.data.TFRecordDataset(str(folder / shard.file))
        for number, record in enumerate(found):
            if tf_example.decode(record.numpy(), ["key"])["key"][0].endswith(b"29.jpg"):
                return folder, shard.file, number
    raise AssertionError


def folder_of_intact(place):
    write_images(place / "source")
    flags = [f"--source={place / 'source'}", f"--data_dir={place / 'data'}", "--num_shards=3"]
    convert_in_process("--dataset=image_folder", *flags)
    return place / "data"


def own_parse(records):
    found = tf.io.parse_example(records, {"image": tf.io.FixedLenFeature([], tf.string)})["image"]
    spec = tf.TensorSpec((SIDE, SIDE, 3), tf.uint8)
    decode = lambda image: tf.ensure_shape(tf.io.decode_jpeg(image, channels=3), spec.shape)  # noqa: E731
    return tf.map_fn(decode, found, fn_output_signature=spec)


def in_order(records):
    """Needs batches of the size that it was written for."""
    return tf.reshape(own_parse(records), [4, SIDE, SIDE, 3])


def in_halves(records):
    """Needs batches of an even size, of different records."""
    one, other = tf.split(records, 2)
    with tf.control_dependencies([tf.debugging.assert_none_equal(one, other)]):
        return tf.concat([own_parse(one), own_parse(other)], axis=0)


def asserted(records):
    """Fails on the record by an assertion, as parsers do, before it is decoded."""
    found = tf.io.parse_example(records, {"image": tf.io.FixedLenFeature([], tf.string)})["image"]
    with tf.control_dependencies([tf.debugging.assert_none_equal(tf.strings.length(found), 900, message="cut off")]):
        return tf.strings.length(found)


CROP = "random_crop(size=32, normalize=False)"


def test_a_deep_validation_asks_tensorflow(data, monkeypatch):
    folder, shard, record = data
    monkeypatch.setattr(images, "pixels", lambda image, channels=0, upright=False: np.zeros((SIDE, SIDE, 3), np.uint8))
    monkeypatch.setattr(images, "_check_jpeg", lambda data: None)
    made = manifest.load(folder)
    number = [info.file for info in made.shards].index(shard)
    report, _ = check_shard(folder_of(str(folder)), made, number, decodes=True)
    (problem,) = report.problems
    assert (problem.record, problem.text.startswith("its image cannot be decoded: ")) == (record, True)
    report, _ = check_shard(folder_of(str(folder)), made, number, decodes=False)
    assert report.problems == []


WAYS = pytest.mark.parametrize(
    "options",
    [
        {"shuffle_bytes": RESIDENT},
        {"shuffle_bytes": WINDOWS},
        {"shuffle_bytes": RESIDENT, "augment": CROP},
        {"shuffle_bytes": WINDOWS, "augment": CROP},
        {"shuffle_bytes": WINDOWS, "parse": own_parse},
        {"shuffle_bytes": RESIDENT, "parse": own_parse},
        {"shuffle_bytes": WINDOWS, "parse": asserted},
        {"shuffle_bytes": WINDOWS, "parse": in_order},
        {"shuffle_bytes": RESIDENT, "parse": in_order},
    ],
    ids=[
        "resident",
        "windows",
        "crops",
        "crops in windows",
        "parse in windows",
        "parse",
        "asserted",
        "4 in windows",
        "4",
    ],
)
TRAINING = {"global_batch_size": 4, "training": True}


def take(batches, epochs=3):
    for _ in range(epochs * COUNT // 4):
        next(batches)


@WAYS
@pytest.mark.quick(3)
def test_the_record_is_named(options, data):
    folder, shard, record = data
    with pytest.raises(DataError, match=f"{shard}, record {record}: (its image|parse: )") as caught:
        take(StepIterator(folder, **TRAINING, **options))
    assert caught.value.record == record


@pytest.mark.slow
def test_the_record_is_named_of_a_mixture_whose_weights_change(data):
    folder, shard, record = data
    a, b = (f"{folder}:train[{half}]" for half in (":50%", "50%:"))
    schedule = [(0, {a: 1, b: 1}), (2, {a: 3, b: 1}), (9, {a: 1, b: 3})]
    with pytest.raises(DataError, match=f"{shard}, record {record}: its image cannot be decoded: "):
        take(StepIterator([(a, 1), (b, 1)], **TRAINING, shuffle_bytes=WINDOWS, schedule=schedule))


@pytest.mark.parametrize("options", [{}, {"augment": CROP}], ids=["whole", "crops"])
@pytest.mark.quick(1)
def test_the_record_is_named_of_a_portable_input(options, data):
    folder, shard, record = data
    with pytest.raises(DataError, match=f"{shard}, record {record}: its image cannot be decoded: .*; convert the data"):
        take(StepIterator(folder, **TRAINING, portable=True, epochs=4, shuffle_bytes=WINDOWS, **options))


def number_of(folder, shard, record):
    """Returns the record's id."""
    before = 0
    for info in manifest.load(folder).splits["train"].shards:
        if info.file == shard:
            return before + record
        before += info.num_examples
    raise AssertionError


@WAYS
@pytest.mark.quick(3)
def test_the_record_is_skipped(options, data):
    folder, shard, record = data
    options = {**TRAINING, **options, "on_corrupt": "skip", "max_corrupt": 1, "record_ids": True}
    skipped, steps = [], 0
    for *_, weights, ids in input_fn(folder, epochs=2, **options):
        skipped += ids.numpy()[weights.numpy() == 0].tolist()
        steps += 1
    assert (skipped, steps) == ([number_of(folder, shard, record)] * 2, 24)
    assert {(os.path.basename(found.file), found.record) for found in skipped_records(folder)} == {(shard, record)}


@pytest.mark.parametrize("shuffle_bytes", [RESIDENT, WINDOWS], ids=["resident", "windows"])
@pytest.mark.quick(1)
def test_records_are_not_to_blame_for_what_they_do_together(shuffle_bytes, data):
    folder, *_ = data

    def apart(records):  # the first two of a shard must not be in one batch
        found = tf.io.parse_example(records, {"key": tf.io.FixedLenFeature([], tf.string)})["key"]
        together = tf.reduce_all(
            [tf.reduce_any(tf.strings.regex_full_match(found, f".*{n}.jpg")) for n in ("03", "04")]
        )
        with tf.control_dependencies([tf.debugging.assert_equal(together, False, "3 and 4")]):
            return tf.strings.length(found)

    options = {**TRAINING, "shuffle_bytes": shuffle_bytes, "parse": apart}
    before = skipped_records(folder)
    for more in ({}, {"on_corrupt": "skip", "max_corrupt": COUNT}):
        with pytest.raises(DataError, match="3 and 4 ") as caught:
            take(StepIterator(folder, **options, **more), epochs=100)
        assert caught.value.record is None
    assert skipped_records(folder) == before


@pytest.mark.parametrize("shuffle_bytes", [RESIDENT, WINDOWS], ids=["resident", "windows"])
@pytest.mark.quick(1)
def test_a_parser_that_needs_different_records_blames_none(shuffle_bytes, tmp_path):
    folder = folder_of_intact(tmp_path)
    options = {**TRAINING, "shuffle_bytes": shuffle_bytes, "parse": in_halves, "on_corrupt": "skip", "max_corrupt": 0}
    weights = [weights.numpy().tolist() for *_, weights in input_fn(folder, epochs=1, **options)]
    assert weights == [[1.0] * 4] * (COUNT // 4)


@WAYS
@pytest.mark.quick(3)
def test_one_more_than_may_be_skipped_is_an_error(options, data):
    folder, shard, record = data
    with pytest.raises(DataError, match=f"{shard}, record {record}, .*which is max_corrupt"):
        take(StepIterator(folder, **TRAINING, **options, on_corrupt="skip", max_corrupt=0))


@pytest.mark.parametrize("flags", [["--shuffle_bytes=60000"], ["--shuffle_bytes=60000", f"--augment={CROP}"]])
@pytest.mark.quick(1)
def test_training_names_it_and_skips_it(flags, data, tmp_path):
    folder, shard, record = data
    flags = [
        "-m",
        "trainer.run",
        f"--data_dir={folder}",
        "--model=lenet",
        "--eval_split=none",
        "--train_steps=12",
        *flags,
    ]
    done = forked.run([*flags, "--global_batch_size=4", f"--model_dir={tmp_path / 'raise'}"])
    assert done.returncode == 1
    assert re.search(f"{shard}, record {record}: its image cannot be decoded: .*--on_corrupt=skip", done.stderr)
    skip = ["--on_corrupt=skip", "--max_corrupt=1"]
    forked.output([*flags, "--global_batch_size=4", f"--model_dir={tmp_path / 'skip'}", *skip])


def test_an_evaluation_names_it(data, tmp_path):
    folder, shard, record = data
    halves = ["train[:50%]", "train[50%:]"]
    evaluated, trained = halves if number_of(folder, shard, record) < COUNT // 2 else halves[::-1]
    flags = [f"--train_split={trained}", f"--eval_split={evaluated}", "--shuffle_bytes=20000", "--global_batch_size=4"]
    flags += ["--model=lenet", "--train_steps=4", f"--data_dir={folder}", f"--model_dir={tmp_path / 'run'}"]
    done = forked.run(["-m", "trainer.run", *flags, "--checkpoint_every=2"])
    assert done.returncode == 1
    said = f"{shard}, record {record}: its image cannot be decoded: "
    assert said in done.stderr
    done = forked.run(["-m", "trainer.evaluate", f"--model_dir={tmp_path / 'run'}"])
    assert (done.returncode, said in done.stderr) == (1, True), done.stderr
