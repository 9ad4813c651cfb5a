"""The launcher's own lines, and the file of events that they make."""

import json

from trainer.launching.local.screen import Screen


def test_the_launchers_own_lines_are_events(tmp_path, capsys):
    path = tmp_path / "events.jsonl"
    for _ in range(2):  # a later launcher appends
        screen = Screen(events=path)
        screen.line("worker 0", "a line of a process", is_error=False)
        screen.say("2 workers")
        screen.say("worker 1 was killed", "failure")
        screen.note("done", "end")
    found = [json.loads(line) for line in path.read_text().splitlines()]
    said = [("job", "2 workers"), ("failure", "worker 1 was killed"), ("end", "done")]
    assert [(one["kind"], one["text"]) for one in found] == 2 * said
    times = [one["time"] for one in found]
    assert times == sorted(times)
    assert times[0] > 1.7e9
    shown = capsys.readouterr().err
    assert ("worker 1 was killed" in shown, "done" in shown) == (True, False)


def test_where_events_cannot_be_written_the_job_goes_on(tmp_path, capsys):
    Screen(events=tmp_path / "none" / "events.jsonl").say("2 workers")
    assert "2 workers" in capsys.readouterr().err
