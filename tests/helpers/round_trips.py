"""Tables that a test writes to the files of a source, and the data set that a conversion must make from them."""

from __future__ import annotations

import contextlib
import dataclasses
import io
import json
import pathlib
import pickle
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import numpy as np
import PIL.Image
from hypothesis import strategies as st

from beam_jobs.config import ConvertConfig
from beam_jobs.plan import Plan, make_plan
from beam_jobs.shards import manifest_writer, writer
from beam_jobs.sources import image_files, open_source, parquet, record_files, row_files
from beam_jobs.sources.base import Block, Source, SourceOptions
from pipeline import manifest
from pipeline.files.paths import LocalPath
from pipeline.manifest import Feature, naming
from tests.helpers.converting import check_keys, write_data_set
from tests.helpers.datasets import examples_in


@contextlib.contextmanager
def empty_folder() -> Iterator[pathlib.Path]:
    """Yields a folder, in memory if possible: on a disk, each of the many small files would be synced."""
    memory = pathlib.Path("/dev/shm")
    with tempfile.TemporaryDirectory(dir=memory if memory.is_dir() else None) as folder:
        yield pathlib.Path(folder)


def picture(number: int, kind: str = "PNG", size: tuple[int, int] = (2, 3)) -> bytes:
    """Returns an image file with a single colour."""
    stream = io.BytesIO()
    PIL.Image.fromarray(np.full((*size, 3), number, np.uint8)).save(stream, kind)
    return stream.getvalue()


def png(pixels: np.ndarray) -> bytes:
    """Returns pixels as a PNG file."""
    stream = io.BytesIO()
    PIL.Image.fromarray(pixels).save(stream, "PNG")
    return stream.getvalue()


def fill(root: pathlib.Path, content: Mapping[str, bytes | str]) -> pathlib.Path:
    """Writes files, {path in a folder: content}; returns the folder."""
    for name, data in content.items():
        path = root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(data if isinstance(data, bytes) else data.encode())
    return root


def everything(source: Source, split: str = "train") -> Block:
    """Returns all rows of a split."""
    return source.read(split, np.arange(source.splits[split]))


PICTURES = [
    *(picture(number, size=(2, number + 1)) for number in range(6)),
    *(picture(100 + number, "JPEG") for number in range(3)),
    picture(9, "BMP"),
    picture(10, "WEBP"),
]
NO_PICTURES = [b"", b"hello", PICTURES[0][:-20], PICTURES[1][:40] + b"?" + PICTURES[1][41:]]


@dataclasses.dataclass
class Row:
    """A row of a source.

    Attributes:
      file, number: file and row number.
      key, image, class_name, extra: values of the resulting example; `image` is a file, or raw pixels.
      fault: None for a valid row; otherwise words in the reason for its rejection.
    """

    file: str
    number: int
    key: bytes
    image: bytes
    class_name: str
    extra: dict[str, Any] = dataclasses.field(default_factory=dict)
    fault: Sequence[str] | None = None


def digits(count: int) -> int:
    """Returns the number of digits of the highest of `count` row numbers."""
    return len(str(max(count - 1, 0)))


def in_order(names: set[str]) -> list[str]:
    """Returns class names in the order of their labels."""
    return sorted(names, key=int) if all(name.isdecimal() for name in names) else sorted(names)


def check(
    data: st.DataObject,
    folder: pathlib.Path,
    table: Mapping[str, Sequence[Row]],
    class_names: Sequence[str],
    features: Mapping[str, Feature] | None = None,
    **flags: Any,
) -> Plan:
    """Converts a source and checks that the data set has the valid rows of its table and rejects the others.

    The first row of each split must be valid: rows are sampled before all are read.

    Args:
      data: source of draws: options of the conversion, and the distribution of shards over workers.
      folder: empty folder for data sets.
      table: {split: rows in the source's order}.
      class_names: class names, by label.
      features: features in `extra`.
      **flags: flags of the command, without --data_dir.

    Returns:
      The plan.
    """
    most = min(5, *map(len, table.values()))
    flags |= {
        "num_shards": str(data.draw(st.integers(1, most), "shards")),
        "seed": data.draw(st.integers(0, 3), "seed"),
        "compression": data.draw(st.sampled_from(["", "GZIP"]), "compression"),
        "max_rejects": sum(row.fault is not None for rows in table.values() for row in rows),
    }
    out = LocalPath(folder / "out")
    out.make_folder()
    plan = make_plan(ConvertConfig(data_dir=str(out), **flags), out)
    write_data_set(plan)
    _check_stored(plan, table)
    _check_rejects(out, table)
    made = manifest.load(out)
    assert made.class_names == tuple(class_names)
    assert {name: feature for name, feature in made.features.items() if name in (features or {})} == (features or {})
    assert list(plan.source.splits) == list(table)
    _check_order(data, plan.source, table)
    _check_spread(data, folder, plan)
    _check_read_again(out, plan)
    return plan


