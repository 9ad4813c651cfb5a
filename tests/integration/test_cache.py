"""Copies of remote shards on the local disk, against an S3 server on the loopback interface."""

from __future__ import annotations

import hashlib
import logging
import os
import pathlib
import re
from collections import Counter
from collections.abc import Iterator

import numpy as np
import pytest

from beam_jobs.storage.paths import RemotePath
from pipeline import input_fn
from pipeline.read.copies import cache_counts
from tests.datasets import Kind, write_dataset

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


@pytest.fixture
def requests() -> Iterator[Requests]:
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
    for path in folder.iterdir():
        (bucket / name / path.name).write_bytes(path.read_bytes())
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
    "kind", [Kind(), Kind(unequal_keys=True), Kind(compression="GZIP")], ids=["raw", "offsets", "gzip"]
)
def test_a_second_epoch_and_a_second_input_fetch_nothing(
    kind: Kind, bucket: RemotePath, requests: Requests, tmp_path: pathlib.Path
) -> None:
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
        assert path.read_bytes() == (tmp_path / "data" / path.name).read_bytes()
    requests.gets.clear()
    assert digest_of(url, cache_dir=cache) == expected
    assert requests.shards() == 0
    after = cache_counts()
    assert after.misses - before.misses == len(fetched)
    assert after.fetched_bytes - before.fetched_bytes == sum(os.path.getsize(path) for path in cache.glob("*/*"))
    assert after.hits > before.hits
    assert after.uncached == before.uncached
