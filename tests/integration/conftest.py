"""Digits and a run on them, made once for all workers; numbers; commands in this process; an S3 server."""

from __future__ import annotations

import importlib
import itertools
import logging
import os
import pathlib
import urllib.request
from collections.abc import Callable, Iterator

import filelock
import pytest

from pipeline.commands import commandline
from pipeline.files.remote import RemotePath
from pipeline.index import __main__ as index
from pipeline.records import framing, tf_example
from tests.helpers.converting import convert_in_process

_NUMBERS = itertools.count()


@pytest.fixture(scope="session")
def digits(tmp_path_factory: pytest.TempPathFactory) -> pathlib.Path:
    """The digits as a data set; tests only read it."""
    folder = _shared(tmp_path_factory) / "digits"
    with filelock.FileLock(f"{folder}.lock"):
        if not folder.exists():
            convert_in_process("--dataset=digits", f"--data_dir={folder}")
    return folder


@pytest.fixture(scope="session")
def lenet(digits: pathlib.Path, tmp_path_factory: pytest.TempPathFactory) -> tuple[pathlib.Path, str]:
    """A run of 60 steps on the digits, with checkpoints 20, 40 and 60, and what it printed; tests only read it."""
    from tests.helpers import runs  # which loads TensorFlow

    folder = _shared(tmp_path_factory) / "lenet"
    flags = ("--model=lenet", "--augment=shift", "--train_steps=60", "--ema=0.9", "--eval_flip", "--log_every=0")
    with filelock.FileLock(f"{folder}.lock"):
        if not (folder / "printed").exists():
            every = ("--checkpoint_every=20", "--eval_every=20", "--streams=4")
            printed = runs.train(digits, folder / "run", *flags, *every)
            (folder / "printed").write_text(printed)
    return folder / "run", (folder / "printed").read_text()


@pytest.fixture(scope="session")
def numbered(tmp_path_factory: pytest.TempPathFactory) -> pathlib.Path:
    """13 indexed records that hold their number, `id`, and nothing else; tests only read them."""
    folder = tmp_path_factory.mktemp("numbered")
    records = [framing.frame(tf_example.encode({"id": number})) for number in range(13)]
    (folder / "all.rec").write_bytes(b"".join(records))
    index.main([str(folder), "--split=train:all.rec"])
    return folder


def _shared(factory: pytest.TempPathFactory) -> pathlib.Path:
    """Returns the folder of the temporary files of all workers."""
    base = factory.getbasetemp()
    return base.parent if "PYTEST_XDIST_WORKER" in os.environ else base


@pytest.fixture
def command(capsys: pytest.CaptureFixture[str]) -> Callable[..., tuple[int, str, str]]:
    """Returns a function that runs a command as its program does, in this process: (exit code, stdout, stderr)."""

    def command(name: str, *arguments: object) -> tuple[int, str, str]:
        module = importlib.import_module(f"{name}.__main__" if name.startswith("pipeline.") else name)
        capsys.readouterr()
        with pytest.raises(SystemExit) as ended:
            commandline.run(name, module.main, [str(argument) for argument in arguments])
        return (ended.value.code, *capsys.readouterr())

    return command


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
