"""An adapter of `benchmarks.conformance` that keeps every promise, or breaks the one that $FAULT names."""

import json
import os
import pathlib
import random
import time

from benchmarks.conformance import records

TITLE = "an input of the tests"
PACKAGES = ()
MODULES = ()
DOCS = ()
NOTE = "broken on purpose"
RESUMES = ELASTIC = SKIPS = True
ENDLESS = False
FAULT = os.environ["FAULT"]


def write(folder, shards):
    for number, shard in enumerate(shards):
        pathlib.Path(f"{folder}/{number:02d}.bin").write_bytes(b"".join(map(records.record, shard)))


class Loader:
    """Global batches of a seeded order, of which each rank takes its rows; padding has weight 0."""

    def __init__(self, job):
        self.job, self.rows, self.step = job, job.rows * job.ranks, 0
        files = sorted(pathlib.Path(job.folder).glob("*.bin"))
        self.found = [(path.name, data) for path in files for data in self._split(path.read_bytes())]
        if job.saved:
            self.step = json.loads(pathlib.Path(job.own).read_text()) + (FAULT == "a batch lost on resume")

    @staticmethod
    def _split(data):
        return [data[start : start + records.SIZE] for start in range(0, len(data), records.SIZE)]

    def epoch(self, number):
        order = list(range(records.COUNT))
        ranks_in_seed = self.job.ranks if FAULT == "order by ranks" else 0
        random.Random(f"{number} {ranks_in_seed}").shuffle(order)
        if FAULT == "tail lost":
            order = order[: records.COUNT // self.rows * self.rows]
        real = len(order)
        if FAULT == "uneven":
            order = order[: -self.rows]
        else:
            order += order[: -real % self.rows]
        for step in range(self.step, -(-len(order) // self.rows)):
            self.step = step + 1
            if FAULT == "hangs" and step == 5 and self.job.rank == 1:
                time.sleep(1_000)
            if FAULT == "dies" and step == 5 and self.job.rank == 1:
                os.kill(os.getpid(), 9)
            start = step * self.rows + self.job.rank * self.job.rows
            mine = range(start, min(start + self.job.rows, len(order)))
            if mine:
                yield self._batch([order[place] for place in mine], [place < real for place in mine])
        self.step = 0

    def _batch(self, numbers, real):
        rows = [self.found[number] for number in numbers]
        weights = [1.0] * len(real) if FAULT == "padding counted" else [float(one) for one in real]
        for i, (name, data) in enumerate(rows):
            if FAULT != "bytes unchecked" and not records.is_right(data):
                if not self.job.skip:
                    raise OSError("checksum" if FAULT == "corruption not named" else f"{name}: checksum")
                weights[i] = 0.0
        if FAULT == "whole batch skipped" and self.job.skip and 0.0 in weights:
            weights = [0.0] * len(weights)
        return [data for _, data in rows], weights

    def save(self, path):
        pathlib.Path(path).write_text(json.dumps(self.step))
