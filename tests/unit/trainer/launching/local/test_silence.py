import dataclasses
import json

import pytest

from trainer.actions.heartbeat import Beat
from trainer.launching.local.silence import STARTING_SECONDS, Listener

BEAT = Beat(pid=1, time=0.0, beats=1, phase="training", step=7, made=3, achieved=5, expects="steps")


@pytest.fixture
def beat(tmp_path):
    """Returns a function that writes a beat, and a listener with a timeout of 10 s that began at 0."""
    path = tmp_path / "beat.json"
    beats = [0]

    def beat(**changes):
        beats[0] += 1
        path.write_text(json.dumps(dataclasses.asdict(dataclasses.replace(BEAT, beats=beats[0], **changes))))

    return beat, Listener(path, 10.0, 0.0)


def silence(listener, now):
    listener.hear(now)
    return listener.silence


def test_without_a_first_beat(beat):
    _, listener = beat
    assert silence(listener, 10.0 + STARTING_SECONDS) == ""
    assert silence(listener, 11.0 + STARTING_SECONDS) == "gave no sign of life for 71 s"


def test_no_beats(beat):
    write, listener = beat
    write()
    listener.hear(100.0)
    assert listener.has_stepped
    assert silence(listener, 104.0) == ""
    assert not listener.is_late
    assert silence(listener, 105.0) == ""
    assert listener.is_late
    assert silence(listener, 111.0) == "gave no sign of life for 11 s after step 7 (training)"


def test_beats_may_stop_where_the_process_said_so(beat):
    write, listener = beat
    write(phase="joining", quiet=120.0, expects="end", step=None)
    listener.hear(0.0)
    assert silence(listener, 124.0) == ""
    assert not listener.is_late
    assert silence(listener, 130.0) == ""
    assert silence(listener, 131.0) == "gave no sign of life for 131 s (joining)"


def test_it_lives_but_gets_on_no_more(beat):
    write, listener = beat
    for now in range(11):
        write()
        assert silence(listener, float(now)) == ""
    write()
    assert silence(listener, 11.0) == "made no progress for 11 s after step 7 (training)"
    write(achieved=6)
    assert silence(listener, 12.0) == ""


@pytest.mark.parametrize(
    ("changes", "allowed"), [({"patience": 50.0}, 50.0), ({"expects": "end"}, 100.0), ({"expects": "nothing"}, 1e9)]
)
def test_what_takes_long_may_take_long(changes, allowed, beat):
    write, listener = beat
    write(**changes)
    listener.hear(0.0)
    write(**changes)
    assert silence(listener, allowed) == ""
    write(**changes)
    assert bool(silence(listener, allowed + 1)) == (allowed < 1e9)
