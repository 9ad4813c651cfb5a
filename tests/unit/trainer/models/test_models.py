import keras
import numpy as np
import pytest
import tensorflow as tf

from pipeline.errors import UsageError
from trainer import models
from trainer.config.model import ModelFlags
from trainer.models import layers


def build(name, shape, dtype, classes, seed):
    keras.utils.set_random_seed(seed)
    return models.build(ModelFlags(model=name), tf.TensorSpec([None, *shape], dtype), classes)


def test_dropout_is_that_of_the_flag():
    model = models.build(ModelFlags(model="resnet20", dropout=0.3), tf.TensorSpec([None, 8, 8, 3], tf.uint8), 10)
    assert [layer.rate for layer in model.layers if isinstance(layer, keras.layers.Dropout)] == [0.3]


@pytest.mark.parametrize(
    ("name", "shape", "parameters"),
    [
        ("mlp", (28, 28, 1), 784 * 500 + 500 + 500 * 10 + 10),
        ("lenet", (28, 28, 1), 61_706),
        ("cifar10_cnn", (24, 24, 3), 1_068_298),
    ],
)
def test_parameters(name, shape, parameters):
    model = build(name, shape, "uint8", 10, seed=0)
    assert model.count_params() == parameters
    logits = model(np.zeros((3, *shape), np.uint8))
    assert logits.shape == (3, 10)
    assert logits.dtype == tf.float32


def test_images_too_small_for_lenet_are_one_line():
    with pytest.raises(UsageError, match=r"--model=lenet .*8x8x1.* 12 pixels"):
        build("lenet", (8, 8, 1), "uint8", 10, seed=0)


@pytest.mark.parametrize("name", ["mlp", "lenet", "cifar10_cnn"])
def test_images_of_any_shape_whose_bytes_are_scaled_and_floats_are_not(name):
    pixels = np.random.default_rng(0).integers(0, 256, (2, 13, 17, 2)).astype(np.uint8)
    raw, floats = (build(name, (13, 17, 2), dtype, 7, seed=3) for dtype in ("uint8", "float32"))
    assert raw(pixels).shape == (2, 7)
    np.testing.assert_allclose(raw(pixels), floats(pixels.astype(np.float32) / 255), atol=1e-5)


def test_the_seed_is_the_weights():
    one, same, other = (build("mlp", (4, 4, 1), "uint8", 10, seed) for seed in (5, 5, 6))
    for a, b in zip(one.get_weights(), same.get_weights(), strict=True):
        np.testing.assert_array_equal(a, b)
    assert not np.array_equal(one.get_weights()[0], other.get_weights()[0])


def test_initial_values_of_the_tutorial():
    model = build("cifar10_cnn", (24, 24, 3), "float32", 10, seed=0)
    kernels, biases = model.get_weights()[::2], model.get_weights()[1::2]
    cut = 0.88  # the standard deviation of a normal that is cut at two
    for kernel, stddev in zip(kernels, [5e-2, 5e-2, 0.04, 0.04, 1 / 192], strict=True):
        assert np.std(kernel) == pytest.approx(cut * stddev, rel=0.05)
        assert np.abs(kernel).max() <= 2 * stddev
    assert [float(b[0]) for b in biases] == pytest.approx([0.0, 0.1, 0.1, 0.1, 0.0])


def test_order_of_the_tutorial():
    names = [type(layer).__name__ for layer in build("cifar10_cnn", (24, 24, 3), "float32", 10, 0).layers]
    block = ["Conv2D", "MaxPooling2D", "LocalResponseNorm", "Conv2D", "LocalResponseNorm", "MaxPooling2D"]
    assert names == ["ScalePixels", *block, "Flatten", "Dense", "Dense", "Dense"]


def test_weight_decay_is_of_the_two_local_layers_in_l2_loss_form():
    model = build("cifar10_cnn", (24, 24, 3), "float32", 10, seed=0)
    local3, local4 = model.get_weights()[4], model.get_weights()[6]
    expected = 0.004 * (np.sum(local3**2) + np.sum(local4**2)) / 2
    assert float(sum(model.losses)) == pytest.approx(expected, rel=1e-4)


def test_mlp_penalty_is_the_books():
    model = build("mlp", (28, 28, 1), "float32", 10, seed=0)
    expected = 1e-4 * sum(float(tf.nn.l2_loss(w)) for w in model.get_weights()[::2])
    assert float(sum(model.losses)) == pytest.approx(expected, rel=1e-4)


def test_local_response_norm_by_hand():
    x = np.random.default_rng(0).normal(size=(1, 1, 1, 12)).astype(np.float32) * 10
    row = x[0, 0, 0]
    sums = np.array([np.sum(row[max(0, d - 4) : d + 5] ** 2) for d in range(12)])
    expected = row / (1.0 + 0.001 / 9.0 * sums) ** 0.75
    np.testing.assert_allclose(layers.LocalResponseNorm()(x)[0, 0, 0], expected, rtol=1e-5)


def test_local_response_norm_in_bfloat16():
    x = tf.cast(np.random.default_rng(0).normal(size=(2, 3, 3, 64)) * 10, tf.bfloat16)
    normed = layers.LocalResponseNorm(dtype="mixed_bfloat16")(x)
    assert normed.dtype == tf.bfloat16
    exact = layers.LocalResponseNorm()(tf.cast(x, tf.float32))
    np.testing.assert_array_equal(normed, tf.cast(exact, tf.bfloat16))
