"""The Python and the commands of README and the pages that continue it run as they stand; make docs checks links."""

import os
import pathlib
import re
import subprocess
import sys

import numpy as np
import PIL.Image
import pytest

from stepfeed.command import COMMANDS
from tests import forked

ROOT = pathlib.Path(__file__).resolve().parents[2]
PAGES = ("README.md", "docs/feeding.md", "docs/using.md")
TEXT = {page: (ROOT / page).read_text(encoding="utf-8") for page in PAGES}
SNIPPETS = [(page, code) for page in PAGES for code in re.findall(r"```python\n(.*?)```", TEXT[page], re.DOTALL)]
MORE = {  # flags of Beam, and those of a file
    "train": {"--config", "--dump_config"},
    "convert": {"--runner", "--direct_num_workers", "--direct_running_mode"},
}
PRINTED = {  # by what a snippet has: what it prints last
    "model.predict": "predictions (368, 10)\n",
    "range(1000, 1005)": "".join(f"{step} 64.0\n" for step in range(1000, 1005)),
}


@pytest.fixture(scope="module")
def folder(tmp_path_factory, digits):
    path = tmp_path_factory.mktemp("readme")
    (path / "demo").mkdir()
    (path / "demo" / "digits").symlink_to(digits)
    return path


@pytest.fixture(scope="module")
def trained(folder):
    flags = ["--data_dir=demo/digits", "--model_dir=demo/run", "--model=lenet", "--epochs=4", "--log_every=0"]
    done = forked.run(["-m", "trainer.run", *flags], cwd=folder)
    assert done.returncode == 0, done.stderr


@pytest.mark.parametrize(("page", "code"), SNIPPETS, ids=[f"{page}-{n}" for n, (page, _) in enumerate(SNIPPETS)])
def test_snippets_run(page, code, folder, request):
    if "demo/run" in code:
        request.getfixturevalue("trained")
    more = "\nprint('predictions', predictions.shape)" if "model.predict" in code else ""
    done = forked.run(["-c", code + more], cwd=folder)
    assert done.returncode == 0, done.stderr
    for words, printed in PRINTED.items():
        if words in code:
            assert done.stdout.endswith(printed), page
    if "Predictor.of_run" in code:
        assert done.stdout.strip() in set("0123456789")
    if "Shard(rank" in code:
        assert done.stdout.count("(16, 28, 28, 1)") == 2


def test_the_five_commands_for_a_folder_of_images_run_to_the_letter(tmp_path):
    """With fewer epochs."""
    draw = np.random.default_rng(0)
    for name in ("cats", "dogs"):
        (tmp_path / "photos" / name).mkdir(parents=True)
        for number in range(30):
            pixels = draw.integers(0, 256, (*draw.integers(40, 60, 2), 3), np.uint8) // (1 if name == "cats" else 3)
            PIL.Image.fromarray(pixels).save(tmp_path / "photos" / name / f"{number}.jpg")
    (block,) = re.findall(r"```sh\n(.*?)```", TEXT["README.md"], re.DOTALL)
    lines = block.replace("--epochs=40", "--epochs=10").splitlines()
    assert [line.split()[:2] for line in lines] == [
        ["stepfeed", name] for name in ("convert", "train", "evaluate", "predict", "export")
    ]
    bin_ = tmp_path / "bin"
    bin_.mkdir()
    (bin_ / "stepfeed").write_text(f'#!/bin/sh\nexec {sys.executable} -P -m stepfeed "$@"\n')
    (bin_ / "stepfeed").chmod(0o755)
    environment = os.environ | {"PYTHONPATH": str(ROOT), "PATH": f"{bin_}:{os.environ['PATH']}"}
    for line in lines:
        done = subprocess.run(
            ["sh", "-c", line], cwd=tmp_path, env=environment, capture_output=True, text=True, check=False
        )
        assert done.returncode == 0, done.stderr
        if " predict " in line:
            said = [one.split(": ")[1].split()[0] for one in done.stdout.splitlines()]
            assert len(said) == 30
            assert said.count("cats") > 24
    assert (tmp_path / "exported" / "saved_model").is_dir()


@pytest.mark.parametrize("name", [name for name in COMMANDS if name != "launch"])  # which has those of two commands
def test_every_flag_that_a_page_gives_a_command_exists(name):
    module, _ = COMMANDS[name]
    helped = subprocess.run(
        [sys.executable, "-m", module, "--flags"], cwd=ROOT, capture_output=True, text=True, check=True
    )
    texts = [path.read_text(encoding="utf-8") for path in (ROOT / "README.md", *(ROOT / "docs").glob("*.md"))]
    form = rf"(?:python -m {re.escape(module)}|stepfeed {name})\b((?:[^\n`]|\\\n)*)"
    used = {flag for text in texts for line in re.findall(form, text) for flag in re.findall(r"--\w+", line)}
    if name == "train":
        rows = re.findall(r"^\| (`--.*?) \|", (ROOT / "docs/training.md").read_text(encoding="utf-8"), re.MULTILINE)
        used |= {flag for row in rows for flag in re.findall(r"--\w+", row)}
    assert used - {*helped.stdout.split(), *MORE.get(name, ())} == set()
