import json
import math

import pytest

from pipeline.errors import UsageError
from trainer.actions.metrics_file import MetricsFile


def steps_in(path):
    return [json.loads(line)["step"] for line in path.read_text().splitlines()]


@pytest.fixture
def path(tmp_path):
    """A file of steps 100 to 300 and an evaluation at 300."""
    path = tmp_path / "metrics.jsonl"
    file = MetricsFile(str(path), 0)
    for step in (100, 200, 300):
        file.write(step, {"train/loss": step / 100})
    file.write(300, {"eval/test/loss": 0.5})
    return path


def test_lines_are_objects_that_can_be_read_at_once(path):
    lines = [json.loads(line) for line in path.read_text().splitlines()]
    assert [(line["step"], line.get("train/loss")) for line in lines] == [
        (100, 1.0),
        (200, 2.0),
        (300, 3.0),
        (300, None),
    ]
    assert lines[3]["eval/test/loss"] == 0.5
    assert lines[0]["time"] > 1.7e9


def test_a_resumed_run_removes_later_steps(path):
    file = MetricsFile(str(path), 200)
    file.write(250, {"train/loss": 1.0})
    assert steps_in(path) == [100, 200, 250]


def test_a_finished_run_adds_its_evaluation_once(path):
    file = MetricsFile(str(path), 300)
    file.write(300, {"eval/test/loss": 0.5})
    assert steps_in(path) == [100, 200, 300, 300]
    file.write(300, {"eval/other/loss": 0.5})
    assert len(steps_in(path)) == 5


@pytest.mark.parametrize("length", [1, 10, 20])
def test_a_torn_line_is_removed(path, length):
    with path.open("ab") as file:
        file.write(b'{"step": 310, "train/loss": 1.0}'[:length])
    MetricsFile(str(path), 305).write(310, {"train/loss": 1.0})
    assert steps_in(path) == [100, 200, 300, 300, 310]


def test_numbers_that_json_lacks_are_null(tmp_path):
    file = MetricsFile(str(tmp_path / "m"), 0)
    file.write(1, {"a": math.nan, "b": math.inf, "c": 1.0})
    line = json.loads((tmp_path / "m").read_text())
    assert (line["a"], line["b"], line["c"]) == (None, None, 1.0)


def test_another_file_is_left_alone(tmp_path):
    path = tmp_path / "notes.txt"
    path.write_text("mine\n")
    with pytest.raises(UsageError, match="is not a file of this trainer's metrics; name another"):
        MetricsFile(str(path), 0)
    assert path.read_text() == "mine\n"


def test_a_folder_that_is_missing_is_named(tmp_path):
    with pytest.raises(UsageError, match=r"--metrics_jsonl=.*: cannot be written to: No such file or directory$"):
        MetricsFile(str(tmp_path / "none" / "m"), 0)
