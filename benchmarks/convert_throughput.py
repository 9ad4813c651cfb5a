"""Conversion: its speed against TensorFlow Datasets, the minimum of work and one core; its peak memory.

    python -m benchmarks.convert_throughput [--source=cifar-10-batches-bin] [--only=floor,tfds,cores,memory,tar]

Contestants run in turn, so that a change of the machine's speed affects all. The ratio is computed per round; its
median is printed, with the lowest and the highest. A conversion is the command, in its own process. Its time is
- printed: what it prints, from the start of the Beam pipeline to the published manifest;
- start-up apart: that minus what a conversion of 60 images prints in the same round;
- with opening: the whole command's time minus that of the 60 images; this includes opening and checking the source (a
  SHA-256 of its files), but not importing Beam;
- processor time, with opening: the same in processor time, which other programs on the machine affect less.
"""

from __future__ import annotations

import dataclasses
import os
import pathlib
import statistics
import tempfile
from collections.abc import Callable, Sequence

from benchmarks import commands, inputs, sources
from benchmarks.floor import Floor
from pipeline.commands import commandline
from pipeline.commands.flags import check, flag

COMMAND = "benchmarks.convert_throughput"
_JPEG_MILLISECONDS = 3.0  # about, to decode 375x500 pixels, resize them to 224x224 and sum them
_PHOTOGRAPH_BYTES = 175_000  # about, of 900x675 pixels
_FEW = 60  # images of the smallest conversion
_ONE = "--direct_num_workers=1"
_CPU = "processor time, with opening"
_TIMES = (1, 4, 16)  # sizes of the sources, as multiples of the smallest


@dataclasses.dataclass(frozen=True)
class BenchmarkConfig:
    """What is measured."""

    source: str = flag("", "CIFAR-10's binary files; default: random images in the same files, made for the run")
    only: str = flag("", "some of floor,tfds,cores,memory,tar; default: all")
    work_dir: str = flag("", "folder on the disk to measure, with 4 GB free; default: the temporary folder")
    images: int = flag(60_000, "images to make", least=1)
    tfds_images: int = flag(5_000, "images that TensorFlow Datasets prepares", least=1)
    rounds: int = flag(5, "rounds of floor and tfds; cores and memory have fewer", least=1)
    seconds: float = flag(60.0, "seconds of work for one core, which all cores then share")
    gigabytes: float = flag(1.0, "gigabytes of photographs in tar shards", above=0)

    def __post_init__(self) -> None:
        inputs.parts_of(self.only, _PARTS)
        check(self)
        inputs.check_cifar_images(self.images)


@dataclasses.dataclass(frozen=True)
class Line:
    """A line of the table: what was compared, the ratio, and the medians of both."""

    what: str
    ratios: list[float]
    medians: str

    def __str__(self) -> str:
        """Returns the line."""
        low, middle, high = min(self.ratios), statistics.median(self.ratios), max(self.ratios)
        return f"{self.what:<58} {middle:6.2f}  ({low:.2f} to {high:.2f})  {self.medians}"


def main(argv: Sequence[str] | None = None) -> None:
    """Prints one line per round, then the table."""
    config = commandline.parse(COMMAND, "Measure conversion, as ratios.", BenchmarkConfig, argv)
    commands.say_processor()
    parts = inputs.parts_of(config.only, _PARTS)
    commandline.require("apache_beam", *(["tensorflow_datasets"] if "tfds" in parts else []))
    with tempfile.TemporaryDirectory(dir=config.work_dir or None, prefix="convert-throughput-") as name:
        lines = [line for part in parts for line in _PARTS[part](config, pathlib.Path(name))]
    print(f"\n{'compared':<58}  ratio  (lowest to highest)  medians")
    print("\n".join(map(str, lines)))


