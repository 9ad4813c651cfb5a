"""Which checkpoints are evaluated, in what order, and when it ends; a run that writes is played by `sleep`."""

import pathlib
from types import SimpleNamespace

import pytest

from pipeline.errors import DataError
from trainer.evaluation import following
from trainer.stored.record import UnreadableError


@pytest.fixture
def follow(tmp_path, monkeypatch):
    """Returns a function that follows a run, given what happens at each look for new checkpoints."""
    unreadable = set()

    def read(path):
        if not path.with_name(f"{path.name}.index").exists():
            raise UnreadableError(path, "no such file")
        return SimpleNamespace(path=path, step=int(path.name[5:]))

    monkeypatch.setattr(following.record, "read", read)
    monkeypatch.setattr(following, "_last_step", lambda found: 60)

    def follow(*looks, start=(), evaluate=lambda step: None, bad=()):
        unreadable.update(bad)
        evaluated, lines, happening = [], [], iter(looks)
        write(tmp_path / "run", *start)

        def take(found):
            if found.step in unreadable:
                raise UnreadableError(found.path, "cut")
            evaluate(found.step)
            evaluated.append(found.step)

        def sleep(seconds):
            assert seconds == 0.5
            next(happening)(tmp_path / "run")

        following.follow(str(tmp_path / "run"), 0.5, take, lines.append, sleep)
        assert list(happening) == []
        return evaluated, [line.replace(str(tmp_path), "TMP") for line in lines]

    return follow


def write(folder, *steps):
    for step in steps:
        folder.mkdir(exist_ok=True)
        (folder / f"ckpt-{step}.index").touch()


def writes(*steps):
    return lambda folder: write(folder, *steps)


def nothing(folder):
    pass


def test_each_checkpoint_once_until_the_last_step(follow):
    evaluated, lines = follow(nothing, writes(20), nothing, writes(30, 50), writes(60))
    assert evaluated == [20, 30, 50, 60]
    assert lines == [
        "waiting for checkpoints in TMP/run, looking every 0.5 s; Ctrl-C ends",
        "waiting for checkpoints in TMP/run after step 20, looking every 0.5 s; Ctrl-C ends",
        "waiting for checkpoints in TMP/run after step 50, looking every 0.5 s; Ctrl-C ends",
    ]


def test_of_a_run_that_has_ended_all_are_evaluated_without_waiting(follow):
    assert follow(start=(20, 60, 100)) == ([20, 60], [])  # to step 60; what is beyond is of a longer run


def test_one_that_is_removed_or_damaged_meanwhile_is_left_out(follow, tmp_path):
    def remove_the_next(step):
        if step == 10:
            (tmp_path / "run" / "ckpt-20.index").unlink()

    evaluated, lines = follow(start=(10, 20, 30, 60), evaluate=remove_the_next, bad=(30,))
    assert evaluated == [10, 60]
    assert lines == [
        "skipped TMP/run/ckpt-20: was removed",
        "skipped TMP/run/ckpt-30, which is damaged: cut",
    ]


def test_a_damaged_one_of_the_last_step_does_not_end_it(follow):
    assert follow(writes(70), start=(60,), bad=(60,))[0] == [70]


def test_the_last_step_is_that_of_the_flags_or_of_the_data(monkeypatch):
    config = SimpleNamespace(
        steps=SimpleNamespace(train_steps=12), model=SimpleNamespace(task=None), last_step=lambda steps: 3 * steps
    )
    found = SimpleNamespace(path=pathlib.Path("x"), config=lambda: config)
    assert following._last_step(found) == 12
    config.steps.train_steps = None
    monkeypatch.setattr(following.plan, "request_of", lambda *_, **__: None)
    monkeypatch.setattr(following, "resolve_all", lambda _: SimpleNamespace(steps_per_epoch=5))
    assert following._last_step(found) == 15

    def moved(_):
        raise DataError("no data")

    monkeypatch.setattr(following, "resolve_all", moved)
    assert following._last_step(found) == float("inf")
