"""`python -m trainer.replay`: repeats a step of a run and shows its batch, or compares the bits of checkpoints.

The input is a function of the step, and the update a function of the state, so a checkpoint before the step is all this
needs. It only reads the run's folder.

Exit codes: 0 done; 1 the data or a checkpoint is bad, or the bits differ; 2 a flag is invalid; 130 Ctrl-C.
"""

from __future__ import annotations

import dataclasses
import functools
import json
import math
import pathlib
import re
import sys
import tempfile
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, NamedTuple, NoReturn

import numpy as np
from numpy.typing import NDArray

from pipeline import step_rows
from pipeline.commands import aliases, commandline
from pipeline.commands.flags import check, check_all, check_ending, check_needs, flag
from pipeline.commands.text import count_of, table
from pipeline.errors import DataError, UsageError, name_of, named
from pipeline.files.fields import finite
from pipeline.manifest import succession
from pipeline.manifest.sources import VIEWS, flags_for
from trainer import lazy_imports, loop
from trainer import plan as plans
from trainer.callbacks.base import Callbacks
from trainer.callbacks.terminal import Output
from trainer.checkpoint import files
from trainer.cluster import tf_config
from trainer.cluster.interrupt import Interrupt
from trainer.config import TrainConfig, meaning
from trainer.config.meaning import MULTIWORKER, PARAMETER_SERVER
from trainer.config.run import OF_ONE_PROCESS, ClusterFlags
from trainer.config.train_config import changed_flags
from trainer.run_folder import RunFolder

if TYPE_CHECKING:
    from trainer.checkpoint.reader import Record
    from trainer.task import Task

COMMAND = "trainer.replay"
_DESCRIPTION = (
    "Makes a step of a run again from the checkpoint before it, and shows the loss of each row of its batch, the rows "
    "that stand out, and the gradient's norm; or compares the bits of a run's checkpoints. It only reads the run."
)
_NEWEST = "newest"
_WIDE = 5.0  # standard deviations of a normal distribution
_OF_MAD, _OF_MEAN = 1.4826, 1.2533  # median and mean absolute deviation, times this: standard deviation


@dataclasses.dataclass(frozen=True)
class ReplayConfig:
    """Steps are counted from 0, as in pipeline.inspect: the trainer's lines call the state after step 7 `step 8`."""

    model_dir: str = flag(text=f"folder of a run of {name_of('trainer.run')}; it may be training")
    step: int | None = flag(None, "repeat this step, and show its batch", least=0)
    verify: str | None = flag(
        None,
        "FROM:TO, steps of checkpoints: replay from one to the other, and compare the bits of each in between; 0: the "
        "first weights; without a value: the two newest",
        bare=_NEWEST,
    )
    from_start: bool = flag(False, "for --step: begin with the first weights, which follow from the seed", needs="step")
    context: int = flag(
        20, "number of steps before --step whose gradients' norms are shown, too", least=0, needs="step"
    )
    rows: int = flag(50, "largest number of rows of --step to list, by descending loss", least=1, needs="step")
    data_dir: str | None = flag(None, "folder where the run's data are now (None: where they were)")
    strategy: str | None = flag(
        None, "strategy that computes (None: the run's; for workers, mirrored)", known=OF_ONE_PROCESS
    )
    num_replicas: int | None = flag(
        None, "number of replicas that compute (None: as many as in the run)", least=1, most=1024
    )
    png: str | None = flag(
        None, "picture to draw of the rows of --step, as stored and as trained on, by descending loss", needs="step"
    )
    json: bool = flag(False, "print one JSON object instead of tables")

    def __post_init__(self) -> None:
        check_all(
            lambda: check(self), self._check_one, lambda: check_ending("png", self.png, ".png"), lambda: self.span
        )

    def _check_one(self) -> None:
        if self.step is not None and self.verify is not None:
            raise UsageError(f"--step={self.step} and --verify={self.verify}: give one of them")
        if self.step is None and self.verify is None:
            raise UsageError("--step=NUMBER or --verify: is missing; see --help")
        if self.json and self.rows != ReplayConfig.rows:
            raise UsageError(f"--rows={self.rows} with --json: is for the table; JSON has all rows")
        check_needs(self, step=f"is for --step, not for --verify={self.verify}")

    @property
    def folder(self) -> RunFolder:
        """The layout of --model_dir."""
        return RunFolder(pathlib.Path(self.model_dir))

    @property
    def span(self) -> tuple[int, int] | None:
        """FROM and TO in --verify; None for the two newest checkpoints."""
        if self.verify in (None, _NEWEST):
            return None
        match = re.fullmatch(r"(\d{1,18}):(\d{1,18})", self.verify or "")
        if not match or int(match[1]) >= int(match[2]):
            raise UsageError(f"--verify={self.verify}: must be FROM:TO, the steps of two checkpoints, such as 400:500")
        return int(match[1]), int(match[2])


