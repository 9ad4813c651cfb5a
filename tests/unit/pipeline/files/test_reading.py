"""Folders of this machine, and those that TensorFlow opens: `ram://` stands for the object stores."""

import os
import pathlib
import socket

import pytest
import tensorflow as tf

from pipeline import manifest as manifests
from pipeline.errors import DataError
from pipeline.files import reading
from pipeline.files.paths import folder, path_of
from tests.helpers.datasets import to_memory, write_dataset
from tests.helpers.raised import at


@pytest.fixture(params=["local", "remote"])
def place(request, tmp_path):
    """A folder with the file `x`."""
    (tmp_path / "x").write_bytes(b"0123456789")
    return folder(tmp_path if request.param == "local" else to_memory(tmp_path, f"storage{os.getpid()}"))


def test_files_are_read_anywhere(place):
    file = place / "x"
    assert str(file) == f"{place}/x"
    assert file.is_remote == str(place).startswith("ram://")
    with file.open_file() as opened:
        assert bytes(opened.read_at(3, 4)) == b"3456"
        assert bytes(opened.read_at(0, 10)) == b"0123456789"
        assert bytes(opened.read_at(9, 0)) == b""
        view = memoryview(bytearray(b"--------"))
        opened.read_into(view[2:5], 7)
        assert bytes(view) == b"--789---"
        assert opened.identity() == file.identity()
    assert file.identity().num_bytes == 10
    assert file.read_text() == "0123456789"


def test_the_end_of_a_file_is_an_error_that_says_where(place):
    with (place / "x").open_file() as file:
        with pytest.raises(DataError, check=at("/x", "10", "11")):
            file.read_at(0, 11)
        with pytest.raises(DataError, check=at("/x", "10", "12")):
            file.read_at(8, 4)


def test_a_missing_file_is_an_error_that_says_so(place):
    file = place / "y"
    for function in (file.identity, lambda: file.open_file().read_at(0, 1)):
        with pytest.raises(DataError, check=at("/y")):
            function()
    with pytest.raises(FileNotFoundError):
        file.read_text()


def test_a_folder_is_no_file(tmp_path):
    (tmp_path / "sub").mkdir()
    with pytest.raises(DataError, check=at("sub", "Is a dir")):
        (folder(tmp_path) / "sub").open_file().read_at(0, 1)


@pytest.mark.parametrize(
    "read",
    [
        lambda path: path.read_bytes(),
        lambda path: path.read_text(),
        lambda path: path.open_file(),
        lambda path: path.open("rb", buffering=0),
        lambda path: path.open_native(),
        reading.content_of,
    ],
)
def test_what_is_no_regular_file_is_refused_at_once(tmp_path, read, monkeypatch):
    """Opening a FIFO waits for a writer; a socket and a device have no content that ends."""
    monkeypatch.chdir(tmp_path)
    os.mkfifo("fifo")
    with socket.socket(socket.AF_UNIX) as bound:
        bound.bind("socket")
        for path in (tmp_path / "fifo", tmp_path / "socket", pathlib.Path("/dev/zero")):
            with pytest.raises((OSError, DataError), match="not a regular file"):
                read(folder(path))
    (tmp_path / "file").write_bytes(b"abc")
    with open(tmp_path / "file", "rb", opener=reading.opener) as file:
        assert file.read() == b"abc"


def test_local_files_are_not_kept_open(tmp_path):
    (tmp_path / "x").write_bytes(b"abc")
    before = len(os.listdir("/proc/self/fd"))
    for _ in range(20):
        with (folder(tmp_path) / "x").open_file() as file:
            file.read_at(0, 3)
        with pytest.raises(DataError), (folder(tmp_path) / "x").open_file() as file:
            file.read_at(0, 4)
    assert len(os.listdir("/proc/self/fd")) == before


def test_a_file_that_may_not_be_read_is_named(tmp_path, monkeypatch):
    (tmp_path / "x").write_bytes(b"abc")

    def refuse(path, flags):
        raise PermissionError(13, "Permission denied", path)

    monkeypatch.setattr(reading.os, "open", refuse)  # the tests may run as root, who may read all
    with pytest.raises(DataError, check=at("/x", "Permission denied")):
        (folder(tmp_path) / "x").open_file()


def test_a_remote_manifest_is_the_local_one(tmp_path):
    write_dataset(tmp_path)
    url = to_memory(tmp_path, "storage_manifest")
    assert manifests.load(url) == manifests.load(tmp_path)
    tf.io.gfile.remove(f"{url}/manifest.json")
    with pytest.raises(DataError, check=at(f"{url}/manifest.json", "no manifest")):
        manifests.load(url)


def test_a_url_that_tensorflow_cannot_open_is_one_line():
    with pytest.raises(DataError, check=at("nowhere://b/d/manifest.json", "'nowhere'")):
        manifests.load("nowhere://b/d")


def test_a_store_that_refuses_is_named_once():
    for data_dir in ("s3://key:secret@b/d?nonsense=1", path_of("s3://key:secret@b/d?nonsense=1")):
        with pytest.raises(DataError, match=r"^s3://b/d/manifest.json: [^:]*: [^:]*: 'nonsense'$"):
            manifests.load(data_dir)
