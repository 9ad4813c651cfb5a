import pytest

from trainer.launching.local.ending import Ending


@pytest.mark.parametrize(
    ("ending", "text", "restartable", "exit_code"),
    [
        (Ending(0), "ended with exit code 0", False, 0),
        (Ending(1), "ended with exit code 1 (bad data, or an error in the program)", False, 1),
        (Ending(2), "ended with exit code 2 (a flag cannot work)", False, 2),
        (Ending(75), "ended with exit code 75 (not done, to be resumed)", True, 75),
        (Ending(3), "ended with exit code 3", True, 3),
        (Ending(-9), "was killed by SIGKILL", True, 137),
        (Ending(-6), "was killed by SIGABRT", True, 134),
        (Ending(143), "was killed by SIGTERM", True, 143),
        (Ending(-9, "gave no sign of life for 60 s"), "gave no sign of life for 60 s, and was killed", True, 137),
    ],
)
def test_endings(ending, text, restartable, exit_code):
    assert (str(ending), ending.is_restartable, ending.exit_code) == (text, restartable, exit_code)
