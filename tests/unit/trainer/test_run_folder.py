import fcntl
import os
import pathlib
import re
import signal
import socket
import subprocess
import sys

import pytest

from pipeline.errors import DataError, RerunError
from trainer import run_folder
from trainer.run_folder import RunFolder

ROOT = pathlib.Path(__file__).resolve().parents[3]
HOLDER = """
import pathlib, sys, time
from trainer.run_folder import RunFolder, held
with held(RunFolder(pathlib.Path(sys.argv[1]))):
    print("held", flush=True)
    time.sleep(60)
"""


@pytest.fixture
def holder(tmp_path):
    program = [sys.executable, "-c", HOLDER, str(tmp_path)]
    with subprocess.Popen(program, cwd=ROOT, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout.readline() == "held\n"
        yield process
        process.kill()


def test_a_second_job_is_told_who_holds_the_folder_until_that_is_dead(tmp_path, holder):
    who = rf"--model_dir={tmp_path}: process {holder.pid} on {re.escape(socket.gethostname())} "
    with pytest.raises(RerunError, match=who), run_folder.held(RunFolder(tmp_path)):
        pass
    holder.send_signal(signal.SIGKILL)
    holder.wait()
    (tmp_path / run_folder.LOCK).write_text("a long name " * 9)
    with run_folder.held(RunFolder(tmp_path)):
        assert (tmp_path / run_folder.LOCK).read_text() == f"process {os.getpid()} on {socket.gethostname()}\n"


def test_the_same_process_may_train_again(tmp_path):
    for _ in range(2):
        with run_folder.held(RunFolder(tmp_path)), pytest.raises(RerunError), run_folder.held(RunFolder(tmp_path)):
            pass


def test_a_file_system_that_cannot_lock_is_no_obstacle(tmp_path, monkeypatch):
    def fails(*_):
        raise OSError(95, "Operation not supported")

    monkeypatch.setattr(fcntl, "flock", fails)
    with run_folder.held(RunFolder(tmp_path)):
        pass


def test_a_folder_that_is_gone(tmp_path):
    with (
        pytest.raises(DataError, match=r"\.trainer\.lock: .*: No such file"),
        run_folder.held(RunFolder(tmp_path / "x")),
    ):
        pass
