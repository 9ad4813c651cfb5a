"""`RunSource`: follows the files that a run writes, and returns their content as a `Snapshot` and as curves.

A file that is missing, partial or damaged is named in the snapshot, which still has everything else.
"""

from __future__ import annotations

import contextlib
import math
import os
import pathlib
import re
import shlex
import socket
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, TypeVar

from pipeline.commands import aliases
from pipeline.errors import EXIT_RERUN, PipelineError, UsageError, name_of
from pipeline.files.fields import finite
from pipeline.files.reading import content_of
from pipeline.order_flags import order_in
from trainer import data_versions
from trainer.checkpoint.best import Ranking
from trainer.checkpoint.files import steps_in
from trainer.config import TrainConfig
from trainer.config.meaning import PARAMETER_SERVER
from trainer.journal import STATUS, Beat, Event, JobReport, ProcessReport, events_in, told
from trainer.run_folder import RunFolder
from trainer.watching import reading
from trainer.watching.event_files import EventFiles, MetricsLines, Series, Start
from trainer.watching.snapshot import LATE, Change, EvaluationRow, Member, Snapshot, straggler_of

_UNTOLD = JobReport(time=0.0, processes=())  # if there is no launcher
_UNHEARD = Beat(pid=0, time=0.0, phase="")  # of a process without a heartbeat
_ENDS = ("done", "stopped", "failed")
_EVALUATION = re.compile(r"eval/(?P<split>.+)/(?P<name>[^/]+)")
_PROCESS = re.compile(r"chief|(?:worker|ps)-\d+")  # other files belong to a scheduler's script
_NUMBERED = re.compile(r"(.*)-([0-9]{1,9})")
_MOST_EVENTS = 400
_MOST_POINTS = 1500  # points of a curve
_AGAIN = 30.0  # seconds after which a data set that could not be read is retried
_PAUSE = 0.02  # seconds between portions of large files

_Told = TypeVar("_Told", Beat, JobReport)


