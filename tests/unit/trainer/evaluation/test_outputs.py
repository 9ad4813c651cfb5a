"""The forms of a report, and the command's output and files."""

import json

import numpy as np
import PIL.Image
import pytest

from pipeline.errors import DataError
from pipeline.images import fitted, width_of
from tests.helpers.runs import scalars
from trainer.config.trained import EvaluateConfig
from trainer.evaluation import command, outputs
from trainer.evaluation.judging import Judge, Mistake, Report
from trainer.evaluation.outputs import RIGHT, WRONG, confusion_matrix, worst_mistakes


@pytest.fixture
def judged(make_trained):
    trained = make_trained()
    return trained, Judge(trained, most_mistakes=2).judge()


def test_the_json_has_the_run_the_numbers_and_the_report(judged, tmp_path, capsys):
    trained, judgement = judged
    found = outputs.to_json(trained, judgement)
    named = ("checkpoint", "step", "weights", "data_dir", "split", "num_examples", "num_skipped")
    where = (f"{tmp_path}/run/ckpt-7", 7, "raw", f"{tmp_path}/data", "test", 11, 0)
    assert tuple(found[name] for name in named) == where
    assert found["metrics"]["accuracy"] == pytest.approx(found["report"]["accuracy"])
    assert (found["loss"], "sources" in found) == (judgement.evaluation.loss, False)
    outputs.say_json(trained, judgement, {"missed_steps": [3]})
    assert json.loads(capsys.readouterr().out) == {**found, "missed_steps": [3]}


def test_it_is_said_with_tables_or_as_a_line(judged, capsys):
    trained, judgement = judged
    outputs.say(trained, judgement)
    lines = capsys.readouterr().out.splitlines()
    assert lines[:2] == [str(trained), *judgement.evaluation.lines]
    assert lines[3].startswith("class ")
    outputs.say_line(trained, judgement)
    assert capsys.readouterr().out == f"step 7, {judgement.evaluation.lines[0]}\n"


def test_the_folder_gets_the_report_and_pictures_of_it(judged, tmp_path):
    trained, judgement = judged
    (tmp_path / "out").mkdir()
    paths = outputs.write(trained, judgement, str(tmp_path / "out"), {"missed_steps": []})
    assert paths == [f"{tmp_path}/out/{name}" for name in ("report.json", "confusion.png", "mistakes.png")]
    assert json.loads((tmp_path / "out" / "report.json").read_text())["report"] == judgement.report.to_json()
    assert [PIL.Image.open(path).format for path in paths[1:]] == ["PNG", "PNG"]
    with pytest.raises(DataError) as error:
        outputs.write(trained, judgement, str(tmp_path / "none"), {})
    assert f"--output={tmp_path}/none" in str(error.value)


def test_a_checkpoint_is_evaluated_once(make_trained, tmp_path, capsys):
    make_trained()
    (tmp_path / "out").mkdir()
    config = EvaluateConfig(str(tmp_path / "run"), json=True, output=str(tmp_path / "out"), batch_size=3)
    command.run(config, [tmp_path / "run" / "ckpt-7"])
    out, err = capsys.readouterr()
    assert (json.loads(out)["step"], json.loads(out)["num_examples"]) == (7, 11)
    assert err.startswith("written: ")  # what is not a result


def test_a_run_is_followed_to_its_last_step_for_tensorboard(make_trained, tmp_path, capsys):
    make_trained()
    command.run(EvaluateConfig(str(tmp_path / "run"), continuous=True, interval=0.01), [])
    assert capsys.readouterr().out.startswith("step 7, test accuracy = ")
    [folder] = {path.parent for path in tmp_path.rglob("events.out.tfevents.*")}
    assert folder.relative_to(tmp_path / "run").as_posix() == "logs/evaluate"
    assert {step for _, step in scalars(folder)} == {7}
    assert not any("missed" in tag for tag, _ in scalars(folder))


def report_of(matrix, found=()):
    matrix = np.asarray(matrix)
    return Report(tuple(f"class {i}" for i in range(len(matrix))), matrix, 0.5, tuple(found))


def pixels_of(picture):
    return np.asarray(picture.convert("RGB"))


def has(picture, color):
    return bool((pixels_of(picture) == color).all(axis=2).any())


@pytest.mark.parametrize("classes", [1, 2, 10, 26, 27, 100, 700])
@pytest.mark.quick(3)
def test_any_number_of_classes_fits(classes):
    picture = confusion_matrix(report_of(np.eye(classes, dtype=int) * 7), "a title")
    assert max(picture.size) < 2300
    assert has(picture, RIGHT)
    assert not has(picture, WRONG)
    edges = pixels_of(picture)[[0, -1]], pixels_of(picture)[:, [0, -1]]
    assert all((edge == 255).all() for edge in edges)


def test_a_class_that_is_always_wrong_is_red_and_one_without_examples_grey():
    picture = confusion_matrix(report_of([[0, 4, 0], [0, 4, 0], [0, 0, 0]]), "a title")
    assert has(picture, WRONG)
    assert has(picture, RIGHT)
    assert has(picture, (241, 243, 245))


def test_the_colour_is_the_share_of_the_row():
    few, many = (confusion_matrix(report_of([[n, n], [0, n]]), "t") for n in (3, 3000))
    halves = (140, 178, 213)  # half of blue and white
    assert has(few, halves)
    assert has(many, halves)


def test_a_title_is_not_cut_where_few_classes_make_a_small_matrix():
    title = "image_folder validation: cifar10_cnn at step 240, averaged weights (run/ckpt-240)"
    width = confusion_matrix(report_of(np.eye(2, dtype=int)), title).width
    assert 560 < width < 800
    assert fitted(title, 18, width - 56) == title
    assert confusion_matrix(report_of(np.eye(2, dtype=int)), "short").width == 560
    assert confusion_matrix(report_of(np.eye(2, dtype=int)), 9 * title).width == 780


def test_names_are_cut_to_what_is_there():
    long = "a class with a name that has no end whatever one does"
    assert fitted("short", 14, 200) == "short"
    cut = fitted(long, 14, 100)
    assert cut.endswith("…")
    assert width_of(cut, 14) <= 100
    picture = confusion_matrix(Report((long, "x"), np.array([[1, 0], [1, 1]]), 0.1, ()), long * 9)
    assert picture.width < 800


def mistake(record):
    return Mistake(record, f"train#{record}", 0, 1, 0.9, 0.0001, 9.2)


@pytest.mark.parametrize(
    ("shape", "dtype"),
    [((28, 28, 1), np.uint8), ((32, 32, 3), np.float32), ((300, 150, 3), np.uint8), ((1, 9, 1), bool)],
)
def test_each_mistake_has_its_image_in_its_own_shape(shape, dtype):
    images = [np.full(shape, 0).astype(dtype) for _ in range(7)]
    picture = worst_mistakes(report_of([[9, 7], [0, 9]], [mistake(i) for i in range(7)]), images, "a title")
    black = (pixels_of(picture) == 0).all(axis=2)
    height, width = shape[0] / max(shape[:2]), shape[1] / max(shape[:2])
    assert black.sum() == pytest.approx(7 * round(132 * height) * round(132 * width), rel=0.02)
    assert has(picture, WRONG)
    assert has(picture, RIGHT)


def test_without_mistakes_the_picture_says_so():
    picture = worst_mistakes(report_of([[9, 0], [0, 9]]), [], "a title")
    assert picture.size[0] > 500
    assert not has(picture, WRONG)
