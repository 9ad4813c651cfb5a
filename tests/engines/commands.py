"""The converter as a process on some runner, and what is left of it."""

from __future__ import annotations

import hashlib
import os
import pathlib
import re
import time
from collections.abc import Callable, Sequence

from tests.engines import fetch
from tests.engines.failing import FAILING_HOW, FAILING_STATE
from tests.helpers import forked

DIGITS = ("--dataset=digits", "--num_shards=train:4,test:1")
FAILING = ["-c", "from tests.engines import failing; failing.main()"]
FLAGS = {
    "flink": ["--runner=FlinkRunner", "--flink_master=[local]", f"--flink_job_server_jar={fetch.job_server('flink')}"],
    "spark": ["--runner=SparkRunner", f"--spark_job_server_jar={fetch.job_server('spark')}"],
}


def start(
    out: pathlib.Path,
    *flags: str,
    how: str = "",
    what: Sequence[str] = DIGITS,
    folder: pathlib.Path = forked.ROOT,
) -> forked.Process:
    """Starts a conversion to `out` in a folder, in a session of its own; `how` a source fails is as in `failing`."""
    state, temporary = out.parent / f"{out.name}-state", out.parent / f"{out.name}-tmp"
    state.mkdir(exist_ok=True)
    temporary.mkdir(exist_ok=True)
    program = FAILING if how else ["-m", "beam_jobs.convert"]
    command = [*program, *what, f"--data_dir={out}", *flags]
    variables = {"TMPDIR": str(temporary), FAILING_STATE: str(state), FAILING_HOW: how}
    return forked.Process(command, {"PYTHONPATH": str(forked.ROOT)} | variables, folder)  # for Beam's workers, too


def convert(
    out: pathlib.Path,
    *flags: str,
    how: str = "",
    code: int = 0,
    what: Sequence[str] = DIGITS,
    folder: pathlib.Path = forked.ROOT,
    timeout: float = 240,
) -> str:
    """Runs a conversion in a folder to its end; returns its stderr."""
    process = start(out, *flags, how=how, what=what, folder=folder)
    _, stderr = process.communicate(timeout)
    assert process.returncode == code, stderr
    return stderr


def said(stderr: str) -> list[str]:
    """Returns the lines of stderr, but for the note that finished shards are kept."""
    return [line for line in stderr.splitlines() if not re.match(r"kept \d+ finished shards? in ", line)]


def readings(out: pathlib.Path) -> list[str]:
    """Returns `<split>-<first row>-<rows>.<process>...` of each time that a failing source was read for a shard."""
    return sorted(path.name for path in (out.parent / f"{out.name}-state").iterdir())


def digests(out: pathlib.Path) -> dict[str, str]:
    """Returns the SHA-256 of every file below a folder, hidden ones too; "" of card.html, which names the command."""
    return {
        str(path.relative_to(out)): "" if path.name == "card.html" else hashlib.sha256(path.read_bytes()).hexdigest()
        for path in out.rglob("*")
        if path.is_file()
    }


def left_of(process: forked.Process) -> dict[int, str]:
    """Returns {number: command line} of the processes that run in the session of `process`."""
    found = {}
    for folder in pathlib.Path("/proc").iterdir():
        if folder.name.isdigit():
            try:
                fields = (folder / "stat").read_text().rpartition(")")[2].split()
                line = (folder / "cmdline").read_text().replace("\0", " ")
            except OSError:  # it has ended
                continue
            if fields[3] == str(process.pid) and fields[0] != "Z":
                found[int(folder.name)] = line
    return found


def wait_for(condition: Callable[[], object], seconds: float) -> bool:
    """Waits until a condition holds; returns whether it did in time."""
    deadline = time.monotonic() + seconds
    while not condition():
        if time.monotonic() > deadline:
            return False
        time.sleep(0.05)
    return True


def temporaries(out: pathlib.Path) -> list[str]:
    """Returns the names of the temporary files that a conversion has left."""
    return sorted(os.listdir(out.parent / f"{out.name}-tmp"))
