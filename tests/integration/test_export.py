"""`trainer.export` of real runs: what is in the folder gives what the trained model gives, without our code."""

import json
import os
import re
import shutil
import zipfile

import numpy as np
import PIL.Image
import pytest

from pipeline import RandomAccess, images
from pipeline.errors import DataError, UsageError
from tests import environment
from tests.helpers import forked
from tests.helpers.datasets import Kind, write_dataset
from trainer import Predictor
from trainer.export import main
from trainer.exporting import command

ALL = ["saved_model", "keras", "stablehlo"]
FILES = {"saved_model": "saved_model", "keras": "model.keras", "onnx": "model.onnx", "stablehlo": "model.stablehlo"}
PHOTOGRAPHS, CROPS = Kind("jpeg", varied=True), "--model=lenet --augment=random_resized_crop(size=32)"
MODELS = """
import keras
import tensorflow as tf
import trainer


class Doubled(keras.layers.Layer):
    def call(self, values):
        return values * 2


def mine(shape, classes):
    first, last = keras.layers.BatchNormalization(momentum=0.5), keras.layers.Dense(classes)
    return keras.Sequential([keras.Input(shape), Doubled(), first, keras.layers.Flatten(), last])


class Net(keras.Model):
    \"\"\"Has no output_shape.\"\"\"

    def __init__(self):
        super().__init__()
        self.doubled, self.flatten, self.last = Doubled(), keras.layers.Flatten(), keras.layers.Dense(10)

    def call(self, images):
        return self.last(self.flatten(self.doubled(images)))


class Subclassed(trainer.Task):
    def build_model(self):
        model = Net()
        model(tf.zeros((1, 28, 28, 1)))
        return model


def eleven(shape, classes):
    model = keras.Sequential([keras.Input(shape), keras.layers.Flatten(), keras.layers.Dense(11)])
    model.compile("sgd", keras.losses.SparseCategoricalCrossentropy(from_logits=True))
    return model
"""


def train(data_dir, model_dir, *flags, cwd=None):
    more = {"cwd": cwd} if cwd else {}
    program = ["-m", "trainer.run", f"--data_dir={data_dir}", f"--model_dir={model_dir}", "--log_every=0", *flags]
    forked.output(program, **more)
    return model_dir


def export(model_dir, output, *flags, cwd=None):
    more = {"cwd": cwd} if cwd else {}
    program = ["-m", "trainer.export", f"--model_dir={model_dir}", f"--output={output}", *flags]
    return forked.run(program, **more)


def compared(done):
    """Returns {format: largest difference} as said."""
    assert done.returncode == 0, done.stderr
    lines = [line for line in done.stdout.splitlines() if ": reloaded, on " in line]
    return {line.split(":")[0]: float(line.split("largest difference ")[1].split()[0]) for line in lines}


@pytest.fixture(scope="module")
def trained(lenet):
    return lenet[0]


@pytest.fixture(scope="module")
def exported(trained, tmp_path_factory):
    folder = tmp_path_factory.mktemp("exported") / "out"
    return folder, export(trained, folder, f"--format={','.join(ALL)}", "--stablehlo_batch=3")


def run_elsewhere(program, cwd):
    """Runs a program that cannot import any of our packages."""
    variables = os.environ | {"PYTHONPATH": str(environment.STARTUP)}
    head = "import sys\nsys.modules.update(dict.fromkeys(('pipeline', 'trainer', 'stepfeed')))\n"
    done = forked.fresh(["-c", head + program], variables, cwd)
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_what_it_says_and_writes(exported, trained):
    folder, done = exported
    differences = compared(done)
    assert list(differences) == ALL
    assert max(differences.values()) < 1e-5
    lines = done.stdout.splitlines()
    assert lines[0] == f"lenet at step 60, averaged weights ({trained}/ckpt-60)"
    assert lines[1] == "in: uint8 images of 28x28x1; out: probabilities, class and class_name of 10 classes"
    assert lines[2].startswith("saved_model: reloaded, on 200 examples of test: largest difference ")
    assert lines[-1] == f"exported: {', '.join(str(folder / FILES[name]) for name in ALL)}"
    assert {path.name for path in folder.iterdir()} == {*(FILES[name] for name in ALL), "export.json", "README.md"}
    assert [path.name for path in folder.parent.iterdir()] == ["out"]
    about = json.loads((folder / "export.json").read_text())
    assert (about["step"], about["weights"], about["class_names"][3]) == (60, "ema", "3")
    assert about["files"]["stablehlo"]["images"] == [3, 28, 28, 1]
    assert about["files"]["keras"]["images"] == [None, 28, 28, 1]


