"""Snapshots as plain text, one file per test or case, which a diff shows line by line."""

from __future__ import annotations

from syrupy.extensions.single_file import SingleFileSnapshotExtension, WriteMode


class Text(SingleFileSnapshotExtension):
    """One text file per test."""

    _write_mode = WriteMode.TEXT
    file_extension = "txt"
