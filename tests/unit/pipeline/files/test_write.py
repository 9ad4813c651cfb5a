"""Files that are written whole, and locks."""

import os

import pytest

from pipeline.files import write
from pipeline.files.paths import locked, share_lock, try_lock


def writes(path, data, fails=False):
    with write.replaced(path) as file:
        file.write(data)
        assert path.read_bytes() == b"old"  # until the end of the block
        if fails:
            raise KeyboardInterrupt


def test_a_reader_sees_the_old_file_until_the_new_one_is_complete(tmp_path):
    (tmp_path / "x").write_bytes(b"old")
    with pytest.raises(KeyboardInterrupt):
        writes(tmp_path / "x", b"half", fails=True)
    assert (os.listdir(tmp_path), (tmp_path / "x").read_bytes()) == (["x"], b"old")
    writes(tmp_path / "x", b"new")
    assert (os.listdir(tmp_path), (tmp_path / "x").read_bytes()) == (["x"], b"new")


@pytest.mark.parametrize("data", ["naïve", "naïve".encode()])
def test_what_a_killed_writer_left_is_overwritten(data, tmp_path):
    (tmp_path / "x.tmp").write_bytes(b"much longer, and of a killed process")
    write.replace(tmp_path / "x", data)
    assert (os.listdir(tmp_path), (tmp_path / "x").read_text(encoding="utf-8")) == (["x"], "naïve")


@pytest.mark.parametrize(("sync", "synced"), [(True, 1), (False, 0)])
def test_content_is_synced_where_it_is_to_outlast_the_machine(sync, synced, tmp_path, monkeypatch):
    calls = []
    monkeypatch.setattr(write.os, "fsync", lambda file: calls.append(os.fstat(file).st_size))
    with write.replaced(tmp_path / "x", sync=sync) as file:
        file.write(b"123")
    assert calls == [3] * synced  # once its buffer is flushed


def test_a_file_that_cannot_have_its_name_leaves_nothing(tmp_path):
    (tmp_path / "x" / "y").mkdir(parents=True)
    with pytest.raises(IsADirectoryError):
        write.replace(tmp_path / "x", "data")
    assert os.listdir(tmp_path) == ["x"]


def test_a_lock_is_held_until_it_is_closed_and_may_be_shared(tmp_path):
    """Also of a folder, which is only open for reading."""

    def opened():
        return os.open(tmp_path, os.O_RDONLY)

    with locked(opened()) as is_free, locked(opened()) as is_free_too:
        assert (is_free, is_free_too) == (True, False)
    first, second = opened(), opened()
    assert try_lock(first)
    assert not try_lock(second, shared=True)
    share_lock(first)
    assert try_lock(second, shared=True)
    assert not try_lock(second)
    for descriptor in (first, second):
        os.close(descriptor)
    with locked(opened()) as is_free:
        assert is_free
