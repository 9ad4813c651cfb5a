"""A stopped worker, and the message of the process that kills it."""

import signal

import pytest

from tests.helpers import forked

STANDS_STILL = """
import signal
from pipeline import errors
from trainer.cluster.tf_config import Cluster
from trainer.parameter_server.worker_client import WorkerClient

errors.SUBCOMMANDS.update({commands})
roles = Cluster(("a:1", "b:2"), 1, ("c:3",))
client = WorkerClient(roles, [], 1.0, 0.2, None, None, None)
with client._guarded():
    signal.pause()
"""


@pytest.mark.parametrize(
    ("commands", "name"), [({}, "trainer.run"), ({"trainer.run": "stepfeed train"}, "stepfeed train")]
)
def test_its_guard_names_the_command_as_the_user_typed_it(commands, name):
    done = forked.run(["-c", STANDS_STILL.format(commands=commands)])
    assert done.returncode == -signal.SIGKILL, done.stderr
    assert done.stderr.startswith(f"{name}: worker 1 (b:2) was stopped, or stuck, for 0.2 s (--collective_timeout), ")
    assert done.stderr.endswith("; rerun the same command to take part again\n")
