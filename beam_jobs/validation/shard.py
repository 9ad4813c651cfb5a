"""Checks one shard against the manifest: the file, its records, their examples, and its sidecars."""

from __future__ import annotations

import dataclasses
import importlib.util
import io
import itertools
from array import array
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import TypeVar

import numpy as np
from numpy.typing import NDArray

from beam_jobs.shards import keys
from beam_jobs.shards.keys import KeyHashes
from beam_jobs.validation.findings import Extremes, side_of
from beam_jobs.validation.near import NearHashes, Perceived
from beam_jobs.validation.twins import NO_LABEL_CODE, Hashed, ImageHashes, label_code
from pipeline import images
from pipeline.commands import quiet
from pipeline.commands.text import count_of
from pipeline.errors import DataError, location, reason_of
from pipeline.files.paths import StoragePath
from pipeline.images import BadImageError
from pipeline.manifest import Column, Feature, Manifest, ShardInfo, naming
from pipeline.manifest.columns import ORIENTATION, column_name, counted, values_of
from pipeline.manifest.manifest import NO_LABEL
from pipeline.read import sidecars
from pipeline.read.statistics import PixelSums, entropy
from pipeline.records import annotation, tf_example
from pipeline.records.annotation import ShardAnnotations
from pipeline.records.framing import Frame, Read, walk
from pipeline.records.members import MemberTable, inflate
from pipeline.records.tf_example import Values

_NO_IMAGE = Feature("uint8")  # for data sets without images or labels
_RAW_AT_ONCE = 64  # images whose pixels are summed together
_FORMATS = {"png": ("png",), "jpeg": ("jpeg",), "any": ("png", "jpeg")}
_Listed = TypeVar("_Listed")

MOST_LISTED = 100  # problems, per shard and for the data set
_OF_EARLIER = "if an earlier release added it from a file or function of yours, add it again"  # they record no origin
_ENTROPY_TOLERANCE = 1e-4  # it is rounded to 4 decimals


@dataclasses.dataclass(frozen=True, order=True)
class Problem:
    """One difference from the manifest.

    Attributes:
      shard: number of the shard in the data set; the number of shards for a problem outside of shards.
      record: number of the record in the file; -1 for a problem of the whole file.
      file: base name of the file.
      where: record and its offset as text; "" for a problem of the whole file.
      text: description of the difference.
    """

    shard: int
    record: int
    file: str
    where: str
    text: str

    def __str__(self) -> str:
        return f"{self.file}{self.where}: {self.text}"


@dataclasses.dataclass
class ShardReport:
    """The result of checking a shard.

    Attributes:
      shard: number of the shard in the data set.
      sums: sums over the pixels, if images are decoded.
      problems: first `MOST_LISTED` problems.
      num_problems: number of all problems.
      records, num_bytes: number of records and bytes read.
      is_whole: whether all records could be read and are valid examples; otherwise the totals mean nothing.
      labels: {class in range: number of examples}; an example may have several classes.
      unlabelled: number of examples without a label, if labels are not classes.
      sizes: {(height, width): number of images}, for raw images, and for others if they are decoded.
      levels: {mean of an image's pixels, rounded: number of images}, if images are decoded.
      brightness, sides: extreme means of pixels, and sides of squares with the images' areas, if images are decoded.
      placed: counts of boxes and points, if images are decoded.
      unseen: {feature: records with the most boxes or points outside their image}, if images are decoded.
    """

    shard: int
    sums: PixelSums
    problems: list[Problem] = dataclasses.field(default_factory=list)
    num_problems: int = 0
    records: int = 0
    num_bytes: int = 0
    is_whole: bool = False
    labels: Counter[int] = dataclasses.field(default_factory=Counter)
    unlabelled: int = 0
    sizes: Counter[tuple[int, int]] = dataclasses.field(default_factory=Counter)
    levels: Counter[int] = dataclasses.field(default_factory=Counter)
    brightness: Extremes = dataclasses.field(default_factory=Extremes)
    sides: Extremes = dataclasses.field(default_factory=Extremes)
    placed: ShardAnnotations = dataclasses.field(default_factory=lambda: ShardAnnotations({}))
    unseen: dict[str, Extremes] = dataclasses.field(default_factory=dict)

    def add(self, problem: Problem) -> None:
        """Counts a problem, and keeps it if it is among the first."""
        self.num_problems += 1
        if len(self.problems) < MOST_LISTED:
            self.problems.append(problem)


