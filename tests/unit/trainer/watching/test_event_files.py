"""TensorBoard's files, as the trainer writes them, read while they grow, half written and damaged."""

import json
import math

import numpy as np
import pytest

from trainer.callbacks.tensorboard import EventFile
from trainer.watching.event_files import EventFiles, MetricsLines, Series, parsed

FLAGS = {"optimizer": {"learning_rate": 0.05}, "steps": {"epochs": 3}}


def written(folder, start=0, steps=(), value=1.0, flags=None):
    """Returns a file that has the loss of some steps."""
    file = EventFile(folder, start)
    if flags:
        file.text(start + 1, "flags", json.dumps(flags))
    for step in steps:
        file.scalars(step, {"train/loss": value})
    return file


def read(folder):
    files = EventFiles(folder)
    files.update()
    return files


def test_scalars_flags_and_images_of_a_run(tmp_path):
    file = written(tmp_path, 0, (10, 20), 0.5, FLAGS)
    file.scalars(20, {"eval/test/accuracy": 0.25, "train/bad": math.inf})
    file.images(10, {"images/0": np.zeros((2, 2, 1), np.uint8)})
    file.images(20, {f"images/{i}": np.full((4, 4, 1), 9 * i, np.uint8) for i in range(3)})
    files = read(tmp_path)
    assert (files.series["train/loss"].steps, files.series["train/loss"].values) == ([10, 20], [0.5, 0.5])
    assert files.series["eval/test/accuracy"].last == 0.25
    assert math.isnan(files.series["train/bad"].last)
    (start,) = files.starts
    assert (start.step, start.flags) == (0, FLAGS)
    assert f".{start.host}." in next(tmp_path.iterdir()).name
    assert start.host
    assert (files.images_step, list(files.images)) == (20, ["images/0", "images/1", "images/2"])
    assert files.images["images/0"].startswith(b"\x89PNG")
    assert files.problems == {}


def test_it_reads_on_where_it_was(tmp_path):
    file, files = written(tmp_path, 0, (1, 2)), EventFiles(tmp_path)
    files.update()
    assert files.series["train/loss"].steps == [1, 2]
    before = files.series["train/loss"]
    file.scalars(3, {"train/loss": 3.0})
    files.update()
    assert before is files.series["train/loss"]
    assert (before.steps, before.values) == ([1, 2, 3], [1.0, 1.0, 3.0])


def test_a_seed_of_64_bits_is_read_exactly():
    numbers = b"[18446744073709551615, -9223372036854775808, 18446744073709551616]"
    found = parsed(numbers)
    assert [repr(one) for one in found] == ["18446744073709551615", "-9223372036854775808", "1.8446744073709552e+19"]


def test_a_resumed_run_makes_its_steps_anew(tmp_path):
    file = written(tmp_path, 0, (100, 200, 300, 400))
    for step in (100, 400):
        file.scalars(step, {"eval/test/accuracy": 0.5})
    files = read(tmp_path)
    written(tmp_path, 200, (250, 300), 2.0, FLAGS)
    files.update()
    assert files.series["train/loss"].steps == [100, 200, 250, 300]
    assert files.series["train/loss"].values == [1.0, 1.0, 2.0, 2.0]
    assert files.series["eval/test/accuracy"].steps == [100]  # that of step 400 is yet to be made again
    assert [start.step for start in files.starts] == [0, 200]
    assert read(tmp_path).series == files.series


def test_another_run_in_the_folder_is_read_from_its_beginning(tmp_path):
    written(tmp_path, 0, (1, 2, 3))
    files = read(tmp_path)
    for path in tmp_path.iterdir():
        path.unlink()
    written(tmp_path, 0, (1,), 7.0)
    files.update()
    assert (files.series["train/loss"].values, len(files.starts)) == ([7.0], 1)


@pytest.mark.parametrize("cut", [1, 5, 13, 20])
def test_a_record_that_is_half_written_comes_later(tmp_path, cut):
    written(tmp_path, 0, (1, 2, 3))
    (path,) = tmp_path.iterdir()
    whole = path.read_bytes()
    path.write_bytes(whole[:-cut])
    files = read(tmp_path)
    assert files.series["train/loss"].steps == [1, 2]
    assert "ends inside a record, which may still be written" in files.problems[path.name]
    path.write_bytes(whole)
    files.update()
    assert (files.series["train/loss"].steps, files.problems) == ([1, 2, 3], {})


def test_a_damaged_record_is_left_out_and_named(tmp_path):
    written(tmp_path, 0, (1, 2, 3), 0.5)
    (path,) = tmp_path.iterdir()
    content = bytearray(path.read_bytes())
    content[content.index(b"train/loss", content.index(b"train/loss") + 1)] ^= 1  # in the second of them
    path.write_bytes(content)
    files = read(tmp_path)
    assert files.series["train/loss"].steps == [1, 3]
    assert "is damaged" in files.problems[path.name]


@pytest.mark.parametrize("content", [b"rubbish" * 100, b"\0" * 500, b"x"])
def test_a_file_of_rubbish_is_named(tmp_path, content):
    path = tmp_path / "events.out.tfevents.0000000001.0.host.1.v2"
    path.write_bytes(content)
    written(tmp_path, 0, (1,))
    files = read(tmp_path)
    assert files.series["train/loss"].steps == [1]
    assert list(files.problems) == [path.name]


def test_many_values_are_thinned_out_but_for_the_last():
    series = Series(list(range(1000)), [0.0] * 1000, [float(i) for i in range(1000)])
    thin = series.thinned(100)
    assert (len(thin.steps), thin.steps[-1], thin.steps[1] - thin.steps[0]) == (100, 999, 10)
    assert series.thinned(1000).steps == series.steps


def test_metrics_lines_are_the_same_scalars(tmp_path):
    path = tmp_path / "metrics.jsonl"
    lines = MetricsLines(path)
    lines.update()
    assert lines.series == {}
    path.write_text('{"step": 1, "time": 2.5, "train/loss": 0.5}\n{"step": 2, "time": 3.5, "train/loss": null}\n{"st')
    lines.update()
    assert lines.series["train/loss"].steps == [1, 2]
    assert lines.series["train/loss"].values[0] == 0.5
    assert math.isnan(lines.series["train/loss"].values[1])
    path.write_text('{"step": 1, "time": 2.5, "train/loss": 0.5}\n')  # a resumed run has removed a line
    lines.update()
    assert lines.series["train/loss"].steps == [1]
    assert lines.problems == {}


@pytest.mark.parametrize("line", ["nonsense", "[1]", '{"step": "x", "time": 1}', '{"time": 1}'])
def test_a_line_of_something_else_is_named(tmp_path, line):
    path = tmp_path / "metrics.jsonl"
    path.write_text(f'{line}\n{{"step": 1, "time": 2.5, "train/loss": 0.5}}\n')
    lines = MetricsLines(path)
    lines.update()
    assert lines.series["train/loss"].steps == [1]
    assert lines.problems == {"metrics.jsonl": "has a line that is not this trainer's"}
