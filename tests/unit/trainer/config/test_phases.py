import pytest

from trainer.config.phases import NO_PHASES, Phase, Phases

T = 10
TEXT = "0: freeze=base, learning_rate=1e-2; 1.55 epochs: freeze=none; 3 epochs: schedule=cosine"


def test_what_a_phase_does_not_give_is_as_before():
    found = Phases.of(TEXT, T, 100)
    assert found.each == (
        Phase(0, "base", 0.01),
        Phase(16, "none", 0.01),  # the whole step after 15.5
        Phase(30, "none", 0.01, "cosine", 30),
    )
    assert [found.number_at(step) for step in (0, 15, 16, 29, 30, 99)] == [0, 0, 1, 1, 2, 2]
    assert [found.next_after(step) for step in (0, 15, 16, 30)] == [16, 16, 30, float("inf")]


@pytest.mark.parametrize(
    ("was", "now", "step", "past", "later"),
    [
        (TEXT, TEXT, 50, "", ""),
        # A text that comes to the same: steps instead of epochs, a phase that changes nothing.
        (TEXT, "0: freeze=base, learning_rate=0.01; 12: freeze=base; 16: freeze=none; 30: schedule=cosine", 50, "", ""),
        ("0: resize=32; 20: resize=48x48", "0: resize=32x32; 20: resize=48", 50, "", ""),
        ("", "0: freeze=none; 40: freeze=base", 40, "", "from step 40 on"),
        ("", "0: freeze=none; 40: freeze=base", 41, "begins at step 40 was none, is 'step 40: freeze=base'", ""),
        (TEXT, "0: freeze=base, learning_rate=1e-2; 17: freeze=none", 16, "", "from step 16 on"),
        (TEXT, "0: freeze=base, learning_rate=1e-2; 17: freeze=none", 17, "step 16 was 'step 16: freeze=none, ", ""),
        ("", "0: learning_rate=0.1", 1, "begins at step 0 was 'step 0: freeze=none', is 'step 0: freeze=none, lea", ""),
    ],
)
def test_changes_ahead_are_told_from_those_of_the_past(was, now, step, past, later):
    found = Phases.of(now, T, 100).changes(Phases.of(was, T, 100).content(), step)
    assert (bool(found[0]), bool(found[1])) == (bool(past), bool(later))
    assert past in found[0]
    assert later in found[1]


def test_a_schedule_may_end_elsewhere_although_no_phase_has_changed_yet():
    was = Phases.of("0: schedule=cosine; 20: freeze=base; 30: learning_rate=0.1", T, 100).content()
    later = Phases.of("0: schedule=cosine; 20: freeze=base; 40: learning_rate=0.1", T, 100)
    assert later.changes(was, 10)[0] == ""
    assert later.ends_otherwise(was, 10)
    assert not Phases.of("0: schedule=cosine; 25: freeze=base; 30: learning_rate=0.1", T, 100).ends_otherwise(was, 10)


def test_a_run_without_phases_stores_none():
    assert Phases.of("", T, 100) == NO_PHASES
    assert NO_PHASES.content() == {}
