"""Makes an append follow the data set that it extends: options not given, labels, and the form of images.

A version is read like any other data set, so its records must be alike, whichever conversion wrote them.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Collection
from typing import Any

from beam_jobs.config import ConvertConfig
from beam_jobs.examples.selection import ImageOptions
from beam_jobs.sources import transformed
from beam_jobs.sources.appended import AppendedSource, added_classes
from beam_jobs.sources.base import Source, SourceOptions
from pipeline.commands.text import shape_of
from pipeline.errors import UsageError
from pipeline.manifest import Manifest, PixelRule

_FOLLOWED = ("resize", "channels", "compression", "scaled_decoding", "transform")  # options that the data set decides
_DEALT = ("split", "folds", "group_by", "stratify")  # options of new splits, inherited together
_ENCODINGS = {"any": ("png", "jpeg")}  # stored encoding to values of --image_encoding


@dataclasses.dataclass(frozen=True)
class Base:
    """The version of a data set that a conversion appends to.

    Attributes:
      digest: digest of the version's manifest.
      version: number of the version.
    """

    digest: str
    version: int


def options_for(config: ConvertConfig, parent: Manifest) -> ConvertConfig:
    """Returns the options of an append; those not given are taken from the data set.

    Raises:
      UsageError: no conversion made the data set, or an option contradicts the data set's.
    """
    if not parent.has_images or parent.is_in_place or not parent.source:
        raise UsageError(
            f"--append: {config.data_dir} was not made by a conversion, so its records may lack the keys that show "
            "which rows are already there; convert all of it into another folder"
        )
    given = {field.name: field.default for field in dataclasses.fields(config)}
    found: dict[str, Any] = {}
    for name in _FOLLOWED:
        there, here = parent.options.get(name, given[name]), getattr(config, name)
        if here == given[name]:
            found[name] = there
        elif here != there and not (name == "resize" and there == given[name]):  # resizing may make images fit
            said = "not given" if there == given[name] else there
            raise UsageError(f"--append with --{name}={here}: it is {said} in the data set; leave it out")
    if edits := transformed.edits(parent.options):
        raise UsageError(
            f"--append: {', '.join(edits)} since --transform={parent.options['transform']} made the data set, so new "
            "rows may differ from the existing ones; restore the code as it was, or convert everything with --overwrite"
        )
    dealt = {name: parent.options.get(name, given[name]) for name in _DEALT}
    if dealt["group_by"]:
        found |= dealt | {"seed": _seed_of_groups(config, parent, dealt, given)}
    elif all(getattr(config, name) in (given[name], dealt[name]) for name in _DEALT):
        found |= dealt
    stored = parent.features["image"].encoding or ""
    known, encoding = _ENCODINGS.get(stored, (stored,)), config.image_encoding
    if encoding == given["image_encoding"]:
        found["image_encoding"] = "raw" if stored == "raw" else parent.options.get("image_encoding", encoding)
    elif encoding not in known:
        raise UsageError(
            f"--append with --image_encoding={encoding}: the images of the data set are {' and '.join(known)}; leave "
            "it out"
        )
    followed = dataclasses.replace(config, **found)
    followed.check_dealt()
    return followed


def notes_about(config: ConvertConfig, source: Source, parent: Manifest) -> list[str]:
    """Returns notes on what an append adds, given the options from `options_for` and the rows."""
    found = added_classes(source, parent)
    if config.group_by and not parent.options.get("group_by"):
        found.append(
            f"note: --group_by={config.group_by} holds for the new rows; those that are there were not dealt by it, so "
            "a group that is among them, too, may be in two splits"
        )
    key = parent.options.get("key_column")
    if key and not config.key_column and config.dataset in _takers("key_column"):
        found.append(
            f"warning: the data set has keys of --key_column={key}, and the new rows those of their places, by which "
            f"rows that are there are not found; --key_column={key} compares them"
        )
    return found


def _takers(option: str) -> Collection[str]:
    (takers,) = (field.metadata["takers"] for field in dataclasses.fields(SourceOptions) if field.name == option)
    return takers  # type: ignore[no-any-return]


def _seed_of_groups(config: ConvertConfig, parent: Manifest, dealt: dict[str, Any], given: dict[str, Any]) -> int:
    """Returns the seed that assigned the data set's groups to splits, so that new rows of a group join its split."""
    group_by, seed = dealt["group_by"], int(parent.options.get("seed", given["seed"]))
    if dealt["stratify"]:
        raise UsageError(
            f"--append: --group_by={group_by} with --stratify={dealt['stratify']} assigned the groups of the data "
            "set to splits in the order of its rows, so new rows of a group could get into another split than its "
            "existing rows; convert all rows together into another folder"
        )
    for name, there in {**dealt, "seed": seed}.items():
        here = getattr(config, name)
        if here not in (given[name], there):
            raise UsageError(
                f"--append with --{name}={here}: --group_by={group_by} assigned the groups of the data set to splits "
                f"by {name} {there if there != given[name] or name == 'seed' else '(not given)'}; another {name} would "
                "put a group in two splits; leave it out"
            )
    return seed


def source_for(config: ConvertConfig, source: Source, parent: Manifest) -> tuple[ConvertConfig, Source]:
    """Returns the options and the rows of an append, given the source that they come from.

    Raises:
      UsageError: features, labels or defaults of the source differ from the data set's.
    """
    for text in parent.options.get("default", ()) if config.dataset in _takers("default") else ():
        name = next((name for name in source.features if text.startswith(f"{name}:")), None)
        if name is not None and not any(own.startswith(f"{name}:") for own in config.default):
            # An empty CSV field would be a different text from the default in the existing rows.
            raise UsageError(
                f"--append: in the data set, nulls of {name!r} are replaced by --default={text}; give it again"
            )
    stored = parent.features["image"].encoding
    if source.image_shape is not None and stored != "raw" and config.image_encoding == "source":
        config = dataclasses.replace(config, image_encoding="jpeg" if stored == "jpeg" else "png")
    channels = len(parent.image_mean)
    if config.image_encoding != "source" and not config.channels and channels in (1, 3):
        config = dataclasses.replace(config, channels=channels)
    return config, AppendedSource.of(source, parent)


def images_for(options: ImageOptions, parent: Manifest) -> ImageOptions:
    """Returns the image options under which a data set was stored.

    Raises:
      UsageError: its images have another size, or were decoded by the rule of an earlier release.
    """
    there = parent.features["image"]
    if options.encoding != "raw" and parent.pixel_rule != PixelRule():
        raise UsageError(
            f"--append: images of the data set are {parent.pixels.words}, by the rule of an earlier release, and new "
            f"ones would be {PixelRule().words}; convert all of them again, with --overwrite"
        )
    if options.shape is not None and options.shape != there.shape:
        height, width = there.shape[:2]
        stored = shape_of(tuple(side or 0 for side in there.shape))
        raise UsageError(
            f"--append: images of the data set are {stored}, those of the source {shape_of(options.shape)}; "
            f"give --resize={height}x{width}"
        )
    return dataclasses.replace(options, channels=len(parent.image_mean), like=there)
