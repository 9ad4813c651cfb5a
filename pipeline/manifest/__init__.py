"""The description of a data set: its manifest, names of files, splits and slices, sources of a mixture."""

from pipeline.manifest.manifest import (
    APPENDED_VERSION,
    FORMAT_VERSION,
    LABELS_VERSION,
    MEMBERS_VERSION,
    PACKINGS_VERSION,
    Column,
    Feature,
    Manifest,
    PixelRule,
    ShardInfo,
    SourceFile,
    SplitInfo,
    load,
    parse,
    version_names,
)

__all__ = [
    "APPENDED_VERSION",
    "FORMAT_VERSION",
    "LABELS_VERSION",
    "MEMBERS_VERSION",
    "PACKINGS_VERSION",
    "Column",
    "Feature",
    "Manifest",
    "PixelRule",
    "ShardInfo",
    "SourceFile",
    "SplitInfo",
    "load",
    "parse",
    "version_names",
]
