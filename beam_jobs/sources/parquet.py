"""Data sets in Parquet files: a column of encoded images, one of labels, others kept as features.

The unit of reading is the row group. Format: https://parquet.apache.org/docs/file-format/; Hugging Face's layout of
splits, images and class names: https://huggingface.co/docs/datasets.
"""

from __future__ import annotations

import dataclasses
import difflib
import hashlib
import json
import pathlib
import re
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from beam_jobs.sources import base, listing, parquet_reader, streams
from beam_jobs.sources.base import OTHER_DATA, OWN_FEATURES, Block, Files, Source, SourceOptions
from beam_jobs.sources.labels import SeenLabels
from beam_jobs.sources.listing import SPLIT_OF_WORD
from beam_jobs.sources.parquet_reader import IMAGE_FIELD, BatchedBuilder, Columns, OpenFile, ParquetFile, decoded
from pipeline.errors import DataError, UsageError
from pipeline.files import paths
from pipeline.files.paths import LocalPath, StoragePath
from pipeline.manifest import Feature, SourceFile, naming

_SUFFIX = ".parquet"
_SHARD = re.compile(r"(?:.*-)?(?P<word>[^-]+)-\d{5,}-of-\d{5,}(?:-[0-9a-f]+)?")
MAX_CLASSES = 100_000  # the largest published label sets have a fifth of that; more is a column of names or numbers
_TAIL = 8  # bytes: the length of the footer, uint32, and PAR1


@dataclasses.dataclass(frozen=True, eq=False, kw_only=True)
class ParquetSource(Source):
    """Parquet files.

    Attributes:
      columns: those to read, of all files.
      tables: {split: its files}.
    """

    columns: Columns
    tables: dict[str, tuple[ParquetFile, ...]]

    def chunks(self, split: str) -> NDArray[np.int64]:
        """Returns the rows of each row group."""
        return np.array([rows for table in self.tables[split] for rows in table.groups], np.int64)

    def read(self, split: str, rows: NDArray[np.int64]) -> Block:
        """Returns rows of a split, reading each row group once. Memory: the rows, and one batch."""
        files = self.parts[split]
        keys = None if self.columns.key else files.keys(rows, equal_digits=False)
        builder = BatchedBuilder(len(rows), self.columns, self.class_names, keys)
        for number, positions, in_file in base.by_part(files.counts, rows):
            table = self.tables[split][number]
            with table.opened() as file:
                for group, chosen, in_group in base.by_part(table.groups, in_file):
                    self._read_group(file, group, builder, positions[chosen], in_group)
        return builder.finished()

    def _read_group(
        self,
        file: OpenFile,
        group: int,
        builder: BatchedBuilder,
        positions: NDArray[np.int64],
        rows: NDArray[np.int64],
    ) -> None:
        """Reads ascending rows of a row group to positions of the block."""
        start = taken = 0
        for batch in file.batches(group, self.columns.paths):
            stop = int(np.searchsorted(rows, start + len(batch)))
            if stop > taken:
                with file.errors_of(group):
                    builder.put(positions[taken:stop], batch, rows[taken:stop] - start)
            if stop == len(rows):
                return
            start, taken = start + len(batch), stop


def open_source(options: SourceOptions) -> ParquetSource:
    """Opens files, finds their columns, splits and classes.

    Args:
      options: `source` is a file, a folder of *.parquet, or a glob; the columns are as `config.ConvertConfig` says.

    Raises:
      UsageError: --source is missing; a column is missing or cannot be converted; float32 cannot hold one's values.
      DataError: a file is missing or cannot be read, files differ in their columns or class names, the split of a file
        is unclear, a split has no row, a row group is larger than 1 GiB, or no row has a label.
    """
    if not options.source:
        raise UsageError("--source is missing: a Parquet file, a folder of them, or a glob")
    kinds = f"--source of parquet is a file, a folder of *{_SUFFIX}, or a glob"
    folder, names = listing.find(options.source, _is_parquet, True, f"*{_SUFFIX}, at any depth", kinds)
    by_split = _files_by_split(folder, names)
    first = _open(folder / names[0], options)
    # The others must have the columns of the first, not others that their own names would suggest.
    resolved = dataclasses.replace(options, image_column=first.columns.image, label_column=first.columns.label)
    others = paths.each(lambda name: _open_another(folder / name, resolved, first), names[1:], folder.is_remote)
    files = [first, *others]
    tables = {name: opened.table for name, opened in zip(names, files, strict=True)}
    parts = {
        split: Files(tuple(members), tuple(sum(tables[name].groups) for name in members))
        for split, members in by_split.items()
    }
    for _ in paths.each(_check_doubles, files, folder.is_remote):
        pass
    return ParquetSource(
        dataset=options.dataset,
        splits=base.rows_of(parts, folder),
        class_names=_class_names_of(list(tables.values()), first.columns, first.class_names),
        files=_describe(folder, names),
        features=dict(first.columns.kept),
        unique_keys=not first.columns.key,
        parts=parts,
        columns=first.columns,
        tables={split: tuple(tables[name] for name in members) for split, members in by_split.items()},
    )


