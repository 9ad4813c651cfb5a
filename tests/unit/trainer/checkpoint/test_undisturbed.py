"""Whatever is killed, stopped, damaged or trained differently, the checkpoints equal those of an undisturbed run.

TensorFlow's reading and writing is replaced by two small files per checkpoint, which takes a hundredth of the time.
"""

import contextlib
import json
import math
import pathlib
import shutil
import sys
import tempfile
import zlib
from types import SimpleNamespace
from unittest import mock

import hypothesis.strategies as st
import pytest
import tensorflow as tf
from hypothesis import Phase, settings
from hypothesis.stateful import RuleBasedStateMachine, initialize, precondition, rule

from pipeline.order.order import OrderSpec
from trainer.callbacks.base import Callbacks
from trainer.callbacks.evaluation import Evaluations
from trainer.callbacks.terminal import Output
from trainer.checkpoint import manager
from trainer.checkpoint.files import kept, path_of, steps_in
from trainer.checkpoint.manager import CheckpointManager
from trainer.checkpoint.reader import Record, UnreadableError
from trainer.config import TrainConfig
from trainer.config.steps import Period
from trainer.task import Evaluation

LAST = 9
SUFFIXES = (".data-00000-of-00001", ".index")


class Killed(BaseException):
    """The process has ended: nothing is cleaned up, since every further change of a file fails like this."""


class Disk:
    """Counts the changes of files by Python code, and kills the process at one of them; None for never."""

    left = None

    def __init__(self):
        sys.addaudithook(self.hook)

    def hook(self, event, arguments):
        if self.left is None:
            return
        if event in ("os.rename", "os.remove", "os.mkdir", "os.rmdir", "shutil.rmtree") or (
            event == "open" and str(arguments[1])[:1] in ("w", "x")
        ):
            if not self.left:
                raise Killed
            self.left -= 1


DISK = Disk()


class State:
    """The state of a run, which says in which attempt, and at which step, it was reached."""

    def __init__(self):
        self.task = SimpleNamespace()

    def reach(self, attempt, step):
        self.attempt, self.step = attempt, step

    def is_finite(self):
        return True

    def trackable(self):
        return {"state": self}


class Checkpoint:
    """In place of `tf.train.Checkpoint`: a file with the state and the record, then one with a checksum of it."""

    def __init__(self, state, record):
        self.state, self.record = state, record

    def write(self, path, options):
        data = json.dumps([self.state.attempt, self.state.step, self.record.serialize()]).encode()
        for suffix, content in zip(SUFFIXES, (data, b"%08x" % zlib.crc32(data)), strict=True):
            sys.audit("open", path, "w", 0)
            pathlib.Path(path + suffix).write_bytes(content)

    def read(self, path, options):
        self.state.reach(*content_of(path)[:2])
        return self

    def assert_existing_objects_matched(self):
        return self

    def expect_partial(self):
        return self


def content_of(path):
    """Returns attempt, step and record of a checkpoint."""
    data, index = (pathlib.Path(f"{path}{suffix}").read_bytes() for suffix in SUFFIXES)
    if index != b"%08x" % zlib.crc32(data):
        raise UnreadableError("cut", path=path)
    return json.loads(data)


def read(path):
    _, step, record = content_of(path)
    return Record(path, step, False, json.loads(record))


SPEC = mock.MagicMock(**{"content.return_value": {}, "changes.return_value": (), "spec.fields.return_value": {}})
STUBS = [
    mock.patch.object(manager.tf.train, "Checkpoint", Checkpoint),
    mock.patch.object(manager.RunSpec, "of", return_value=SPEC),
    mock.patch.object(manager.reader, "read", read),
    mock.patch.object(manager.file, "write", lambda path, groups: path.write_text("flags")),
]


