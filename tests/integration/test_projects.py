"""Six projects' TFRecords and scripts: docs/projects.md to the letter, then killed and resumed."""

import functools
import re
import shlex
import shutil
from typing import NamedTuple

import numpy as np
import pytest

from tests.helpers import foreign, forked
from tests.helpers.forked import ROOT
from tests.helpers.runs import checkpoint_bytes, kill, succeed, tf_configs, wait_for_step

SCRIPTS = ROOT / "examples" / "tfrecords"
PAGE = (ROOT / "docs" / "projects.md").read_text(encoding="utf-8")
STEPS = 60


class Parsed(NamedTuple):
    """A project whose predictions are of records: its files, records and labels, and what the predictions are."""

    data: str
    files: str
    records: int
    task: str
    labels: list[str]
    output: str
    said: str
    features: str = "task.parse(tf.constant(records), tf.zeros(len(records), tf.uint64), False)[0]"


PARSED = {
    "channels": Parsed(
        "channels",
        "validation/*",
        20,
        "channels_task:Channels",
        ["label"],
        "probabilities",
        r"^channels:validation, record 19: [0-9] 0\.\d+, [0-9] 0\.\d+, [0-9] 0\.\d+$",
    ),
    "deeplab": Parsed(
        "voc",
        "val-*",
        11,
        "deeplab_task:Segmentation",
        ["image/segmentation/class/encoded", "image/segmentation/class/format"],
        "outputs",
        "^11 records: masks.npz$",
        "next(iter(input_fn('voc', 'validation', global_batch_size=11, training=False, resize='32x32')))[0]",
    ),
    "scenes": Parsed("scenes", "val-*", 13, "scenes_task:Scenes", ["classes"], "outputs", "^13 records: scenes.npz$"),
}
BY_HAND = """
import glob, pathlib
import numpy as np
import tensorflow as tf
from pipeline import input_fn
from trainer import Predictor, inference, lazy_imports
from trainer.checkpoint import reader
from trainer.config.trained import CheckpointFlags

records = [one.numpy() for one in tf.data.TFRecordDataset(sorted(glob.glob("{data}/{files}")))]
task = lazy_imports.load_task("{task}")
features = {features}
model = inference.build(reader.read(pathlib.Path("{data}-run/ckpt-20")), CheckpointFlags("{data}-run")).model
wanted = model(tf.cast(features, model.inputs[0].dtype), training=False)
wanted = tf.nn.softmax(wanted) if "{output}" == "probabilities" else wanted
unlabelled = []
for record in records:
    example = tf.train.Example.FromString(record)
    for name in {labels}:
        del example.features.feature[name]
    unlabelled.append(example.SerializeToString())
program = tf.saved_model.load("{exported}/saved_model")
np.savez(
    "by_hand.npz",
    wanted=wanted,
    of_run=Predictor.of_run("{data}-run").outputs(records)["{output}"],
    of_program=program.serve(records)["{output}"],
    without_labels=program.serve(unlabelled)["{output}"],
)
"""
MAKERS = {
    "imagenet": lambda folder: foreign.tf_slim(folder / "imagenet", {"train": [30, 21, 17], "validation": [12, 8]}),
    "flowers": lambda folder: foreign.flowers(folder / "flowers", 24, 5, in_folders=True),
    "melanoma": lambda folder: foreign.melanoma(folder / "melanoma", 24, 6),
    "channels": lambda folder: foreign.channels(folder / "channels", {"train": 44, "validation": 20}),
    "deeplab": lambda folder: foreign.deeplab(folder / "voc", {"train": 30, "val": 11}),
    "scenes": lambda folder: foreign.scenes(folder / "scenes", {"train": 40, "val": 13}),
}


@functools.cache
def blocks(project):
    """Returns [(language, text)] of a project's section."""
    section = re.search(rf"^## {project}\n(.*?)(?=^## |\Z)", PAGE, re.DOTALL | re.MULTILINE)[1]
    return re.findall(r"^```(python|sh)\n(.*?)```", section, re.DOTALL | re.MULTILINE)


def commands(project):
    """Returns the words of the commands of a project, without `stepfeed`."""
    text = "".join(block for language, block in blocks(project) if language == "sh").replace("\\\n", " ")
    return [shlex.split(line)[1:] for line in text.splitlines()]


def make(project, folder):
    """Writes a project's records and scripts."""
    MAKERS[project](folder)
    for script in SCRIPTS.glob(f"{project}*.py"):
        shutil.copy(script, folder)
    (folder / "photo.jpg").write_bytes(foreign.jpeg(1, (50, 70)))


def run(folder, *arguments):
    out = forked.output(arguments, cwd=folder)
    return out


def filled(text):
    return sum(1 for line in text.splitlines() if line.strip())


@pytest.mark.parametrize("project", MAKERS)
def test_a_script_has_as_many_lines_as_the_page_says(project):
    task = SCRIPTS / f"{project}_task.py"
    python = sum(filled(block) for language, block in blocks(project) if language == "python")
    python += filled(task.read_text(encoding="utf-8")) if task.exists() else 0
    after = f"{len(commands(project))} commands" + f", {python} lines" * (python > 0)
    before = filled((SCRIPTS / f"{project}.py").read_text(encoding="utf-8"))
    assert re.search(rf"^\| \[{project}\]\(#{project}\) \| .* \| {before} \| {after} \|$", PAGE, re.MULTILINE), (
        before,
        after,
    )


