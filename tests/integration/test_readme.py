"""The README's Python runs as it stands, and what it says of commands is so."""

import pathlib
import re
import subprocess
import sys

import pytest

from tests import forked

ROOT = pathlib.Path(__file__).resolve().parents[2]
README = (ROOT / "README.md").read_text(encoding="utf-8")
SNIPPETS = re.findall(r"```python\n(.*?)```", README, re.DOTALL)


@pytest.fixture(scope="module")
def folder(tmp_path_factory, digits):
    path = tmp_path_factory.mktemp("readme")
    (path / "demo").mkdir()
    (path / "demo" / "digits").symlink_to(digits)
    return path


@pytest.mark.parametrize("number", range(len(SNIPPETS)))
def test_snippets_run(folder, number):
    predicts = "model.predict" in SNIPPETS[number]
    more = "\nprint('predictions', predictions.shape)" if predicts else ""
    done = forked.run(["-c", SNIPPETS[number] + more], cwd=folder)
    assert done.returncode == 0, done.stderr
    if predicts:
        assert done.stdout.endswith("predictions (368, 10)\n")
    if "range(1000, 1005)" in SNIPPETS[number]:
        assert done.stdout.split() == ["1000", "64.0", "1001", "64.0", "1002", "64.0", "1003", "64.0", "1004", "64.0"]
    if "Shard(rank" in SNIPPETS[number]:
        assert done.stdout.count("(16, 28, 28, 1)") == 2


@pytest.mark.parametrize(
    "command",
    ["beam_jobs.convert", "pipeline.inspect", "pipeline.bench", "trainer.run", "trainer.evaluate", "trainer.export"],
)
def test_every_flag_that_the_readme_gives_a_command_exists(command):
    helped = subprocess.run(
        [sys.executable, "-m", command, "--help"], cwd=ROOT, capture_output=True, text=True, check=True
    )
    known = set(re.findall(r"--\w+", helped.stdout))
    lines = re.findall(rf"python -m {re.escape(command)}((?:[^\n`]|\\\n)*)", README)
    used = {flag for line in lines for flag in re.findall(r"--\w+", line)}
    if command == "trainer.run":
        used |= {
            flag for row in re.findall(r"^\| (`--.*?) \|", README, re.MULTILINE) for flag in re.findall(r"--\w+", row)
        }
    assert used
    assert used - known - {"--help"} == set()


def test_what_the_readme_links_to_exists():
    for target in re.findall(r"\]\((?!http)([^)]+)\)", README):
        assert (ROOT / target.partition("#")[0]).exists(), target
