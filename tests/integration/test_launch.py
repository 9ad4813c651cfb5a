"""The launcher's decisions, with a stand-in for the trainer that fails on demand: real processes and signals.

What `tests/unit/trainer/launching/local` decides with shells in the place of trainers is in the slow lane here.
"""

import contextlib
import fcntl
import json
import os
import pathlib
import re
import shlex
import signal
import socket
import struct
import subprocess
import sys
import termios
import threading
import time
import urllib.request

import pytest

from tests import forked
from tests.datasets import write_dataset
from tests.forked import ROOT
from tests.lanes import some_slow
from tests.launches import CODE, FAKE, TIME, Launch, is_running, left_within

QUICK = ("--restart_delay=0.1",)
UNSAVED = r"no checkpoint was saved; at least \d+ steps? (?:is|are) lost"


@pytest.fixture(scope="module")
def data(tmp_path_factory):
    path = tmp_path_factory.mktemp("data")
    write_dataset(path, (40, 24), (4, 4, 1), test_counts=(4,))
    return path


@pytest.fixture
def launch(data, tmp_path):
    """Returns a function that starts the launcher with stand-ins."""
    started = []

    def launch(*flags, plan=None, steps=20, batch=24, environment=None, trainer=()):
        flags = (*QUICK, *flags)
        trainer = (f"--data_dir={data}", f"--train_steps={steps}", f"--global_batch_size={batch}", *trainer)
        variables = {"FAKE": json.dumps(plan or {}), **(environment or {})}
        started.append(Launch(tmp_path / "model", flags, trainer, FAKE, variables))
        return started[-1]

    yield launch
    for one in started:
        one.process.kill()
        left_within(30, one.pids())


def failing(*starts):
    """Returns a plan in which worker 1 fails."""
    return {"worker 1": list(starts)}


@pytest.mark.slow
def test_a_folder_is_emptied_once_and_not_by_a_restart(launch, tmp_path):
    model = tmp_path / "model"
    model.mkdir()
    (model / "ckpt-700.index").touch()
    job = launch("--num_workers=2", plan=failing({"do": "kill", "at": 8, "save": 4}), trainer=("--fresh",))
    code, _, err = job.end()
    assert code == 0, err
    assert [(model / f"starts-worker-{index}").read_text() for index in (0, 1)] == ["2", "2"]  # of the first start, too
    kept = {path.name for path in model.glob("ckpt-*.index")}  # worker 0 also saves if it is asked to end in time
    assert "ckpt-4.index" in kept
    assert "ckpt-700.index" not in kept
    assert (model / ".trainer.fresh").read_text().startswith("begun")
    assert job.status()["command"][-2:] == ["--strategy=multiworker", "--nofresh"]


def events(job):
    """Returns the events that the launcher has noted, as (kind, text)."""
    lines = (job.folder / "events.jsonl").read_text().splitlines()
    return [(one["kind"], one["text"]) for one in map(json.loads, lines)]


@pytest.mark.slow
def test_the_page_is_served_beside_the_job_and_ends_with_it(launch):
    pytest.importorskip("uvicorn", reason="needs starlette, uvicorn and jinja2: pip install 'stepfeed[page]'")
    job = launch("--num_workers=2", "--page", plan=failing({"do": "kill", "at": 30}), steps=1500)
    job.wait_until(lambda status: any(text.startswith("http://") for _, text in events(job)))
    (url,) = [text.split()[0] for _, text in events(job) if text.startswith("http://127.0.0.1:")]
    status = job.wait_until(lambda status: status["restarts"] == 1 and status["state"] == "training")
    with urllib.request.urlopen(f"{url}runs.json", timeout=30) as answer:
        (run,) = json.loads(answer.read())["runs"]
    assert (run["run"], run["restarts"], run["error"]) == ("model", 1, status["error"])
    assert [(one["name"], one["state"], one["restarts"]) for one in run["members"]] == [
        ("worker 0", "running", 1),
        ("worker 1", "running", 1),
    ]
    os.kill(job.process.pid, signal.SIGTERM)
    code, _, err = job.end()
    assert code == 75, err
    assert f"{url} shows model" in err
    kinds = [kind for kind, _ in events(job)]
    assert (kinds.count("failure"), kinds[-1]) == (1, "end")
    with pytest.raises(OSError, match="refused"):
        urllib.request.urlopen(url, timeout=30)


