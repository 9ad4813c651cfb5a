"""A data set that grows while a run goes on, in real processes: appends are killed, runs resume and move."""

import json
import shutil

import numpy as np
import PIL.Image
import pytest

from pipeline import input_fn, manifest
from pipeline.manifest import naming
from tests.helpers import forked
from tests.helpers.converting import killed_in
from tests.helpers.datasets import files_of
from tests.helpers.lanes import some_slow
from tests.helpers.parameter_servers import Job
from tests.helpers.runs import checkpoint_bytes, finish, kill, start, succeed, train, wait_for_step


def write_images(folder, numbers, splits=("train",)):
    for split in splits:
        for number in numbers:
            place = folder / split / "ab"[number % 2]
            place.mkdir(parents=True, exist_ok=True)
            draw = np.random.default_rng([number, len(split)])
            pixels = draw.integers(0, 128, (12, 12, 1), np.uint8) + np.uint8(120 * (number % 2))
            PIL.Image.fromarray(pixels[:, :, 0]).save(place / f"{number}.png")
    return folder


def convert(source, data, *flags):
    given = ("--dataset=image_folder", f"--source={source}", f"--data_dir={data}", *flags)
    return succeed(forked.Process(["-m", "beam_jobs.convert", *given]))[0]


@pytest.fixture(scope="module")
def grown(tmp_path_factory):
    """A data set, the same one with an append, and the source of that."""
    folder = tmp_path_factory.mktemp("grown")
    source = write_images(folder / "source", range(70), ["train", "test"])
    more = write_images(folder / "more", range(100, 130))
    convert(source, folder / "old", "--num_shards=train:3,test:1", "--image_encoding=raw")
    shutil.copytree(folder / "old", folder / "new")
    convert(more, folder / "new", "--append", "--num_shards=2")
    return folder


# 1 to 6: shards and their CRCs; 7, 8: columns; then the old manifest's copy, its card, the log, the manifest.
@pytest.mark.parametrize("moment", some_slow([*range(1, 17)], [1, 4, 8, 10, 12]))
def test_killed_at_any_change_the_old_version_is_whole_and_the_same_command_finishes(moment, grown, tmp_path):
    old, clean = grown / "old", grown / "new"
    out = shutil.copytree(old, tmp_path / "out")
    flags = ["--dataset=image_folder", f"--source={grown / 'more'}", f"--data_dir={out}", "--append", "--num_shards=2"]
    killed_in("publish_version", moment, *flags)
    kept = files_of(old)
    del kept[naming.CROISSANT]  # it is replaced just before the manifest
    outdated = {naming.MANIFEST, *naming.TFDS_FILES}
    assert {name: data for name, data in kept.items() if name not in outdated}.items() <= files_of(out).items()
    assert manifest.load(f"{out}@1") == manifest.load(old)
    assert manifest.load(out).version in (1, 2)
    if manifest.load(out).version == 1:
        assert kept.items() <= files_of(out).items()
    convert(grown / "more", out, "--append", "--num_shards=2")
    assert files_of(out) == files_of(clean)
    assert (out / naming.CARD).exists()
    assert not [path for path in out.rglob("*") if path.name.startswith(".")]


def test_shards_of_a_killed_append_do_not_stay_beside_those_of_another(grown, tmp_path):
    out = shutil.copytree(grown / "old", tmp_path / "out")
    flags = ["--dataset=image_folder", f"--source={grown / 'more'}", f"--data_dir={out}", "--append", "--num_shards=2"]
    killed_in("publish_version", 8, *flags)
    assert (out / "train-v2-00001-of-00002.tfrecord").exists()
    convert(grown / "more", out, "--append", "--num_shards=3")
    added = sorted(path.name for path in out.glob("train-v2-*"))
    assert added == [f"train-v2-0000{number}-of-00003.tfrecord" for number in range(3)]
    assert {path.name for path in (out / naming.SIDECARS).glob("*v2*")} == {
        f"crcs.train-v2-0000{number}-of-00003.tf-record" for number in range(3)
    }


@pytest.mark.slow
@pytest.mark.parametrize("workers", [1, 2])
def test_shards_do_not_depend_on_the_number_of_workers(workers, grown, tmp_path):
    out = shutil.copytree(grown / "old", tmp_path / "out")
    mode = [f"--direct_num_workers={workers}", "--direct_running_mode=multi_processing"]
    convert(grown / "more", out, "--append", "--num_shards=2", *mode)
    assert files_of(out) == files_of(grown / "new")


FLAGS = (
    "--global_batch_size=20",
    "--checkpoint_every=5",
    "--log_every=1",
    "--eval_every=0",
    "--augment=shift(pixels=1)",
)
IN_EPOCH = 4  # of 70 records; of version 2, 5


