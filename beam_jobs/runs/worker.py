"""A worker process of the in-process runner: Beam's own harness, silenced, which ends with the command.

`python -m beam_jobs.runs.worker PORT`, started by Beam where --direct_running_mode=multi_processing asks for it.
"""

from __future__ import annotations

import logging
import os
import signal
import sys

from beam_jobs.runs import lifeline


def main(port: int) -> None:
    """Serves bundles until the runner closes the channel or the command that listens on `port` ends."""
    # Ctrl-C reaches the terminal's whole process group; the command handles it and ends this process.
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    lifeline.hold(port)
    # An existing handler keeps Beam from logging to stderr; errors reach the runner through its own channel.
    logging.getLogger().addHandler(logging.NullHandler())
    from apache_beam.runners.worker import sdk_worker_main  # noqa: PLC0415 (2 s, in which the command may end)

    os.dup2(os.open(os.devnull, os.O_WRONLY), 2)  # its threads print tracebacks when the command is killed
    sdk_worker_main.main(sys.argv)


if __name__ == "__main__":
    main(int(sys.argv[1]))