@pytest.mark.slow
def test_a_page_that_cannot_be_served_is_one_line_and_the_job_goes_on(launch):
    pytest.importorskip("uvicorn", reason="needs starlette, uvicorn and jinja2: pip install 'stepfeed[page]'")
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        job = launch("--num_workers=2", f"--page={port}", steps=500)
        job.wait_until(lambda status: any(kind == "failure" for kind, _ in events(job)))
        code, out, err = job.end()
    assert (code, out.count("done at step 500")) == (0, 2), err
    assert [line for line in err.splitlines() if "the page" in line] == [
        "trainer.launch: the page ended with exit code 2 (a flag cannot work): trainer.watch: "
        f"--host=127.0.0.1 --port={port}: cannot listen there: Address already in use; give another one; "
        "the job continues without it"
    ]


def test_two_workers_to_the_end(launch):
    job = launch("--num_workers=2")
    code, out, err = job.end()
    assert code == 0, err
    assert sorted(line for line in out.splitlines() if "done" in line) == [
        "worker 0 | done at step 20",
        "worker 1 | done at step 20",
    ]
    assert err.startswith("trainer.launch: 2 workers on CPUs; logs in ")
    status = job.status()
    assert (status["version"], status["state"], status["exit_code"], status["step"]) == (1, "done", 0, 20)
    assert (status["num_workers"], status["restarts"], status["error"]) == (2, 0, None)
    assert [one["state"] for one in status["processes"]] == ["ended", "ended"]
    for one in status["processes"]:
        assert TIME.sub("", pathlib.Path(one["stdout"]).read_text()) == "begins at step 0\ndone at step 20\n"


@pytest.mark.parametrize(
    ("failure", "said"),
    [
        ({"do": "kill"}, r"was killed by SIGKILL after step \d"),
        pytest.param(
            {"do": "exit", "code": 75, "say": "preempted"},
            r"ended with exit code 75 .* after step \d: preempted",
            marks=pytest.mark.slow,
        ),
        pytest.param({"do": "exit", "code": 143}, r"was killed by SIGTERM after step \d", marks=pytest.mark.slow),
    ],
)
def test_what_can_be_resumed_is_started_again(launch, failure, said):
    job = launch("--num_workers=2", plan=failing({"at": 5, **failure}), steps=60)
    code, out, err = job.end()
    assert code == 0, err
    assert re.search(rf"trainer.launch: worker 1 \(process \d+\) {said}\n", err), err
    assert "starting all processes again in 0.1 s (restart 1 of 10)" in err
    assert out.count("done at step 60") == 2
    status = job.status()
    assert status["restarts"] == 1
    assert [one["restarts"] for one in status["processes"]] == [1, 1]
    assert status["processes"][0]["last_error"] is None
    assert re.match(r"worker 1 \(process \d+\)", status["processes"][1]["last_error"])


def test_after_a_restart_lines_are_shown_at_once(launch):
    job = launch("--num_workers=2", plan=failing({"do": "kill", "at": 5}), steps=100_000)
    job.wait_until(lambda status: status["restarts"] == 1 and (status["step"] or 0) > 20)
    too_late = threading.Timer(20, job.process.kill)
    too_late.start()
    lines = [job.process.stdout.readline() for _ in range(4)]
    too_late.cancel()
    assert [" | begins at step " in TIME.sub("", line) for line in lines] == [True] * 4, lines
    job.process.send_signal(signal.SIGTERM)
    assert job.end()[0] == 75


@pytest.mark.slow
@pytest.mark.parametrize("code", [1, 2])
def test_bad_data_and_flags_are_not_started_again(launch, code):
    job = launch("--num_workers=2", plan=failing({"do": "exit", "at": 5, "code": code, "say": "a\nb is wrong"}))
    ended, _, err = job.end()
    assert ended == code
    said = rf"trainer.launch: worker 1 .* exit code {code} \(.*\) after step \d: b is wrong; {UNSAVED}"
    assert re.fullmatch(said, last(err))
    assert "restart" not in err
    assert (job.status()["state"], job.status()["exit_code"]) == ("failed", code)


def last(text):
    return text.splitlines()[-1]


@pytest.mark.parametrize("failure", [{"do": "kill"}, pytest.param({"do": "exit", "code": 75}, marks=pytest.mark.slow)])
def test_a_failure_at_start_up_is_not_started_again(launch, failure):
    code, _, err = launch("--num_workers=1", plan={"worker 0": [{"at": 0, **failure}]}).end()
    assert code == (137 if failure["do"] == "kill" else 75)
    assert last(err).endswith("; not started again, since no step was made")
    assert "again in" not in err


