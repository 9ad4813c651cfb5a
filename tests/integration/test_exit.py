"""A script that ends while windows are read ahead ends: real interpreters, whose global iterator is never deleted."""

import pytest

from tests.helpers import forked
from tests.helpers.datasets import write_dataset

SCRIPT = """
from pipeline import input_fn
iterators = [iter(input_fn({folder!r}, global_batch_size=8, training=True, shuffle_bytes=144 * 200)) for _ in range(3)]
for iterator in iterators:
    next(iterator)
print("the last line", flush=True)
"""


@pytest.mark.slow
def test_a_script_ends_while_windows_are_read_ahead(tmp_path):
    write_dataset(tmp_path, (300, 300, 300))
    done = forked.fresh(["-c", SCRIPT.format(folder=str(tmp_path))])
    assert done.returncode == 0, done.stderr
    assert done.stdout == "the last line\n"
    assert "Traceback" not in done.stderr
