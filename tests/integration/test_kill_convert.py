"""Killed at any moment and run again, a conversion writes the bytes of one that was never killed: in real processes."""

import contextlib
import os
import random
import shutil
import signal
import subprocess
import time

import numpy as np
import PIL.Image
import pytest

from pipeline import manifest
from pipeline.manifest import naming
from tests.helpers import forked
from tests.helpers.converting import killed_in
from tests.helpers.datasets import files_of
from tests.helpers.lanes import some_slow

CIFAR_FILES = [*(f"data_batch_{i}.bin" for i in range(1, 6)), "test_batch.bin"]


def make_cifar(folder, rows):
    """Writes files in the layout of CIFAR-10, of smooth colours that PNG takes its time over."""
    draw = np.random.default_rng(5)
    folder.mkdir()
    for name in CIFAR_FILES:
        corners = draw.integers(0, 256, (rows, 3, 2, 2)).astype(np.float64)
        ramp = np.linspace(0, 1, 32)
        across = corners[..., :1] * (1 - ramp) + corners[..., 1:] * ramp
        images = across[:, :, :1] * (1 - ramp[:, None]) + across[:, :, 1:] * ramp[:, None]
        noisy = np.clip(images + draw.normal(0, 5, images.shape), 0, 255).astype(np.uint8)
        labels = draw.integers(0, 10, (rows, 1), np.uint8)
        (folder / name).write_bytes(np.concatenate([labels, noisy.reshape(rows, -1)], axis=1).tobytes())
    return folder


def start(source, out, *flags):
    return forked.Process(["-m", "beam_jobs.convert", f"--source={source}", f"--data_dir={out}", *flags])


def finish(process):
    out, err = process.communicate()
    assert (process.returncode, err) == (0, ""), err
    return out


def kill_group(process):
    """Ends the command and its workers at once, like a power failure."""
    with contextlib.suppress(ProcessLookupError):  # it has ended
        os.killpg(process.pid, signal.SIGKILL)
    _, err = process.communicate(timeout=60)
    assert process.returncode in (-signal.SIGKILL, 0), err


def finished(out):
    """Returns {shard: (inode, time)} of the shards that have a receipt."""
    found = {}
    for receipt in out.glob(".converting.tmp-*/*.receipt.json"):
        shard = receipt.with_name(receipt.name.removesuffix(".receipt.json"))
        found[shard.name] = (shard.stat().st_ino, shard.stat().st_mtime_ns)
    return found


def wait_for_shards(process, out, count):
    deadline = time.monotonic() + 120
    while len(finished(out)) < count and process.poll() is None and time.monotonic() < deadline:
        time.sleep(0.002)


def check_after_kills(source, out, flags, clean):
    """Runs the command again; its data set is the clean one, and finished shards were not made again."""
    before = finished(out)
    finish(start(source, out, *flags))
    assert files_of(out) == files_of(clean)
    assert not [path for path in out.rglob("*") if path.name.startswith(".")]
    for name, (inode, written) in before.items():
        assert ((out / name).stat().st_ino, (out / name).stat().st_mtime_ns) == (inode, written)
    shards = sum(len(split.shards) for split in manifest.load(out).splits.values())
    assert 0 < len(before) < shards  # something was there, and something was left to be done


def test_killed_three_times_it_resumes_to_the_same_bytes(tmp_path):
    source = make_cifar(tmp_path / "source", 400)
    flags = ["--dataset=cifar10", "--image_encoding=png", "--num_shards=train:60,test:12"]
    clean = tmp_path / "clean"
    finish(start(source, clean, *flags))
    out, draw = tmp_path / "out", random.Random(1)
    kept = 0
    for shards in (3, 12, 25):
        process = start(source, out, *flags)
        wait_for_shards(process, out, shards)
        time.sleep(draw.uniform(0, 0.02))
        kill_group(process)
        assert not list(out.glob("[!.]*")), "something that reads as a data set"
        assert len(finished(out)) >= max(kept, 1)  # none is lost
        kept = len(finished(out))
    check_after_kills(source, out, flags, clean)