class RunSource:
    """Follows a run.

    Args:
      folder: folder of the run, which need not exist yet.
      name: name of the run.
      clock: function that returns the seconds since 1970; for tests.
      patience: maximum seconds that a snapshot spends on new content of growing files; a thread reads the rest, which
        snapshots mention until it is done.
    """

    def __init__(
        self, folder: pathlib.Path, name: str = "", clock: Callable[[], float] = time.time, patience: float = math.inf
    ) -> None:
        self.folder, name = RunFolder(folder), name or folder.name or str(folder)
        self.name = name.encode(errors="backslashreplace").decode()  # a folder name need not be UTF-8
        self._clock = clock
        self._events = EventFiles(self.folder.logs)
        self._evaluate = EventFiles(self.folder.evaluation_logs)
        self._lines: tuple[str, MetricsLines] | None = None
        self._problems: dict[str, str] = {}
        self._yaml: tuple[float, Mapping[str, Any] | None] = (0.0, None)
        self._data: tuple[TrainConfig, float, reading.Data | str] | None = None
        self._lock = threading.Lock()
        self._patience, self._catching_up = patience, False

    def snapshot(self) -> Snapshot:
        """Returns the current state according to the files."""
        with self._lock:
            self._problems = {}
            now = self._clock()
            try:
                self._follow()
                return self._snapshot(now)
            except Exception as error:  # whatever a run's files contain, the page must show the other runs
                why = f"this run cannot be shown: {type(error).__name__}: {' '.join(str(error).split())}"
                return Snapshot(self.name, now, "unknown", problems=(why,))

    def curves(self) -> dict[str, dict[str, list[Any]]]:
        """Returns the scalars, thinned if numerous: {tag: {"steps": [...], "times": [...], "values": [...]}}.

        Values that are not finite are None.
        """
        with self._lock:
            self._problems = {}
            self._follow()
            thinned = {tag: series.thinned(_MOST_POINTS) for tag, series in self._series.items() if series.steps}
        return {
            tag: {
                "steps": one.steps,
                "times": [when and round(when, 2) for when in finite(one.times)],
                "values": finite(one.values),
            }
            for tag, one in thinned.items()
        }

    @property
    def version(self) -> int:
        """A number that changes with the curves."""
        return sum(len(one.steps) for one in self._series.values())

    def image(self, number: int) -> bytes | None:
        """Returns an image from TensorBoard's files as a PNG; None if there is none with that number."""
        with self._lock:
            found = list(self._events.images.values())
        return found[number] if number < len(found) else None

    def config(self) -> TrainConfig | None:
        """Returns the run's flags, with data paths that are valid here; None if they are unknown."""
        with self._lock:
            self._follow()
            config = self._config()
            return config and self._placed(config)

    @property
    def _series(self) -> Mapping[str, Series]:
        own = self._events.series or (self._lines[1].series if self._lines else {})
        return {**own, **{f"evaluate: {tag}": one for tag, one in self._evaluate.series.items()}}

    def _follow(self) -> None:
        """Reads new content of growing files; leaves large amounts to a thread."""
        if not self._catching_up and not self._read_on():
            self._catching_up = True
            threading.Thread(target=self._catch_up, daemon=True).start()

    def _catch_up(self) -> None:
        """Reads in portions, so that snapshots and other runs need not wait."""
        while self._catching_up:
            time.sleep(_PAUSE)
            with self._lock:
                self._catching_up = False  # if reading fails, the next snapshot says why
                self._catching_up = not self._read_on()

    def _read_on(self) -> bool:
        """Reads for `patience` seconds; returns whether nothing is left."""
        until = time.monotonic() + self._patience
        is_all = self._events.update(until) and self._evaluate.update(until)
        path = (self._flags() or {}).get("output", {}).get("metrics_jsonl")
        if path and not self._events.series:  # --summary_every=0
            if self._lines is None or self._lines[0] != path:
                near = self.folder.path / pathlib.Path(path).name
                self._lines = path, MetricsLines(near if near.exists() else pathlib.Path(path))
            is_all = is_all and self._lines[1].update(until)
        return is_all

    def _snapshot(self, now: float) -> Snapshot:
        status, beats = self._status(), self._beats()
        if status and not _covers(status, beats):
            status = None
        beats = _of_this_job(status, beats, now)
        members = self._members(status, beats, now)
        config = self._config()
        data = self._data_of(config, now) if config else "the flags of the run are not known yet"
        known = data if isinstance(data, reading.Data) else None
        job = status or _UNTOLD
        logged = [series.steps[-1] for series in self._events_series().values() if series.steps]
        step = _greatest([job.step, *(one.step for one in members), *logged])
        last_step = _greatest([job.last_step, *(beat.last_step for beat in beats.values())])
        if last_step is None and known:
            last_step = known.last_step
        saved = self._checkpoints()
        step = _greatest([step, max(saved, default=None)])
        is_asynchronous = config is not None and config.run.strategy == PARAMETER_SERVER and not config.aggregation.sync
        speed, wait = self._speeds(members)
        evaluations, metric = self._evaluations(config)
        in_epoch = known.steps_per_epoch if known else None
        state = _state_of(status, members, beats, now, bool(step is not None or self._events.starts))
        if state in ("starting", "waiting"):  # the speed logged by an earlier process is outdated
            speed = wait = None
        left = (
            (last_step - step) * config.order.global_batch_size / speed
            if state == "training" and last_step and step is not None and speed and config
            else None
        )
        readings, note = self._readings(config, data, step, members)
        error = job.error or next((one.error for one in members if one.error), None)
        return Snapshot(
            run=self.name,
            time=now,
            state=state,
            kind=config.run.strategy if config else None,
            step=step,
            last_step=last_step,
            saved_step=max(saved, default=None),
            epoch=step / in_epoch if in_epoch and step is not None else None,
            epochs=last_step / in_epoch if in_epoch and last_step else None,
            loss=self._last("train/epoch_total_loss"),
            accuracy=self._last("train/epoch_accuracy"),
            examples_per_second=speed,
            input_wait=wait,
            seconds_left=left,
            restarts=job.restarts,
            max_restarts=job.max_restarts,
            error=error,
            elastic=job.elastic,
            lost=job.lost,
            members=tuple(members),
            straggler=straggler_of(members, not is_asynchronous),
            ledger={
                tag.removeprefix("ledger/"): int(series.last or 0)
                for tag, series in self._series.items()
                if tag.startswith("ledger/")
            },
            evaluations=evaluations,
            ranked_by=metric,
            checkpoints=tuple(saved),
            data=readings,
            data_note=note,
            flags=_flat(self._flags()),
            changes=tuple(_changes(self._events.starts)),
            events=self._all_events(status, beats, evaluations, metric),
            images=len(self._events.images),
            images_step=self._events.images_step,
            problems=self._all_problems(),
        )

    def _data_of(self, config: TrainConfig, now: float) -> reading.Data | str:
        """Returns the data of the run, or the reason why they are unknown; a failure is retried after a while."""
        if self._data is not None:
            of, when, data = self._data
            if of == config and (isinstance(data, reading.Data) or 0 <= now - when < _AGAIN):
                return data
        data = reading.data_of(self._placed(config))
        self._data = config, now, data
        return data

    def _placed(self, config: TrainConfig) -> TrainConfig:
        """Returns the flags with the data that the run trains on, regardless of where the page was started."""
        with contextlib.suppress(PipelineError, OSError):  # unknown before the first checkpoint
            return data_versions.pinned(config, order_in(self.folder.order), self.folder)
        return config

    def _status(self) -> JobReport | None:
        """Returns the launcher's status; None if there is no readable one."""
        return self._told(JobReport, self.folder.launch / STATUS, f"a status of {name_of('trainer.launch')}")

    def _beats(self) -> dict[str, Beat]:
        """Returns the last heartbeats by file name: `worker-1`."""
        found = {}
        with contextlib.suppress(OSError):
            for path in sorted(self.folder.heartbeats.glob("*.json"), key=lambda path: _numbered(path.stem)):
                if _PROCESS.fullmatch(path.stem):
                    found[path.stem] = self._told(Beat, path, "a heartbeat")
        return {name: beat for name, beat in found.items() if beat}

    def _told(self, kind: type[_Told], path: pathlib.Path, what: str) -> _Told | None:
        """Returns the report that a process wrote to a file; notes problems with the file, unless it is missing."""
        name = str(path.relative_to(self.folder.launch))
        try:
            return told(kind, content_of(path))
        except FileNotFoundError:
            return None
        except OSError as error:
            self._problems[name] = f"cannot be read: {error.strerror}"
        except ValueError:
            self._problems[name] = f"is not {what}"
        return None

    def _members(self, status: JobReport | None, beats: Mapping[str, Beat], now: float) -> list[Member]:
        processes = status.processes if status else [ProcessReport(name.replace("-", " ")) for name in beats]
        return [self._member(one, beats.get(one.name.replace(" ", "-")), now) for one in processes]

    def _member(self, one: ProcessReport, beat: Beat | None, now: float) -> Member:
        """Returns a process, given its heartbeat and its entry in the launcher's status, which may only have its name.

        The chief writes the steps of asynchronous workers as scalars.
        """
        (role, index), heard = _numbered(one.name.replace(" ", "-")), beat or _UNHEARD
        steps, seconds = (
            self._series.get(f"worker/{index}/{name}", Series()) if (one.role or role) == "worker" else Series()
            for name in ("steps", "seconds_per_step")
        )
        # The speed of an earlier process says nothing about this one.
        is_own = seconds.last is not None and seconds.times[-1] >= heard.started
        return Member(
            name=one.name,
            role=one.role or role,
            index=index,
            host=heard.host,
            devices=heard.devices,
            pid=one.pid or heard.pid or None,
            state=_state_of_process(one, beat, now),
            phase=one.phase or heard.phase,
            step=_greatest([one.step, heard.step]),
            heartbeat=beat.time if beat else None,
            restarts=one.restarts,
            error=one.last_error or heard.error or None,
            examples_per_second=heard.examples_per_second,
            seconds_per_step=seconds.last if is_own else heard.seconds_per_step,
            waited_per_step=heard.waited_per_step,
            exchanged_per_step=heard.exchanged_per_step,
            steps=None if steps.last is None else int(steps.last),
        )

    def _speeds(self, members: Sequence[Member]) -> tuple[float | None, float | None]:
        """Returns the job's examples per second and input wait, from the chief or the last logged values."""
        live = [one for one in members if one.state == "running" and one.examples_per_second is not None]
        if live:
            chief = next((one for one in live if one.role == "chief"), live[0])
            waits = [
                one.waited_per_step / one.seconds_per_step
                for one in live
                if one.seconds_per_step and one.waited_per_step is not None
            ]
            return chief.examples_per_second, max(waits, default=self._last("train/input_wait"))
        return self._last("train/examples_per_second"), self._last("train/input_wait")

    def _evaluations(self, config: TrainConfig | None) -> tuple[tuple[EvaluationRow, ...], str | None]:
        """Returns the evaluations of the run, and the metric that ranks them."""
        by_step: dict[int, tuple[float, dict[str, float]]] = {}
        splits = list(dict.fromkeys(m["split"] for tag in self._events_series() if (m := _EVALUATION.fullmatch(tag))))
        asked = config.data.eval_split if config else None
        split = asked if asked in splits else next(iter(splits), None)
        for tag, series in self._events_series().items():
            if (match := _EVALUATION.fullmatch(tag)) and match["split"] == split:
                for step, when, value in zip(series.steps, series.times, series.values, strict=True):
                    by_step.setdefault(step, (when, {}))[1][match["name"]] = value
        steps = config.steps if config else None
        ranking = Ranking(len(by_step), 0, steps.best_metric if steps else None, steps.best_mode if steps else "auto")
        with contextlib.suppress(UsageError):
            for step, (_, values) in sorted(by_step.items()):
                ranking.add(step, values.get("loss", math.nan), values)
        ranks = {step: rank for rank, step in enumerate(ranking.steps, 1)}
        kept = steps_in(self.folder.best)
        rows = [
            EvaluationRow(step, when, values, ranks.get(step), step in kept)
            for step, (when, values) in sorted(by_step.items())
        ]
        return tuple(rows), ranking.metric if rows else None

    def _events_series(self) -> Mapping[str, Series]:
        return {tag: one for tag, one in self._series.items() if not tag.startswith("evaluate: ")}

    def _readings(
        self, config: TrainConfig | None, data: reading.Data | str, step: int | None, members: Sequence[Member]
    ) -> tuple[tuple[Any, ...], str]:
        if isinstance(data, str):
            return (), data
        assert config is not None
        workers = [one for one in members if one.role in ("worker", "chief")]
        names, replicas, note = [one.name for one in workers], sum(max(1, len(one.devices)) for one in workers), ""
        if config.run.strategy == PARAMETER_SERVER:
            names, replicas = ["the job"], 1
            note = "each worker keeps the whole split in memory, and is handed one step after the other"
        elif not workers:
            names, replicas = ["the job"], config.run.num_replicas or 1
        try:
            return data.read_at(step or 0, names, replicas), note
        except (PipelineError, OSError) as error:
            return (), str(error)

    def _checkpoints(self) -> list[int]:
        with contextlib.suppress(OSError):
            return steps_in(self.folder.path)
        return []

    def _all_events(
        self,
        status: JobReport | None,
        beats: Mapping[str, Beat],
        evaluations: Sequence[EvaluationRow],
        metric: str | None,
    ) -> tuple[Event, ...]:
        found = list(self._job_events())
        changes = {change.time: change for change in _changes(self._events.starts)}
        for start in self._events.starts:
            what = "training begins" if start.step == 0 else f"training resumes from step {start.step:,}"
            flags = changes[start.time].flags if start.time in changes else ()
            also = "; changed: " + ", ".join(f"--{name} {was} → {now}" for name, was, now in flags) if flags else ""
            found.append(Event(start.time, "start", f"{what}, on {start.host}{also}"))
        for step in self._checkpoints():
            with contextlib.suppress(OSError):
                path = self.folder.path / f"ckpt-{step}.index"
                found.append(Event(path.stat().st_mtime, "checkpoint", f"checkpoint of step {step:,}"))
        best = math.inf
        for row in evaluations:
            if row.rank is not None and row.rank < best:
                best = row.rank
                # The ranking metric comes first: the best by accuracy may have a worse loss than an earlier one.
                others = ", ".join(f"{name} {value:.4f}" for name, value in row.values.items() if name != metric)
                said = f"best {metric} so far: {row.values.get(str(metric), math.nan):.4f}"
                also = f" ({others})" if others else ""
                found.append(Event(row.time, "best", f"step {row.step:,}: {said}{also}"))
        if status is None:
            for name, beat in beats.items():
                if beat.exit_code is not None:
                    said = f"ended: {beat.error}" if beat.error else "is done"
                    kind = "failure" if beat.exit_code not in (0, EXIT_RERUN) else "end"
                    found.append(Event(beat.time, kind, f"{name.replace('-', ' ')} {said}"))
        return tuple(sorted(found, key=lambda event: event.time)[-_MOST_EVENTS:])

    def _job_events(self) -> Iterator[Event]:
        """Yields the events recorded by the launcher."""
        try:
            yield from events_in(self.folder.events)
        except FileNotFoundError:
            return
        except OSError as error:
            self._problems[self.folder.events.name] = f"cannot be read: {error.strerror}"

    def _flags(self) -> Mapping[str, Mapping[str, Any]] | None:
        """Returns the flags by group from the first of these that exists: last start, last checkpoint, launcher."""
        begun = next((start.flags for start in reversed(self._events.starts) if start.flags), None)
        if known := begun or self._stored_flags():
            return known
        status = self._status()
        return status.flags if status else None

    def _stored_flags(self) -> Mapping[str, Any] | None:
        path = self.folder.config
        try:
            written = path.stat().st_mtime
        except OSError:
            return None
        if written != self._yaml[0]:
            content: Any = None
            try:
                import yaml  # noqa: PLC0415, only runs without TensorBoard's files need it

                content = yaml.safe_load(content_of(path).decode())
            except ImportError:
                self._problems[path.name] = "needs PyYAML, which is not installed, to be read"
            except (OSError, ValueError, RecursionError, yaml.YAMLError):
                content = None
            is_right = isinstance(content, dict) and all(isinstance(one, dict) for one in content.values())
            self._yaml = written, content if is_right and content else None
        if self._yaml[1] is None:
            self._problems.setdefault(path.name, "has no flags of a run")
        return self._yaml[1]

    def _config(self) -> TrainConfig | None:
        if (groups := self._flags()) is None:
            return None
        try:
            return TrainConfig.of_stored(groups)
        except (PipelineError, TypeError, ValueError, AttributeError) as error:
            self._problems["flags"] = f"cannot be used: {' '.join(str(error).split())}"
            return None

    def _last(self, tag: str) -> float | None:
        series = self._series.get(tag)
        value = series.last if series else None
        return value if value is not None and math.isfinite(value) else None

    def _all_problems(self) -> tuple[str, ...]:
        found = dict(self._problems)
        found |= self._events.problems | self._evaluate.problems | (self._lines[1].problems if self._lines else {})
        if self._catching_up:
            found["logs"] = "are long, and are still being read: curves and numbers are not the newest yet"
        if not self.folder.path.is_dir():
            found[str(self.folder.path)] = "is not there"
        elif not self._events.starts and not self._lines and not self._catching_up:
            found["logs"] = "has no files of TensorBoard (yet): there are no curves"
        return tuple(f"{name} {what}" for name, what in found.items())


