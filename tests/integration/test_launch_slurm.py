"""The batch script with two real workers: saved before the time limit, requeued, and done."""

import re
import sys

import pytest

from tests.helpers.forked import ROOT, free_ports
from tests.helpers.runs import checkpoint_bytes, start_workers, succeed
from tests.helpers.slurm import Slurm
from trainer import launch

STEPS = 600


@pytest.mark.slow
def test_two_workers_are_stopped_before_the_time_limit_and_go_on(digits, tmp_path, capsys, request):
    flags = (f"--data_dir={digits}", "--model=mlp", f"--train_steps={STEPS}", "--log_every=25", "--steps_per_loop=10")
    shared = ("--target=slurm", "--num_workers=2", "--tasks_per_node=2", "--time_limit=1:00:00")
    port = free_ports(1)[0]
    launch.main([*shared, f"--port={port}", "--", *flags, f"--model_dir={tmp_path}/run"])
    script = capsys.readouterr().out
    slurm = Slurm(tmp_path / "slurm")
    request.addfinalizer(slurm.end)
    slurm.command("python", f'#!/bin/bash\nPYTHONUNBUFFERED=1 PYTHONPATH={ROOT} exec {sys.executable} "$@"\n')
    process = slurm.start(script, hosts="localhost")
    for line in process.stdout:
        if "step 50, loss" in line:
            break
    slurm.warn(process)
    out, _ = process.communicate(timeout=300)
    assert process.returncode == 75, out
    saved = re.findall(rf"training stopped by SIGTERM: step (\d+) of {STEPS} is saved", out)
    assert len(saved) == 2
    assert saved[0] == saved[1]
    assert slurm.requeued() == 1

    code, out = slurm.run(script, hosts="localhost")
    assert code == 0, out
    assert f"resumed from {tmp_path}/run/ckpt-{saved[0]}" in out
    assert slurm.requeued() == 1
    succeed(*start_workers(digits, [tmp_path / "undisturbed"] * 2, *flags[1:]))
    assert checkpoint_bytes(tmp_path / "run", STEPS) == checkpoint_bytes(tmp_path / "undisturbed", STEPS)
