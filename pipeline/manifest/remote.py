"""Files that a URL names: `s3://` and `hdfs://` are read by pyarrow, all others (`gs://`, `ram://`) by `tf.io.gfile`.

TensorFlow has no `s3://` and no `hdfs://` any more, and tensorflow-io, which adds them, does not load beside 2.21.
"""

from __future__ import annotations

import datetime
import functools
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from pyarrow import fs

_OF_ARROW = ("s3", "hdfs")
_S3_LIMITS = {"connect_timeout": 5, "request_timeout": 30}  # seconds; a URL cannot set them
_S3_ATTEMPTS = 3
_GCS_LIMIT = datetime.timedelta(seconds=30)


def is_of_arrow(url: str) -> bool:
    """Returns whether pyarrow reads a URL; options of the store may then follow a `?`."""
    return url.partition("://")[0] in _OF_ARROW


def size_and_time(url: str) -> tuple[int, int]:
    """Returns a file's size in bytes and the time of its last change in ns.

    Raises:
      FileNotFoundError: there is no such file.
      Exception: pyarrow's or TensorFlow's, of any other kind.
    """
    if not is_of_arrow(url):
        return _of_gfile(url)
    system, path = _system(url)
    info = system.get_file_info(path)
    if not info.is_file:
        raise FileNotFoundError(2, "No such file or directory", url)
    return int(info.size), int(info.mtime_ns or 0)


def opened(url: str) -> Any:
    """Returns a file with `seek`, `read` and `close`; raises as `size_and_time`."""
    if not is_of_arrow(url):
        return _gfile().GFile(url, "rb")
    system, path = _system(url)
    return system.open_input_file(path)


def _of_gfile(url: str) -> tuple[int, int]:
    from tensorflow import errors  # noqa: PLC0415, only these folders need it

    try:
        status = _gfile().stat(url)
    except errors.NotFoundError as error:
        raise FileNotFoundError(2, error.message, url) from None
    return int(status.length), int(status.mtime_nsec)


def _gfile() -> Any:
    import tensorflow as tf  # noqa: PLC0415, only these folders need it

    return tf.io.gfile


def _system(url: str) -> tuple[fs.FileSystem, str]:
    base, question, query = url.partition("?")
    scheme, _, rest = base.partition("://")
    authority, _, path = rest.partition("/")
    system, root = arrow_root(f"{scheme}://{authority}{question}{query}")
    return system, f"{root.rstrip('/')}/{path}"


@functools.lru_cache(maxsize=8)  # connecting takes longer than a small read
def arrow_root(url: str) -> tuple[fs.FileSystem, str]:
    """Returns pyarrow's file system of a store's URL, with limits on time, and the path in it.

    Raises:
      OSError: pyarrow is not installed, or does not know the URL.
    """
    try:
        from pyarrow import fs  # noqa: PLC0415, pip installs it for conversion, or for these URLs
    except ImportError:
        raise OSError("needs pyarrow, which is not installed: pip install 'stepfeed[remote]'") from None
    system, path = fs.FileSystem.from_uri(url)
    if isinstance(system, fs.S3FileSystem):  # by default it retries for long, and may wait forever
        _, (options, *_) = system.__reduce__()
        attempts = fs.AwsStandardS3RetryStrategy(max_attempts=_S3_ATTEMPTS)
        # Delayed: under 10 MiB are one request, not a multipart upload, which a kill leaves and pyarrow cannot list.
        options |= {**_S3_LIMITS, "retry_strategy": attempts, "allow_delayed_open": True}
        system = fs.S3FileSystem(**options)
    elif isinstance(system, fs.GcsFileSystem):  # by default it retries for 15 minutes, in which no signal is answered
        _, (options, *_) = system.__reduce__()
        system = fs.GcsFileSystem(**{**options, "retry_time_limit": options["retry_time_limit"] or _GCS_LIMIT})
    return system, path
