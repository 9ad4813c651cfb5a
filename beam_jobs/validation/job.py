"""A validation as a Beam job: workers check shards; then keys, totals and files of the whole data set are checked."""

from __future__ import annotations

import contextlib
import dataclasses
import json
import math
import os
import pathlib
from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from beam_jobs import drafts
from beam_jobs.report import card
from beam_jobs.runs.run import FOUND, Display, ShardJob
from beam_jobs.shards import keys, manifest_writer
from beam_jobs.shards.keys import Repeated
from beam_jobs.sink import present
from beam_jobs.validation import drift, findings
from beam_jobs.validation.drift import Other
from beam_jobs.validation.findings import Extremes, Finding
from beam_jobs.validation.near import NearHashes, NearTwins, near_twins
from beam_jobs.validation.shard import MOST_LISTED, Problem, ShardReport, check_shard
from beam_jobs.validation.twins import ImageHashes, Shared, Twins, of_another, split_of_shards, twins
from pipeline.commands.text import count_of
from pipeline.errors import DataError, name_of, reason_of
from pipeline.files.fields import OPTIONAL, as_json, from_json
from pipeline.files.paths import StoragePath
from pipeline.manifest import Manifest, ShardInfo, SplitInfo, croissant, naming, versions
from pipeline.manifest.columns import Columns
from pipeline.manifest.manifest import size_histogram
from pipeline.manifest.splits import select
from pipeline.read.statistics import STATISTICS_SPLIT, moments

FileProblem = tuple[str, str]  # file of the data set, and what is wrong with it
_MOST_NAMED = 3  # labels or sizes in one line
_EXACT, _LOSSY = 1e-9, 0.1  # grey levels: releases of the JPEG library decode slightly differently


