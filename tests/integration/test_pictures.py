"""The pictures of docs/pictures.py show what today's code prints."""

import re
import runpy
import shlex

import PIL.Image
import pytest

from tests.helpers import forked
from tests.helpers.forked import ROOT
from trainer.config.run import STRATEGIES

PICTURES = runpy.run_path(str(ROOT / "docs/pictures.py"))
AGAIN = "docs/{} is stale: python docs/pictures.py draws it again"


def text_of(name):
    return PIL.Image.open(ROOT / "docs" / name).text[PICTURES["TEXT"]]


def without_numbers(text):
    return re.sub(r"\d[\d.,:]*", "#", text)


@pytest.mark.slow
def test_the_terminal(digits, tmp_path):
    (tmp_path / "digits").symlink_to(digits)
    shown = text_of("terminal.png").splitlines()
    command = shlex.split(shown[0].removeprefix("$ stepfeed train ").replace("--epochs=20", "--epochs=3"))
    out = forked.output(["-m", "trainer.run", *command], cwd=tmp_path)
    printed = without_numbers(out.replace("\n", ""))
    lines = [without_numbers(line.strip()) for line in shown[1:-1]]
    assert [line for line in lines if line not in printed] == [], AGAIN.format("terminal.png")
    assert re.fullmatch(
        r"\s*\d+%\|.+\| step [\d,/]+, loss [\d.]+, [\d,]+ img/s, input wait \d+%, [\d:]+ left", shown[-1]
    )


def test_the_card(tmp_path):
    forked.output(["-m", "beam_jobs.convert", "--dataset=digits", f"--data_dir={tmp_path / 'digits'}"])
    page = (tmp_path / "digits/card.html").read_text(encoding="utf-8")
    shown, there = (text.partition("Command\n")[0] for text in (text_of("card.png"), PICTURES["words_of"](page)))
    assert shown.splitlines()[0] == "digits"
    assert without_numbers(shown) == without_numbers(there), AGAIN.format("card.png")


@pytest.mark.parametrize("name", ["watch.png"])
def test_the_page(name):
    """Each of its lines without a number is written in the files that make it, or is the run's strategy."""
    places = ("trainer/watching", "trainer/launching", "trainer/callbacks")
    files = [
        path for place in places for path in (ROOT / place).rglob("*.*") if path.suffix in (".py", ".js", ".jinja")
    ]
    code = " ".join(" ".join(path.read_text(encoding="utf-8").split()) for path in files)
    lines = text_of(name).partition("\nFlags\n")[0].splitlines()
    words = [re.sub(r", on \S+$", "", line) for line in lines if not re.search(r"\d", line)]
    assert len(words) > 30
    assert [line for line in words if line not in code and line not in STRATEGIES] == [], AGAIN.format(name)
