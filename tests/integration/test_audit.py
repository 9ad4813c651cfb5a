"""The audit as a process: its proofs of large jobs, its exit codes, and runs of the real input."""

import json
import re
import signal
import subprocess
import sys
import time

import pytest

from pipeline.audit.__main__ import main
from pipeline.index import __main__ as index
from pipeline.manifest import Feature, Manifest, ShardInfo, SplitInfo
from pipeline.order.key_log import Header, KeyLogWriter
from pipeline.records import framing
from pipeline.request import Request
from pipeline.resolved import resolve
from tests.helpers import forked
from tests.helpers.datasets import Kind, write_dataset
from tests.helpers.forked import ROOT


def audit(*arguments):
    return forked.run(["-m", "pipeline.audit", *arguments])


def write_manifest(folder, records, shards):
    """Writes the manifest of a data set that has no shards."""
    counts = [(i + 1) * records // shards - i * records // shards for i in range(shards)]
    stride = 32 * 32 * 3 + 100
    split = SplitInfo(
        tuple(
            ShardInfo(f"train-{i:05d}-of-{shards:05d}.tfrecord", n, n * stride, "0" * 8, stride)
            for i, n in enumerate(counts)
        ),
        (records,),
    )
    features = {"image": Feature("uint8", (32, 32, 3), "raw"), "label": Feature("int64"), "key": Feature("string")}
    manifest = Manifest("large", ("one",), features, {"train": split}, (0.0,) * 3, (1.0,) * 3, (), {})
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "manifest.json").write_bytes(manifest.to_bytes())


@pytest.fixture(scope="module")
def large(tmp_path_factory):
    folder = tmp_path_factory.mktemp("large")
    write_manifest(folder, 100_000_000, 8_192)
    return folder


@pytest.mark.slow
@pytest.mark.parametrize("streams", [64, 1024])
def test_1024_workers_and_100_million_records_are_proved_from_the_manifest(large, tmp_path, streams):
    png = tmp_path / "who.png"
    flags = ["--global_batch_size=16384", "--workers=1024", f"--streams={streams}", f"--png={png}"]
    against = ["--against_workers=64", "--against_replicas=512"] if streams == 64 else []
    done = audit(large, *flags, *against)
    assert done.returncode == 0, done.stderr
    assert "6,104 steps of 16,384 rows" in done.stdout
    assert "windows of the workers replayed" in done.stdout
    assert "--exhaustive" in done.stdout.splitlines()[-1]  # not all of them: no record was counted
    assert f"read amplification {1024 // streams:.2f}: " in done.stdout
    assert ("--streams=1024 (another order) reads it once" in done.stdout) == (streams == 64)
    assert not against or "every global batch is the same on 64 workers, 512 replicas" in done.stdout
    assert png.stat().st_size > 10_000


def test_a_folder_that_is_no_data_set_is_said_before_flags_that_are_missing(tmp_path, command):
    code, _, err = command("pipeline.audit", tmp_path / "nowhere")
    assert code == 1
    assert err.startswith(f"pipeline.audit: {tmp_path}/nowhere: there is no such folder")


@pytest.mark.parametrize(
    ("flags", "message"),
    [
        ([], "--global_batch_size: needed"),
        (["--global_batch_size=10", "--workers=3"], "global_batch_size=10 is not divisible by 3 replicas"),
        (["--global_batch_size=10", "--workers=2", "--replicas=5"], "5 replicas on 2 workers"),
        (["--global_batch_size=10", "--workers=0"], "workers=0, replicas=0: must be 1 or more"),
        (["--global_batch_size=10", "--against_workers=4"], "not divisible by 4 replicas"),
        (["--global_batch_size=10", "--streams=3"], "streams=3 does not divide global_batch_size=10"),
        (["--global_batch_size=10", "--split=trian"], "did you mean 'train'?"),
        (["--global_batch_size=10", "--remainder=keep"], "remainder: unknown 'keep'"),
        (["--global_batch_size=10", "--epoch=-1"], "--epoch=-1: must be 0 or more"),
        (["--global_batch_size=10", "--png=who.jpg"], "--png=who.jpg: "),
        (["--global_batch_size=10", "--shuffle_bytes=10"], "at least 144"),
        (["--observed=nowhere"], "--observed=nowhere: no such file"),
        (["--observed=nowhere", "--augment=flip"], "--augment=flip with --observed"),
        (["--global_batchsize=10"], "did you mean '--global_batch_size'?"),
    ],
)
def test_a_wrong_flag_exits_with_2_and_one_line(tmp_path, flags, message, command):
    write_dataset(tmp_path, (30, 20, 10))
    code, out, err = command("pipeline.audit", tmp_path, *flags)
    assert (code, out, err.count("\n")) == (2, "", 1), err
    assert message in err


