"""WebDataset's tar files: members with equal names before the first dot, such as `1.jpg` and `1.cls`, are one sample.

A tar is a table: a row for each sample, a column for each ending and for each field of the `.json` members. The image
is a path into the tar, so that a tar is read like any other table of images.
Format: https://github.com/webdataset/webdataset
"""

from __future__ import annotations

import dataclasses
import itertools
import json
import os
import re
from collections.abc import Callable, Collection, Iterator, Sequence
from typing import Any

import pyarrow as pa

from beam_jobs.sources import archives, image_table, listing, loaded
from beam_jobs.sources.archives import Archive
from beam_jobs.sources.base import SOURCES, Source, SourceOptions
from beam_jobs.sources.image_files import IMAGES, PathTable
from beam_jobs.sources.image_table import Layout
from beam_jobs.sources.loaded import Choose
from beam_jobs.sources.streams import KnownFile
from beam_jobs.sources.table import SHOWN
from pipeline.errors import DataError
from pipeline.files.paths import LocalPath, StoragePath

_SUFFIX = ".tar"
_KINDS = f"--source of webdataset is a {_SUFFIX}, a folder of such, or a glob"
_NAME = re.compile(r"(?P<key>(?:.*/)?[^/.]+)\.(?P<ending>[^/]+)", re.DOTALL)
_IMAGE, _KEY, _JSON, _CLASS = "image", "__key__", "json", "cls"
_TEXTS = (_CLASS, "txt", "text", "caption")  # endings whose content is text
_LABELS = (_CLASS, "label", "class", "category", "target")  # in order of preference
_HIDDEN = (".", "__")  # prefixes of members that are not part of a sample
_WHOLE = re.compile(r"0|-?[1-9][0-9]{0,8}")
_MAX_VALUE = 16 << 20  # 16 MiB: most bytes of a member other than the image
_AT_ONCE = 1 << 12  # samples whose JSON is held as Python objects


@SOURCES.named("webdataset", needs="a tar of WebDataset, a folder of them, or a glob")
def open_source(options: SourceOptions) -> Source:
    """Reads the tars' labels and computes the tars' digests.

    Raises:
      UsageError: a column is missing.
      DataError: a tar cannot be read, or lacks what is needed.
    """
    # The user named the tars, which in Hugging Face's cache are links.
    options = dataclasses.replace(options, follow_links=True)
    return image_table.opened(options, _LAYOUT, _scan)


def _scan(folder: LocalPath, files: Sequence[KnownFile], options: SourceOptions) -> PathTable:
    return image_table.scanned(folder, files, options, _LAYOUT)[0]


def _find(options: SourceOptions) -> tuple[LocalPath, list[str]]:
    found, names = listing.find(options.source, _is_tar, True, f"*{_SUFFIX}, at any depth", _KINDS)
    for name in names:
        if name.lower().endswith(archives.GZIPPED):
            raise DataError(archives.NOT_ONE_BY_ONE, path=found / name, advice=archives.GUNZIP)
    return LocalPath(str(found)), names


def _is_tar(name: str) -> bool:
    return name.lower().endswith((_SUFFIX, *archives.GZIPPED)) and not os.path.basename(name).startswith(_HIDDEN)


@dataclasses.dataclass
class _Samples:
    """The samples of a tar.

    Attributes:
      path: path of the tar.
      archive: archive with the members of the tar.
      keys: key of each sample.
      members: {ending: {number of a sample: number of its member with that ending}}.
    """

    path: StoragePath
    archive: Archive
    keys: list[str] = dataclasses.field(default_factory=list)
    members: dict[str, dict[int, int]] = dataclasses.field(default_factory=dict)

    def name(self, member: int) -> str:
        return os.fsdecode(self.archive.names[member].as_py())

    def content(self, member: int) -> bytes:
        """Returns the content of a member other than the image."""
        size = int(self.archive.sizes[member])
        try:
            if size > _MAX_VALUE:
                raise ValueError(f"has {size:,} bytes, above {_MAX_VALUE:,}")
            return self.archive.read(member)
        except ValueError as error:
            raise self.refused(member, str(error)) from None

    def refused(self, member: int, problem: str, advice: str = "") -> DataError:
        return DataError(problem, path=self.path, part=f"member {self.name(member)}", advice=advice)


def _samples(path: StoragePath) -> _Samples:
    """Groups the members of a tar into samples."""
    samples = _Samples(path, archives.opened(os.fsencode(str(path))))
    before: dict[str, int] = {}
    for member in range(len(samples.archive.names)):
        name = samples.name(member)
        match = _NAME.fullmatch(name)
        if match is None or os.path.basename(name).startswith(_HIDDEN):
            continue
        if problem := samples.archive.problem(member):
            raise samples.refused(member, problem)
        key, ending = match["key"], match["ending"].lower()
        if not samples.keys or samples.keys[-1] != key:
            if key in before:
                problem = f"is of sample {key!r}, whose other members are not next to it"
                raise samples.refused(member, problem, "pack the files in the order of their names: tar --sort=name")
            before[key] = len(samples.keys)
            samples.keys.append(key)
        of_ending = samples.members.setdefault(ending, {})
        if before[key] in of_ending:
            raise samples.refused(member, f"is the second .{ending} of sample {key!r}", "remove one")
        of_ending[before[key]] = member
    return samples


