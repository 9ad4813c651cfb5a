"""The shards of a selection: missing, cut or rewritten ones are named, before and between reads."""

import gc
import multiprocessing
import os
import pathlib
import shutil
import subprocess
import sys
import threading
import time
import weakref
from concurrent.futures import ProcessPoolExecutor, ThreadPoolExecutor

import pytest

from pipeline import manifest as manifests
from pipeline.errors import DataError
from pipeline.manifest import naming
from pipeline.manifest.splits import select
from pipeline.read import shards as read
from pipeline.read.corruption import Corruption
from pipeline.read.shards import LOCAL_THREADS, Shards
from tests.helpers.datasets import to_memory, write_dataset
from tests.helpers.raised import at

ROOT = pathlib.Path(__file__).resolve().parents[4]
FILE = "train-00003-of-00004.tfrecord"


@pytest.fixture
def folder(tmp_path):
    write_dataset(tmp_path)
    return tmp_path


def shards_of(folder, split="train", policy="raise"):
    segments = select(manifests.load(folder), split).segments
    return Shards.found(folder, segments, Corruption(str(folder), policy))


def test_missing_cut_and_longer_shards_are_named_before_anything_is_read(folder):
    path, shards = folder / FILE, manifests.load(folder).splits["train"].shards
    whole = path.read_bytes()
    found = read.check_present(folder, shards)
    assert [identity.num_bytes for identity in found] == [shard.num_bytes for shard in shards]
    for changed in (whole[:-1], whole + b"\0", b""):
        path.write_bytes(changed)
        with pytest.raises(DataError, check=at(path, len(changed), len(whole))):
            read.check_present(folder, shards)
    path.unlink()
    with pytest.raises(DataError, check=at(path, "the manifest lists this shard", "No such file")):
        shards_of(folder)
    path.mkdir()
    with pytest.raises(DataError, check=at(path, len(whole))):
        shards_of(folder)


def write_again(path):
    data = path.read_bytes()
    path.write_bytes(data)
    os.utime(path, ns=(1, 1))


def replace(path):
    shutil.copy2(path, path.with_suffix(".new"))
    os.replace(path.with_suffix(".new"), path)


@pytest.mark.parametrize(
    ("change", "fact"),
    [
        (write_again, "written again"),
        (replace, "written again"),
        (lambda path: os.truncate(path, 7), "7 bytes instead of 666"),
        (lambda path: os.truncate(path, 700), "700 bytes instead of 666"),
        (lambda path: path.unlink(), "No such file"),
    ],
    ids=["written again", "replaced by an equal file", "cut", "longer", "gone"],
)
def test_what_happens_to_a_file_between_two_reads_is_named(folder, change, fact):
    shards = shards_of(folder)
    last = len(shards.segments) - 1
    with shards.opened(last) as file:
        first = bytes(file.read_at(0, 12))
    with shards.opened(last) as file:
        assert bytes(file.read_at(0, 12)) == first
    change(folder / FILE)
    with pytest.raises(DataError, check=at(FILE, fact, record=None)), shards.opened(last):
        pass
    # What was opened before is whole, or what is found corrupt in it is put down to the change.
    for policy in ("raise", "skip"):
        again = Shards(shards.data_dir, shards.segments, Corruption(str(folder), policy), shards.identities)
        with pytest.raises(DataError, check=at(FILE, fact, record=None)):
            again.corrupt(last, 0, 0, "the record's CRC is wrong")


def test_a_remote_folder_is_checked_alike(folder):
    url = to_memory(folder, "checked")
    segments = select(manifests.load(folder), "train").segments
    shards = Shards.found(url, segments, Corruption(url))
    with shards.opened(0) as file:
        assert bytes(file.read_at(12, 5)) == (folder / "train-00000-of-00004.tfrecord").read_bytes()[12:17]
    import tensorflow as tf

    for name in (naming.crcs_name(FILE), FILE):
        tf.io.gfile.remove(f"{url}/{name}")
    with pytest.raises(DataError, check=at(f"{url}/{FILE}", "the manifest lists this shard")):
        Shards.found(url, segments, Corruption(url))
    with pytest.raises(DataError, check=at(f"{url}/{FILE}", "cannot be read")), shards.opened(2):
        pass


