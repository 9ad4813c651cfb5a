"""The description of a data set: its manifest, names of files, splits and slices, sources of a mixture."""

from pipeline.manifest.loading import gone_in, load, parse, version_names
from pipeline.manifest.manifest import (
    APPENDED_VERSION,
    EDITED_VERSION,
    FORMAT_VERSION,
    LABELS_VERSION,
    MEMBERS_VERSION,
    PACKINGS_VERSION,
    Column,
    Edit,
    Feature,
    Gone,
    Manifest,
    PixelRule,
    ShardInfo,
    SourceFile,
    SplitInfo,
)

__all__ = [
    "APPENDED_VERSION",
    "EDITED_VERSION",
    "FORMAT_VERSION",
    "LABELS_VERSION",
    "MEMBERS_VERSION",
    "PACKINGS_VERSION",
    "Column",
    "Edit",
    "Feature",
    "Gone",
    "Manifest",
    "PixelRule",
    "ShardInfo",
    "SourceFile",
    "SplitInfo",
    "gone_in",
    "load",
    "parse",
    "version_names",
]
