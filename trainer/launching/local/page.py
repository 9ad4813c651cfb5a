"""The page of a job (`--page`): `trainer.watch` as a process beside it, whose end is one line and nothing more."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Iterator

from pipeline.commands import commandline
from trainer.launching.job import Job
from trainer.launching.local.guardian import Guardian
from trainer.launching.local.process import PAGE, Process, Task, program
from trainer.launching.local.screen import Screen

_SILENT = 1e9  # seconds: it writes no heartbeat
_COMMAND = "trainer.watch"


class Page:
    """The page of a job; without --page, none.

    It is a process: the launcher forks, and so must have no other thread; nor can the page, which reads what other
    processes write, harm the job by using up memory.
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
            *interpreter, _ = program()
            command = [*interpreter, _COMMAND, str(self._job.folder.path), *([f"--port={port}"] if port else [])]
            try:
                self._process = Process(Task(PAGE, 0, 0), command, {}, self._job.folder.launch, guardian, _SILENT)
            except OSError as error:
                self._screen.say(f"the page is not served: {error}")
        try:
            yield
        finally:
            self._close()

    def look_after(self) -> None:
        """Shows what the page's process says: its address, or why it ended."""
        if (process := self._process) is None:
            return
        ended = process.poll()
        for line in process.out.lines(is_end=bool(ended)):
            self._screen.say(line)
        process.err.lines(is_end=bool(ended))
        if ended:
            why = f": {process.err.last[-1]}" if process.err.last else ""
            self._screen.say(f"the page {ended}{why}; the job goes on without it", "failure")
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