def test_what_is_no_data_set_exits_with_1(tmp_path, command):
    code, out, err = command("pipeline.audit", tmp_path, "--global_batch_size=10")
    assert (code, out, "no manifest" in err) == (1, "", True)
    write_dataset(tmp_path, (30,))
    code, _, err = command("pipeline.audit", tmp_path, "--global_batch_size=10", "--png=/nowhere/who.png")
    assert (code, err.count("\n")) == (1, 1)
    assert err.startswith("pipeline.audit: --png=/nowhere/who.png: cannot be written: ")


def test_ctrl_c_ends_a_long_count_with_one_line(tmp_path):
    write_manifest(tmp_path, 20_000_000, 100)
    with subprocess.Popen(
        [sys.executable, "-m", "pipeline.audit", str(tmp_path), "--global_batch_size=8", "--exhaustive"],
        cwd=ROOT,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    ) as process:
        assert process.stdout is not None
        assert process.stdout.readline().startswith("large, split train: 20,000,000 records")
        time.sleep(0.5)
        process.send_signal(signal.SIGINT)
        _, errors = process.communicate(timeout=60)
    assert process.returncode == 130
    assert errors == "pipeline.audit: interrupted\n"


RUN = """
import os, signal, sys
from pipeline import Shard, input_fn
from pipeline.order.key_log import Header, KeyLogWriter
from pipeline.request import Request
from pipeline.resolved import resolve

data, logs, streams, first, last, workers, local, kill = sys.argv[1], sys.argv[2], *map(int, sys.argv[3:])
shuffle_bytes = 1 << 30 if streams == 1 else streams * 9 * 144  # one window, or windows of 9 records
arguments = dict(global_batch_size=12, training=True, seed=3, streams=streams, shuffle_bytes=shuffle_bytes)
spec = resolve(Request(data, "train", **arguments)).spec
writers, feeds = [], []
for worker in range(workers):
    header = Header.of(spec, worker, workers, workers * local)
    writers.append(KeyLogWriter(f"{logs}/worker-{worker:05d}.jsonl", header))
    shard = Shard(worker, workers, local)
    feeds.append(iter(input_fn(data, **arguments, start_step=first, shard=shard, record_ids=True)))
for step in range(first, last):
    for worker in range(workers):
        for replica in range(worker * local, (worker + 1) * local):
            *_, weights, records = next(feeds[worker])
            keys = [f"train#{record:05d}" for record in records.numpy()]
            writers[worker].append(step, replica, keys, weights.numpy())
        writers[worker].flush()
        if (step, worker) == (kill, 0):
            os.kill(os.getpid(), signal.SIGKILL)
"""


def run(*arguments):
    return forked.run(["-c", RUN, *arguments])


@pytest.mark.parametrize("streams", [pytest.param(1, marks=pytest.mark.slow), 4])
def test_a_real_run_that_was_killed_and_resumed_on_other_workers_saw_the_order(tmp_path, streams):
    data, logs = tmp_path / "data", tmp_path / "logs"
    write_dataset(data, (30, 0, 25, 44))
    assert run(data, logs, streams, 0, 18, 2, 3, 12).returncode == -signal.SIGKILL
    done = audit(data, f"--observed={logs}")
    assert done.returncode == 0, done.stderr
    assert "observed: 12 steps, 0 to 11; 1 more were not finished" in done.stdout
    done = run(data, logs, streams, 10, 18, 1, 4, -1)
    assert done.returncode == 0, done.stderr
    done = audit(data, f"--observed={logs}")
    assert done.returncode == 0, done.stderr
    assert "observed: 18 steps, 0 to 17; 30 rows were done again after a resume, and are equal" in done.stdout
    rows = [" ".join(line.split()) for line in done.stdout.splitlines()]
    assert "0 9 of 9 99 0 0 0 0 0" in rows
    assert "1 9 of 9 99 0 0 0 0 0" in rows
    path = logs / "worker-00000.jsonl"
    lines = path.read_text().splitlines(keepends=True)
    wrong = json.loads(lines[5])
    wrong["keys"][1] = "train#99999"
    path.write_text("".join([*lines[:5], json.dumps(wrong) + "\n", *lines[6:]]))
    said = forked.refused(audit(data, f"--observed={logs}"), 1)
    assert f"the first at step {wrong['step']}, row {wrong['replica'] * 2 + 1} of the global batch" in said
    assert "seen key 'train#99999'" in said


def test_a_log_is_audited_with_other_users_locale(tmp_path):
    """Keys of any bytes pass through the log and the message, whatever the terminal's encoding."""
    write_dataset(tmp_path / "data", (12,))
    spec = resolve(Request(tmp_path / "data", "train", global_batch_size=12, training=True)).spec
    with KeyLogWriter(tmp_path / "log.jsonl", Header.of(spec, 0, 1, 1)) as log:
        log.append(0, 0, [b"\xff\xfe"] * 12, [1.0] * 12)
    program = ["-m", "pipeline.audit", tmp_path / "data", f"--observed={tmp_path / 'log.jsonl'}"]
    said = forked.refused(forked.run(program, {"PYTHONIOENCODING": "ascii"}), 1)
    assert "12 differences; the first at step 0, row 0" in said
    assert r"seen key '\udcff\udcfe'" in said


