"""A trained model as it is served, written and read again in this process, against the model itself."""

import json

import numpy as np
import pytest

from pipeline.errors import UsageError
from trainer.exporting import command, comparison, reading
from trainer.exporting.flags import ExportConfig
from trainer.exporting.formats import FORMATS
from trainer.exporting.predictions import Predictor
from trainer.exporting.served import served


def test_files_and_predictors_give_what_the_trained_model_gives(make_trained, tmp_path):
    trained = make_trained(distort="shift", ema=0.9)
    images, expected = comparison.stored_images(trained, 7), comparison.trained_probabilities(trained, 7)
    assert (np.stack(images).shape, expected.shape) == ((7, 4, 3, 1), (7, 5))
    np.testing.assert_allclose(expected.sum(1), 1.0, rtol=1e-5)
    model = served(trained)
    assert (model.core_shape, model.fitting) == ((4, 3, 1), None)
    np.testing.assert_allclose(Predictor.of_trained(trained).probabilities(images), expected, atol=1e-6)
    for name in ("keras", "saved_model"):
        path = tmp_path / FORMATS[name].file
        FORMATS[name].write(model, path, 1)
        np.savez(tmp_path / f"{name}.images.npz", *comparison.batches_of(model, images, False, None))
        reading.main(str(tmp_path), "5", "", name, str(path))
        with np.load(tmp_path / f"{name}.answers.npz") as found:
            assert comparison._largest_difference(name, dict(found), expected, model) < 1e-6
            assert found["class_name"].tolist() == [model.class_names[i] for i in expected.argmax(1)]
    config = ExportConfig(output=str(tmp_path / "out"), model_dir=str(tmp_path / "run"))
    about = command._about(config, trained, model, {"keras": 1e-7})
    assert about["files"] == {"keras": {"file": "model.keras", "images": [None, 4, 3, 1], "largest_difference": 1e-7}}
    assert (about["step"], about["weights"], about["image_size"]) == (7, "ema", (4, 3))
    (tmp_path / "export.json").write_text(json.dumps(about))
    np.testing.assert_allclose(Predictor.of_export(tmp_path).probabilities(images), expected, atol=1e-6)


def test_the_tolerance_is_the_flags_or_that_of_how_the_model_computes(make_trained):
    exact = make_trained()
    assert command._tolerance(exact, served(exact)) == 1e-4


def test_onnx_has_no_convolution_in_bfloat16(make_trained, tmp_path):
    trained = make_trained(precision="bfloat16")
    assert command._tolerance(trained, served(trained)) == 0.02
    with pytest.raises(UsageError) as error:
        command._check(ExportConfig(output=str(tmp_path / "out"), model_dir="run", format="keras,onnx"), trained)
    assert str(error.value).startswith("--format=onnx: ")
