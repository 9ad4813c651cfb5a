"""Which checkpoints are evaluated, in what order, and when it ends; a run that writes is played by `sleep`."""

import pathlib
import shutil
from types import SimpleNamespace

import pytest

from pipeline.errors import DataError
from trainer.checkpoint.reader import Record, UnreadableError
from trainer.evaluation import command
from trainer.run_folder import RunFolder


@pytest.fixture
def follow(tmp_path, monkeypatch):
    """Returns a function that follows a run, given what happens at each look for new checkpoints."""
    unreadable, content = set(), {}

    def read(path):
        if not path.with_name(f"{path.name}.index").exists():
            raise UnreadableError("no such file", path=path)
        return Record(path, int(path.name[5:]), False, content.get(path.name, {}))

    monkeypatch.setattr(command.reader, "read", read)
    monkeypatch.setattr(command, "_last_step", lambda found: 60)

    def follow(*looks, start=(), evaluate=lambda step: None, bad=(), contents=()):
        unreadable.update(bad)
        content.update(contents)
        evaluated, lines, happening = [], [], iter(looks)
        missed = {}
        write(tmp_path / "run", *start)

        def take(found, missing):
            if found.step in unreadable:
                raise UnreadableError("cut", path=found.path)
            evaluate(found.step)
            evaluated.append(found.step)
            if missing:
                missed[found.step] = missing

        def sleep(seconds):
            assert seconds == 0.5
            next(happening)(tmp_path / "run")

        command.follow(RunFolder(tmp_path / "run"), 0.5, take, lines.append, sleep)
        assert list(happening) == []
        follow.missed = missed
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
    assert follow(start=(20, 60, 100)) == ([20, 60], [])  # to step 60; anything beyond is from a longer run


def test_one_that_is_removed_or_damaged_meanwhile_is_left_out(follow, tmp_path):
    def remove_the_next(step):
        if step == 10:
            (tmp_path / "run" / "ckpt-20.index").unlink()

    evaluated, lines = follow(start=(10, 20, 30, 60), evaluate=remove_the_next, bad=(30,))
    assert evaluated == [10, 60]
    assert lines == [
        "skipped TMP/run/ckpt-30, which is damaged: cut",
        "missed step 20: the run removed it before it was evaluated; to miss none, give the run a larger "
        "--max_to_keep, or a larger --checkpoint_every",
        "evaluated 2 of 3 checkpoints; missed 1",
    ]


def rotating(every=10, max_to_keep=2):
    return {"config": {"steps": {"checkpoint_every": every, "max_to_keep": max_to_keep, "early_stopping": 0}}}


def rotates(*steps):
    def rotate(folder):
        for path in folder.iterdir():
            path.unlink()
        write(folder, *steps)

    return rotate


def test_those_that_were_rotated_away_are_named_with_what_helps(follow):
    contents = {f"ckpt-{step}": rotating() for step in range(10, 70, 10)}
    evaluated, lines = follow(rotates(40, 50), rotates(60), start=(20,), contents=contents)
    assert evaluated == [20, 40, 50, 60]
    assert follow.missed == {20: [10], 40: [30]}
    how = "to miss none, give the run a larger --max_to_keep than 2, or a larger --checkpoint_every than 10"
    assert [line for line in lines if not line.startswith("waiting")] == [
        f"missed step 10: the run removed it before it was evaluated; {how}",
        "missed step 30: the run removed it before it was evaluated",
        "evaluated 4 of 6 checkpoints; missed 2",
    ]


def test_of_a_run_that_saves_by_epochs_or_by_the_clock_it_knows_what_its_checkpoints_tell(follow):
    """Half of an epoch of 25 steps ends after 13, 25, 38, 50 steps."""
    epochs = {"ckpt-50": {**rotating("0.5 epochs"), "remembered": {"epoch": {"steps_per_epoch": 25}}}}
    clock = {"ckpt-60": rotating("30s")}
    _, lines = follow(start=(50, 60), contents=epochs | clock)
    assert follow.missed == {50: [13, 25, 38]}
    assert [line for line in lines if line.startswith("missed")] == [
        "missed steps 13 to 38 (3 checkpoints): the run removed them before they were evaluated; to miss none, give "
        "the run a larger --max_to_keep than 2, or a larger --checkpoint_every than 0.5 epochs"
    ]