def test_a_program_without_our_code_serves_raw_images(exported, digits):
    folder, _ = exported
    split = RandomAccess(digits, "test")
    images = np.stack([split[i]["image"] for i in range(50)])
    np.save(folder / "images.npy", images)
    program = """
import keras, numpy as np, tensorflow as tf
images = np.load("images.npy")
model = tf.saved_model.load("saved_model")
served = model.serve(images)
kept = keras.saving.load_model("model.keras").predict(images, verbose=0)
mirrored = model.serve(images[:, :, ::-1])
assert images.dtype == np.uint8
np.testing.assert_allclose(served["probabilities"], kept["probabilities"], atol=1e-6)
np.testing.assert_allclose(served["probabilities"], mirrored["probabilities"], atol=1e-6)  # --eval_flip
np.testing.assert_allclose(kept["probabilities"].sum(axis=1), 1, atol=1e-5)
for found in (served, kept):
    print(" ".join(name.decode() for name in np.asarray(found["class_name"]).tolist()))
    assert np.array_equal(np.asarray(found["class"]), np.asarray(found["probabilities"]).argmax(axis=1))
"""
    first, second = run_elsewhere(program, folder).splitlines()
    labels = [str(split[i]["label"]) for i in range(50)]
    assert first == second
    assert np.mean([one == other for one, other in zip(first.split(), labels, strict=True)]) > 0.5
    assert (folder / "saved_model" / "assets.extra" / "class_names.txt").read_text().split() == [*"0123456789"]


def programs_of(folder):
    """Returns the programs of an export's README by the name of the file that each reads."""
    text = (folder / "README.md").read_text()
    found = dict(re.findall(r"^## (\S+)\n.*?^```python\n(.*?)^```$", text, re.MULTILINE | re.DOTALL))
    assert len(found) == text.count("```python")
    return found


@pytest.mark.slow
def test_the_programs_of_its_readme_run_to_the_letter(exported, digits):
    folder, _ = exported
    split = RandomAccess(digits, "test")
    programs = programs_of(folder)
    assert list(programs) == [FILES[name] for name in ALL]
    PIL.Image.fromarray(split[5]["image"][:, :, 0]).save(folder / "photo.png")
    said = [run_elsewhere(program, folder).split() for program in programs.values()]
    [expected] = Predictor.of_export(folder / "model.keras").predict([folder / "photo.png"])
    (folder / "photo.png").unlink()
    assert [name for name, _ in said] == [expected.best[0][1]] * 3
    assert [float(best) for _, best in said] == pytest.approx([expected.best[0][2]] * 3, abs=1e-4)


def test_no_file_names_the_machine_or_our_code(exported):
    folder, _ = exported
    with zipfile.ZipFile(folder / "model.keras") as file:
        keras = file.read("config.json")
    stablehlo = (folder / "model.stablehlo").read_bytes()
    assert b"trainer" not in keras
    assert b"site-packages" not in stablehlo
    assert str(forked.ROOT).encode() not in stablehlo


