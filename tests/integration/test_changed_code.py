"""Code that changes between a run and what resumes from its checkpoints: a line names each file, for every command."""

import json

import pytest
import tensorflow as tf
from PIL import Image

from pipeline.files import code
from tests.helpers import parameter_servers
from tests.helpers.runs import RECORD_KEY
from trainer import evaluate, export, predict, replay, run

MODELS = """
import keras
import trainer
from parts import act
SCALE = 1.0

def scaled(scale):
    return lambda x: x * scale

class Block(keras.layers.Layer):
    def __init__(self):
        super().__init__()
        self.inner = keras.layers.Dense(16, activation=act)
    def call(self, x):
        return self.inner(x)

def net():
    return keras.Sequential([keras.Input((28, 28, 1)), keras.layers.Flatten(), Block(), keras.layers.Dense(10)])
"""
PARTS = "import keras\nfrom further import power\ndef act(x): return keras.ops.relu(x) ** power\n"
FURTHER = "power = 1\n"
EDITS = {  # what none of the structure of the model tells: name, arguments and layers stay
    "the body of a named function in another file": ({"parts.py": ("relu", "gelu")}, "parts.py was edited"),
    "a global of a file that this one imports": ({"further.py": ("1", "2")}, "further.py was edited"),
    "a global of its own file": ({"net_of_mine.py": ("SCALE = 1.0", "SCALE = 2.0")}, "net_of_mine.py was edited"),
    "two files": (
        {"parts.py": ("relu", "gelu"), "further.py": ("1", "2")},
        "further.py was edited; parts.py was edited",
    ),
}


@pytest.fixture
def project(tmp_path, monkeypatch):
    for name, source in {"net_of_mine": MODELS, "parts": PARTS, "further": FURTHER}.items():
        (tmp_path / f"{name}.py").write_text(source)
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(str(tmp_path))
    return tmp_path


@pytest.fixture
def said(capfd):
    """Returns a function that runs a command and returns its lines on both streams."""

    def said(main, *flags):
        capfd.readouterr()
        main(list(flags))
        return "".join(capfd.readouterr()).splitlines()

    return said


def edit(project, edits):
    for name, (old, new) in edits.items():
        source = (project / name).read_text()
        assert old in source
        (project / name).write_text(source.replace(old, new))


def changed(lines):
    return [line for line in lines if line.startswith("changed since ")]


def names_in(lines, checkpoint):
    """Returns the files named in the line about a checkpoint, in order."""
    (line,) = lines
    begin, _, rest = line.partition(": ")
    assert begin == f"changed since {checkpoint}"
    return "; ".join(sorted(rest.split("; ")))


FLAGS = ("--model_dir=run", "--model=net_of_mine:net", "--global_batch_size=16", "--eval_split=test")


def train(digits, said, last, *flags):
    return changed(said(run.main, f"--data_dir={digits}", *FLAGS, f"--train_steps={last}", *flags))


@pytest.mark.parametrize("what", EDITS)
@pytest.mark.quick(1)
def test_a_resume_names_each_file_that_was_edited_and_no_other(what, digits, project, said):
    edits, words = EDITS[what]
    assert train(digits, said, 2) == []
    (project / "notes.py").write_text("unused = 1")
    assert train(digits, said, 3) == []
    edit(project, edits)
    assert names_in(train(digits, said, 4), "ckpt-3") == words
    assert train(digits, said, 5) == []  # ckpt-4 has the digests of the edited files


@pytest.mark.slow
def test_evaluation_prediction_export_and_replay_name_it_too(digits, project, said):
    train(digits, said, 2)
    Image.new("L", (28, 28)).save("one.png")
    edits, words = EDITS["two files"]
    for is_edited in (False, True):
        for command in [
            (evaluate.main, "--model_dir=run"),
            (predict.main, "--model_dir=run", "one.png"),
            (export.main, "--model_dir=run", f"--output=exported-{is_edited}", "--format=saved_model"),
            (replay.main, "--model_dir=run", "--step=0", "--from_start"),
        ]:
            found = changed(said(*command))
            assert (names_in(found, "ckpt-2") if is_edited else found) == (words if is_edited else [])
        if not is_edited:
            edit(project, edits)


@pytest.mark.slow
def test_another_version_of_the_library_or_edited_sources_of_it_are_named(digits, project, said, monkeypatch):
    train(digits, said, 2)
    versions, packages = code.versions(), code.code_of_packages()
    monkeypatch.setattr(code, "code_of_packages", lambda names: {**packages, "pipeline/order/order.py": ["another"]})
    assert train(digits, said, 2) == ["changed since ckpt-2: stepfeed's own pipeline/order/order.py was edited"]
    monkeypatch.setattr(code, "versions", lambda: {**versions, "stepfeed": "stepfeed 99.0", "Keras": "Keras 99.1"})
    (line,) = train(digits, said, 2)
    keras, ours = line.partition(": ")[2].split("; ")
    assert (keras.split()[0], keras.split()[-1]) == ("Keras", "99.1")
    assert (ours.split()[0], ours.split()[-1]) == ("stepfeed", "99.0")


@pytest.mark.slow
def test_a_checkpoint_of_an_earlier_version_has_no_digests_and_says_nothing(digits, project, said):
    train(digits, said, 2)
    record = json.loads(tf.train.load_checkpoint("run/ckpt-2").get_tensor(RECORD_KEY))
    stored = record["code"]
    assert set(stored["modules"]) == {"net_of_mine.py", "parts.py", "further.py"}
    assert {"pipeline/order/order.py", "trainer/loop.py"} < set(stored["packages"])
    assert code.changes(None, stored) == []


@pytest.mark.slow
def test_with_parameter_servers_the_chief_says_it(digits, project):
    flags = ("--model=net_of_mine:net", "--eval_split=none")

    def job(last):
        found = parameter_servers.Job(1, 1, digits, "run", *flags, f"--train_steps={last}", cwd=project)
        return found.finish()["chief 0"][1]

    job(4)
    edit(project, EDITS["two files"][0])
    assert "changed since ckpt-4: parts.py was edited; further.py was edited" in job(8)
