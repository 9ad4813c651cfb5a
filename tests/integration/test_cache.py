"""Copies of remote shards on the local disk, against an S3 server on the loopback interface."""

from __future__ import annotations

import hashlib
import json
import logging
import os
import pathlib
import re
import shutil
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Sequence
from typing import Any

import crc32c
import numpy as np
import pytest
import tensorflow as tf

from pipeline import RandomAccess, StepIterator, input_fn, manifest, skipped_records
from pipeline.files.remote import RemotePath
from pipeline.read.cache_folder import CacheFolder
from pipeline.read.shard_cache import cache_counts
from tests.helpers import forked
from tests.helpers.datasets import Kind, flip, write_dataset
from tests.helpers.forked import ROOT
from trainer import evaluate, export, run

COUNTS = (40, 0, 30, 50, 20, 60)  # 200 records of 8 x 6 x 3 bytes


class Requests(logging.Handler):
    """What the server was asked for: GET requests by the base name of the object."""

    def __init__(self) -> None:
        super().__init__()
        self.gets: Counter[str] = Counter()

    def emit(self, record: logging.LogRecord) -> None:
        found = re.search(r"GET /([^ ?]*)(\?[^ ]*)? HTTP", record.getMessage())
        if found:
            self.gets[found[1].rpartition("/")[2]] += 1

    def shards(self) -> int:
        return sum(count for name, count in self.gets.items() if ".tfrecord" in name)


@pytest.fixture(autouse=True)
def _warnings_are_logged(caplog):
    """Whatever level Beam's runners have left at the root."""
    caplog.set_level(logging.WARNING, logger="pipeline")


@pytest.fixture
def requests():
    log, handler = logging.getLogger("werkzeug"), Requests()
    level = log.level
    log.addHandler(handler)
    log.setLevel(logging.INFO)
    log.propagate = False
    yield handler
    log.removeHandler(handler)
    log.setLevel(level)
    log.propagate = True


def uploaded(folder: pathlib.Path, bucket: RemotePath, name: str = "data") -> str:
    for path in filter(pathlib.Path.is_file, folder.rglob("*")):
        (bucket / name / str(path.relative_to(folder))).write_bytes(path.read_bytes())
    return str(bucket / name)


def digest_of(data_dir: object, **options: object) -> str:
    given = {"global_batch_size": 10, "training": True, "epochs": 2, "shuffle_bytes": 4000, "streams": 2, **options}
    found = hashlib.sha256()
    for images, labels, weights in input_fn(data_dir, **given):
        for part in (images, labels, weights):
            found.update(np.ascontiguousarray(part).tobytes())
    return found.hexdigest()


def names_in(cache: pathlib.Path) -> list[str]:
    return sorted(path.name for path in cache.glob("*/*"))


@pytest.mark.parametrize(
    "kind",
    [Kind(), pytest.param(Kind(unequal_keys=True), marks=pytest.mark.slow), Kind(compression="GZIP")],
    ids=["raw", "offsets", "gzip"],
)
@pytest.mark.quick(1)
def test_a_second_epoch_and_a_second_input_fetch_nothing(kind, bucket, requests, tmp_path):
    made = write_dataset(tmp_path / "data", COUNTS, kind=kind)
    url, cache = uploaded(tmp_path / "data", bucket), tmp_path / "cache"
    before = cache_counts()
    expected = digest_of(tmp_path / "data")
    assert digest_of(url, cache_dir=cache) == expected
    shards = [shard for shard in made.splits["train"].shards if shard.num_examples]
    fetched = {name: count for name, count in requests.gets.items() if "train" in name}
    assert set(fetched.values()) == {1}
    assert {shard.file for shard in shards} <= set(fetched)
    assert names_in(cache) == sorted(fetched)
    for path in cache.glob("*/*"):
        (original,) = (tmp_path / "data").rglob(path.name)
        assert path.read_bytes() == original.read_bytes()
    requests.gets.clear()
    assert digest_of(url, cache_dir=cache) == expected
    assert requests.shards() == 0
    after = cache_counts()
    assert after.misses - before.misses == len(fetched)
    assert after.fetched_bytes - before.fetched_bytes == sum(os.path.getsize(path) for path in cache.glob("*/*"))
    assert after.hits > before.hits
    assert after.uncached == before.uncached


