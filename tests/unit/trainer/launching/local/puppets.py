"""The processes of a job on this machine, as shells that follow a test's orders: real, and started instantly."""

from __future__ import annotations

import contextlib
import os
import pathlib
import time
from collections.abc import Sequence

from pipeline.commands import commandline
from trainer.launching.flags import launch_flags
from trainer.launching.job import Job
from trainer.launching.local.group import Group
from trainer.launching.local.guardian import Guardian
from trainer.launching.local.placement import Placement, Ports
from trainer.launching.local.process import Process
from trainer.launching.local.restarts import Records, Reporter
from trainer.launching.local.screen import Screen

SECONDS = 60.0  # within which anything happens, on a busy machine
# It runs the lines of a pipe next to its heartbeat file, and on SIGTERM ends like a trainer that has saved. `beat 7`
# writes a heartbeat of step 7, `beat 7 'worker 1'` one that says that worker 1 was lost; `rest` waits for SIGTERM and
# reads no more orders.
SCRIPT = r"""
beat() {
  beats=$((beats + 1))
  printf '{"pid": %d, "time": 0, "beats": %d, "phase": "training", "step": %d, "last_step": 90, "made": %d, "achieved": %d, "expects": "nothing", "lost": [%s]}' \
    $$ $beats $1 $1 $beats "${2:+\"$2\"}" > "$STEPFEED_HEARTBEAT.new"
  mv "$STEPFEED_HEARTBEAT.new" "$STEPFEED_HEARTBEAT"
}
rest() { sleep 1000 & wait; }
trap 'exit 75' TERM
exec 3<>"$STEPFEED_HEARTBEAT.orders"
while read -r order <&3; do eval "$order"; done
"""  # noqa: E501
PROGRAM = ("sh", "-c", SCRIPT)


class Puppets:
    """A job of such processes, and all that watches it; a context manager that ends them."""

    def __init__(self, folder: pathlib.Path, *flags: str, shares: Sequence[Sequence[str]] = ((),) * 4) -> None:
        """Makes a job of trainer.launch with some flags, in a folder; starts nothing."""
        self.job = Job.of(
            commandline.parse("launch", "", launch_flags(), flags),
            ("--data_dir=D", f"--model_dir={folder}", "--global_batch_size=24"),
        )
        launch = self.job.folder.launch
        for name in ("logs", "heartbeats"):
            (launch / name).mkdir(parents=True, exist_ok=True)
        self.placement = Placement(self.job, PROGRAM, tuple(map(tuple, shares)), any(shares), launch)
        self.records, self.screen = Records(self.placement), Screen()
        self.reporter = Reporter(self.records, self.screen, launch, lambda: [])
        self.guardian, self._ports = Guardian(5.0), Ports()
        self._orders: dict[str, int] = {}
        for task in self.placement.tasks(range(self.job.num_workers)):
            pipe = launch / "heartbeats" / f"{task.file}.json.orders"
            os.mkfifo(pipe)
            self._orders[task.name] = os.open(pipe, os.O_RDWR)  # orders are kept for processes that start later
        self._opened = contextlib.ExitStack()

    def __enter__(self) -> Puppets:
        """Starts the guardian."""
        self._opened.enter_context(self._ports)
        self._opened.enter_context(self.guardian)
        return self

    def __exit__(self, *error: object) -> None:
        """Ends all groups."""
        self._opened.close()
        for pipe in self._orders.values():
            os.close(pipe)

    def start(self, slots: Sequence[int] | None = None) -> Group:
        """Starts a group, which ends at the latest with this context."""
        self._ports.free()
        chosen = range(self.job.num_workers) if slots is None else slots
        group = Group(self.placement, chosen, self._ports, self.guardian, self.screen)
        self._opened.callback(group.close)
        return group

    def order(self, name: str, *lines: str) -> None:
        """Gives orders to a process, or to its successors; each start reads the next line."""
        os.write(self._orders[name], "".join(f"{line}\n" for line in lines).encode())

    def wait(self, group: Group, *names: str) -> list[Process]:
        """Follows a group until the processes with some names have ended; returns them."""
        found, end = [named(group, name) for name in names], time.monotonic() + SECONDS
        while any(one.exit_status is None for one in found):
            assert time.monotonic() < end, names
            time.sleep(0.002)
            group.poll()
            self.records.watch()
        return found

    def wait_for_step(self, group: Group, step: int) -> None:
        """Follows a group until it has made a step."""
        end = time.monotonic() + SECONDS
        while (group.step or 0) < step:
            assert time.monotonic() < end, group.step
            time.sleep(0.002)
            group.poll()
        self.records.watch()


def named(group: Group, name: str) -> Process:
    """Returns the newest process of a task."""
    return next(one for one in group.processes if one.task.name == name)


def state_of(pid: int) -> str:
    """Returns how the system calls a process's state: R, S, T (stopped), Z; X if it is gone."""
    try:
        return pathlib.Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
    except OSError:
        return "X"
