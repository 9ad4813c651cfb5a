"""The fields and the sentence of an error; where in a user's code one was raised."""

import importlib.util
import json
import pickle
import types

import pytest

from pipeline import errors
from pipeline.errors import DataError, RerunError, TransientError, UsageError, of_user
from tests.helpers.raised import at


@pytest.mark.parametrize(
    ("error", "said"),
    [
        (DataError("no such file", path="d/f"), "d/f: no such file"),
        (
            DataError("is cut", path="d/f", record=3, offset=0, advice="get it"),
            "d/f, record 3, byte offset 0: is cut; get it",
        ),
        (
            TransientError("gone", path="f", part="line 2").advised("").advised("a").advised("b"),
            "f, line 2: gone; a; b",
        ),
        (DataError("x", path="f", offset=9, decompressed=True), "f, byte offset 9 of the decompressed bytes: x"),
        (DataError("bad", path="a/f").changed(path="b/f"), "b/f: bad"),
        (UsageError("is not a number", argument="--a", value="x"), "--a='x': is not a number"),
        (UsageError("is missing", argument="--a"), "--a: is missing"),
        (UsageError("is a folder", path="d", advice="name a file"), "d: is a folder; name a file"),
        (RerunError("lost ps 0", lost=["ps 0"]), "lost ps 0"),
    ],
)
def test_the_fields_make_the_sentence_also_after_a_way_to_another_process(error, said):
    there = pickle.loads(pickle.dumps(error))
    assert (type(there), vars(there), str(there)) == (type(error), vars(error), said)
    assert str(error) == said


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


@pytest.mark.parametrize(
    ("error", "reason", "line"),
    [
        (
            OSError(28, "No space left on device", "/x"),
            "No space left on device; make room",
            "[Errno 28] No space left on device: '/x'",
        ),
        (ValueError("\n one\n  two "), "one two", "one"),
        (KeyError(), "KeyError", "KeyError"),
        (DataError("a  b/x: is cut"), "a  b/x: is cut", "a  b/x: is cut"),
        (OSError("x" * 500), "x" * 400 + "...", "x" * 500),
    ],
)
def test_an_exception_is_one_line(error, reason, line):
    assert (errors.reason_of(error), errors.line_of(error)) == (reason, line)


def test_the_system_s_reason_has_the_file_and_advice():
    fields = at("/x", "cannot be written", "No space left on device", advice="make room")
    with pytest.raises(DataError, check=fields), errors.named("/x", "cannot be written", "make room"):
        raise OSError(28, "No space left on device", "/x.tmp")


def test_code_that_python_cannot_read_is_placed_where_it_says():
    with pytest.raises(SyntaxError) as caught:
        compile("x = 1\ny = (\n", "mine.py", "exec")
    assert of_user(caught.value) == f"mine.py:2: SyntaxError: {caught.value.msg}"
    assert of_user(SyntaxError("bad")) == "SyntaxError: bad"


def test_what_autograph_has_converted_is_placed_in_the_users_own_file(mine):
    """Its frames belong to a generated copy; its message begins with the user's code."""
    error = ValueError("in user code:\n\n    File mine.py, line 4, in called\n\n    ValueError: no rows\n")
    frames = [types.SimpleNamespace(filename=mine.__file__, lineno=number) for number in (4, 9)]
    error.ag_error_metadata = types.SimpleNamespace(translated_stack=frames)
    assert of_user(error) == "mine.py:4: ValueError: no rows"