READER = """
import hashlib, json, sys
from pipeline import RandomAccess
from pipeline.read.shard_cache import cache_counts

data_dir, options = json.loads(sys.argv[1])
examples = RandomAccess(data_dir, "train", **options)
print("open", flush=True)
found = hashlib.sha256()
for epoch in range(2):
    for example in examples:
        found.update(example["image"].tobytes() + example["key"])
print(json.dumps({"digest": found.hexdigest(), **cache_counts()._asdict()}))
"""


def reader(data_dir: object, before: Sequence[str] = (), **options: object) -> forked.Process | subprocess.Popen[str]:
    """Starts a process that reads the training split twice; `before` is the beginning of its command line."""
    given = json.dumps([str(data_dir), {name: str(v) if name == "cache_dir" else v for name, v in options.items()}])
    if not before:
        return forked.Process(["-c", READER, given])
    command = [*before, sys.executable, "-c", READER, given]
    return subprocess.Popen(command, cwd=ROOT, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)


def result_of(process: forked.Process | subprocess.Popen[str]) -> tuple[dict[str, Any], str]:
    """Returns the records that a reader found, and its stderr."""
    out, err = process.communicate(timeout=300)
    assert process.returncode == 0, err
    return json.loads(out.splitlines()[-1]), err


@pytest.fixture(scope="module")
def data(tmp_path_factory):
    folder = tmp_path_factory.mktemp("cache") / "data"
    write_dataset(folder, COUNTS, shape=(32, 32, 3))
    return folder


@pytest.fixture(scope="module")
def expected(data):
    """What a reader of the folder itself finds."""
    return result_of(reader(data))[0]


def sizes_of(data: pathlib.Path) -> dict[str, int]:
    """Returns the sizes of the training shards that have records."""
    return {path.name: size for path in data.glob("train-*.tfrecord") if (size := path.stat().st_size)}


def test_two_processes_at_once_fetch_each_shard_once(data, expected, bucket, requests, tmp_path):
    url = uploaded(data, bucket)
    started = [reader(url, cache_dir=tmp_path / "cache") for _ in range(3)]
    found = [result_of(process)[0] for process in started]
    assert {each["digest"] for each in found} == {expected["digest"]}
    assert sum(each["misses"] for each in found) == len(names_in(tmp_path / "cache"))
    assert {count for name, count in requests.gets.items() if "tfrecord" in name} == {1}
    requests.gets.clear()
    later, _ = result_of(reader(url, cache_dir=tmp_path / "cache"))
    assert (later["digest"], later["misses"], requests.shards()) == (expected["digest"], 0, 0)


def test_a_flipped_byte_of_a_copy_is_noticed_at_its_first_use_and_fetched_again(
    data, expected, bucket, requests, tmp_path
):
    url, cache = uploaded(data, bucket), tmp_path / "cache"
    assert result_of(reader(url, cache_dir=cache))[0]["digest"] == expected["digest"]
    name = "train-00003-of-00006.tfrecord"
    [copy] = cache.glob(f"*/{name}")
    original, before = copy.read_bytes(), copy.stat()
    flip(copy, 1000, 4)
    os.utime(copy, ns=(before.st_atime_ns, before.st_mtime_ns))
    requests.gets.clear()
    found, said = result_of(reader(url, cache_dir=cache))
    assert (found["digest"], found["misses"], requests.shards()) == (expected["digest"], 1, 1)
    size, crc = len(original), f"{crc32c.crc32c(original):08x}"
    assert re.search(f"{name}: {size} bytes of CRC32C [0-9a-f]{{8}}, not {size} of {crc}; this copy is removed", said)
    assert copy.read_bytes() == original


