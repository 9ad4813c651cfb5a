import pytest

from beam_jobs.validation.progress import Progress
from tests.displays import later, terminal
from tests.validated import write


@pytest.fixture
def made(tmp_path):
    (tmp_path / "marks").mkdir()
    return write(tmp_path / "made", "raw", (300, 200, 300)), tmp_path / "marks"


def test_off_a_terminal_there_is_a_line_every_five_seconds(made, capsys):
    manifest, marks = made
    with Progress(manifest, str(marks)) as progress:
        for number in (0, 2):
            (marks / str(number)).touch()
            progress.show()
            assert capsys.readouterr().out == ""
        later(progress, 5.1)
        progress.show()
        size = sum(shard.num_bytes for shard in manifest.shards) / (1 << 20)
        done = (manifest.shards[0].num_bytes + manifest.shards[2].num_bytes) / (1 << 20)
        assert capsys.readouterr().out.startswith(f"2 of 4 shards, {done:.1f} of {size:.1f} MiB, 0.0 MiB/s\n")
        progress.show()
        assert capsys.readouterr().out == ""
        assert progress.finished == 2


def test_on_a_terminal_there_is_a_bar_that_goes(made, capsys):
    manifest, marks = made
    with terminal(120) as sent:
        with Progress(manifest, str(marks)) as progress:
            for number in range(4):
                (marks / str(number)).touch()
            later(progress, 1)
            progress.show()
            assert "100%|" in (text := sent())
            assert "| 4 of 4 shards, 0.1 of 0.1 MiB, " in text
        assert "\r" in sent()
    assert capsys.readouterr().out == ""


def test_marks_that_cannot_be_seen_are_no_error(made):
    manifest, marks = made
    marks.rmdir()
    progress = Progress(manifest, str(marks))
    later(progress, 6)
    progress.show()
    assert progress.finished == 0
