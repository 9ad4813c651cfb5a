"""Stands in for `trainer.run` in tests of the launcher: it counts steps, beats, saves, and fails on demand.

$FAKE is a JSON object: for the name of a process, such as `worker 1`, a list of what its starts do, one by one:
`{"do": "exit", "at": 3, "code": 75, "say": "...", "lost": ["worker 1"]}`; or `kill`, `stop`, `hang` at a step;
`"save": 2` leaves the checkpoint of step 2. At step 0 is at start-up. The starts that follow make all steps. On SIGTERM
it saves, for $FAKE_SAVE_SECONDS, without a beat meanwhile.
While model_dir has a file `broken-gpu-N`, processes with GPU N die at start-up.
Workers do not wait for each other.
"""

import json
import os
import pathlib
import signal
import sys
import time

from trainer.callbacks.base import Phase
from trainer.callbacks.heartbeat import Heartbeat
from trainer.callbacks.terminal import Output
from trainer.loop import Progress, Spent

PLAN = json.loads(os.environ.get("FAKE", "{}"))
SECONDS = float(os.environ.get("FAKE_SECONDS", "0.02"))  # of a step
SAVE_SECONDS = float(os.environ.get("FAKE_SAVE_SECONDS", "0"))


def flag(name):
    return next(a.partition("=")[2] for a in sys.argv if a.startswith(f"--{name}="))


def read(path):
    return int(path.read_text()) if path.exists() else 0


def write(path, number):
    new = path.with_suffix(f".{os.getpid()}")  # two workers may save at the same time
    new.write_text(str(number))
    new.replace(path)


def main():
    task = json.loads(os.environ["TF_CONFIG"])["task"]
    name = task["type"] if task["type"] == "chief" else f"{task['type']} {task['index']}"
    folder, last = pathlib.Path(flag("model_dir")), int(flag("train_steps"))
    starts = folder / f"starts-{name.replace(' ', '-')}"
    number = read(starts)
    write(starts, number + 1)
    plan = PLAN.get(name, [])
    action = plan[number] if number < len(plan) else {}
    broken = folder / f"broken-gpu-{os.environ.get('CUDA_VISIBLE_DEVICES')}"
    if broken.exists():
        action = {"do": "kill", "at": 0}
    stopped = []
    signal.signal(signal.SIGTERM, lambda *_: stopped.append(1))
    with Heartbeat.of_environment() as beats:
        beats.job(last, rows=8)
        beats.on_phase(Phase("loading"))
        act(beats, action, 0)
        serves = task["type"] == "ps" or (task["type"] == "worker" and "chief" in os.environ["TF_CONFIG"])
        if serves:
            serve(beats, action, stopped)
        else:
            train(folder, last, beats, action, stopped)


def serve(beats, action, stopped):
    """Works for the chief until it is told to end."""
    beats.on_phase(Phase("serving", "nothing"))
    ticks = 0
    while not stopped:
        ticks += 1
        act(beats, action, ticks)
        time.sleep(SECONDS)
    sys.exit(75)


def train(folder, last, beats, action, stopped):
    saved = folder / "step"
    start = step = read(saved)
    Output().print(f"begins at step {step}")
    while step < last:
        time.sleep(SECONDS)
        step += 1
        spent = Spent(step - start, SECONDS * (step - start))
        beats.on_loop(Progress(step, {"total_loss": 0.5}, spent, Spent(1, 0.001), None))
        act(beats, action, step)
        if stopped:
            with beats._lock:  # as a library does that holds the interpreter's lock
                time.sleep(SAVE_SECONDS)
            write(saved, max(step, read(saved)))
            (folder / f"ckpt-{step}.index").touch()
            print(f"fake: stopped, step {step} is saved", file=sys.stderr, flush=True)
            sys.exit(75)
    write(saved, step)
    print(f"done at step {step}", flush=True)


def act(beats, action, step):
    if action.get("at") != step:
        return
    if "lost" in action:
        beats.on_lost(action["lost"])
    if action.get("save"):
        (pathlib.Path(flag("model_dir")) / f"ckpt-{action['save']}.index").touch()
    if "say" in action:
        print(action["say"], file=sys.stderr, flush=True)
    if action["do"] == "exit":
        sys.exit(action["code"])
    if action["do"] == "kill":
        os.kill(os.getpid(), signal.SIGKILL)
    if action["do"] == "stop":
        os.kill(os.getpid(), signal.SIGSTOP)
    if action["do"] == "hang":  # while its heart beats
        time.sleep(1000)


main()
