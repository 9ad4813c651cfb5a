"""A display of a number, on real terminals and off them."""

import time

from beam_jobs.runs import display
from beam_jobs.runs.display import Display
from tests.displays import later, terminal


class Counter(Display):
    """Goes up by one with each look; there is nothing to see for a second then."""

    def __init__(self):
        self.finished = 0
        super().__init__()

    def line(self):
        return f"{self.finished} of 9"

    def _look(self):
        self.finished += 1
        return time.monotonic() + 1

    def _new_bar(self):
        return display.bar("count", "{desc} {n}/{total} {postfix}", self.finished, 9)

    def _move(self, bar):
        bar.n = self.finished


def test_a_line_after_five_seconds_and_none_before(capsys):
    with Counter() as counter:
        assert counter.finished == 1
        for seconds in (0, 4.9, 0.2, 0, 5):
            later(counter, seconds)
            counter.show()
    assert capsys.readouterr().out == "2 of 9\n3 of 9\n"


def test_a_bar_looks_when_it_is_time_and_is_taken_away(capsys):
    with terminal(60) as sent, Counter() as counter:
        assert "count 1/9" in sent()
        counter.show()
        assert counter.finished == 1
        later(counter, 1.1)
        counter.show()
        assert "count 2/9" in sent()
        counter.__exit__(None, None, None)
        assert sent().rpartition("\r")[0].strip() == ""
    assert capsys.readouterr().out == ""


def test_a_bar_is_never_wider_than_the_terminal():
    for columns in (20, 40):
        with terminal(columns) as sent, Counter() as counter:
            counter._bar.set_postfix_str("x" * 100)
            assert max(map(len, sent().replace("\r", "\n").splitlines())) <= columns
