"""The tests' own environment, whatever started them."""

import json
import os
import signal
import subprocess
import sys

from tests.helpers.forked import ROOT

HOSTILE = {
    **{"TF_CONFIG": "{", "SLURM_JOB_ID": "7", "SLURM_PROCID": "1", "STEPFEED_HEARTBEAT": "/none", "FAKE": "{}"},
    **{"KUBERNETES_SERVICE_HOST": "10.0.0.1", "NO_COLOR": "1", "FORCE_COLOR": "1", "COLUMNS": "20", "TERM": "dumb"},
    **{"LANG": "tr_TR.ISO-8859-9", "LC_ALL": "tr_TR.ISO-8859-9", "KERAS_BACKEND": "jax", "AWS_PROFILE": "work"},
    **{"PYTHONOPTIMIZE": "2", "PYTHONUNBUFFERED": "1", "TZ": "Asia/Tokyo", "HTTP_PROXY": "http://10.0.0.1:1"},
}
INSIDE = """
import json, os, signal, tempfile, time
tempfile.gettempdir()
import tests.conftest
ignored = [signal.Signals(number).name for number in (1, 2, 15) if signal.getsignal(number) == signal.SIG_IGN]
mask, zone = os.umask(0), time.tzname[0]
found = {"ignored": ignored, "held": len(signal.pthread_sigmask(0, ())), "umask": mask, "zone": zone}
found["place"] = tempfile.gettempdir()
print(json.dumps({**found, "variables": dict(os.environ)}))
"""


def spoil():
    for number in (signal.SIGHUP, signal.SIGINT, signal.SIGTERM):
        signal.signal(number, signal.SIG_IGN)
    signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGTERM, signal.SIGUSR1})
    os.umask(0o077)


def test_tests_make_their_own_environment(tmp_path):
    place = tmp_path / "a place"
    place.mkdir()
    done = subprocess.run(
        [sys.executable, "-c", INSIDE],
        capture_output=True,
        text=True,
        check=True,
        cwd=ROOT,
        env=os.environ | HOSTILE | {"TMPDIR": str(place)},
        preexec_fn=spoil,
    )
    found = json.loads(done.stdout)
    variables = found.pop("variables")
    assert " " not in found.pop("place")
    assert found == {"ignored": [], "held": 0, "umask": 0o022, "zone": "UTC"}
    left = {name: variables[name] for name in HOSTILE if name in variables}
    assert left == {"LANG": "C.UTF-8", "TERM": "xterm", "TZ": "UTC", "HTTP_PROXY": HOSTILE["HTTP_PROXY"]}
    assert variables["NO_PROXY"].endswith("localhost,127.0.0.1,::1")
