"""Images in other people's records, indexed in place: feeding, training, validation, export and prediction."""

import json
import pathlib

import numpy as np
import PIL.Image
import pytest

from beam_jobs import validate
from pipeline import RandomAccess, input_fn, manifest
from pipeline.errors import UsageError
from pipeline.index import __main__ as index
from tests.helpers import foreign, forked
from tests.helpers.converting import convert_in_process
from tests.helpers.raised import at
from tests.helpers.runs import checkpoint_bytes, finish, kill, start, start_workers, succeed, wait_for_step
from trainer.exporting.predictions import pixels_of

RECIPE = "--augment=random_resized_crop(size=32, normalize=False) | flip | randaugment | normalize"
STEPS = 60
FLAGS = ("--model=lenet", RECIPE, f"--train_steps={STEPS}", "--global_batch_size=8", "--log_every=2")


def tf_slim(folder):
    foreign.tf_slim(folder, {"train": [30, 21, 17], "validation": [12, 8]}, classes=5)
    names = "--feature_map=image:image/encoded,label:image/class/label,key:image/filename"
    index.main([str(folder), "--split=train:train-*", "--split=validation:valid*", names, "--label_offset=-1"])
    return folder


def flowers(folder):
    foreign.flowers(folder, labelled=24, unlabelled=5)
    index.main([str(folder), "--split=train:train*", "--split=val:val*", "--split=test:test*", foreign.FLOWERS])
    return folder


def melanoma(folder):
    foreign.melanoma(folder, 24)
    index.main([str(folder), "--split=train:*.tfrec", foreign.MELANOMA, "--keep_columns=sex,patient_id"])
    return folder


def phones(folder):
    """Photographs of which seven in eight are on their side, upside down or mirrored in their files."""
    sizes = [(33, 50), (50, 33)]
    files = [foreign.jpeg(n, sizes[n % 8 + 1 >= 5], n % 8 + 1) for n in range(32)]
    records = [{"image": file, "label": n % 3, "key": b"%d" % n} for n, file in enumerate(files)]
    foreign.write(folder / "train-0", records[:24])
    foreign.write(folder / "val-0", records[24:])
    flags = ["--split=train:train*", "--split=val:val*", "--feature_map=image:image,label:label,key:key"]
    index.main([str(folder), *flags, "--orientation=upright"])
    return folder


def rows(folder, split, **more):
    """Returns {key: (label, pixels)} of a split."""
    options = {"global_batch_size": 5, "training": False, "features": ("key",), "resize": (33, 31), **more}
    found = {}
    for x, labels, weights in input_fn(folder, split=split, **options):
        for key, label, image, weight in zip(
            x["key"].numpy(), labels.numpy(), x["image"].numpy(), weights, strict=True
        ):
            if weight:
                found[key] = int(label), image.tobytes()
    return found


def test_rows_are_those_of_the_same_records_converted(tmp_path):
    folder = tf_slim(tmp_path / "foreign")
    as_before = {path.name: path.read_bytes() for path in folder.iterdir() if path.is_file()}
    flags = ("--dataset=tfrecord", "--image_encoding=source")
    by_manifest = convert_in_process(*flags, f"--source={folder}", f"--data_dir={tmp_path}/again")
    by_names = convert_in_process(
        *flags, f"--source={folder}/*-of-*", f"--data_dir={tmp_path}/names",
        "--feature_map=image:image/encoded,label:image/class/label,key:image/filename",
    )  # fmt: skip
    with pytest.raises(UsageError, check=at("foreign", "never replaces")):
        convert_in_process(*flags, f"--source={folder}", f"--data_dir={folder}", "--overwrite")
    assert {path.name: path.read_bytes() for path in folder.iterdir() if path.is_file()} == as_before
    for split, count in (("train", 68), ("validation", 20)):
        indexed = rows(folder, split)
        assert len(indexed) == count
        assert indexed == rows(by_manifest, split)
        assert indexed == {key: (label - 1, image) for key, (label, image) in rows(by_names, split).items()}
    ours, theirs = manifest.load(folder), manifest.load(by_manifest)
    assert (ours.image_mean, ours.image_std) == (theirs.image_mean, theirs.image_std)
    assert ours.class_names == theirs.class_names
    assert ours.splits["train"].image_sizes == theirs.splits["train"].image_sizes
    assert ours.columns.keys() == theirs.columns.keys()


@pytest.mark.parametrize("orientation", ["stored", "upright"])
def test_predictions_take_files_as_training_took_them(orientation, tmp_path):
    file = foreign.jpeg(5, exif=6)
    foreign.write(tmp_path / "train", [{"image": file, "label": 0}])
    index.main([str(tmp_path), "--split=train:train", "--feature_map=image:image", f"--orientation={orientation}"])
    [(x, _, _)] = input_fn(tmp_path, global_batch_size=1, training=False)
    assert x[0].shape == ((48, 40, 3) if orientation == "upright" else (40, 48, 3))
    assert np.array_equal(x[0], pixels_of(file, 3, manifest.load(tmp_path).pixels))


