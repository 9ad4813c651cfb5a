"""The exit codes of a job's processes, in separate interpreters."""

import json
import subprocess
import sys

import pytest

_CODE = """
import sys
from pipeline.commands import commandline
from pipeline.errors import DataError
from trainer import run
from trainer.parameter_server import run as parts


def play(*_):
    {body}


parts._lead = parts._serve = play
commandline.run(run.COMMAND, run.main, sys.argv[1:])
"""


@pytest.mark.parametrize("job", ["chief", "worker", "ps"])
@pytest.mark.parametrize(
    ("body", "code", "last_line"),
    [
        ("return None", 0, None),
        ("raise DataError('a record is corrupt')", 1, "trainer.run: a record is corrupt"),
        ("raise RuntimeError('a bug')", 1, "RuntimeError: a bug"),
        ("raise KeyboardInterrupt", 130, "trainer.run: interrupted"),
        ("raise BrokenPipeError", 141, None),
    ],
    ids=["done", "error", "crash", "interrupt", "pipe"],
)
@pytest.mark.quick(4)
def test_a_process_that_crashed_does_not_look_finished(job, body, code, last_line, tmp_path, monkeypatch):
    hosts = {"chief": ["localhost:1"], "worker": ["localhost:2"], "ps": ["localhost:3"]}
    monkeypatch.setenv("TF_CONFIG", json.dumps({"cluster": hosts, "task": {"type": job, "index": 0}}))
    flags = ["--strategy=parameter_server", f"--data_dir={tmp_path / 'data'}", f"--model_dir={tmp_path / 'run'}"]
    command = [sys.executable, "-c", _CODE.format(body=body), *flags]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert (done.returncode, done.stderr.splitlines()[-1:]) == (code, [last_line] if last_line else [])
