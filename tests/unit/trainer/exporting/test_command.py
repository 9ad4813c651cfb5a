"""A trained model as it is served, written and read again in this process, against the model itself."""

import dataclasses
import json
from types import SimpleNamespace

import numpy as np
import pytest
import tensorflow as tf

from pipeline import manifest
from pipeline.errors import DataError, UsageError
from pipeline.manifest import PixelRule
from tests.helpers.datasets import Kind, edit_manifest, write_dataset
from trainer.config.trained import FORMATS, ExportConfig
from trainer.exporting import command, reading
from trainer.exporting.predictions import Predictor
from trainer.exporting.served import served


def test_files_and_predictors_give_what_the_trained_model_gives(make_trained, tmp_path):
    trained = make_trained(augment="shift", ema=0.9)
    images, expected = command.stored_images(trained, 7), command.trained_probabilities(trained, 7)
    assert (np.stack(images).shape, expected.shape) == ((7, 4, 3, 1), (7, 5))
    np.testing.assert_allclose(expected.sum(1), 1.0, rtol=1e-5)
    named = served(trained)
    model = dataclasses.replace(named, class_names=("of two\nlines", *named.class_names[1:]))
    assert (model.core_shape, model.fitting) == ((4, 3, 1), None)
    np.testing.assert_allclose(Predictor.of_trained(trained).probabilities(images), expected, atol=1e-6)
    for name in ("keras", "saved_model"):
        path = tmp_path / FORMATS[name].file
        FORMATS[name].write(model, path, 1)
        np.savez(tmp_path / f"{name}.images.npz", *command.batches_of(model, images, False, None))
        reading.main(str(tmp_path), "5", "", name, str(path))
        with np.load(tmp_path / f"{name}.answers.npz") as found:
            assert command._largest_difference(name, dict(found), {"probabilities": expected}, model) < 1e-6
            assert found["class_name"].tolist() == [model.class_names[i] for i in expected.argmax(1)]
    lines = (path / "assets.extra" / "class_names.txt").read_text().splitlines()
    assert lines == ["of two lines", *named.class_names[1:]]
    config = ExportConfig(output=str(tmp_path / "out"), model_dir=str(tmp_path / "run"))
    about = command._about(config, trained, model, {"keras": 1e-7})
    assert about["files"] == {"keras": {"file": "model.keras", "images": [None, 4, 3, 1], "largest_difference": 1e-7}}
    assert (about["step"], about["weights"], about["image_size"]) == (7, "ema", (4, 3))
    (tmp_path / "export.json").write_text(json.dumps(about))
    np.testing.assert_allclose(Predictor.of_export(tmp_path).probabilities(images), expected, atol=1e-6)


def test_files_become_pixels_as_those_that_were_trained_on_whatever_is_evaluated(make_trained, tmp_path):
    rule = {"orientation": "upright", "dct": "exact"}
    write_dataset(tmp_path / "other", (2,), (4, 3, 1), (5,), 5, Kind("png"))
    edit_manifest(tmp_path / "other", lambda content: content.update(pixel_rule=rule))
    trained = make_trained(Kind("png"), eval_data_dir=tmp_path / "other")
    own = manifest.load(tmp_path / "data").pixels
    assert (str(trained.split.request.folder), own) == (str(tmp_path / "other"), PixelRule("stored", "fast"))
    assert Predictor.of_trained(trained).pixel_rule == own
    config = ExportConfig(output=str(tmp_path / "out"), model_dir=str(tmp_path / "run"))
    about = command._about(config, trained, served(trained), {"keras": 1e-7})
    assert about["preprocessing"]["pixel_rule"] == dataclasses.asdict(own)


def test_the_tolerance_is_the_flags_or_that_of_how_the_model_computes(make_trained):
    exact = make_trained()
    assert command._tolerance(exact, served(exact)) == 1e-4


