"""ResNet-20 for CIFAR (He et al. 2016, "Deep residual learning for image recognition", 4.2): 3 stages of 3 blocks.

Shortcuts are the paper's option A: where a stage begins, every second pixel, and zeros for the new channels. On 32x32x3
with 10 classes it has 269,722 trainable parameters, the paper's 0.27 million.
"""

from __future__ import annotations

import keras

from trainer.models.layers import ScalePixels, l2_loss

BLOCKS, WIDTHS = 3, (16, 32, 64)
WEIGHT_DECAY = 1e-4


def build(image_shape: tuple[int, int, int], image_dtype: str, num_classes: int, dropout: float) -> keras.Model:
    """Returns the network; `dropout` is the share of the pooled features that is dropped in training."""
    images = keras.Input(image_shape, dtype=image_dtype)
    found = _convolution(ScalePixels()(images), WIDTHS[0], 1)
    found = keras.layers.ReLU()(found)
    for stage, width in enumerate(WIDTHS):
        for block in range(BLOCKS):
            found = _block(found, width, 2 if stage and not block else 1)
    found = keras.layers.GlobalAveragePooling2D()(found)
    if dropout:
        found = keras.layers.Dropout(dropout)(found)
    logits = keras.layers.Dense(num_classes, kernel_initializer="he_normal", kernel_regularizer=l2_loss(WEIGHT_DECAY))(
        found
    )
    return keras.Model(images, logits, name="resnet20")


def _block(values: keras.KerasTensor, width: int, stride: int) -> keras.KerasTensor:
    found = keras.layers.ReLU()(_convolution(values, width, stride))
    found = _convolution(found, width, 1)
    if stride > 1:
        values = keras.layers.AveragePooling2D(1, strides=stride, padding="same")(values)  # every second pixel
        values = keras.layers.Concatenate()([values, keras.ops.zeros_like(values)])
    return keras.layers.ReLU()(keras.layers.Add()([values, found]))


def _convolution(values: keras.KerasTensor, width: int, stride: int) -> keras.KerasTensor:
    convolved = keras.layers.Conv2D(
        width,
        3,
        strides=stride,
        padding="same",
        use_bias=False,
        kernel_initializer="he_normal",
        kernel_regularizer=l2_loss(WEIGHT_DECAY),
    )(values)
    return keras.layers.BatchNormalization()(convolved)
