"""Where in a user's code an error was raised."""

import importlib.util
import json

import pytest

from pipeline.errors import of_user

MINE = """import json


def called():
    return inner()


def inner():
    raise KeyError("x")


def asks_a_library():
    return json.loads("{")
"""


@pytest.fixture
def mine(tmp_path, monkeypatch):
    """A module of a user's, in the working directory."""
    path = tmp_path / "mine.py"
    path.write_text(MINE)
    monkeypatch.chdir(tmp_path)
    spec = importlib.util.spec_from_file_location("mine", path)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.mark.parametrize(
    ("function", "line"), [("called", 'raise KeyError("x")'), ("asks_a_library", 'return json.loads("{")')]
)
def test_an_error_is_placed_at_the_innermost_line_of_the_users(function, line, mine):
    """Neither at the call that led there, nor in the library that raised it."""
    with pytest.raises((KeyError, ValueError)) as caught:
        getattr(mine, function)()
    number = 1 + [text.strip() for text in MINE.splitlines()].index(line)
    assert of_user(caught.value).startswith(f"mine.py:{number}: {caught.type.__name__}: ")


def test_an_error_of_a_library_alone_has_no_place():
    with pytest.raises(ValueError, match="Expecting") as caught:
        json.loads("{")
    without_this_file = caught.value.__traceback__.tb_next
    assert of_user(caught.value.with_traceback(without_this_file)).startswith("JSONDecodeError: ")