@dataclasses.dataclass(frozen=True)
class _Opened:
    """A file, its columns, and the class names in its metadata."""

    table: ParquetFile
    columns: Columns
    class_names: tuple[str, ...]


def _open(path: StoragePath, options: SourceOptions) -> _Opened:
    table = ParquetFile(path, streams.stamp(path))
    with table.opened() as file:
        with parquet_reader.arrow_errors(path, "its schema cannot be read"):
            schema = file.file.schema_arrow
        columns = _choose_columns(str(path), schema, options)
        table = dataclasses.replace(table, groups=file.rows_of_groups(columns.paths))
    return _Opened(table, columns, class_names(schema).get(columns.label, ()))


def _open_another(path: StoragePath, options: SourceOptions, first: _Opened) -> _Opened:
    try:
        other = _open(path, options)
    except UsageError as error:
        advice = f"{first.table.path} has them; all files must have the same columns"
        raise DataError(str(error), advice=advice) from None
    if (other.columns, other.class_names) != (first.columns, first.class_names):
        raise DataError(
            f"its columns {', '.join(first.columns.paths)} differ from those of {first.table.path} in type or "
            "class names; all files must have the same",
            path=path,
        )
    return other


def _files_by_split(root: StoragePath, names: Sequence[str]) -> dict[str, list[str]]:
    """Returns the files of each split, train first.

    A file's split is the word train, validation, test, ... in its name or the name of a folder. If only other files
    have such a word, it is the one before `-00000-of-00001`. If no file has one, all files are of `train`.

    Raises:
      DataError: a file has two such words, or none while others have one; two words mean the same split.
    """
    words = {name: _known_word(root, name) for name in names}
    if not any(words.values()):
        return {"train": list(names)}
    found: dict[str, list[str]] = {}
    meaning: dict[str, str] = {}
    for name in names:
        word = words[name] or _shard_word(root, name, [word for word in words.values() if word])
        split = SPLIT_OF_WORD.get(word, word)
        if meaning.setdefault(split, word) != word:
            raise DataError(
                f"holds files of {meaning[split]!r} and of {word!r}, which both mean split {split!r}",
                path=root,
                advice="rename them, or name the files of one with a glob",
            )
        found.setdefault(split, []).append(name)
    order = listing.SPLITS
    return dict(sorted(found.items(), key=lambda item: (order.index(item[0]) if item[0] in order else 9, item[0])))


def _is_parquet(name: str) -> bool:
    return name.lower().endswith(_SUFFIX) and not any(part.startswith((".", "_")) for part in name.split("/"))


def _known_word(root: StoragePath, name: str) -> str:
    path = pathlib.PurePosixPath(name)
    tokens = listing.words(path.stem)
    words = {token for token in [*tokens, *map(str.lower, path.parts[:-1])] if token in SPLIT_OF_WORD}
    if len({SPLIT_OF_WORD[word] for word in words}) > 1:
        raise DataError(f"is its split {' or '.join(sorted(words))}? rename it", path=root / name)
    return min(words, default="")


def _shard_word(root: StoragePath, name: str, others: Sequence[str]) -> str:
    match = _SHARD.fullmatch(pathlib.PurePosixPath(name).stem)
    if not match or not naming.is_split_name(match["word"]):
        raise DataError(
            f"its name does not tell its split, unlike other names ({min(others)!r})",
            path=root / name,
            advice="rename it <split>-00000-of-00001.parquet, or name the files to take with a glob",
        )
    return match["word"]


