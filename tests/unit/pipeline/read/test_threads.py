"""The threads that read: at the interpreter's end, and in a forked process."""

import multiprocessing
import pathlib
import subprocess
import sys
from concurrent.futures import ProcessPoolExecutor

from pipeline.read.shards import in_parallel

ROOT = pathlib.Path(__file__).resolve().parents[4]

AT_EXIT = """
import atexit
from pipeline.errors import DataError
from pipeline.read.shards import in_parallel

@atexit.register
def read_on():
    try:
        in_parallel(abs, [-1])
    except DataError as error:
        print(error)

print(in_parallel(abs, [-1]))
"""


def test_reading_while_the_interpreter_ends_is_an_error_of_one_line():
    done = subprocess.run([sys.executable, "-c", AT_EXIT], cwd=ROOT, capture_output=True, text=True, check=False)
    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout.startswith("[1]\nnothing more can be read: cannot schedule new futures after")
    assert done.stdout.count("\n") == 2


def test_a_forked_process_has_threads_of_its_own():
    assert in_parallel(abs, [-1, -2, -3]) == [1, 2, 3]  # its threads wait now; a fork has none of them
    with ProcessPoolExecutor(1, mp_context=multiprocessing.get_context("fork")) as pool:
        assert pool.submit(in_parallel, abs, [-4, -5]).result(timeout=60) == [4, 5]
