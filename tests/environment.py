"""The environment of all tests and their processes, whatever the shell, the job or the service that started them.

What differs between machines and is not set here a test sets itself: commands found by PATH (tests/helpers/slurm.py),
files in HOME, the size of a terminal.
"""

from __future__ import annotations

import os
import pathlib
import signal
import tempfile
import time

# Variables that our programs, or libraries below them, read. A job of Slurm or Kubernetes, a terminal and a CI service
# set them for what they start, which is not what a test starts.
_READ_BY_PROGRAMS = (
    *("AWS_", "FAKE", "GRPC_", "KERAS_", "KMP_", "KUBERNETES_", "LC_", "OMP_"),
    *("PMI", "PYTHON", "SBATCH_", "SLURM", "SRUN_", "STEPFEED_", "TF_", "TFDS_", "XLA_"),
    *("CLICOLOR", "COLORTERM", "COLUMNS", "FORCE_COLOR", "LANGUAGE", "LINES", "NO_COLOR", "PY_COLORS"),
    *("MALLOC_", "MPLBACKEND", "POSIXLY_CORRECT", "TASK_INDEX", "TERM_"),
)
_KEPT = ("PYTHONHOME", "PYTHONPATH", "PYTHONPYCACHEPREFIX")  # where Python and packages are
_SET = {
    "LANG": "C.UTF-8",
    "TERM": "xterm",
    "TZ": "UTC",
    "TF_CPP_MIN_LOG_LEVEL": "3",
    # The user's files with settings: Keras' is made there when it is missing.
    "KERAS_HOME": os.devnull,
    "AWS_CONFIG_FILE": os.devnull,
    "AWS_SHARED_CREDENTIALS_FILE": os.devnull,
    "AWS_EC2_METADATA_DISABLED": "true",
}
STARTUP = pathlib.Path(__file__).with_name("startup")
_LOCAL = ("localhost", "127.0.0.1", "::1")  # servers that tests start; a proxy would not find them
_UMASK = 0o022
_PYTHON_IGNORES = (signal.SIGPIPE, signal.SIGXFSZ)  # in itself, not in what it starts


def make() -> None:
    """Makes it for this process and those that it starts."""
    for name in list(os.environ):
        if name.startswith(_READ_BY_PROGRAMS) and name not in _KEPT:
            del os.environ[name]
    if " " in tempfile.gettempdir():  # many tests split command lines at spaces
        for name in ("TMPDIR", "TEMP", "TMP"):
            os.environ.pop(name, None)
        tempfile.tempdir = None
    os.environ.update(_SET)
    paths = [str(STARTUP), str(STARTUP.parents[1]), *os.environ.get("PYTHONPATH", "").split(os.pathsep)]
    os.environ["PYTHONPATH"] = os.pathsep.join(dict.fromkeys(filter(None, paths)))
    time.tzset()
    for name in ("NO_PROXY", "no_proxy"):
        os.environ[name] = ",".join(filter(None, (os.environ.get(name), *_LOCAL)))
    os.umask(_UMASK)
    # A shell's background job ignores SIGINT, nohup's SIGHUP; and so would every process that a test interrupts.
    for number in signal.valid_signals():
        if signal.getsignal(number) == signal.SIG_IGN and number not in _PYTHON_IGNORES:
            signal.signal(number, signal.default_int_handler if number == signal.SIGINT else signal.SIG_DFL)
    signal.pthread_sigmask(signal.SIG_SETMASK, ())