def _read(path: StoragePath, choose: Choose, options: SourceOptions) -> pa.Table:
    """Reads columns of a tar's samples, like `loaded.read` for a table."""
    samples = _samples(path)
    found = [ending for ending in samples.members if f".{ending.rpartition('.')[2]}".encode() in IMAGES]
    images = [ending for ending in found if "." not in ending] or found  # only if there are no others: left.png
    if not images:
        named = f", only {samples.name(0)}, ..." if len(samples.archive.names) else ""
        advice = "members must be called such as 1.jpg and 1.cls"
        raise DataError(f"has no member that is an image{named}", path=path, advice=advice)
    paths = {*images, *({options.image_column, options.mask_column} & {*samples.members})}
    schema = _schema(samples, paths, options.float_labels)
    names = list(choose(schema))
    fields = [name for name in names if name not in samples.members and name not in (_IMAGE, _KEY)]
    columns = {name: _column(samples, name, images, paths, options) for name in names if name not in fields}
    if fields:
        of_json = loaded.of_objects(path, _objects(samples), fields)
        columns |= dict(zip(fields, of_json.columns, strict=True))
    return pa.table({name: columns[name] for name in names})


def _schema(samples: _Samples, paths: Collection[str], has_numbers: bool) -> pa.Schema:
    """Returns all columns: image and key, the endings, and the fields of the first JSON members."""
    types = {_IMAGE: pa.string(), _KEY: pa.string()}
    for ending in samples.members:
        types[ending] = pa.string() if ending in _TEXTS or ending in paths else pa.binary()
    if _CLASS in types:
        types[_CLASS] = _classes(samples, has_numbers).type
    for field in loaded.schema_of(next(_objects(samples), [])):
        if field.name not in types:
            types[field.name] = field.type
    return pa.schema(types)


def _column(
    samples: _Samples, name: str, images: Sequence[str], paths: Collection[str], options: SourceOptions
) -> pa.Array:
    if name == _KEY:
        return pa.array(samples.keys, pa.string())
    if name == _IMAGE:
        return _paths(samples, images)
    if name in paths:
        return _paths(samples, [name])
    if name == _CLASS:
        return _classes(samples, options.float_labels)
    return _texts(samples, name) if name in _TEXTS else _of_ending(samples, name, lambda _, data: data, pa.binary())


def _paths(samples: _Samples, endings: Sequence[str]) -> pa.Array:
    """Returns the path of each sample's image, from the tar's folder; None if it has none."""
    found: list[str | None] = [None] * len(samples.keys)
    for ending in endings:
        for sample, member in samples.members[ending].items():
            if found[sample] is not None:
                problem = f"is the second image of sample {samples.keys[sample]!r}"
                choices = " or ".join(f"--image_column={each}" for each in endings)
                raise samples.refused(member, problem, f"choose one of them by {choices}")
            found[sample] = f"{samples.path.name}/{samples.name(member)}"
    return pa.array(found, pa.string())


def _of_ending(samples: _Samples, ending: str, parse: Callable[[int, bytes], Any], kind: pa.DataType) -> pa.Array:
    members = samples.members[ending]
    found = ((members[row], samples.content(members[row])) if row in members else None for row in _rows(samples))
    return pa.array([each and parse(*each) for each in found], kind)


def _rows(samples: _Samples) -> range:
    return range(len(samples.keys))


def _texts(samples: _Samples, ending: str) -> pa.Array:

    def parse(member: int, data: bytes) -> str:
        try:
            return data.decode("utf-8-sig").strip()
        except UnicodeDecodeError:
            raise samples.refused(member, f"is not UTF-8 text: {data[:SHOWN]!r}") from None

    return _of_ending(samples, ending, parse, pa.string())


def _classes(samples: _Samples, has_numbers: bool) -> pa.Array:
    """Returns the labels of samples: int64 if all are whole numbers, else texts, or float64 with `has_numbers`."""
    texts = _texts(samples, _CLASS)
    given = [text for text in texts.unique().drop_null().to_pylist() if text]
    if all(map(_WHOLE.fullmatch, given)):
        return pa.array([int(text) if text else None for text in texts.to_pylist()], pa.int64())
    if not has_numbers:
        return texts
    for row, text in enumerate(texts.to_pylist()):
        if text and not re.fullmatch(loaded.DECIMAL, text):
            raise samples.refused(samples.members[_CLASS][row], f"is not a number: {text[:SHOWN]!r}")
    return pa.array([float(text) if text else None for text in texts.to_pylist()], pa.float64())


def _objects(samples: _Samples) -> Iterator[list[dict[str, Any]]]:
    """Yields the objects in the JSON members of all samples, some at a time; empty for a sample without one."""
    members, rows = samples.members.get(_JSON, {}), iter(_rows(samples))
    while some := list(itertools.islice(rows, _AT_ONCE)):
        yield [_object(samples, members[row]) if row in members else {} for row in some]


def _object(samples: _Samples, member: int) -> dict[str, Any]:
    data = samples.content(member)
    try:
        found = json.loads(data.decode("utf-8-sig"), parse_float=loaded.number)
    except (ValueError, RecursionError) as error:  # UnicodeDecodeError is one
        raise samples.refused(member, f"is not JSON ({' '.join(str(error).split())}): {data[:SHOWN]!r}") from None
    if not isinstance(found, dict):
        raise samples.refused(member, f"is not a JSON object: {data[:SHOWN]!r}")
    return found


_LAYOUT = Layout(_find, _read, (_IMAGE,), _LABELS)