CONTENT = ("--global_batch_size=12", "--workers=2", "--replicas=4", "--streams=4", "--shuffle_bytes=5184", "--content")
SWAPPED = """
import sys

import numpy as np
import tensorflow as tf

from pipeline.audit import __main__ as audit
from pipeline.commands import commandline
from pipeline.decode.images import InStrings
from pipeline.decode.records import ExampleParser
from pipeline.read import window

what, *arguments = sys.argv[1:]
parse, find, arrays = ExampleParser.parse, ExampleParser.find, window.RowColumns.arrays


def swapped(found, labels, features):
    if what == "image":
        found = tf.nest.map_structure(lambda values: tf.roll(values, 1, 0), found)
    elif what == "label":
        labels = tf.roll(labels, 1, 0)
    else:
        features[what] = tf.roll(features[what], 1, 0)
    return found, labels, features


def parsed(self, records):
    return swapped(*parse(self, records))


def found(self, records):
    encoded, *rest = find(self, records)
    parts, *rest = swapped((encoded.strings, encoded.bounds), *rest)
    return InStrings(*parts), *rest


def columns(self, *arguments):
    found = arrays(self, *arguments)
    return {**found, what: np.roll(found[what], 1, 0)}


ExampleParser.parse, ExampleParser.find, window.RowColumns.arrays = parsed, found, columns
commandline.run("pipeline.audit", audit.main, arguments)
"""


@pytest.fixture(scope="module")
def contents(tmp_path_factory):
    folder = tmp_path_factory.mktemp("contents")
    write_dataset(folder / "raw", (30, 0, 25, 44), classes=99)
    write_dataset(folder / "png", (30, 0, 25, 44), classes=99, kind=Kind("png", extra=True, varied=True))
    write_dataset(folder / "jpeg", (9, 8), kind=Kind("jpeg", compression="GZIP", members=4))
    return folder


@pytest.mark.parametrize(
    ("form", "flags", "said"),
    [
        ("raw", [], "108 rows compared, of 21.5 KiB of shards: image, key, label"),
        ("raw", ["--evaluation", "--resize=6x6"], "image, key, label; images resized to 6x6"),
        pytest.param(
            *("png", ["--resize=6x6", "--epoch=2"]),
            "box, id, image, key, label, scores, tags; images resized to 6x6",
            marks=pytest.mark.slow,
        ),
        ("png", ["--augment=random_crop"], "box, id, image, key, label, scores, tags; images resized to 11x11"),
        ("jpeg", [], "of shards: image, key, label"),
    ],
)
@pytest.mark.quick(2)
def test_values_that_are_fed_are_those_of_the_records(form, flags, said, contents, capsys):
    main([str(contents / form), *CONTENT, *flags])
    lines = capsys.readouterr().out.splitlines()
    claim = "holds  the values that are fed are those of the records, as a plain walk over the shards finds them"
    assert said in lines[lines.index(claim) + 1]


@pytest.mark.parametrize(
    ("form", "what", "fed", "stored"),
    [
        ("raw", "label", r"\d+", r"\d+"),
        pytest.param("raw", "image", r"\d+", r"\d+", marks=pytest.mark.slow),
        pytest.param("png", "label", r"\d+", r"\d+", marks=pytest.mark.slow),
        ("png", "image", r"\d+", r"\d+"),
        pytest.param("png", "key", r"b'train#\d+'", r"b'train#\d+'", marks=pytest.mark.slow),
        ("png", "box", r"[\d.]+", r"[\d.]+"),
    ],
)
@pytest.mark.quick(1)
def test_an_input_that_gives_a_row_the_value_of_another_fails(form, what, fed, stored, contents):
    """The process feeds the neighbour's value, and exits with 1 and one line that says where."""
    size = ["--resize=6x6"] if form == "png" else []
    done = forked.run(["-c", SWAPPED, what, contents / form, *CONTENT, *size])
    assert done.returncode == 1, done.stderr
    assert re.fullmatch(
        r"pipeline.audit: the proof fails: the values that are fed .*: .*/train-0000\d-of-00004.tfrecord, record \d+, "
        rf"byte offset \d+: {what}( at .*)? is fed as {fed}, and the record has {stored} "
        r"\(step \d, row \d+ of the global batch, replica \d \(worker \d of 2\)\)\n",
        done.stderr,
    ), done.stderr


def test_records_that_are_no_images_are_compared_by_their_bytes(tmp_path, capsys):
    (tmp_path / "a.rec").write_bytes(b"".join(framing.frame(b"text %d" % i) for i in range(30)))
    index.main([str(tmp_path), "--split=train:a.rec"])
    main([str(tmp_path), "--global_batch_size=8", "--content"])
    assert "32 rows compared, of 680 bytes of shards: record" in capsys.readouterr().out