def _numbered(name: str) -> tuple[str, int]:
    """Returns (`worker`, 1) for `worker-1`; (name, 0) for other names."""
    match = _NUMBERED.fullmatch(name)
    return (match[1], int(match[2])) if match else (name, 0)


def _covers(status: JobReport, beats: Mapping[str, Beat]) -> bool:
    """Whether a launcher's status covers the newest process, which may be of a later job or outlive its launcher."""
    newest = max(beats.values(), key=lambda beat: beat.time, default=_UNHEARD)
    # Earlier releases wrote no job id, but the launcher lists its processes.
    is_of_job = newest.job == status.job if status.job else newest.pid in [one.pid for one in status.processes]
    return newest.time <= status.time + (2 * LATE if is_of_job else 0.0)


def _of_this_job(status: JobReport | None, beats: Mapping[str, Beat], now: float) -> dict[str, Beat]:
    """Returns the heartbeats without leftovers of an earlier job in the folder."""
    if status is not None:
        pids = {one.name.replace(" ", "-"): one.pid for one in status.processes}
        return {name: beat for name, beat in beats.items() if name in pids and beat.pid == pids[name]}
    # At some moment all processes of a job run together: one that ended before the others began is from another job.
    # Once none is running, the newest heartbeat shows when the last job began.
    newest = max(beats.values(), key=lambda beat: beat.time, default=None)
    alive = [beat.started for beat in beats.values() if _is_alive(beat, now)]
    began = min(alive, default=newest.started if newest else 0.0)
    return {name: beat for name, beat in beats.items() if beat.time >= began}


