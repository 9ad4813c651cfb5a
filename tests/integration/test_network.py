"""A machine that is cut off from the others: nothing is closed, no one is notified; there is only silence.

Two hosts of the kernel's own (network namespaces) and a cable between them, which is pulled.
"""

import os
import re
import signal
import subprocess
import sys
import time
import uuid

import pytest

from tests.helpers.forked import ROOT

T = 20  # --collective_timeout
BOUND = 3 * T  # on a loaded machine
HERE, THERE = "10.77.0.1", "10.77.0.2"
FLAGS = (
    "--model=lenet",
    "--augment=shift",
    "--global_batch_size=96",
    "--checkpoint_every=200",
    "--log_every=100",
    f"--collective_timeout={T}",
)


def ip(*arguments):
    return subprocess.run(["ip", *arguments], capture_output=True, text=True, check=True)


class Hosts:
    """Two hosts with a cable, and the processes on them by name."""

    def __init__(self, folder):
        self._folder = folder
        self._names = {address: f"t{uuid.uuid4().hex[:8]}" for address in (HERE, THERE)}
        self.processes = {}
        here, there = self._names.values()
        ip("netns", "add", here)
        ip("netns", "add", there)
        ip("-n", here, "link", "add", "cable", "type", "veth", "peer", "name", "cable", "netns", there)
        for address, name in self._names.items():
            ip("-n", name, "addr", "add", f"{address}/24", "dev", "cable")
            for link in ("lo", "cable"):
                ip("-n", name, "link", "set", link, "up")

    def start(self, name, address, *flags):
        """Starts `trainer.run` on a host."""
        program = [sys.executable, "-m", "trainer.run", *FLAGS, *flags]
        variables = {"PYTHONUNBUFFERED": "1"}
        with open(self._folder / name, "w") as output:
            self.processes[name] = subprocess.Popen(
                ["ip", "netns", "exec", self._names[address], *program],
                env=os.environ | variables,
                cwd=ROOT,
                stdout=output,
                stderr=subprocess.STDOUT,
            )

    def said(self, name):
        return (self._folder / name).read_text()

    def pull_at(self, name, step):
        """Pulls the cable once a process has logged a step."""
        self.pull_when(name, lambda: re.search(rf"^step {step},", self.said(name), re.MULTILINE))

    def pull_when(self, name, is_time):
        """Pulls the cable once a function says so of a process."""
        end = time.monotonic() + 120
        while not is_time():
            assert time.monotonic() < end, self.said(name)
            assert self.processes[name].poll() is None, self.said(name)
            time.sleep(0.1)
        ip("-n", self._names[THERE], "link", "set", "cable", "down")

    def ends(self, *names):
        """Returns {name: (exit code, last line)} of processes; each ends within BOUND."""
        end = time.monotonic() + BOUND
        codes = {name: self.processes[name].wait(max(end - time.monotonic(), 0.1)) for name in names}
        return {name: (code, self.said(name).splitlines()[-1]) for name, code in codes.items()}

    def close(self):
        for process in self.processes.values():
            process.kill()
            process.wait()
        for name in self._names.values():
            ip("netns", "del", name)


@pytest.fixture
def hosts(tmp_path):
    (tmp_path / "said").mkdir()
    try:
        made = Hosts(tmp_path / "said")
    except (OSError, subprocess.CalledProcessError) as error:
        pytest.skip(f"needs network namespaces, which root has, and `ip` of iproute2: {error}")
    yield made
    made.close()


def start_parameter_servers(hosts, data_dir, model_dir, ps, workers, *flags):
    addresses = {"ps": [f"{ps}:5200"], "worker": [f"{host}:{5201 + n}" for n, host in enumerate(workers)]}
    flags = [*flags, *(f"--{job}_hosts={','.join(given)}" for job, given in addresses.items())]
    flags += [f"--data_dir={data_dir}", f"--model_dir={model_dir}", "--strategy=parameter_server"]
    for job, given in addresses.items():
        for index, address in enumerate(given):
            more = (*flags, f"--job_name={job}", f"--task_index={index}", "--train_steps=3000")
            hosts.start(f"{job} {index}", address.split(":")[0], *more)


@pytest.mark.slow
def test_both_sides_of_a_cut_end_and_name_what_to_do(hosts, digits, tmp_path):
    flags = ("--strategy=multiworker", f"--worker_hosts={HERE}:5100,{THERE}:5100", "--train_steps=100000")
    for index, address in enumerate((HERE, THERE)):
        more = (f"--data_dir={digits}", f"--model_dir={tmp_path}/run", f"--task_index={index}")
        hosts.start(f"worker {index}", address, *flags, *more)
    hosts.pull_at("worker 0", 200)
    for code, line in hosts.ends("worker 0", "worker 1").values():
        assert code == 75
        assert re.fullmatch(
            r"trainer\.run: lost (another worker|the chief|worker 1) \(.+\); rerun the same commands on all 2 to "
            "resume from the last checkpoint",
            line,
        )
    assert (tmp_path / "run/ckpt-200.index").exists()


@pytest.mark.slow
def test_a_parameter_server_that_is_cut_off_ends_the_job(hosts, digits, tmp_path):
    start_parameter_servers(hosts, digits, tmp_path / "run", THERE, (HERE, HERE))
    hosts.pull_at("worker 0", 200)
    ends = hosts.ends("worker 0", "worker 1", "ps 0")
    assert [code for code, _ in ends.values()] == [75, 75, 75]
    silent = rf"lost ps 0 \({THERE}:5200\) \(no sign of life for {T} s, --collective_timeout\), and the weights there; "
    assert re.match(f"trainer.run: {silent}", ends["worker 0"][1])
    assert re.match(f"trainer.run: the job has ended: {silent}", ends["worker 1"][1])
    assert ends["ps 0"][1].startswith(f"trainer.run: lost the chief ({HERE}:5201): no sign of life for {T} s")


@pytest.mark.slow
def test_a_parameter_server_that_is_cut_off_where_a_function_is_traced_ends_the_job(
    hosts, digits, tmp_path, monkeypatch
):
    """The chief, which TensorFlow lets do nothing else meanwhile, is killed."""
    monkeypatch.setenv("FOLDER", str(tmp_path))
    task = "--task=tests.integration.parameter_server_tasks:Traced"
    start_parameter_servers(hosts, digits, tmp_path / "run", THERE, (HERE, HERE), task)
    hosts.pull_when("worker 0", (tmp_path / "traced").exists)
    (tmp_path / "go").touch()
    ends = hosts.ends("worker 0", "worker 1", "ps 0")
    assert [code for code, _ in ends.values()] == [-signal.SIGALRM, 75, 75]


@pytest.mark.slow
def test_the_steps_of_a_worker_that_is_cut_off_are_made_by_another(hosts, digits, tmp_path):
    start_parameter_servers(hosts, digits, tmp_path / "run", HERE, (HERE, THERE))
    hosts.pull_at("worker 0", 200)
    code, line = hosts.ends("worker 1")["worker 1"]
    assert code == 75
    assert line.startswith(f"trainer.run: lost the chief ({HERE}:5201): no sign of life for {T} s")
    for name in ("worker 0", "ps 0"):
        assert hosts.processes[name].wait(180) == 0, hosts.said(name)
    assert "ledger: of 3,000 steps, 3,000 applied once, 0 twice, 0 not at all" in hosts.said("worker 0")
