import os
import resource
import signal
import subprocess
import sys
import threading

import numpy as np
import pytest

from beam_jobs import drafts
from pipeline.errors import DataError


def test_a_published_file_is_whole_and_alone(tmp_path):
    path = tmp_path / "train-00000-of-00001.tfrecord"
    drafts.publish(path, b"one")
    drafts.publish(path, memoryview(b"other"))
    assert path.read_bytes() == b"other"
    assert os.listdir(tmp_path) == [path.name]


def test_a_write_that_fails_leaves_the_old_file_and_nothing_else(tmp_path):
    program = """
import sys
from beam_jobs import drafts
from pipeline.files.paths import LocalPath
try:
    drafts.publish(LocalPath(sys.argv[1]), bytes(100_000))
except Exception as error:
    print(type(error).__name__, error)
"""
    path = tmp_path / "manifest.json"
    path.write_bytes(b"old")

    def limit():  # the disk takes no more than 50,000 bytes a file
        signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
        resource.setrlimit(resource.RLIMIT_FSIZE, (50_000, 50_000))

    done = subprocess.run(
        [sys.executable, "-B", "-c", program, str(path)], preexec_fn=limit, capture_output=True, text=True, check=True
    )
    assert done.stdout.startswith(f"TransientError {path}: cannot be written: File too large: ")
    assert "50,000 bytes" in done.stdout
    assert path.read_bytes() == b"old"
    assert os.listdir(tmp_path) == ["manifest.json"]


@pytest.mark.parametrize("sync", [True, False])
def test_pieces_are_counted_as_they_are_written(sync, tmp_path):
    pieces = [b"1234", np.frombuffer(b"56789", np.uint8), b""]
    draft = drafts.Draft(tmp_path / "x", iter(pieces))
    draft.publish(sync)
    assert (draft.num_bytes, draft.crc32c) == (9, "e3069283")  # the check value of CRC-32C, RFC 3720
    assert (tmp_path / "x").read_bytes() == b"123456789"
    assert drafts.Draft(tmp_path / "none", []).crc32c == "00000000"


def test_pieces_that_fail_leave_the_old_file_and_nothing_else(tmp_path):
    def pieces():
        yield b"new"
        raise ValueError("no more")

    (tmp_path / "x").write_bytes(b"old")
    with pytest.raises(ValueError, match="no more"):
        drafts.Draft(tmp_path / "x", pieces())
    assert (tmp_path / "x").read_bytes() == b"old"
    assert os.listdir(tmp_path) == ["x"]


def test_only_our_own_temporary_names_are_removed(tmp_path):
    ours = [".train-00003-of-00010.tfrecord.tmp-0123456789abcdef", ".manifest.json.tmp-0123456789abcdef"]
    others = [
        ".train-00003-of-00010.tfrecord.tmp-0123456789abcde",  # 15 digits
        ".train-00003-of-00010.tfrecord.tmp-0123456789ABCDEF",
        ".train-00010-of-00010.tfrecord.tmp-0123456789abcdef",  # no such shard
        ".notes.txt.tmp-0123456789abcdef",
        "train-00003-of-00010.tfrecord.tmp-0123456789abcdef",
        ".train-00003-of-00010.tfrecord",
        "train-00003-of-00010.tfrecord",
    ]
    for name in ours + others:
        (tmp_path / name).write_bytes(b"x")
    drafts.remove_temporaries(tmp_path)
    assert sorted(os.listdir(tmp_path)) == sorted(others)


def test_a_shut_gate_waits_for_a_write_and_lets_no_other_begin(tmp_path):
    gate, inside, finish, shut = drafts.Gate(), threading.Event(), threading.Event(), threading.Event()

    def long_write():
        with gate.passed():
            inside.set()
            finish.wait(10)

    def shutting():
        gate.shut()
        shut.set()

    threads = [threading.Thread(target=long_write), threading.Thread(target=shutting)]
    threads[0].start()
    assert inside.wait(10)
    threads[1].start()
    assert not shut.wait(0.1)
    finish.set()
    assert shut.wait(10)
    with pytest.raises(DataError, match="stopped"), gate.passed():
        pass
    gate.open()
    with gate.passed():
        pass
    for thread in threads:
        thread.join()