@pytest.mark.slow
def test_a_later_failure_at_start_up_is(launch):
    plan = {"worker 0": [{"do": "kill", "at": at} for at in (5, 0, 0)]}
    code, _, err = launch("--num_workers=1", plan=plan).end()
    assert code == 0, err
    delays = re.findall(r"again in ([\d.]+) s \(restart (\d) of 10\)", err)
    assert delays == [("0.1", "1"), ("0.2", "2"), ("0.4", "3")]


@pytest.mark.slow
def test_there_is_a_last_restart(launch):
    plan = {"worker 0": [{"do": "kill", "at": 3}] * 9}
    code, _, err = launch("--num_workers=1", "--max_restarts=2", plan=plan).end()
    assert code == 137
    said = rf"after step \d; not started again after 2 restarts \(--max_restarts\) without a new checkpoint; {UNSAVED}$"
    assert re.search(said, last(err))
    assert err.count("again in") == 2


@pytest.mark.slow
def test_a_new_checkpoint_forgives_restarts(launch):
    plan = {
        "worker 0": [{"do": "kill", "at": at, "save": save} for at, save in ((3, 0), (3, 2), (3, 0), (4, 1), (3, 0))]
    }
    code, _, err = launch("--num_workers=1", "--max_restarts=2", plan=plan).end()
    assert code == 137
    assert re.findall(r"\(restart (\d) of 2\)", err) == ["1", "1", "2"]
    assert re.search(r"without a new checkpoint; \S+/ckpt-2 is saved", last(err))


@pytest.mark.slow
@pytest.mark.parametrize(
    ("code", "at"),
    [(75, 7), (75, 150), (1, 150)],
    ids=["soon", "late", "late, with the code of the cause"],
)
def test_the_cause_comes_before_what_followed_from_it(launch, code, at):
    """Worker 0 says that another one ended and ends, while the other, up to 3 s later, still dies."""
    said = "without worker 1 there is nothing to do"
    followed = {"do": "exit", "at": 5, "code": code, "say": said, "lost": ["worker 1"]}
    cause = {"do": "exit", "at": at, "code": 1, "say": "trainer.run: shard 3 is corrupt"}
    ended, _, err = launch("--num_workers=2", plan={"worker 0": [followed], "worker 1": [cause]}, steps=300).end()
    assert ended == 1
    lines = err.splitlines()
    first = next(i for i, line in enumerate(lines) if "(process" in line)
    assert lines[first].startswith("trainer.launch: worker 1 ")
    assert "shard 3 is corrupt" in lines[first]
    assert first < next(i for i, line in enumerate(lines) if said in line)


@pytest.mark.parametrize("how", some_slow(["stop", "hang"], ["hang"]))
def test_a_silent_worker_is_named_and_killed(launch, how):
    job = launch("--num_workers=2", "--silent_timeout=1.5", plan=failing({"do": how, "at": 5}))
    code, _, err = job.end()
    assert code == 0, err
    what = "gave no sign of life" if how == "stop" else "made no progress"
    said = rf"worker 1 \(process \d+\) {what} for (\d+) s after step \d \(training\), and was killed"
    assert 1 <= int(re.search(said, err)[1]) < 60, err  # the default is 120
    assert "restart 1 of 10" in err


@pytest.mark.slow
def test_one_whose_peers_give_it_up_first_is_named(launch):
    """TensorFlow notices a stopped peer long before --silent_timeout."""
    lost = {"do": "exit", "at": 250, "code": 75, "say": "gave it up", "lost": ["another worker"]}
    plan = {"worker 0": [lost], "worker 1": [{"do": "stop", "at": 5}]}
    code, _, err = launch("--num_workers=2", plan=plan, steps=300).end()
    assert code == 0, err
    assert re.search(r"trainer.launch: worker 1 \(process \d+\) gave no sign of life for \d+ s, and was killed", err)
    assert err.index("trainer.launch: worker 1") < err.index("worker 0 | gave it up")