def main(argv: Sequence[str] | None = None) -> None:
    """Runs the command.

    Raises:
      PipelineError: any error that a user can cause; a DataError if bits differ.
    """
    config = commandline.parse(COMMAND, _DESCRIPTION, ReplayConfig, argv)
    commandline.require("tensorflow")
    files.check_run_folder(config.folder)
    files.candidates(config.folder.path, None)
    with lazy_imports.loading():
        from trainer.cluster import failures  # noqa: PLC0415, here because it loads TensorFlow

    with failures.in_one_line(1):
        if config.step is None:
            _verify(config)
        else:
            _show(config, config.step)


class Replay:
    """A run repeated in this process, from one of its checkpoints or its first weights.

    Attributes:
      config, plan: flags and plan of the run.
      strategy: strategy whose replicas compute.
      state: model, optimizer and step.
      stepper: step of the run.
      origin: name of the starting point: `ckpt-400`, or `the first weights`.
      first: global step of the starting point.
    """

    def __init__(self, flags: ReplayConfig, record: Record) -> None:
        """Builds the model and the step of the run that wrote a checkpoint.

        Raises:
          DataError: the data are gone, or have changed.
          UsageError: the run cannot be repeated, or a flag is invalid.
        """
        from trainer.checkpoint import resume  # noqa: PLC0415, as in `main`
        from trainer.checkpoint.manager import CheckpointManager  # noqa: PLC0415, as in `main`
        from trainer.cluster import strategies  # noqa: PLC0415, as in `main`
        from trainer.task import Task  # noqa: PLC0415, as in `main`
        from trainer.training import AllReduceRun  # noqa: PLC0415, as in `main`

        config = _config(flags, record)
        task = lazy_imports.load_task(config.model.task) or Task
        plan = _plan(flags, config, record, task)
        strategies.configure(config)
        run = AllReduceRun(config, plan, tf_config.ALONE, Interrupt(COMMAND), Output(rank=1), Callbacks())
        run.build(task)
        self.config, self.plan = run.config, run.plan
        self.strategy, self.state, self.stepper = run.strategy, run.state, run.stepper
        self._batches = functools.partial(loop.Batches, run.plan, run.batches)
        say, training = functools.partial(print, file=sys.stderr), run.plan.training
        # It acts as a worker that is not the chief, so that it writes nothing.
        self._checkpoints = CheckpointManager(run.config, training, {}, run.state, run.parts, is_chief=False, say=say)
        if changes := resume.code_changes(record.content, run.config):
            say(f"changed since {record.path.name}: {'; '.join(changes)}")
        self.origin, self.first = "the first weights", 0
        self._folder = flags.folder.path

    @property
    def step(self) -> int:
        """The global step that the state has reached."""
        return self.state.step

    @property
    def where(self) -> str:
        """Text on the replicas and devices that compute."""
        from trainer.cluster import strategies  # noqa: PLC0415, as in `main`

        replicas = count_of(self.strategy.num_replicas_in_sync, "replica")
        return f"{replicas} on {', '.join(strategies.device_names(self.strategy))}"

    def changes_at(self, step: int) -> list[str]:
        """Returns changes of flags and order made when the run continued from a step's checkpoint.

        Raises:
          UnreadableError: the checkpoint cannot be read.
        """
        from trainer.checkpoint import reader  # noqa: PLC0415, as in `main`

        stored = reader.read(files.path_of(self._folder, step)).content
        order = self.plan.training.spec.differences(stored["order"], step)
        others = [f"{name} was {was}, is {now}" for name, (now, was) in order.items()]
        past, later = self.plan.phases.changes(stored, step)
        if later and self.config.optimizer.ends and self.plan.phases.ends_otherwise(stored, step):
            past = later
        return [*changed_flags(stored["config"], self.config), *([past] if past else []), *others]

    def is_skipped(self, step: int) -> bool:
        """Whether --skip_steps includes a step."""
        return self.plan.training.spec.is_skipped(step)

    def begin(self, upto: int | None) -> None:
        """Restores the newest checkpoint up to a step, or begins with the first weights if the step is None.

        Raises:
          DataError: no checkpoint can be read.
          UsageError: the checkpoint's model or optimizer differs from what the code now builds.
        """
        if upto is None:
            self.state.initialize(self.strategy)
            return
        restored = self._checkpoints.restore(upto)
        assert restored is not None
        self.origin, self.first = restored.name, self.step

    def advance(self, stop: int) -> None:
        """Makes all updates up to a step.

        Raises:
          DataError: a loss or weight is NaN or infinite.
        """
        if self.step == stop:
            return
        batches, most = self._batches(), self.config.steps.steps_per_loop
        while (left := stop - self.step) > 0:
            ahead = self.plan.phases.next_after(self.step) - self.step
            _check_finite(self.stepper.run(batches.at(self.step), int(min(left, most, ahead))))

    def norms(self, stop: int) -> dict[int, float]:
        """Makes the updates up to a step one by one; returns each gradient's norm before clipping.

        Raises:
          DataError: a loss or weight is NaN or infinite.
        """
        from trainer.step.summaries import NORM  # noqa: PLC0415, as in `main`

        found: dict[int, float] = {}
        batches = self._batches()
        while (step := self.step) < stop:
            result = self.stepper.run(batches.at(step), 1, frozenset([NORM]))
            _check_finite(result)
            found[step] = float(result.norm)
        return found

    def last(self) -> tuple[dict[str, float], float, NDArray[Any], NDArray[Any]]:
        """Makes one update; returns its values by name, its gradient's norm, and each row's loss and weight."""
        from trainer.step.summaries import NORM  # noqa: PLC0415, as in `main`

        batches = self._batches(record_ids=True)
        result, rows = self.stepper.run_one(batches.at(self.step), frozenset([NORM]), has_records=True)
        losses, weights = (
            np.concatenate([one.numpy().reshape(-1) for one in part]) for part in (rows.losses, rows.weights)
        )
        values = dict(zip(result.names, result.values.numpy().tolist(), strict=True))
        return values, float(result.norm), losses, weights

    def save(self, path: str) -> None:
        """Writes the variables in the form of the run's checkpoints."""
        import tensorflow as tf  # noqa: PLC0415, as in `main`

        tf.train.Checkpoint(**self.state.trackable()).write(path)

    def names(self) -> dict[str, str]:
        """Returns {tensor name in a checkpoint: name of its variable}, weights first; other tensors keep theirs."""
        state = self.state
        weights = [variable.path for variable in state.model.trainable_variables]
        lists = {
            **{"averages/_weights": weights, "optimizer/_trainable_variables": weights},
            "optimizer/_variables": [variable.path for variable in state.optimizer.variables],
            "averages/values": [f"the average of {name}" for name in weights],
        }
        return {f"{where}/{i}": name for where, names in lists.items() for i, name in enumerate(names)}