def _examples(plan: Plan, split: str, shard: int) -> list[dict[str, Any]]:
    return examples_in(plan.data_dir / plan.file_name(split, shard))


def _check_stored(plan: Plan, table: Mapping[str, Sequence[Row]]) -> None:
    for split, shard in plan.elements:
        found = _examples(plan, split, shard)
        rows = [row for row in (table[split][number] for number in plan.rows(split, shard)) if row.fault is None]
        assert [example["key"] for example in found] == [[row.key] for row in rows]
        for example, row in zip(found, rows, strict=True):
            assert plan.source.class_names[example["label"][0]] == row.class_name
            assert _same_image(example["image"][0], row.image)
            assert example.keys() == {"image", "label", "key", *row.extra}
            for name, value in row.extra.items():
                assert same(example[name], value), (name, example[name], value)


def _check_rejects(out: LocalPath, table: Mapping[str, Sequence[Row]]) -> None:
    file = out / naming.REJECTS
    found = [json.loads(line) for line in file.read_text().splitlines()] if file.exists() else []
    bad = {(s, row.file, row.number): row.fault for s, rows in table.items() for row in rows if row.fault is not None}
    assert sorted((one["split"], one["file"], one["row"]) for one in found) == sorted(bad)
    for one in found:
        fault = bad[one["split"], one["file"], one["row"]]
        assert one["reason"]
        assert all(word in one["reason"] for word in fault), (one, fault)


def _check_order(data: st.DataObject, source: Source, table: Mapping[str, Sequence[Row]]) -> None:
    """Checks that rows come in the requested order, also if requested twice, and none if none is requested."""
    split = data.draw(st.sampled_from(sorted(table)), "split")
    rows = data.draw(st.lists(st.integers(0, len(table[split]) - 1), max_size=8), "rows")
    block = source.read(split, np.array(rows, np.int64))
    assert len(block.images) == len(block.labels) == len(rows)
    for place, row in enumerate(table[split][number] for number in rows):
        if row.fault is None:
            assert bytes(block.keys[place]) == row.key
            assert source.class_names[block.labels[place]] == row.class_name


def _check_spread(data: st.DataObject, folder: pathlib.Path, plan: Plan) -> None:
    """Checks that new workers write the same bytes, for any distribution of the shards."""
    other = LocalPath(folder / "other")
    other.make_folder()
    sent = pickle.dumps(dataclasses.replace(plan, data_dir=other, receipts_dir=other))
    assert len(sent) < 9000
    elements = data.draw(st.permutations(plan.elements), "elements")
    workers = data.draw(st.integers(1, len(elements)), "workers")
    receipts = []
    for worker in range(workers):
        row_files._kept.clear()
        image_files._kept.clear()
        parquet._footer.cache_clear()
        record_files._load_offsets.cache_clear()
        receipts += writer.write_shards(pickle.loads(sent), elements[worker::workers])
    plan_there = pickle.loads(sent)
    if not plan.source.unique_keys:
        check_keys(other, receipts)
    manifest_writer.write_manifest(plan_there, receipts)
    assert _contents(other) == _contents(plan.data_dir)


def _contents(folder: LocalPath) -> dict[str, bytes]:
    return {name: (folder / name).read_bytes() for name in folder.files(recursive=True)}


def _check_read_again(out: LocalPath, plan: Plan) -> None:
    """Checks that the data set, as a source, has the same examples in the same order."""
    again = open_source(SourceOptions("tfrecord", str(out)))
    for split in again.splits:
        stored = [one for shard in range(plan.num_shards[split]) for one in _examples(plan, split, shard)]
        block = again.read(split, np.arange(again.splits[split])[::-1])
        assert not block.bad
        for place, example in enumerate(reversed(stored)):
            image = block.images[place]
            assert (image if isinstance(image, bytes) else image.tobytes()) == example["image"][0]
            assert (block.labels[place], bytes(block.keys[place])) == (example["label"][0], example["key"][0])
            for name, values in block.extra.items():
                assert same(example[name], values[place]), name


def same(found: Any, value: Any) -> bool:
    """Returns whether the values of a feature are equal, including the sign of a zero; all NaNs are equal."""
    if isinstance(found, list):
        return len(found) == np.size(np.array(value, object)) and (not found or found == [value])
    wanted = np.asarray(value, found.dtype).reshape(-1)
    is_equal = np.array_equal(found, wanted, equal_nan=found.dtype != np.int64)
    return is_equal and (found.dtype == np.int64 or bool((np.signbit(found) == np.signbit(wanted))[found == 0].all()))


def _same_image(found: bytes, image: bytes) -> bool:
    if found == image:
        return True
    if image.startswith((b"\x89PNG", b"\xff\xd8\xff")):  # copied byte by byte
        return False
    pixels = [np.asarray(PIL.Image.open(io.BytesIO(each)).convert("RGB")) for each in (found, image)]
    return np.array_equal(*pixels)
