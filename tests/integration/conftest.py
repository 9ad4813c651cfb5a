"""The digits, converted once per run; an S3 server on the loopback interface, and an empty bucket in it."""

from __future__ import annotations

import itertools
import logging
import os
import pathlib
import urllib.request
from collections.abc import Iterator

import filelock
import pytest

from pipeline.files.remote import RemotePath
from tests.helpers.converting import convert_in_process

_NUMBERS = itertools.count()


@pytest.fixture(scope="session")
def digits(tmp_path_factory: pytest.TempPathFactory) -> pathlib.Path:
    """The digits as a data set; tests only read it. All workers of a run share one."""
    base = tmp_path_factory.getbasetemp()
    folder = (base.parent if "PYTEST_XDIST_WORKER" in os.environ else base) / "digits"
    with filelock.FileLock(f"{folder}.lock"):
        if not folder.exists():
            convert_in_process("--dataset=digits", f"--data_dir={folder}")
    return folder


@pytest.fixture(scope="session")
def endpoint() -> Iterator[str]:
    moto_server = pytest.importorskip("moto.server", reason="needs moto, an S3 server: pip install '.[dev]'")
    logging.getLogger("werkzeug").setLevel(logging.ERROR)
    server = moto_server.ThreadedMotoServer(ip_address="127.0.0.1", port=0, verbose=False)
    server.start()
    host, port = server.get_host_and_port()
    yield f"http://{host}:{port}"
    server.stop()


@pytest.fixture
def bucket(endpoint: str, monkeypatch: pytest.MonkeyPatch) -> RemotePath:
    for name, value in (("AWS_ACCESS_KEY_ID", "test"), ("AWS_SECRET_ACCESS_KEY", "test")):
        monkeypatch.setenv(name, value)
    monkeypatch.setenv("AWS_ENDPOINT_URL", endpoint)
    monkeypatch.setenv("AWS_DEFAULT_REGION", "us-east-1")
    name = f"bucket-{next(_NUMBERS)}"
    urllib.request.urlopen(urllib.request.Request(f"{endpoint}/{name}", method="PUT"))
    return RemotePath(f"s3://{name}")
