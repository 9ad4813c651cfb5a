import numpy as np
import pytest
import tensorflow as tf

from trainer.models.resnet import resnet18


def trainable(model):
    return sum(int(np.prod(variable.shape)) for variable in model.trainable_variables)


def sizes(model):
    """Returns the distinct sizes of the activations, pixels, in their order."""
    found = [layer.output.shape[1] for layer in model.layers if type(layer).__name__ == "ReLU"]
    return list(dict.fromkeys(found))


@pytest.mark.parametrize(
    ("shape", "classes", "parameters", "expected"),
    [((224, 224, 3), 1000, 11_689_512, [112, 56, 28, 14, 7]), ((32, 32, 3), 10, 11_173_962, [32, 16, 8, 4])],
)
def test_parameters_and_sizes_of_the_sources(shape, classes, parameters, expected):
    model = resnet18(shape, "uint8", classes)
    assert trainable(model) == parameters
    assert sizes(model) == expected


def test_images_of_64_pixels_get_the_stem_of_imagenet():
    assert sizes(resnet18((64, 64, 3), "uint8", 10)) == [32, 16, 8, 4, 2]


def test_logits_of_small_images():
    logits = resnet18((5, 7, 1), "uint8", 3)(np.zeros((2, 5, 7, 1), np.uint8))
    assert logits.shape == (2, 3)
    assert logits.dtype == tf.float32


def test_weight_decay_is_of_all_kernels_in_l2_loss_form():
    model = resnet18((16, 16, 3), "float32", 10)
    kernels = [variable for variable in model.trainable_variables if len(variable.shape) > 1]
    assert len(kernels) == 1 + 16 + 3 + 1
    expected = 1e-4 * sum(float(tf.nn.l2_loss(kernel)) for kernel in kernels)
    assert float(sum(model.losses)) == pytest.approx(expected, rel=1e-4)
