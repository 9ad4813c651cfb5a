"""The commands of examples/README.md to the letter, killed and run again, as real processes."""

import importlib.util
import itertools
import json
import os
import pathlib
import random
import re
import shlex
import shutil
import subprocess
import sys
import time

import numpy as np
import pytest

from tests.helpers import forked
from tests.helpers.forked import ROOT, free_ports
from tests.helpers.runs import checkpoint_bytes, saved_steps

README = (ROOT / "examples" / "README.md").read_text(encoding="utf-8")
COMMANDS = re.findall(r"^    (?!cd )(.+)$", README, re.MULTILINE)  # test_tasks has those of the project
# Of two commands of a script, the other one is among the quick tests.
TWICE = [c for c in COMMANDS if ("keras_fit" in c and "--replicas=2" in c) or c.endswith("--steps=50")]
SCRIPTS = sorted(path.stem for path in (ROOT / "examples").glob("*.py"))
HEAVY = ["tensorflow", "keras", "torch", "jax", "apache_beam"]
RECORDS, STEPS = 1429, 23  # of the digits' training split, and of its epoch in batches of 64
NEEDS = {"pytorch_loop": "torch", "jax_loop": "jax"}


def command(script, *with_these):
    """Returns the README's first command of a script that has these words."""
    return next(c for c in COMMANDS if f"examples/{script}.py" in c and all(word in c for word in with_these))


def skip_where_missing(text):
    for script, package in NEEDS.items():
        if script in text and importlib.util.find_spec(package) is None:
            pytest.skip(f"needs {package}: pip install {package}")
    if text.startswith("mpirun") and shutil.which("mpirun") is None:
        pytest.skip("needs mpirun")


def start(folder, text):
    """Starts a command of the README in a folder where `python` is this one; by a shell if it needs one."""
    if text.startswith("python "):
        return forked.Process(shlex.split(text)[1:], cwd=folder)
    path = f"{pathlib.Path(sys.executable).parent}:{os.environ['PATH']}"
    environment = os.environ | {"PATH": path, "TF_CPP_MIN_LOG_LEVEL": "3"}
    text = text if text.startswith("for ") else f"exec {text}"  # no shell between us and the process to kill
    return subprocess.Popen(
        text, shell=True, cwd=folder, env=environment, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    )


def finish(process):
    out, err = process.communicate(timeout=300)
    return process.returncode, out, err


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    path = tmp_path_factory.mktemp("examples")
    (path / "examples").symlink_to(ROOT / "examples")
    code, _, err = finish(start(path, COMMANDS[0]))
    assert code == 0, err
    return path


@pytest.fixture(scope="module")
def done(folder):
    """Returns a function from a command to its output; each is run once, undisturbed."""
    known = {}

    def run(text):
        skip_where_missing(text)
        if text not in known:
            ended = [finish(process) for process in [start(folder, each) for each in without_loop(text)]]
            for code, _, err in ended:
                assert code == 0, err
                assert "Traceback" not in err
            known[text] = "".join(out for _, out, _ in ended)
        return known[text]

    return run


def without_loop(text):
    """Returns the commands that a shell loop over ranks runs concurrently, or the command itself."""
    loop = re.fullmatch(r"for rank in ([\d ]+); do (.+) & done; wait", text)
    return [loop[2].replace("$rank", rank) for rank in loop[1].split()] if loop else [text]


def steps_of(out):
    """Returns {step: the rest of its line}; the last where a step came twice."""
    return {int(step): rest for step, rest in re.findall(r"^step (\d+):? ?(.*)$", out, re.MULTILINE)}


def records_of(out):
    """Returns {step: record ids in the order of the rows} of numpy_iteration's lines."""
    return {step: [int(r) for r in line.split("records ")[1].split()] for step, line in steps_of(out).items()}


def kill_after_line(process, beginning, delay=0.0):
    """Kills the process at the first line with this beginning, and returns its output; fails if there is none."""
    printed = []
    for line in process.stdout:
        printed.append(line)
        if line.startswith(beginning):
            break
    else:
        raise AssertionError(process.stderr.read())
    time.sleep(delay)
    process.kill()
    out, _ = process.communicate(timeout=60)
    return "".join(printed) + out


def test_every_script_is_in_the_readme_with_the_commands_of_its_docstring():
    for script in SCRIPTS:
        assert f"[{script}.py]({script}.py)" in README
        text = (ROOT / "examples" / f"{script}.py").read_text(encoding="utf-8")
        commands = re.findall(r"^    (.+)$", text.split('"""')[1], re.MULTILINE)
        assert commands
        assert commands == [c for c in COMMANDS if f"examples/{script}.py" in c]


@pytest.mark.parametrize(
    "text",
    [pytest.param(c, marks=pytest.mark.slow) if c in TWICE else c for c in COMMANDS[1:]],
)
def test_the_command_runs(text, done):
    assert "step" in done(text)


@pytest.mark.slow
def test_the_loop_over_ranks_runs_in_a_shell(folder):
    code, out, err = finish(start(folder, command("horovod_shard")))
    assert (code, len(horovod_records(out, 2))) == (0, STEPS), err


