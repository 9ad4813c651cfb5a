"""A display of a number, on real terminals and off them."""

import pytest

from beam_jobs.runs.display import Display
from tests.displays import later, terminal


class Counter(Display):
    """Goes up by one with each look; there is nothing to see for a second then."""

    seconds_between_looks = 1.0

    def text(self):
        return f"{self.done} of {self.total}"

    def _look(self):
        self.done += 1


def test_a_line_after_five_seconds_with_the_time_that_is_left_and_none_before(capsys):
    with Counter(9) as counter:
        for seconds in (0, 4.9, 0.2, 0, 5):
            later(counter, seconds)
            counter.show()
    # The first was done before: 1 in 5 seconds, 2 in 10.
    assert capsys.readouterr().out == "2 of 9, 00:35 left\n3 of 9, 00:30 left\n"


def test_a_bar_looks_when_it_is_time_and_is_taken_away(capsys):
    with terminal(60) as sent, Counter(4) as counter:
        assert " 25%|██" in (first := sent())
        assert "| 1 of 4, 00:00<" in first
        counter.show()
        assert sent() == ""
        later(counter, 1.1)
        counter.show()
        assert " 50%|████" in (second := sent())
        assert "| 2 of 4, 00:00<" in second
        counter.__exit__(None, None, None)
        assert sent().rpartition("\r")[0].strip() == ""
    assert capsys.readouterr().out == ""


@pytest.mark.parametrize(("columns", "lines"), [(20, 40), (40, 40), (0, 0), (80, 0), (0, 24)])
def test_a_bar_is_never_wider_than_the_terminal_or_80_columns_where_it_does_not_say_its_size(columns, lines):
    class Long(Counter):
        def text(self):
            return "1 of 9" + "x" * 100

    with terminal(columns, lines) as sent, Long(9):
        shown = sent()
    assert "1 of 9" in shown
    assert max(map(len, shown.replace("\r", "\n").splitlines())) <= (columns or 80)