def against_floor(config: BenchmarkConfig, work: pathlib.Path) -> list[Line]:
    """CIFAR-10, raw, against reading it, the CRCs, and writing the same bytes."""
    source, few = _cifar(config, work)
    commands.convert("cifar10", source, work / "out")
    floor = Floor.load(source, work / "out")
    rounds = []
    for number in range(config.rounds):
        (seconds, cpu), own = floor.seconds(work / "floor"), _timed(source, few, work)
        rounds += [(name, cpu if name == _CPU else seconds, own[name]) for name in own]
        _say(f"floor, round {number + 1} of {config.rounds}: {seconds:.2f} s ({cpu:.2f} s of processor), {_text(own)}")
    made = []
    for name in dict.fromkeys(name for name, _, _ in rounds):
        pairs = [(least, own) for other, least, own in rounds if other == name]
        least, own = (statistics.median(column) for column in zip(*pairs, strict=True))
        ratios = [one / other for one, other in pairs]
        made.append(Line(f"part of the floor's speed, {name}", ratios, f"{own:.2f} s, floor {least:.2f} s"))
    return made


def against_tfds(config: BenchmarkConfig, work: pathlib.Path) -> list[Line]:
    """Examples per second against TFDS's own, with its PNG and with raw tensors, plain and with Beam."""
    source, few = _cifar(config, work)
    kinds = {"PNG": [], "PNG, Beam": ["--beam"], "raw": ["--raw"], "raw, Beam": ["--raw", "--beam"]}
    rates: dict[str, list[float]] = {kind: [] for kind in ("ours", *kinds)}
    for number in range(config.rounds):
        images = sum((source / name).stat().st_size // 3073 for name in sources.CIFAR_FILES)
        rates["ours"].append(images / _timed(source, few, work)["start-up apart"])
        for kind, flags in kinds.items():
            with tempfile.TemporaryDirectory(dir=work) as data_dir:
                arguments = [f"--source={source}", f"--data_dir={data_dir}", f"--count={config.tfds_images}", *flags]
                seconds = commands.run("benchmarks.tfds_cifar", arguments).output.strip().splitlines()[-1]
            rates[kind].append(config.tfds_images / float(seconds))
        rounded = ", ".join(f"{kind} {found[-1]:,.0f}" for kind, found in rates.items())
        _say(f"tfds, round {number + 1} of {config.rounds}, examples/s: {rounded}")
    own = statistics.median(rates["ours"])
    return [
        Line(
            f"examples/s of TFDS ({kind}), start-up apart",
            [ours / theirs for ours, theirs in zip(rates["ours"], rates[kind], strict=True)],
            f"{own:,.0f}/s, TFDS {statistics.median(rates[kind]):,.0f}/s",
        )
        for kind in kinds
    ]


def all_cores(config: BenchmarkConfig, work: pathlib.Path) -> list[Line]:
    """JPEG to raw 224x224 with the processes that the command chooses, against one."""
    count = round(config.seconds * 1000 / _JPEG_MILLISECONDS)
    source, few = (sources.parquet(work / f"{n}.parquet", n, (375, 500), "JPEG") for n in (count, _FEW))
    flags = ("--image_encoding=raw", "--resize=224x224")
    cores = os.cpu_count() or 1
    on_all = (f"--direct_num_workers={cores}", "--direct_running_mode=multi_processing", f"--num_shards={cores}")
    rounds = max(1, config.rounds // 2)
    found: dict[str, list[tuple[float, float]]] = {"start-up in it": [], "start-up apart": [], _CPU: []}
    for number in range(rounds):
        one, start = (commands.convert("parquet", each, work / "out", *flags, _ONE) for each in (source, few))
        chosen = commands.convert("parquet", source, work / "out", *flags)
        starts = commands.convert("parquet", few, work / "out", *flags, *on_all)
        found["start-up in it"].append((one.writing, chosen.writing))
        found["start-up apart"].append((one.writing - start.writing, chosen.writing - starts.writing))
        found[_CPU].append((one.cpu - start.cpu, chosen.cpu - starts.cpu))
        text = ", ".join(f"{name} {alone:.1f} and {both:.1f} s" for name, [*_, (alone, both)] in found.items())
        _say(f"cores, round {number + 1} of {rounds}, on one and by its own choice: {text}")
    lines = []
    for name, pairs in found.items():
        alone, both = (statistics.median(column) for column in zip(*pairs, strict=True))
        ratios = [one / other for one, other in pairs]
        medians = f"{both:.1f} s, one process {alone:.1f} s"
        lines.append(Line(f"{count} JPEGs to raw: all cores, {name}", ratios, medians))
    return lines


def memory(_: BenchmarkConfig, work: pathlib.Path) -> list[Line]:
    """Peak resident memory for sources of 1, 4 and 16 times the size, with shards of one size."""
    found: dict[str, list[float]] = {"CIFAR-10 files": [], "Parquet of PNG": []}
    for times in _TIMES:
        binary = sources.cifar(work / f"binary-{times}", 4_000 * times)
        shards = f"--num_shards=train:{2 * times},test:{times}"
        found["CIFAR-10 files"].append(commands.convert("cifar10", binary, work / "out", shards).peak / (1 << 20))
        table = sources.parquet(work / f"{times}.parquet", 8_000 * times, (32, 32), "PNG")
        flags = (f"--num_shards={2 * times}", "--image_encoding=raw", _ONE)
        found["Parquet of PNG"].append(commands.convert("parquet", table, work / "out", *flags).peak / (1 << 20))
        _say(f"memory, {times}x: " + ", ".join(f"{kind} {peaks[-1]:.0f} MiB" for kind, peaks in found.items()))
    text = "x, ".join(map(str, _TIMES)) + "x"
    return [
        Line(f"peak memory, {kind}, largest to smallest", [max(peaks) / min(peaks)], f"{text}: {_mebibytes(peaks)}")
        for kind, peaks in found.items()
    ]


def tar_shards(config: BenchmarkConfig, work: pathlib.Path) -> list[Line]:
    """Two tar shards of photographs against the same files in folders, and the peak memory of both, in one process."""
    folder = sources.photographs(work / "photographs", round(config.gigabytes * 1e9 / _PHOTOGRAPH_BYTES), (900, 675))
    size = sum(path.stat().st_size for path in folder.glob("*/*")) / 1e9
    kinds = {"webdataset": sources.tars(folder, work / "tars", 2), "image_folder": folder}
    found: dict[str, list[commands.Run]] = {kind: [] for kind in kinds}
    for number in range(config.rounds):
        for kind, source in kinds.items():
            found[kind].append(commands.convert(kind, source, work / "out", _ONE))
        text = ", ".join(f"{kind} {runs[-1].cpu:.1f} s of processor" for kind, runs in found.items())
        _say(f"tar, round {number + 1} of {config.rounds}: {text}")
    tar, files = found.values()
    ratios = [one.cpu / other.cpu for one, other in zip(files, tar, strict=True)]
    medians = ", files ".join(f"{statistics.median(run.cpu for run in runs):.1f} s" for runs in (tar, files))
    peaks = [max(run.peak for run in runs) / (1 << 20) for runs in (tar, files)]
    what = f"{size:.1f} GB in tar shards, part of the files' speed"
    return [
        Line(f"{what}, processor time", ratios, medians),
        Line("their peak memory, against the files'", [peaks[0] / peaks[1]], _mebibytes(peaks)),
    ]


_PARTS: dict[str, Callable[[BenchmarkConfig, pathlib.Path], list[Line]]] = {
    "floor": against_floor,
    "tfds": against_tfds,
    "cores": all_cores,
    "memory": memory,
    "tar": tar_shards,
}


def _cifar(config: BenchmarkConfig, work: pathlib.Path) -> tuple[pathlib.Path, pathlib.Path]:
    """Returns the folder of the images, and one of 60."""
    made, few = work / "cifar", work / "few"
    if not few.exists():
        sources.cifar(few, _FEW // len(sources.CIFAR_FILES))
    if config.source:
        return pathlib.Path(config.source), few
    if not made.exists():
        sources.cifar(made, config.images // len(sources.CIFAR_FILES))
    return made, few


def _timed(source: pathlib.Path, few: pathlib.Path, work: pathlib.Path) -> dict[str, float]:
    start_up = commands.convert("cifar10", few, work / "out")
    run = commands.convert("cifar10", source, work / "out")
    return {
        "printed": run.writing,
        "start-up apart": run.writing - start_up.writing,
        "with opening": run.wall - start_up.wall,
        _CPU: run.cpu - start_up.cpu,
    }


def _text(times: dict[str, float]) -> str:
    return ", ".join(f"{seconds:.2f} s {name}" for name, seconds in times.items())


def _mebibytes(peaks: list[float]) -> str:
    return ", ".join(f"{peak:.0f}" for peak in peaks) + " MiB"


def _say(text: str) -> None:
    print(text, flush=True)


if __name__ == "__main__":
    commandline.run(COMMAND, main)
