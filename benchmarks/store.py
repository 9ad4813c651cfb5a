"""A data set in an S3 server on this machine, in a process of its own, for pyarrow to read."""

from __future__ import annotations

import contextlib
import os
import pathlib
import socket
import subprocess
import sys
import time
import urllib.error
import urllib.request
from collections.abc import Iterator

from pipeline.commands import commandline
from pipeline.files.remote import RemotePath

_SECONDS = 60.0  # for the server to start


@contextlib.contextmanager
def served(data_dir: str) -> Iterator[str]:
    """Context of the URL of a data set's copy, in an S3 server that keeps it in memory.

    Raises:
      UsageError: pyarrow or moto is missing.
    """
    commandline.require("pyarrow", "moto")
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    endpoint = f"http://127.0.0.1:{port}"
    os.environ |= {"AWS_ACCESS_KEY_ID": "test", "AWS_SECRET_ACCESS_KEY": "test", "AWS_DEFAULT_REGION": "us-east-1"}
    os.environ["AWS_ENDPOINT_URL"] = endpoint
    command = [sys.executable, "-m", "moto.server", "-H", "127.0.0.1", "-p", str(port)]
    server = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    try:
        _make_bucket(f"{endpoint}/benchmark")
        url = "s3://benchmark/data"
        for path in pathlib.Path(data_dir).rglob("*"):
            if path.is_file():
                (RemotePath(url) / path.relative_to(data_dir).as_posix()).write_bytes(path.read_bytes())
        yield url
    finally:
        server.kill()
        server.wait()


def _make_bucket(url: str) -> None:
    """Creates a bucket once the server listens."""
    deadline = time.monotonic() + _SECONDS
    while True:
        try:
            with urllib.request.urlopen(urllib.request.Request(url, method="PUT")):
                return
        except urllib.error.URLError:
            if time.monotonic() > deadline:
                raise
            time.sleep(0.1)