def test_one_that_is_removed_while_it_is_evaluated_is_missed_with_those_before_it(follow, tmp_path):
    """Its evaluation fails halfway; earlier missed steps are reported with the next one."""

    def remove(step):
        if step == 30:
            (tmp_path / "run" / "ckpt-30.index").unlink()
            raise UnreadableError("cut", path=tmp_path / "run" / "ckpt-30")

    contents = {f"ckpt-{step}": rotating() for step in range(10, 70, 10)}
    evaluated, lines = follow(start=(10, 30, 50, 60), evaluate=remove, contents=contents)
    assert evaluated == [10, 50, 60]
    assert follow.missed == {50: [20, 30, 40]}
    assert lines[0].startswith(
        "missed steps 20 to 40 (3 checkpoints): the run removed them before they were evaluated; "
    )


def test_a_run_that_goes_back_has_missed_nothing_and_a_damaged_one_is_not_missed(follow):
    contents = {f"ckpt-{step}": rotating() for step in range(10, 70, 10)}
    evaluated, lines = follow(
        begins_anew(30), writes(40, 50, 60), start=(10, 20, 30, 40, 50), bad=(20,), contents=contents
    )
    assert evaluated == [10, 30, 40, 50, 30, 40, 50, 60]
    assert follow.missed == {}
    assert not any("missed" in line for line in lines)


def test_a_damaged_one_of_the_last_step_does_not_end_it(follow):
    assert follow(writes(70), start=(60,), bad=(60,))[0] == [70]


def test_a_run_that_ended_early_has_no_later_checkpoint(follow):
    def content(stale, early_stopping=3):
        return {"config": {"steps": {"early_stopping": early_stopping}}, "remembered": {"ranking": {"stale": stale}}}

    contents = {"ckpt-20": content(2), "ckpt-30": content(4, 0), "ckpt-40": content(3)}
    assert follow(nothing, writes(30, 40), start=(20,), contents=contents)[0] == [20, 30, 40]


def test_a_folder_that_is_removed_ends_it(follow, tmp_path):
    with pytest.raises(DataError) as error:
        follow(nothing, writes(20), nothing, shutil.rmtree)
    assert error.value.path == str(tmp_path / "run")


def begins_anew(*steps):
    def begin_anew(folder):
        shutil.rmtree(folder)
        write(folder, *steps)

    return begin_anew


def goes_back(folder):
    (folder / "ckpt-50.index").unlink()


@pytest.mark.parametrize(
    ("looks", "steps"),
    [
        ((begins_anew(10, 20), writes(60)), [20, 50, 10, 20, 60]),
        ((begins_anew(55), writes(60)), [20, 50, 55, 60]),
        ((goes_back, writes(30), writes(60)), [20, 50, 30, 60]),  # 20 is the one that was evaluated
    ],
    ids=["anew", "anew, and already further", "back"],
)
def test_what_a_run_writes_again_is_evaluated_again(looks, steps, follow):
    assert follow(nothing, *looks, start=(20, 50))[0] == steps


def test_the_last_step_is_that_of_the_flags_or_of_the_data(monkeypatch):
    config = SimpleNamespace(
        steps=SimpleNamespace(train_steps=12), model=SimpleNamespace(task=None), last_step=lambda steps: 3 * steps
    )
    found = SimpleNamespace(path=pathlib.Path("x"), config=lambda: config)
    assert command._last_step(found) == 12
    config.steps.train_steps = None
    monkeypatch.setattr(command.plan, "request_of", lambda *_, **__: None)
    monkeypatch.setattr(command, "resolve_all", lambda _: SimpleNamespace(steps_per_epoch=5))
    assert command._last_step(found) == 15

    def moved(_):
        raise DataError("no data")

    monkeypatch.setattr(command, "resolve_all", moved)
    assert command._last_step(found) == float("inf")
