"""`card.html`: one page about a data set: samples, labels, shards, source, and the command that made it."""

from __future__ import annotations

import base64
import contextlib
import dataclasses
import hashlib
import io
import itertools
import math
import re
import shlex
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import jinja2
import numpy as np
import PIL.Image
from numpy.typing import NDArray

from beam_jobs import drafts
from beam_jobs.report import boxes, summary
from beam_jobs.report.summary import ImageFacts, by_size
from pipeline import images, manifest
from pipeline.commands.text import count_of, printable, size_of
from pipeline.errors import DataError, PipelineError, to_run
from pipeline.files.paths import StoragePath
from pipeline.images import BadImageError
from pipeline.manifest import Feature, Manifest, columns, croissant, naming
from pipeline.manifest.manifest import BOX_LABELS, BOXES
from pipeline.read.statistics import number_bars, spread
from pipeline.records import tf_example
from pipeline.records.stream import records_of

_LARGEST_SIDE = 160  # pixels on the longer side: sharp on a screen of two pixels per CSS pixel
_THUMBNAIL_QUALITY = 82
CLASSES = 20  # classes shown, and how many pictures of each:
_PER_CLASS = 5
_SAMPLED_SHARDS = 16  # spread over the split: if the source is sorted by class, a shard has few classes
_SAMPLED_RECORDS = 4096  # most records read in all sampled shards
_SAMPLED_BYTES = 64 << 20  # 64 MiB in all sampled shards; at least one record of each
_MANY_CLASSES = 40
_COLUMNS, _LONG_NUMBER = 2, 100_000  # most splits, and examples of a label, that fit in a table row on a phone
_PICTURES = 1 << 20  # 1 MiB for all pictures; base64 in the page adds a third
_LARGEST_PICTURE = 64 << 10  # 64 KiB
_SIDE = 96  # CSS pixels: five in a row fit on a wide screen
_LONGEST = 20_000  # most characters of one text
_IDENTITY = re.compile(rb"<footer>SHA-256 that identifies the data: <code>([0-9a-f]{64})</code></footer>")
_SEAL = b"\n<!-- SHA-256 of all before this line:"
# The parts of a URL that may be secret: user and password, and an object store's options.
_USER, _QUERY = re.compile(r"(?<=://)[^/@\s]+@"), re.compile(r"(?<=\?).+", re.DOTALL)


@dataclasses.dataclass(frozen=True)
class Doubt:
    """Something that may be wrong with the data.

    Attributes:
      text: description, with figures.
      groups: example records, single or in pairs: (caption, image as stored) of each.
    """

    text: str
    groups: Sequence[Sequence[tuple[str, bytes]]] = ()


def write_card(
    folder: StoragePath,
    command: str,
    arguments: Sequence[str],
    images: ImageFacts | None = None,
    doubts: Sequence[Doubt] | None = None,
) -> str | None:
    """Writes the card next to a manifest. Returns None, or the reason if that failed: a data set needs no card.

    Args:
      folder: folder of the data set.
      command: name of the module that was run.
      arguments: command-line arguments, as given.
      images: facts about the images; None takes them from the manifest.
      doubts: possible faults of the data; None if it was not checked for them.
    """
    try:
        made = manifest.load(folder)
        facts = images or summary.facts_of_manifest(made)
        text = make_card(folder, made, command_line(command, arguments), facts, doubts)
        page = text.encode(errors="backslashreplace")
        drafts.publish(folder / naming.CARD, page + _seal_of(page))
    except PipelineError as error:
        said = str(_named_within(folder, error))
        return said if said.startswith(naming.CARD) else f"there is no {naming.CARD}: {said}"
    except Exception as error:  # never lose hours of conversion to a page
        return f"there is no {naming.CARD}: {type(error).__name__}: {_named_within(folder, error)}"
    return None


def renew_croissant(folder: StoragePath) -> bool:
    """Writes `croissant.json` next to a manifest if it is missing or out of date. Returns whether it did.

    Raises:
      DataError: a file cannot be read or written.
    """
    files = croissant.renewed(folder)
    for name, data in files.items():
        drafts.publish(folder / name, data)
    return bool(files)


