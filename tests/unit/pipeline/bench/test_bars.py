import io

import pytest

from pipeline.bench.result import Bars


class Output(io.TextIOWrapper):
    def __init__(self, is_terminal, encoding):
        super().__init__(io.BytesIO(), encoding=encoding)
        self._is_terminal = is_terminal

    def isatty(self):
        return self._is_terminal


@pytest.fixture
def drawn(monkeypatch):
    """Returns a function from the place where a bar of 5/8 of 4 columns is drawn to the drawing."""

    def draw(is_terminal=True, encoding="utf-8", columns="100", is_bound=True, **environment):
        for name in ("NO_COLOR", "TERM"):
            monkeypatch.delenv(name, raising=False)
        for name, value in {"COLUMNS": columns, **environment}.items():
            monkeypatch.setenv(name, value)
        monkeypatch.setattr("sys.stdout", Output(is_terminal, encoding))
        bars = Bars()
        return bars.columns, bars.bar(0.625, 4, is_bound)

    return draw


def test_a_terminal_shows_eighths_in_colour(drawn):
    assert drawn() == (100, "\033[33m\u2588\u2588\u258c\033[0m")
    assert drawn(is_bound=False) == (100, "\033[36m\u2588\u2588\u258c\033[0m")


@pytest.mark.parametrize("environment", [{"NO_COLOR": "1"}, {"TERM": "dumb"}])
def test_without_colours_where_they_are_not_wanted(drawn, environment):
    assert drawn(**environment) == (100, "\u2588\u2588\u258c")


def test_a_file_gets_plain_text_of_a_fixed_width(drawn):
    assert drawn(is_terminal=False) == (80, "##")


def test_a_terminal_without_blocks_gets_plain_text(drawn):
    assert drawn(encoding="ascii", NO_COLOR="1") == (100, "##")


def test_shares_out_of_bounds_stay_in_the_width(drawn):
    drawn(NO_COLOR="1")
    assert Bars().bar(7.0, 4, False) == "\u2588" * 4
    assert Bars().bar(-1.0, 4, False) == ""