def _is_alive(beat: Beat, now: float) -> bool:
    return beat.exit_code is None and now - beat.time <= LATE + beat.quiet


def _state_of_process(one: ProcessReport, beat: Beat | None, now: float) -> str:
    if beat and beat.exit_code is not None:
        return {0: "done", EXIT_RERUN: "stopped"}.get(beat.exit_code, "failed")
    if one.state == "ended":
        return "failed" if one.last_error else "ended"
    if beat and not _is_alive(beat, now):
        return "gone" if beat.host == socket.gethostname() and not _runs(beat.pid) else "silent"
    return "running"


def _runs(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except (ProcessLookupError, OverflowError):  # OverflowError: the number in the file is not a process id
        return False
    except OSError:
        pass
    return True


def _state_of(
    status: JobReport | None, members: Sequence[Member], beats: Mapping[str, Beat], now: float, is_begun: bool
) -> str:
    if status is not None:
        is_old = now - status.time > 2 * LATE
        return "silent" if is_old and status.state not in _ENDS else status.state
    running = [one for one in members if one.state == "running"]
    if running:
        return "training" if any(one.step is not None for one in running) else "starting"
    if not members:
        return "silent" if is_begun else "nothing"
    states = {one.state for one in members}
    return next((state for state in ("silent", "gone", "failed", "stopped") if state in states), "done")


def _greatest(values: Sequence[int | None]) -> int | None:
    return max((value for value in values if value is not None), default=None)


def _flat(groups: Mapping[str, Mapping[str, Any]] | None) -> dict[str, str]:
    """Returns flags by name, with values as text; unset flags are omitted."""
    return {name: _text(value) for name, value in aliases.stored(groups or {}).items() if value is not None}


def _text(value: Any) -> str:
    return shlex.quote(value) if isinstance(value, str) else "unset" if value is None else str(value)


def _changes(starts: Sequence[Start]) -> Iterator[Change]:
    """Yields the flags that differ from the previous start."""
    before: Mapping[str, Any] | None = None
    for start in starts:
        if start.flags is None:
            continue
        flags = aliases.stored(start.flags)
        if before is not None:
            names = [name for name in flags if name in before and flags[name] != before[name]]
            if names:
                changed = tuple((name, _text(before[name]), _text(flags[name])) for name in names)
                yield Change(start.step, start.time, changed)
        before = flags
