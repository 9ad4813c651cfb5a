import re

import pytest

from beam_jobs import jobs, plan, progress, sources


@pytest.fixture
def made(mnist_folder, tmp_path):
    (tmp_path / "out").mkdir()
    return plan.make_plan(sources.open_source("mnist", str(mnist_folder())), str(tmp_path / "out"), 0, 2)


def test_finished_shards_are_counted_and_nothing_else(made, tmp_path):
    (tmp_path / "out" / "train-00000-of-00009.tfrecord").write_bytes(b"another's")
    (tmp_path / "out" / ".train-00000-of-00002.tfrecord.tmp-0123456789abcdef").write_bytes(b"half")
    with progress.Progress(made) as bar:
        assert bar.finished == 0
        counts = []
        for element in made.elements:
            jobs.write_shard(made, *element)
            counts.append(bar.finished)
        assert counts == [1, 2, 3, 4]


def test_a_folder_that_is_gone_is_not_its_affair(made, tmp_path):
    with progress.Progress(made) as bar:
        (tmp_path / "out").rmdir()
        assert bar.finished == 0


def test_off_a_terminal_there_is_a_line_every_five_seconds(made, monkeypatch, capsys):
    clock = [100.0]
    monkeypatch.setattr(progress.time, "monotonic", lambda: clock[0])
    with progress.Progress(made) as bar:
        for element in made.elements:
            jobs.write_shard(made, *element)
            clock[0] += 2.0
            bar.show()
    assert capsys.readouterr().out == "3 of 4 shards written\n"


def test_on_a_terminal_there_is_a_bar(made, monkeypatch, capsys):
    monkeypatch.setattr(progress.sys.stderr, "isatty", lambda: True, raising=False)
    with progress.Progress(made) as bar:
        for element in made.elements:
            jobs.write_shard(made, *element)
        bar.show()
        bar._bar.refresh()
    captured = capsys.readouterr()
    assert re.search(r"100%.* 4/4 ", captured.err)
    assert captured.out == ""
