"""`--log_losses`: the rows of each step once, whatever the strategy, and nothing else changes."""

import json

import numpy as np
import pytest
import tensorflow as tf

from pipeline.audit.contract import Contract
from pipeline.errors import UsageError
from pipeline.request import Request
from pipeline.resolved import resolve_all
from tests.helpers.datasets import write_dataset
from tests.helpers.runs import checkpoint_bytes, start_workers, succeed, train
from trainer import Task, loss_log, run

COUNTS = (30, 0, 25, 44)  # 99 records
BATCH, T = 12, 9  # 9 rows of padding in the last step
ORDER = (f"--global_batch_size={BATCH}", "--streams=4", f"--shuffle_bytes={4 * 9 * 144}")
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


def records_of(data, steps):
    """Returns (step, record) of every real row, sorted, by the order alone."""
    options = {"global_batch_size": BATCH, "streams": 4, "shuffle_bytes": 4 * 9 * 144}
    contract = Contract.of(resolve_all(Request(data, training=True, **options)).first)
    batches = [(step, *contract.batch(step)) for step in range(steps)]
    return sorted((step, record) for step, records, real in batches for record in records[real].tolist())


def losses_of(log):
    """Returns {step: mean loss}, weighted, of a log."""
    rows = loss_log.read(log)
    return {step: float(rows["loss"][rows["step"] == step].mean()) for step in np.unique(rows["step"]).tolist()}


@pytest.mark.slow
@pytest.mark.parametrize(
    "strategy", [pytest.param(one, marks=[pytest.mark.slow] if one != "mirrored" else []) for one in STRATEGIES]
)
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
def test_a_run_that_resumes_has_each_step_once(data, tmp_path):
    """Killed between two checkpoints, while writing a row; then on another number of replicas, and with a key log."""
    log, model = tmp_path / "log", tmp_path / "run"
    flags = flags_of(data, model, f"--log_losses={log}", "--checkpoint_every=10")
    run.main([*flags, "--train_steps=17"])
    before = loss_log.read(log, 0, 10).tolist()
    for path in model.glob("ckpt-17.*"):
        path.unlink()
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
    (tmp_path / "file").touch()
    with pytest.raises(UsageError, match=r"^--log_losses=.*file: is a file, not a folder$"):
        run.main(flags_of(data, model, f"--log_losses={tmp_path / 'file'}", "--train_steps=23"))


def test_flags_that_do_not_go_together(data, tmp_path):
    log = f"--log_losses={tmp_path / 'log'}"
    with pytest.raises(
        UsageError, match=r"^--headspace=3 with --log_losses=.*: waiting for input is not measured then"
    ):
        run.main(flags_of(data, tmp_path / "run", log, "--headspace=3"))
    hosts = ["--strategy=parameter_server", "--worker_hosts=localhost:1", "--ps_hosts=localhost:2", "--job_name=worker"]
    with pytest.raises(UsageError, match=r"^--log_losses=.* with --strategy=parameter_server: is not supported"):
        run.main(flags_of(data, tmp_path / "run", log, *hosts, "--task_index=0"))


class Numbers(Task):
    """Reads records by itself; the loss of a row is its label, and the model is hardly used."""

    @staticmethod
    def parse(records):
        parsed = tf.io.parse_example(records, {"label": tf.io.FixedLenFeature([], tf.int64)})
        return tf.cast(parsed["label"], tf.float32)[:, None], parsed["label"]

    def build_model(self):
        import keras

        return keras.Sequential([keras.Input((1,)), keras.layers.Dense(1)])

    def train_step(self, model, features, labels):
        return tf.cast(labels, tf.float32) + 0.0 * tf.reduce_sum(model(features, training=True), axis=1), {}


@pytest.mark.slow
def test_a_task_with_its_own_parse_function(data, tmp_path):
    from trainer import TrainConfig

    flags = {"eval_split": "none", "global_batch_size": BATCH, "train_steps": T, "log_losses": str(tmp_path / "log")}
    run.train(TrainConfig.of(data_dir=str(data), model_dir=str(tmp_path / "run"), **flags), task=Numbers)
    rows = loss_log.read(tmp_path / "log")
    assert sorted(rows["record"].tolist()) == list(range(99))
    assert rows["loss"].tolist() == (rows["record"] % 3).tolist()


@pytest.mark.slow
def test_two_worker_processes(data, tmp_path):
    log = tmp_path / "log"
    flags = [*ORDER, "--eval_split=none", "--train_steps=22", f"--log_losses={log}"]
    succeed(*start_workers(data, [tmp_path / "run"] * 2, *flags))
    assert sorted(path.name for path in log.iterdir()) == ["losses.json", "worker-00000.losses", "worker-00001.losses"]
    assert sorted(loss_log.read(log)[["step", "record"]].tolist()) == records_of(data, 22)
    run.main(flags_of(data, tmp_path / "run", f"--log_losses={log}", "--train_steps=26"))
    assert sorted(loss_log.read(log)[["step", "record"]].tolist()) == records_of(data, 26)