@pytest.mark.slow
@pytest.mark.parametrize("project", MAKERS)
def test_a_project_trains_before_and_after(project, tmp_path):
    make(project, tmp_path)
    run(tmp_path, f"{project}.py")
    before = (tmp_path / "submission.csv").read_text() if (tmp_path / "submission.csv").exists() else ""
    found = {words[0]: run(tmp_path, "-m", "stepfeed", *words) for words in commands(project)}
    assert "a new run" in found["train"]
    assert re.search(r"(validation|train\[75%:\]) (accuracy|mAP) = [01]\.\d+", found["train"])
    for language, block in blocks(project):
        if language == "python":
            run(tmp_path, "-c", block)
            after = (tmp_path / "submission.csv").read_text()
            assert [line.split(",")[0] for line in after.splitlines()] == [n.split(",")[0] for n in before.splitlines()]
            assert len(after.splitlines()) in (6, 7)
    if project in PARSED:
        assert (tmp_path / next(tmp_path.glob("*.keras"))).stat().st_size  # of the script
        assert re.search(PARSED[project].said, found["predict"], re.MULTILINE)
    elif "predict" in found:
        assert found["predict"].count("photo.jpg: ") == 1
    else:
        assert before


@pytest.mark.slow
@pytest.mark.parametrize("project", PARSED)
def test_records_are_predicted_and_a_program_takes_them(project, tmp_path):
    make(project, tmp_path)
    for words in commands(project):
        run(tmp_path, "-m", "stepfeed", *words)
    about = PARSED[project]
    exported, data = f"{about.data}-model", about.data
    run(tmp_path, "-c", BY_HAND.format(**about._asdict(), exported=exported))
    with np.load(tmp_path / "by_hand.npz") as file:
        by_hand = dict(file)
    assert len(by_hand["wanted"]) == about.records
    for name in ("of_run", "of_program", "without_labels"):
        np.testing.assert_allclose(by_hand[name], by_hand["wanted"], atol=2e-5)
    shutil.copy(next(tmp_path.glob(f"{data}/{about.files}")), tmp_path / exported / "records.tfrecord")
    program = re.search(r"```python\n(.*?)```", (tmp_path / exported / "README.md").read_text(), re.DOTALL)[1]
    assert f"'{about.output}': array(" in run(tmp_path / exported, "-c", program)
    for model in (f"{data}-run", exported):
        run(tmp_path, "-m", "stepfeed", "predict", model, data, "--split=validation", "--output=out.npz")
        with np.load(tmp_path / "out.npz") as found:
            assert found["record"].tolist() == list(range(about.records))
            np.testing.assert_allclose(found[about.output], by_hand["wanted"], atol=2e-5)
    (tmp_path / f"{project}_task.py").unlink()
    for command, more in (("predict", [data, "--split=validation", "--output=o.npz"]), ("export", ["--output=out"])):
        refused = forked.run(["-m", "stepfeed", command, f"{data}-run", *more], cwd=tmp_path)
        assert f"No module named '{project}_task'" in forked.refused(refused)
    run(tmp_path, "-m", "stepfeed", "predict", exported, data, "--split=validation", "--output=out.npz")


@pytest.mark.slow
@pytest.mark.parametrize("processes", [1, 2])
@pytest.mark.parametrize("project", MAKERS)
def test_killed_and_resumed_a_run_ends_with_the_same_bits(project, processes, tmp_path):
    make(project, tmp_path)
    index, train, *_ = commands(project)
    run(tmp_path, "-m", "stepfeed", *index)
    flags = [word for word in train[1:] if not word.startswith(("--model_dir", "--train_steps"))]
    flags += [f"--train_steps={STEPS}", "--checkpoint_every=7", "--log_every=2"]
    flags += ["--strategy=multiworker"] * (processes > 1)

    def begin(name):
        arguments = ["-m", "trainer.run", *flags, f"--model_dir={name}"]
        configs = tf_configs(processes) if processes > 1 else [None]
        return [forked.Process(arguments, {"PYTHONUNBUFFERED": "1", "TF_CONFIG": c}, tmp_path) for c in configs]

    succeed(*begin("whole"))
    killed = begin("killed")
    wait_for_step(killed[0], 20)
    kill(*killed)
    resumed, *_ = succeed(*begin("killed"))
    assert "resumed from" in resumed
    assert checkpoint_bytes(tmp_path / "killed", STEPS) == checkpoint_bytes(tmp_path / "whole", STEPS)


@pytest.mark.slow
def test_the_page_about_masks_does_as_it_says(tmp_path):
    make("deeplab", tmp_path)
    page = (ROOT / "docs" / "masks.md").read_text(encoding="utf-8")
    (index,), (snippet,) = (re.findall(rf"```{language}\n(.*?)```", page, re.DOTALL) for language in ("sh", "python"))
    assert "mask: image/segmentation/class/encoded, 4 classes" in run(tmp_path, "-m", *shlex.split(index))
    shapes = "print(beside.element_spec[0]['mask'].shape, [part.shape for part in as_label.element_spec])"
    printed = run(tmp_path, "-c", f"{snippet}\n{shapes}")
    assert printed.endswith(
        "(8, 32, 32, 1) [TensorShape([8, 32, 32, 3]), TensorShape([8, 32, 32, 1]), TensorShape([8, 1, 1, 1])]\n"
    )