def _named_within(folder: StoragePath, error: Exception) -> Exception:
    """Returns the error with its file named relative to the folder, as the folder will be moved."""
    if isinstance(error, PipelineError) and error.path:
        return error.changed(path=error.path.removeprefix(f"{folder}/"))
    if isinstance(error, OSError) and error.filename:
        return OSError(error.errno, error.strerror, str(error.filename).removeprefix(f"{folder}/"))
    return error


def problem_of(page: bytes, made: Manifest) -> str | None:
    """Returns a problem with a card (it belongs to a different data set, or was altered), or None."""
    found = _IDENTITY.search(page)
    if not found:
        return "is not a card that a conversion wrote"
    if found[1].decode() != made.digest:
        return "belongs to another data set: the SHA-256 at its end is not that of the manifest"
    start = page.rfind(_SEAL)
    if start < 0 or page[start:] != _seal_of(page[:start]):
        return "was altered: its bytes are not those that the conversion wrote"
    return None


def _seal_of(page: bytes) -> bytes:
    return _SEAL + b" %s -->\n" % hashlib.sha256(page).hexdigest().encode()


def command_line(command: str, arguments: Sequence[str]) -> str:
    """Returns a shell command, one line per argument, without the parts of URLs that may be secret."""
    shown = [_QUERY.sub("...", _USER.sub("...@", each)) if "://" in each else each for each in arguments]
    return " \\\n    ".join([to_run(command), *map(shlex.quote, shown)])


