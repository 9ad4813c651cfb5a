import subprocess
import sys

from pipeline.commands import quiet

NOISE = [
    b"WARNING: All log messages before absl::InitializeLog() is called are written to STDERR\n",
    b"I0000 00:00:1795174692.562388    8746 port.cc:153] oneDNN custom operations are on. You may see\n",
    b"E0000 00:00:1795172450.790845    2547 cuda_platform.cc:52] failed call to cuInit: INTERNAL: CUDA error\n",
]


def test_only_what_is_known_as_harmless_is_dropped():
    matter = [b"Traceback (most recent call last):\n", b"E0000 00:00:17 other.cc:1] disk is full\n", b"\n"]
    assert quiet.remarkable([*NOISE, *matter]) == matter


def test_what_matters_comes_through_in_a_real_process_even_after_an_error():
    script = (
        "import os\nfrom pipeline import quiet\n"
        "try:\n    with quiet.loading():\n"
        f"        os.write(2, {NOISE[0]!r} + b'it matters\\n')\n        raise ValueError\n"
        "except ValueError:\n    os.write(2, b'after\\n')"
    )
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True)
    assert done.stderr == "it matters\nafter\n"