@pytest.mark.parametrize(
    "number",
    [signal.SIGTERM, *(pytest.param(number, marks=pytest.mark.slow) for number in (signal.SIGINT, signal.SIGHUP))],
)
def test_a_signal_lets_all_save_and_end(launch, number):
    job = launch("--num_workers=2", steps=100_000)
    job.wait_for_step(5)
    job.process.send_signal(number)
    code, _, err = job.end()
    assert code == 75
    assert err.count("fake: stopped, step") == 2
    step = max(int(step) for step in re.findall(r"fake: stopped, step (\d+) is saved", err))
    said = (
        rf"stopped by {number.name} after step {step}; \S+/model/ckpt-{step} is saved; rerun the same command to resume"
    )
    assert re.fullmatch(f"trainer.launch: {said}", last(err)), err
    status = job.status()
    assert (status["state"], status["exit_code"], status["saved_step"]) == ("stopped", 75, step)


@pytest.mark.parametrize("why", some_slow(["a signal", "a failure of a peer"], ["a signal"]))
def test_who_is_silent_while_saving_has_all_of_stop_timeout(launch, why):
    """Saving may take longer than the heartbeats of a training process may fail to come."""
    plan = failing({"do": "exit", "at": 5, "code": 1}) if why != "a signal" else {}
    job = launch("--num_workers=2", steps=100_000, plan=plan, environment={"FAKE_SAVE_SECONDS": "6.5"})
    if why == "a signal":
        job.wait_for_step(5)
        job.process.send_signal(signal.SIGTERM)
    code, _, err = job.end()
    assert code == (75 if why == "a signal" else 1)
    assert "killed" not in err.partition("save and end; a second one kills them")[2]
    saved = re.findall(r"worker (\d) \| fake: stopped, step (\d+) is saved", err)
    assert [worker for worker, _ in sorted(saved)] == (["0", "1"] if why == "a signal" else ["0"])
    assert f"ckpt-{max(int(step) for _, step in saved)} is saved" in last(err)


@pytest.mark.slow
def test_a_stopped_process_is_woken_to_save(launch):
    job = launch("--num_workers=2", steps=100_000)
    os.kill(job.wait_for_step(5)["processes"][1]["pid"], signal.SIGSTOP)
    job.process.send_signal(signal.SIGTERM)
    code, _, err = job.end()
    assert code == 75
    assert sorted(re.findall(r"worker (\d) \| fake: stopped", err)) == ["0", "1"]


@pytest.mark.slow
def test_who_is_killed_after_stop_timeout_is_named_with_the_steps_that_are_lost(launch, tmp_path):
    (tmp_path / "model").mkdir()
    (tmp_path / "model" / "ckpt-4.index").touch()
    plan = {"worker 0": [{"do": "hang", "at": 9}]}
    job = launch("--num_workers=1", "--stop_timeout=0.5", steps=100_000, plan=plan)
    job.wait_until(lambda status: status["step"] == 9)
    job.process.send_signal(signal.SIGTERM)
    code, _, err = job.end()
    assert code == 75
    late, end = err.splitlines()[-2:]
    assert re.fullmatch(
        r"trainer.launch: worker 0 \(process \d+\) did not end within 0.5 s \(--stop_timeout\), and was killed", late
    )
    assert end == (
        f"trainer.launch: stopped by SIGTERM after step 9; {tmp_path}/model/ckpt-4 is saved; "
        "at least 5 steps are lost; rerun the same command to resume"
    )


@pytest.mark.slow
def test_a_second_signal_kills(launch):
    job = launch("--num_workers=2", steps=100_000, plan={f"worker {i}": [{"do": "hang", "at": 7}] for i in (0, 1)})
    job.wait_until(lambda status: [one["step"] for one in status["processes"]] == [7, 7])
    job.process.send_signal(signal.SIGINT)
    job.wait_until(lambda status: status["state"] == "stopping")
    job.process.send_signal(signal.SIGINT)
    code, _, err = job.end()
    assert code == 130
    said = "trainer.launch: SIGINT again: killed; no checkpoint was saved; at least 7 steps are lost; rerun the same "
    assert last(err) == f"{said}command to resume"
    assert "--stop_timeout" not in err