@pytest.mark.slow
@pytest.mark.parametrize(
    ("kind", "flags", "formats", "said"),
    [
        (Kind(), "--model=cifar10_cnn --augment=cifar10_tutorial", "keras,stablehlo", "uint8 images of 40x36x3"),
        (PHOTOGRAPHS, CROPS, "saved_model,keras", "any size, fitted to 32x32"),
        (PHOTOGRAPHS, f"{CROPS} --precision=bfloat16", "saved_model,keras", "any size, fitted to 32x32"),
        (
            Kind("png", varied=True),
            "--model=lenet --augment=pad_crop_flip --resize=30x28",
            "saved_model,keras",
            "any size, fitted to 30x28",
        ),
        (Kind("png", compression="GZIP"), "--model=softmax_regression", "saved_model", "uint8 images of 40x36x3"),
    ],
    ids=["raw", "jpeg", "bfloat16", "stretched", "gzip"],
)
def test_every_way_in_which_images_reach_a_model(kind, flags, formats, said, tmp_path):
    write_dataset(tmp_path / "data", (20, 20), (40, 36, 3), (30,), kind=kind)
    run = train(tmp_path / "data", tmp_path / "run", "--global_batch_size=20", "--train_steps=3", *flags.split())
    done = export(run, tmp_path / "out", f"--format={formats}", "--stablehlo_batch=7")
    assert max(compared(done).values()) < (0.02 if kind.encoding == "jpeg" else 1e-5)
    assert said in done.stdout.splitlines()[1]
    assert "on 30 examples of test" in done.stdout
    about = json.loads((tmp_path / "out" / "export.json").read_text())["files"]
    if "saved_model" in about:
        assert about["saved_model"]["images"] == ([None, None, None, 3] if kind.varied else [None, 40, 36, 3])
    if kind.varied:
        PIL.Image.fromarray(np.full((70, 90), 7, np.uint8)).save(tmp_path / "out" / "photo.png")  # grey, and larger
        assert run_elsewhere(programs_of(tmp_path / "out")["saved_model"], tmp_path / "out")
        photographs_are_cut_as_the_run_cuts_them(run, tmp_path / "out", tmp_path / "photo.png")


def photographs_are_cut_as_the_run_cuts_them(run, folder, photo):
    """The run and its SavedModel say the same of a photograph of any size; the other formats do not take one."""
    pixels = np.random.default_rng(5).integers(0, 256, (95, 61, 3), np.uint8)
    PIL.Image.fromarray(pixels).save(photo)
    of_run, of_file = Predictor.of_run(run), Predictor.of_export(folder)
    [said], [said_by_file] = of_run.predict([photo]), of_file.predict([photo])
    assert [number for number, _, _ in said.best] == [number for number, _, _ in said_by_file.best]
    assert said.best[0][2] == pytest.approx(said_by_file.best[0][2], abs=0.02)
    stretched = images.resized(pixels, of_run.image_shape[:2])
    for made in (of_run, of_file):
        assert not np.array_equal(made.probabilities([pixels]), made.probabilities([stretched]))
    with pytest.raises(UsageError, match=r"model\.keras: takes images already cropped to \d+x\d+"):
        Predictor.of_export(folder / "model.keras")


@pytest.mark.slow
def test_layers_of_the_users(digits, tmp_path):
    (tmp_path / "models.py").write_text(MODELS)
    train(digits, "run", "--task=models:Subclassed", "--train_steps=10", "--augment=shift", cwd=tmp_path)
    refused = export("run", "refused", "--format=saved_model,keras", cwd=tmp_path)
    assert refused.returncode == 1
    assert [line.split(":")[0] for line in refused.stdout.splitlines()[2:]] == ["saved_model"]
    assert refused.stderr.startswith("trainer.export: --format=keras: the file cannot be reloaded: ")
    assert refused.stderr.endswith("a layer of your own needs @keras.saving.register_keras_serializable()\n")
    assert refused.stderr.count("\n") == 1
    assert not (tmp_path / "refused").exists()
    assert list(tmp_path.glob(".refused*")) == []


