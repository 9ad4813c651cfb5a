"""`--target=local`: checks what can be checked in advance, and runs the job on this machine."""

from __future__ import annotations

import contextlib
import os
import sys
import time
from collections.abc import Iterator, Sequence

from pipeline.commands import commandline
from pipeline.commands.text import count_of
from pipeline.errors import EXIT_RERUN, PipelineError, UsageError
from trainer import plan, run_folder
from trainer.checkpoint import files, fresh
from trainer.cluster import tf_config
from trainer.config.meaning import MULTIWORKER
from trainer.journal import STATUS, State
from trainer.launching.job import Job, check_sharing, shared, sharing
from trainer.launching.local.group import Group
from trainer.launching.local.guardian import Guardian
from trainer.launching.local.placement import Placement, Ports, divide_gpus, visible_gpus
from trainer.launching.local.process import PAGE, Process, Task
from trainer.launching.local.restarts import Records, Reporter, WorkerPool
from trainer.launching.local.screen import Screen, TableScreen
from trainer.launching.local.supervisor import Stopping, Supervisor

_MOST_PROCESSES = 64  # on a machine of up to 8 cores: each process loads TensorFlow
_CALLED = {"ps": "parameter server"}


def run(job: Job, program: Sequence[str] | None = None) -> None:
    """Runs a job to its end.

    Args:
      job: job to run.
      program: command that runs the trainer; for tests.

    Raises:
      UsageError: the job cannot run on this machine.
      DataError: its data cannot be read.
      RerunError: it was stopped, or another launcher is running it: rerun the same command.
      JobFailedError: the job failed.
    """
    placement, counts = _checked(job, tuple(program or (*_interpreter(), "trainer.run")))
    config = job.config
    with run_folder.held(job.folder, placement.folder, "runs a job"), Stopping() as stopping, fresh.advised(config):
        if config.run.fresh:  # once, by the launcher: a restarted process must resume
            with run_folder.held(job.folder):
                fresh.begin(config)
        hides_time = config.output.log_time is None
        screen = Screen(hides_time, job.folder.events)
        if sys.stderr.isatty() and os.environ.get("TERM") != "dumb":
            screen = TableScreen(hides_time, job.folder.events)
        try:
            _run(placement, counts, screen, stopping)
        finally:
            screen.close()


def _checked(job: Job, program: tuple[str, ...]) -> tuple[Placement, list[int]]:
    """Returns the placement of the processes, and the possible numbers of workers."""
    if os.environ.get(tf_config.VARIABLE, "").strip():
        raise UsageError(f"{tf_config.VARIABLE} is set, but the launcher gives each process its own; unset it")
    processes, most = sum(job.roles.values()), max(_MOST_PROCESSES, 8 * (os.cpu_count() or 1))
    if processes > most:
        raise UsageError(
            f"--num_workers={job.num_workers}, --num_ps={job.launch.job.num_ps}: {processes:,} processes, and this "
            f"machine with {os.cpu_count()} cores may have {most}; give fewer, or another --target"
        )
    found = visible_gpus()
    shares = divide_gpus(found, job.num_workers, job.launch.job.gpus_per_worker)
    counts = [job.num_workers]
    if job.strategy == MULTIWORKER:
        each = max(1, len(shares[0]))
        least, most = job.elastic or (job.num_workers, job.num_workers)
        counts = sharing(job.config.order, range(least, min(most, job.num_workers) + 1), each)
        if job.num_workers not in counts:
            check_sharing(job.config.order, job.num_workers, each)
    if not job.config.model.task:  # a task may parse its data, which needs TensorFlow
        plan.make(job.config, job.num_workers if job.strategy == MULTIWORKER else 1)
    folder = job.folder.launch
    files.check_to_train(job.folder, job.config.run.fresh)
    plan.prepare_folder("--model_dir", job.folder.path)
    for name in ("logs", "heartbeats"):
        plan.prepare_folder("--model_dir", folder / name)
    flags = (*job.flags, "--nofresh") if job.config.run.fresh else job.flags
    return Placement(job, (*program, *flags), tuple(shares), bool(found), folder), counts


