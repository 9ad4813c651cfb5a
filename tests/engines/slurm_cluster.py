"""A real Slurm of two nodes: slurmctld, two slurmd and munged in namespaces of their own, which end with this process.

Each node is a network namespace with a name and an address, like a machine, so that a job's processes meet over a
network, and all nodes can use the same ports. The cluster also has its own mounts: nothing of this machine's
configuration is read or changed.
"""

from __future__ import annotations

import functools
import os
import pathlib
import shutil
import subprocess
import sys
from types import TracebackType
from typing import Self

from tests.engines import commands
from tests.engines.cluster import die_with_parent
from tests.helpers import forked

NODES = ("n1", "n2")
NEEDED = ("slurmctld", "slurmd", "sbatch", "munged", "ip", "nsenter", "unshare")
_NETWORK = "10.213.87"
_START_SECONDS = 60.0
_CONFIGURATION = """
ClusterName=tests
SlurmctldHost=control({network}.1)
SlurmUser=root
AuthType=auth/munge
AuthInfo=socket={folder}/munge.socket
ProctrackType=proctrack/linuxproc
TaskPlugin=task/none
SelectType=select/cons_tres
SelectTypeParameters=CR_Core
SlurmdParameters=config_overrides
ReturnToService=2
MailProg=/bin/true
StateSaveLocation={folder}/state
SlurmdSpoolDir={folder}/spool-%n
SlurmctldPidFile={folder}/slurmctld.pid
SlurmdPidFile={folder}/slurmd-%n.pid
{nodes}
PartitionName=main Nodes=ALL Default=YES State=UP
"""
# What runs as process 1 of the namespaces. A node lasts as long as the process that its namespaces were made for.
# munged is forced because nobody but this user can reach its socket, in a folder of pytest's.
_INIT = """
set -eu
cd {folder}
mount --bind hosts /etc/hosts
hostname control
ip link set lo up
ip link add bridge type bridge
ip address add {network}.1/24 dev bridge
ip link set bridge up
munged --force --foreground --key-file=$PWD/munge.key --socket=$PWD/munge.socket --pid-file=$PWD/munged.pid \\
    --log-file=$PWD/munged.log --seed-file=$PWD/munge.seed &
until [ -e munge.socket ]; do sleep 0.1; done
slurmctld -D &
for number in 1 2; do
    unshare --net --uts bash -c "hostname n$number; touch n$number.made; exec sleep infinity" &
    node=$!
    until [ -e n$number.made ]; do sleep 0.1; done
    ip link add outer$number type veth peer name inner$number
    ip link set inner$number netns $node
    ip link set outer$number master bridge up
    on_node() {{ nsenter --target $node --net --uts "$@"; }}
    on_node ip link set lo up
    on_node ip address add {network}.1$number/24 dev inner$number
    on_node ip link set inner$number up
    on_node slurmd -D -N n$number &
done
wait
"""


def missing() -> str:
    """Returns why there can be no cluster here; empty if there can."""
    if absent := [name for name in NEEDED if not shutil.which(name)]:
        return f"Slurm is not there: no {', '.join(absent)}; apt-get install slurm-wlm munge iproute2 brings it"
    done = subprocess.run(["unshare", "--mount", "--net", "--uts", "--pid", "--fork", "true"], check=False)
    return "needs namespaces, which only root may make" if done.returncode or os.geteuid() else ""