def test_onnx_has_no_convolution_in_bfloat16(make_trained, tmp_path):
    trained = make_trained(precision="bfloat16")
    assert command._tolerance(trained, served(trained)) == 0.02
    with pytest.raises(UsageError) as error:
        command._formats(ExportConfig(output=str(tmp_path / "out"), model_dir="run", format="keras,onnx"), trained)
    assert str(error.value).startswith("--format=onnx: ")


def test_a_file_that_takes_too_long_is_one_line(tmp_path, monkeypatch):
    monkeypatch.setattr(command, "_TIMEOUT", 0.02)
    files = {"keras": command.File(tmp_path / "model.keras", [np.zeros((1, 2, 2, 1), np.uint8)])}
    served = SimpleNamespace(class_names=("ape", "bee"))
    with pytest.raises(DataError) as error:
        list(command.largest_differences(files, {"probabilities": np.zeros((1, 2), np.float32)}, served, []))
    assert str(error.value).startswith("--format=keras: ")
    assert "0.02 s" in str(error.value)


def test_a_file_that_fails_on_the_images_is_named_with_the_line_that_says_why(tmp_path):
    class Fails(tf.Module):
        @tf.function(input_signature=[tf.TensorSpec([None, 2, 2, 1], tf.uint8, name="images")])
        def __call__(self, images):
            return {"probabilities": tf.debugging.check_numerics(tf.zeros([1, 2]) / 0.0, "layer 3")}

    tf.saved_model.save(Fails(), str(tmp_path / "saved_model"))
    files = {"saved_model": command.File(tmp_path / "saved_model", [np.zeros((1, 2, 2, 1), np.uint8)])}
    served = SimpleNamespace(class_names=("ape", "bee"))
    with pytest.raises(DataError) as error:
        list(command.largest_differences(files, {"probabilities": np.zeros((1, 2), np.float32)}, served, []))
    assert str(error.value).startswith("--format=saved_model: ")
    assert str(error.value).endswith("layer 3 : Tensor had NaN values")  # one line of TensorFlow's many


@pytest.mark.parametrize(("rows", "counts"), [(None, [5]), (2, [2, 2, 2]), (5, [5]), (7, [7])])
def test_batches_of_a_static_number_of_rows_end_with_copies(rows, counts):
    images = [np.full((2, 2, 1), i, np.uint8) for i in range(5)]
    batches = command.batches_of(SimpleNamespace(fitting=None), images, any_size=False, rows=rows)
    assert [len(batch) for batch in batches] == counts
    numbers = np.concatenate(batches)[:, 0, 0, 0].tolist()
    assert numbers == [0, 1, 2, 3, 4] + [4] * (sum(counts) - 5)


def test_images_of_any_size_go_one_by_one_or_are_fitted():
    images = [np.zeros((3, 4, 1), np.uint8), np.zeros((5, 2, 1), np.uint8)]
    served = SimpleNamespace(fitting=True, fit=lambda image: image[:2, :2])
    assert [b.shape for b in command.batches_of(served, images, True, None)] == [(1, 3, 4, 1), (1, 5, 2, 1)]
    assert [b.shape for b in command.batches_of(served, images, False, None)] == [(2, 2, 2, 1)]


def test_other_classes_than_the_probabilities_say_are_an_error():
    served, probabilities = SimpleNamespace(class_names=("ape", "bee")), np.array([[0.9, 0.1], [0.25, 0.75]])
    expected = {"probabilities": probabilities, "class": np.array([0, 1])}
    right = {"probabilities": np.add(probabilities, [[0.0, 0.0], [0.125, -0.125]]), "class": np.array([0, 1])}
    assert command._largest_difference("onnx", right, expected, served) == 0.125
    for wrong in ({"class": np.array([1, 1])}, {"class_name": np.array(["ape", "ape"])}):
        with pytest.raises(DataError):
            command._largest_difference("onnx", {**right, **wrong}, expected, served)
