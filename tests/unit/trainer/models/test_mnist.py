import numpy as np
import pytest
import tensorflow as tf

from trainer.models.mnist import mnist_cnn, softmax_regression


def test_parameters_of_the_tutorial():
    model = mnist_cnn((28, 28, 1), "uint8", 10)
    layers = [25 * 1 * 32 + 32, 25 * 32 * 64 + 64, 7 * 7 * 64 * 512 + 512, 512 * 10 + 10]
    assert model.count_params() == sum(layers) == 1_663_370


def test_initial_values_of_the_tutorial():
    values = mnist_cnn((28, 28, 1), "uint8", 10).get_weights()
    for kernel in values[::2]:
        assert np.std(kernel) == pytest.approx(0.088, rel=0.05)  # a normal of 0.1 that is cut at two
    assert [float(bias[0]) for bias in values[1::2]] == pytest.approx([0.0, 0.1, 0.1, 0.1])


def test_weight_decay_is_of_the_dense_layers_and_their_biases_in_l2_loss_form():
    model = mnist_cnn((28, 28, 1), "float32", 10)
    expected = 5e-4 * sum(float(tf.nn.l2_loss(value)) for value in model.get_weights()[4:])
    assert float(sum(model.losses)) == pytest.approx(expected, rel=1e-4)


def test_dropout_is_of_the_hidden_units_and_in_training_only():
    model = mnist_cnn((8, 8, 1), "float32", 10, dropout=0.99)
    images = np.ones((4, 8, 8, 1), np.float32)
    np.testing.assert_array_equal(model(images, training=False)[0], model(images, training=False)[1])
    assert np.ptp(model(images, training=True), axis=0).max() > 0


@pytest.mark.parametrize("shape", [(4, 4, 1), (13, 17, 2)])
def test_images_of_other_shapes(shape):
    logits = mnist_cnn(shape, "uint8", 7)(np.zeros((2, *shape), np.uint8))
    assert logits.shape == (2, 7)
    assert logits.dtype == tf.float32


def test_images_too_small_are_refused():
    with pytest.raises(ValueError, match="4 pixels"):
        mnist_cnn((3, 8, 1), "uint8", 10)


def test_parameters_of_softmax_regression_are_the_tutorials_all_0():
    model = softmax_regression((28, 28, 1), "uint8", 10)
    assert model.count_params() == 7_850
    assert not any(value.any() for value in model.get_weights())


def test_logits_are_a_linear_map_of_the_scaled_pixels():
    model = softmax_regression((2, 3, 2), "uint8", 4)
    generator = np.random.default_rng(0)
    matrix, bias = generator.normal(size=(12, 4)).astype(np.float32), generator.normal(size=4).astype(np.float32)
    model.set_weights([matrix, bias])
    pixels = generator.integers(0, 256, (5, 2, 3, 2)).astype(np.uint8)
    np.testing.assert_allclose(model(pixels), pixels.reshape(5, 12) / 255 @ matrix + bias, rtol=1e-5, atol=1e-6)
