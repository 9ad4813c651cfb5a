"""Images per second of this input and of its peers, each in a process of its own, in turns, as ratios.

    python -m benchmarks.input_throughput [--data_dir=DIR] [--python=PATH] [--json=FILE] [--chart=FILE.svg]

Parts (--only):
  peers: each contestant of `CONTESTANTS` feeds the same images of CIFAR-10's shape, shuffled, without end, at each
    batch size, augmented and unaugmented; the limit is a frozen C loop. This input is taken inside a `tf.function`, by
    a plain `for`, and as arrays of `StepIterator`; `nothing` is what TensorFlow takes to hand out one batch again and
    again;
  distribute: `pipeline.distribute` on 1, 2 and 4 logical devices against plain iteration on one, at the smallest and
    the largest batch size; `nothing` hands out its first element again and again;
  photographs: each contestant of `PHOTOGRAPHS` crops the same JPEGs of each size to 224x224 and flips them, with and
    without RandAugment and normalisation; the limit is libjpeg-turbo decoding such crops, and nothing else. A round
    is five times as long, since a batch takes up to some seconds;
  reading: TFRecords of 3 KB and 100 KB, every CRC checked, against `TFRecordDataset`.
A contestant that is not installed, here or under the interpreter of --python, is skipped with the reason; some cannot
share an environment, so --python=NAME=PATH gives one an interpreter of its own. Processor time and memory are those
of all processes of a contestant; memory is what they own, without mapped files, after a round. Rounds alternate;
ratios are computed per round, and their medians are printed. It needs an idle machine.
"""

from __future__ import annotations

import dataclasses
import json
import os
import pathlib
import re
import statistics
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from benchmarks import commands, feeding, inputs, interpreters, sources, throughput_chart
from benchmarks.feeding import Entry, Ready, Result
from benchmarks.feeds.feed import Setting
from benchmarks.rounds import ratio_text
from pipeline.commands import commandline
from pipeline.commands.flags import check, flag
from pipeline.errors import UsageError

COMMAND = "benchmarks.input_throughput"
ROOT = pathlib.Path(__file__).parents[1]
_IMAGES = 60_000  # images to make, 10,000 of them in test
OURS, LIMIT = "ours", "fused_c"
CONTESTANTS = {
    OURS: Entry("ours"),
    "ours_in_a_for": Entry("ours", {"taken": "for"}),
    "ours_as_arrays": Entry("ours", {"taken": "arrays"}),
    "nothing": Entry("ours", {"nothing": True}),
    "nothing_in_a_for": Entry("ours", {"nothing": True, "taken": "for"}),
    "ours_windowed": Entry("ours", {"windows": True}),
    "ours_compressed": Entry("ours", {"windows": True, "compression": "GZIP"}),
    "tf_one_by_one": Entry("tf_one_by_one"),
    "tf_whole_batch": Entry("tf_whole_batch"),
    "tfds": Entry("tfds_reader"),
    "grain": Entry("grain_records"),
    "dali": Entry("dali"),
    "ffcv": Entry("ffcv_images"),
    "torch": Entry("torch_loader"),
    LIMIT: Entry("fused_c"),
}
_CROPPED = "benchmarks.feeds.photographs."
PHOTOGRAPHS = {
    OURS: Entry(f"{_CROPPED}ours"),
    "ours_windowed": Entry(f"{_CROPPED}ours", {"windows": True}),
    "ours_scaled": Entry(f"{_CROPPED}ours", {"scaled": True}),
    "tf_one_by_one": Entry(f"{_CROPPED}tf_data"),
    "tf_whole_batch": Entry(f"{_CROPPED}tf_data", {"whole": True}),
    "tfds": Entry(f"{_CROPPED}tfds_reader"),
    "grain": Entry(f"{_CROPPED}grain_records"),
    "dali": Entry(f"{_CROPPED}dali"),
    "ffcv": Entry(f"{_CROPPED}ffcv_jpegs"),
    "torch": Entry(f"{_CROPPED}torch_loader"),
    "spdl": Entry(f"{_CROPPED}spdl_files"),
    "crop_alone": Entry(f"{_CROPPED}crop_alone"),
}
_LONGER = 5  # a round of photographs is this many times as long as others
PLAIN = "plain"
DISTRIBUTED = {PLAIN: Entry("ours", {"replicas": 0})} | {
    f"{what} on {replicas}": Entry("ours", {"replicas": replicas, "nothing": what == "nothing"})
    for replicas in (1, 2, 4)
    for what in ("distribute", "nothing")
}
READERS = {
    "ours": {"reader": "ours"},
    "TFRecordDataset": {"reader": "records"},
    "TFRecordDataset, batched": {"reader": "batched"},
}
SIZES = (3_158, 100_000)  # bytes of a record: CIFAR-10's, and a JPEG's
_PARTS = ("peers", "distribute", "photographs", "reading")