def check_shard(
    data_dir: StoragePath, manifest: Manifest, number: int, decodes: bool, finds_near: bool = False
) -> tuple[ShardReport, Iterator[tuple[int, KeyHashes | ImageHashes | NearHashes]]]:
    """Reads a shard once, front to back; returns a report, and (bucket, hashes) of its keys and images.

    Memory: a block of the file, a record, and about 100 bytes per record.

    Args:
      data_dir: folder of the data set.
      manifest: manifest of the data set.
      number: number of the shard in the data set.
      decodes: whether to check the pixels too.
      finds_near: whether to look for nearly equal images, too, if the pixels are checked.
    """
    report = ShardReport(number, PixelSums(len(manifest.image_mean)))
    columns = _columns_of(data_dir, manifest, number) if decodes else []
    examples = ExampleCheck(manifest, decodes, report, columns, finds_near)
    check = _Check(data_dir, manifest, report, examples)
    try:
        check.run()
    except OSError as error:
        check.add(f"cannot be read: {reason_of(error)}")
        report.is_whole = False
    of_keys = keys.group(manifest.shards[number].file, check.key_hashes, check.key_records)
    of_near = examples.perceived.groups() if examples.perceived else ()
    return report, itertools.chain(of_keys, examples.images.groups(), of_near)


