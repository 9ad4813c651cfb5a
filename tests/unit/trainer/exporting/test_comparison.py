from types import SimpleNamespace

import numpy as np
import pytest
import tensorflow as tf

from pipeline.errors import DataError
from trainer.exporting import comparison


def test_a_file_that_takes_too_long_is_one_line(tmp_path, monkeypatch):
    monkeypatch.setattr(comparison, "_TIMEOUT", 0.02)
    files = {"keras": comparison.File(tmp_path / "model.keras", [np.zeros((1, 2, 2, 1), np.uint8)])}
    served = SimpleNamespace(class_names=("ape", "bee"))
    with pytest.raises(DataError, match=r"^--format=keras: not reloaded and run within 0.02 s; give fewer --examples$"):
        list(comparison.largest_differences(files, np.zeros((1, 2), np.float32), served, []))


def test_a_file_that_fails_on_the_images_is_named_with_the_line_that_says_why(tmp_path):
    class Fails(tf.Module):
        @tf.function(input_signature=[tf.TensorSpec([None, 2, 2, 1], tf.uint8, name="images")])
        def __call__(self, images):
            return {"probabilities": tf.debugging.check_numerics(tf.zeros([1, 2]) / 0.0, "layer 3")}

    tf.saved_model.save(Fails(), str(tmp_path / "saved_model"))
    files = {"saved_model": comparison.File(tmp_path / "saved_model", [np.zeros((1, 2, 2, 1), np.uint8)])}
    served = SimpleNamespace(class_names=("ape", "bee"))
    with pytest.raises(DataError, match=r"^--format=saved_model: .* reloaded: layer 3 : Tensor had NaN values$"):
        list(comparison.largest_differences(files, np.zeros((1, 2), np.float32), served, []))