def test_files_never_take_more_than_cache_bytes_and_the_batches_stay(data, expected, bucket, tmp_path):
    url, cache = uploaded(data, bucket), tmp_path / "cache"
    sizes = sizes_of(data)
    bound = max(sizes.values()) + min(sizes.values())
    most, process = 0, reader(url, cache_dir=cache, cache_bytes=bound)
    while process.poll() is None:
        most = max(most, CacheFolder(str(cache), bound).num_bytes())
        time.sleep(0.002)
    found, _ = result_of(process)
    assert found["digest"] == expected["digest"]
    assert max(sizes.values()) <= most <= bound
    assert found["misses"] > len(sizes)  # of the second epoch, too
    assert [name for name in names_in(cache) if name.endswith(".part")] == []


def test_a_process_killed_while_it_fetches_leaves_nothing_that_is_used(data, expected, bucket, tmp_path):
    url, cache = uploaded(data, bucket), tmp_path / "cache"
    [digest] = {manifest.load(data).digest[:16]}
    killed = []
    for delay in (0.0, 0.02):
        process = reader(url, cache_dir=cache)
        deadline = time.monotonic() + 60
        while not list(cache.glob("*/*.part")) and time.monotonic() < deadline and process.poll() is None:
            time.sleep(0.0005)
        time.sleep(delay)
        process.kill()
        process.communicate()
        killed += list(cache.glob("*/*.part"))
        for path in cache.glob(f"{digest}/*.tfrecord"):  # what has its name is whole
            assert path.read_bytes() == (data / path.name).read_bytes()
    assert killed  # in the middle, at least once
    found, _ = result_of(reader(url, cache_dir=cache))
    assert found["digest"] == expected["digest"]
    assert [name for name in names_in(cache) if name.endswith(".part")] == []


SMALL_DISK = """
mount -t tmpfs -o size=200k tmpfs "$1" && shift && exec "$@"
"""


@pytest.mark.parametrize("limit", ["a full disk", pytest.param("the largest file", marks=pytest.mark.slow)])
def test_where_the_disk_is_full_shards_are_read_from_the_store(limit, data, expected, bucket, tmp_path):
    url, cache = uploaded(data, bucket), tmp_path / "cache"
    cache.mkdir()
    if limit == "a full disk":
        sizes = sorted(sizes_of(data).values())
        assert sizes[-1] < 200 << 10 < sum(sizes)
        before = ["unshare", "-rm", "sh", "-c", SMALL_DISK, "sh", str(cache)]
        if subprocess.run([*before, "true"], capture_output=True, check=False).returncode:
            pytest.skip("this system mounts no tmpfs for its users")
        reason = "No space left on device; make room"
    else:
        before = ["prlimit", f"--fsize={100 << 10}"]
        reason = "File too large: this process may write files of 102,400 bytes at most; "
        reason += "raise ulimit -f and rerun the command"
    found, said = result_of(reader(url, before=before, cache_dir=cache, cache_bytes=1 << 20))
    assert found["digest"] == expected["digest"]
    assert found["misses"] > 0
    assert found["uncached"] > 0
    assert said.count(f"cache_dir: {cache}: {reason}; shards without a copy are read from {url} itself") == 1
    assert [name for name in names_in(cache) if name.endswith(".part")] == []


def test_a_cache_smaller_than_a_window_is_filled_and_the_rest_is_read_from_the_store(bucket, tmp_path, caplog):
    write_dataset(tmp_path / "data", COUNTS)
    url, cache = uploaded(tmp_path / "data", bucket), tmp_path / "cache"
    sizes, before = sizes_of(tmp_path / "data"), cache_counts()
    bound = max(sizes.values()) + 1
    given = {"shuffle_bytes": 150 * 8 * 6 * 3, "cache_bytes": bound, "cache_dir": cache}
    expected = digest_of(tmp_path / "data", shuffle_bytes=150 * 8 * 6 * 3)
    assert digest_of(url, **given) == expected
    assert CacheFolder(str(cache)).num_bytes() <= bound
    assert cache_counts().uncached > before.uncached
    assert caplog.text.count("is less than the shards take that are in use; shards without a copy are read from") == 1


