import keras
import numpy as np
import pytest
import tensorflow as tf

from trainer.models.cifar10 import fast_cifar, patch_cosines


def convolutions(model):
    return [layer for layer in model.layers if isinstance(layer, keras.layers.Conv2D)]


def test_parameters():
    model = fast_cifar((32, 32, 3), "float32", 10)
    pairs = [(24, 64), (64, 64), (64, 256), (256, 256), (256, 256), (256, 256)]
    trainable = sum(int(np.prod(variable.shape)) for variable in model.trainable_variables)
    assert trainable == sum(9 * inputs * outputs + outputs for inputs, outputs in pairs) + 256 * 10 == 1_971_328


@pytest.mark.parametrize("shape", [(32, 32, 3), (9, 9, 1), (11, 30, 4)])
def test_logits(shape):
    logits = fast_cifar(shape, "uint8", 7)(np.zeros((2, *shape), np.uint8))
    assert logits.shape == (2, 7)
    assert logits.dtype == tf.float32


def test_images_too_small_are_refused():
    with pytest.raises(ValueError, match="9 pixels"):
        fast_cifar((8, 32, 3), "uint8", 10)


@pytest.mark.parametrize("channels", [1, 3, 4])
def test_the_filters_are_an_orthonormal_basis_of_the_patches(channels):
    basis = patch_cosines(channels).reshape(4 * channels, 4 * channels)
    np.testing.assert_allclose(basis.T @ basis, np.eye(4 * channels), atol=1e-6)


def test_the_first_filter_is_the_mean_and_the_others_are_blind_to_it():
    filters = convolutions(fast_cifar((9, 9, 3), "float32", 10))[0]
    assert not filters.trainable
    found = filters(np.full((1, 2, 2, 3), 0.5, np.float32))[0, 0, 0]
    np.testing.assert_allclose(found, [0.5 * np.sqrt(12)] + [0] * 11, atol=1e-6)


@pytest.mark.parametrize("number", range(1, 7))
@pytest.mark.quick(2)
def test_a_new_convolution_passes_its_input_on(number):
    layer = convolutions(fast_cifar((9, 9, 3), "float32", 10))[number]
    kept = min(layer.kernel.shape[2:])
    images = np.random.default_rng(0).normal(size=(1, 4, 4, layer.kernel.shape[2])).astype(np.float32)
    np.testing.assert_allclose(layer(images)[..., :kept], images[..., :kept], rtol=1e-6)


def test_the_other_channels_have_a_variance_of_a_third_of_the_fan_in():
    kernel = convolutions(fast_cifar((9, 9, 3), "float32", 10))[3].kernel.numpy()
    assert kernel.shape == (3, 3, 64, 256)
    assert kernel[..., 64:].var() == pytest.approx(1 / (3 * 9 * 64), rel=0.05)


def test_a_saved_model_loads_without_our_code(tmp_path):
    model = fast_cifar((9, 9, 3), "float32", 10)
    model = keras.Model(model.layers[1].output, model.output)  # without ScalePixels, which an export replaces
    images = np.random.default_rng(0).normal(size=(2, 9, 9, 3)).astype(np.float32)
    model.save(tmp_path / "m.keras")
    loaded = keras.saving.load_model(tmp_path / "m.keras")
    np.testing.assert_allclose(loaded(images), model(images), rtol=1e-5, atol=1e-6)
