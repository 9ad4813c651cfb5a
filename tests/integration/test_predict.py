"""`trainer.predict`: what a run's model, or its exported files, say of images that lie in folders."""

import csv
import errno
import json
import os
import shutil
import sys

import numpy as np
import PIL.Image
import pytest

from pipeline import RandomAccess, images
from pipeline.errors import DataError, UsageError
from tests.helpers import forked
from tests.helpers.runs import train
from trainer import Predictor
from trainer.exporting.inputs import image_files

COUNT = 60


@pytest.fixture(scope="module")
def run(tmp_path_factory, digits):
    """A run of 60 steps that kept a checkpoint of step 5 and an average of the weights."""
    folder = tmp_path_factory.mktemp("predict") / "run"
    flags = ("--model=lenet", "--train_steps=60", "--checkpoint_every=5", "--max_to_keep=20", "--ema=0.5")
    train(digits, folder, *flags, "--log_every=0")
    return folder


@pytest.fixture(scope="module")
def photos(tmp_path_factory, digits):
    """Digits of the test split as files, {path: label}, sorted, together with a file that is not an image."""
    folder, labels = tmp_path_factory.mktemp("photos"), {}
    examples = RandomAccess(digits, "test")
    for number in range(COUNT):
        path = folder / f"part-{number % 3}" / f"{number:03}.png"
        path.parent.mkdir(exist_ok=True)
        path.write_bytes(images.encoded(examples[number]["image"], "png"))
        labels[str(path)] = int(examples[number]["label"])
    (folder / "notes.txt").write_text("none")
    return folder, dict(sorted(labels.items()))


def predict(*arguments):
    return forked.run(["-m", "trainer.predict", *map(str, arguments)])


def answers(text):
    """Returns {path: [(class, probability), ...]} from the output."""
    lines = (line.rsplit(": ", 1) for line in text.splitlines())
    pairs = ((path, [one.rsplit(" ", 1) for one in said.split(", ")]) for path, said in lines)
    return {path: [(name, float(probability)) for name, probability in classes] for path, classes in pairs}


def test_most_digits_are_read(run, photos):
    folder, labels = photos
    done = predict(folder, f"--model_dir={run}")
    assert done.returncode == 0, done.stderr
    found = answers(done.stdout)
    assert list(found) == list(labels)
    assert np.mean([found[path][0][0] == str(label) for path, label in labels.items()]) > 0.8
    assert {len(classes) for classes in found.values()} == {3}
    assert all(classes == sorted(classes, key=lambda one: -one[1]) for classes in found.values())
    assert f"lenet at step 60, averaged weights ({run}/ckpt-60)" in done.stderr
    assert "skipped 1 file not named like an image (.png, .jpg, .jpeg, ...)" in done.stderr


def test_files_say_what_is_printed_and_batches_change_nothing(run, photos, tmp_path):
    some = list(photos[1])[:7]
    printed = answers(predict(*some, f"--model_dir={run}", "--top=2", "--batch_size=3").stdout)
    for name in ("x/answers.jsonl", "x/answers.csv"):
        output = tmp_path / name
        assert predict(f"--output={output}", *some, f"--model_dir={run}", "--top=2").returncode == 0
        assert [path.name for path in output.parent.iterdir() if path.name.startswith(".")] == []
    lines = [json.loads(line) for line in (tmp_path / "x/answers.jsonl").read_text().splitlines()]
    with open(tmp_path / "x/answers.csv", newline="") as stream:
        rows = list(csv.DictReader(stream))
    assert [line["file"] for line in lines] == [row["file"] for row in rows] == some
    for line, row in zip(lines, rows, strict=True):
        (first, one), (second, two) = printed[line["file"]]
        assert [top["class_name"] for top in line["top"]] == [first, second] == [row["class_1"], row["class_2"]]
        assert (float(row["probability_1"]), float(row["probability_2"])) == pytest.approx((one, two), abs=6e-4)
        assert (line["class_name"], line["probability"]) == (first, pytest.approx(one, abs=6e-4))