@pytest.mark.parametrize(
    "closed",
    [*(pytest.param(one, marks=pytest.mark.slow) for one in (">&-", "2>&-", "| true")), ">&- 2>&-", "2>&1 | true"],
)
def test_output_that_is_closed(data, tmp_path, closed):
    """The job continues; no file takes the place of a closed stream; the exit code is that of the job."""
    flags = f"--data_dir={data} --model_dir={tmp_path / 'model'} --global_batch_size=24"
    program = shlex.join([sys.executable, "-c", CODE.format(program=FAKE)])
    for steps, code in ((5, 0), (-1, 2)):
        script = f"set -o pipefail\n{program} -- {flags} --train_steps={steps} {closed}"
        done = subprocess.run(["bash", "-c", script], capture_output=True, text=True, check=False, cwd=ROOT)
        assert done.returncode == code, (done.stdout, done.stderr)
        assert "Traceback" not in done.stdout + done.stderr
        assert ("worker 0 | done at step 5" in done.stdout) == (closed == "2>&-" and code == 0)
        assert ("--train_steps=-1" in done.stderr) == (closed in (">&-", "| true") and code == 2)
    logs = tmp_path / "model" / "launch" / "logs"
    assert "done at step 5" in (logs / "worker-0.stdout.log").read_text()
    assert (logs.parent / ".trainer.lock").read_text().count("\n") == 1


def test_no_process_is_left_when_the_launcher_is_killed(launch):
    job = launch("--num_workers=2", steps=100_000)
    pids = job.pids() if job.wait_for_step(5) else []
    assert len(pids) == 2
    job.process.kill()
    assert left_within(10, pids) == []
    assert "step" in (job.folder / "logs" / "worker-0.stderr.log").read_text()  # it has saved


def test_not_even_one_that_is_stopped_or_what_it_has_started(launch, tmp_path):
    program = tmp_path / "program.py"
    program.write_text(
        "import os, signal, subprocess, time\n"
        "signal.signal(signal.SIGTERM, signal.SIG_IGN)\n"
        "child = subprocess.Popen(['sleep', '1000'])\n"
        f"open({str(tmp_path / 'child')!r}, 'w').write(str(child.pid))\n"
        "time.sleep(1000)\n"
    )
    job = launch("--num_workers=1", "--stop_timeout=1")
    job.end()
    data_flags = [a for a in job.process.args if "data_dir" in a]
    job = Launch(tmp_path / "other", ("--stop_timeout=1",), data_flags, (sys.executable, str(program)))
    job.wait_until(lambda status: (tmp_path / "child").exists() and (tmp_path / "child").read_text())
    pids = [*job.pids(), int((tmp_path / "child").read_text())]
    assert all(map(is_running, pids))
    job.process.kill()
    assert left_within(10, pids) == []


def test_what_a_process_leaves_behind_ends_with_it(data, tmp_path):
    program = tmp_path / "program.py"
    program.write_text(
        "import subprocess\n"
        "child = subprocess.Popen(['sleep', '1000'])\n"
        f"open({str(tmp_path / 'child')!r}, 'w').write(str(child.pid))\n"
    )
    job = Launch(tmp_path / "model", (), [f"--data_dir={data}"], (sys.executable, str(program)))
    assert job.end()[0] == 0
    assert left_within(5, [int((tmp_path / "child").read_text())]) == []


GPUS = {"CUDA_VISIBLE_DEVICES": "0,1,2"}
ELASTIC = ("--elastic=1:3", "--regrow_delay=0.5", "--max_restarts=1")


@pytest.mark.slow
def test_elastic_goes_on_with_fewer_and_grows_back(launch, tmp_path):
    job = launch(*ELASTIC, steps=100_000, environment=GPUS)
    job.wait_for_step(5)
    broken = tmp_path / "model" / "broken-gpu-1"
    broken.touch()
    pid = next(one["pid"] for one in job.status()["processes"] if one["slot"] == 1)
    os.kill(pid, signal.SIGKILL)
    status = job.wait_until(lambda status: status["num_workers"] == 2 and status["state"] == "training")
    assert [(one["name"], one["slot"], one["gpus"]) for one in status["processes"]] == [
        ("worker 0", 0, ["0"]),
        ("worker 1", 2, ["2"]),
    ]
    assert status["lost"] == [1]
    again = job.wait_until(lambda status: status["num_workers"] == 3)  # it is tried again, in vain
    assert again["time"] - status["time"] < 30  # the default of --regrow_delay is 60
    job.wait_until(lambda status: status["num_workers"] == 2 and status["state"] == "training")
    broken.unlink()
    status = job.wait_until(lambda status: status["num_workers"] == 3 and status["state"] == "training")
    assert [one["slot"] for one in status["processes"]] == [0, 1, 2]
    assert status["lost"] == []
    job.process.send_signal(signal.SIGTERM)
    code, _, err = job.end()
    assert code == 75, err
    assert "the place of worker 1 (slot 1) is given up for now" in err
    assert "continuing with 2 workers" in err
    assert "continuing with 3 workers" in err


