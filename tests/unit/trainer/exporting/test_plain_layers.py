import inspect

import keras
import numpy as np
import pytest
import tensorflow as tf

from trainer import models
from trainer.config.model import ModelFlags
from trainer.config.model_defaults import MODEL_DEFAULTS
from trainer.exporting.plain_layers import plain
from trainer.models import layers

OURS = [kind for _, kind in inspect.getmembers(layers, inspect.isclass) if issubclass(kind, keras.layers.Layer)]


@pytest.mark.parametrize("dtype", ["uint8", "float32"])
@pytest.mark.parametrize("name", MODEL_DEFAULTS)
def test_the_same_numbers_from_the_same_variables_without_our_layers(name, dtype, tmp_path):
    model = models.build(ModelFlags(model=name), tf.TensorSpec((None, 24, 24, 3), dtype), 7)
    images = np.random.default_rng(0).integers(0, 256, (5, 24, 24, 3)).astype(dtype)
    expected = model(images, training=False).numpy()
    found = plain(model)
    assert [id(v) for v in found.variables] == [id(v) for v in model.variables]
    assert not any(isinstance(layer, tuple(OURS)) for layer in found.layers)
    np.testing.assert_allclose(found(images, training=False).numpy(), expected, rtol=1e-5, atol=1e-5)
    found.save(tmp_path / "m.keras")
    loaded = keras.saving.load_model(tmp_path / "m.keras")  # our layers are not registered
    np.testing.assert_allclose(loaded(images, training=False).numpy(), expected, rtol=1e-5, atol=1e-5)


def test_a_users_model_stays_as_it_is():
    model = keras.Sequential([keras.Input((3,)), keras.layers.Dense(2)])
    assert plain(model) is model