@pytest.mark.slow
def test_the_checkpoint_and_the_weights_are_those_of_the_flags(run, photos, digits, tmp_path):
    some = list(photos[1])[:2]
    flags = [[], ["--checkpoint=ckpt-5"], ["--weights=raw"]]
    found = [predict(*some, f"--model_dir={run}", *more).stdout for more in flags]
    assert found[0] != found[1]
    precise = []
    for number, more in enumerate(flags):  # of a model that is sure, three digits hide the average
        output = tmp_path / f"{number}.jsonl"
        assert predict(*some, f"--model_dir={run}", f"--output={output}", *more).returncode == 0
        precise.append(output.read_text())
    assert len(set(precise)) == 3
    moved = shutil.copytree(digits, tmp_path / "moved")
    assert predict(*some, f"--model_dir={run}", f"--data_dir={moved}").stdout == found[0]
    gone = predict(*some, f"--model_dir={run}", f"--data_dir={tmp_path}/none")
    assert (gone.returncode, "there is no such folder" in gone.stderr) == (1, True)


@pytest.mark.parametrize(
    "kind", [*(pytest.param(kind, marks=pytest.mark.slow) for kind in ("saved_model", "keras")), "onnx"]
)
def test_an_exported_file_says_what_the_run_says(kind, run, photos, tmp_path):
    if kind == "onnx":
        pytest.importorskip("tf2onnx", reason="needs pip install 'stepfeed[export]'")
    output, some = tmp_path / "exported", list(photos[1])[:9]
    program = ["-m", "trainer.export", f"--model_dir={run}", f"--output={output}", f"--format={kind}", "--examples=5"]
    assert forked.run(program).returncode == 0
    of_run = predict(*some, f"--model_dir={run}")
    of_file = predict(*some, f"--exported={output}")
    for path, classes in answers(of_run.stdout).items():
        assert [name for name, _ in answers(of_file.stdout)[path]] == [name for name, _ in classes]
    (file,) = [path for path in output.iterdir() if path.name not in ("export.json", "README.md")]
    assert predict(*some, f"--exported={file}").stdout == of_file.stdout
    shutil.rmtree(file) if file.is_dir() else file.write_bytes(b"cut")
    damaged = predict(*some, f"--exported={output}")
    assert (damaged.returncode, damaged.stderr.splitlines()[-1].startswith(f"trainer.predict: {file}: ")) == (1, True)


def test_images_of_another_size_and_colour_are_stretched_as_a_conversion_does_it(run, tmp_path):
    draw = np.random.default_rng(3)
    big = draw.integers(0, 256, (90, 61, 3), np.uint8)
    PIL.Image.fromarray(big).save(tmp_path / "big.png")
    small = images.resized(images.with_channels(big, 1), (28, 28))
    PIL.Image.fromarray(small[..., 0]).save(tmp_path / "small.png")
    found = answers(predict(tmp_path, f"--model_dir={run}", "--top=10").stdout)
    assert found[f"{tmp_path}/big.png"] == found[f"{tmp_path}/small.png"]
    predictor = Predictor.of_run(run)
    assert predictor.image_shape == (28, 28, 1)
    of_arrays = predictor.probabilities([small])
    assert of_arrays.shape == (1, 10)
    assert float(of_arrays.max()) == pytest.approx(found[f"{tmp_path}/small.png"][0][1], abs=6e-4)
    for wrong in (small[..., 0], small.astype(np.float32), big):
        with pytest.raises(UsageError, match=r"pictures\[1\]: must be uint8 of shape \(height, width, 1\), not "):
            predictor.probabilities([small, wrong])
    (one,) = predictor.predict([tmp_path / "big.png"], top=1)
    assert one.best[0][1:] == (predictor.class_names[one.best[0][0]], pytest.approx(float(of_arrays.max()), abs=1e-5))