def _class_names_of(files: Sequence[ParquetFile], columns: Columns, named: tuple[str, ...]) -> tuple[str, ...]:
    """Returns one class name per label: `named`, those of the files' metadata, or what their labels say.

    All labels are read, instead of the footers' statistics: pyarrow 25 crashes on corrupt ones.

    Raises:
      DataError: no row has a label, there are more than 100,000 classes, or a file cannot be read.
    """
    if columns.label_kind == "bool":
        return "false", "true"
    is_text = columns.label_kind == "string"
    if named and not is_text:
        return named
    seen = SeenLabels(f"column {columns.label!r}", MAX_CLASSES, "name the column of labels with --label_column")

    def read(file: ParquetFile) -> None:
        with file.opened() as opened:
            for group in opened.groups:
                for batch in opened.batches(group, [columns.label]):
                    with opened.errors_of(group):
                        values = decoded(batch.column(columns.label))
                        found = pc.unique(values).to_pylist() if is_text else [pc.max(values).as_py()]
                    seen.add((label for label in found if label is not None), file.path)

    for _ in paths.each(read, files, files[0].path.is_remote):
        pass
    return seen.class_names(files[0].path)


def _check_doubles(opened: _Opened) -> None:
    """Raises UsageError if a kept column has a value that would be rounded, and the user has not allowed it.

    All values are read before anything is written, so that a long conversion does not fail on a row in its middle.
    """
    names, table = opened.columns.doubles, opened.table
    if not names:
        return
    with table.opened() as file:
        start = 0
        for group in file.groups:
            for batch in file.batches(group, names):
                with file.errors_of(group):
                    found = {name: parquet_reader.first_inexact(batch.column(name)) for name in names}
                for name, inexact in found.items():
                    if inexact:
                        raise _rounded(
                            table.path, start + inexact[0], name, inexact[1], dict(opened.columns.kept)[name]
                        )
                start += len(batch)


def _rounded(path: StoragePath, row: int, name: str, value: float, feature: Feature) -> UsageError:
    choices = [f"{name}:float32 (rounded)"]
    choices += [] if feature.shape else [f"{name}:string (exact, as text)"]
    choices += [f"{name}:int64 (whole numbers)"] if value.is_integer() and abs(value) < 2**63 else []
    return UsageError(
        f"--keep_columns={name}: {path}, row {row}: is {value!r}, which float32, the only floating-point type of a "
        f"tf.train.Example, cannot hold; keep {' or '.join(choices)}"
    )


def _describe(folder: StoragePath, names: Sequence[str]) -> tuple[SourceFile, ...]:
    """Returns the manifest's entry of each file.

    The digest of a local file covers its content. That of a remote file covers its footer alone, with length and magic,
    as reading all bytes from a store would take too long. The footer has the offset and size of every column chunk and
    the writer's statistics; two files that agree in all of these have one digest.
    """
    if isinstance(folder, LocalPath):
        return streams.describe([(name, folder / name) for name in names])
    return tuple(paths.each(lambda name: _of_footer(folder / name, name), names, remote=True))


def _of_footer(path: StoragePath, name: str) -> SourceFile:
    with streams.errors_of(path), path.open_native() as stream:
        size = stream.size()
        length = int.from_bytes(stream.read_at(_TAIL, size - _TAIL)[:4], "little") + _TAIL
        return SourceFile(name, size, hashlib.sha256(stream.read_at(length, size - length)).hexdigest())


_IMAGE_NAMES = ("image", "img")
_LABEL_NAME = "label"
_LABELS, _KEYS = ("int", "bool", "string"), ("int", "string", "bytes", "fixed")  # kinds of types, as in _KINDS
_MOST_LISTED = 16
_GIVEN = ("float32", "int64", "string")  # types that a kept column can be given


