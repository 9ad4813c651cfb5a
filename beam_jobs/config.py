"""The converter's options. `convert --help` is made from this class."""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Collection
from typing import Any

from beam_jobs import flag_values
from beam_jobs.flag_values import MAX_SHARDS
from beam_jobs.sources.base import LABEL, SourceOptions
from pipeline.commands import values
from pipeline.commands.flags import check_all, fields_with, flag, flags_of
from pipeline.errors import UsageError, name_of, unknown
from pipeline.files import code
from pipeline.manifest import naming, splits
from pipeline.manifest.columns import FROM_RECORDS, NO_COLUMNS
from pipeline.records import columns

_IMAGE_ENCODINGS = ("source", "raw", "png", "jpeg")
_MAX_SEED = 2**63 - 1
_MOST_FOLDS = 100
_LARGEST_SHARD = 256 << 20  # 256 MiB: a size that object stores and page caches read well


_FIRST = ("dataset", "source", "label_column")  # options that the short --help shows
_SHAPES = {"shapes": True}  # the option shapes the bytes of the shards: it is recorded in the manifest


def _text_flag(option: dataclasses.Field[Any]) -> tuple[str, Any, Any]:
    is_text = not isinstance(option.default, bool)
    default = "" if is_text and option.default is not dataclasses.MISSING else option.default
    meaning = _SHAPES if option.metadata["shapes"] else None
    first = option.name in _FIRST
    if option.metadata["repeated"]:
        return option.name, list[str], flag(text=option.metadata["text"], meaning=meaning, repeated=True)
    return option.name, str if is_text else bool, flag(default, option.metadata["text"], meaning=meaning, first=first)


_OPTIONS = dataclasses.fields(SourceOptions)
_dataset, *_others = map(_text_flag, _OPTIONS)
_data_dir = ("data_dir", str, flag(text="folder for the shards and manifest.json; made if missing", first=True))
_Flags: Any = dataclasses.make_dataclass("_Flags", [_dataset, _data_dir, *_others], frozen=True)