@pytest.mark.slow
def test_registered_layers_of_the_users(digits, tmp_path):
    registered = "@keras.saving.register_keras_serializable()\nclass Doubled"
    (tmp_path / "models.py").write_text(MODELS.replace("class Doubled", registered))
    train(digits, "run", "--model=models:mine", "--train_steps=10", "--augment=shift", cwd=tmp_path)
    assert list(compared(export("run", "out", "--format=keras", cwd=tmp_path))) == ["keras"]


def test_outputs_that_are_no_classes_are_refused(digits, tmp_path):
    (tmp_path / "models.py").write_text(MODELS)
    train(digits, "run", "--model=models:eleven", "--train_steps=5", "--augment=shift", cwd=tmp_path)
    said = forked.refused(export("run", "out", cwd=tmp_path))
    assert "models:eleven: gives outputs of shape (None, 11)" in said


@pytest.mark.slow
def test_the_checkpoint_the_weights_and_the_examples_to_compare_on_are_those_of_the_flags(trained, digits, tmp_path):
    other = tmp_path / "other"
    shutil.copytree(digits, other)
    flags = (f"--data_dir={other}", "--split=train[:30]", "--examples=12", "--format=saved_model")
    done = export(trained, tmp_path / "out", "--weights=raw", "--checkpoint=20", *flags)
    assert compared(done)["saved_model"] < 1e-5
    assert done.stdout.startswith(f"lenet at step 20 ({trained}/ckpt-20)\n")
    assert "saved_model: reloaded, on 12 examples of train[:30]: largest difference " in done.stdout
    shard = next(other.glob("train-00000*.tfrecord"))  # they are read from there
    shard.write_bytes(shard.read_bytes()[:-10])
    assert str(shard) in export(trained, tmp_path / "again", *flags).stderr


def test_what_is_there_is_not_touched(trained, tmp_path):
    (tmp_path / "out").mkdir()
    said = forked.refused(export(trained, tmp_path / "out"))
    assert f"--output={tmp_path / 'out'}: already exists" in said


def test_a_file_that_gives_other_numbers_is_not_exported(trained, tmp_path, monkeypatch):
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "-1")  # as trainer.export sets it, and pytest takes it back
    monkeypatch.setattr(command, "largest_differences", lambda files, *_: ((kind, 0.01) for kind in files))
    with pytest.raises(DataError, match="more than --tolerance=0.002; nothing is exported"):
        main([f"--model_dir={trained}", f"--output={tmp_path / 'out'}", "--tolerance=0.002", "--format=keras"])
    assert list(tmp_path.iterdir()) == []


@pytest.mark.slow
def test_onnx_in_bfloat16_is_refused(digits, tmp_path):
    pytest.importorskip("onnxruntime", reason="needs pip install 'stepfeed[export]'")
    run = train(digits, tmp_path / "run", "--train_steps=3", "--precision=bfloat16")
    said = forked.refused(export(run, tmp_path / "out", "--format=onnx"))
    assert "--format=onnx: the model computes in bfloat16" in said


def test_onnx_gives_the_same_and_the_names(trained, tmp_path):
    onnxruntime = pytest.importorskip("onnxruntime", reason="needs pip install 'stepfeed[export]'")
    pytest.importorskip("tf2onnx")
    assert compared(export(trained, tmp_path / "out", "--format=onnx"))["onnx"] < 1e-5
    PIL.Image.fromarray(np.zeros((28, 28), np.uint8)).save(tmp_path / "out" / "photo.png")
    [program] = programs_of(tmp_path / "out").values()
    session = onnxruntime.InferenceSession(str(tmp_path / "out" / "model.onnx"))
    assert run_elsewhere(program, tmp_path / "out").split()[0] in {*"0123456789"}
    found = session.run(["class_name", "probabilities"], {"images": np.zeros((2, 28, 28, 1), np.uint8)})
    assert [len(found[0]), found[1].shape] == [2, (2, 10)]
    assert json.loads(session.get_modelmeta().custom_metadata_map["class_names"]) == [*"0123456789"]
