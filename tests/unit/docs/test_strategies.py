"""docs/strategies.md: its pictures are those that the script draws, and its commands have flags that there are."""

import pathlib
import re
import runpy
import shlex

import pytest

from trainer import config

DOCS = pathlib.Path(__file__).resolve().parents[3] / "docs"
PICTURES = runpy.run_path(str(DOCS / "strategies.py"))["PICTURES"]
TEXT = (DOCS / "strategies.md").read_text(encoding="utf-8")


@pytest.mark.parametrize("name", PICTURES)
def test_a_picture_is_up_to_date_and_shown(name):
    assert PICTURES[name]() == (DOCS / name).read_text(encoding="utf-8"), "run: python docs/strategies.py"
    assert f"]({name})" in TEXT


def test_letters_are_large_enough():
    for draw in PICTURES.values():
        assert min(float(size) for size in re.findall(r'font-size="([\d.]+)"', draw())) >= 12


def test_flags_of_its_commands():
    commands = re.findall(r"^    python -m trainer\.(?:run|launch) (.+)$", TEXT, re.MULTILINE)
    assert len(commands) == 3
    for command in commands:
        flags = shlex.split(command.partition("-- ")[2] if " -- " in command else command)
        assert config.parse(flags).data.data_dir == "demo/digits"