@dataclasses.dataclass(frozen=True)
class BenchmarkConfig:
    """What is measured."""

    data_dir: str = flag("", "CIFAR-10 as converted; default: random images of its shape, made for the run")
    batches: str = flag("128,512,1024", "rows of a batch of such images, separated by commas")
    photographs: str = flag(
        "500x375:1000,3000x2000:256",
        "JPEGs to make, WIDTHxHEIGHT:NUMBER,...; sides vary by a tenth, and a few hundred JPEGs are distinct",
    )
    photographs_batch: int = flag(256, "rows of a batch of photographs", least=1)
    only: str = flag("", "some of peers,distribute,photographs,reading; default: all")
    contestants: str = flag("", "contestants to run, separated by commas; default: all")
    python: str = flag(
        "", "NAME=PATH of a contestant's interpreter, PATH for all that cannot run here; separated by commas"
    )
    rounds: int = flag(3, "rounds of each", least=1)
    seconds: float = flag(1.0, "length of a round", least=0.01)
    json: str = flag("", "a file for all that was measured")
    chart: str = flag("", "a file for a chart of the peers: .svg or .png")

    def __post_init__(self) -> None:
        check(self)
        inputs.parts_of(self.only, _PARTS)
        inputs.parts_of(self.contestants, CONTESTANTS | PHOTOGRAPHS)
        photograph_sizes(self.photographs, self.photographs_batch)
        inputs.whole_numbers("--batches", self.batches, least=1)


def main(argv: Sequence[str] | None = None) -> None:
    """Prints a block of lines per setting."""
    config = commandline.parse(COMMAND, "Measure this input against its peers.", BenchmarkConfig, argv)
    known = interpreters.parse(config.python, set(CONTESTANTS | PHOTOGRAPHS))
    if config.chart:
        commandline.require("matplotlib")
    found: list[Result] = []
    parts = inputs.parts_of(config.only, _PARTS)
    commands.say_processor()
    with tempfile.TemporaryDirectory(prefix="throughput-") as folder:
        if "peers" in parts or "distribute" in parts:
            with inputs.data_set(config.data_dir, lambda made: inputs.make_cifar(made, _IMAGES)) as data_dir:
                found += list(_images(config, parts, pathlib.Path(folder), data_dir, known))
        if "photographs" in parts:
            found += list(_photographs(config, pathlib.Path(folder), known))
        if "reading" in parts:
            found += list(_reading(config, pathlib.Path(folder)))
    if config.json:
        _write(config, found)
    if config.chart:
        throughput_chart.draw([result for result in found if result.part == "peers"], config.chart)


def _images(
    config: BenchmarkConfig, parts: Sequence[str], folder: pathlib.Path, data_dir: str, known: interpreters.Interpreters
) -> Iterator[Result]:
    """Yields and prints the results of contestants that feed images."""
    arrays = inputs.dump_arrays(data_dir, folder / "arrays")
    base = Setting(str(arrays), data_dir, "", cores=os.cpu_count() or 1)
    for part, entries, of in (("peers", _chosen(config, CONTESTANTS), OURS), ("distribute", DISTRIBUTED, PLAIN)):
        if part not in parts:
            continue
        ready = feeding.prepared(entries, base, folder / part, known)
        if part == "peers":
            _print_contestants(ready)
        for augmented in (True, False):
            batches = inputs.whole_numbers("--batches", config.batches, least=1)
            for rows in batches if part == "peers" else sorted({min(batches), max(batches)}):
                setting = dataclasses.replace(base, rows=rows, augmented=augmented)
                measured = list(feeding.measured(part, ready, setting, config.rounds, config.seconds))
                _print(f"{part}, {'augmented' if augmented else 'unaugmented'}, batch {rows}", measured, of, "img")
                yield from measured


def _photographs(config: BenchmarkConfig, folder: pathlib.Path, known: interpreters.Interpreters) -> Iterator[Result]:
    """Yields and prints the results of contestants that crop photographs."""
    commandline.require("sklearn", "apache_beam", "tensorflow")
    for (width, height), count in photograph_sizes(config.photographs, config.photographs_batch).items():
        part = f"photographs of {width}x{height}"
        with tempfile.TemporaryDirectory(dir=folder) as made:
            files = sources.photographs(pathlib.Path(made) / "source", count, (width, height))
            commands.convert("image_folder", files, pathlib.Path(made) / "data", "--image_encoding=source")
            base = Setting(str(files), f"{made}/data", "", config.photographs_batch, cores=os.cpu_count() or 1)
            ready = feeding.prepared(_chosen(config, PHOTOGRAPHS), base, pathlib.Path(made), known)
            size = sum(path.stat().st_size for path in files.rglob("*.jpg")) / count
            print(f"{part}: {count:,} JPEGs of {size / 1e3:,.0f} KB on average, made from two photographs", flush=True)
            _print_contestants(ready)
            for augmented in (False, True):
                setting = dataclasses.replace(base, augmented=augmented)
                measured = list(feeding.measured(part, ready, setting, config.rounds, _LONGER * config.seconds))
                how = "cropped, flipped, RandAugment, normalised" if augmented else "cropped, flipped"
                _print(f"{part}, {how}, batch {base.rows}", measured, OURS, "img", cores=base.cores)
                yield from measured


