import subprocess
import sys

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
