import numpy as np

from trainer.models import softmax_regression


def test_parameters_of_the_tutorial_all_0():
    model = softmax_regression.build((28, 28, 1), "uint8", 10)
    assert model.count_params() == 7_850
    assert not any(value.any() for value in model.get_weights())


def test_logits_are_a_linear_map_of_the_scaled_pixels():
    model = softmax_regression.build((2, 3, 2), "uint8", 4)
    generator = np.random.default_rng(0)
    matrix, bias = generator.normal(size=(12, 4)).astype(np.float32), generator.normal(size=4).astype(np.float32)
    model.set_weights([matrix, bias])
    pixels = generator.integers(0, 256, (5, 2, 3, 2)).astype(np.uint8)
    np.testing.assert_allclose(model(pixels), pixels.reshape(5, 12) / 255 @ matrix + bias, rtol=1e-5, atol=1e-6)