@pytest.mark.slow
def test_a_shard_of_the_store_that_is_not_the_manifest_s_is_named(bucket, tmp_path):
    write_dataset(tmp_path / "data", COUNTS)
    url, cache = uploaded(tmp_path / "data", bucket), tmp_path / "cache"
    path = tmp_path / "data" / "train-00003-of-00006.tfrecord"
    whole = path.read_bytes()
    flip(path, 1500)
    (bucket / "data" / path.name).write_bytes(path.read_bytes())
    there, here = (f"{crc32c.crc32c(each):08x}" for each in (path.read_bytes(), whole))
    message = f"{url}/{path.name}: its CRC32C is {there}, not {here} as the manifest has it; copy or convert"
    with pytest.raises(tf.errors.InvalidArgumentError, match=message):
        digest_of(url, cache_dir=cache)
    assert path.name not in names_in(cache)
    skipping = {"on_corrupt": "skip", "epochs": 3}
    assert digest_of(url, cache_dir=cache, **skipping) == digest_of(tmp_path / "data", **skipping)
    assert [record.record for record in skipped_records(url)] == [1500 // (len(whole) // 50)]
    assert path.name not in names_in(cache)


@pytest.mark.slow
def test_yesterday_s_copies_are_not_used_for_today_s_data(bucket, tmp_path):
    cache = tmp_path / "cache"
    write_dataset(tmp_path / "old", COUNTS, classes=3)
    write_dataset(tmp_path / "new", COUNTS, classes=4)  # the same names and sizes
    assert sizes_of(tmp_path / "old") == sizes_of(tmp_path / "new")
    digests = []
    for name in ("old", "new", "old"):
        digests.append(digest_of(uploaded(tmp_path / name, bucket), cache_dir=cache))
        assert digests[-1] == digest_of(tmp_path / name)
    assert digests[0] == digests[2] != digests[1]


@pytest.mark.slow
def test_a_resumed_run_may_have_a_cache_or_not(bucket, tmp_path):
    write_dataset(tmp_path / "data", COUNTS)
    url = uploaded(tmp_path / "data", bucket)
    given = {"global_batch_size": 10, "training": True, "shuffle_bytes": 4000, "streams": 2}
    with_cache = StepIterator(url, cache_dir=tmp_path / "cache", **given)
    for _ in range(7):
        next(with_cache)
    without = StepIterator(url, **given)
    without.set_state(with_cache.get_state())
    assert with_cache.spec.digest == without.spec.digest
    for _ in range(30):
        for one, other in zip(next(with_cache), next(without), strict=True):
            np.testing.assert_array_equal(one, other)


AT_EXIT = """
import sys
from pipeline import RandomAccess
data_dir, cache = sys.argv[1:]
examples = RandomAccess(data_dir, "train", cache_dir=cache)
shards = examples._shards
import numpy as np
shards.fetch_ahead(np.array([[n, 0, s.num_examples] for n, s in enumerate(shards.segments)]))
print("ends")
"""


@pytest.mark.slow
def test_a_process_that_ends_does_not_wait_for_what_it_fetches_ahead(bucket, requests, tmp_path):
    write_dataset(tmp_path / "data", [1] * 120, shape=(64, 64, 3))
    url, cache = uploaded(tmp_path / "data", bucket), tmp_path / "cache"
    done = forked.fresh(["-c", AT_EXIT, url, cache], timeout=60)
    assert (done.returncode, done.stdout, done.stderr) == (0, "ends\n", "")
    assert requests.shards() < 60
    assert [name for name in names_in(cache) if name.endswith(".part")] == []


@pytest.mark.slow
def test_trainer_and_evaluation_use_one_cache(bucket, requests, tmp_path, capfd):
    write_dataset(tmp_path / "data", COUNTS, test_counts=(20, 20))
    url, cache = uploaded(tmp_path / "data", bucket), tmp_path / "cache"
    flags = [f"--data_dir={url}", f"--model_dir={tmp_path / 'run'}", f"--cache_dir={cache}", "--cache_bytes=1e6"]
    flags += ["--global_batch_size=20", "--shuffle_bytes=4000", "--streams=2", "--checkpoint_every=20"]
    run.main([*flags, "--train_steps=20"])
    assert re.search(r"cache \d+ hits?, \d+ misses \(.* fetched\)", capfd.readouterr().out)
    requests.gets.clear()
    without = [flag for flag in flags if "cache" not in flag]
    run.main([*without, "--train_steps=25"])  # resumes without a cache
    assert "changed since" not in capfd.readouterr().out
    assert requests.shards() > 0
    requests.gets.clear()
    run.main([*flags, "--train_steps=30"])
    evaluate.main([f"--model_dir={tmp_path / 'run'}"])
    assert [name for name in requests.gets if name.endswith(".tfrecord")] == [], requests.gets
    few = tmp_path / "few"
    run.main([*without, "--train_steps=40", f"--cache_dir={few}", "--cache_bytes=15000"])
    assert 0 < sum(path.stat().st_size for path in few.glob("*/*")) <= 15000


@pytest.mark.slow  # an export loads TensorFlow in another process
def test_evaluations_exports_and_examples_have_a_cache_by_their_own_flags(bucket, requests, tmp_path, monkeypatch):
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "-1")  # as trainer.export sets it, and pytest takes it back
    write_dataset(tmp_path / "data", COUNTS, test_counts=(20, 20))
    url, model_dir = uploaded(tmp_path / "data", bucket), f"--model_dir={tmp_path / 'run'}"
    run.main([f"--data_dir={url}", model_dir, "--global_batch_size=20", "--train_steps=2", "--eval_split=test"])

    def evaluated(*flags: str) -> None:
        evaluate.main([model_dir, *flags])

    def exported(*flags: str) -> None:
        shutil.rmtree(tmp_path / "out", ignore_errors=True)
        export.main([model_dir, f"--output={tmp_path / 'out'}", "--format=keras", *flags])

    def example(*flags: str) -> None:
        options = dict(flag.removeprefix("--").split("=") for flag in flags)
        if "cache_bytes" in options:
            options["cache_bytes"] = int(float(options["cache_bytes"]))
        assert RandomAccess(url, "test", **options)[39]["image"].shape == (8, 6, 3)

    for number, reads in enumerate((evaluated, exported, example)):
        cache = tmp_path / f"cache-{number}"
        reads(f"--cache_dir={cache}")
        kept = [name for name in names_in(cache) if name.startswith("test-")]
        assert kept
        requests.gets.clear()
        reads(f"--cache_dir={cache}")
        assert requests.shards() == 0
        few = tmp_path / f"few-{number}"
        reads(f"--cache_dir={few}", "--cache_bytes=5000")  # of one shard
        assert sum(path.stat().st_size for path in few.glob("*/*.tfrecord")) <= 5000
        assert requests.shards() > 0


@pytest.mark.slow
def test_while_one_window_is_consumed_the_shards_of_the_two_after_it_are_fetched(bucket, requests, tmp_path):
    write_dataset(tmp_path / "data", [20] * 6)
    url, cache = uploaded(tmp_path / "data", bucket), tmp_path / "cache"
    given = {"global_batch_size": 2, "training": False, "shuffle_bytes": 20 * 8 * 6 * 3}  # a window is a shard
    fetched = []
    for step, _ in enumerate(input_fn(url, cache_dir=cache, epochs=2, **given)):
        if step % 10 == 0:  # the first batch of a window
            deadline = time.monotonic() + 20
            while len(shards_in(cache)) < min(6, step // 10 + 3) and time.monotonic() < deadline:
                time.sleep(0.01)
            time.sleep(0.1)
            fetched.append(len(shards_in(cache)))
    assert fetched == [3, 4, 5, 6, 6, 6] + [6] * 6
    assert {count for name, count in requests.gets.items() if name.endswith(".tfrecord")} == {1}


def shards_in(cache: pathlib.Path) -> list[str]:
    return [name for name in names_in(cache) if name.endswith(".tfrecord")]