@pytest.mark.slow
def test_a_new_checkpoint_forgives_failures_of_a_slot(launch):
    """The other worker saves whenever the group ends, so no failure counts when the next one comes."""
    plan = failing(*({"do": "kill", "at": at} for at in (10, 100, 200)))
    flags = ("--elastic=1:2", "--max_restarts=1")
    job = launch(*flags, plan=plan, steps=300, environment={"CUDA_VISIBLE_DEVICES": "0,1"})
    code, _, err = job.end()
    assert code == 0, err
    assert "given up" not in err
    assert (job.status()["restarts"], job.status()["num_workers"]) == (3, 2)


@pytest.mark.slow
def test_elastic_ends_below_its_least(launch, tmp_path):
    job = launch("--elastic=3:3", "--max_restarts=0", environment=GPUS, steps=100_000)
    job.wait_for_step(5)
    os.kill(job.pids()[2], signal.SIGKILL)
    code, _, err = job.end()
    assert code == 137
    assert re.search(r"; too few workers are left for --elastic=3:3; \S+/ckpt-\d+ is saved$", last(err))


@pytest.mark.slow
def test_numbers_of_workers_that_cannot_share_a_batch_are_never_used(launch):
    job = launch("--elastic=1:4", batch=8, environment={"CUDA_VISIBLE_DEVICES": "0,1,2,3"}, steps=5)
    code, _, err = job.end()
    assert code == 0
    assert err.count("never 3 workers, who cannot share --global_batch_size=8") == 1
    assert job.status()["num_workers"] == 4


PS = ("--num_workers=2", "--num_ps=1")


@pytest.mark.slow
def test_an_asynchronous_worker_is_started_again_alone(launch):
    plan = {"worker 1": [{"do": "kill", "at": 30}, {"do": "exit", "at": 20, "code": 75}]}
    job = launch(*PS, plan=plan, steps=200)
    code, out, err = job.end()
    assert code == 0, err
    assert out.count("begins at step") == 1
    again = re.findall(
        r"worker 1 .*; starting it again in ([\d.]+) s \(restart (\d) of 10\), while the others continue", err
    )
    assert [number for _, number in again] == ["1", "2"]
    status = job.status()
    assert (status["restarts"], [one["name"] for one in status["processes"]]) == (
        0,
        ["chief", "worker 0", "worker 1", "ps 0"],
    )
    assert [one["restarts"] for one in status["processes"]] == [0, 0, 2, 0]


@pytest.mark.parametrize(
    ("flags", "decision"),
    [((), "starting it again in 0.1 s"), (("--max_restarts=0",), "the others continue without it")],
)
@pytest.mark.quick(1)
def test_what_an_asynchronous_worker_said_is_shown_while_the_others_go_on(flags, decision, launch):
    """The report that it lost another process is held back only until its own end is reported."""
    said = "there is no server any more"
    plan = {"worker 1": [{"do": "exit", "at": 50, "code": 75, "say": said, "lost": ["ps 0"]}]}
    job = launch(*PS, *flags, plan=plan, steps=100_000)
    job.wait_until(lambda status: f"worker 1 | {said}" in job.process.stderr.read().splitlines())
    lines = job.process.stderr.read().splitlines()
    assert decision in lines[lines.index(f"worker 1 | {said}") - 1], lines
    job.process.send_signal(signal.SIGTERM)
    assert job.end()[0] == 75


@pytest.mark.slow
def test_the_others_go_on_without_one_that_cannot_be_started_again(launch):
    plan = {"worker 1": [{"do": "kill", "at": 30}, {"do": "kill", "at": 0}]}
    code, _, err = launch(*PS, "--max_restarts=1", plan=plan, steps=200).end()
    assert code == 0, err
    assert "worker 1 (process" in err
    assert "; the others continue without it (--max_restarts=1)" in err


def test_a_dead_parameter_server_restarts_the_group(launch):
    job = launch(*PS, plan={"ps 0": [{"do": "kill", "at": 50}]}, steps=200)
    code, out, err = job.end()
    assert code == 0, err
    assert re.search(r"trainer.launch: ps 0 \(process \d+\) was killed by SIGKILL\n", err)
    assert out.count("begins at step") == 2
    assert [one["restarts"] for one in job.status()["processes"]] == [1, 1, 1, 1]


