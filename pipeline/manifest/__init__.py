"""What a data set says of itself: names of files, the manifest, splits and slices."""

from pipeline.manifest.file import load, parse
from pipeline.manifest.manifest import (
    FORMAT_VERSION,
    MEMBERS_VERSION,
    Feature,
    Manifest,
    ShardInfo,
    SourceFile,
    SplitInfo,
)

__all__ = [
    "FORMAT_VERSION",
    "MEMBERS_VERSION",
    "Feature",
    "Manifest",
    "ShardInfo",
    "SourceFile",
    "SplitInfo",
    "load",
    "parse",
]