def test_a_photograph_is_turned_as_its_camera_says(run, photos, tmp_path):
    with PIL.Image.open(next(iter(photos[1]))) as upright:
        turned = PIL.Image.Exif()
        turned[0x0112] = 6  # turn by 90 degrees clockwise to show it
        upright.transpose(PIL.Image.Transpose.ROTATE_90).save(tmp_path / "turned.png", exif=turned)
    (of_file, of_turned) = Predictor.of_run(run).predict([next(iter(photos[1])), tmp_path / "turned.png"], top=10)
    assert of_turned.best == of_file.best


def test_images_are_given_before_flags_between_them_and_after(run, photos):
    one, two, three, four = list(photos[1])[:4]
    found = answers(predict(one, f"--model_dir={run}", two, "--top", "1", three, four).stdout)
    assert list(found) == [one, two, three, four]
    assert {len(classes) for classes in found.values()} == {1}


def test_hidden_files_of_a_folder_are_left_alone(run, photos, tmp_path):
    for name in ("a.png", ".a.png"):
        shutil.copy(next(iter(photos[1])), tmp_path / name)
    done = predict(tmp_path, f"--model_dir={run}")
    assert list(answers(done.stdout)) == [str(tmp_path / "a.png")]
    assert "skipped" not in done.stderr


def test_a_folder_that_cannot_be_listed_is_named(monkeypatch, tmp_path):
    (tmp_path / "locked").mkdir()
    listed = os.scandir

    def refuse(path):
        if os.path.basename(path) == "locked":  # as the system does it; root may list every folder
            raise PermissionError(errno.EACCES, os.strerror(errno.EACCES), path)
        return listed(path)

    monkeypatch.setattr(os, "scandir", refuse)
    with pytest.raises(DataError, match=r"cannot be read: Permission denied"):
        image_files([str(tmp_path)])


def test_onnx_without_its_runtime_says_what_to_install(monkeypatch, tmp_path):
    made = {"files": {"onnx": {"file": "model.onnx", "images": [None, 28, 28, 1]}}, "class_names": ["a"]}
    about = made | {"preprocessing": {"fits": False}, "image_size": [28, 28]}
    (tmp_path / "export.json").write_text(json.dumps(about))
    (tmp_path / "model.onnx").touch()
    monkeypatch.setitem(sys.modules, "onnxruntime", None)
    with pytest.raises(UsageError, match=r"onnxruntime.*pip install 'stepfeed\[export\]'"):
        Predictor.of_export(tmp_path)


def test_what_cannot_be_read_is_named_and_the_rest_is_answered(run, photos, tmp_path):
    good = list(photos[1])[:2]
    bad = tmp_path / "bad.png"
    bad.write_bytes(b"no image")
    output = tmp_path / "answers.jsonl"
    gone = tmp_path / "gone.png"
    done = predict(gone, good[0], bad, good[1], f"--model_dir={run}", f"--output={output}")
    assert done.returncode == 1
    said = (
        f"trainer.predict: 2 of 4 images cannot be read: {gone}: No such file or directory, "
        f"{bad}: no image of a known format: it begins with 0x"
    )
    assert done.stderr.splitlines()[-1].startswith(said)
    lines = [json.loads(line) for line in output.read_text().splitlines()]
    assert [("problem" in line, line["file"]) for line in lines] == [
        (True, str(gone)),
        (False, good[0]),
        (True, str(bad)),
        (False, good[1]),
    ]


