"""ResNet-18 (He et al. 2016, "Deep residual learning for image recognition", table 1): 4 stages of 2 blocks.

Shortcuts are the paper's option B: a 1x1 convolution where a stage begins. On 224x224x3 with 1,000 classes it has
11,689,512 trainable parameters, torchvision's count. Images smaller than 64 pixels get the stem that is usual for CIFAR
(Chen et al. 2020, "A simple framework for contrastive learning of visual representations", B.9): a 3x3 convolution
without stride instead of 7x7 and pooling; 11,173,962 trainable parameters on 32x32x3 with 10 classes.
"""

from __future__ import annotations

import keras

from trainer.models.layers import ScalePixels, l2_loss

BLOCKS, WIDTHS = 2, (64, 128, 256, 512)
WEIGHT_DECAY = 1e-4
SMALL = 64  # pixels; smaller images get the stem for CIFAR


def build(image_shape: tuple[int, int, int], image_dtype: str, num_classes: int) -> keras.Model:
    """Returns the network for images of any size."""
    images = keras.Input(image_shape, dtype=image_dtype)
    found = ScalePixels()(images)
    if min(image_shape[:2]) < SMALL:
        found = keras.layers.ReLU()(_convolution(found, WIDTHS[0], 3, 1))
    else:
        found = keras.layers.ReLU()(_convolution(found, WIDTHS[0], 7, 2))
        found = keras.layers.MaxPooling2D(3, strides=2, padding="same")(found)
    for stage, width in enumerate(WIDTHS):
        for block in range(BLOCKS):
            found = _block(found, width, 2 if stage and not block else 1)
    found = keras.layers.GlobalAveragePooling2D()(found)
    logits = keras.layers.Dense(num_classes, kernel_initializer="he_normal", kernel_regularizer=l2_loss(WEIGHT_DECAY))(
        found
    )
    return keras.Model(images, logits, name="resnet18")


def _block(values: keras.KerasTensor, width: int, stride: int) -> keras.KerasTensor:
    found = keras.layers.ReLU()(_convolution(values, width, 3, stride))
    found = _convolution(found, width, 3, 1)
    if stride > 1:
        values = _convolution(values, width, 1, stride)
    return keras.layers.ReLU()(keras.layers.Add()([values, found]))


def _convolution(values: keras.KerasTensor, width: int, size: int, stride: int) -> keras.KerasTensor:
    """Returns the normalised convolution; with a stride it is padded alike on all sides, which `same` does not do."""
    if stride > 1 and size > 1:
        values = keras.layers.ZeroPadding2D(size // 2)(values)
    convolved = keras.layers.Conv2D(
        width,
        size,
        strides=stride,
        padding="valid" if stride > 1 else "same",
        use_bias=False,
        kernel_initializer="he_normal",
        kernel_regularizer=l2_loss(WEIGHT_DECAY),
    )(values)
    return keras.layers.BatchNormalization()(convolved)