@pytest.mark.slow
def test_the_chief_saves_before_the_parameter_servers_end(launch, tmp_path):
    job = launch(*PS, steps=100_000)
    job.wait_for_step(5)
    job.process.send_signal(signal.SIGINT)
    code, _, err = job.end()
    assert code == 75
    assert err.count("fake: stopped, step") == 1
    logs = tmp_path / "model" / "launch" / "heartbeats"
    ended = {name: json.loads((logs / f"{name}.json").read_text())["time"] for name in ("chief", "ps-0", "worker-0")}
    assert ended["chief"] < min(ended["ps-0"], ended["worker-0"])


def test_two_launchers_at_once_share_no_port_and_no_folder(launch):
    first = launch("--num_workers=2", steps=100_000)
    first.wait_for_step(1)
    code, _, err = launch("--num_workers=2").end()
    assert code == 75
    assert re.fullmatch(
        rf"trainer.launch: --model_dir=.*: process {first.process.pid} on .* runs a job there; wait until .*\n", err
    )
    first.process.send_signal(signal.SIGINT)
    assert first.end()[0] == 75


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        ("--num_workers=2", "-- is missing: the flags of trainer.run follow it, "),
        ("--num_workers=0 -- {data}", "--num_workers=0: must be 1 or more"),
        ("--num_workers=5 -- {data}", "--num_workers=5: must divide --global_batch_size=24; nearest .*: 4 and 6"),
        ("--num_ps=9999 -- {data}", "--num_workers=1, --num_ps=9999: 10,0.. processes, and this machine .* may have"),
        ("--num_workers=2 -- {data} --virtual_replicas=3", "--num_workers=2: must divide --virtual_replicas=3; .*"),
        (
            "--num_workers=2 -- {data} --strategy=mirrored",
            "--strategy=mirrored with --num_workers=2: it supports only one",
        ),
        ("--num_workers=2 -- {data} --strategy=miror", "--strategy: unknown 'miror'; did you mean 'mirrored'"),
        (
            "-- {data} --job_name=ps",
            "--job_name=ps: the launcher tells each process which one it is; leave job_name out",
        ),
        ("-- {data} TF_CONFIG=x", "TF_CONFIG=x: the launcher tells each process which one it is"),
        ("-- {data} --modle=mlp", "flag: unknown '--modle'; did you mean '--model'"),
        ("--elastic=4:1 -- {data}", "--elastic=4:1: must be MIN:MAX workers"),
        ("--num_workers=2 --elastic=1:4 -- {data}", "--num_workers=2 with --elastic=1:4: it starts with the most"),
        ("--gpus_per_worker=1 -- {data}", "--gpus_per_worker=1: 1 worker would take 1 GPU, and this machine has 0"),
        ("-- --data_dir={tmp}/none --model_dir={tmp}/m", ".*none: there is no such folder"),
        ("--", "--data_dir and --model_dir are missing"),
    ],
)
def test_misuse_is_one_line_before_anything_starts(data, tmp_path, arguments, said):
    flags = f"--data_dir={data} --model_dir={tmp_path / 'model'} --global_batch_size=24"
    command = ["-m", "trainer.launch", *arguments.format(data=flags, tmp=tmp_path).split()]
    done = forked.run(command, {"CUDA_VISIBLE_DEVICES": ""})
    assert done.returncode in (1, 2)
    assert re.match(f"trainer.launch: (?:{said})", done.stderr), done.stderr
    assert done.stderr.count("\n") == 1
    assert not (tmp_path / "model").exists()


def test_a_log_that_cannot_be_written_to(launch, tmp_path):
    (tmp_path / "model" / "launch" / "logs" / "worker-0.stdout.log").mkdir(parents=True)
    code, _, err = launch().end()
    assert (code, "Traceback" in err) == (1, False)
    assert last(err) == f"trainer.launch: {tmp_path}/model/launch: cannot be written to: Is a directory"


def test_a_tf_config_of_the_environment_is_refused(launch):
    code, _, err = launch(environment={"TF_CONFIG": "{}"}).end()
    assert (code, err.count("\n")) == (2, 1)
    assert "TF_CONFIG is set, but the launcher gives each process its own; unset it" in err