class _Check:
    def __init__(self, folder: StoragePath, manifest: Manifest, report: ShardReport, examples: ExampleCheck) -> None:
        self._folder, self._manifest, self._info = folder, manifest, manifest.shards[report.shard]
        self._report, self._examples = report, examples
        self.key_hashes: list[bytes] = []
        self.key_records: list[int] = []
        self._is_compressed = bool(self._info.compression)
        self._begins = array("Q")  # offsets of the records, before compression
        self._end = 0  # end of the last record
        self._crcs = array("I")  # CRCs of the records; 0 for a damaged one
        self._known: NDArray[np.int64] | None = None  # offsets in the shard's sidecar
        self._ended, self._damaged = True, False  # the walk reached the file's end; a frame is damaged

    def add(self, text: str, file: str = "") -> None:
        """Adds a problem of a whole file: the shard or a sidecar."""
        self._report.add(Problem(self._report.shard, -1, file or self._info.file, "", text))

    def run(self) -> None:
        info, table = self._info, None
        if self._is_compressed:
            offsets_file, table = self._listed(naming.offsets_name, sidecars.shard_members, info.offsets_crc32c)
            self._known = table.begins if table else None
        else:
            load = sidecars.shard_offsets
            offsets_file, self._known = self._listed(naming.offsets_name, load, info.offsets_crc32c)
        crcs_file, known_crcs = self._listed(naming.crcs_name, sidecars.shard_crcs, info.crcs_crc32c)
        with keys.opened(self._folder / info.file, "" if table else info.compression) as stream:
            self._report.is_whole = True
            found = _member_frames(stream.read, table, self._size_of, self._add_member) if table else None
            for frame in found or walk(stream.read, self._size_of):
                self._check_frame(frame)
            stream.finish()
        self._report.num_bytes, self._report.records = stream.num_bytes, len(self._begins)
        self._report.is_whole &= self._ended and len(self._begins) == info.num_examples
        self._examples.finish()
        for column in self._examples.columns:
            if column.first_difference:
                self.add(column.first_difference, column.file)
        self._check_file(f"{stream.crc:08x}")
        if self._known is not None:
            self._check_offsets(offsets_file, self._known)
        if known_crcs is not None:
            self._check_crcs(crcs_file, known_crcs)
        if self._report.is_whole and info.label_entropy is not None:
            real = entropy(list(self._report.labels.values()))
            if real is None or abs(real - info.label_entropy) > _ENTROPY_TOLERANCE:
                self.add(f"the entropy of its labels is {real} bits, the manifest says {info.label_entropy}")

    def _listed(
        self, name_of: Callable[[str], str], load: Callable[[StoragePath, ShardInfo], _Listed], crc: str | None
    ) -> tuple[str, _Listed | None]:
        """Returns a sidecar's name and content; None if there is none, it is missing, or it fails its CRC."""
        name = name_of(self._info.file)
        if crc is None:
            return name, None
        try:
            return name, load(self._folder, self._info)
        except DataError as error:
            self.add(error.reason, name)
            return name, None

    def _add_member(self, where: str, text: str) -> None:
        self._report.add(Problem(self._report.shard, -1, self._info.file, where, text))
        self._damaged, self._report.is_whole = True, False

    def _size_of(self, number: int, offset: int) -> int | None:
        """Returns the required size of a record's frame; None if neither stride nor offsets tell it."""
        stride, known = self._info.stride, self._known
        if number >= self._info.num_examples:
            return None
        if stride is not None:
            return stride if offset == number * stride else None
        return int(known[number + 1] - offset) if known is not None and known[number] == offset else None

    def _check_frame(self, frame: Frame) -> None:
        problems = [] if frame.fault is None else [frame.fault.text]
        if frame.end == frame.offset:  # the walk ended here
            self._ended = False
            rest = self._info.num_examples - frame.number - 1
            problems[0] += f"; the {count_of(rest, 'record')} after it cannot be found" if rest > 0 else ""
        else:
            self._begins.append(frame.offset)
            self._end = frame.end
            self._crcs.append(frame.crc)
            if self._info.stride is not None and self._size_of(frame.number, frame.offset) not in (
                None,
                frame.end - frame.offset,
            ):
                problems.append(
                    f"it takes {count_of(frame.end - frame.offset, 'byte')}, but the stride is {self._info.stride}"
                )
        self._damaged |= bool(problems)
        key = None
        if frame.record is None:
            self._report.is_whole = False
        else:
            key, more = self._examples.check(frame.record, frame.number)
            problems += more
            self._report.is_whole &= not more
        if key is not None:
            self.key_hashes.append(keys.hash_of(key))
            self.key_records.append(frame.number)
        where = location("", frame.number, frame.offset, self._is_compressed)
        for text in problems:
            self._report.add(Problem(self._report.shard, frame.number, self._info.file, where, text))

    def _check_file(self, crc: str) -> None:
        info = self._info
        if self._report.num_bytes != info.num_bytes:
            self.add(f"has {count_of(self._report.num_bytes, 'byte')}, the manifest says {info.num_bytes:,}")
        elif crc != info.crc32c and not self._damaged:
            # Otherwise damaged records have already been reported.
            others = [other.file for other in self._manifest.shards if other.crc32c == crc]
            swapped = f"; that is the CRC32C of {others[0]}" if others else ""
            self.add(f"every record is whole, but the file's CRC32C is {crc}, the manifest says {info.crc32c}{swapped}")
        if self._ended and len(self._begins) != info.num_examples:
            self.add(f"has {count_of(len(self._begins), 'record')}, the manifest says {info.num_examples:,}")

    def _check_crcs(self, file: str, known: NDArray[np.uint32]) -> None:
        real = np.array(self._crcs, np.uint32)[: len(known)]
        wrong = np.flatnonzero((known[: len(real)] != real) & (real != 0))
        if len(wrong):
            first, more = wrong[0], f" ({len(wrong)} entries are wrong)" if len(wrong) > 1 else ""
            text = f"says that the CRC of record {first} is {known[first]:08x}; it is {real[first]:08x}{more}"
            self.add(text, file)

    def _check_offsets(self, file: str, known: NDArray[np.int64]) -> None:
        is_all = self._ended and len(self._begins) == self._info.num_examples
        real = np.array([*self._begins, *([self._end] if is_all else [])], np.int64)[: len(known)]
        wrong = np.flatnonzero(known[: len(real)] != real)
        if len(wrong):
            first, more = wrong[0], f" ({len(wrong)} entries are wrong)" if len(wrong) > 1 else ""
            what = f"record {first} begins" if first < self._info.num_examples else "the file ends"
            text = f"says that {what} at byte offset {known[first]}; it is {real[first]}{more}"
            self.add(text, file)


