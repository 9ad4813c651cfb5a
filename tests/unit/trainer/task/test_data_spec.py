import keras
import pytest
import tensorflow as tf

from trainer.task.base import DataSpec
from trainer.task.data_spec import classes_of, gives_probabilities, shape_of

NAMES = ("ape", "bee", "cat")


def model_of(*last):
    return keras.Sequential([keras.Input((4,)), *last])


def spec(shape=(None,), dtype=tf.int64, names=NAMES):
    return DataSpec(tf.TensorSpec((None, 4)), tf.TensorSpec(shape, dtype), names)


@pytest.mark.parametrize(
    ("units", "data", "classes"),
    [
        (3, spec(), NAMES),
        (3, spec(dtype=tf.int32), NAMES),
        (3, spec(names=()), ("0", "1", "2")),
        (4, spec(), None),
        (1, spec(names=("one",)), None),
        (3, spec(dtype=tf.float32), None),
        (3, spec((None, 3)), None),
        (3, spec((None, 3), dtype=tf.float32), NAMES),  # mixed
        (3, DataSpec(tf.TensorSpec((None, 4)), {"label": tf.TensorSpec((None,), tf.int64)}, NAMES), None),
    ],
)
def test_classes_are_those_of_which_there_is_a_number_each(units, data, classes):
    assert classes_of(model_of(keras.layers.Dense(units)), data) == classes


class Subclassed(keras.Model):
    """Has no output_shape."""

    def __init__(self):
        super().__init__()
        self.last = keras.layers.Dense(3)

    def call(self, features):
        return self.last(features)


def test_the_shape_of_a_subclassed_model_is_found():
    model = Subclassed()
    model(tf.zeros((1, 4)))
    assert shape_of(model, spec()) == (None, 3)
    assert classes_of(model, spec()) == NAMES


def test_outputs_of_more_axes_or_several_are_no_classes():
    assert classes_of(model_of(keras.layers.Reshape((2, 2))), spec()) is None
    inputs = keras.Input((4,))
    assert classes_of(keras.Model(inputs, [keras.layers.Dense(3)(inputs)] * 2), spec()) is None


@pytest.mark.parametrize(
    ("last", "loss", "expected"),
    [
        ([keras.layers.Dense(3)], None, False),
        ([keras.layers.Dense(3, "softmax")], None, True),
        ([keras.layers.Dense(3), keras.layers.Softmax()], None, True),
        ([keras.layers.Dense(3), keras.layers.Activation("softmax")], None, True),
        ([keras.layers.Dense(3)], "sparse_categorical_crossentropy", True),
        ([keras.layers.Dense(3)], keras.losses.SparseCategoricalCrossentropy(), True),
        ([keras.layers.Dense(3)], keras.losses.SparseCategoricalCrossentropy(from_logits=True), False),
        ([keras.layers.Dense(3)], "mse", False),
    ],
)
def test_probabilities_are_known_by_the_last_layer_or_the_loss(last, loss, expected):
    model = model_of(*last)
    if loss:
        model.compile("sgd", loss)
    assert gives_probabilities(model) is expected