def test_help_is_there_within_a_second():
    before = os.times()
    command = [sys.executable, "-m", "trainer.launch", "--help"]
    done = subprocess.run(command, capture_output=True, text=True, cwd=ROOT, check=False)
    assert os.times().children_user - before.children_user < 1  # 0.3 s; of processor time, since machines are busy
    assert done.returncode == 0
    assert "--silent_timeout" in done.stdout


class Terminal:
    """A launcher that owns a terminal, and the terminal's content."""

    def __init__(self, job_flags, environment):
        self.ours, theirs = os.openpty()
        fcntl.ioctl(theirs, termios.TIOCSWINSZ, struct.pack("4H", 40, 150, 0, 0))
        code = f"import sys\nfrom trainer import launch\nlaunch.main(sys.argv[1:], program={FAKE})"
        self.process = subprocess.Popen(
            [sys.executable, "-c", code, *job_flags],
            stdin=theirs,
            stdout=theirs,
            stderr=theirs,
            cwd=ROOT,
            # Unbuffered, since Python would try to flush the rest to a closed terminal, and exit with 120.
            env={**os.environ, "PYTHONUNBUFFERED": "1", **environment},
            start_new_session=True,
            preexec_fn=lambda: fcntl.ioctl(0, termios.TIOCSCTTY, 0),  # noqa: PLW1509
        )
        os.close(theirs)

    def shown(self):
        """Returns all that is shown until the launcher ends."""
        text = b""
        with contextlib.suppress(OSError):
            while part := os.read(self.ours, 1 << 16):
                text += part
        return text.decode()


@pytest.fixture
def terminal(data, tmp_path):
    """Returns a function that starts the launcher on a terminal."""
    started = []

    def terminal(steps, *more, **environment):
        trainer = (f"--data_dir={data}", f"--model_dir={tmp_path / 'model'}", f"--train_steps={steps}", *more)
        flags = ("--num_workers=2", "--", *trainer, "--global_batch_size=24")
        started.append(Terminal(flags, environment))
        return started[-1]

    yield terminal
    for one in started:
        one.process.kill()


@pytest.mark.parametrize("colours", some_slow([True, False], [True]))
def test_a_live_table_on_a_terminal(terminal, colours):
    one = terminal(60, **({} if colours else {"NO_COLOR": "1"}))
    shown = one.shown()
    assert one.process.wait() == 0
    assert bool(re.search(r"\x1b\[3\dm", shown)) == colours
    plain = re.sub(r"\x1b\[[0-9;?]*[A-Za-z]", "", shown)
    assert re.search(r"│ worker [01] │ +\d+ │ training +│ +\d+ │ +[\d,]+ │ +0% │ +0 │", plain), plain[-3000:]
    assert re.search(r"worker 1 \| begins at step 0\r\n", plain)
    assert re.search(r"done, step 60 of 60, restarts 0", plain)


@pytest.mark.parametrize(("flags", "is_shown"), [((), False), (("--log_time",), True)])
def test_a_terminal_shows_times_only_if_told_and_files_have_them(flags, is_shown, terminal, tmp_path):
    one = terminal(3, *flags)
    shown = one.shown()
    assert one.process.wait() == 0
    assert len(re.findall(rf"worker \d \| {TIME.pattern}begins at step \d", shown)) == 2 * is_shown
    assert len(re.findall(r"begins at step \d", shown)) == 2
    log = (tmp_path / "model" / "launch" / "logs" / "worker-1.stdout.log").read_text()
    assert re.match(rf"{TIME.pattern}begins at step \d\n", log)


def test_no_process_is_left_when_the_terminal_closes(terminal, tmp_path):
    one = terminal(100_000)
    path = tmp_path / "model" / "launch" / "status.json"
    end = time.monotonic() + 60
    while time.monotonic() < end and not (path.exists() and json.loads(path.read_text())["state"] == "training"):
        time.sleep(0.05)
        os.set_blocking(one.ours, False)
        with contextlib.suppress(BlockingIOError):
            os.read(one.ours, 1 << 16)
    pids = [process["pid"] for process in json.loads(path.read_text())["processes"]]
    assert len(pids) == 2
    os.close(one.ours)
    assert one.process.wait(60) == 1  # of an error that was raised here; 75 as a command
    assert left_within(5, pids) == []
    status = json.loads(path.read_text())
    assert (status["state"], status["exit_code"]) == ("stopped", 75)