@pytest.mark.slow
def test_a_table_of_images_killed_in_two_processes_resumes_to_the_bytes_of_one(tmp_path):
    draw = np.random.default_rng(6)
    lines = ["file_name,label"]
    for number in range(240):
        PIL.Image.fromarray(draw.integers(0, 256, (40, 40, 3), np.uint8)).save(tmp_path / f"{number}.bmp")
        lines.append(f"{number}.bmp,{number % 3}")
    table = tmp_path / "labels.csv"
    table.write_text("\n".join(lines))
    flags = ["--dataset=image_table", "--image_column=file_name", "--label_column=label", "--num_shards=60"]
    clean, out = tmp_path / "clean", tmp_path / "out"
    finish(start(table, clean, *flags, "--direct_num_workers=1"))
    flags += ["--direct_running_mode=multi_processing", "--direct_num_workers=2"]
    process = start(table, out, *flags)
    wait_for_shards(process, out, 3)
    kill_group(process)
    check_after_kills(table, out, flags, clean)


@pytest.mark.slow
@pytest.mark.parametrize(
    "more",
    [
        pytest.param([], id="in memory"),
        pytest.param(["--direct_running_mode=multi_processing", "--direct_num_workers=2"], id="two processes"),
        pytest.param(["--passes=2", "--compression=GZIP"], id="two passes"),
    ],
)
def test_killed_at_twenty_random_moments(more, tmp_path):
    source = make_cifar(tmp_path / "source", 2000)
    flags = ["--dataset=cifar10", "--image_encoding=png", "--num_shards=train:200,test:40", *more]
    clean, out = tmp_path / "clean", tmp_path / "out"
    began = time.monotonic()
    finish(start(source, clean, *flags))
    whole = time.monotonic() - began
    draw, kills = random.Random(f"{more}"), 0
    while kills < 20:
        process = start(source, out, *flags)
        try:
            process.wait(timeout=draw.uniform(0, 0.8 * whole))
        except subprocess.TimeoutExpired:
            kills += 1
        kill_group(process)
        if (out / naming.MANIFEST).exists():  # whole, or not there; then from the beginning
            assert files_of(out) == files_of(clean)
            shutil.rmtree(out)
    shutil.rmtree(out, ignore_errors=True)
    process = start(source, out, *flags)
    wait_for_shards(process, out, 20)
    kill_group(process)
    check_after_kills(source, out, flags, clean)


# 1 to 3: the old data set is whole; to 19: there is none; to 21: the new one is there, with files of the old one.
OLD = ("--dataset=digits", "--num_shards=train:3,test:2")
NEW = ("--dataset=digits", "--num_shards=1", "--seed=1")


@pytest.fixture(scope="module")
def old_and_new(tmp_path_factory):
    """Two conversions; tests only read them."""
    old, new = (tmp_path_factory.mktemp("overwritten") / name for name in ("old", "new"))
    finish(forked.Process(["-m", "beam_jobs.convert", *OLD, f"--data_dir={old}"]))
    finish(forked.Process(["-m", "beam_jobs.convert", *NEW, f"--data_dir={new}"]))
    return old, new


@pytest.mark.slow
@pytest.mark.parametrize("moment", some_slow([2, 4, 12, 19, 21, 24], [2, 12, 21]))
def test_overwritten_data_is_gone_even_if_the_command_was_killed(moment, old_and_new, tmp_path):
    old, clean = old_and_new
    out = shutil.copytree(old, tmp_path / "out")
    killed_in("publish", moment, *NEW, f"--data_dir={out}", "--overwrite")
    again = ["--overwrite"] if moment <= 3 else []  # afterwards it has already been replaced, or there is none
    finish(forked.Process(["-m", "beam_jobs.convert", *NEW, f"--data_dir={out}", *again]))
    assert files_of(out) == files_of(clean)
    assert {path.name for path in out.rglob("*")} == {path.name for path in clean.rglob("*")}