def _check_finite(result: Any) -> None:
    if not bool(result.finite):
        step = int(result.step) - 1
        raise DataError(
            f"step {step}: its loss, or a weight after it, is NaN or infinite; --step={step} shows its rows"
        )


def _config(flags: ReplayConfig, record: Record) -> TrainConfig:
    """Returns the run's config, adapted to the replicas of this process."""
    stored = TrainConfig.of_stored(record.content["config"])
    strategy, count = stored.run.strategy, flags.num_replicas or stored.run.num_replicas
    if strategy == PARAMETER_SERVER:
        raise UsageError(
            f"{flags.folder}: is a run with --strategy={PARAMETER_SERVER}, whose steps depend on which worker was "
            "first; they cannot be repeated"
        )
    if strategy == MULTIWORKER:
        count = count or len(ClusterFlags.hosts(stored.cluster.worker_hosts)) or None
        if count is None and stored.order.virtual_replicas is None:
            raise UsageError(f"{flags.folder}: its checkpoints do not say how many workers it had; give --num_replicas")
        strategy = "mirrored"
    strategy = flags.strategy or ("mirrored" if strategy == "one_device" and (count or 1) > 1 else strategy)
    given: dict[str, Any] = {"model_dir": flags.model_dir, "strategy": strategy, "num_replicas": count}
    given["virtual_replicas"] = stored.order.virtual_replicas  # bits depend on it
    if flags.data_dir is not None:
        moved = flags_for(flags.data_dir, aliases.stored(record.content["config"]))
        given |= {"data_dir": flags.data_dir, **{name: moved.get(name) for name in VIEWS}}
        given["mixture_schedule"] = moved.get("mixture_schedule") or ""
    # The order is compared below; whatever a resumed run was allowed to change was changed on purpose.
    changes = {**meaning.in_replay(TrainConfig), "allow_order_change": True}
    return TrainConfig.of_stored(record.content["config"], **{**changes, **given})


