"""`--log_keys` and `--log_losses`: the rows of each step once, as the order has them, and nothing else changes."""

import json

import keras
import numpy as np
import pytest
import tensorflow as tf

from pipeline import input_fn
from pipeline.audit import __main__ as audit
from pipeline.audit.contract import Contract
from pipeline.errors import DataError, UsageError
from pipeline.request import Request
from pipeline.resolved import resolve_all
from tests.helpers.datasets import Kind, write_dataset
from tests.helpers.lanes import some_slow
from tests.helpers.runs import (
    checkpoint_bytes,
    forget,
    kill,
    saved_steps,
    start,
    start_workers,
    succeed,
    train,
    wait_for_step,
)
from trainer import Task, TrainConfig, loss_log, run

COUNTS = (30, 0, 25, 44)  # 99 records
BATCH, T = 12, 9  # 9 rows of padding in the last step
OPTIONS = {"global_batch_size": BATCH, "streams": 4, "shuffle_bytes": 4 * 9 * 144}  # windows of 9 records or less
ORDER = tuple(f"--{name}={value}" for name, value in OPTIONS.items())
STRATEGIES = {
    "one_device": (),
    "mirrored": ("--strategy=mirrored", "--num_replicas=2"),
    "central_storage": ("--strategy=central_storage", "--num_replicas=2"),
    "virtual": ("--strategy=mirrored", "--num_replicas=2", "--virtual_replicas=4"),
    "device": ("--augment=pad_crop_flip", "--augment_on=device", "--jit_compile"),
}


@pytest.fixture
def data(tmp_path):
    write_dataset(tmp_path / "data", COUNTS)
    return tmp_path / "data"


def flags_of(data, model, *flags):
    return [f"--data_dir={data}", f"--model_dir={model}", *ORDER, "--eval_split=none", *flags]


def audited(data, logs, capsys):
    """Returns the lines of an audit that passes, spaces run together."""
    capsys.readouterr()
    audit.main([str(data), f"--observed={logs}"])
    return [" ".join(line.split()) for line in capsys.readouterr().out.splitlines()]


def whole_epochs(count):
    return [f"{epoch} 9 of 9 99 0 0 0 0 0" for epoch in range(count)]


def records_of(data, steps):
    """Returns (step, record) of every real row, sorted, by the order alone."""
    contract = Contract.of(resolve_all(Request(data, training=True, **OPTIONS)).first)
    batches = [(step, *contract.batch(step)) for step in range(steps)]
    return sorted((step, record) for step, records, real in batches for record in records[real].tolist())


def losses_of(log):
    """Returns {step: mean loss}, weighted, of a log."""
    rows = loss_log.read(log)
    return {step: float(rows["loss"][rows["step"] == step].mean()) for step in np.unique(rows["step"]).tolist()}


