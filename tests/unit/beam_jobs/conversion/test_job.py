"""Real shards of a tiny MNIST, written one by one while the progress looks on."""

import dataclasses
import pathlib
import shutil
import time

import pytest

from beam_jobs.config import ConvertConfig
from beam_jobs.conversion.job import Progress, finished_part
from beam_jobs.plan import make_plan
from beam_jobs.sink import staging
from pipeline.files.paths import LocalPath
from pipeline.files.remote import RemotePath
from tests.helpers.converting import write_shard
from tests.helpers.displays import later


@pytest.fixture
def plan(mnist_folder, tmp_path):
    out = tmp_path / "out"
    out.mkdir()
    config = ConvertConfig(dataset="mnist", source=str(mnist_folder()), data_dir=str(out), num_shards="2")
    return make_plan(config, out)


def test_finished_shards_are_counted_and_nothing_else(plan):
    out = pathlib.Path(plan.data_dir)
    (out / "train-00000-of-00009.tfrecord.receipt.json").write_bytes(b"another's")
    (out / ".train-00000-of-00002.tfrecord.tmp-0123456789abcdef").write_bytes(b"half")
    (out / "test-00000-of-00002.tfrecord.receipt.json").write_bytes(b"{")
    with Progress(plan) as progress:
        seen = []
        for element in plan.elements:
            write_shard(plan, *element)
            later(progress, 5)
            progress.show()
            seen.append((progress.finished, progress.done))
    assert seen == [(1, 25), (2, 50), (3, 60), (4, 70)]


def test_a_line_has_shards_examples_bytes_and_the_rate_of_this_run(plan, capsys):
    with Progress(plan) as progress:
        assert progress.text() == "0 of 4 shards, 0 of 70 examples, 0.0 MiB, 0 examples/s"
    write_shard(plan, *plan.elements[0])
    with Progress(plan) as progress:
        write_shard(plan, *plan.elements[1])
        later(progress, 5)
        progress.show()
    assert capsys.readouterr().out == "2 of 4 shards, 50 of 70 examples, 0.0 MiB, 5 examples/s, 00:04 left\n"


def test_rejects_are_rows_that_are_done(plan):
    out = pathlib.Path(plan.data_dir)
    receipt = write_shard(plan, "train", 0)
    path = out / f"{receipt.info.file}.receipt.json"
    path.write_text(path.read_text().replace('"num_rejects": 0', '"num_rejects": 3'))
    with Progress(plan) as progress:
        assert progress.done == 28
        assert progress.text().endswith(", 3 rejects")


def test_a_folder_that_is_gone_is_not_its_affair(plan, capsys):
    write_shard(plan, *plan.elements[0])
    with Progress(plan) as progress:
        shutil.rmtree(plan.data_dir)
        later(progress, 5)
        progress.show()
    assert capsys.readouterr().out.startswith("1 of 4 shards, 25 of 70 examples")
    with Progress(plan) as progress:
        assert progress.finished == 0


def test_looking_takes_a_small_part_of_the_time(plan, monkeypatch):
    listed = LocalPath.names

    def slowly(folder):
        time.sleep(0.05)
        return listed(folder)

    monkeypatch.setattr(LocalPath, "names", slowly)  # an object store's list
    with Progress(plan) as progress:
        assert progress._next_look - time.monotonic() > 0.9


def test_a_store_is_listed_every_two_seconds_at_most(plan, monkeypatch):
    monkeypatch.setattr(RemotePath, "names", lambda folder: [])
    with Progress(dataclasses.replace(plan, receipts_dir=RemotePath("s3://bucket/receipts"))) as progress:
        assert 1.5 < progress._next_look - time.monotonic() <= 2.0


@pytest.mark.parametrize(("folder", "label"), [("", "pass 2 of 2: "), (staging.FIRST_PASS, "pass 1 of 2: ")])
def test_two_passes_are_told_apart(plan, folder, label):
    out = plan.data_dir / folder
    out.mkdir(exist_ok=True)
    two = dataclasses.replace(plan, receipts_dir=out, config=dataclasses.replace(plan.config, passes=2))
    with Progress(two) as progress:
        assert progress.text().startswith(f"{label}0 of 4 shards, ")


def test_the_part_that_is_done_counts_both_passes(plan):
    assert finished_part(plan) == 0
    for element in plan.elements[:2]:
        write_shard(plan, *element)
    assert finished_part(plan) == 50 / 70
    two = dataclasses.replace(plan, config=dataclasses.replace(plan.config, passes=2))
    assert finished_part(two) == 25 / 70
    first = LocalPath(plan.data_dir) / staging.FIRST_PASS
    first.mkdir()
    for element in plan.elements:
        write_shard(dataclasses.replace(plan, data_dir=first, receipts_dir=first), *element)
    assert finished_part(two) == (70 + 50) / 140
