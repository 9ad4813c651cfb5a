"""The Python and the commands of README and the pages that continue it run as they stand; make docs checks links."""

import contextlib
import functools
import json
import os
import pathlib
import re
import subprocess
import sys

import pytest

from stepfeed.command import COMMANDS
from tests import forked
from tests.loopback import free_ports

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


def test_the_tutorial_runs_to_the_letter(tmp_path):
    """With fewer epochs; its files and commands in turn. README's five commands are among them."""
    page = (ROOT / "docs/tutorial.md").read_text(encoding="utf-8")
    (port,) = free_ports(1)
    bin_ = tmp_path / "bin"
    bin_.mkdir()
    for name, more in (("stepfeed", " -P -m stepfeed"), ("python", "")):
        (bin_ / name).write_text(f'#!/bin/sh\nexec {sys.executable}{more} "$@"\n')
        (bin_ / name).chmod(0o755)
    environment = os.environ | {"PYTHONPATH": str(ROOT), "PATH": f"{bin_}:{os.environ['PATH']}"}
    run = functools.partial(subprocess.run, cwd=tmp_path, env=environment, capture_output=True, text=True, check=False)
    printed = {}
    with contextlib.ExitStack() as stack:
        for language, block in re.findall(r"^```(python|sh)\n(.*?)```", page, re.DOTALL | re.MULTILINE):
            text = block.replace("--epochs=40", "--epochs=10").replace("8000", str(port))
            if language == "python":
                (tmp_path / re.match(r"# (\w+\.py)\n", text)[1]).write_text(text)
                continue
            for line in text.splitlines():
                if line == "python serve.py":
                    server = subprocess.Popen([sys.executable, "serve.py"], cwd=tmp_path, stderr=subprocess.DEVNULL)
                    stack.callback(server.wait)
                    stack.callback(server.kill)
                    continue
                waiting = " --silent --show-error --retry 60 --retry-connrefused --retry-delay 1"
                done = run(["sh", "-c", line + waiting * line.startswith("curl")])
                assert done.returncode == 0, done.stderr
                printed[line] = done.stdout
    names = [line.split()[1] for line in printed if line.startswith("stepfeed")]
    assert names == ["convert", "inspect", "train", "evaluate", "predict", "export"]
    convert, evaluate, predict, ask = (
        next(printed[line] for line in printed if word in line)
        for word in (" convert ", " evaluate ", " predict ", "curl ")
    )
    assert "208 examples to 2 shards" in convert
    assert "train: 171 examples" in convert
    assert float(re.search(r"validation accuracy = ([01]\.\d+) \(37", evaluate)[1]) > 0.85
    said = [one.split(": ")[1].split()[0] for one in predict.splitlines() if one.startswith("photos/")]
    assert len(said) == 104
    assert said.count("temple") > 90
    assert json.loads(ask)["class_name"] == "temple"
    for picture in ("card.html", "batch.png", "confusion.png", "mistakes.png"):
        assert list(tmp_path.rglob(picture)), picture
    (block,) = re.findall(r"```sh\n(.*?)```", TEXT["README.md"], re.DOTALL)
    of_readme = [line.replace("photos/cats", "photos/temple") for line in block.splitlines()]
    assert len(of_readme) == 5
    assert [line for line in of_readme if f"\n{line}" not in page] == []


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
