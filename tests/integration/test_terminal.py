"""What a run shows on a terminal, from its first second: a real process in a pseudo-terminal."""

import os
import re
import subprocess
import sys
import time

import pytest

from tests.helpers.displays import opened

CLEAR = "\r\x1b[K"


def run_in_terminal(*arguments):
    """Returns the exit code, the whole output, and [(seconds from the start, output at that time)]."""
    ours, theirs = opened(150)
    began, shown = time.monotonic(), list[tuple[float, bytes]]()
    environment = {**os.environ, "NO_COLOR": "1", "TERM": "xterm"}
    process = subprocess.Popen([sys.executable, *arguments], stdout=theirs, stderr=theirs, env=environment)
    theirs.close()
    while True:
        try:
            part = os.read(ours, 1 << 16)
        except OSError:  # the process has ended
            break
        shown.append((time.monotonic() - began, part))
    os.close(ours)
    return process.wait(), b"".join(part for _, part in shown).decode(), shown


@pytest.mark.slow
def test_a_live_line_from_the_start(digits, tmp_path):
    code, shown, parts = run_in_terminal(
        *("-m", "trainer.run", f"--data_dir={digits}", f"--model_dir={tmp_path}", "--model=lenet"),
        *("--train_steps=60", "--log_every=20", "--steps_per_loop=5", "--global_batch_size=64"),
    )
    assert code == 0
    loaded = next(seconds for seconds, part in parts if b"building the model" in part)
    assert parts[0][0] < loaded / 2  # TensorFlow takes most of the time until then to load
    lines = shown.split(CLEAR)
    order = [next(i for i, line in enumerate(lines) if text in line) for text in (
        "loading TensorFlow", "building the model", "compiling the step", "| step 1/60", "evaluating",
    )]  # fmt: skip
    assert order == sorted(order)
    assert re.search(
        r"\d+%\|.*\| step \d+/60, epoch [\d.]+/2.609, loss [\d.]+, accuracy [\d.]+, [\d,]+ img/s, input", shown
    )
    assert re.search(r"(^|\r\x1b\[K)step 20, loss = \d\.\d\d \([\d.]+ examples/sec; [\d.]+ sec/batch\)\r\n", shown)
    assert "\x1b[3" not in shown
    assert "oneDNN" not in shown
    assert shown.endswith(CLEAR)