@pytest.mark.parametrize("strategy", some_slow(["one_device", "mirrored", "central_storage"], ["mirrored"]))
def test_the_keys_are_the_order_and_training_is_the_same_with_them(strategy, data, tmp_path, capsys):
    logs, flags = tmp_path / "logs", (*STRATEGIES[strategy], "--train_steps=20", "--steps_per_loop=7")
    run.main(flags_of(data, tmp_path / "logged", *flags, f"--log_keys={logs}"))
    run.main(flags_of(data, tmp_path / "plain", *flags))
    assert checkpoint_bytes(tmp_path / "logged", 20) == checkpoint_bytes(tmp_path / "plain", 20)
    assert [path.name for path in logs.iterdir()] == ["worker-00000.jsonl"]
    lines = [json.loads(line) for line in (logs / "worker-00000.jsonl").read_text().splitlines()]
    replicas = 1 if strategy == "one_device" else 2
    assert (lines[0]["worker"], lines[0]["workers"], lines[0]["replicas"]) == (0, 1, replicas)
    assert [(line["step"], line["replica"]) for line in lines[1:]] == [
        (s, r) for s in range(20) for r in range(replicas)
    ]
    assert {len(line["keys"]) for line in lines[1:]} == {BATCH // replicas}
    out = audited(data, logs, capsys)
    assert "observed: 20 steps, 0 to 19" in out
    assert [line for line in out if line.startswith(("0 9 of", "1 9 of"))] == whole_epochs(2)
    assert out[-1].endswith("; the run saw just that")


@pytest.mark.slow
def test_a_convolution_on_several_replicas_is_trained_to_the_same_bits_with_it(tmp_path):
    """In the loop that runs without it, oneDNN must sum the gradients of a first layer in the same way."""
    write_dataset(tmp_path / "data", (100, 92), (28, 28, 1), (4,), 10)
    flags = [f"--data_dir={tmp_path / 'data'}", "--model=lenet", "--augment=shift", "--global_batch_size=48"]
    flags += [*STRATEGIES["mirrored"], "--eval_split=none", "--train_steps=1"]
    for model, more in (
        ("plain", []),
        ("logged", [f"--log_keys={tmp_path / 'logs'}"]),
        ("shown", ["--summary_every=1"]),
    ):
        run.main([*flags, f"--model_dir={tmp_path / model}", *more])
    plain = checkpoint_bytes(tmp_path / "plain", 1)
    assert [checkpoint_bytes(tmp_path / model, 1) == plain for model in ("logged", "shown")] == [True, True]


def test_the_keys_are_those_of_the_images_that_were_trained_on(data, tmp_path):
    """The first two bytes of an image are its number, and so are the keys; a model of the images sees both."""
    logs = tmp_path / "logs"
    run.main(flags_of(data, tmp_path / "model", "--train_steps=3", f"--log_keys={logs}"))
    (log,) = logs.iterdir()
    first = json.loads(log.read_text().splitlines()[1])
    images, _, weights = next(iter(input_fn(data, training=True, **OPTIONS).as_numpy_iterator()))
    numbers = images.reshape(BATCH, -1)[:, :2].astype(int) @ [1, 256]
    assert [int(key.split("#")[1]) for key in first["keys"]] == numbers.tolist()
    assert first["weights"] == weights.tolist()


@pytest.mark.slow
def test_the_keys_of_a_run_that_is_killed_and_resumed_on_more_replicas(data, tmp_path, capsys):
    logs, model = tmp_path / "logs", tmp_path / "model"
    flags = flags_of(data, model, f"--log_keys={logs}", "--steps_per_loop=2", "--log_every=2", "--checkpoint_every=20")
    process = start(data, model, *flags[2:], "--train_steps=100000")
    wait_for_step(process, 44)
    kill(process)
    *_, saved, newest = saved_steps(model)
    forget(model, newest)  # the kill may have come just after a save: some steps are done again
    last = (saved // T + 2) * T
    run.main([*flags, f"--train_steps={last}", *STRATEGIES["mirrored"]])
    out = audited(data, logs, capsys)
    assert any(line.startswith("observed: ") and line.endswith(", and are equal") for line in out)
    assert whole_epochs(last // T)[-1] in out
    assert out[-1].endswith("; the run saw just that")


@pytest.mark.slow
@pytest.mark.parametrize(
    "kind",
    [Kind("png", varied=True), Kind(extra=True), Kind(compression="GZIP", unequal_keys=True)],
    ids=["PNG of several sizes", "more features", "GZIP"],
)
def test_data_of_any_form_is_logged_alike(kind, tmp_path, capsys):
    write_dataset(tmp_path / "data", COUNTS, kind=kind)
    logs, size = tmp_path / "logs", "--resize=16x12" if kind.varied else "--train_split=train"
    run.main(flags_of(tmp_path / "data", tmp_path / "model", "--train_steps=10", f"--log_keys={logs}", size))
    out = audited(tmp_path / "data", logs, capsys)
    assert whole_epochs(1)[0] in out


@pytest.mark.slow
@pytest.mark.parametrize("strategy", STRATEGIES)
def test_each_row_has_its_loss_and_training_is_the_same_with_it(strategy, data, tmp_path):
    log, scalars = tmp_path / "log", tmp_path / "scalars.jsonl"
    flags = (*STRATEGIES[strategy], "--train_steps=20", "--steps_per_loop=7", "--summary_every=1")
    logs = [f"--log_losses={log}", f"--metrics_jsonl={scalars}"]
    for model, more in (("logged", logs), ("plain", [])):
        given = flags_of(data, tmp_path / model, *flags, *more)
        if strategy != "virtual":
            run.main(given)
        else:  # sets TensorFlow's threads
            train(data, tmp_path / model, *given[2:])
    assert checkpoint_bytes(tmp_path / "logged", 20) == checkpoint_bytes(tmp_path / "plain", 20)
    rows = loss_log.read(log)
    assert sorted(rows[["step", "record"]].tolist()) == records_of(data, 20)
    written = [json.loads(line) for line in scalars.read_text().splitlines()]
    expected = {line["step"] - 1: line["train/loss"] for line in written if "train/loss" in line}
    assert losses_of(log) == pytest.approx({step: expected[step] for step in range(20)}, rel=2e-4)


@pytest.mark.slow
def test_the_losses_of_a_run_that_resumes_are_each_steps_once(data, tmp_path):
    """Killed between two checkpoints, while writing a row; then on another number of replicas, and with a key log."""
    log, model = tmp_path / "log", tmp_path / "run"
    flags = flags_of(data, model, f"--log_losses={log}", "--checkpoint_every=10")
    run.main([*flags, "--train_steps=17"])
    before = loss_log.read(log, 0, 10).tolist()
    forget(model, 17)
    with (log / "worker-00000.losses").open("ab") as file:
        file.write(b"\x11\x00\x00")
    run.main([*flags, "--train_steps=22", *STRATEGIES["mirrored"], f"--log_keys={tmp_path / 'keys'}"])
    rows = loss_log.read(log)
    assert sorted(rows[["step", "record"]].tolist()) == records_of(data, 22)
    assert loss_log.read(log, 0, 10).tolist() == before
    lines = [json.loads(line) for line in (tmp_path / "keys" / "worker-00000.jsonl").read_text().splitlines()[1:]]
    keys = sorted(
        (line["step"], int(key[-5:]))
        for line in lines
        for key, w in zip(line["keys"], line["weights"], strict=True)
        if w
    )
    assert keys == [row for row in records_of(data, 22) if row[0] >= 10]
    with pytest.raises(UsageError, match=r"^--log_losses=.*log: has the losses of a run with another model_dir"):
        run.main(flags_of(data, tmp_path / "other", f"--log_losses={log}", "--train_steps=3"))
    assert len(loss_log.read(log)) == len(rows)


@pytest.mark.slow
def test_two_worker_processes(data, tmp_path, capsys):
    keys, losses = tmp_path / "keys", tmp_path / "losses"
    flags = [*ORDER, "--eval_split=none", f"--log_losses={losses}"]
    workers = start_workers(data, [tmp_path / "run"] * 2, *flags, f"--log_keys={keys}", "--train_steps=22")
    succeed(*workers)
    assert sorted(path.name for path in keys.iterdir()) == ["worker-00000.jsonl", "worker-00001.jsonl"]
    found = sorted(path.name for path in losses.iterdir())
    assert found == ["losses.json", "worker-00000.losses", "worker-00001.losses"]
    assert "observed: 22 steps, 0 to 21" in audited(data, keys, capsys)
    assert sorted(loss_log.read(losses)[["step", "record"]].tolist()) == records_of(data, 22)
    run.main(flags_of(data, tmp_path / "run", f"--log_losses={losses}", "--train_steps=26"))
    assert sorted(loss_log.read(losses)[["step", "record"]].tolist()) == records_of(data, 26)
    (keys / "worker-00001.jsonl").unlink()
    with pytest.raises(DataError, match="not in the logs; there are logs of 1 of 2 workers"):
        audited(data, keys, capsys)


class Numbers(Task):
    """Reads records by itself; the loss of a row is its label, and the model is hardly used."""

    @staticmethod
    def parse(records):
        parsed = tf.io.parse_example(records, {"label": tf.io.FixedLenFeature([], tf.int64)})
        return tf.cast(parsed["label"], tf.float32)[:, None], parsed["label"]

    def build_model(self):
        return keras.Sequential([keras.Input((1,)), keras.layers.Dense(1)])

    def train_step(self, model, features, labels):
        return tf.cast(labels, tf.float32) + 0.0 * tf.reduce_sum(model(features, training=True), axis=1), {}


@pytest.mark.slow
def test_the_losses_of_a_task_with_its_own_parse_function(data, tmp_path):
    flags = {"eval_split": "none", "global_batch_size": BATCH, "train_steps": T, "log_losses": str(tmp_path / "log")}
    run.train(TrainConfig.of(data_dir=str(data), model_dir=str(tmp_path / "run"), **flags), task=Numbers)
    rows = loss_log.read(tmp_path / "log")
    assert sorted(rows["record"].tolist()) == list(range(99))
    assert rows["loss"].tolist() == (rows["record"] % 3).tolist()


def test_flags_that_do_not_go_together(data, tmp_path):
    log = f"--log_losses={tmp_path / 'log'}"
    with pytest.raises(
        UsageError, match=r"^--headspace=3 with --log_losses=.*: waiting for input is not measured then"
    ):
        run.main(flags_of(data, tmp_path / "run", log, "--headspace=3"))
    hosts = ["--strategy=parameter_server", "--worker_hosts=localhost:1", "--ps_hosts=localhost:2", "--job_name=worker"]
    with pytest.raises(UsageError, match=r"^--log_losses=.* with --strategy=parameter_server: is not supported"):
        run.main(flags_of(data, tmp_path / "run", log, *hosts, "--task_index=0"))


@pytest.mark.parametrize("flag", ["log_keys", "log_losses"])
def test_a_folder_that_cannot_be_written_is_one_line(flag, data, tmp_path):
    (tmp_path / "file").touch()
    with pytest.raises(UsageError, match=rf"^--{flag}=.*file: is a file, not a folder$"):
        run.main(flags_of(data, tmp_path / "model", "--train_steps=1", f"--{flag}={tmp_path / 'file'}"))