class SlurmCluster:
    """The cluster, and the commands of its users.

    Attributes:
      folder: folder that jobs are submitted in, shared by the nodes.
    """

    def __init__(self, folder: pathlib.Path) -> None:
        """Makes the folder; `__enter__` starts the processes."""
        folder.mkdir(parents=True)
        self.folder = folder
        files = folder / "slurm"
        (files / "state").mkdir(parents=True)
        (files / "munge.key").write_bytes(os.urandom(128))
        (files / "munge.key").chmod(0o400)
        addresses = {name: f"{_NETWORK}.1{number}" for number, name in enumerate(NODES, 1)}
        hosts = {"localhost": "127.0.0.1", "control": f"{_NETWORK}.1", **addresses}
        (files / "hosts").write_text("".join(f"{address} {name}\n" for name, address in hosts.items()))
        nodes = [f"NodeName={name} NodeAddr={address} CPUs=4 RealMemory=8000" for name, address in addresses.items()]
        text = _CONFIGURATION.format(network=_NETWORK, folder=files, nodes="\n".join(nodes))
        (files / "slurm.conf").write_text(text)
        (files / "init.sh").write_text(_INIT.format(folder=files, network=_NETWORK))
        # The jobs' `python` is this one, as in an activated environment.
        path = f"{pathlib.Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"
        more = {"PATH": path, "PYTHONPATH": str(forked.ROOT), "SLURM_CONF": str(files / "slurm.conf")}
        self._environment = os.environ | more
        self._files = files
        self._process: subprocess.Popen[bytes] | None = None

    def __enter__(self) -> Self:
        """Starts the daemons, and waits until the nodes are idle."""
        with open(self._files / "daemons.log", "wb") as log:
            self._process = subprocess.Popen(
                [
                    *("unshare", "--mount", "--net", "--uts", "--pid", "--fork", "--mount-proc", "--kill-child"),
                    *("bash", str(self._files / "init.sh")),
                ],
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=subprocess.STDOUT,
                env=self._environment,
                preexec_fn=die_with_parent,  # noqa: PLW1509
            )
        if not commands.wait_for(self._is_up, _START_SECONDS):
            said = (self._files / "daemons.log").read_text(errors="replace")[-2000:]
            self.__exit__(None, None, None)
            raise AssertionError(f"Slurm is not up after {_START_SECONDS} s: {said}")
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        """Kills process 1 of the namespaces, and thereby all others."""
        if self._process:
            self._process.kill()
            self._process.wait(10)

    def run(self, *command: str) -> str:
        """Runs one of Slurm's commands as a user of the cluster; returns its output."""
        inside = ["nsenter", f"--target={self._first}", "--mount", "--net", "--uts", "--pid", *command]
        done = subprocess.run(inside, capture_output=True, text=True, check=False, env=self._environment, timeout=60)
        assert done.returncode == 0, (command, done.stdout, done.stderr)
        return done.stdout

    def submit(self, script: str, **variables: str) -> Job:
        """Submits a script; the job has these variables in addition to those of this process."""
        path = self.folder / "job.sbatch"
        path.write_text(script)
        exported = ",".join(["ALL", *(f"{name}={value}" for name, value in variables.items())])
        number = self.run("sbatch", "--parsable", f"--chdir={self.folder}", f"--export={exported}", str(path))
        return Job(self, int(number))

    def trainers(self, node: str) -> list[int]:
        """Returns the training processes of a node."""
        found = []
        for path in pathlib.Path("/proc").glob("[0-9]*"):
            try:
                command = (path / "cmdline").read_bytes().split(b"\0")
                variables = (path / "environ").read_bytes().split(b"\0")
            except OSError:  # it has ended
                continue
            if command[1:3] == [b"-m", b"trainer.run"] and f"SLURMD_NODENAME={node}".encode() in variables:
                found.append(int(path.name))
        return found

    @functools.cached_property
    def _first(self) -> int:
        """The process id, on this machine, of process 1 of the namespaces."""
        assert self._process
        text = pathlib.Path(f"/proc/{self._process.pid}/task/{self._process.pid}/children").read_text()
        return int(text.split()[0])

    def _is_up(self) -> bool:
        try:
            return self.run("sinfo", "--noheader", "--format=%T %D").split() == ["idle", str(len(NODES))]
        except (AssertionError, IndexError):
            return False


class Job:
    """A submitted job."""

    def __init__(self, cluster: SlurmCluster, number: int) -> None:
        self._cluster, self.number = cluster, number

    def fields(self) -> dict[str, str]:
        """Returns the job's fields according to Slurm."""
        text = self._cluster.run("scontrol", "--oneliner", "show", "job", str(self.number))
        return dict(word.split("=", 1) for word in text.split() if "=" in word)

    def log(self) -> str:
        """Returns the job's output so far."""
        (path,) = [*self._cluster.folder.glob(f"*-{self.number}.log")] or [None]
        return path.read_text(errors="replace") if path else ""

    def wait_for(self, *words: str, seconds: float = 300.0) -> str:
        """Waits until the log contains these words in this order; returns the log."""

        def has_all() -> bool:
            begin, text = 0, self.log()
            for word in words:
                begin = text.find(word, begin)
                if begin < 0:
                    return False
            return True

        assert commands.wait_for(has_all, seconds), (words, self.fields(), self.log()[-3000:])
        return self.log()

    def wait(self, *states: str, seconds: float = 300.0) -> dict[str, str]:
        """Waits until the job is in one of these states; returns its fields according to Slurm."""
        assert commands.wait_for(lambda: self.fields()["JobState"] in states, seconds), (
            self.fields(),
            self.log()[-3000:],
        )
        return self.fields()

    def start_again(self) -> None:
        """Makes a requeued job start soon; by default, Slurm waits for two minutes.

        The wait is there so that no node takes it for the attempt that has just ended. Nodes compare whole seconds.
        """
        self.wait("PENDING", seconds=60.0)
        self._cluster.run("scontrol", "update", f"jobid={self.number}", "StartTime=now+5seconds")
        self.wait("RUNNING", "COMPLETED", "FAILED", seconds=90.0)

    def cancel(self) -> None:
        """Cancels the job, as its user would."""
        self._cluster.run("scancel", str(self.number))
