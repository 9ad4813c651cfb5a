"""The forms of a judgement, and what the command prints and writes."""

import json

import PIL.Image
import pytest

from pipeline.errors import DataError
from tests.runs import scalars
from trainer.evaluation import command, outputs
from trainer.evaluation.flags import EvaluateConfig
from trainer.evaluation.judging import Judge


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