@dataclasses.dataclass(frozen=True)
class Validation(ShardJob):
    """Checks a data set; the result is the path of the report.

    Attributes:
      data_dir: folder of the data set.
      manifest: manifest of the data set.
      decodes: whether to check the pixels too.
      report: path of the report.
      finds_near: whether to look for nearly equal images, too, if the pixels are checked.
      marks: local folder that gets an empty file, named by number, for each finished shard.
      other: data set to compare with; its pixels are checked if this one's are. None if there is none.
    """

    data_dir: StoragePath
    manifest: Manifest
    decodes: bool
    report: StoragePath
    marks: pathlib.Path
    finds_near: bool = False
    other: Other | None = None

    @property
    def shards(self) -> Sequence[int]:
        """The number of every shard; the other data set's shards follow this one's."""
        return range(len(self.infos))

    @property
    def infos(self) -> Sequence[ShardInfo]:
        """The shards that are read."""
        return (*self.manifest.shards, *(self.other.manifest.shards if self.other and self.decodes else ()))

    def work(self, shards: Iterable[int]) -> Iterator[tuple[int, Any]]:
        """Checks shards and yields their reports and keys."""
        for number in shards:
            if number < len(self.manifest.shards):
                found, hashes = check_shard(self.data_dir, self.manifest, number, self.decodes, self.finds_near)
                yield FOUND, found
                yield from hashes
            else:
                yield from self._work_on_other(number)
            with contextlib.suppress(OSError):  # the command is on another machine
                (self.marks / str(number)).touch()

    def _work_on_other(self, number: int) -> Iterator[tuple[int, Any]]:
        assert self.other is not None
        own = number - len(self.manifest.shards)
        found, groups = check_shard(self.other.data_dir, self.other.manifest, own, decodes=True)
        yield FOUND, dataclasses.replace(found, shard=number)
        for bucket, hashes in groups:
            if isinstance(hashes, ImageHashes):
                yield bucket, of_another(hashes, number)

    def repeated(self, hashes: Iterable[Any]) -> Sequence[Repeated | Twins | NearTwins | Shared]:
        """Returns all pairs of equal keys, because they are counted, or the equal or nearly equal images."""
        first, *others = hashes
        if isinstance(first, ImageHashes):
            own = [one for one in (first, *others) if one.shard < len(self.manifest.shards)]
            found: list[Repeated | Twins | NearTwins | Shared] = [twins(own, self._split_of_shard)] if own else []
            return [*found, *([Shared(twins([first, *others], self._split_of_shard))] if self.other else [])]
        if isinstance(first, NearHashes):
            return [near_twins([first, *others], self._split_of_shard)]
        return keys.repeats([first, *others])

    @property
    def _split_of_shard(self) -> NDArray[np.int64]:
        others = self.other.manifest.splits.values() if self.other else ()
        return split_of_shards([*self.manifest.splits.values(), *others])

    def finish(self, found: list[ShardReport], repeated: list[Repeated | Twins | NearTwins | Shared]) -> str:
        """Writes the report.

        Raises:
          DataError: it cannot be written from this machine.
        """
        by_number = {shard.shard: shard for shard in found}
        read = [by_number[number] for number in self.shards]
        shards = read[: len(self.manifest.shards)]
        of_files = [
            *_other_problems(self.other, read[len(shards) :]),
            *_total_problems(self.manifest, shards, self.decodes),
            *tfds_problems(self.data_dir, self.manifest),
            *column_problems(self.data_dir, self.manifest),
            *_deletion_problems(self.data_dir, self.manifest),
            *_card_problems(self.data_dir, self.manifest, self.decodes),
            *_croissant_problems(self.data_dir, self.manifest),
            *_stray_problems(self.data_dir, self.manifest, self.decodes),
        ]
        pairs = [value for value in repeated if isinstance(value, Repeated)]
        others = _key_problems(self.data_dir, self.manifest, pairs)
        others += [Problem(len(shards), -1, file, "", text) for file, text in of_files]
        if not self.report.is_remote and not self.report.parent.is_dir():
            raise DataError(
                "a worker cannot reach this folder",
                path=self.report.parent,
                advice="give --report=FILE in one that it can",
            )
        report = _combined(shards, others)
        if self.decodes:
            of_images = [value for value in repeated if not isinstance(value, Repeated)]
            report = dataclasses.replace(report, findings=self._findings(shards, of_images))
        if self.other:
            drifted = drift.of_data(self.data_dir, self.manifest, self.other)
            report = dataclasses.replace(report, findings=(*report.findings, *drifted))
        drafts.publish(self.report, report.to_bytes())
        return str(self.report)

    def _findings(
        self, shards: Sequence[ShardReport], of_images: Sequence[Twins | NearTwins | Shared]
    ) -> tuple[Finding, ...]:
        brightness, sides = Extremes(), Extremes()
        for shard in shards:
            brightness.ends += shard.brightness.ends
            sides.ends += shard.sides.ends
        odd = [
            *findings.of_brightness(sum((shard.levels for shard in shards), Counter()), brightness),
            *findings.of_sizes(sum((shard.sizes for shard in shards), Counter()), sides),
            *findings.of_placed([(shard.placed, shard.unseen) for shard in shards]),
        ]
        equal = [value for value in of_images if isinstance(value, Twins)]
        near = next((value for value in of_images if isinstance(value, NearTwins)), None)
        found = [*findings.of_twins(equal, self.manifest), *findings.of_near(near, self.manifest), *odd]
        data_sets = [("", self.data_dir, self.manifest)]
        if self.other:
            shared = [value.twins for value in of_images if isinstance(value, Shared)]
            found += drift.of_shared(shared, self.manifest, self.other)
            data_sets.append((f"{self.other.shown}/", self.other.data_dir, self.other.manifest))
        return (*findings.located(data_sets, found), *findings.of_classes(self.manifest))


