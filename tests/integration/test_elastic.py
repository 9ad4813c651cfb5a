"""Restarts with another number of workers in the middle of an epoch: real processes, and the keys they trained on."""

import collections
import dataclasses
import json
import re
import signal

import numpy as np
import pytest
import tensorflow as tf

from pipeline.audit import __main__ as audit
from tests.helpers.datasets import key_of, write_dataset
from tests.helpers.runs import finish, saved_steps, start_workers, train, wait_for_step

COUNTS = (23, 0, 41, 17, 30, 12, 40)  # 163 records
BATCH, STREAMS, RECORD_BYTES = 12, 6, 144
T = 14  # steps an epoch; no multiple of it is a step at which a run below stops, or a multiple of SAVE before LAST
LOOP, SAVE, LAST = 3, 27, 84
FLAGS = (
    *(f"--global_batch_size={BATCH}", f"--train_steps={LAST}", "--eval_split=none"),
    *(f"--streams={STREAMS}", f"--shuffle_bytes={STREAMS * 9 * RECORD_BYTES}"),  # windows of 9 of a stream's 27
    *(f"--steps_per_loop={LOOP}", f"--log_every={LOOP}", f"--checkpoint_every={SAVE}", "--collective_timeout=60"),
)


@dataclasses.dataclass(frozen=True)
class Stage:
    """A start of all workers.

    Attributes:
      workers: number of workers.
      end: signal that ends them; None if they reach the last step.
    """

    workers: int
    end: signal.Signals | None = None


@dataclasses.dataclass(frozen=True)
class Run:
    """The result of a stage: steps from `first` to before `saved` count; later ones are lost and repeated."""

    workers: int
    first: int
    saved: int


def play(stage, first, data, model, logs):
    """Runs a stage from step `first`; returns the step that the next one resumes from."""
    workers = start_workers(data, [model] * stage.workers, *FLAGS, f"--log_keys={logs}")
    if stage.end is signal.SIGTERM:  # to one of them
        wait_for_step(workers[0], first + 2 * LOOP)
        workers[-1].terminate()
    elif stage.end is signal.SIGKILL:  # to all, some steps after a checkpoint
        wait_for_step(workers[0], (first // SAVE + 1) * SAVE + 4 * LOOP)
        for worker in workers:
            worker.kill()
    ended = finish(*workers)
    code = {None: 0, signal.SIGTERM: 75, signal.SIGKILL: -signal.SIGKILL}[stage.end]
    assert [found for found, _, _ in ended] == [code] * stage.workers, ended
    if stage.end is signal.SIGTERM:
        return int(re.search(r": step (\d+) of 84 is saved", ended[0][2])[1])
    return saved_steps(model)[-1]


def logged(logs):
    """Returns {workers: {step: {replica: [(key, weight)]}}} from all logs; each stage has another number of workers."""
    found = collections.defaultdict(lambda: collections.defaultdict(dict))
    for path in sorted(logs.iterdir()):
        for line in path.read_text().splitlines():
            try:
                content = json.loads(line)
            except ValueError:
                continue  # truncated by the kill; the next header follows
            if "workers" in content:
                workers = content["workers"]
            else:
                rows = list(zip(content["keys"], content["weights"], strict=True))
                found[workers][content["step"]][content["replica"]] = rows
    return found


def batch(replicas, workers):
    """Returns the rows of a global batch, or None if a replica's are missing."""
    return [row for i in range(workers) for row in replicas[i]] if len(replicas) == workers else None


def check_keys(logs, runs):
    """Checks every step that counts, and that repeated steps were identical; returns the number of repeated ones."""
    found, batches, again = logged(logs), {}, 0
    for run in runs:
        for step in range(run.first, run.saved):
            batches[step] = batch(found[run.workers][step], run.workers)
    for run in runs:
        assert min(found[run.workers]) == run.first
        for step, replicas in found[run.workers].items():
            rows = batch(replicas, run.workers)
            assert rows is None or rows == batches[step]
            again += step >= run.saved
    assert sorted(batches) == list(range(LAST))
    everything = {key_of("train", number).decode() for number in range(sum(COUNTS))}
    for epoch in range(LAST // T):
        rows = [row for step in range(epoch * T, (epoch + 1) * T) for row in batches[step]]
        assert len(rows) == T * BATCH
        real = [key for key, weight in rows if weight == 1.0]
        assert len(real) == len(everything)
        assert set(real) == everything
        assert {weight for _, weight in rows} <= {0.0, 1.0}
    return again


def play_all(stages, tmp_path, capsys):
    """Runs the stages one after the other and checks their batches; returns the audit's output."""
    data, model, logs = tmp_path / "data", tmp_path / "model", tmp_path / "logs"
    write_dataset(data, COUNTS)
    runs, first = [], 0
    for stage in stages:
        saved = play(stage, first, data, model, logs)
        runs.append(Run(stage.workers, first, saved))
        first = saved
    assert all(run.saved % T for run in runs[:-1]), runs  # in the middle of an epoch
    again = check_keys(logs, runs)
    assert again > 0  # the kill lost steps
    capsys.readouterr()
    audit.main([str(data), f"--observed={logs}"])
    return capsys.readouterr().out


def check_audit(out):
    rows = [" ".join(line.split()) for line in out.splitlines()]
    assert re.search(
        r"^observed: 84 steps, 0 to 83; [\d,]+ rows were done again after a resume, and are equal$", out, re.M
    )
    for epoch in range(LAST // T):
        assert f"{epoch} 14 of 14 163 0 0 0 0 0" in rows
    assert rows[-1].endswith("; the run saw just that")


def test_two_workers_killed_and_one_goes_on(tmp_path, capsys):
    check_audit(play_all([Stage(2, signal.SIGKILL), Stage(1)], tmp_path, capsys))


@pytest.mark.slow
def test_three_workers_then_two_then_four(tmp_path, capsys):
    stages = [Stage(3, signal.SIGTERM), Stage(2, signal.SIGKILL), Stage(4)]
    check_audit(play_all(stages, tmp_path, capsys))


@pytest.mark.slow
def test_a_run_that_changes_its_strategy(digits, tmp_path):
    """Sums of floats depend on the number of replicas, in their last bits only: the batches are the same."""
    stages = [
        ("--strategy=mirrored", "--num_replicas=2"),
        ("--strategy=central_storage", "--num_replicas=4"),
        ("--strategy=one_device",),
        ("--strategy=mirrored", "--num_replicas=4"),
    ]
    flags = ("--augment=shift(pixels=2)", "--eval_split=none", "--global_batch_size=64")
    last = 10 * len(stages)
    for step, stage in enumerate(stages, 1):
        train(digits, tmp_path / "changing", *stage, *flags, f"--train_steps={10 * step}")
    train(digits, tmp_path / "one", *flags, f"--train_steps={last}")
    readers = [tf.train.load_checkpoint(str(tmp_path / name / f"ckpt-{last}")) for name in ("changing", "one")]
    names = [name for name in readers[0].get_variable_to_shape_map() if name.startswith(("model", "optimizer"))]
    assert len(names) > 8
    for name in names:
        changed, one = (reader.get_tensor(name) for reader in readers)
        np.testing.assert_allclose(changed, one, atol=1e-5)