def _member_frames(
    read: Read, table: MemberTable, size_of: Callable[[int, int], int | None], on_corrupt: Callable[[str, str], None]
) -> Iterator[Frame]:
    """Yields a frame for every record of the shard; frames in a corrupt member have neither a record nor a fault.

    `on_corrupt` is called with (place, problem) for each corrupt member; for the other arguments see `walk`.
    """
    rest = b""
    for member, offset in enumerate(table.offsets[:-1].tolist()):
        size = int(table.offsets[member + 1]) - offset
        while len(rest) < size and (more := read(size - len(rest))):
            rest += more
        data, rest = rest[:size], rest[size:]
        first, stop = table.firsts[member : member + 2].tolist()
        begins = table.begins_of(first, stop).tolist()
        whole = bytearray(begins[-1] - begins[0])
        try:
            inflate(data, memoryview(whole))
        except ValueError as error:
            on_corrupt(f", GZIP member at byte offset {offset}, records {first} to {stop - 1}", str(error))
            whole = bytearray()
        number = first
        for frame in walk(io.BytesIO(whole).read, size_of, first, begins[0]):
            number = frame.number + 1
            # If the walk ends early, only the rest of this member is lost.
            yield frame if frame.end > frame.offset else frame._replace(end=begins[number - first])
        for lost in range(number, stop):
            yield Frame(lost, begins[lost - first], begins[lost - first + 1], None, None)


@dataclasses.dataclass
class ColumnCheck:
    """Compares a shard's part of a column with the records.

    Attributes:
      file: file name of the column, in the data set's folder.
      shard: file name of the shard.
      feature: name of the feature; `bytes`, `height` and `width` may also be derived from the record and its image.
      column: entry of the column in the manifest.
      values: values of the shard's records, (records,).
      differences: number of records with a different value.
    """

    file: str
    shard: str
    feature: str
    column: Column
    values: NDArray[np.generic]
    differences: int = 0
    _first: str = ""

    def compare(
        self, number: int, record: bytes, found: dict[str, Values], image: Mapping[str, int], counts: Mapping[str, int]
    ) -> None:
        """Compares the value of a record.

        Args:
          number: number of the record in the shard.
          record: bytes of the record.
          found: features of the record.
          image: values of its image by column (`height`, `width`, `exif_orientation`); empty if it was not decoded.
          counts: number of boxes and points of the record, by column.
        """
        if number >= len(self.values):
            return  # the wrong number of records is reported separately
        made = {"bytes": len(record), **image, **counts}
        feature = None if self.feature in counts else found.get(self.feature)
        if feature is None and self.feature not in made:
            return
        real: object = made.get(self.feature)
        if feature is not None:
            real = (feature[0] if isinstance(feature, list) else feature[0].item()) if len(feature) == 1 else None
        said = self.values[number].item()
        if self.column.values:
            names = self.column.values
            said = names[said] if 0 <= said < len(names) else f"string number {said}"
            real = real.decode(errors="surrogateescape") if isinstance(real, bytes) else real
        if said == real or str(said) == str(real) == "nan":
            return
        self.differences += 1
        self._first = self._first or f"has {said!r} for record {number} of {self.shard}, which has {real!r}"

    @property
    def first_difference(self) -> str:
        """Description of the first difference; empty if there is none."""
        more = f" ({self.differences:,} records differ)" if self.differences > 1 else ""
        return f"{self._first}{more}; {_OF_EARLIER}" if self._first else ""


def _columns_of(data_dir: StoragePath, manifest: Manifest, number: int) -> list[ColumnCheck]:
    """Returns checks for the columns of the records: features, and values derived from a record and its image."""
    shard = manifest.shards[number]
    split, first = next((name, s.firsts[shard.file]) for name, s in manifest.splits.items() if shard in s.shards)
    scalars = (name for name, feature in manifest.features.items() if feature.shape in ((), (1,)) and name != "image")
    turned = (ORIENTATION,) if manifest.turns_images else ()
    made = ("bytes", "height", "width", *turned, *counted(manifest.features))
    features = {column_name(name): name for name in (*made, *scalars)}
    found = []
    for name, column in manifest.columns.items():
        if name in features and split in column.files and not column.is_own:
            values = values_of(data_dir.url, split, name, column, first, first + shard.num_examples)
            if values is not None:  # otherwise the file itself is reported
                file = naming.column_name(split, name, column.files[split])
                found.append(ColumnCheck(file, shard.file, features[name], column, values))
    return found