@dataclasses.dataclass(frozen=True)
class Report:
    """The result of checking a data set.

    Attributes:
      problems: first `MOST_LISTED` problems, as lines.
      num_problems: number of all problems.
      bad_shards: number of shards with a problem.
      records, num_bytes: number of records and bytes read.
      findings: what may be wrong with the data, if the pixels were checked.
    """

    problems: tuple[str, ...]
    num_problems: int
    bad_shards: int
    records: int
    num_bytes: int
    findings: tuple[Finding, ...] = dataclasses.field(default=(), metadata={OPTIONAL: True})

    def to_bytes(self) -> bytes:
        """Returns the report as JSON."""
        return (json.dumps(as_json(self), indent=1) + "\n").encode()


def parse_report(data: bytes, file: str) -> Report:
    """Parses a report from JSON.

    Raises:
      DataError: it is not a complete report.
    """
    try:
        report: Report = from_json(Report, json.loads(data))
        return report
    except ValueError as error:
        raise DataError(f"is not a validation report ({error})", path=file) from None


def _other_problems(other: Other | None, shards: Sequence[ShardReport]) -> Iterator[FileProblem]:
    for info, shard in zip(other.manifest.shards if other else (), shards, strict=False):
        if shard.num_problems and other:
            text = f"{count_of(shard.num_problems, 'problem')}, so that it is compared in part"
            yield f"{other.shown}/{info.file}", text


def _combined(shards: list[ShardReport], more: Iterable[Problem]) -> Report:
    others = sorted(more)
    listed = sorted([*(problem for shard in shards for problem in shard.problems), *others])[:MOST_LISTED]
    bad = {shard.shard for shard in shards if shard.num_problems} | {problem.shard for problem in others}
    return Report(
        problems=tuple(map(str, listed)),
        num_problems=sum(shard.num_problems for shard in shards) + len(others),
        bad_shards=len(bad & {shard.shard for shard in shards}),
        records=sum(shard.records for shard in shards),
        num_bytes=sum(shard.num_bytes for shard in shards),
    )


class Progress(Display):
    """Shows the progress of a validation in bytes of its shards."""

    def __init__(self, shards: Sequence[ShardInfo], marks: str) -> None:
        """Draws the bar; workers put a file for each finished shard into the folder `marks`, named by its number."""
        self._marks = marks
        self._sizes = [shard.num_bytes for shard in shards]
        super().__init__(sum(self._sizes))

    def text(self) -> str:
        """Returns the progress in one line."""
        done, total, rate = (f"{num_bytes / (1 << 20):,.1f}" for num_bytes in (self.done, self.total, self.rate))
        return f"{self.finished:,} of {count_of(len(self._sizes), 'shard')}, {done} of {total} MiB, {rate} MiB/s"

    def _look(self) -> None:
        with contextlib.suppress(OSError):
            numbers = [int(name) for name in os.listdir(self._marks) if name.isdecimal()]
            self.finished, self.done = len(numbers), sum(self._sizes[number] for number in numbers)


def _key_problems(data_dir: StoragePath, manifest: Manifest, repeated: Iterable[Repeated]) -> list[Problem]:
    """Returns a problem for each pair, in manifest order; the first `MOST_LISTED` with offset and key."""
    numbers = {info.file: number for number, info in enumerate(manifest.shards)}
    pairs = sorted(repeated, key=lambda pair: (numbers[pair.second[0]], pair.second[1], pair.first))
    wanted: dict[str, set[int]] = defaultdict(set)
    for pair in pairs[:MOST_LISTED]:
        wanted[pair.second[0]].add(pair.second[1])
    found = {
        file: keys.located_keys(
            data_dir / file,
            records,
            manifest.shards[numbers[file]].compression,
            manifest.shards[numbers[file]].stride,
            manifest.key_feature or "key",
        )
        for file, records in wanted.items()
    }
    problems = []
    for pair in pairs:
        (other, number), (file, record) = pair.first, pair.second
        where, key = found.get(file, {}).get(record, (f", record {record}", "unreadable"))
        text = f"has the key of record {number} of {other}: {key}"
        problems.append(Problem(numbers[file], record, file, where, text))
    return problems


