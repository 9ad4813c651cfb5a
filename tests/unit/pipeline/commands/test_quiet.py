import os
import subprocess
import sys

import pytest

from tests.helpers.datasets import write_dataset

NOISE = [
    b"WARNING: All log messages before absl::InitializeLog() is called are written to STDERR\n",
    b"I0000 00:00:1795174692.562388    8746 port.cc:153] oneDNN custom operations are on. You may see\n",
    b"E0000 00:00:1795172450.790845    2547 cuda_platform.cc:52] failed call to cuInit: INTERNAL: CUDA error\n",
]
MATTER = [b"Traceback (most recent call last):\n", b"E0000 00:00:17 other.cc:1] disk is full\n", b"\n"]


def test_only_harmless_notes_are_dropped_even_after_an_error():
    script = (
        "import logging, os\nfrom pipeline.commands import quiet\n"
        "try:\n    with quiet.loading():\n"
        f"        logging.warning('noise')\n        os.write(2, {b''.join(NOISE + MATTER)!r})\n"
        "        raise ValueError\n"
        "except ValueError:\n    logging.warning('after')\n"
        "print(os.environ['TF_CPP_MIN_LOG_LEVEL'])"
    )
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, check=True)
    assert done.stderr == b"".join(MATTER) + b"WARNING:root:after\n"
    assert done.stdout.strip() == b"3"


COUNT = "print(sum(1 for _ in input_fn({!r}, 'train', global_batch_size=64, epochs=1, training=False)))"


def script(text, **environment):
    """Returns what a user's script prints, in an environment without TF_CPP_MIN_LOG_LEVEL, and its lines on stderr."""
    kept = {name: value for name, value in os.environ.items() if name != "TF_CPP_MIN_LOG_LEVEL"}
    done = subprocess.run(
        [sys.executable, "-c", text], capture_output=True, check=True, env=kept | environment, text=True
    )
    return done.stdout.strip(), done.stderr.splitlines()


def test_a_script_that_feeds_a_data_set_shows_no_line_of_tensorflow(tmp_path):
    write_dataset(tmp_path, (5,))
    text = "from pipeline import input_fn, steps_per_epoch\n"
    text += f"print(sum(1 for _ in input_fn({str(tmp_path)!r}, 'train', global_batch_size=2, training=False)))"
    assert script(text) == ("3", [])


@pytest.mark.slow
def test_a_script_sees_the_lines_where_it_sets_the_level_or_loads_tensorflow_itself():
    _, asked = script("from pipeline import StepIterator", TF_CPP_MIN_LOG_LEVEL="0")
    _, first = script("import tensorflow\nfrom pipeline import StepIterator")
    assert all("oneDNN" in "".join(lines) for lines in (asked, first))


@pytest.mark.slow
def test_a_task_is_imported_quietly_and_a_script_without_stderr_goes_on():
    assert script("from trainer import Task\nprint(Task.__name__)") == ("Task", [])
    assert script("import os\nos.close(2)\nfrom pipeline import StepIterator\nprint(1)")[0] == "1"


def test_a_name_that_needs_no_tensorflow_leaves_the_environment_as_it_is():
    text = "import os, sys\nfrom pipeline import Shard\nprint('tensorflow' in sys.modules, len(os.environ) - before)"
    assert script(text.replace("from", "before = len(os.environ)\nfrom"))[0] == "False 0"
