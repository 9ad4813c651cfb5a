import itertools
import os
import pathlib
import re
import subprocess
import sys
import threading

import numpy as np
import pytest

from beam_jobs.sources import row_files, streams
from beam_jobs.sources.row_files import RowFile
from pipeline.errors import DataError
from pipeline.files.paths import LocalPath
from tests.helpers.raised import at

ROOT = pathlib.Path(__file__).parents[4]


@pytest.mark.parametrize("length", [1, 7, 255, 256, 3073])
@pytest.mark.parametrize("start", [0, 16])
def test_rows_come_in_the_order_asked_for(length, start, monkeypatch):
    monkeypatch.setattr(streams, "BLOCK", 4096)  # so that rows lie in many spans
    values = np.random.default_rng(0).integers(0, 256, (500, length), np.uint8)
    handle = streams.spool([bytes(start), values.tobytes(), b"after"])
    draw = np.random.default_rng(1)
    for rows in (draw.permutation(500), draw.integers(0, 500, 80), np.array([499]), np.array([], np.int64)):
        out = np.zeros((len(rows), length), np.uint8)
        row_files.gather(handle, start, rows, out)
        assert (out == values[rows]).all()


def test_rows_of_several_files_go_to_their_places():
    values = np.random.default_rng(0).integers(1, 256, (2, 10, 7), np.uint8)
    one, other = (streams.spool([each.tobytes()]) for each in values)
    out = np.zeros((6, 7), np.uint8)
    handles = [other.fileno(), one.fileno(), one.fileno()]
    row_files.fill(out, np.array([5, 0, 3]), handles, [9 * 7, 2 * 7, 2 * 7])
    assert (out[[5, 0, 3]] == values[[1, 0, 0], [9, 2, 2]]).all()
    assert not out[[1, 2, 4]].any()
    with pytest.raises(EOFError):
        row_files.fill(out, np.array([0, 1]), [one.fileno()] * 2, [0, 9 * 7 + 1])


@pytest.mark.parametrize("length", [7, 3073])
def test_rows_that_are_not_there_are_told(length):
    handle = streams.spool([bytes(10 * length - 1)])
    row_files.gather(handle, 0, np.array([8, 0]), np.empty((2, length), np.uint8))
    with pytest.raises(EOFError):
        row_files.gather(handle, 0, np.array([9, 0]), np.empty((2, length), np.uint8))


def test_open_files_are_few_and_those_in_use_stay_open(tmp_path):
    files = []
    for i in range(40):
        path = LocalPath(tmp_path / f"{i}")
        path.write_bytes(bytes([i]))
        files.append(RowFile(path, streams.stamp(path), streams.entry_of(path.name, streams.open_plain(path)), (1, 1)))
    before = len(os.listdir("/proc/self/fd"))
    with files[0].opened() as first:
        for i, file in enumerate(files):
            with file.opened() as handle:
                assert os.pread(handle.fileno(), 9, 0) == bytes([i])
            del handle
        assert len(os.listdir("/proc/self/fd")) - before <= 17
        assert os.pread(first.fileno(), 9, 0) == b"\0"


def test_a_packed_file_is_unpacked_once_by_many_threads(tmp_path):
    file = streams.entry_of("a", streams.spool([b"abc"]))
    count = itertools.count()

    def unpack():
        next(count)
        one.keep(streams.spool([b"abc"]))

    one = RowFile(LocalPath(tmp_path / "a.gz"), (0, 0), file, (3, 1), unpack=unpack)

    def read():
        with one.opened() as handle:
            assert os.pread(handle.fileno(), 9, 0) == b"abc"

    threads = [threading.Thread(target=read) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert next(count) == 1


def test_where_names_the_archive_and_the_file_in_it():
    file = streams.entry_of("data_batch_1", streams.spool([b""]))
    for path, where in (
        ("/x/data_batch_1", "/x/data_batch_1"),
        ("/x/data_batch_1.gz", "/x/data_batch_1.gz"),
        ("/x/cifar.tar.gz", "/x/cifar.tar.gz: data_batch_1"),
    ):
        assert RowFile(LocalPath(path), (0, 0), file, (0, 1)).where == where


def test_a_temporary_folder_without_room_is_named():
    script = """
import resource
from beam_jobs.sources import streams
resource.setrlimit(resource.RLIMIT_FSIZE, (1 << 20, 1 << 20))
streams.spool([bytes(1 << 20), b"and more"])
"""
    done = subprocess.run([sys.executable, "-B", "-c", script], cwd=ROOT, capture_output=True, text=True, check=False)
    said = "cannot hold the unpacked source: File too large: .*; make room, or set TMPDIR to a folder"
    assert re.search(said, done.stderr)


def test_no_temporary_folder_is_told(tmp_path, monkeypatch):
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path / "no"))
    with pytest.raises(DataError, check=at("no", "No such file or directory")):
        streams.spool([b"abc"])