def make_card(
    folder: StoragePath, made: Manifest, command: str, images: ImageFacts, doubts: Sequence[Doubt] | None = None
) -> str:
    """Returns the page for a data set, with samples read from its shards.

    Raises:
      DataError, OSError, EOFError, zlib.error: a shard cannot be read or holds a record that is not an example.
    """
    environment = jinja2.Environment(
        loader=jinja2.PackageLoader(__package__, ""),
        autoescape=True,
        finalize=_visible,
        undefined=jinja2.StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    environment.filters |= {
        "count_of": count_of,
        "encoding": _encoding,
        "number": "{:,}".format,
        "shape": _shape,
        "size": size_of,
    }
    return environment.get_template("card.html.jinja").render(
        made=made,
        command=command,
        splits=by_size(made),
        rejects=any(split.num_rejects for split in made.splits.values()),
        notices=summary.notices(made, images),
        samples=_figures(made, take_samples(folder, made)),
        labels=_labels(made),
        numbers={name: _numbers(of_splits) for name, of_splits in columns.numbers(folder.url, made).items()},
        boxes=_boxes(folder, made),
        sizes=_sizes(made, images),
        doubts=None if doubts is None else [_shown_doubt(made, doubt) for doubt in doubts],
        cell=_cell(made),
    )


def _shown_doubt(made: Manifest, doubt: Doubt) -> dict[str, Any]:
    most_bytes = _LARGEST_PICTURE // 4
    groups = []
    for group in doubt.groups:
        with contextlib.suppress(BadImageError):
            groups.append([(caption, _picture(made, image, most_bytes)) for caption, image in group])
    return {"text": doubt.text, "groups": groups}


def _picture(made: Manifest, image: bytes, most_bytes: int) -> Picture:
    if made.features["image"].encoding == "raw":
        return picture_of_pixels(image, made.image_shape, most_bytes)
    return picture_of_file(image, most_bytes, made.turns_images)


def _visible(value: Any) -> Any:
    """Returns a value as text, cut if it is very long, with invisible characters (controls, bad Unicode) escaped."""
    if hasattr(value, "__html__"):  # markup: a macro's result, or text marked `safe`
        return value
    text = str(value)
    shown = text if len(text) <= _LONGEST else f"{text[:_LONGEST]}... ({len(text):,} characters)"
    return "\n".join(map(printable, shown.split("\n")))


def _shape(feature: Feature) -> str:
    return " \u00d7 ".join("any" if size is None else str(size) for size in feature.shape) or "one value"


def _encoding(feature: Feature) -> str:
    if feature.class_names:
        return count_of(len(feature.class_names), "class", "classes")
    names = {None: "", "png": "PNG", "jpeg": "JPEG", "any": "PNG and JPEG"}
    return names.get(feature.encoding, str(feature.encoding))


def _labels(made: Manifest) -> dict[str, Any]:
    """Returns the number of examples of each class in each split; many classes are listed largest first.

    Labels that are not classes have no rows.
    """
    histograms = [split.label_histogram for _, split in by_size(made)]
    count = max(len(made.class_names), *map(len, histograms))
    padded = [[*histogram, *[0] * (count - len(histogram))] for histogram in histograms]
    totals = [sum(counts) for counts in zip(*padded, strict=True)]
    order: Sequence[int] = range(count)
    profile = None
    if count > _MANY_CLASSES:
        order = sorted(order, key=lambda label: (-totals[label], label))
        profile = step_curve([totals[label] for label in order])
    largest = [max(histogram, default=0) or 1 for histogram in padded]
    rows = [
        {
            "number": "" if made.class_name(label) == str(label) else label,
            "name": made.class_name(label),
            "bars": [(h[label] / most, h[label]) for h, most in zip(padded, largest, strict=True)],
        }
        for label in order
    ]
    totals_of = {name: sum(split.label_histogram) for name, split in by_size(made)}
    per_example = [(name, totals_of[name] / split.num_examples) for name, split in by_size(made) if totals_of[name]]
    is_wide = len(padded) > _COLUMNS or (len(padded) > 1 and max(largest) >= _LONG_NUMBER)
    return {
        "count": count,
        "kind": made.features["label"],
        "profile": profile,
        "rows": rows,
        "most": _MANY_CLASSES,
        "per_example": per_example if made.features["label"].shape else [],
        "is_wide": is_wide,
    }


def _numbers(of_splits: Mapping[str, NDArray[Any]]) -> dict[str, Any]:
    """Returns the spread of a column's numbers, {split: numbers}, in each split, and their histogram."""
    ordered = dict(sorted(of_splits.items(), key=lambda item: -len(item[1])))
    return {
        "spreads": [(split, spread(values)) for split, values in ordered.items()],
        "rows": _rows(number_bars(ordered)),
        "is_wide": len(ordered) > _COLUMNS,
    }


def _rows(bars: Sequence[tuple[Any, ...]]) -> list[tuple[Any, ...]]:
    """Converts each (text, {split: count}, ...) to (text, [(length of the bar, count) of each split], ...)."""
    most: Counter[str] = Counter()
    for _, counts, *_ in bars:
        most |= Counter(counts)  # the maximum over the splits
    return [(text, [(n / (most[split] or 1), n) for split, n in counts.items()], *more) for text, counts, *more in bars]


def _boxes(folder: StoragePath, made: Manifest) -> dict[str, Any] | None:
    """Returns the number, sizes and classes of the boxes of the sampled records of each split; None without boxes."""
    if BOXES not in made.features:
        return None
    splits = by_size(made)
    found = {name: boxes.counted((record for *_, record in _sampled(folder, made, name)), made) for name, _ in splits}
    classes = boxes.by_class(found, made.features[BOX_LABELS].class_names) if BOX_LABELS in made.features else []
    if len(classes) > _MANY_CLASSES:
        classes = sorted(classes, key=lambda row: -sum(row[1].values()))
    return {
        "splits": [*found],
        "seen": sum(len(each.per_image) for each in found.values()),
        "examples": sum(split.num_examples for _, split in splits),
        "count": sum(len(each.parts) for each in found.values()),
        "per_image": _rows(boxes.per_image(found)),
        "by_part": _rows(boxes.by_part(found)),
        "by_class": _rows(classes),
        "is_wide": len(found) > _COLUMNS,
    }


def _sizes(made: Manifest, images: ImageFacts) -> dict[str, Any]:
    counts = made.image_sizes
    return {
        "count": len(images.sizes),
        "largest": images.largest.replace("x", " \u00d7 ") if images.sizes else "",
        "rows": [{"size": size.replace("x", " \u00d7 "), "part": n / counts[0][1], "count": n} for size, n in counts],
        "are_rounded": images.sizes != summary.facts_of_manifest(made).sizes,
    }


def step_curve(values: Sequence[int], steps: int = 240) -> str:
    """Returns an SVG path, 100 wide and high, that outlines the values with at most `steps` steps."""
    count, top = min(len(values), steps), max(values, default=0) or 1
    path = "M0 100"
    for i in range(count):
        piece = values[i * len(values) // count : (i + 1) * len(values) // count]
        path += f"V{100 - 100 * sum(piece) / len(piece) / top:.1f}H{100 * (i + 1) / count:.2f}"
    return f"{path}V100Z"


def _figures(made: Manifest, samples: Samples) -> dict[str, Any]:
    most_bytes = min(_LARGEST_PICTURE, _PICTURES // max(1, sum(map(len, samples.by_label.values()))))
    shown: dict[int, list[tuple[str, Picture, list[list[float]]]]] = {label: [] for label in samples.by_label}
    undecodable = 0
    for label, of_class in samples.by_label.items():
        for image, key, of_image in of_class:
            try:
                picture = _picture(made, image, most_bytes)
                sides = np.tile([picture.height, picture.width], 2)
                shown[label].append((key, picture, (of_image * sides).round(1).tolist()))
            except BadImageError:
                undecodable += 1
    histogram = _counts(made, samples.split)
    return {
        "split": samples.split,
        "classes": sum(1 for n in histogram if n) if made.splits[samples.split].label_histogram else 0,
        "undecodable": undecodable,
        "cell": _cell(made),
        "of_class": [(made.class_name(label), histogram[label], pairs) for label, pairs in shown.items()],
    }


def _cell(made: Manifest) -> int | None:
    """Returns the display width of small pictures in CSS pixels: a multiple of the image's width, for square pixels.

    Returns None if pictures vary in size or are larger: they then fill the room available.
    """
    height, width, _ = made.features["image"].shape
    if height is None or width is None or max(height, width) > _SIDE // 2:
        return None
    return _SIDE // max(height, width) * max(height, width)


def _counts(made: Manifest, split: str) -> tuple[int, ...]:
    info = made.splits[split]
    return info.label_histogram or (info.num_examples,)


Sample = tuple[bytes, str, NDArray[np.float64]]


@dataclasses.dataclass(frozen=True)
class Samples:
    """Examples by class.

    Attributes:
      split: name of their split.
      by_label: {label: (image, key, result of `boxes.of_record`) of the first examples found}, ordered by label.
    """

    split: str
    by_label: dict[int, list[Sample]]


def take_samples(folder: StoragePath, made: Manifest) -> Samples:
    """Returns samples from the training split or, without one, the largest; the same data set gives the same samples.

    Reading is bounded: it ends when each class has enough samples, or after some records of some shards.

    Raises:
      DataError: a shard cannot be read, or a record is corrupt.
    """
    split = "train" if "train" in made.splits else max(made.splits, key=lambda name: made.splits[name].num_examples)
    wanted = {label: min(n, _PER_CLASS) for label, n in enumerate(_counts(made, split)) if n}
    found: dict[int, list[Sample]] = {label: [] for label in wanted}
    missing = sum(wanted.values())
    is_classified = bool(made.splits[split].label_histogram)
    for file, number, record in _sampled(folder, made, split):
        labels, sample = _sample_of(record, file, number, made)
        for label in labels if is_classified else [0]:
            if len(found.get(label, ())) < wanted.get(label, 0):
                found[label].append(sample)
                missing -= 1
                break  # each image is shown once
        if not missing:
            break
    labels = [label for label, samples in found.items() if samples]
    return Samples(split, {labels[i]: found[labels[i]] for i in _spread(len(labels), CLASSES)})


def _sampled(folder: StoragePath, made: Manifest, split: str) -> Iterator[tuple[str, int, bytes]]:
    """Yields (file, number, record) of the first records of some shards, spread over a split."""
    filled = [shard for shard in made.splits[split].shards if shard.num_examples]
    shards = [filled[i] for i in _spread(len(filled), _SAMPLED_SHARDS)]
    for shard in shards:
        records = (record for _, record in records_of(folder / shard.file, shard.compression))
        first = _first_records(records, _SAMPLED_RECORDS // len(shards), _SAMPLED_BYTES // len(shards))
        for number, record in enumerate(first):
            yield shard.file, number, record


def _spread(count: int, most: int) -> list[int]:
    """Returns at most `most` of the numbers 0..count - 1, evenly spread, with the first and the last."""
    return list(np.unique(np.linspace(0, count - 1, min(count, most)).astype(int)))


def _first_records(records: Iterator[bytes], count: int, num_bytes: int) -> Iterator[bytes]:
    for number, record in enumerate(itertools.islice(records, count)):
        num_bytes -= len(record)
        if num_bytes < 0 and number:
            return
        yield record


def _sample_of(record: bytes, file: str, number: int, made: Manifest) -> tuple[list[int], Sample]:
    wanted: dict[str, Feature] = {
        name: made.features[name] for name in ("image", "label", "key") if name in made.features
    }
    try:
        found = tf_example.example(record, wanted, decode_image=False)
    except tf_example.BadExampleError:
        raise DataError("a record is not an example with image, label and key", path=file) from None
    key = found.get("key", f"{file}#{number}".encode())  # other programs' records may have no key
    label = found["label"]
    classes = np.flatnonzero(label).tolist() if np.ndim(label) else [label]
    return classes, (found["image"], key.decode(errors="backslashreplace"), boxes.of_record(record, made)[0])


@dataclasses.dataclass(frozen=True)
class Picture:
    """An image file.

    Attributes:
      uri: `data:` URI of the file.
      height, width: size of the original image.
    """

    uri: str
    height: int
    width: int


def picture_of_pixels(data: bytes, shape: tuple[int, int, int], most_bytes: int) -> Picture:
    """Returns the picture of raw pixels (row-major uint8).

    Raises:
      BadImageError: `data` has the wrong number of bytes for that shape.
    """
    if len(data) != math.prod(shape):
        raise BadImageError(f"{count_of(len(data), 'byte')} cannot be an image of shape {shape}")
    array = np.frombuffer(data, np.uint8).reshape(shape)
    return Picture(_uri(array[..., :3] if shape[2] >= 3 else array[..., :1], most_bytes), *shape[:2])


def picture_of_file(data: bytes, most_bytes: int, upright: bool = False) -> Picture:
    """Returns the picture of an image file.

    Args:
      data: content of the file.
      most_bytes: largest size of the picture's file, in bytes.
      upright: whether to apply the orientation in its EXIF data.

    Raises:
      BadImageError: it cannot be decoded.
    """
    opened = images.open_file(data)
    height, width = images.upright_size(opened) if upright else (opened.height, opened.width)
    opened.draft(None, (2 * _LARGEST_SIDE, 2 * _LARGEST_SIDE))  # decodes a JPEG at a fraction of its size
    return Picture(_uri(images.pixels(opened, upright=upright), most_bytes), height, width)


def _uri(array: NDArray[np.uint8], most_bytes: int) -> str:
    """Returns an image as a PNG if it is small and the PNG has at most `most_bytes`, otherwise as a JPEG thumbnail."""
    longer = max(array.shape[:2])
    kind, data = "png", images.encoded(array, "png") if longer <= _LARGEST_SIDE else b""
    if not 0 < len(data) <= most_bytes:
        scale = min(1.0, _LARGEST_SIDE / longer)
        small = images.resized(array, tuple(max(1, round(side * scale)) for side in array.shape[:2]))
        stream = io.BytesIO()
        PIL.Image.fromarray(small[..., 0] if small.shape[2] == 1 else small).save(
            stream, "JPEG", quality=_THUMBNAIL_QUALITY
        )
        kind, data = "jpeg", stream.getvalue()
    return f"data:image/{kind};base64,{base64.b64encode(data).decode()}"