@dataclasses.dataclass(frozen=True)
class ConvertConfig(_Flags):
    """Every other flag goes to Beam: --runner (default FnApiRunner), --direct_num_workers, --direct_running_mode, ...

    Raises:
      UsageError: a value is invalid; the message gives the bound it breaks.
    """

    image_encoding: str = flag(
        "source",
        "format of stored images: source (as they are: pixels raw, PNG and JPEG files unchanged), raw, png or jpeg",
        meaning=_SHAPES,
        first=True,
    )
    resize: str = flag(
        "",
        "HxW, or one number for both: resize every image; default: images keep their sizes",
        meaning=_SHAPES,
        first=True,
    )
    scaled_decoding: bool = flag(
        False,
        "with resize: decode JPEGs at 1/2, 1/4 or 1/8 of their size where that is enough; faster, a little blurred",
        meaning=_SHAPES,
    )
    channels: int = flag(0, "1 grey or 3 colour; default: as in the source's first images", meaning=_SHAPES)
    compression: str = flag("", "compression of the shards: GZIP; default: none", meaning=_SHAPES)
    split: str = flag(
        "",
        "draw new splits by a stable hash of each row, instead of the source's: train:0.9,validation:0.1",
        meaning=_SHAPES,
        first=True,
    )
    folds: int = flag(
        0,
        "draw this many new splits of equal size, fold0, fold1, ..., for cross-validation, instead of split",
        meaning=_SHAPES,
    )
    transform: str = flag(
        "",
        "my_module:function, which gets up to 64 rows at a time, as arrays by column, and returns those to convert: "
        "changed, fewer or more",
        meaning=_SHAPES,
    )
    num_shards: str = flag(
        "",
        "one number for every split, or split:number,... (train:8,test:2); default: shards of at most 16 MiB "
        "up to 64 shards, then of at most max_shard_bytes",
        first=True,
    )
    max_shard_bytes: int = flag(
        _LARGEST_SHARD, "bytes of the largest shard; a worker holds one or two of this size in memory"
    )
    passes: int = flag(
        1,
        "2: shuffle row by row what the first pass wrote; for a source sorted by class that is read in chunks",
        meaning=_SHAPES,
    )
    max_rejects: int = flag(
        0, "invalid rows of the source that may be skipped; they are listed in rejects.jsonl", first=True
    )
    seed: int = flag(0, "seed of the permutation that spreads the examples over the shards")
    columns: str = flag(
        FROM_RECORDS,
        "source of values to select and weight records by: records (label, bytes, features with one value), "
        f"records:label,id, none; a file or function, as for {name_of('pipeline.index')} --add_columns, adds to all of "
        "records, in a local data_dir",
    )
    overwrite: bool = flag(
        False,
        "replace the data set in data_dir: the new one is written next to it; then the old manifest is removed, and "
        "the files that it lists",
        first=True,
    )
    append: bool = flag(
        False,
        "add the source's rows to the data set in data_dir, as new shards of a new version; its files stay as they "
        "are, and options not given are taken from it",
        first=True,
    )
    dry_run: bool = flag(
        False, "show what it would write (shards, some examples, bytes, time, invalid rows of a sample); write nothing"
    )

    def __post_init__(self) -> None:
        """Expands a one-number size to HxW, as the manifest stores it, and checks every value."""
        object.__setattr__(self, "resize", values.both_sides(self.resize))
        check_all(
            *(functools.partial(self._check_given, name) for name in _REQUIRED),
            lambda: flag_values.check_path("data_dir", self.data_dir),
            lambda: flag_values.check_path("source", self.source),
            lambda: flag_values.check_path("image_dir", self.image_dir),
            lambda: self._check_known("image_encoding", _IMAGE_ENCODINGS),
            lambda: self._check_known("compression", naming.COMPRESSIONS),
            lambda: flag_values.check_range("seed", self.seed, 0, _MAX_SEED),
            lambda: flag_values.check_range("passes", self.passes, 1, 2),
            lambda: flag_values.check_range("max_rejects", self.max_rejects, 0, _MAX_SEED),
            lambda: flag_values.check_range("max_shard_bytes", self.max_shard_bytes, 1 << 20, 4 << 30),
            self._check_channels,
            self._check_columns,
            lambda: self.shards_by_split,
            lambda: self.split_fractions,
            self._check_new_splits,
            lambda: self.size,
            self._check_scaled,
            lambda: self.transform and code.parted("--transform", self.transform),
            self._check_append,
            lambda: self.source_options,
        )

    def _check_given(self, name: str) -> None:
        if not getattr(self, name):
            raise UsageError(f"--{name}=: must not be empty; see --help")

    def _check_known(self, name: str, known: Collection[str]) -> None:
        if getattr(self, name) not in known:
            raise unknown(f"--{name}", getattr(self, name), [one for one in known if one])

    def _check_columns(self) -> None:
        if self.are_own_columns:
            return
        columns.check(self.columns, "--columns")
        if "://" in self.data_dir:
            raise UsageError(
                f"--columns={self.columns} with --data_dir={self.data_dir}: columns of a file or function are added "
                "to a local or mounted folder; convert there, then copy all of it"
            )

    def _check_channels(self) -> None:
        if self.channels not in (0, 1, 3):
            raise UsageError(f"--channels={self.channels}: must be 1 or 3")

    def _check_new_splits(self) -> None:
        if self.folds and self.split:
            raise UsageError(f"--folds={self.folds} with --split={self.split}: folds are splits; leave out one of them")
        if self.folds:
            flag_values.check_range("folds", self.folds, 2, _MOST_FOLDS)
        if self.group_by == LABEL:
            raise UsageError(
                f"--group_by={LABEL}: all rows of a class would be in one split; --stratify={LABEL} gives each split "
                "its share of every class"
            )
        if not self.append:  # an append inherits the data set's splits
            self.check_dealt()

    def check_dealt(self) -> None:
        """Raises UsageError if a flag sets how new splits are drawn but none are requested."""
        for name in ("group_by", "stratify"):
            if (value := getattr(self, name)) and not (self.split or self.folds):
                raise UsageError(
                    f"--{name}={value}: says how new splits are drawn; give --split=train:0.8,test:0.2 or --folds=5"
                )

    def _check_scaled(self) -> None:
        if self.scaled_decoding and not self.resize:
            raise UsageError("--scaled_decoding=True: has an effect only on images that are resized; give --resize=HxW")

    def _check_append(self) -> None:
        why = {
            "overwrite": "that replaces the data set with all its versions; give one of them",
            "passes": "the second pass shuffles whole data sets; append with one pass",
            "columns": "a version has the columns of the one before; leave it out, and add others afterwards by "
            f"{name_of('pipeline.index')} --add_columns",
        }
        if self.append and self.data_dir.startswith("hdfs://"):
            raise UsageError(
                f"--append with --data_dir={self.data_dir}: HDFS cannot replace a manifest in one step, as a folder or "
                "an object store can; append in a local or mounted folder, then copy all of it"
            )
        for name, reason in why.items() if self.append else ():
            if (value := getattr(self, name)) != type(self).__dataclass_fields__[name].default:
                raise UsageError(f"--append with --{name}={value}: {reason}")

    @property
    def are_own_columns(self) -> bool:
        """Whether `columns` names only columns of the records, which are made along with the shards."""
        return self.columns == NO_COLUMNS or self.columns.partition(":")[0] == FROM_RECORDS

    @property
    def shards_by_split(self) -> int | dict[str, int] | None:
        """Parsed `num_shards`: one number for all splits, {split: number}, or None for the default."""
        return flag_values.numbers_by_split("num_shards", self.num_shards, MAX_SHARDS)

    @property
    def split_fractions(self) -> dict[str, float]:
        """Parsed `split` or `folds`: {split: fraction}, summing to 1; empty to keep the source's own splits."""
        if self.folds:
            return dict.fromkeys(splits.folds(self.folds), 1 / self.folds)
        return flag_values.fractions("split", self.split)

    @property
    def size(self) -> tuple[int, int] | None:
        """Parsed `resize`: (height, width), or None."""
        sizes = values.sizes("resize", self.resize, 2)
        return (sizes[0], sizes[1]) if sizes else None

    @property
    def source_options(self) -> SourceOptions:
        """The options that concern the source."""
        parsed = {option.name: option.metadata["parse"](option.name, getattr(self, option.name)) for option in _OPTIONS}
        return SourceOptions(**parsed)

    @property
    def shaping_flags(self) -> dict[str, Any]:
        """The flags given that shape the bytes, other than num_shards and seed, for the manifest's options."""
        given = ((field, getattr(self, field.name)) for field in fields_with(self, "shapes"))
        return {field.name: value for field, value in given if value not in (field.default, [])}


_REQUIRED = [flag.name for flag in flags_of(ConvertConfig).values() if flag.is_required]
