"""`trainer.replay`: names the rows that spoil a step, and says whether a run's bits agree; it only reads the run."""

import gzip
import json
import pathlib
import re
import shutil
from collections.abc import Collection

import numpy as np
import pytest
import tensorflow as tf
from PIL import Image

from pipeline.audit.contract import Contract
from pipeline.errors import DataError, UsageError
from pipeline.manifest import Feature, Manifest, SplitInfo, naming
from pipeline.records import framing, tf_example
from pipeline.request import Request
from pipeline.resolved import resolve_all
from tests.helpers import forked
from tests.helpers.datasets import write_shard
from tests.helpers.runs import kill, saved_steps, start, start_workers_by_flags, succeed, train, wait_for_step
from trainer import loss_log, replay, run

COUNT, BATCH, BAD_STEP = 1900, 100, 17  # 19 steps per epoch
SUFFIX = "/.ATTRIBUTES/VARIABLE_VALUE"
CLASSES, SIDE = 4, 8


def write_poisoned(folder: pathlib.Path, count: int, poisoned: Collection[int] = ()) -> Manifest:
    """Writes a split `train` of images whose class is the bright quarter; the records with these ids are poisoned."""
    random, records = np.random.default_rng(0), []
    labels = random.integers(0, CLASSES, count)
    for number, label in enumerate(labels.tolist()):
        image = random.integers(0, 60, (SIDE, SIDE, 1), np.uint8)
        top, left = 4 * (label // 2), 4 * (label % 2)
        image[top : top + 4, left : left + 4] += 150
        if number in poisoned:
            image = random.integers(0, 256, (SIDE, SIDE, 1), np.uint8)
            label = (int(image.reshape(2, 4, 2, 4).sum((1, 3)).argmin()) + 4) % CLASSES  # noqa: PLW2901
        features = {"image": image.tobytes(), "label": label, "key": b"made#%05d" % number}
        records.append(framing.frame(tf_example.encode(features)))
    return sealed(folder, [records[: count // 2], records[count // 2 :]], (SIDE, SIDE, 1), CLASSES)


def sealed(folder: pathlib.Path, shards: list[list[bytes]], shape: tuple[int, int, int], classes: int) -> Manifest:
    """Writes shards of framed records, and their manifest."""
    folder.mkdir(parents=True, exist_ok=True)
    count = sum(map(len, shards))
    names = [naming.shard_name("train", i, len(shards)) for i in range(len(shards))]
    infos = tuple(write_shard(folder, name, records) for name, records in zip(names, shards, strict=True))
    histogram = (count, *[0] * (classes - 1))  # not read here
    manifest = Manifest(
        dataset="poisoned",
        class_names=tuple(map(str, range(classes))),
        features={"image": Feature("uint8", shape, "raw"), "label": Feature("int64"), "key": Feature("string")},
        splits={"train": SplitInfo(infos, histogram, {f"{shape[0]}x{shape[1]}": count})},
        image_mean=(60.0,),
        image_std=(60.0,),
        source=(),
        options={},
    )
    (folder / naming.MANIFEST).write_bytes(manifest.to_bytes())
    return manifest


def write_mnist(folder: pathlib.Path, source: pathlib.Path, count: int, poisoned: Collection[int] = ()) -> Manifest:
    """Writes MNIST's first images as a split `train`; the records with these ids get noise and the label 1, or 0."""
    with gzip.open(source / "train-images-idx3-ubyte.gz") as file:
        images = np.frombuffer(file.read(16 + 784 * count), np.uint8, offset=16).reshape(count, 28, 28, 1).copy()
    with gzip.open(source / "train-labels-idx1-ubyte.gz") as file:
        labels = np.frombuffer(file.read(8 + count), np.uint8, offset=8).astype(np.int64)
    random = np.random.default_rng(0)
    for record in sorted(poisoned):
        images[record] = random.integers(0, 256, images[record].shape, np.uint8)
        labels[record] = 1 if labels[record] != 1 else 0
    records = [
        framing.frame(
            tf_example.encode({"image": image.tobytes(), "label": int(label), "key": b"train-images#%05d" % i})
        )
        for i, (image, label) in enumerate(zip(images, labels, strict=True))
    ]
    return sealed(folder, [records[i * count // 4 : (i + 1) * count // 4] for i in range(4)], (28, 28, 1), 10)


def ids_of(data, step, batch=BATCH):
    """Returns the record ids of a step's rows."""
    resolved = resolve_all(Request(data, global_batch_size=batch, training=True))
    return Contract.of(resolved.first).batch(step)[0].tolist()


@pytest.fixture(scope="module")
def trained(tmp_path_factory):
    """A folder with `data`, of whose step 17 every other row is poisoned but for 5, `run` and `losses`."""
    folder = tmp_path_factory.mktemp("replay")
    write_poisoned(folder / "data", COUNT)
    write_poisoned(folder / "data", COUNT, set(ids_of(folder / "data", BAD_STEP)[:90:2]))
    flags = ["--model=mlp", f"--global_batch_size={BATCH}", "--checkpoint_every=5", "--eval_split=none"]
    logs = [f"--log_losses={folder / 'losses'}", "--train_steps=22"]
    run.main([f"--data_dir={folder / 'data'}", f"--model_dir={folder / 'run'}", *flags, *logs])
    return folder


def content(folder):
    return {str(path): (path.stat().st_mtime_ns, path.read_bytes()) for path in folder.rglob("*") if path.is_file()}


def shown(capsys, *flags):
    capsys.readouterr()
    replay.main([*map(str, flags), "--json"])
    return json.loads(capsys.readouterr().out)


@pytest.mark.slow
def test_the_rows_that_spoil_a_step_are_named(trained, tmp_path, capsys):
    before = content(trained / "run")
    found = shown(
        capsys, f"--model_dir={trained / 'run'}", f"--step={BAD_STEP}", "--context=2", f"--png={tmp_path}/a.png"
    )
    assert content(trained / "run") == before
    bad = {f"made#{i:05d}" for i in ids_of(trained / "data", BAD_STEP)[:90:2]}
    assert {row["key"] for row in found["rows"] if row["stands_out"]} == bad
    losses = [row["loss"] for row in found["rows"]]
    assert losses == sorted(losses, reverse=True)
    assert len(losses) == BATCH
    assert all(row["stands_out"] == (row["loss"] > found["bound"]) for row in found["rows"])
    assert found["bound"] == pytest.approx(np.median(losses) + 5 * 1.4826 * found["mad"])
    assert found["mad"] == pytest.approx(np.median(np.abs(losses - np.median(losses))))
    assert (found["from"], found["from_step"]) == ("ckpt-15", 15)
    assert list(found["norms_before"]) == ["15", "16"]
    assert found["norm"] > 50 * max(found["norms_before"].values())
    assert found["values"]["loss"] == pytest.approx(np.mean(losses), rel=1e-4)
    # As the run itself has logged them.
    logged = loss_log.read(trained / "losses", BAD_STEP, BAD_STEP + 1)
    assert {row["record"]: row["loss"] for row in found["rows"]} == pytest.approx(
        dict(logged[["record", "loss"]].tolist())
    )
    sheet = np.asarray(Image.open(tmp_path / "a.png"))
    framed = (sheet == (200, 30, 30)).all(axis=2)
    assert framed[30, 4:70].all()  # the frame of the row with the largest loss
    assert not framed[-100:].any()


def test_the_table_of_a_step(trained, capsys):
    replay.main([f"--model_dir={trained / 'run'}", f"--step={BAD_STEP}", "--rows=47"])
    lines = [" ".join(line.split()) for line in capsys.readouterr().out.splitlines()]
    assert lines[0] == "step 17, whose update the trainer's lines call step 18; epoch 0, its step 17 of 19"
    assert lines[1] == "replayed 2 steps from ckpt-15; 1 replica on CPU:0"
    assert re.fullmatch(
        r"gradient norm [\d.]+; step 15 to 16: [\d.]+ to [\d.]+, median [\d.]+, [\d.]+ times that", lines[3]
    )
    assert lines[4].startswith("45 of 100 rows stand out (*): loss above ")
    assert [" * " in line for line in lines[7:54]] == [True] * 45 + [False] * 2
    assert lines[54] == "and 53 more rows of smaller loss: --rows=100 lists them"


@pytest.mark.parametrize(("flags", "step"), [(["--from_start"], 3), ([], 20), ([], 10)])
@pytest.mark.quick(1)
def test_any_step_has_the_losses_that_the_run_has_logged(flags, step, trained, capsys):
    """Before the first checkpoint; padding; at the step of a checkpoint, where the one before it is taken."""
    batch = ids_of(trained / "data", step)
    found = shown(capsys, f"--model_dir={trained / 'run'}", f"--step={step}", *flags)
    logged = loss_log.read(trained / "losses", step, step + 1)
    assert {row["record"]: row["loss"] for row in found["rows"]} == pytest.approx(
        dict(logged[["record", "loss"]].tolist())
    )
    assert {row["record"] for row in found["rows"]} == set(batch)
    assert found["from"] == {3: "the first weights", 20: "ckpt-15", 10: "ckpt-5"}[step]


def with_a_bit_flipped(source, target, step, tensor):
    """Copies a run, with one bit of one value of a tensor in a checkpoint flipped, and its checksum made right."""
    shutil.copytree(source, target)
    path = str(target / f"ckpt-{step}")
    reader = tf.train.load_checkpoint(path)
    values = {name: reader.get_tensor(name) for name in reader.get_variable_to_shape_map()}
    changed = values[f"{tensor}{SUFFIX}"].copy()
    changed.reshape(-1).view(np.uint32)[7] ^= 1 << 20
    values[f"{tensor}{SUFFIX}"] = changed
    names = list(values)
    tf.raw_ops.SaveV2(
        prefix=path, tensor_names=names, shape_and_slices=[""] * len(names), tensors=list(values.values())
    )


def test_the_bits_of_a_run_agree(trained, capsys):
    before = content(trained / "run")
    found = shown(capsys, f"--model_dir={trained / 'run'}", "--verify=0:22")
    assert found["equal"]
    assert [(one["checkpoint"], one["differences"]) for one in found["compared"]] == [
        (f"ckpt-{step}", []) for step in (5, 10, 15, 20, 22)
    ]
    assert found["compared"][0]["tensors"] > 15
    replay.main([f"--model_dir={trained / 'run'}", "--verify"])
    assert re.match(r"ckpt-22: 2 steps after ckpt-20, all bits of \d+ tensors agree", capsys.readouterr().out)
    assert content(trained / "run") == before


def test_a_flipped_bit_is_found(trained, tmp_path, capsys):
    with_a_bit_flipped(trained / "run", tmp_path / "run", 15, "optimizer/_trainable_variables/2")
    with pytest.raises(DataError) as caught:
        replay.main([f"--model_dir={tmp_path / 'run'}", "--verify=10:20"])
    assert re.match(
        r"ckpt-15: 5 steps after ckpt-10, is not .*: mlp/dense\w*/kernel differs in 1 of \d[\d,]+ values, by up to ",
        str(caught.value),
    )
    assert str(caught.value).endswith("; 1 of its 19 tensors differ")
    assert caught.value.exit_code == 1
    replay.main([f"--model_dir={tmp_path / 'run'}", "--verify=5:10"])  # what lies before it is right


@pytest.mark.slow
def test_flags_of_the_run_that_changed_and_data_that_moved(trained, tmp_path, capsys):
    shutil.copytree(trained / "run", tmp_path / "run")
    flags = [f"--data_dir={trained / 'data'}", f"--model_dir={tmp_path / 'run'}", "--model=mlp", "--eval_split=none"]
    run.main([*flags, f"--global_batch_size={BATCH}", "--learning_rate=0.01", "--train_steps=24"])
    with pytest.raises(UsageError, match=r"after ckpt-22 .*--learning_rate was 0.05, is 0.01.*--verify=15:22$"):
        replay.main([f"--model_dir={tmp_path / 'run'}", "--verify=15:24"])
    assert shown(capsys, f"--model_dir={tmp_path / 'run'}", "--verify=22:24")["equal"]
    # The step after the change has the weights that led to it, which the flags of today do not give.
    found = shown(capsys, f"--model_dir={tmp_path / 'run'}", "--step=22")
    assert (found["from"], found["norms_before"]) == ("ckpt-22", {})
    with pytest.raises(UsageError, match=r"after ckpt-22 .*--learning_rate was 0.05, is 0.01.*leave out --from_start$"):
        replay.main([f"--model_dir={tmp_path / 'run'}", "--step=22", "--from_start"])
    (trained / "data").rename(tmp_path / "moved")
    try:
        with pytest.raises(DataError, match="data: if they have moved, give --data_dir$"):
            replay.main([f"--model_dir={tmp_path / 'run'}", "--verify"])
        assert shown(capsys, f"--model_dir={tmp_path / 'run'}", "--verify", f"--data_dir={tmp_path / 'moved'}")["equal"]
        write_poisoned(tmp_path / "others", COUNT)
        with pytest.raises(DataError, match="others: is not what .*ckpt-5 was trained on: manifest_digest was"):
            replay.main(
                [f"--model_dir={tmp_path / 'run'}", "--step=3", "--from_start", f"--data_dir={tmp_path}/others"]
            )
    finally:
        (tmp_path / "moved").rename(trained / "data")


def test_the_step_that_broke_a_run(trained, tmp_path, capsys):
    """The run ends with weights that are not finite; their step is made again from the checkpoint before it."""
    flags = [
        "--model=mlp",
        f"--global_batch_size={BATCH}",
        "--eval_split=none",
        "--learning_rate=1e18",
        "--optimizer=sgd",
    ]
    with pytest.raises(DataError, match="^step 2: loss is ") as caught:
        run.main([f"--data_dir={trained / 'data'}", f"--model_dir={tmp_path}", *flags, "--checkpoint_every=1"])
    assert "ckpt-1" in str(caught.value)
    found = shown(capsys, f"--model_dir={tmp_path}", "--step=1")
    assert (found["from"], found["norms_before"]) == ("ckpt-1", {})
    assert found["values"]["loss"] > 1e30
    assert found["rows"][0]["loss"] > 1e30
    with pytest.raises(DataError, match="^step 1: its loss, or a weight after it, is NaN or infinite; --step=1 shows"):
        replay.main([f"--model_dir={tmp_path}", "--step=4"])


@pytest.mark.slow
def test_a_skipped_step_has_nothing_to_show(trained, tmp_path, capsys):
    flags = [f"--data_dir={trained / 'data'}", f"--model_dir={tmp_path}", "--model=mlp", "--eval_split=none"]
    run.main([*flags, f"--global_batch_size={BATCH}", "--checkpoint_every=2", "--skip_steps=4:6", "--train_steps=8"])
    with pytest.raises(UsageError, match=r"--step=5: the run skipped it \(--skip_steps=4:6\)"):
        replay.main([f"--model_dir={tmp_path}", "--step=5"])
    found = shown(capsys, f"--model_dir={tmp_path}", "--step=7", "--from_start")
    assert [int(step) for step in found["norms_before"]] == [0, 1, 2, 3, 6]


@pytest.mark.parametrize(
    ("flags", "error", "facts"),
    [
        (["--step=3"], UsageError, "^--step=3: .*run has no checkpoint before it, the oldest is ckpt-5; --from_start"),
        (["--step=22"], UsageError, "^--step=22: the run ends with step 21$"),
        ([], UsageError, "^--step=NUMBER or --verify: is missing"),
        (["--step=3", "--verify"], UsageError, "^--step=3 and --verify=newest"),
        (["--verify=15"], UsageError, "^--verify=15: must be FROM:TO"),
        (["--verify=20:15"], UsageError, "^--verify=20:15: must be FROM:TO"),
        (["--verify=15:21"], UsageError, "has no ckpt-21; there are 5, 10, 15, 20, 22$"),
        (["--verify", "--from_start"], UsageError, "^--from_start: is for --step"),
        (["--verify", "--context=0"], UsageError, "^--context=0: is for --step, not for --verify=newest"),
        (["--verify=15:20", "--rows=3"], UsageError, "^--rows=3: is for --step, not for --verify=15:20"),
        (["--step=3", "--json", "--rows=3"], UsageError, "^--rows=3 with --json"),
        (["--step=17", "--png=a.gif"], UsageError, "^--png=a.gif: .*.png"),
        (["--step=17", "--strategy=multiworker"], UsageError, "^--strategy: unknown 'multiworker'"),
        (["--step=17", "--num_replicas=3"], UsageError, "3 replicas"),
    ],
)
def test_what_cannot_be_replayed_is_one_line(flags, error, facts, trained):
    with pytest.raises(error, match=facts) as caught:
        replay.main([f"--model_dir={trained / 'run'}", *flags])
    assert "\n" not in str(caught.value)


def test_a_folder_without_a_run_is_one_line(trained, tmp_path):
    with pytest.raises(UsageError, match="data: is a data set"):
        replay.main([f"--model_dir={trained / 'data'}", "--step=3"])
    with pytest.raises(DataError, match="nothing: there is no such folder"):
        replay.main([f"--model_dir={tmp_path / 'nothing'}", "--step=3"])


def test_losses_that_stand_out():
    found = replay.judged(np.array([1.0, 1.1, 0.9, 1.0, 8.0, np.nan, np.inf], np.float32))
    assert found.stands_out.tolist() == [False] * 4 + [True] * 3
    assert (found.median, found.bound) == pytest.approx((1.0, 1.0 + 5 * 1.4826 * 0.1), abs=1e-6)
    found = replay.judged(np.array([0.0] * 9 + [5.0], np.float32))  # MAD is 0
    assert found.bound == pytest.approx(5 * 1.2533 * 0.5)
    assert found.stands_out.tolist() == [False] * 9 + [True]
    assert replay.judged(np.array([np.nan], np.float32)).stands_out.all()


def said(*flags):
    """Returns the object that the command prints in a separate process, where TensorFlow has not made threads yet."""
    [out] = succeed(forked.Process(["-m", "trainer.replay", *flags, "--json"]))
    return json.loads(out)


@pytest.mark.slow
def test_a_run_that_was_killed_and_resumed_on_other_replicas_agrees(trained, tmp_path):
    data, model = trained / "data", tmp_path / "run"
    flags = ["--model=mlp", f"--global_batch_size={BATCH}", "--checkpoint_every=10", "--eval_split=none"]
    flags += ["--virtual_replicas=4", "--max_to_keep=99", "--log_every=2", f"--log_losses={tmp_path / 'losses'}"]
    process = start(data, model, *flags, "--train_steps=100000")
    wait_for_step(process, 24)
    kill(process)
    saved = saved_steps(model)[-1]
    last = saved + 15
    train(data, model, *flags, f"--train_steps={last}", "--strategy=mirrored", "--num_replicas=2")
    assert np.bincount(loss_log.read(tmp_path / "losses")["step"]).tolist() == [BATCH] * last
    for topology in (["--strategy=one_device", "--num_replicas=1"], []):
        found = said(f"--model_dir={model}", f"--verify=0:{last}", *topology)
        assert found["equal"]
        assert [one["checkpoint"] for one in found["compared"]] == [f"ckpt-{s}" for s in (*range(10, last, 10), last)]
    step = saved + 3
    found = said(f"--model_dir={model}", f"--step={step}")
    assert [row["replica"] for row in sorted(found["rows"], key=lambda row: row["row"])] == [0] * 50 + [1] * 50
    logged = loss_log.read(tmp_path / "losses", step, step + 1)
    assert {row["record"]: row["loss"] for row in found["rows"]} == pytest.approx(
        dict(logged[["record", "loss"]].tolist())
    )


@pytest.mark.slow
@pytest.mark.parametrize(("strategy", "says"), [("central_storage", 2), ("multiworker", 2)])
def test_runs_of_other_strategies(strategy, says, trained, tmp_path):
    flags = [
        "--model=mlp",
        f"--global_batch_size={BATCH}",
        "--checkpoint_every=5",
        "--eval_split=none",
        "--train_steps=12",
    ]
    if strategy == "multiworker":
        processes = start_workers_by_flags(trained / "data", [tmp_path / "run"] * 2, *flags)
    else:
        processes = [start(trained / "data", tmp_path / "run", *flags, f"--strategy={strategy}", "--num_replicas=2")]
    succeed(*processes)
    found = said(f"--model_dir={tmp_path / 'run'}", "--step=11")
    assert found["replicas"] == says
    assert len(found["rows"]) == BATCH
    assert said(f"--model_dir={tmp_path / 'run'}", "--verify")["equal"]


DATA = pathlib.Path(__file__).resolve().parents[3] / "shared" / "data" / "mnist"


@pytest.mark.slow
@pytest.mark.skipif(not DATA.exists(), reason="needs MNIST in ../shared/data")
def test_rows_of_noise_among_digits_are_named(tmp_path, capsys):
    """50 of 128 images of a step are noise, with the label of a digit that the model does not take noise for."""
    data, model, step = tmp_path / "mnist", tmp_path / "run", 190
    write_mnist(data, DATA, 25_600)
    bad = set(ids_of(data, step, 128)[:100:2])
    write_mnist(data, DATA, 25_600, bad)
    flags = [
        "--model=lenet",
        "--augment=shift(pixels=1)",
        "--optimizer=adam",
        "--learning_rate=0.002",
        "--eval_split=none",
    ]
    flags += ["--global_batch_size=128", "--train_steps=200", "--checkpoint_every=50"]
    run.main([f"--data_dir={data}", f"--model_dir={model}", *flags])
    found = shown(capsys, f"--model_dir={model}", f"--step={step}")
    named = {row["record"] for row in found["rows"] if row["stands_out"]}
    assert bad <= named
    assert len(named) <= 60  # five digits are hard to read
    assert found["norm"] > 4 * max(found["norms_before"].values())