def _total_problems(manifest: Manifest, shards: Sequence[ShardReport], decodes: bool) -> Iterator[FileProblem]:
    """Yields problems with the manifest's totals, leaving out splits with unreadable records."""
    by_split, first = {}, 0
    for name, split in manifest.splits.items():
        by_split[name] = shards[first : first + len(split.shards)]
        first += len(split.shards)
        if all(shard.is_whole for shard in by_split[name]):
            yield from ((naming.MANIFEST, f"split {name!r}: {text}") for text in _split_problems(split, by_split[name]))
    trained = by_split.get(STATISTICS_SPLIT, shards)
    if decodes and all(shard.is_whole for shard in trained):
        yield from ((naming.MANIFEST, text) for text in _pixel_problems(manifest, trained))


def tfds_problems(data_dir: StoragePath, manifest: Manifest) -> Iterator[FileProblem]:
    """Yields problems with the files for TensorFlow Datasets, unless they are another program's."""
    if not manifest.has_images or manifest.is_in_place or not versions.is_newest(data_dir, manifest):
        return  # files in the folder, if any, describe the newest version
    made = manifest_writer.tfds_files(manifest)
    for name in naming.TFDS_FILES:
        found, text = _content_of(data_dir / name)
        if not text and found != made.get(name):
            text = _tfds_problem(name, found, made.get(name))
        if text:
            yield name, text


def _tfds_problem(name: str, found: bytes | None, made: bytes | None) -> str | None:
    if made is None:
        return "does not belong to this data set; TensorFlow Datasets would read it"
    if found is None:
        return "is missing; TensorFlow Datasets needs it"
    if name == manifest_writer.TFDS_DATASET_INFO and _in_one_order(found) == _in_one_order(made):
        return None
    return "was edited: it is not what the manifest says; TensorFlow Datasets would read it"


def _card_problems(data_dir: StoragePath, manifest: Manifest, is_deep: bool) -> Iterator[FileProblem]:
    """Yields problems with the card, unless it is another program's.

    A data set is complete without a card, so only a deep check reports that a converted one has none.
    """
    is_newest = versions.is_newest(data_dir, manifest)
    name = naming.CARD if is_newest else naming.version_name(manifest.version, manifest.digest, "html")
    found, text = _content_of(data_dir / name) if manifest.has_images else (None, None)
    if found is not None:
        text = card.problem_of(found, manifest)
    elif not text and is_deep and is_newest and manifest.has_images and manifest.source:
        text = "is missing; the same conversion, run again, writes it"
    if text:
        yield name, text


def _croissant_problems(data_dir: StoragePath, manifest: Manifest) -> Iterator[FileProblem]:
    """Yields problems with `croissant.json`, which describes the newest version; earlier releases did not write it.

    Next to another program's records it may be that program's own, about its own files.
    """
    found, text = _content_of(data_dir / naming.CROISSANT)
    if found is not None and versions.is_newest(data_dir, manifest):
        if croissant.is_ours(found):
            of_manifest, _ = _content_of(data_dir / naming.MANIFEST)
            problem = croissant.problem_of(found, of_manifest or manifest.to_bytes())
            text = problem and f"{problem}; --card writes it again, with what you added to it"
        elif manifest.has_images and not manifest.is_in_place:
            text = f"is not one that {name_of('beam_jobs.convert')} wrote; move it elsewhere"
    if text:
        yield naming.CROISSANT, text


def _content_of(path: StoragePath) -> tuple[bytes | None, str | None]:
    """Returns the content of a file, None if it is missing; and why it cannot be read, None if it can."""
    try:
        return path.read_bytes(), None
    except FileNotFoundError:
        return None, None
    except OSError as error:
        return None, f"cannot be read: {reason_of(error)}"