class ExampleCheck:
    """Checks the examples of one shard and counts them in its report."""

    def __init__(
        self,
        manifest: Manifest,
        decodes: bool,
        report: ShardReport,
        columns: Sequence[ColumnCheck] = (),
        finds_near: bool = False,
    ) -> None:
        """Makes a check that adds labels, sizes and sums to the report, and checks pixels if `decodes`."""
        self.columns = columns
        self._of_image: dict[str, int] = {}  # values of the last image, by column
        self._features = {name: feature for name, feature in manifest.features.items() if not feature.convention}
        self._placed = {name: feature for name, feature in manifest.features.items() if feature.convention}
        self._counted = counted(manifest.features)
        report.placed = ShardAnnotations({name: manifest.features[name] for name in self._counted})
        report.unseen = {name: Extremes() for name in self._counted}
        self._image = manifest.features.get("image", _NO_IMAGE)
        label = manifest.features.get("label", _NO_IMAGE)
        self._stored_label, self._has_label = label.named("label"), False  # the last example's
        self._classes = {"label": len(manifest.class_names)} if label.is_class else {}
        self._classes |= {
            name: len(f.class_names) for name, f in self._features.items() if f.class_names and f.dtype == "int64"
        }
        self._raw_shape = manifest.image_shape if self._image.encoding == "raw" else None
        self._decodes = decodes
        self._judge = _judge_of(manifest) if decodes and manifest.has_images and self._raw_shape is None else None
        self._report = report
        self._may_lack_labels = manifest.is_in_place or not manifest.needs_labels
        self._is_in_place, self._upright = manifest.is_in_place, manifest.turns_images
        self._raw: list[bytes] = []
        self._raw_records: list[int] = []
        self._number = 0  # the last record's
        self._pixels: NDArray[np.uint8] | None = None  # the last image's, if it was decoded
        self.images = Hashed(report.shard)
        self.perceived = Perceived(report.shard) if finds_near and decodes else None

    def check(self, record: bytes, number: int = 0) -> tuple[bytes | None, list[str]]:
        """Returns an example's key, or None if it has none, and the problems of the example.

        Args:
          record: bytes of the example.
          number: number of the example in the shard.
        """
        self._of_image, self._number, self._pixels = {}, number, None
        if not self._features:  # an index of arbitrary records: any bytes will do
            return None, []
        try:
            stored = tf_example.decode(record)
            found = tf_example.as_ours(stored, self._features)
        except ValueError as error:
            return None, [str(error)]
        # Other features of another program's record do not matter.
        left_out = found.keys() - self._features.keys() if self._is_in_place else self._placed.keys()
        found = {name: values for name, values in found.items() if name not in left_out}
        self._has_label = len(stored.get(self._stored_label, ())) > 0
        problems = []
        for name, feature in self._features.items():
            if name not in found:
                if self._is_in_place and None in feature.shape and name != "image":  # the feature has no values
                    continue
                problems.append(f"feature {name!r} is missing")
            elif problem := self._problem(name, feature, found[name]):
                problems.append(problem)
        if len(found) > len(self._features) or problems:
            more = sorted(found.keys() - self._features.keys())
            problems += [f"feature {name!r} is not in the manifest" for name in more]
        if not problems and self._placed:
            size = (self._of_image["height"], self._of_image["width"]) if self._of_image else None
            problems += filter(None, [annotation.problem_of(stored, self._placed, size)])
        if not problems and self._judge and (problem := self._judge(record)):
            problems.append(problem)
        if self._decodes and not problems and self._image is not _NO_IMAGE:
            self._look(found, number)
        if not problems and self._of_image and self._counted:
            self._count_unseen(stored, (self._of_image["height"], self._of_image["width"]))
        counts = annotation.counts(stored, self._placed)
        for column in self.columns:
            column.compare(number, record, found, self._of_image, counts)
        key = found.get("key")
        return key[0] if isinstance(key, list) and len(key) == 1 else None, problems

    def finish(self) -> None:
        """Adds pixels that are not summed yet; must be called after the last example."""
        if self._raw and self._raw_shape:
            pixels = np.frombuffer(b"".join(self._raw), np.uint8).reshape(len(self._raw), *self._raw_shape)
            self._report.sums.add(pixels)
            means = pixels.reshape(len(pixels), -1).mean(axis=1)
            for mean, record in zip(means.tolist(), self._raw_records, strict=True):
                self._add_mean(mean, record)
            self._raw.clear()
            self._raw_records.clear()
        self._report.brightness.trim()
        self._report.sides.trim()

    def _add_mean(self, mean: float, record: int) -> None:
        self._report.levels[round(mean)] += 1
        self._report.brightness.add(mean, self._report.shard, record)

    def _look(self, found: dict[str, Values], number: int) -> None:
        label = found.get("label")
        code = NO_LABEL_CODE
        if label is not None and len(label) and self._has_label:
            is_class = "label" in self._classes
            code = label_code(int(label[0]) if is_class else label)
            code = NO_LABEL_CODE if is_class and label[0] == NO_LABEL else code
        pixels = self._pixels
        if self._raw_shape:
            pixels = np.frombuffer(found["image"][0], np.uint8).reshape(self._raw_shape)
        elif pixels is not None:
            self._add_mean(float(pixels.mean()), number)
            self._report.sides.add(side_of(*pixels.shape[:2]), self._report.shard, number)
        if pixels is not None:
            exact = self.images.add(pixels, number, code)
            if self.perceived:
                self.perceived.add(pixels, exact, number)

    def _problem(self, name: str, feature: Feature, values: Values) -> str | None:
        if problem := tf_example.problem_of(feature, values):
            return f"feature {name!r} {problem}"
        if name == "image":
            return self._image_problem(values[0])
        if name == "key" and not values[0]:
            return "its key is empty"
        if name in self._classes:
            return self._label_problem(name, values)
        return self._numbers_problem(feature, values) if name == "label" else None

    def _numbers_problem(self, feature: Feature, values: Values) -> str | None:
        numbers = np.asarray(values, np.float64)
        if not self._has_label or (not feature.shape and np.isnan(numbers[0])):
            self._report.unlabelled += 1
            return None
        if not np.isfinite(numbers).all():
            return f"label {numbers.tolist()} has values that are not finite numbers"
        self._report.labels.update(np.flatnonzero(numbers).tolist() if feature.shape else ())
        return None

    def _label_problem(self, name: str, values: Values) -> str | None:
        if self._may_lack_labels and name == "label" and values[0] == NO_LABEL:  # if it should have one, counts differ
            return None
        for value in values.tolist():  # type: ignore[union-attr]
            if not 0 <= value < self._classes[name]:
                return f"{name} {value} is not in 0..{self._classes[name] - 1}"
        if name == "label":
            self._report.labels[int(values[0])] += 1
        return None

    def _image_problem(self, data: bytes) -> str | None:
        if self._raw_shape:
            if problem := tf_example.raw_problem(self._image, data):
                return problem
            self._count_size(*self._raw_shape[:2])
            if self._decodes:
                self._raw.append(data)
                self._raw_records.append(self._number)
                if len(self._raw) == _RAW_AT_ONCE:
                    self.finish()
            return None
        if not data:
            return "its image is empty"
        return self._decoded_problem(data) if self._decodes else None

    def _count_unseen(self, stored: Mapping[str, Values], size: tuple[int, int]) -> None:
        placed = self._report.placed
        before = dict(placed.unseen)
        placed.add(stored, size)
        for name, extremes in self._report.unseen.items():
            if unseen := placed.unseen[name] - before[name]:
                extremes.add(unseen, self._report.shard, self._number)

    def _count_size(self, height: int, width: int) -> None:
        self._of_image = {"height": height, "width": width}
        self._report.sizes[height, width] += 1

    def _decoded_problem(self, data: bytes) -> str | None:
        try:
            opened = images.open_file(data)
            if images.kept_as(opened, data) not in _FORMATS[str(self._image.encoding)]:
                return f"its image is of format {opened.format}, the manifest says {self._image.encoding}"
            pixels = images.pixels(opened, upright=self._upright)
        except BadImageError as error:
            return str(error)
        if problem := tf_example.shape_problem(self._image, pixels.shape):
            return problem
        self._count_size(pixels.shape[0], pixels.shape[1])
        if self._upright:
            self._of_image[ORIENTATION] = images.orientation(opened)
        self._pixels = images.with_channels(pixels, self._report.sums.channels)
        self._report.sums.add(self._pixels)
        return None


def _judge_of(manifest: Manifest) -> Callable[[bytes], str | None] | None:
    """Returns a function that asks TensorFlow whether training can decode a record; None without TensorFlow."""
    if importlib.util.find_spec("tensorflow") is None:
        return None
    with quiet.loading():  # or every worker logs notes about its processor
        from pipeline.decode.records import ImageJudge  # noqa: PLC0415, which takes seconds

    return ImageJudge(manifest).problem
