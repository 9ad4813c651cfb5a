import json
import math
import os
import pathlib

import pytest

from pipeline.errors import DataError, UsageError
from trainer.callbacks.metrics_file import MetricsFile
from trainer.run_folder import RunFolder


def steps_in(path):
    return [json.loads(line)["step"] for line in path.read_text().splitlines()]


@pytest.fixture
def run(tmp_path):
    """The model_dir of a run."""
    (tmp_path / "run").mkdir()
    return tmp_path / "run"


@pytest.fixture
def other(tmp_path):
    """The model_dir of another run."""
    (tmp_path / "other").mkdir()
    return tmp_path / "other"


def write(path, run, scale=100):
    """Writes steps 100 to 300 and an evaluation at 300."""
    lines = MetricsFile(str(path), 0, RunFolder(run))
    for step in (100, 200, 300):
        lines.on_metrics(step, {"train/loss": step / scale})
    lines.on_metrics(300, {"eval/test/loss": 0.5})
    return path


@pytest.fixture
def path(tmp_path, run):
    return write(tmp_path / "metrics.jsonl", run)


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


def test_a_resumed_run_removes_later_steps(path, run):
    lines = MetricsFile(str(path), 200, RunFolder(run))
    lines.on_metrics(250, {"train/loss": 1.0})
    assert steps_in(path) == [100, 200, 250]


def test_so_does_one_that_was_killed_before_its_first_checkpoint(path, run):
    for _ in range(2):
        lines = MetricsFile(str(path), 0, RunFolder(run))
        assert path.read_bytes() == b""
        lines.on_metrics(50, {"train/loss": 1.0})
        lines.on_metrics(70, {"train/loss": 1.0})
    MetricsFile(str(path), 60, RunFolder(run))
    assert steps_in(path) == [50]


def test_a_finished_run_adds_its_evaluation_once(path, run):
    lines = MetricsFile(str(path), 300, RunFolder(run))
    lines.on_metrics(300, {"eval/test/loss": 0.5})
    assert steps_in(path) == [100, 200, 300, 300]
    lines.on_metrics(300, {"eval/other/loss": 0.5})
    assert len(steps_in(path)) == 5


@pytest.mark.parametrize("length", [1, 10, 20])
def test_a_torn_line_is_removed(path, length, run):
    with path.open("ab") as lines:
        lines.write(b'{"step": 310, "train/loss": 1.0}'[:length])
    MetricsFile(str(path), 305, RunFolder(run)).on_metrics(310, {"train/loss": 1.0})
    assert steps_in(path) == [100, 200, 300, 300, 310]


@pytest.mark.parametrize("length", [0, 1, 30])
def test_so_is_a_first_one(path, length, run):
    path.write_bytes(path.read_bytes()[:length])
    MetricsFile(str(path), 0, RunFolder(run)).on_metrics(100, {"train/loss": 1.0})
    assert steps_in(path) == [100]


def test_numbers_that_json_lacks_are_null(tmp_path, run):
    MetricsFile(str(tmp_path / "m"), 0, RunFolder(run)).on_metrics(1, {"a": math.nan, "b": math.inf, "c": 1.0})
    line = json.loads((tmp_path / "m").read_text())
    assert (line["a"], line["b"], line["c"]) == (None, None, 1.0)


@pytest.mark.parametrize("text", ["mine\n", '{"accuracy": 0.9}', '{\n  "step": 3\n}', "[", "9"])
def test_another_file_is_left_alone(path, text, run):
    path.write_text(text)
    with pytest.raises(UsageError, match="--metrics_jsonl="):
        MetricsFile(str(path), 0, RunFolder(run))
    assert path.read_text() == text


@pytest.mark.parametrize("start_step", [0, 200])
def test_the_lines_of_another_run_are_left_alone(path, start_step, other):
    write(path.with_name("its own"), other, scale=50)
    before = path.read_bytes()
    with pytest.raises(UsageError, match=r"--metrics_jsonl=.*--model_dir=.*other"):
        MetricsFile(str(path), start_step, RunFolder(other))
    assert path.read_bytes() == before


def test_so_are_those_of_a_run_whose_folder_was_removed(path, run):
    RunFolder(run).metrics_note.unlink()
    with pytest.raises(UsageError, match="--metrics_jsonl=.*--model_dir="):
        MetricsFile(str(path), 0, RunFolder(run))
    assert len(steps_in(path)) == 4


def test_a_run_may_change_its_file_and_come_back_to_it(path, run):
    write(path.with_name("second"), run, scale=50)
    MetricsFile(str(path), 200, RunFolder(run))
    assert steps_in(path) == [100, 200]


def test_what_is_no_regular_file_is_refused(tmp_path, run):
    os.mkfifo(tmp_path / "pipe")
    for path in (tmp_path / "pipe", pathlib.Path("/dev/null"), tmp_path):
        with pytest.raises(UsageError, match=f"--metrics_jsonl={path}: "):
            MetricsFile(str(path), 0, RunFolder(run))


def test_a_folder_that_is_missing_is_named(tmp_path, run):
    with pytest.raises(UsageError, match=r"--metrics_jsonl=.*: No such file or directory$"):
        MetricsFile(str(tmp_path / "none" / "m"), 0, RunFolder(run))


def test_a_model_dir_that_is_gone_is_named(tmp_path, run):
    lines = MetricsFile(str(tmp_path / "m"), 0, RunFolder(run))
    run.rmdir()
    with pytest.raises(DataError, match=r"\.trainer\.metrics: .*: No such file or directory$"):
        lines.on_metrics(1, {"a": 1.0})
    assert (tmp_path / "m").read_bytes() == b""
