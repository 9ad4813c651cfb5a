"""Runs a program of another language beside the command, and ends it with the command.

`python -m beam_jobs.runs.supervisor PORT FOLDER PROGRAM ...`, started by `beam_jobs.runs.job_server`. A Java process
holds no lifeline itself, so it would outlive a killed command with its job, its ports and its temporary files.
"""

from __future__ import annotations

import contextlib
import pathlib
import shutil
import signal
import subprocess
import sys
import threading
from typing import NoReturn

from beam_jobs.runs import lifeline

OUTPUT = "output.txt"  # in the folder: the program's output, to report why it ended
ENDED = "exit_code.txt"  # in the folder, once the program has ended by itself
_WRITE_SECONDS = 1.0


def main(port: int, folder: pathlib.Path, program: list[str]) -> NoReturn:
    """Runs the program; ends it, and this process, when the command that listens on `port` does.

    The folder, for its output and temporary files, is removed at the end.
    """
    # Ctrl-C reaches the terminal's whole process group; the command handles it and ends this process and its child.
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    with open(folder / OUTPUT, "wb") as output:
        process = subprocess.Popen(program, stdin=subprocess.DEVNULL, stdout=output, stderr=subprocess.STDOUT)
    said = threading.Event()

    def end() -> None:
        process.kill()
        process.wait()
        said.wait(_WRITE_SECONDS)  # else that file could be created while the folder is removed
        shutil.rmtree(folder, ignore_errors=True)

    lifeline.hold(port, end)
    code = process.wait()
    with contextlib.suppress(OSError):
        (folder / ENDED).write_text(str(code))
    said.set()
    threading.Event().wait()  # the line's thread ends this process
    raise AssertionError


if __name__ == "__main__":
    main(int(sys.argv[1]), pathlib.Path(sys.argv[2]), sys.argv[3:])
