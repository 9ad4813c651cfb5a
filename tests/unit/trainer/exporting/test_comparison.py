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
    with pytest.raises(DataError) as error:
        list(comparison.largest_differences(files, np.zeros((1, 2), np.float32), served, []))
    assert str(error.value).startswith("--format=keras: ")
    assert "0.02 s" in str(error.value)


def test_a_file_that_fails_on_the_images_is_named_with_the_line_that_says_why(tmp_path):
    class Fails(tf.Module):
        @tf.function(input_signature=[tf.TensorSpec([None, 2, 2, 1], tf.uint8, name="images")])
        def __call__(self, images):
            return {"probabilities": tf.debugging.check_numerics(tf.zeros([1, 2]) / 0.0, "layer 3")}

    tf.saved_model.save(Fails(), str(tmp_path / "saved_model"))
    files = {"saved_model": comparison.File(tmp_path / "saved_model", [np.zeros((1, 2, 2, 1), np.uint8)])}
    served = SimpleNamespace(class_names=("ape", "bee"))
    with pytest.raises(DataError) as error:
        list(comparison.largest_differences(files, np.zeros((1, 2), np.float32), served, []))
    assert str(error.value).startswith("--format=saved_model: ")
    assert str(error.value).endswith("layer 3 : Tensor had NaN values")  # one line of TensorFlow's many


@pytest.mark.parametrize(("rows", "counts"), [(None, [5]), (2, [2, 2, 2]), (5, [5]), (7, [7])])
def test_batches_of_a_static_number_of_rows_end_with_copies(rows, counts):
    images = [np.full((2, 2, 1), i, np.uint8) for i in range(5)]
    batches = comparison.batches_of(SimpleNamespace(fitting=None), images, any_size=False, rows=rows)
    assert [len(batch) for batch in batches] == counts
    numbers = np.concatenate(batches)[:, 0, 0, 0].tolist()
    assert numbers == [0, 1, 2, 3, 4] + [4] * (sum(counts) - 5)


def test_images_of_any_size_go_one_by_one_or_are_fitted():
    fitting = SimpleNamespace(fit=lambda images: images[:, :2, :2])
    images = [np.zeros((3, 4, 1), np.uint8), np.zeros((5, 2, 1), np.uint8)]
    served = SimpleNamespace(fitting=fitting)
    assert [b.shape for b in comparison.batches_of(served, images, True, None)] == [(1, 3, 4, 1), (1, 5, 2, 1)]
    assert [b.shape for b in comparison.batches_of(served, images, False, None)] == [(2, 2, 2, 1)]


def test_other_classes_than_the_probabilities_say_are_an_error():
    served, expected = SimpleNamespace(class_names=("ape", "bee")), np.array([[0.9, 0.1], [0.25, 0.75]])
    right = {"probabilities": np.add(expected, [[0.0, 0.0], [0.125, -0.125]]), "class": np.array([0, 1])}
    assert comparison._largest_difference("onnx", right, expected, served) == 0.125
    for wrong in ({"class": np.array([1, 1])}, {"class_name": np.array(["ape", "ape"])}):
        with pytest.raises(DataError):
            comparison._largest_difference("onnx", {**right, **wrong}, expected, served)