@pytest.mark.slow
@pytest.mark.parametrize("processes", [1, 2])
def test_killed_and_resumed_a_run_ends_with_the_same_bits(processes, tmp_path):
    data = tf_slim(tmp_path / "data")

    def begin(name):
        flags = (*FLAGS, "--checkpoint_every=7")
        if processes == 1:
            return [start(data, tmp_path / name, *flags)]
        return start_workers(data, [tmp_path / name] * processes, *flags)

    succeed(*begin("whole"))
    killed = begin("killed")
    wait_for_step(killed[0], 20)
    kill(*killed)
    succeed(*begin("killed"))
    assert checkpoint_bytes(tmp_path / "killed", STEPS) == checkpoint_bytes(tmp_path / "whole", STEPS)


@pytest.mark.slow
@pytest.mark.parametrize("made", [tf_slim, flowers, melanoma, phones])
def test_a_run_is_evaluated_exported_and_predicts(made, tmp_path, capfd):
    data, run, files = made(tmp_path / "data"), tmp_path / "run", tmp_path / "files"
    eval_split = ["--eval_split=none"] if made is melanoma else []
    code, out, err = finish(start(data, run, *FLAGS, "--train_steps=6", "--balance=label", *eval_split))[0]
    assert code == 0, err
    for other, why in ((flowers, "'test' has no labels"), (phones, "there is no 'test'")):
        assert (f"evaluates on the split 'val', as {why} (--eval_split)" in out) == (made is other)
    split = ["--split=train[:8]"] if made is melanoma else []
    forked.output(["-m", "trainer.evaluate", run, f"--output={tmp_path}/evaluation", *split])
    forked.output(["-m", "trainer.export", run, f"--output={files}", *split])
    images = [tmp_path / f"{number}.jpg" for number in range(3)]
    for number, path in enumerate(images):
        path.write_bytes(foreign.jpeg(number, (32, 32)))
    printed = forked.output(["-m", "trainer.predict", files, *images])
    assert printed.count(".jpg: ") == 3
    about = json.loads((files / "export.json").read_text())
    orientation = "upright" if made is phones else "stored"
    assert about["preprocessing"]["pixel_rule"] == {"orientation": orientation, "dct": "exact"}
    assert ("exif_transpose" in (files / "README.md").read_text()) == (made is phones)
    capfd.readouterr()
    validate.main([str(data), "--deep", "--card"])
    assert "the data set matches its manifest" in capfd.readouterr().out
    page = (data / "card.html").read_text()
    assert page.count("data:image/") >= 6
    assert manifest.load(data).digest in page
    validate.main([str(data), "--deep"])  # the card, too, is as it should be


@pytest.mark.slow
def test_folders_of_splits_are_one_data_set(tmp_path, bucket, capfd):
    flat, data = flowers(tmp_path / "flat"), tmp_path / "data"
    for split in ("train", "val", "test"):
        (source,) = flat.glob(f"{split}-*")
        (data / split).mkdir(parents=True)
        (data / split / "00.tfrec").write_bytes(source.read_bytes())  # one name in all folders
    index.main([str(data), foreign.FLOWERS])
    made = manifest.load(data)
    assert {shard.file for shard in made.shards} == {"train/00.tfrec", "val/00.tfrec", "test/00.tfrec"}
    assert made.image_mean == manifest.load(flat).image_mean
    expected = {ours: rows(flat, theirs) for ours, theirs in (("train", "train"), ("validation", "val"))}
    assert {split: rows(data, split) for split in expected} == expected
    validate.main([str(data), "--deep", "--card"])
    assert "the data set matches its manifest" in capfd.readouterr().out
    again = convert_in_process(
        "--dataset=tfrecord", "--image_encoding=source", f"--source={data}", f"--data_dir={tmp_path}/again",
        "--splits=train,validation",
    )  # fmt: skip
    assert {split: rows(again, split) for split in expected} == expected
    for path in filter(pathlib.Path.is_file, data.rglob("*")):
        (bucket / "data" / str(path.relative_to(data))).write_bytes(path.read_bytes())
    for _ in range(2):  # the second time from the cache
        for split, found in expected.items():
            assert rows(str(bucket / "data"), split, cache_dir=tmp_path / "cache") == found
    assert {"train~00.tfrec", "val~00.tfrec"} <= {path.name for path in (tmp_path / "cache").glob("*/*")}
    validate.main([str(bucket / "data"), "--deep"])
    assert "the data set matches its manifest" in capfd.readouterr().out
    code, _, err = finish(start(str(bucket / "data"), tmp_path / "run", *FLAGS, "--train_steps=6"))[0]
    assert (code, err) == (0, "")