def _choose_columns(path: str, schema: pa.Schema, options: SourceOptions) -> Columns:
    """Returns the columns of a file: by default `image` or `img`, and `label`.

    Raises:
      UsageError: a flag names a missing column, or one whose type cannot be converted; a kept column is read
        already or has the name of another feature.
    """
    present = [name for name in _IMAGE_NAMES if name in schema.names]
    image = options.image_column or (present[0] if present else _IMAGE_NAMES[0])
    label = options.label_column or _LABEL_NAME
    if not options.image_column and not present:
        raise _missing(
            path, schema, "image", [each.name for each in schema if _kind(_bytes_type(each.type)) == "bytes"]
        )
    nested = _check_image(path, schema, image)
    if not options.label_column and label not in schema.names:
        used = (image, options.key_column)
        could_be = [each.name for each in schema if _kind(plain(each.type)) in _LABELS and each.name not in used]
        raise _missing(path, schema, "label", could_be)
    label_kind = _checked_kind(path, schema, "label_column", label, _LABELS, "integers, booleans or strings")
    if options.key_column:
        _checked_kind(path, schema, "key_column", options.key_column, _KEYS, "strings, binary or integers")
    names = class_names(schema)
    kept: list[tuple[str, Feature]] = []
    given: list[str] = []
    doubles: list[str] = []
    for text in options.keep_columns:
        name, wanted = _name_and_type(schema, text)
        if name in OWN_FEATURES or name in (image, label, options.key_column, *(other for other, _ in kept)):
            problem = "every example has that feature" if name in OWN_FEATURES else "that column is already in use"
            raise UsageError(f"--keep_columns: {name!r} cannot be kept: {problem}")
        feature = _feature(path, schema, name, wanted)
        own_names = names.get(name, ()) if feature.dtype == "int64" else ()
        kept.append((name, dataclasses.replace(feature, class_names=own_names)))
        found = plain(schema.field(name).type)
        if wanted:
            given.append(name)
        elif pa.types.is_float64(found.value_type if _kind(found) in ("list", "vector") else found):
            doubles.append(name)
    if len({image, label, options.key_column}) != 3:
        raise UsageError(
            f"image, label and key must be three columns, not {image}, {label}, {options.key_column}", path=path
        )
    return Columns(image, nested, label, label_kind, options.key_column, tuple(kept), tuple(given), tuple(doubles))


def _missing(path: str, schema: pa.Schema, what: str, could_be: Sequence[str]) -> UsageError:
    """Returns the error for a file without a column of the usual name; columns of `could_be` have a fitting type."""
    columns = _listed([f"{field.name} ({_text(field.type)})" for field in schema])
    if not could_be:
        return UsageError(f"{path} has no column that could be the {what}; it has {columns}; {OTHER_DATA}")
    near = difflib.get_close_matches(what, could_be, n=1, cutoff=0.5)
    choices = _listed([*near, *(name for name in could_be if name not in near)])
    return UsageError(
        f"--{what}_column is missing: {path} has no column {what!r}, but {columns}; the {what} could be {choices}; if "
        f"none is, {OTHER_DATA}"
    )


def _listed(names: Sequence[str]) -> str:
    return ", ".join(names[:_MOST_LISTED]) + (", ..." if len(names) > _MOST_LISTED else "")


def _bytes_type(found: pa.DataType) -> pa.DataType:
    """Returns the type of a column's values, of a struct with the field `bytes` that field's."""
    is_struct = pa.types.is_struct(found) and found.get_field_index(IMAGE_FIELD) >= 0
    return plain(found.field(IMAGE_FIELD).type if is_struct else found)


def class_names(schema: pa.Schema) -> dict[str, tuple[str, ...]]:
    """Returns {column: names of its classes} of the columns that Hugging Face's metadata calls class labels.

    Metadata of another form is ignored.
    """
    try:
        content = json.loads((schema.metadata or {}).get(b"huggingface", b"{}"))
        features: Any = content["info"]["features"]
        named = {column: feature["names"] for column, feature in features.items() if _is_class_label(feature)}
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError):
        return {}
    return {column: tuple(names) for column, names in named.items()}


def _is_class_label(feature: Any) -> bool:
    if not isinstance(feature, dict) or feature.get("_type") != "ClassLabel":
        return False
    names = feature.get("names")
    return isinstance(names, list) and bool(names) and all(isinstance(name, str) for name in names)


def _type_of(path: str, schema: pa.Schema, flag: str, name: str) -> pa.DataType:
    count = schema.names.count(name)
    if count == 1:
        return schema.field(name).type
    if count:
        raise UsageError(f"--{flag}={name}: {path} has {count} columns of that name")
    near = difflib.get_close_matches(name, schema.names, n=1, cutoff=0.5)
    hint = f"did you mean {near[0]!r}? " if near else ""
    raise UsageError(f"--{flag}: {path} has no column {name!r}; {hint}columns: {_listed(schema.names)}")


