"""The model as it is served: raw images in, probabilities and class names out."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence

import keras
import tensorflow as tf
from keras import ops

from pipeline.distort.base import ImageStatistics
from pipeline.distort.recipes import make_recipe
from pipeline.errors import UsageError
from trainer.exporting.fitting import Fitting, fitting_of
from trainer.exporting.plain_layers import plain
from trainer.exporting.preprocessing import preprocess
from trainer.task.data_spec import classes_of, gives_probabilities, shape_of
from trainer.trained import Trained


@dataclasses.dataclass(frozen=True, eq=False)
class Served:
    """A model of raw images.

    Attributes:
      core: uint8 images (None, height, width, channels) to probabilities, float32 (None, classes).
      fitting: brings images of any size to that of the core; None: all have it.
      class_names: by class number, each another one.
    """

    core: keras.Model
    fitting: Fitting | None
    class_names: tuple[str, ...]

    @property
    def core_shape(self) -> tuple[int, int, int]:
        """(height, width, channels) of the images that the core takes."""
        _, height, width, channels = self.core.input_shape
        return height, width, channels

    def spec(self, any_size: bool, rows: int | None = None) -> tf.TensorSpec:
        """Returns the specification of the images: of any size where that is wanted and they may have one."""
        shape = (None, None, self.core_shape[2]) if any_size and self.fitting else self.core_shape
        return tf.TensorSpec((rows, *shape), tf.uint8, name="images")

    def numbers(self, images: tf.Tensor) -> dict[str, tf.Tensor]:
        """Returns `probabilities`, float32 (n, classes), and `class`, int64 (n,), of images of the core's size."""
        probabilities = self.core(images, training=False)
        return {"probabilities": probabilities, "class": tf.argmax(probabilities, axis=-1)}

    def outputs(self, images: tf.Tensor) -> dict[str, tf.Tensor]:
        """Returns the numbers and `class_name`, string (n,)."""
        found = self.numbers(images)
        return {**found, "class_name": tf.gather(tf.constant(self.class_names), found["class"])}


def served(trained: Trained) -> Served:
    """Returns a model as it is served.

    Raises:
      UsageError: its outputs are no classes, or its inputs no images.
    """
    request, data = trained.split.request, trained.state.task.data
    if request.parse is not None:
        raise UsageError(f"--task={trained.config.model.task}: parses records itself, so it has no images to serve")
    names = classes_of(trained.model, data)
    if names is None:
        raise UsageError(
            f"{trained.name}: gives outputs of shape {shape_of(trained.model, data)}, not one for each of the "
            f"{len(data.class_names)} classes; only such a model can be exported"
        )
    manifest = trained.split.manifest
    recipe = make_recipe(trained.config.data.distort, "--distort")
    channels = manifest.features["image"].shape[2] or 3
    fitting = fitting_of(request, recipe, channels)
    shape = (*fitting.crop.size, channels) if fitting else trained.split.image_shape
    images = keras.Input(shape, dtype="uint8", name="images")
    measured = trained.split.statistics
    pixels = preprocess(recipe, images, ImageStatistics(measured.image_mean, measured.image_std))
    return Served(keras.Model(images, _probabilities(trained, pixels)), fitting, _told_apart(names))


def _probabilities(trained: Trained, pixels: keras.KerasTensor) -> keras.KerasTensor:
    model = trained.model
    wanted = model.inputs[0].dtype if getattr(model, "inputs", None) else "uint8"
    if pixels.dtype == "uint8" and wanted != "uint8":
        pixels = ops.cast(pixels, wanted)  # as `Forward` does in training
    core = plain(model)
    outputs = core(pixels)
    if trained.state.eval_flip:
        both = (outputs, core(ops.flip(pixels, axis=2)))
        outputs = ops.divide(ops.add(*(ops.cast(each, "float32") for each in both)), 2.0)
    if gives_probabilities(model):
        return keras.layers.Activation("linear", dtype="float32", name="probabilities")(outputs)
    return keras.layers.Softmax(dtype="float32", name="probabilities")(outputs)


def _told_apart(names: Sequence[str]) -> tuple[str, ...]:
    """Returns the names; of those that are there twice, with the class number."""
    return tuple(name if list(names).count(name) == 1 else f"{name} ({number})" for number, name in enumerate(names))
