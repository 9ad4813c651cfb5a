"""Residual networks (He et al. 2016, "Deep residual learning for image recognition")."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

from pipeline.lazily import Lazy, keras
from trainer.config.model import MODELS

if TYPE_CHECKING:
    from trainer.models import layers
else:
    layers = Lazy("trainer.models.layers")

_WIDTHS = (64, 128, 256, 512)  # widths of the stages of ResNet-18 and ResNet-50
_BLOCKS_18, _BLOCKS_50 = (2, 2, 2, 2), (3, 4, 6, 3)
_WIDENED = 4  # a block of ResNet-50 outputs this many times the channels of its 3x3 convolution
_WIDTHS_20, _BLOCKS_20 = (16, 32, 64), 3
_WEIGHT_DECAY = 1e-4
_SMALL = 64  # pixels on a side; smaller images get the stem for CIFAR


# The usual schedule for CIFAR-10 today: a cosine over 200 epochs (Loshchilov, Hutter 2017).
@MODELS.named(
    "resnet18",
    epochs=200,
    defaults={
        "global_batch_size": 128,
        "optimizer": "nesterov",
        "learning_rate": 0.1,
        "schedule": "cosine",
        "augment": "pad_crop_flip",
    },
)
def resnet18(image_shape: tuple[int, int, int], image_dtype: str, num_classes: int) -> keras.Model:
    """Returns ResNet-18 (table 1), 4 stages of 2 blocks, for images of any size.

    Shortcuts follow the paper's option B: a 1x1 convolution at the start of a stage. On 224x224x3 with 1,000 classes it
    has 11,689,512 trainable parameters, torchvision's count. Images smaller than 64 pixels get the stem that is usual
    for CIFAR (Chen et al. 2020, "A simple framework for contrastive learning of visual representations", B.9): a 3x3
    convolution without stride instead of 7x7 and pooling; 11,173,962 trainable parameters on 32x32x3 with 10 classes.
    """
    return _of_photographs("resnet18", image_shape, image_dtype, num_classes, _BLOCKS_18, _block_18)


# As in "Bag of tricks" (He et al. 2019): batch 256, Nesterov at a rate of 0.1 (2.1), weight decay of convolutions only
# and 5 epochs of warm-up (3.1), a cosine over 120 epochs (5.1), label smoothing of 0.1 (5.2), random crops; without its
# colour jitter and noise.
@MODELS.named(
    "resnet50",
    epochs=120,
    defaults={
        "global_batch_size": 256,
        "optimizer": "nesterov",
        "learning_rate": 0.1,
        "schedule": "cosine",
        "warmup_epochs": 5.0,
        "label_smoothing": 0.1,
        "augment": "random_resized_crop",
    },
)
def resnet50(image_shape: tuple[int, int, int], image_dtype: str, num_classes: int) -> keras.Model:
    """Returns ResNet-50 (table 1), 4 stages of 3, 4, 6 and 3 blocks, for images of any size.

    It has two later improvements (He et al. 2019, "Bag of tricks for image classification with convolutional neural
    networks"): at the start of a stage the 3x3 convolution has the stride (4.1, ResNet-B), and the last normalisation
    of a block starts with a scale of 0, so that each block starts as its shortcut (3.1). On 224x224x3 with 1,000
    classes it has 25,557,032 trainable parameters, torchvision's count. Small images get the stem of `resnet18`.
    """
    return _of_photographs("resnet50", image_shape, image_dtype, num_classes, _BLOCKS_50, _block_50)


# As in 4.2: batch 128, momentum 0.9, crops of padded images and flips, 64,000 steps (182 epochs), the rate divided by
# 10 after 32,000 and 48,000.
@MODELS.named(
    "resnet20",
    epochs=182,
    takes_dropout=True,
    defaults={
        "global_batch_size": 128,
        "learning_rate": 0.1,
        "schedule": "piecewise",
        "decay_factor": 0.1,
        "decay_at": "91,136.5",
        "augment": "pad_crop_flip",
    },
)
def resnet20(image_shape: tuple[int, int, int], image_dtype: str, num_classes: int, dropout: float) -> keras.Model:
    """Returns ResNet-20 for CIFAR (4.2), 3 stages of 3 blocks.

    Shortcuts follow the paper's option A: at the start of a stage, every second pixel and zeros for the new channels.
    On 32x32x3 with 10 classes it has 269,722 trainable parameters, the paper's 0.27 million. `dropout` is the share of
    the pooled features dropped in training.
    """
    images = keras.Input(image_shape, dtype=image_dtype)
    found = keras.layers.ReLU()(_convolution(layers.ScalePixels()(images), _WIDTHS_20[0], 3, 1))
    for stage, width in enumerate(_WIDTHS_20):
        for block in range(_BLOCKS_20):
            found = _block_20(found, width, 2 if stage and not block else 1)
    return keras.Model(images, _logits(found, num_classes, dropout), name="resnet20")


def _of_photographs(
    name: str,
    image_shape: tuple[int, int, int],
    image_dtype: str,
    num_classes: int,
    blocks: Sequence[int],
    block: Callable[[keras.KerasTensor, int, int], keras.KerasTensor],
) -> keras.Model:
    """Returns a network of 4 stages of `blocks` residual blocks, each made by `block` from (values, width, stride)."""
    images = keras.Input(image_shape, dtype=image_dtype)
    found = layers.ScalePixels()(images)
    if min(image_shape[:2]) < _SMALL:
        found = keras.layers.ReLU()(_convolution(found, _WIDTHS[0], 3, 1))
    else:
        found = keras.layers.ReLU()(_padded_convolution(found, _WIDTHS[0], 7, 2))
        found = layers.MaxPooling2D(3, strides=2, padding="same")(found)
    for stage, (width, count) in enumerate(zip(_WIDTHS, blocks, strict=True)):
        for number in range(count):
            found = block(found, width, 2 if stage and not number else 1)
    return keras.Model(images, _logits(found, num_classes), name=name)


def _block_18(values: keras.KerasTensor, width: int, stride: int) -> keras.KerasTensor:
    found = keras.layers.ReLU()(_padded_convolution(values, width, 3, stride))
    found = _convolution(found, width, 3, 1)
    if stride > 1:
        values = _padded_convolution(values, width, 1, stride)
    return keras.layers.ReLU()(keras.layers.Add()([values, found]))


def _block_50(values: keras.KerasTensor, width: int, stride: int) -> keras.KerasTensor:
    found = keras.layers.ReLU()(_convolution(values, width, 1, 1))
    found = keras.layers.ReLU()(_padded_convolution(found, width, 3, stride))
    found = _convolution(found, _WIDENED * width, 1, 1, gamma="zeros")
    if values.shape[-1] != _WIDENED * width:
        values = _padded_convolution(values, _WIDENED * width, 1, stride)
    return keras.layers.ReLU()(keras.layers.Add()([values, found]))


def _block_20(values: keras.KerasTensor, width: int, stride: int) -> keras.KerasTensor:
    found = keras.layers.ReLU()(_convolution(values, width, 3, stride))
    found = _convolution(found, width, 3, 1)
    if stride > 1:
        values = keras.layers.AveragePooling2D(1, strides=stride, padding="same")(values)  # every second pixel
        values = keras.layers.Concatenate()([values, keras.ops.zeros_like(values)])
    return keras.layers.ReLU()(keras.layers.Add()([values, found]))


def _padded_convolution(values: keras.KerasTensor, width: int, size: int, stride: int) -> keras.KerasTensor:
    """Returns a normalised convolution; with a stride it pads all sides equally, unlike `same`."""
    if stride == 1:
        return _convolution(values, width, size, stride)
    if size > 1:
        values = keras.layers.ZeroPadding2D(size // 2)(values)
    return _convolution(values, width, size, stride, "valid")


def _convolution(
    values: keras.KerasTensor, width: int, size: int, stride: int, padding: str = "same", gamma: str = "ones"
) -> keras.KerasTensor:
    convolved = keras.layers.Conv2D(
        width,
        size,
        strides=stride,
        padding=padding,
        use_bias=False,
        kernel_initializer="he_normal",
        kernel_regularizer=layers.l2_loss(_WEIGHT_DECAY),
    )(values)
    return layers.BatchNormalization(gamma_initializer=gamma)(convolved)


def _logits(values: keras.KerasTensor, num_classes: int, dropout: float = 0.0) -> keras.KerasTensor:
    found = keras.layers.GlobalAveragePooling2D()(values)
    if dropout:
        found = keras.layers.Dropout(dropout)(found)
    dense = keras.layers.Dense(
        num_classes, kernel_initializer="he_normal", kernel_regularizer=layers.l2_loss(_WEIGHT_DECAY)
    )
    return dense(found)