def _plan(flags: ReplayConfig, config: TrainConfig, record: Record, task: type[Task]) -> plans.Plan:
    advice = "the run's data: if they have moved, give --data_dir"
    if flags.data_dir is None:
        succession.check_trained_on(config.data.sources, record.content["order"], record.path)
    try:
        plan = plans.make(config, task=task)
    except DataError as error:
        raise (error if flags.data_dir else error.advised(advice)) from None
    changes = [
        f"{name} was {str(was)[:12]}, is {str(now)[:12]}"
        for name, (now, was) in plan.training.spec.differences(record.content["order"]).items()
    ]
    if changes:
        raise DataError(
            f"--data_dir={config.data.data_dir}: is not what {record.path} was trained on: {'; '.join(changes)}; give "
            "the data that it was trained on"
        )
    return plan


def _record_of(folder: RunFolder, step: int) -> Record:
    """Returns the record of the first checkpoint after a step, written by the run that made it, or else the newest."""
    from trainer.checkpoint import reader  # noqa: PLC0415, as in `main`

    saved = files.steps_in(folder.path)
    later = [one for one in saved if one > step]
    for at in [*later, *reversed(saved)]:
        try:
            return reader.read(files.path_of(folder.path, at))
        except reader.UnreadableError as error:
            print(error.skipped, file=sys.stderr)
    raise DataError(f"{folder}: none of its {len(saved)} checkpoints can be read")


class Judged(NamedTuple):
    """The losses of a step that stand out.

    Attributes:
      median, deviation: median, and 1.4826 times the median absolute deviation, of the finite losses.
      bound: threshold above which losses stand out, as do losses that are not finite.
      stands_out: whether each loss stands out, bool (rows,).
    """

    median: float
    deviation: float
    bound: float
    stands_out: NDArray[np.bool_]


def judged(losses: NDArray[Any]) -> Judged:
    """Returns which losses stand out: above the median by more than 5 times 1.4826 MAD, or not finite.

    MAD is the median absolute deviation from the median, which up to half of the rows cannot move far. It is 0 if more
    than half of the losses are equal; then 1.2533 times the mean absolute deviation takes its place (Iglewicz and
    Hoaglin, "How to detect and handle outliers", 1993).
    """
    finite = losses[np.isfinite(losses)].astype(np.float64)
    if not len(finite):
        return Judged(math.nan, math.nan, math.nan, np.ones(len(losses), bool))
    median = float(np.median(finite))
    away = np.abs(finite - median)
    deviation = float(_OF_MAD * np.median(away)) or float(_OF_MEAN * np.mean(away))
    bound = median + _WIDE * deviation
    return Judged(median, deviation, bound, ~np.isfinite(losses) | (losses > bound))