@pytest.mark.parametrize(
    ("arguments", "code", "said"),
    [
        (["--model_dir=RUN"], 2, "INPUT is missing"),
        (["gone", "a.png"], 2, "gone: no such file or folder"),
        (["PHOTOS"], 2, "PHOTOS: is not the folder of a run"),
        (["a.png", "--model_dir=RUN", "--exported=E"], 2, "--model_dir and --exported: give one"),
        (["a.png", "--exported=E", "--weights=raw"], 2, "--weights=raw: is of a run"),
        (["a.png", "--model_dir=RUN", "--output=x.txt"], 2, "--output=x.txt: must end with .jsonl, .csv or .npz"),
        (["no.png", "b.png", "--model_dir=RUN"], 1, "no.png, b.png: cannot be read: "),
        (["EMPTY", "--model_dir=RUN"], 1, "EMPTY: no images"),
        (["RUN/logs", "--model_dir=RUN"], 1, "RUN/logs: no images, but 1 file not named like an image"),
        (["PHOTOS", "--exported=EMPTY"], 1, "EMPTY: is not an export: "),
        (["a.png", "--model_dir=RUN", "--top=0"], 2, "--top=0: must be 1 or more"),
    ],
)
def test_wrong_arguments_are_one_line(arguments, code, said, run, photos, tmp_path, command):
    names = {"RUN": run, "EMPTY": tmp_path, "PHOTOS": photos[0]}

    def named(text):
        for name, value in names.items():
            text = text.replace(name, str(value))
        return text

    found, _, err = command("trainer.predict", *map(named, arguments))
    assert found == code
    assert err.splitlines()[-1].startswith(f"trainer.predict: {named(said)}")


def test_an_output_that_cannot_be_written_or_is_interrupted_leaves_what_was_there(run, photos, tmp_path):
    output = tmp_path / "answers.csv"
    output.write_text("mine")
    args = ["-m", "trainer.predict", str(photos[0]), f"--model_dir={run}", f"--output={output}", "--batch_size=1"]
    code = f"import sys, pipeline.images as i\nsys.argv = {args[1:]!r}\nn = [0]\nwas = i.open_file\n"
    stop = "def now(data):\n  n[0] += 1\n  if n[0] > 5: raise KeyboardInterrupt\n  return was(data)\n"
    done = forked.run(["-c", f"{code}{stop}i.open_file = now\nfrom trainer.predict import entry_point\nentry_point()"])
    assert (done.returncode, done.stderr.splitlines()[-1]) == (130, "trainer.predict: interrupted")
    assert [path.name for path in tmp_path.iterdir()] == ["answers.csv"]
    assert output.read_text() == "mine"
    (tmp_path / "file").touch()
    blocked = predict(*list(photos[1])[:1], f"--model_dir={run}", f"--output={tmp_path}/file/x.csv")
    assert (blocked.returncode, blocked.stderr.splitlines()[-1]) == (
        1,
        f"trainer.predict: --output={tmp_path}/file/x.csv: cannot be written: File exists",
    )


@pytest.mark.slow
def test_a_run_without_an_evaluation_is_asked_exported_replayed_and_evaluated_on_a_split(tmp_path, digits, photos):
    """Training and conversion themselves advise --eval_split=none if there is a single split."""
    flags = [f"--data_dir={digits}", "--model=lenet", "--train_steps=20", "--log_every=0", "--eval_split=none"]
    forked.output(["-m", "trainer.run", f"--model_dir={tmp_path}/run", *flags])
    path = next(iter(photos[1]))
    of_run = Predictor.of_run(tmp_path / "run").predict([path])[0]
    done = predict(path, f"--model_dir={tmp_path}/run")
    assert (done.returncode, list(answers(done.stdout))) == (0, [path]), done.stderr
    out = forked.output(
        ["-m", "trainer.export", f"--model_dir={tmp_path}/run", f"--output={tmp_path}/out", "--format=keras"]
    )
    assert "keras: reloaded, on 200 examples of train: largest difference" in out
    of_export = Predictor.of_export(tmp_path / "out").predict([path])[0]
    assert [name for _, name, _ in of_export.best] == [name for _, name, _ in of_run.best]
    forked.output(["-m", "trainer.replay", f"--model_dir={tmp_path}/run", "--step=3", "--from_start"])
    said = forked.refused(forked.run(["-m", "trainer.evaluate", f"--model_dir={tmp_path}/run"]))
    assert "--split is missing: " in said
    assert "(test, train)" in said
    printed = forked.output(["-m", "trainer.evaluate", f"--model_dir={tmp_path}/run", "--split=test"])
    assert printed.count("test accuracy = ") == 1
