"""The destination of a conversion: a local folder or an object store, in which the data set appears all at once."""

from __future__ import annotations

from typing import TypeAlias

from beam_jobs.sink.local import LocalSink
from beam_jobs.sink.remote import RemoteSink
from pipeline.files.paths import path_of
from pipeline.files.remote import RemotePath

Sink: TypeAlias = LocalSink | RemoteSink


def sink_of(data_dir: str, extends: str = "", flag: str = "--data_dir") -> Sink:
    """Returns the sink for a local path or a URL; for the other arguments see `LocalSink`."""
    path = path_of(data_dir)
    return RemoteSink(path) if isinstance(path, RemotePath) else LocalSink(path, data_dir, flag, extends)