@pytest.mark.parametrize("script", SCRIPTS)
def test_help_loads_nothing_heavy(script):
    code = (
        f"import runpy, sys\nsys.argv = ['{script}.py', '--help']\ntry:\n"
        f"    runpy.run_path('examples/{script}.py', run_name='__main__')\nexcept SystemExit as end:\n"
        f"    print('LOADED', [m for m in {HEAVY} if m in sys.modules], end.code)"
    )
    helped = forked.fresh(["-c", code])
    assert helped.stdout.startswith(f"usage: {script}.py")
    assert helped.stdout.endswith("LOADED [] 0\n")


@pytest.mark.parametrize(
    "script", [s if s == "numpy_iteration" else pytest.param(s, marks=pytest.mark.slow) for s in SCRIPTS]
)
def test_no_data_is_one_line(script, folder):
    text = re.sub(r"^for.*?do |& done; wait$|\$rank", lambda m: "0" if m[0] == "$rank" else "", command(script))
    skip_where_missing(text)
    code, out, err = finish(start(folder, text.strip().replace("demo/digits", "nowhere")))
    assert (code, out) == (1, "")
    assert "Traceback" not in err
    assert err.splitlines()[-1].startswith(f"{script}: nowhere: there is no such folder")


def test_no_array_is_copied_and_each_record_comes_once_an_epoch(done):
    out = done(command("numpy_iteration"))
    assert all("images (64, 28, 28, 1) float32, 0 arrays copied" in line for line in steps_of(out).values())
    records = records_of(out)
    assert list(records) == list(range(30))
    assert each_once(records, 0)


def each_once(records, epoch):
    in_epoch = [records[step] for step in range(epoch * STEPS, (epoch + 1) * STEPS)]
    return sorted(itertools.chain(*in_epoch)) == list(range(RECORDS))


def test_numpy_goes_on_behind_the_last_save_and_refuses_another_order(done, folder):
    text = command("numpy_iteration").replace("demo/numpy.json --steps=30", "demo/killed.json --steps=460")
    killed = records_of(kill_after_line(start(folder, text), "step 12"))
    saved = json.loads((folder / "demo" / "killed.json").read_text())["step"]
    assert saved < 460
    assert 0 <= len(killed) - saved <= 10
    code, out, err = finish(start(folder, text))
    assert code == 0, err
    resumed = records_of(out)
    assert list(resumed) == list(range(saved, 460))
    records = {step: killed[step] for step in range(saved)} | resumed
    assert all(each_once(records, epoch) for epoch in range(20))
    assert all(records[step] == real for step, real in records_of(done(command("numpy_iteration"))).items())
    assert all(resumed[step] == killed[step] for step in range(saved, len(killed)))  # the lost steps, again

    code, out, err = finish(start(folder, f"{text} --global_batch_size=32"))
    assert (code, out) == (2, "")
    assert err.startswith("numpy_iteration: demo/killed.json: ")
    assert "global_batch_size was 64, is 32" in err


KERAS, KERAS_MIRRORED = command("keras_fit", "demo/keras"), command("keras_fit", "--replicas=2")


@pytest.mark.slow
@pytest.mark.parametrize("text", [KERAS, KERAS_MIRRORED])
def test_keras_killed_in_the_middle_of_an_epoch(text, done, folder, tmp_path):
    done(text)
    again = re.sub(r"--model_dir=\S+", f"--model_dir={tmp_path}", text)
    killed = list(steps_of(kill_after_line(start(folder, again), "step 15")))
    code, out, err = finish(start(folder, again))
    assert code == 0, err
    first, epoch = map(int, re.search(r"resumes at step (\d+) of 23 of epoch (\d+)", out).groups())
    saved = epoch * STEPS + first
    assert 10 <= saved < 230
    assert first > 0
    assert 0 <= killed[-1] - saved <= 10  # steps that were lost
    assert list(steps_of(out)) == list(range(saved + 1, 231))  # these lines count updates: the first is 1
    assert checkpoint_bytes(tmp_path, 230) == checkpoint_bytes(folder / model_dir(text), 230)


def model_dir(text):
    return re.search(r"--model_dir=(\S+)", text)[1]


@pytest.mark.slow
def test_the_custom_loop_killed(done, folder, tmp_path):
    text = command("custom_loop")
    undisturbed = steps_of(done(text))
    assert list(undisturbed) == list(range(300))
    again = text.replace(model_dir(text), str(tmp_path))
    killed = steps_of(kill_after_line(start(folder, again), "step 15"))
    code, out, err = finish(start(folder, again))
    assert code == 0, err
    resumed = steps_of(out)
    assert min(resumed) % 10 == 0
    assert 10 <= min(resumed) <= len(killed) < 300
    assert killed == {step: undisturbed[step] for step in killed}  # the losses, all nine digits of them
    assert resumed == {step: undisturbed[step] for step in range(min(resumed), 300)}
    assert checkpoint_bytes(tmp_path, 300) == checkpoint_bytes(folder / model_dir(text), 300)


