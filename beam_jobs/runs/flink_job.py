"""Cancels a job on a Flink cluster when the command that submitted it ends, in any way.

`python -m beam_jobs.runs.flink_job PORT URL NAME`, started by `watch`. Beam does not cancel a job on a cluster, whether
the job server submitted it or an uber jar: it would keep writing shards beside a conversion that was started again.
"""

from __future__ import annotations

import contextlib
import functools
import json
import signal
import subprocess
import sys
import threading
import time
import urllib.request
from typing import Any, NoReturn

from beam_jobs.runs import lifeline

_ENDED = {"FINISHED", "CANCELED", "FAILED"}
_CALL_SECONDS = 2.0
_CANCEL_SECONDS = 4.0  # less than the command waits for its workers
_POLL_SECONDS = 0.1


def watch(port: int, url: str, name: str) -> None:
    """Starts a process that cancels the job `name` when the command that listens on `port` ends."""
    subprocess.Popen([sys.executable, "-m", __name__, str(port), url, name], stdin=subprocess.DEVNULL)


def main(port: int, url: str, name: str) -> NoReturn:
    """Waits for the end of the command that listens on `port`, and cancels its job."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C reaches the whole group; the command ends this process
    lifeline.hold(port, functools.partial(cancel, url, name))
    threading.Event().wait()  # the line's thread ends this process
    raise AssertionError


def cancel(url: str, name: str) -> None:
    """Cancels the job of this name, if it runs, and returns once it has ended, or after a few seconds.

    Args:
      url: of the job manager's REST interface.
      name: of the job, which no other job has.
    """
    deadline = time.monotonic() + _CANCEL_SECONDS
    with contextlib.suppress(OSError, ValueError):  # the cluster itself is gone
        while job := _running(url, name):
            if job["state"] != "CANCELLING":
                _call("PATCH", f"{url}/v1/jobs/{job['jid']}?mode=cancel")
            if time.monotonic() > deadline:
                return
            time.sleep(_POLL_SECONDS)


def _running(url: str, name: str) -> dict[str, Any] | None:
    jobs = json.loads(_call("GET", f"{url}/v1/jobs/overview"))["jobs"]
    return next((job for job in jobs if job["name"] == name and job["state"] not in _ENDED), None)


def _call(method: str, url: str) -> bytes:
    with urllib.request.urlopen(urllib.request.Request(url, method=method), timeout=_CALL_SECONDS) as answer:
        content: bytes = answer.read()
    return content


if __name__ == "__main__":
    main(int(sys.argv[1]), sys.argv[2], sys.argv[3])
