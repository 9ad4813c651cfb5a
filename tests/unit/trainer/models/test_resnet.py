import keras
import numpy as np
import pytest
import tensorflow as tf

from trainer.models.resnet import resnet18, resnet50


def trainable(model):
    return sum(int(np.prod(variable.shape)) for variable in model.trainable_variables)


def sizes(model):
    """Returns the distinct sizes of the activations in pixels, in order."""
    found = [layer.output.shape[1] for layer in model.layers if type(layer).__name__ == "ReLU"]
    return list(dict.fromkeys(found))


@pytest.mark.parametrize(
    ("build", "shape", "classes", "parameters", "expected"),
    [
        (resnet18, (224, 224, 3), 1000, 11_689_512, [112, 56, 28, 14, 7]),
        (resnet18, (32, 32, 3), 10, 11_173_962, [32, 16, 8, 4]),
        (resnet50, (224, 224, 3), 1000, 25_557_032, [112, 56, 28, 14, 7]),
    ],
)
@pytest.mark.quick(1)
def test_parameters_and_sizes_of_the_sources(build, shape, classes, parameters, expected):
    model = build(shape, "uint8", classes)
    assert trainable(model) == parameters
    assert sizes(model) == expected


def test_images_of_64_pixels_get_the_stem_of_imagenet():
    assert sizes(resnet18((64, 64, 3), "uint8", 10)) == [32, 16, 8, 4, 2]


def test_logits_of_small_images():
    logits = resnet18((5, 7, 1), "uint8", 3)(np.zeros((2, 5, 7, 1), np.uint8))
    assert logits.shape == (2, 3)
    assert logits.dtype == tf.float32


def test_blocks_of_resnet50_begin_as_their_shortcuts_and_stride_in_their_3x3_convolution():
    model = resnet50((64, 64, 3), "float32", 10)
    norms = [layer for layer in model.layers if isinstance(layer, keras.layers.BatchNormalization)]
    zeros = [norm for norm in norms if not np.any(norm.gamma.numpy())]
    assert (len(norms), len(zeros)) == (1 + 3 * 16 + 4, 16)
    strided = [layer for layer in model.layers if isinstance(layer, keras.layers.Conv2D) and layer.strides[0] == 2]
    assert [layer.kernel_size[0] for layer in strided].count(3) == 3
    assert [layer.kernel_size[0] for layer in strided].count(1) == 3  # the shortcuts


def test_weight_decay_is_of_all_kernels_in_l2_loss_form():
    model = resnet18((16, 16, 3), "float32", 10)
    kernels = [variable for variable in model.trainable_variables if len(variable.shape) > 1]
    assert len(kernels) == 1 + 16 + 3 + 1
    expected = 1e-4 * sum(float(tf.nn.l2_loss(kernel)) for kernel in kernels)
    assert float(sum(model.losses)) == pytest.approx(expected, rel=1e-4)