def _deletion_problems(data_dir: StoragePath, manifest: Manifest) -> Iterator[FileProblem]:
    """Yields shards with deleted records that still exist because the command was killed before it removed them."""
    for name in manifest.edit.removed if manifest.edit else ():
        if (data_dir / name).exists():
            yield name, f"holds records that version {manifest.version} deleted; the same edit, run again, removes it"


def column_problems(data_dir: StoragePath, manifest: Manifest) -> Iterator[FileProblem]:
    """Yields a problem for each column file that is missing, cut short or from another conversion."""
    for name, column in manifest.columns.items():
        for split, crc in column.files.items():
            try:
                Columns(data_dir.url, manifest, select(manifest, split))[name]
            except DataError as error:
                yield naming.column_name(split, name, crc), error.reason


def _stray_problems(data_dir: StoragePath, manifest: Manifest, is_deep: bool) -> Iterator[FileProblem]:
    """Yields a problem for each file that the manifest does not list and that programs would read as a shard.

    A deep check also looks into subfolders, where a pattern such as `**/*.tfrecord*` would find it.
    """
    with contextlib.suppress(DataError):  # if the folder cannot be listed, the shards' own problems say more
        for name in present.unlisted(data_dir, manifest, recursive=is_deep).as_shards:
            yield name, "is not in the manifest; programs that read by a pattern (train-*, *.tfrecord*) would read it"


def _in_one_order(dataset_info: bytes) -> Any:
    """Returns the content with splits sorted by name, as in the manifest; conversions write them in their own order."""
    try:
        content = json.loads(dataset_info)
        return content | {"splits": sorted(content["splits"], key=lambda split: str(split["name"]))}
    except (ValueError, KeyError, TypeError):
        return None


def _split_problems(split: SplitInfo, shards: Sequence[ShardReport]) -> Iterator[str]:
    labels: Counter[int] = sum((shard.labels for shard in shards), Counter())
    sizes: Counter[tuple[int, int]] = sum((shard.sizes for shard in shards), Counter())
    said = {label: count for label, count in enumerate(split.label_histogram) if count}
    unlabelled = sum(shard.unlabelled for shard in shards)
    if split.is_labelled is not None and unlabelled != (0 if split.is_labelled else split.num_examples):
        yield f"is_labelled is {split.is_labelled}, but {unlabelled:,} of {split.num_examples:,} examples have no label"
    if said != labels and (said or split.is_labelled is None):
        yield f"label_histogram says {_differences(said, labels, 'label ')}"
    found = size_histogram(sizes)
    if sizes and split.image_sizes and found != split.image_sizes:
        yield f"image_sizes says {_differences(split.image_sizes, found, '')}"


def _differences(said: dict, found: dict, what: str) -> str:
    names = sorted(name for name in said.keys() | found.keys() if said.get(name, 0) != found.get(name, 0))
    named = [
        f"{count_of(said.get(n, 0), 'example')} of {what}{n}, there are {found.get(n, 0):,}"
        for n in names[:_MOST_NAMED]
    ]
    more = [f"and {len(names) - _MOST_NAMED} more"] if len(names) > _MOST_NAMED else []
    return "; ".join([*named, *more])


def _pixel_problems(manifest: Manifest, shards: Sequence[ShardReport]) -> Iterator[str]:
    sums = [shard.sums for shard in shards if shard.sums.pixels]
    if not sums:
        return
    tolerance = _EXACT if manifest.features["image"].encoding in ("raw", "png") else _LOSSY
    mean, std = moments(sums)
    for name, said, found in (("image_mean", manifest.image_mean, mean), ("image_std", manifest.image_std, std)):
        if not all(math.isclose(a, b, rel_tol=_EXACT, abs_tol=tolerance) for a, b in zip(said, found, strict=True)):
            in_figures = (", ".join(f"{value:.6g}" for value in values) for values in (said, found))
            yield "{} says {}, the pixels' is {}".format(name, *in_figures)
