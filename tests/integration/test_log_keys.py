"""`--log_keys`: the log matches the training, `pipeline.audit --observed` accepts it, and nothing else changes."""

import json
import signal

import pytest

from pipeline import input_fn
from pipeline.audit import __main__ as audit
from pipeline.errors import DataError, UsageError
from tests.helpers.datasets import Kind, write_dataset
from tests.helpers.runs import checkpoint_bytes, finish, saved_steps, start, start_workers, succeed, wait_for_step
from trainer import run

COUNTS = (30, 0, 25, 44)  # 99 records
BATCH, T = 12, 9
ORDER = (
    f"--global_batch_size={BATCH}",
    "--streams=4",
    f"--shuffle_bytes={4 * 9 * 144}",
)  # windows of 9 records or less
STRATEGIES = {
    "one_device": (),
    "mirrored": ("--strategy=mirrored", "--num_replicas=2"),
    "central_storage": ("--strategy=central_storage", "--num_replicas=2"),
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


@pytest.mark.parametrize(
    "strategy", [pytest.param(one, marks=[pytest.mark.slow] if one != "mirrored" else []) for one in STRATEGIES]
)
def test_the_log_is_the_order_and_training_is_the_same_with_it(strategy, data, tmp_path, capsys):
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
    arguments = {"global_batch_size": BATCH, "training": True, "streams": 4, "shuffle_bytes": 4 * 9 * 144}
    images, _, weights = next(iter(input_fn(data, **arguments).as_numpy_iterator()))
    numbers = images.reshape(BATCH, -1)[:, :2].astype(int) @ [1, 256]
    assert [int(key.split("#")[1]) for key in first["keys"]] == numbers.tolist()
    assert first["weights"] == weights.tolist()


@pytest.mark.slow
def test_a_run_that_is_killed_and_resumed_on_more_replicas(data, tmp_path, capsys):
    logs, model = tmp_path / "logs", tmp_path / "model"
    flags = flags_of(data, model, f"--log_keys={logs}", "--steps_per_loop=2", "--log_every=2", "--checkpoint_every=20")
    process = start(data, model, *flags[2:], "--train_steps=100000")
    wait_for_step(process, 44)
    process.kill()
    assert finish(process)[0][0] == -signal.SIGKILL
    *_, saved, newest = saved_steps(model)
    for path in model.glob(f"ckpt-{newest}.*"):  # the kill may have come just after a save: some steps are done again
        path.unlink()
    last = (saved // T + 2) * T
    run.main([*flags, f"--train_steps={last}", *STRATEGIES["mirrored"]])
    out = audited(data, logs, capsys)
    assert any(line.startswith("observed: ") and line.endswith(", and are equal") for line in out)
    assert whole_epochs(last // T)[-1] in out
    assert out[-1].endswith("; the run saw just that")


@pytest.mark.slow
def test_two_worker_processes(data, tmp_path, capsys):
    logs = tmp_path / "logs"
    flags = [*ORDER, "--eval_split=none", "--train_steps=22", f"--log_keys={logs}"]
    succeed(*start_workers(data, [tmp_path / "model"] * 2, *flags))
    assert sorted(path.name for path in logs.iterdir()) == ["worker-00000.jsonl", "worker-00001.jsonl"]
    out = audited(data, logs, capsys)
    assert "observed: 22 steps, 0 to 21" in out
    (logs / "worker-00001.jsonl").unlink()
    with pytest.raises(DataError, match="not in the logs; there are logs of 1 of 2 workers"):
        audited(data, logs, capsys)


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


def test_a_folder_that_cannot_be_written_is_one_line(data, tmp_path):
    (tmp_path / "file").write_bytes(b"")
    with pytest.raises(UsageError, match=r"^--log_keys=.*file: is a file, not a folder$"):
        run.main(flags_of(data, tmp_path / "model", "--train_steps=1", f"--log_keys={tmp_path / 'file'}"))
