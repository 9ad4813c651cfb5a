"""The classification models of `keras.applications`, each including its own preprocessing: `--model=keras:NAME`."""

from __future__ import annotations

import functools
import importlib.util
import pathlib
import re
import warnings
from collections.abc import Mapping
from typing import TYPE_CHECKING

from pipeline.errors import UsageError, unknown
from pipeline.lazily import Lazy, keras
from trainer.config.model import MODELS

if TYPE_CHECKING:
    from trainer.models import layers, weight_files
else:
    layers, weight_files = Lazy("trainer.models.layers"), Lazy("trainer.models.weight_files")

_LISTED = re.compile(r"^from keras\.src\.applications\.(\w+) import \(?\s*([A-Z]\w+) as", re.MULTILINE)
_SIDE = 224  # default image side in pixels; the exceptions have another `default_size` in their modules
_SIDES = {
    **{"EfficientNetB1": 240, "EfficientNetB2": 260, "EfficientNetB3": 300, "EfficientNetB4": 380},
    **{"EfficientNetB5": 456, "EfficientNetB6": 528, "EfficientNetB7": 600},
    **{"EfficientNetV2B1": 240, "EfficientNetV2B2": 260, "EfficientNetV2B3": 300, "EfficientNetV2S": 384},
    **{"EfficientNetV2M": 480, "EfficientNetV2L": 480, "NASNetLarge": 331},
    **dict.fromkeys(("InceptionResNetV2", "InceptionV3", "Xception"), 299),
}
_MEAN, _DEVIATION = (0.485, 0.456, 0.406), (0.229, 0.224, 0.225)  # ImageNet's, for pixels scaled to [0, 1]


@functools.cache
def modules() -> Mapping[str, str]:
    """Returns {model name: its module in keras.applications} for the installed Keras, without loading Keras."""
    found = importlib.util.find_spec("keras")
    if found is None or not found.submodule_search_locations:
        return {}
    listing = pathlib.Path(found.submodule_search_locations[0]) / "applications" / "__init__.py"
    return {name: module for module, name in _LISTED.findall(listing.read_text())}


def sides() -> dict[str, int]:
    """Returns {model name: height and width of the images that it was designed for}."""
    return {name: _SIDES.get(name, _SIDE) for name in modules()}


# For fine-tuning: Adam, since the first layers of pretrained models have such large gradients that SGD moves them too
# far (Kumar et al. 2022, "How to fine-tune vision models with SGD"). Keras' guide to transfer learning trains a new
# head at 1e-3 and then all layers at 1e-5; for both together, 1e-4 is in between. On 600 images of CIFAR-10
# (docs/finetune.md) it reached an accuracy of 0.63 in 76 steps; momentum reached 0.38 at 0.003 and 0.11 at 0.01.
@MODELS.named(
    "keras:NAME",
    epochs=20,
    takes_dropout=True,
    sides=sides,
    defaults={
        "global_batch_size": 32,
        "optimizer": "adam",
        "learning_rate": 0.0001,
        "schedule": "cosine",
        "warmup_epochs": 1.0,
        "resize": f"{_SIDE}x{_SIDE}",
    },
)
def of_pixels(
    name: str,
    image_shape: tuple[int, int, int],
    image_dtype: str,
    num_classes: int,
    dropout: float = 0.0,
    is_pretrained: bool = False,
) -> keras.Model:
    """Returns the result of `pretrained` for images that must be pixels.

    Raises:
      ValueError: the images are floats, which the model's preprocessing would scale a second time, or too small.
    """
    if image_dtype != "uint8":
        raise ValueError(
            "its own preprocessing takes pixels, and --augment makes floats of them; leave out the normalisation, "
            "as in random_resized_crop(normalize=False)"
        )
    return _built(name, image_shape, num_classes, dropout, is_pretrained)


def pretrained(
    name: str,
    image_shape: tuple[int, int, int],
    num_classes: int | None = None,
    *,
    weights: str | None = "imagenet",
    dropout: float = 0.0,
) -> keras.Model:
    """Returns a model of `keras.applications` for fine-tuning, from uint8 pixels to logits.

    The model includes its own preprocessing; grey images become three equal channels. Its normalisations keep the
    statistics from their training, as Keras' guide to transfer learning recommends: statistics of a few small batches
    would spoil the pretrained weights.

    Args:
      name: name such as `EfficientNetV2B0`.
      image_shape: height, width, and number of channels, 1 or 3.
      num_classes: number of classes for a new head with logits (rows, num_classes); None for features (rows, width)
        without a head.
      weights: `imagenet` for Keras' own file, which is downloaded unless it is in Keras' cache; a file as for
        --initialize_from; or None if --initialize_from gives the weights, for the model of a `Task`.
      dropout: share of the features dropped before the head in training.

    Raises:
      UsageError: Keras has no such model, the model cannot take such images, or the weights are not available or belong
        to another model.
    """
    if name not in modules():
        raise unknown("pretrained: name", name, modules())
    try:
        model = _built(name, image_shape, num_classes, dropout, is_pretrained=True)
    except ValueError as error:
        raise UsageError(f"pretrained: {name} cannot take images of {image_shape}: {error}") from None
    if weights is not None:
        weight_files.load(model, weights, "pretrained: weights")
    return model


def _built(
    name: str, image_shape: tuple[int, int, int], num_classes: int | None, dropout: float, is_pretrained: bool
) -> keras.Model:
    *size, channels = image_shape
    if channels not in (1, 3):
        raise ValueError(f"it takes 1 or 3 channels, not {channels}")
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", UserWarning)  # MobileNets warn about loading the weights for 224x224
        base = getattr(keras.applications, name)(include_top=False, weights=None, input_shape=(*size, 3), pooling="avg")
    if modules()[name] == "efficientnet":
        base = keras.models.clone_model(base, clone_function=_normalising)
    layers.fuse_layers(base)
    base.application = name  # tells `weight_files` which of Keras' files to use
    if is_pretrained:
        layers.keep_statistics(base)
    images = keras.Input(image_shape, dtype="uint8")
    pixels = keras.ops.cast(images, "float32")
    if channels == 1:
        pixels = keras.ops.concatenate([pixels] * 3, axis=-1)
    outputs = base(getattr(keras.applications, modules()[name]).preprocess_input(pixels))
    if dropout:
        outputs = keras.layers.Dropout(dropout)(outputs)
    if num_classes is not None:
        outputs = keras.layers.Dense(num_classes, dtype="float32", name="head")(outputs)
    return keras.Model(images, outputs, name=f"keras_{name.lower()}")


def _normalising(layer: keras.layers.Layer) -> keras.layers.Layer:
    """Returns a copy of an EfficientNetB0 to B7 layer; the normalising layer then uses ImageNet's statistics.

    Keras' layer reads mean and variance from the weight file, counts rows in an integer, and divides by the square root
    of the deviation; only with weights="imagenet", Keras adds another layer that divides once more.
    """
    if isinstance(layer, keras.layers.Normalization):
        variance = [deviation**2 for deviation in _DEVIATION]
        return keras.layers.Normalization(axis=layer.axis, mean=_MEAN, variance=variance, name=layer.name)
    return layer.__class__.from_config(layer.get_config())