class Runs(RuleBasedStateMachine):
    """Starts the same run again and again. It is deterministic, but for `trained_differently`.

    `attempts` has the attempt of each step up to that of the state; `steps` the checkpoints that have to be there.
    """

    @initialize(
        flags=st.fixed_dictionaries(
            {
                "checkpoint_every": st.sampled_from([0, 1, 2, 3]),
                "eval_every": st.integers(1, 3),
                "max_to_keep": st.integers(1, 2),
                "keep_best": st.integers(0, 2),
                "early_stopping": st.sampled_from([0, 0, 1, 2]),
            }
        ),
        steps_per_epoch=st.integers(2, 4),
        values=st.lists(st.sampled_from([0.1, 0.2, 0.3, math.nan]), min_size=4, max_size=7),
    )
    def begins(self, flags, steps_per_epoch, values):
        self.stubs = contextlib.ExitStack()
        for stub in STUBS:
            self.stubs.enter_context(stub)
        self.folder = pathlib.Path(tempfile.mkdtemp())
        self.config = TrainConfig.of(data_dir="D", model_dir=self.folder, **flags)
        self.flags, self.steps_per_epoch, self.values = self.config.steps, steps_per_epoch, values
        self.state, self.attempt, self.attempts = State(), 0, [0]
        self.steps, self.saving, self.damaged, self.was_damaged = [], None, set(), False

    def teardown(self):
        if hasattr(self, "folder"):
            with self.stubs:
                self.run()
                self.check_end()
                written = {file: file.stat().st_mtime_ns for file in self.folder.glob("ckpt-*")}
                self.run()
                self.check_end()
                assert {file: file.stat().st_mtime_ns for file in self.folder.glob("ckpt-*")} == written
            shutil.rmtree(self.folder)

    @rule(after=st.integers(0, LAST), operations=st.integers(0, 25), steps=st.sampled_from([0, LAST, LAST]))
    def is_killed(self, after, operations, steps):
        """Some changes of files after its start or a step, also while it saves because of a signal."""
        try:
            with contextlib.suppress(Killed):
                self.run(steps, before_evaluation=True, kill=(after, operations))
        finally:
            DISK.left = None

    @rule(steps=st.integers(0, LAST), before_evaluation=st.booleans())
    def is_stopped(self, steps, before_evaluation):
        self.run(steps, before_evaluation)

    @precondition(lambda self: not self.was_damaged)
    @rule()
    def is_trained_differently(self):
        """As with another learning rate."""
        self.attempt += 1

    @rule(which=st.sampled_from(["newest", "best", "list"]), suffix=st.sampled_from(SUFFIXES))
    def is_damaged(self, which, suffix):
        there, best = steps_in(self.folder), self.folder / "best"
        if which == "newest" and not self.attempt and len(set(there) - self.damaged) > 1:
            self.cut(path_of(self.folder, there[-1]), suffix)
            self.damaged.add(there[-1])
            self.was_damaged = True
        elif which == "best" and set(there[-1:]) & set(steps_in(best)):  # that of the step resumed from
            self.cut(path_of(best, there[-1]), suffix)
        elif which == "list":
            for one in (self.folder / "checkpoint", best / "checkpoint"):
                if one.exists():
                    one.write_text("" if suffix == ".index" else "rubbish {")

    def cut(self, path, suffix):
        file = path.with_name(f"{path.name}{suffix}")
        file.write_bytes(file.read_bytes()[: file.stat().st_size // 2])

    def run(self, steps=LAST + 1, before_evaluation=False, kill=None):
        """Runs a process as `trainer.training.Run` does, up to a signal after some steps, before or after its loop.

        `kill` is a number of steps, and one of changes of files after these.
        """
        state, evaluate = self.state, self.flags.eval_every
        if kill and not kill[0]:
            DISK.left = kill[1]
        state.reach(99, 99)
        spec = OrderSpec("d" * 64, "train", 0, 8, 1, 1 << 20, "pad", True)
        training = SimpleNamespace(spec=spec, steps_per_epoch=self.steps_per_epoch, parts=())
        evaluation = {"test": SimpleNamespace(spec=spec)}
        self.manager = CheckpointManager(
            self.config, training, evaluation, state, {}, is_chief=True, say=lambda line: None
        )
        if self.manager.restore():
            self.manager.complete_best()
        else:
            state.reach(0, 0)
        self.check_start()
        start, stop = state.step, state.step + steps
        evaluator = SimpleNamespace(
            evaluate=lambda: None if self.stopped else self.evaluation(), names=lambda: ["loss"]
        )
        evaluations = Evaluations(evaluator, self.manager.best, Output(rank=1), Period(evaluate), LAST, Callbacks())
        self.stopped = False
        if state.step < LAST and not self.manager.ends_early:
            self.stopped = not steps and before_evaluation
            self.stopped |= not evaluations.before(state.step)
            while not self.stopped and not self.manager.ends_early and state.step < LAST:
                state.reach(self.attempt, state.step + 1)
                self.attempts.append(self.attempt)
                if kill and state.step == start + kill[0]:
                    DISK.left = kill[1]
                self.stopped = before_evaluation and state.step >= stop
                if state.step % evaluate == 0:
                    evaluations.during(SimpleNamespace(step=state.step))
                if self.flags.checkpoint_every and state.step % self.flags.checkpoint_every == 0:
                    self.save()
                self.stopped |= state.step >= stop
            self.save()
        if not self.stopped or state.step == LAST:
            self.stopped = False
            evaluations.at_end(state.step)
            self.manager.tidy()

    def save(self):
        if not self.state.step:
            return self.manager.save()  # which has nothing to save
        self.saving = self.state.step
        self.manager.save()
        self.steps, self.saving = self.with_saved(), None
        self.damaged.discard(self.state.step)

    def with_saved(self):
        older = sorted({*(step for step in self.steps if step <= self.saving), self.saving})
        newer = [step for step in self.steps if step > self.saving]
        period = self.flags.period("checkpoint", self.steps_per_epoch)
        return [*kept(older, self.flags.max_to_keep, self.steps_per_epoch, period), *newer]

    def evaluation(self):
        return Evaluation("test", 9, 0, 0.5, {"accuracy": self.value(self.state.step)})

    def value(self, step):
        return self.values[(step + 5 * self.attempts[step]) % len(self.values)]

    def check_start(self):
        """The newest checkpoint is resumed from; those to keep are there, and the best as its ranking names them."""
        there = steps_in(self.folder)
        if self.saving is not None:  # in the process that was killed
            assert there in (self.steps, self.with_saved()) or self.was_damaged
            if self.saving in there:
                with contextlib.suppress(UnreadableError):
                    content_of(path_of(self.folder, self.saving))
                    self.damaged.discard(self.saving)
            self.steps = there if self.was_damaged else self.steps if there == self.steps else self.with_saved()
            self.saving = None
        assert there == self.steps
        step = max(set(there) - self.damaged, default=0)
        assert self.state.step == step
        del self.attempts[step + 1 :]
        assert self.state.attempt == self.attempts[step]
        for one in set(there) - self.damaged:
            if one <= step:
                assert self.is_whole(self.folder, one)
        assert not list(self.folder.glob("saving-*")) + list(self.folder.glob("best/saving-*"))
        if (
            self.manager.best and not self.was_damaged and step < LAST
        ):  # the last evaluation is made after the last save
            for one in self.manager.best.ranking.steps:
                assert self.is_whole(self.folder / "best", one)

    def is_whole(self, folder, step):
        return content_of(path_of(folder, step))[:2] == [self.attempts[step], step]

    def check_end(self):
        evaluated = [*range(self.flags.eval_every, LAST, self.flags.eval_every), LAST]
        best, stale, top, end = [], 0, None, LAST
        for step in evaluated:
            end, value = step, self.value(step)
            is_better = not math.isnan(value) and (top is None or value > top)
            top, stale = (value, 0) if is_better else (top, stale + 1)
            best += [] if math.isnan(value) else [(step, value)]
            if self.flags.early_stopping and stale >= self.flags.early_stopping:
                break
        best = sorted(best, key=lambda one: (-one[1], one[0]))[: self.flags.keep_best]
        assert (self.state.step, steps_in(self.folder)) == (end, self.steps)
        assert tf.train.latest_checkpoint(str(self.folder)) == str(path_of(self.folder, end))
        assert str(self.folder) not in (self.folder / "checkpoint").read_text()  # it may be moved
        if not self.flags.ranks:
            return
        ranking, folder = self.manager.best.ranking, self.folder / "best"
        assert (ranking.best, ranking.top, ranking.stale, ranking.evaluated) == (best, top, stale, end)
        if best:
            assert steps_in(folder) == sorted(one for one, _ in best)
            assert all(self.is_whole(folder, one) for one, _ in best)
            assert tf.train.latest_checkpoint(str(folder)) == str(path_of(folder, best[0][0]))


TestRuns = Runs.TestCase
TestRuns.settings = settings(max_examples=60, stateful_step_count=10, phases=[Phase.generate], deadline=None)


@pytest.mark.parametrize(
    ("flags", "values", "stopped", "after"),
    [
        # Between two checkpoints a better one replaces the best, which is neither of them.
        ({"checkpoint_every": 3, "eval_every": 1}, [0.1, 0.2, 0.1, 0.1, 0.3, 0.1, 0.1], 0, 4),
        # The only checkpoint is saved again, with the evaluation that a signal prevented.
        ({"checkpoint_every": 0, "eval_every": 2, "early_stopping": 1}, [math.nan] * 5, 2, 0),
    ],
)
def test_killed_at_each_change_of_a_file(flags, values, stopped, after):
    for operations in range(25):
        runs = Runs()
        flags = {"max_to_keep": 2, "keep_best": 1, "early_stopping": 0, **flags}
        Runs.begins(runs, flags=flags, steps_per_epoch=4, values=values)
        with runs.stubs:
            if stopped:
                Runs.is_stopped(runs, steps=stopped, before_evaluation=True)
            Runs.is_killed(runs, after=after, operations=operations, steps=LAST)
            runs.teardown()