def _show(config: ReplayConfig, step: int) -> None:
    saved = files.steps_in(config.folder.path)
    before = [one for one in saved if one <= step]
    if not before and not config.from_start:
        raise UsageError(
            f"--step={step}: {config.folder} has no checkpoint before it, the oldest is ckpt-{saved[0]}; --from_start "
            "begins with the first weights"
        )
    replay = Replay(config, _record_of(config.folder, step))
    plan = replay.plan
    if step >= plan.last_step:
        raise UsageError(f"--step={step}: the run ends with step {plan.last_step - 1}")
    if replay.is_skipped(step):
        skips = replay.config.order.skip_steps
        raise UsageError(f"--step={step}: the run skipped it (--skip_steps={skips}), so that it changed nothing")
    _begin(replay, config, before, step)
    replay.advance(max(replay.step, step - config.context))
    norms = {at: norm for at, norm in replay.norms(step).items() if not replay.is_skipped(at)}
    values, norm, losses, weights = replay.last()
    rows = step_rows.rows_of_step(plan.input_at(step), step, replay.strategy.num_replicas_in_sync)
    real = weights > 0
    found = judged(losses[real])
    stands_out = np.zeros(len(losses), bool)
    stands_out[real] = found.stands_out
    # NaN counts as the largest.
    order = [row for row in np.argsort(-np.nan_to_num(losses, nan=np.inf), kind="stable").tolist() if real[row]]
    shown = _Shown(replay, step, values, norm, norms, losses, found, stands_out, [rows[row] for row in order])
    print(json.dumps(shown.as_json(config.model_dir)) if config.json else "\n".join(shown.lines(config.rows)))
    if config.png is not None:
        names = plan.training.first.class_names
        notes = {row.row: f"loss {losses[row.row]:.2g}" for row in shown.rows}
        title = f"step {step}, by falling loss: above as stored, below as trained on; framed: stand out"
        sheet = step_rows.sheet_of(shown.rows, title, names, notes, np.flatnonzero(stands_out).tolist())
        with named(f"--png={config.png}", "cannot be written"):
            sheet.save(config.png)


def _begin(replay: Replay, config: ReplayConfig, before: Sequence[int], step: int) -> None:
    """Restores a checkpoint from which the run reached a step without changing flags or order.

    `before` contains the steps of the checkpoints up to that step.
    """
    from trainer.checkpoint import reader  # noqa: PLC0415, as in `main`

    # Preferably one before the step, so that there is an earlier step to compare it with.
    origin = None if config.from_start else max([one for one in before if one < step], default=step)
    if origin is not None and origin < step == before[-1] and replay.changes_at(step):
        origin = step
    replay.begin(origin)
    for one in (one for one in reversed(before) if one > replay.first):
        try:
            changes = replay.changes_at(one)
        except reader.UnreadableError as error:
            print(
                f"{error.skipped} If the run continued from it with other flags, this is not its step.", file=sys.stderr
            )
            continue
        if changes:
            advice = "leave out --from_start" if config.from_start else f"{replay.origin} does not lead to this step"
            raise UsageError(
                f"--step={step}: after ckpt-{one} the run continued with other flags ({'; '.join(changes)}); {advice}"
            )


@dataclasses.dataclass(frozen=True, eq=False)
class _Shown:
    """A repeated step: its values, the norms of its gradient and of earlier ones, and its rows' losses.

    `losses` and `stands_out` cover all rows of the batch, `rows` only real rows, by descending loss.
    """

    replay: Replay
    step: int
    values: dict[str, float]
    norm: float
    norms: dict[int, float]
    losses: NDArray[Any]
    judged: Judged
    stands_out: NDArray[np.bool_]
    rows: list[step_rows.Row]

    def lines(self, most: int) -> list[str]:
        training, step = self.replay.plan.training, self.step
        epoch, at = divmod(step, training.steps_per_epoch)
        count, deviation = int(self.stands_out.sum()), self.judged.deviation / _OF_MAD
        listed = [
            [
                ("loss", f"{_short(self.losses[row.row])}{' *' if self.stands_out[row.row] else '  '}"),
                *step_rows.cells_of(row, training),
            ]
            for row in self.rows[:most]
        ]
        left = len(self.rows) - len(listed)
        return [
            f"step {step}, whose update the trainer's lines call step {step + 1}; epoch {epoch}, its step {at} of "
            f"{training.steps_per_epoch}",
            f"replayed {count_of(step - self.replay.first, 'step')} from {self.replay.origin}; {self.replay.where}",
            *self._phase(),
            ", ".join(f"{name} {_short(value)}" for name, value in self.values.items()),
            f"gradient norm {self.norm:.4g}{self._beside()}",
            f"{count} of {count_of(len(self.rows), 'row')} {'stand' if count != 1 else 'stands'} out (*): loss above "
            f"{self.judged.bound:.4g} = median {self.judged.median:.4g} + {_WIDE:g} x {_OF_MAD} x MAD {deviation:.4g}",
            "",
            *table(listed, left=("key", "label", "shard")),
            *(
                [f"and {count_of(left, 'more row')} of smaller loss: --rows={len(self.rows)} lists them"]
                if left
                else []
            ),
        ]

    def _phase(self) -> list[str]:
        phases = self.replay.plan.phases
        return [phases.at(self.step)] if phases.are_given else []

    def _beside(self) -> str:
        if not self.norms:
            return "; there is no step before it to compare with"
        norms = list(self.norms.values())
        median = float(np.median(norms))
        times = f", {self.norm / median:.3g} times that" if median else ""
        first, last = min(self.norms), max(self.norms)
        steps = f"step {first} to {last}" if norms[1:] else f"step {last}"
        least = f"{min(norms):.4g} to " if norms[1:] else ""
        return f"; {steps}: {least}{max(norms):.4g}, median {median:.4g}{times}"

    def as_json(self, model_dir: str) -> dict[str, Any]:
        training, names = self.replay.plan.training, self.replay.plan.training.first.class_names
        epoch, at = divmod(self.step, training.steps_per_epoch)
        rows = [
            {
                "loss": float(self.losses[row.row]),
                "stands_out": bool(self.stands_out[row.row]),
                **step_rows.json_of(row, names),
            }
            for row in self.rows
        ]
        rule = {"median": self.judged.median, "mad": self.judged.deviation / _OF_MAD, "bound": self.judged.bound}
        found = {
            **{"model_dir": model_dir, "step": self.step, "epoch": epoch, "step_of_epoch": at},
            **{"from": self.replay.origin, "from_step": self.replay.first},
            "replicas": self.replay.strategy.num_replicas_in_sync,
            **({"phase": self._phase()[0]} if self._phase() else {}),
            **{"values": self.values, "norm": self.norm, "norms_before": self.norms, **rule, "rows": rows},
        }
        return {name: finite(value) for name, value in found.items()}