def _run(placement: Placement, counts: list[int], screen: Screen, stopping: Stopping) -> None:
    job = placement.job
    pool = WorkerPool(counts, job.restarts.max_restarts, job.restarts.regrow_delay)
    page = Page(job, screen)
    reporter = Reporter(Records(placement), screen, placement.folder, lambda: pool.lost, page.look_after)
    _say_start(placement, counts, screen)
    with (
        Ports() as ports,
        Guardian(job.restarts.stop_timeout) as guardian,
        page.served(guardian),
        _reported(reporter, screen),
    ):

        def start(chosen: Sequence[int]) -> Group:
            ports.free()
            return Group(placement, chosen, ports, guardian, screen)

        Supervisor(pool, reporter, stopping).run(start)


def _interpreter() -> tuple[str, ...]:
    """Returns the command that runs one of our modules, with the current folder on its path if it is on ours."""
    safe = () if sys.path[:1] in ([""], [os.getcwd()]) else ("-P",)
    return (sys.executable, *safe, "-m")


@contextlib.contextmanager
def _reported(reporter: Reporter, screen: Screen) -> Iterator[None]:
    state: State = "failed"  # after any other exception
    code = 1
    try:
        yield
        state, code = "done", 0
        screen.note("done", "end")
    except PipelineError as error:
        state, code = "stopped" if error.exit_code == EXIT_RERUN else "failed", error.exit_code
        screen.note(f"{state}: {error}", "end" if state == "stopped" else "failure")
        raise
    finally:
        reporter.set(state, code)


def _say_start(placement: Placement, counts: list[int], screen: Screen) -> None:
    job = placement.job
    parts = [count_of(count, _CALLED.get(role, role)) for role, count in job.roles.items()]
    each = len(placement.shares[0])
    devices = f"{count_of(each, 'GPU')} per worker" if each else "CPUs"
    screen.say(
        f"{', '.join(parts)} on {devices}; logs in {placement.folder / 'logs'}; status in {placement.folder / STATUS}"
    )
    if job.elastic:
        skipped = [str(count) for count in range(job.elastic[0], job.elastic[1] + 1) if count not in counts]
        if skipped:
            what = "--virtual_replicas" if job.config.order.virtual_replicas else "--global_batch_size"
            divided = shared(job.config.order)
            screen.say(f"never {' or '.join(skipped)} workers, who cannot share {what}={divided}")


_NEVER_SILENT = 1e9  # seconds; the page writes no heartbeat


class Page:
    """The job's page, if --page was given, from a `trainer.watch` process, whose end is only reported in a line.

    It is a separate process because the launcher forks and so must not have threads, and because the page, which reads
    what other processes write, must not use up the launcher's memory.
    """

    def __init__(self, job: Job, screen: Screen) -> None:
        """Checks that the page can be served; see `served`.

        Raises:
          UsageError: a package is missing.
        """
        self._job, self._screen = job, screen
        self._process: Process | None = None
        if job.launch.job.page is not None:
            commandline.require("starlette", "uvicorn", "jinja2")

    @contextlib.contextmanager
    def served(self, guardian: Guardian) -> Iterator[None]:
        """Context in which the page is served, on the loopback interface."""
        port = self._job.launch.job.page
        if port is not None:
            command = [
                *_interpreter(),
                "trainer.watch",
                str(self._job.folder.path),
                *([f"--port={port}"] if port else []),
            ]
            try:
                self._process = Process(Task(PAGE, 0, 0), command, {}, self._job.folder.launch, guardian, _NEVER_SILENT)
            except OSError as error:
                self._screen.say(f"the page is not served: {error}")
        try:
            yield
        finally:
            self._close()

    def look_after(self) -> None:
        """Prints what the page's process reports: its address, or why it ended."""
        if (process := self._process) is None:
            return
        ended = process.poll()
        for line in process.out.lines(is_end=bool(ended)):
            self._screen.say(line)
        process.err.lines(is_end=bool(ended))
        if ended:
            why = f": {process.err.last[-1]}" if process.err.last else ""
            self._screen.say(f"the page {ended}{why}; the job continues without it", "failure")
            process.close()
            self._process = None

    def _close(self) -> None:
        if (process := self._process) is None:
            return
        self._process = None
        process.kill()
        while not process.poll():
            time.sleep(0.01)
        process.close()