def horovod_records(out, size):
    """Returns {step: [record ids of rank 0, of rank 1, ...]}."""
    lines = re.findall(rf"^step (\d+) rank (\d+) of {size}: ?(.*)$", out, re.MULTILINE)
    records = {(int(step), int(rank)): list(map(int, ids.split())) for step, rank, ids in lines}
    assert len(lines) == len(records) == STEPS * size
    return {step: [records[step, rank] for rank in range(size)] for step in range(STEPS)}


@pytest.mark.parametrize("size", [pytest.param(1, marks=pytest.mark.slow), 2, pytest.param(4, marks=pytest.mark.slow)])
def test_the_ranks_share_the_global_batch(size, done):
    text = command("horovod_shard").replace("0 1;", " ".join(map(str, range(size))) + ";")
    by_step = horovod_records(done(text.replace("--size=2", f"--size={size}")), size)
    assert all(len(rank) == 64 // size for step in range(STEPS - 1) for rank in by_step[step])
    together = {step: list(itertools.chain(*ranks)) for step, ranks in by_step.items()}
    assert each_once(together, 0)
    global_batches = records_of(done(command("numpy_iteration")))
    assert together == {step: global_batches[step] for step in range(STEPS)}


@pytest.mark.slow
def test_a_rank_of_mpi_is_found_in_the_environment(folder, monkeypatch):
    monkeypatch.setenv("OMPI_COMM_WORLD_RANK", "3")
    monkeypatch.setenv("OMPI_COMM_WORLD_SIZE", "4")
    code, out, err = finish(start(folder, "python examples/horovod_shard.py --data_dir=demo/digits --steps=1"))
    assert code == 0, err
    (ids,) = re.fullmatch(r"step 0 rank 3 of 4: (.*)\n", out).groups()
    assert len(ids.split()) == 16


def test_torch_tensors_share_the_batches_memory_and_two_ranks_train_as_one(done):
    one, two = steps_of(done(command("pytorch_loop", "torch.pt"))), steps_of(done(command("pytorch_loop", "torchrun")))
    assert all(line.endswith("rank 0 has 64 rows, 0 copied") for line in one.values())
    assert all(line.endswith("rank 0 has 32 rows, 0 copied") for line in two.values())
    np.testing.assert_allclose(losses(one), losses(two), rtol=1e-4)


def test_jax_arrays_share_the_batches_memory(done):
    lines = steps_of(done(command("jax_loop")))
    assert list(lines) == list(range(100))
    assert all(line.endswith("rank 0 has 64 rows, shared [True, False, True]") for line in lines.values())


def losses(lines):
    return [float(re.match(r"loss (\S+),", line)[1]) for line in lines.values()]


@pytest.mark.slow
def test_two_processes_of_jax_train_as_one(done, folder):
    one = steps_of(done(command("jax_loop")))
    text = command("jax_loop").replace("jax.npz", "jax2.npz") + f" --coordinator=localhost:{free_ports(1)[0]} --size=2"
    processes = [start(folder, f"{text} --rank={rank}") for rank in range(2)]
    (code, out, err), (other_code, other_out, _) = map(finish, processes)
    assert (code, other_code, steps_of(other_out)) == (0, 0, {}), err
    two = steps_of(out)
    assert all("rank 0 has 32 rows" in line for line in two.values())
    np.testing.assert_allclose(losses(one), losses(two), rtol=1e-4)


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(2))
@pytest.mark.parametrize(
    "text", [KERAS, KERAS_MIRRORED, *(command(s) for s in ("custom_loop", "pytorch_loop", "jax_loop"))]
)
def test_killed_again_and_again(text, seed, done, folder, tmp_path):
    """Kills behind random lines, with random delays: in steps, between them and in saves."""
    undisturbed = steps_of(done(text))
    draw, last = random.Random(f"{seed}{text}"), max(undisturbed)
    state = re.search(r"--(?:model_dir|state)=(\S+)", text)[1]
    again = text.replace(state, str(tmp_path / pathlib.Path(state).name))
    for line in sorted(draw.sample(range(last // 2), 3)):
        process = start(folder, again)
        for printed in process.stdout:
            if steps_of(printed) and min(steps_of(printed)) >= line:
                break
        time.sleep(draw.uniform(0, 0.1))
        process.kill()
        killed, _ = process.communicate()
        assert steps_of(killed).items() <= undisturbed.items()
    code, out, err = finish(start(folder, again))
    assert code == 0, err
    assert steps_of(out).items() <= undisturbed.items()
    assert final_state(tmp_path / pathlib.Path(state).name) == final_state(folder / state)


def final_state(path):
    """Returns {name: bytes} of everything saved at the end."""
    if path.suffix == ".npz":
        return {name: value.tobytes() for name, value in np.load(path).items()}
    if path.suffix == ".pt":
        import torch

        saved = torch.load(path)
        return json.dumps(saved, default=lambda tensor: tensor.numpy().tobytes().hex(), sort_keys=True)
    return checkpoint_bytes(path, saved_steps(path)[-1])