def photograph_sizes(text: str, rows: int) -> dict[tuple[int, int], int]:
    """Returns the number of photographs of each (width, height) in a flag.

    Raises:
      UsageError: the text is invalid, or there are too few images for a batch.
    """
    found = {}
    for part in text.split(","):
        match = re.fullmatch(r"([1-9]\d*)x([1-9]\d*):([1-9]\d*)", part)
        if not match:
            raise UsageError(f"--photographs={text}: {part!r} is not WIDTHxHEIGHT:NUMBER, such as 500x375:1000")
        width, height, count = map(int, match.groups())
        if count < rows:
            raise UsageError(f"--photographs={text}: {count} are fewer than --photographs_batch={rows}")
        found[width, height] = count
    return found


def _chosen(config: BenchmarkConfig, entries: Mapping[str, Entry]) -> dict[str, Entry]:
    """Returns the contestants of a part that --contestants selects, or all."""
    names = inputs.parts_of(config.contestants, CONTESTANTS | PHOTOGRAPHS)
    return {name: entry for name, entry in entries.items() if name in names}


def _reading(config: BenchmarkConfig, folder: pathlib.Path) -> Iterator[Result]:
    """Yields and prints the results of readers of records."""
    for size in SIZES:
        options = {"size": size}
        entries = {name: Entry("records", {**options, **own}, shared=f"{size}") for name, own in READERS.items()}
        setting = Setting("", "", "", rows=size, cores=os.cpu_count() or 1)
        ready = feeding.prepared(entries, setting, folder / "reading", interpreters.Interpreters({}))
        measured = list(feeding.measured("reading", ready, setting, config.rounds, config.seconds))
        _print(f"reading, records of {size:,} bytes", measured, "TFRecordDataset", "records", size)
        yield from measured


def _print_contestants(ready: Mapping[str, Ready]) -> None:
    """Prints each contestant's versions and how it augments."""
    print("contestants, and how they augment:")
    for name, one in ready.items():
        versions = ", ".join(f"{package} {version}" for package, version in one.versions.items())
        print(f"  {name:24} {one.augments} ({versions})", flush=True)


def _print(what: str, measured: Sequence[Result], of: str, unit: str, size: int = 0, cores: int = 0) -> None:
    """Prints a line per contestant, with its ratio to one of them.

    Args:
      what: headline.
      measured: the contestants' rounds.
      of: name of the contestant to compare with.
      unit: unit of the counts.
      size: bytes of a unit, to print bytes per second; 0 to omit them.
      cores: number of cores, to print the cost of a unit on one; 0 for units per CPU second instead.
    """
    print(f"{what}:", flush=True)
    base = next((result.rounds for result in measured if result.name == of), [])
    for result in measured:
        rate, cpu = (statistics.median(one[field] for one in result.rounds) for field in ("rate", "cpu"))
        volume = f" ({rate * size / 1e9:.2f} GB/s, {1e-3 * size / cpu:.2f} GB per CPU-second)" if size else ""
        line = f"  {result.name:24} {rate:11,.0f} {unit}/s{volume}"
        if cores:
            line += f" {rate / cores:9,.0f} per core {cpu:9,.0f} us of processor per {unit}"
        else:
            line += f" {1e6 / cpu:11,.0f} {unit} per CPU-second"
        line += f" first after {result.first:.2f} s, {max(one['memory'] for one in result.rounds) / 1e6:,.0f} MB"
        if base and result.name != of:
            ratios = {
                field: [own[field] / other[field] for own, other in zip(result.rounds, base, strict=True)]
                for field in ("rate", "cpu")
            }
            line += f"; of {of}: {ratio_text(ratios['rate'])}"
            line += f", by processor time {ratio_text([1 / one for one in ratios['cpu']])}"
        print(line, flush=True)


def _write(config: BenchmarkConfig, found: Sequence[Result]) -> None:
    """Writes everything as JSON."""
    flags: Mapping[str, Any] = dataclasses.asdict(config)
    results = [dataclasses.asdict(result) for result in found]
    text = json.dumps({"machine": feeding.machine(), "flags": flags, "results": results}, indent=1)
    pathlib.Path(config.json).write_text(text + "\n")


if __name__ == "__main__":
    commandline.run(COMMAND, main)
