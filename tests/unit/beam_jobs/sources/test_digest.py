import hashlib
import os
import pathlib
import subprocess
import sys
import time

import pytest

from beam_jobs.sources import digest
from beam_jobs.storage.paths import LocalPath
from pipeline.errors import DataError
from pipeline.manifest import SourceFile

ROOT = pathlib.Path(__file__).parents[4]
EMPTY = "e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855"  # of no byte, FIPS 180-4


def test_files_are_described_in_their_order_whatever_thread_reads_them(tmp_path):
    contents = [os.urandom(size) for size in [0, 1, 3 << 20, (1 << 20) - 1, 1 << 20, *range(200, 300)]]
    files = []
    for number, data in enumerate(contents):
        path = tmp_path / f"{number}.bin"
        path.write_bytes(data)
        files.append((f"folder/{number}", LocalPath(path)))
    described = digest.describe(files)
    assert described[0] == SourceFile("folder/0", 0, EMPTY)
    assert described == tuple(
        SourceFile(f"folder/{n}", len(data), hashlib.sha256(data).hexdigest()) for n, data in enumerate(contents)
    )


def test_a_missing_file_a_folder_and_a_pipe_are_one_line_errors(tmp_path):
    there = LocalPath(tmp_path / "there")
    there.write_bytes(b"x" * (5 << 20))
    os.mkfifo(tmp_path / "pipe")
    for name, problem in (("gone", "no such file"), (".", "is not a regular file"), ("pipe", "is not a regular file")):
        with pytest.raises(DataError) as raised:
            digest.describe([("a", there), ("b", LocalPath(tmp_path / name)), ("c", there)])
        assert str(raised.value) == f"{tmp_path / name}: {problem}"


def test_an_unreadable_file_ends_the_other_threads_early(tmp_path):
    """The unreadable one is found while a file of 64 GiB (a hole, which no disk holds) is being read."""
    large = LocalPath(tmp_path / "large")
    with open(large, "wb") as stream:
        stream.truncate(64 << 30)
    began = time.monotonic()
    with pytest.raises(DataError, match=r"/proc/self/mem: cannot be read: Input/output error"):
        digest.describe([("a", large), ("b", LocalPath("/proc/self/mem"))])
    assert time.monotonic() - began < 10


def test_no_bar_is_drawn_where_stderr_is_no_terminal(tmp_path):
    path = tmp_path / "large"
    with open(path, "wb") as stream:
        stream.truncate(64 << 20)
    program = (
        "from beam_jobs.storage.paths import LocalPath; from beam_jobs.sources import digest;"
        "digest._SECONDS_WITHOUT_BAR = 0.0;"
        f"print(digest.describe([('a', LocalPath({str(path)!r}))])[0].num_bytes)"
    )
    done = subprocess.run([sys.executable, "-c", program], cwd=ROOT, capture_output=True, text=True, check=True)
    assert (done.stdout, done.stderr) == ("67108864\n", "")
