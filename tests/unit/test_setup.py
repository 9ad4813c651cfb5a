"""What setup.py tells a package index."""

import pathlib
import re
import runpy

import pytest
import setuptools

ROOT = pathlib.Path(__file__).parents[2]


@pytest.fixture
def described(monkeypatch):
    """Returns the long description as setup.py builds it."""
    given = {}
    monkeypatch.setattr(setuptools, "setup", lambda **named: given.update(named))
    runpy.run_path(str(ROOT / "setup.py"))
    return given["long_description"]


def test_the_long_description_links_to_no_file_of_the_project(described):
    assert not [to for to in re.findall(r"\]\(([^)]*)\)", described) if not to.startswith(("https://", "http://", "#"))]
    assert "<img" not in described


def test_the_long_description_keeps_the_texts_and_commands_of_the_readme(described):
    readme = (ROOT / "README.md").read_text()
    blocks = re.findall(r"```.*?```", readme, re.DOTALL)
    assert blocks
    assert all(block in described for block in blocks)
    assert "(step by step, with pictures)" in described
    assert "| every command, exit codes, installing | docs/commands.md |" in described
    assert "![" not in described
    assert "|  |" not in described