AT_EXIT = """
import atexit
from pipeline.read.shards import in_parallel

atexit.register(lambda: print(in_parallel(abs, [-1, -2])))
print(in_parallel(abs, [-1]))
"""


def test_reading_goes_on_while_the_interpreter_ends():
    done = subprocess.run([sys.executable, "-c", AT_EXIT], cwd=ROOT, capture_output=True, text=True, check=False)
    assert (done.returncode, done.stdout, done.stderr) == (0, "[1]\n[1, 2]\n", "")


def test_the_first_error_in_order_is_raised_and_no_task_begins_after_one():
    begun = []

    def task(number):
        begun.append(number)
        if number == 0:
            time.sleep(0.3)
        if number < 2:
            raise ValueError(number)

    with pytest.raises(ValueError, match="^0$"):
        read.in_parallel(task, range(100))
    assert len(begun) <= LOCAL_THREADS + 1


def test_a_thread_that_the_pool_cannot_start_leaves_no_task_out(monkeypatch):
    """`submit` queues a task before it starts a thread, which a limit on threads may forbid."""
    threads, asked = ThreadPoolExecutor(1), []

    class Limited:
        def submit(self, function):
            threads.submit(function)
            asked.append(function)
            if len(asked) == 2:
                raise RuntimeError("can't start new thread")

    monkeypatch.setattr(read._pools, "local", Limited())
    monkeypatch.setattr(read, "LOCAL_THREADS", 4)
    main = threading.current_thread()
    assert read.in_parallel(lambda n: time.sleep(0.3 * (threading.current_thread() is not main)) or n, range(6)) == [
        *range(6)
    ]
    threads.shutdown()


def test_what_a_thread_has_taken_is_done_though_the_caller_finds_nothing_left():
    """A debugger, or coverage, may hold a thread up between the two."""
    taking, goes_on = threading.Event(), threading.Event()

    def held_up():
        taking.set()
        goes_on.wait(60)
        yield 0

    work = read._Work(abs, [-1])
    work._numbers = held_up()
    thread = threading.Thread(target=work.run)
    thread.start()
    assert taking.wait(60)
    work.stop()  # as `wait` does first of all
    goes_on.set()
    thread.join(60)
    assert work.results == {0: 1}


def test_a_caller_does_not_wait_for_threads_that_stand_still():
    """Like threads that collect garbage whose finaliser waits for the caller itself."""
    ends, begun = threading.Event(), threading.Semaphore(0)

    def stands_still(_):
        begun.release()
        ends.wait(60)

    with ThreadPoolExecutor(2) as callers:
        held = [callers.submit(read.in_parallel, stands_still, range(LOCAL_THREADS)) for _ in range(2)]
        try:
            for _ in range(LOCAL_THREADS + 2):  # all threads and the two callers
                assert begun.acquire(timeout=60)
            assert read.in_parallel(abs, range(-9, 0)) == list(range(9, 0, -1))
            assert not any(caller.done() for caller in held)
        finally:
            ends.set()


def test_an_error_keeps_nothing_alive_once_it_is_handled():
    """Of two that failed, the one that is not raised would keep both, and the memory that they read into."""
    barrier, alive = threading.Barrier(2), []

    class Memory:
        pass

    def task(number):
        memory = Memory()
        alive.append(weakref.ref(memory))
        barrier.wait(60)
        raise ValueError(number)

    gc.disable()
    try:
        with pytest.raises(ValueError, match="^0$") as caught:
            read.in_parallel(task, range(2))
        del caught
        assert [memory() for memory in alive] == [None, None]
    finally:
        gc.enable()


def test_a_forked_process_has_threads_of_its_own():
    assert read.in_parallel(abs, [-1, -2, -3]) == [1, 2, 3]  # its threads wait now; a fork has none of them
    with ProcessPoolExecutor(1, mp_context=multiprocessing.get_context("fork")) as pool:
        assert pool.submit(read.in_parallel, abs, [-4, -5]).result(timeout=60) == [4, 5]
