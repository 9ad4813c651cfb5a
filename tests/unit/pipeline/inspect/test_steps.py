"""`pipeline.inspect --step` and `--key` show exactly what `input_fn` feeds."""

import json
import os
import shutil

import numpy as np
import pytest
from PIL import Image

from pipeline import Shard, input_fn, order_spec, step_rows
from pipeline.errors import DataError, UsageError
from pipeline.index import __main__ as index
from pipeline.inspect import __main__ as inspect
from tests.helpers.datasets import Kind, image_of, write_dataset
from trainer.config import TrainConfig, file

COUNTS = (13, 0, 9, 15)  # 37 records
BATCH, STEP = 8, 7  # of 5 steps per epoch: the third step of the second epoch
ORDER = {"seed": 3, "streams": 2, "shuffle_bytes": 2 * 9 * 144}  # several windows


@pytest.fixture(scope="module")
def folders(tmp_path_factory):
    """Data sets by name, in one folder."""
    folder = tmp_path_factory.mktemp("steps")
    write_dataset(folder / "raw", COUNTS)
    write_dataset(folder / "more", (12, 5))
    write_dataset(folder / "jpeg", COUNTS, (20, 24, 3), kind=Kind("jpeg", varied=True))
    write_dataset(folder / "forward", COUNTS, kind=Kind(compression="GZIP"))
    return folder


def shown(capsys, *arguments):
    """Returns the object that the command prints."""
    capsys.readouterr()
    inspect.main([*map(str, arguments), "--json"])
    return json.loads(capsys.readouterr().out)


def as_flags(options):
    return [f"--{name}={value}" for name, value in options.items()]


def fed(data, replicas, step, **options):
    """Returns (image, label, weight, record id) of each row of a step, as each of the replicas is fed it."""
    rows = []
    for replica in range(replicas):
        shard = Shard(replica, replicas) if replicas > 1 else None
        batches = input_fn(data, training=True, start_step=step, record_ids=True, shard=shard, **options)
        rows += zip(*next(batches.as_numpy_iterator()), strict=True)
    return rows


CASES = {
    "raw": ("raw", {**ORDER, "augment": "pad_crop_flip"}),
    "as stored": ("raw", {"remainder": "drop"}),
    "part": ("raw", {"split": "train[5:30]", "augment": "shift", "seed": 9}),
    "jpeg": ("jpeg", {"augment": "random_resized_crop(size=12)"}),
    "mixed": ("jpeg", {"resize": "8x8", "augment": "mixup"}),
}