def _check_image(path: str, schema: pa.Schema, name: str) -> bool:
    """Returns whether the image column is a struct with the field `bytes`."""
    found = _type_of(path, schema, "image_column", name)
    if _kind(_bytes_type(found)) != "bytes":
        raise UsageError(
            f"--image_column={name}: {path} has it as {_text(found)}; it must be binary, the bytes of PNG, JPEG, ... "
            f"files, or a struct with such a field {IMAGE_FIELD!r}"
        )
    return bool(pa.types.is_struct(found))


def _checked_kind(path: str, schema: pa.Schema, flag: str, name: str, kinds: Sequence[str], must: str) -> str:
    """Returns the kind of a column's type, which must be one of `kinds`."""
    found = _type_of(path, schema, flag, name)
    kind = _kind(plain(found))
    if kind not in kinds:
        more = f"; {OTHER_DATA}" if flag == "label_column" and pa.types.is_nested(found) else ""
        raise UsageError(f"--{flag}={name}: {path} has it as {_text(found)}; it must be {must}{more}")
    return kind


def _name_and_type(schema: pa.Schema, text: str) -> tuple[str, str]:
    """Returns the name of a column to keep and the type that the user gave, or ""; a name may itself have a colon."""
    name, colon, wanted = text.rpartition(":")
    if text in schema.names or not colon or name not in schema.names:
        return text, ""
    if wanted not in _GIVEN:
        choices = " or ".join(f"{name}:{kind}" for kind in _GIVEN)
        raise UsageError(f"--keep_columns={text}: must be {name}, {choices}")
    return name, wanted


def _feature(path: str, schema: pa.Schema, name: str, wanted: str) -> Feature:
    """Returns the feature that a column becomes; of the type `wanted`, if that is not empty."""
    found = plain(_type_of(path, schema, "keep_columns", name))
    kind = _kind(found)
    if kind in _DTYPES and not wanted:
        return Feature(_DTYPES[kind])
    if kind in _CASTS[wanted]:
        return Feature(wanted)
    if kind in ("list", "vector") and wanted != "string" and _DTYPES.get(_kind(found.value_type), "string") != "string":
        return Feature(wanted or _DTYPES[_kind(found.value_type)], (found.list_size if kind == "vector" else None,))
    advice = "integers, booleans, floats, lists of them, strings and binary can be kept"
    if choices := [f"{name}:{type_}" for type_ in _GIVEN if kind in _CASTS[type_]]:
        advice = f"keep it as {' or '.join(choices)}"
    raise UsageError(f"--keep_columns: {path} has {name!r} as {_text(found)}; {advice}")


def plain(found: pa.DataType) -> pa.DataType:
    """Returns the type of a column's values, also if it is dictionary-encoded."""
    return found.value_type if pa.types.is_dictionary(found) else found


def _kind(found: pa.DataType) -> str:
    return next((kind for kind, tests in _KINDS.items() if any(test(found) for test in tests)), "")


def _text(found: pa.DataType) -> str:
    return " ".join(str(found).split())[:100]


_KINDS: dict[str, tuple[Callable[[pa.DataType], bool], ...]] = {
    "int": (pa.types.is_integer,),
    "bool": (pa.types.is_boolean,),
    "float": (pa.types.is_floating,),
    "decimal": (pa.types.is_decimal,),
    "time": (pa.types.is_temporal,),
    "string": (pa.types.is_string, pa.types.is_large_string, pa.types.is_string_view),
    "bytes": (pa.types.is_binary, pa.types.is_large_binary, pa.types.is_binary_view),
    "fixed": (pa.types.is_fixed_size_binary,),
    "list": (pa.types.is_list, pa.types.is_large_list),
    "vector": (pa.types.is_fixed_size_list,),
}
_DTYPES = {  # of features
    **dict.fromkeys(("int", "bool"), "int64"),
    "float": "float32",
    **dict.fromkeys(("string", "bytes", "fixed"), "string"),
}
_CASTS: dict[str, tuple[str, ...]] = {  # {type that the user gives: kinds of columns that can be converted to it}
    "": (),
    "float32": ("int", "bool", "float", "decimal"),
    "int64": ("int", "bool", "float", "decimal", "time"),
    "string": ("int", "bool", "float", "decimal", "time", "string", "bytes", "fixed"),
}
