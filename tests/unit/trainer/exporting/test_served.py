import inspect

import keras
import numpy as np
import pytest
import tensorflow as tf

from pipeline.decode import ImageDecoder, InStrings
from pipeline.distort.recipes import make_recipe
from pipeline.request import Request
from tests.datasets import encoded
from trainer import models
from trainer.config.model import ModelFlags
from trainer.config.model_defaults import MODEL_DEFAULTS
from trainer.exporting.served import _told_apart, fitting_of, without_own_layers
from trainer.models import layers


def request(**options):
    return Request("data", global_batch_size=1, training=False, **options)


@pytest.mark.parametrize(
    "shape",
    [
        (40, 36, 3),
        *(pytest.param(more, marks=pytest.mark.slow) for more in ((20, 60, 3), (200, 100, 3))),
        (24, 24, 3),
        (5, 9, 3),
    ],
)
@pytest.mark.parametrize(
    ("distort", "resize"),
    [("random_crop(size=24)", None), ("random_resized_crop(size=24)", None), ("none", "24x20"), ("none", "40x36")],
)
def test_images_are_fitted_as_the_input_decodes_them(shape, distort, resize):
    image = np.random.default_rng(0).integers(0, 256, shape, np.uint8)
    fitting = fitting_of(request(distort=distort, resize=resize), make_recipe(distort), 3)
    decoder = ImageDecoder("png", (None, None, 3), fitting.crop)
    expected = decoder.decode(InStrings(tf.constant([encoded(image, "png")])), lambda: tf.zeros(1, tf.uint64))
    fitted = tf.function(fitting.fit, input_signature=[tf.TensorSpec((None, None, None, 3), tf.uint8)])
    np.testing.assert_array_equal(fitted(np.stack([image, image]))[1], expected[0])


def test_images_that_have_the_models_size_are_not_fitted():
    assert fitting_of(request(distort="shift"), make_recipe("shift"), 1) is None


def test_classes_of_one_name_are_told_apart_by_their_numbers():
    assert _told_apart(["a", "b", "a"]) == ("a (0)", "b", "a (2)")


OURS = [kind for _, kind in inspect.getmembers(layers, inspect.isclass) if issubclass(kind, keras.layers.Layer)]


@pytest.mark.parametrize("dtype", ["uint8", pytest.param("float32", marks=pytest.mark.slow)])
@pytest.mark.parametrize(
    "name",
    [pytest.param(name, marks=pytest.mark.slow) if name.startswith("resnet") else name for name in MODEL_DEFAULTS],
)
def test_the_same_numbers_from_the_same_variables_without_our_layers(name, dtype, tmp_path):
    model = models.build(ModelFlags(model=name), tf.TensorSpec((None, 24, 24, 3), dtype), 7)
    images = np.random.default_rng(0).integers(0, 256, (5, 24, 24, 3)).astype(dtype)
    expected = model(images, training=False).numpy()
    found = without_own_layers(model)
    assert [id(v) for v in found.variables] == [id(v) for v in model.variables]
    assert not any(isinstance(layer, tuple(OURS)) for layer in found.layers)
    np.testing.assert_allclose(found(images, training=False).numpy(), expected, rtol=1e-5, atol=1e-5)
    found.save(tmp_path / "m.keras")
    loaded = keras.saving.load_model(tmp_path / "m.keras")  # our layers are not registered
    np.testing.assert_allclose(loaded(images, training=False).numpy(), expected, rtol=1e-5, atol=1e-5)


def test_a_users_model_stays_as_it_is():
    model = keras.Sequential([keras.Input((3,)), keras.layers.Dense(2)])
    assert without_own_layers(model) is model