@pytest.mark.parametrize(
    ("case", "replicas"), [("raw", 1), ("raw", 2), ("as stored", 1), ("part", 2), ("jpeg", 1), ("mixed", 2)]
)
@pytest.mark.quick(1)
def test_a_step_is_what_input_fn_feeds(case, replicas, folders, capsys):
    data, options = folders / CASES[case][0], {"global_batch_size": BATCH, **CASES[case][1]}
    rows = shown(capsys, data, f"--step={STEP}", f"--replicas={replicas}", *as_flags(options))["rows"]
    expected = fed(data, replicas, STEP, **options)
    assert [row["replica"] for row in rows] == [i * replicas // BATCH for i in range(BATCH)]
    first = 5 if case == "part" else 0
    for row, (image, label, weight, record) in zip(rows, expected, strict=True):
        number = first + int(record)
        assert row["record"] == record
        assert row["weight"] == weight
        assert row["key"] == f"train#{number:05d}"
        assert row["label"] == number % 3
        assert row["class"] == f"class {number % 3}"
        assert row["trained_label"] == pytest.approx(label.tolist())
        assert row["trained"]["shape"] == list(image.shape)
        assert row["trained"]["mean"] == pytest.approx(image.mean(dtype=np.float64))
        stored = image_of(
            number, (8, 6, 3) if CASES[case][0] == "raw" else (20, 24, 3), Kind(varied=case in ("jpeg", "mixed"))
        )
        assert row["stored"]["shape"] == list(stored.shape)
        if CASES[case][0] == "raw":
            assert row["stored"]["mean"] == stored.mean()
    assert len({row["record"] for row in rows if row["weight"]}) == sum(row["weight"] for row in rows)


def test_a_step_of_some_classes_has_their_own_labels(folders, tmp_path, capsys):
    shutil.copytree(folders / "raw", tmp_path / "raw")
    index.main([str(tmp_path / "raw"), "--add_columns=records"])
    capsys.readouterr()
    flags = ("--step=1", "--classes=class 2,class 0", f"--global_batch_size={BATCH}")
    rows = shown(capsys, tmp_path / "raw", *flags)["rows"]
    for row in rows:
        number = {0: 1, 2: 0}[row["record"] % 3]
        assert (row["label"], row["trained_label"], row["class"]) == (number, number, f"class {row['record'] % 3}")


def test_each_flag_of_the_order_leads_to_the_runs_own(folders, capsys):
    """The digest of the order has all of them."""
    options = {**ORDER, "remainder": "drop", "split": "train[:80%]", "resize": "4x4", "global_batch_size": BATCH}
    found = shown(capsys, folders / "raw", "--step=2", *as_flags(options))
    assert found["order"] == order_spec(folders / "raw", training=True, **options).digest
    assert (found["epoch"], found["step_of_epoch"], found["steps_per_epoch"], found["replicas"]) == (0, 2, 3, 1)


@pytest.mark.slow
@pytest.mark.parametrize("strategy", ["mirrored", "multiworker"])
def test_the_flags_of_a_run_are_those_in_its_folder(strategy, folders, tmp_path, capsys):
    hosts = {"worker_hosts": "a:1,b:1", "task_index": 0, "job_name": "worker"}
    where = {"strategy": strategy, **({"num_replicas": 2} if strategy == "mirrored" else hosts)}
    options = {**ORDER, "augment": "pad_crop_flip", "global_batch_size": BATCH}
    flags = {
        **options,
        **where,
        "train_split": "train[:30]",
        "data_dir": str(folders / "raw"),
        "augment_on": "device",
        "epochs": 1,
    }
    config = TrainConfig.of(**flags, model_dir=str(tmp_path))
    file.write(config.run.folder.config, {name: vars(getattr(config, name)) for name in vars(config) if name[0] != "_"})
    of_run = shown(capsys, f"--model_dir={tmp_path}", f"--step={STEP}")
    given = [str(folders / "raw"), *as_flags(options), "--split=train[:30]", "--replicas=2"]
    assert of_run == shown(capsys, *given, f"--step={STEP}")
    assert of_run["replicas"] == 2
    (tmp_path / "data").symlink_to(folders / "raw")
    assert of_run == shown(capsys, tmp_path / "data", f"--model_dir={tmp_path}", f"--step={STEP}")
    assert of_run != shown(capsys, f"--model_dir={tmp_path}", f"--step={STEP}", "--seed=4")


def mixture(folders):
    return f"{folders}/raw=0.75,{folders}/more=0.25"


@pytest.mark.slow
def test_rows_of_a_mixture_are_of_their_sources(folders, capsys):
    rows = shown(capsys, mixture(folders), "--step=6", f"--global_batch_size={BATCH}", "--replicas=2")["rows"]
    pairs = [(folders / "raw", 0.75), (folders / "more", 0.25)]
    expected = [int(record) for *_, record in fed(pairs, 2, 6, global_batch_size=BATCH)]
    assert [row["record"] + (37 if row["source"] else 0) for row in rows] == expected
    assert [row["source"] for row in rows] == [0, 0, 0, 1] * 2


def places(data, epoch, replicas, split="train", **options):
    """Returns {key: [(step, row, replica, weight)]} of an epoch, by scanning the input."""
    found = {}
    batches = input_fn(data, split, training=True, features=("key",), augment=None, **options).as_numpy_iterator()
    for step, (x, _, weights) in enumerate(batches):
        if step // 5 > epoch:
            return found
        for row, (key, weight) in enumerate(zip(x["key"], weights.tolist(), strict=True)):
            if step // 5 == epoch:
                place = {"step": step, "row": row, "replica": row * replicas // BATCH, "weight": weight}
                found.setdefault(key.decode(), []).append(place)
    return None


@pytest.mark.parametrize("remainder", ["pad", "drop"])
@pytest.mark.quick(1)
def test_a_key_is_where_a_scan_of_an_epoch_finds_it(remainder, folders, capsys):
    options = {**ORDER, "global_batch_size": BATCH, "remainder": remainder}
    split = "train" if remainder == "pad" else "train+test"  # 41 records: 5 whole steps
    scanned = places(folders / "raw", 1, 2, split, **options)
    keys = [*(f"train#{i:05d}" for i in range(37)), *([] if remainder == "pad" else ["test#00000"])]
    flags = [folders / "raw", *as_flags(options), f"--split={split}", "--epoch=1", "--replicas=2"]
    padded = []
    for key in keys[::3]:
        [found] = shown(capsys, *flags, f"--key={key}")["records"]
        rows = [{name: row[name] for name in ("step", "row", "replica", "weight")} for row in found["rows"]]
        assert rows == scanned.get(key, [])
        padded += [row for row in rows if not row["weight"]]
        assert found["record"] == (int(key[-5:]) if key.startswith("train") else 37)
    assert bool(padded) == (remainder == "pad")


def test_a_key_of_a_source_of_a_mixture(folders, capsys):
    flags = [mixture(folders), f"--global_batch_size={BATCH}", "--replicas=2"]
    for step, row in ((3, 0), (6, 7), (6, 3)):
        at = shown(capsys, *flags, f"--step={step}")["rows"][row]
        epochs = step // 7, step // 9  # 37 records by 6, 17 by 2
        both = shown(capsys, *flags, f"--key={at['key']}", f"--epoch={epochs[at['source']]}")["records"]
        assert [one["source"] for one in both] == ([0, 1] if int(at["key"][-5:]) < 17 else [0])
        place = {"step": step, "row": row, "replica": row // 4, "is_padding": False, "weight": 1.0}
        assert place in both[at["source"]]["rows"]
    with pytest.raises(
        UsageError, match="^--key=train#99999: no record of train has it; the first one's is 'train#00000'"
    ):
        inspect.main([*flags, "--key=train#99999"])


def test_the_tables_and_the_picture(folders, tmp_path, capsys):
    path = tmp_path / "step.png"
    flags = [
        str(folders / "raw"),
        f"--global_batch_size={BATCH}",
        "--replicas=2",
        "--augment=pad_crop_flip",
        "--seed=3",
    ]
    inspect.main([*flags, "--step=4", f"--png={path}"])
    lines = [" ".join(line.split()) for line in capsys.readouterr().out.splitlines()]
    assert lines[0] == "step 4: epoch 0, its step 4 of 5; 5 real rows of 8, 2 replicas"
    rows = shown(capsys, *flags, "--step=4")["rows"]
    first = rows[0]
    where = f"{first['shard']} #{first['record_of_shard']}"
    assert lines[3].startswith(f"0 0 {first['key']} {first['class']} 1 {first['record']} {where} 8x6x3, mean ")
    assert lines[10].split()[5] == "0"  # the weight of padding
    sheet = np.asarray(Image.open(path))
    images, *_ = next(
        input_fn(folders / "raw", global_batch_size=BATCH, training=True, seed=3, start_step=4).as_numpy_iterator()
    )
    tile = sheet[64 : 64 + 96, 6 : 6 + 96]  # below the title and the first replica's heading
    assert np.array_equal(tile[6::12, 8::16], images[0])
    inspect.main([*flags, f"--key={first['key']}"])
    lines = [" ".join(line.split()) for line in capsys.readouterr().out.splitlines()]
    assert lines[0] == f"{first['key']}: record {first['record']} of train, {where}"
    assert lines[2] == "0 4 0 0 of 2 1"


def test_what_cannot_be_shown_as_stored_is_said(folders, capsys, tmp_path):
    found = shown(capsys, folders / "forward", "--step=1", f"--global_batch_size={BATCH}")["rows"][0]
    assert found["stored"] is None
    assert found["trained"]["shape"] == [8, 6, 3]
    assert found["key"].startswith("train#")
    assert "can only be read forward" in found["problem"]
    write_dataset(tmp_path / "raw", COUNTS)
    (shard := tmp_path / "raw" / "train-00000-of-00004.tfrecord").write_bytes(
        shard.read_bytes()[:300] + b"\x00" * 20 + shard.read_bytes()[320:]
    )
    with pytest.raises(DataError, match="train-00000-of-00004.tfrecord, record 1"):
        inspect.main([str(tmp_path / "raw"), "--step=0", "--global_batch_size=37"])


def test_records_that_are_no_images_have_places(folders, capsys, tmp_path):
    os.makedirs(tmp_path / "files")
    for path in (folders / "raw").glob("train-*"):
        (tmp_path / "files" / path.name).write_bytes(path.read_bytes())
    index.main([str(tmp_path / "files"), "--split=train:train-*"])
    rows = shown(capsys, tmp_path / "files", "--step=1", f"--global_batch_size={BATCH}")["rows"]
    assert {row["shard"] for row in rows} <= {f"train-0000{i}-of-00004.tfrecord" for i in (0, 2, 3)}
    assert len({row["record"] for row in rows}) == BATCH
    assert {row["key"] for row in rows} == {""}
    flags = [str(tmp_path / "files"), f"--global_batch_size={BATCH}"]
    with pytest.raises(UsageError, match="^--png: the rows of this step are not images"):
        inspect.main([*flags, "--step=1", f"--png={tmp_path}/a.png"])
    with pytest.raises(UsageError, match="^--key=a: the manifest of .*files has no keys"):
        inspect.main([*flags, "--key=a"])
    with pytest.raises(UsageError, match="^--augment=flip: files has records of any kind"):
        inspect.main([*flags, "--step=1", "--augment=flip"])


@pytest.mark.parametrize(
    ("arguments", "error", "facts"),
    [
        ([], UsageError, "^DATA_DIR is missing"),
        (["--step=1"], UsageError, "^--step=1: of which run"),
        (["D", "--key=k"], UsageError, "^--key=k: of which run"),
        (["D", "--key=k", "--step=1", "--global_batch_size=8"], UsageError, "^--step=1 and --key=k: "),
        (["D", "--step=1", "--epoch=1", "--global_batch_size=8"], UsageError, "^--epoch=1: .*--key"),
        (["D", "--streams=2"], UsageError, "^--streams=2: .*--step"),
        (["D", "--json"], UsageError, "^--json: .*--step"),
        (["D", "--key=k", "--global_batch_size=8", "--png=a.png"], UsageError, "^--png=a.png with --key=k"),
        (["--step=1", "--model_dir=/nowhere"], DataError, "^--model_dir=/nowhere: config.yaml cannot be read: No such"),
        (["{raw}", "--step=1", "--global_batch_size=8", "--replicas=3"], UsageError, "3 replicas"),
    ],
)
def test_flags_that_cannot_work(arguments, error, facts, folders):
    with pytest.raises(error, match=facts):
        inspect.main([one.format(raw=folders / "raw") for one in arguments])


def test_a_label_of_several_classes_is_named_by_them_and_a_mix_by_its_shares():
    names = ("cat", "dog", "owl")
    assert step_rows.name_of(np.array([1, 0, 1]), names) == "cat, owl"
    assert step_rows.name_of(np.array([0, 1, 0]), names) == "dog"
    assert step_rows.name_of(np.array([0.7, 0.3, 0.0]), names) == "cat 0.70 + dog 0.30"