def _short(value: float) -> str:
    return f"{value:.4f}" if abs(value) < 1e4 else f"{value:.4g}"


def _verify(config: ReplayConfig) -> None:
    """Replays from one checkpoint to another, and compares the bits of each one in between."""
    from trainer.checkpoint import reader  # noqa: PLC0415, as in `main`

    first, stop = _span(config)
    path = config.folder.path
    between = [step for step in files.steps_in(path) if first < step <= stop]
    last = reader.read(files.path_of(path, stop))
    replay = Replay(config, last)
    for step in reversed(between):  # a checkpoint has the flags of the run that led to it
        if others := replay.changes_at(step):
            raise UsageError(
                f"--verify={first}:{stop}: after ckpt-{step} the run continued with other flags ({'; '.join(others)}); "
                f"verify up to there: --verify={first}:{step}"
            )
    replay.begin(first if first in files.steps_in(path) else None)
    compared: list[dict[str, Any]] = []
    for step in between:
        replay.advance(step)
        with tempfile.TemporaryDirectory(prefix="replay-") as scratch:
            replay.save(f"{scratch}/{files.PREFIX}")
            stored, own = str(files.path_of(path, step)), f"{scratch}/{files.PREFIX}"
            count, differences = reader.compare(stored, own, replay.names())
        found = {"checkpoint": f"ckpt-{step}", "tensors": count, "differences": [one._asdict() for one in differences]}
        compared.append(found)
        made = f"ckpt-{step}: {step - replay.first:,} steps after {replay.origin}"
        if not differences and not config.json:
            print(f"{made}, all bits of {count_of(count, 'tensor')} agree; {replay.where}", flush=True)
        if differences:
            break
    if config.json:
        print(json.dumps({"from": replay.origin, "from_step": first, "equal": not differences, "compared": compared}))
    if differences:
        many = f"; {len(differences)} of its {count_of(count, 'tensor')} differ"
        raise DataError(f"{made}, is not what the replay gives: {differences[0]}{many}")


def _span(config: ReplayConfig) -> tuple[int, int]:
    saved = files.steps_in(config.folder.path)
    if config.span is None:
        if len(saved) < 2:
            raise UsageError(
                f"--verify: {config.folder} has one checkpoint, ckpt-{saved[0]}; --verify=0:{saved[0]} begins with the "
                "first weights"
            )
        return saved[-2], saved[-1]
    for step in config.span:
        if step not in saved and not step == config.span[0] == 0:
            known = ", ".join(map(str, saved))
            raise UsageError(f"--verify={config.verify}: {config.folder} has no ckpt-{step}; there are {known}")
    return config.span


def entry_point() -> NoReturn:
    """The console script."""
    commandline.run(COMMAND, main)


if __name__ == "__main__":
    entry_point()