@pytest.mark.slow
def test_what_has_no_labels_is_neither_trained_nor_evaluated_on(tmp_path):
    data = flowers(tmp_path / "data")
    for flags in (["--train_split=test"], ["--eval_split=test"]):
        code, _, err = finish(start(data, tmp_path / "run", *FLAGS, *flags))[0]
        assert (code, err.count("\n")) == (2, 1)
        assert "split 'test' has no labels" in err
    assert [example["label"] for example in RandomAccess(data, "test")] == [-1] * 5


MINE = """
import keras
import tensorflow as tf
from trainer import Task


def regression(shape, outputs):
    layers = [keras.Input(shape), keras.layers.GlobalAveragePooling2D(), keras.layers.Dense(outputs)]
    model = keras.Sequential(layers)
    model.compile(keras.optimizers.Adam(0.1), keras.losses.MeanSquaredError(), metrics=["mae"])
    return model


class Several(Task):
    def loss(self, labels, outputs):
        labels = tf.cast(labels, tf.float32)
        return tf.reduce_mean(tf.nn.sigmoid_cross_entropy_with_logits(labels, outputs), axis=-1)

    def metrics(self, labels, outputs):
        right = tf.equal(outputs > 0, tf.cast(labels, tf.bool))
        return {"accuracy": tf.reduce_mean(tf.cast(right, tf.float32), axis=-1)}
"""


def numbers(folder, label):
    """Indexes 16 and 8 images, each of one grey value, whose label is a function of that."""
    for split, count in (("train", 16), ("test", 8)):
        records = []
        for number in range(count):
            value = number / count
            grey = np.full((32, 32, 3), round(255 * value), np.uint8)
            records.append({"image": foreign.png(grey), "y": label(value)})
        foreign.write(folder / f"{split}.tfrec", records)
    index.main([str(folder), "--feature_map=image:image,label:y"])
    return folder


@pytest.mark.slow
@pytest.mark.parametrize(
    ("label", "flags", "measured"),
    [
        (lambda value: 2 * value - 1, "--model=mine:regression", "mae"),
        (lambda value: 2 * value - 1, "--model=lenet --task=my_numbers:Number --optimizer=adamw", "mae"),
        (lambda value: np.array([2 * value, -value], np.float32), "--model=mine:regression", "mae"),
        (lambda value: np.array([value > 0.5, value < 0.5]) * 1, "--model=lenet --task=mine:Several", "accuracy"),
    ],
)
def test_labels_that_are_not_classes_are_trained_and_evaluated_on(label, flags, measured, tmp_path):
    data, run = numbers(tmp_path / "data", label), tmp_path / "run"
    (tmp_path / "mine.py").write_text(MINE)
    page = (pathlib.Path(__file__).parents[2] / "docs" / "own_models.md").read_text()
    (tmp_path / "my_numbers.py").write_text(page.partition("# my_numbers.py\n")[2].partition("```")[0])
    shared = ("--global_batch_size=8", "--train_steps=80", "--augment=normalize")
    train = ["-m", "trainer.run", f"--data_dir={data}", f"--model_dir={run}", *flags.split(), *shared]
    done = forked.run(train, cwd=tmp_path)
    assert (done.returncode, done.stderr) == (0, "")
    out = forked.output(["-m", "trainer.evaluate", run], cwd=tmp_path)
    assert f"test {measured}" in out
    value = float(out.split(f"test {measured} = ")[1].split(",")[0])
    assert value > 0.8 if measured == "accuracy" else value < 0.1
    image, exported = tmp_path / "dark.png", tmp_path / "exported"
    PIL.Image.fromarray(np.zeros((32, 32, 3), np.uint8)).save(image)
    forked.output(["-m", "trainer.export", f"--model_dir={run}", f"--output={exported}"], cwd=tmp_path)
    for model in (f"--model_dir={run}", f"--exported={exported}"):
        printed = forked.output(["-m", "trainer.predict", model, image], cwd=tmp_path)
        said = printed.removeprefix(f"{image}: ").split()
        if measured == "accuracy":
            assert said[0] == "1"  # the second class, and only that
            assert 0.5 < float(said[1]) <= 1
        else:
            assert [float(one) for one in said] == pytest.approx(np.atleast_1d(label(0)), abs=0.3)
    forked.output(["-m", "pipeline.audit", data, "--global_batch_size=8", "--workers=2", "--content"])
    code, _, err = finish(start(data, tmp_path / "other", "--model=lenet", *shared))[0]
    assert (code, err.count("\n")) == (2, 1)
    assert "not a class per image" in err
    assert not (tmp_path / "other").exists()