@pytest.mark.parametrize("deaths", [(40,), pytest.param((31, 40, 52), marks=pytest.mark.slow)])
def test_a_run_stays_on_its_version_and_moves_at_the_end_of_an_epoch(deaths, grown, tmp_path):
    data, still = shutil.copytree(grown / "old", tmp_path / "data"), grown / "old"
    run, calm = tmp_path / "run", tmp_path / "calm"
    train(still, calm, *FLAGS, "--train_steps=30")

    killed = start(data, run, *FLAGS, "--train_steps=30")
    wait_for_step(killed, 12)
    kill(killed)
    convert(grown / "more", data, "--append", "--num_shards=2")
    out = train(data, run, *FLAGS, "--train_steps=30")
    assert f"trains on version 1 of {data}\n" in out
    assert (
        f"the newest is version 2, of 30 more examples; to move to it at the end of an epoch: --data_dir={data}@2"
        in out
    )
    assert checkpoint_bytes(run, 30) == checkpoint_bytes(calm, 30)

    twin = shutil.copytree(run, tmp_path / "twin")
    out = train(f"{data}@2", twin, *FLAGS, "--train_steps=60")
    assert f"trains on version 1, from step 32 on version 2 of {data}\n" in out
    for step in deaths:
        killed = start(f"{data}@2" if step < 50 else data, run, *FLAGS, "--train_steps=60")
        wait_for_step(killed, step)
        kill(killed)
    out = train(data, run, *FLAGS, "--train_steps=60")
    assert f"trains on version 1, from step 32 on version 2 of {data}\n" in out
    assert "the newest" not in out
    assert checkpoint_bytes(run, 60) == checkpoint_bytes(twin, 60)
    assert checkpoint_bytes(run, 60) != checkpoint_bytes(run, 55)

    [(code, _, err)] = finish(start(f"{data}@1", run, *FLAGS, "--train_steps=70"))
    assert (code, err.count("\n")) == (2, 1)
    assert f"--data_dir={data}@1: the run trains on version 1, from step 32 on version 2, and moves to later" in err
    assert f"give {data}@2 to continue" in err
    shutil.rmtree(data / "versions")
    [(code, _, err)] = finish(start(data, run, *FLAGS, "--train_steps=70"))
    assert (code, err.count("\n")) == (1, 1)
    first = manifest.load(still).digest[:12]
    assert f"{data}: has no version {first}, which {run}/ckpt-60 was trained on; it has 2 (" in err
    assert "put back its folder versions/" in err
    assert checkpoint_bytes(run, 60) == checkpoint_bytes(twin, 60)


@pytest.mark.slow
def test_a_run_with_parameter_servers_moves_at_the_end_of_an_epoch(grown, tmp_path):
    data, run, twin = shutil.copytree(grown / "old", tmp_path / "data"), tmp_path / "run", tmp_path / "twin"

    def job(given, place, steps):
        flags = (*FLAGS, "--model=softmax_regression", "--sync", f"--train_steps={steps}")
        return Job(1, 1, given, place, *flags)

    def chief_of(ended):
        return ended.succeed()["chief 0"]

    chief_of(job(data, run, 6))
    convert(grown / "more", data, "--append", "--num_shards=2")
    shutil.copytree(run, twin)
    assert f"trains on version 1, from step 8 on version 2 of {data}\n" in chief_of(job(f"{data}@2", twin, 24))
    for step in (7, 12):
        killed = job(f"{data}@2", run, 24)
        wait_for_step(killed.chief, step)
        for process in killed.processes.values():
            process.kill()
        killed.finish()
    assert f"trains on version 1, from step 8 on version 2 of {data}\n" in chief_of(job(data, run, 24))
    assert checkpoint_bytes(run, 24) == checkpoint_bytes(twin, 24)
    digests = [manifest.load(f"{data}@{version}").digest for version in (1, 2)]
    order = json.loads((run / "order.json").read_text())
    assert [order[f"source {turn}: manifest_digest"] for turn in (0, 1)] == digests
    assert order["schedule"] == [[0, [20, 0]], [8, [0, 20]]]


def test_each_version_has_its_records_once_per_epoch(grown):
    old, new = (f"{grown / 'new'}@{version}" for version in (1, 2))
    start_of_second = 3 * IN_EPOCH
    schedule = [(0, {old: 1, new: 0}), (start_of_second, {old: 0, new: 1})]
    options = {"global_batch_size": 20, "training": True, "features": ("key",), "seed": 3}
    batches = input_fn([(old, 1), (new, 1)], schedule=schedule, **options)
    steps = [
        {key for key, weight in zip(features["key"], weights, strict=True) if weight}
        for _, (features, _, weights) in zip(range(start_of_second + 10), batches.as_numpy_iterator(), strict=False)
    ]
    alone = input_fn(old, **options).as_numpy_iterator()
    for keys, (features, _, weights) in zip(steps[:start_of_second], alone, strict=False):
        assert keys == {key for key, weight in zip(features["key"], weights, strict=True) if weight}
    for first, count, records in ((0, IN_EPOCH, 70), (8, IN_EPOCH, 70), (12, 5, 100), (17, 5, 100)):
        epoch = [key for keys in steps[first : first + count] for key in keys]
        assert (len(epoch), len(set(epoch))) == (records, records)


@pytest.mark.slow
def test_another_command_reads_the_version_that_a_run_was_trained_on(grown, tmp_path):
    data, run = shutil.copytree(grown / "old", tmp_path / "data"), tmp_path / "run"
    train(data, run, *FLAGS, "--train_steps=10")
    more = write_images(tmp_path / "tests", range(200, 210), ["test"])
    convert(more, data, "--append")
    process = forked.Process(["-m", "trainer.evaluate", f"--model_dir={run}"])
    assert "(70 examples" in succeed(process)[0]
    process = forked.Process(["-m", "trainer.replay", f"--model_dir={run}", "--step=7"])
    succeed(process)
