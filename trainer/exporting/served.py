"""The served model: raw images in, probabilities and class names out, without layers of our own.

Evaluation preprocessing is expressed in Keras' own operations, so that an exported model loads without our code.
"""

from __future__ import annotations

import dataclasses
import functools
import pathlib
from collections.abc import Callable, Sequence
from typing import Any

import keras
import numpy as np
import tensorflow as tf
from keras import ops
from numpy.typing import NDArray

from pipeline import operations
from pipeline.augmentation.base import (
    Augmentation,
    Crop,
    ImageStatistics,
    Recipe,
    Unaugmented,
    UserAugmented,
    output_spec,
)
from pipeline.augmentation.cifar10_tutorial import Cifar10Tutorial
from pipeline.augmentation.composed import Composed, cropping_of, unmixed
from pipeline.augmentation.geometry import CroppingRecipe, PadCropFlip, Resize, Shift
from pipeline.augmentation.kernels import BETWEEN_BITS, WEIGHT_BITS, whole_weights
from pipeline.augmentation.pixels import Normalize
from pipeline.batch.batches import augmenter_of, recipe_of
from pipeline.decode.images import Stretched, resize
from pipeline.errors import UsageError
from pipeline.images import resized
from pipeline.order.hashing import Domain, derive_key
from pipeline.request import Request
from trainer.inference import Trained
from trainer.models.layers import LocalResponseNorm, ScalePixels
from trainer.task import classes_of, gives_probabilities, shape_of

_LEAST_STD = 1e-3  # for a channel that never varies, as in `pipeline.augmentation.kernels.normalise`


@functools.singledispatch
def preprocess(recipe: Recipe, images: keras.KerasTensor, statistics: ImageStatistics) -> keras.KerasTensor:
    """Does what `recipe.evaluate` does, for a batch of any size.

    Args:
      recipe: named recipe.
      images: images, uint8 (None, height, width, channels), static except for the number of rows.
      statistics: statistics of the training images.

    Raises:
      UsageError: the recipe is a user's function that changes images in evaluations.
    """
    raise UsageError(f"--augment: {type(recipe).__name__} cannot be exported; only named recipes can")


@preprocess.register
def _user_augmented(recipe: UserAugmented, images: keras.KerasTensor, statistics: ImageStatistics) -> keras.KerasTensor:
    del statistics
    shape = tuple(images.shape[1:])
    if not recipe.keeps_values(shape):
        raise UsageError(
            "Task.augment: changes images in evaluations, too, and an export cannot hold your function; let it return "
            "them unchanged if `training` is false, and put what the model needs into the model"
        )
    return ops.cast(images, output_spec(recipe, shape).dtype.name)


@preprocess.register
def _composed(recipe: Composed, images: keras.KerasTensor, statistics: ImageStatistics) -> keras.KerasTensor:
    return functools.reduce(lambda given, one: preprocess(one, given, statistics), recipe.recipes, images)


@preprocess.register(Augmentation | Unaugmented | Normalize | PadCropFlip | CroppingRecipe)
def _normalised(recipe: Recipe, images: keras.KerasTensor, statistics: ImageStatistics) -> keras.KerasTensor:
    if not recipe.normalizes:
        return images
    mean, std = np.asarray(statistics.mean, np.float32), np.asarray(statistics.std, np.float32)
    return ops.divide(ops.subtract(_floats(images), mean), np.maximum(std, np.float32(_LEAST_STD)))


@preprocess.register
def _resize(recipe: Resize, images: keras.KerasTensor, statistics: ImageStatistics) -> keras.KerasTensor:
    del statistics
    _, height, width, _ = images.shape
    down, across = (whole_weights(*sizes) for sizes in ((height, recipe.height), (width, recipe.width)))
    tall = ops.round(ops.einsum("oh,bhwc->bowc", down, _floats(images)) * 2.0 ** (BETWEEN_BITS - WEIGHT_BITS))
    wide = ops.round(ops.einsum("pw,bowc->bopc", across, tall) * 2.0 ** -(BETWEEN_BITS + WEIGHT_BITS))
    return ops.cast(wide, "uint8")


@preprocess.register
def _shift(recipe: Shift, images: keras.KerasTensor, statistics: ImageStatistics) -> keras.KerasTensor:
    del recipe, statistics
    return ops.divide(_floats(images), 255.0)


@preprocess.register
def _cifar10_tutorial(
    recipe: Cifar10Tutorial, images: keras.KerasTensor, statistics: ImageStatistics
) -> keras.KerasTensor:
    del statistics
    _, height, width, channels = images.shape
    top, left, side = (height - recipe.crop) // 2, (width - recipe.crop) // 2, recipe.crop
    pixels = _floats(images[:, top : top + side, left : left + side, :])
    if not recipe.standardize:
        return pixels
    each_image: Callable[[keras.KerasTensor], keras.KerasTensor] = functools.partial(
        ops.mean, axis=(1, 2, 3), keepdims=True
    )
    centred = ops.subtract(pixels, each_image(pixels))
    deviation = ops.sqrt(each_image(ops.square(centred)))
    # tf.image.per_image_standardization: adjusted_stddev = max(stddev, 1 / sqrt(number of values)).
    return ops.divide(centred, ops.maximum(deviation, (side * side * channels) ** -0.5))


def _floats(images: keras.KerasTensor) -> keras.KerasTensor:
    return ops.cast(images, "float32")


@dataclasses.dataclass(frozen=True)
class Fitting:
    """Resizes raw images to the model's size as the input does when it decodes them.

    Attributes:
      crop: part to crop, and the size of the result.
      channels: number of channels of the images.
    """

    crop: Crop
    channels: int

    def fit(self, images: tf.Tensor, key: int = 0) -> tf.Tensor:
        """Fits images, uint8 (n, height, width, channels) to (n, *crop.size, channels); the key seeds a random crop."""
        size, shape = self.crop.size, tf.shape(images)
        top, left, height, width = tf.unstack(self.crop.box(shape[1], shape[2], tf.constant(key, tf.uint64)))
        parts = images[:, top : top + height, left : left + width, :]
        spec = tf.TensorSpec((*size, self.channels), tf.uint8)
        stretched = lambda: tf.map_fn(lambda part: resize(part, size), parts, fn_output_signature=spec)  # noqa: E731
        fitted = tf.cond(tf.logical_and(height == size[0], width == size[1]), lambda: parts, stretched)
        return tf.ensure_shape(fitted, (None, *size, self.channels))

    def fit_one(self, image: NDArray[np.uint8], key: int = 0) -> NDArray[np.uint8]:
        """Returns the result of `fit` for one image."""
        return np.asarray(self.fit(tf.constant(image[None]), key))[0]


@dataclasses.dataclass(frozen=True, eq=False)
class Served:
    """A model of raw images.

    Attributes:
      core: model from uint8 images (None, height, width, channels) to probabilities, float32 (None, classes).
      fitting: object that brings images of any size to the core's size; None if they all have it.
      class_names: unique names by class number.
    """

    core: keras.Model
    fitting: Fitting | None
    class_names: tuple[str, ...]

    @property
    def core_shape(self) -> tuple[int, int, int]:
        """(height, width, channels) of the images that the core takes."""
        _, height, width, channels = self.core.input_shape
        return height, width, channels

    @property
    def in_words(self) -> str:
        """A description of inputs and outputs in one line."""
        height, width, channels = self.core_shape
        fitted = f" of any size, fitted to {height}x{width}" if self.fitting else f" of {height}x{width}x{channels}"
        outputs = f"probabilities, class and class_name of {len(self.class_names)} classes"
        return f"in: uint8 images{fitted}; out: {outputs}"

    def fit(self, image: NDArray[np.uint8]) -> NDArray[np.uint8]:
        """Returns an image of any size in the core's size, resized as in the run's input."""
        return self.fitting.fit_one(image) if self.fitting else resized(image, self.core_shape[:2])

    @functools.cached_property
    def probabilities(self) -> Callable[[NDArray[np.uint8]], NDArray[np.float32]]:
        """A function from images of the core's size, uint8 (n, ...), to their probabilities, float32 (n, classes)."""
        spec = tf.TensorSpec((None, *self.core_shape), tf.uint8)
        core = tf.function(self.core, autograph=False, input_signature=[spec])
        return lambda batch: np.asarray(core(tf.constant(batch)))

    def save(self, path: pathlib.Path) -> None:
        """Writes a SavedModel."""
        fitting = self.fitting
        archive = keras.export.ExportArchive()
        archive.track(self.core)
        serve = (lambda images: self.outputs(fitting.fit(images))) if fitting else self.outputs
        archive.add_endpoint("serve", serve, input_signature=[self.spec(any_size=True)])
        archive.write_out(str(path), verbose=False)

    def spec(self, any_size: bool, rows: int | None = None) -> tf.TensorSpec:
        """Returns the specification of the images, of any size if requested and if the model fits them."""
        shape = (None, None, self.core_shape[2]) if any_size and self.fitting else self.core_shape
        return tf.TensorSpec((rows, *shape), tf.uint8, name="images")

    def outputs(self, images: tf.Tensor) -> dict[str, tf.Tensor]:
        """Returns the outputs for images of the core's size, in the form of `of_classes`."""
        return of_classes(self.core(images, training=False), self.class_names)


def of_classes(probabilities: tf.Tensor, names: Sequence[str]) -> dict[str, tf.Tensor]:
    """Returns `probabilities`, float32 (n, classes), as given, `class`, int64 (n,), and `class_name`, string (n,)."""
    numbers = tf.argmax(probabilities, axis=-1)
    return {"probabilities": probabilities, "class": numbers, "class_name": tf.gather(tf.constant(names), numbers)}


class Augmented:
    """A model whose probabilities are averaged over copies of an image: itself, and others augmented as in training.

    Every image counts as record 0 of epoch 0, so that its probabilities do not depend on other images.
    """

    def __init__(self, trained: Trained, model: Served, copies: int) -> None:
        """Prepares the augmentation.

        Args:
          trained: trained model, with its training recipe.
          model: served form of the model.
          copies: number of copies, 2 or more.

        Raises:
          UsageError: the run has no augmentation.
        """
        dataclasses.replace(trained.split.request, eval_copies=copies)  # raises the error if nothing is augmented
        recipe = recipe_of(trained.split)
        assert recipe is not None
        self._model, self._cropping = model, cropping_of(recipe)
        order = trained.split.order
        self._keys = [int(derive_key(Domain.AUGMENT, order.seed, 0, 0, copy)) for copy in range(1, copies)]
        augmenter = augmenter_of(
            trained.split, unmixed(recipe), operations.is_compiled(), lambda epoch, keys: keys, lambda images: images
        )
        self._augmenter = dataclasses.replace(augmenter, training=True)
        spec = output_spec(recipe, model.core_shape)
        features = keras.Input(spec.shape[1:], dtype=spec.dtype.name)
        self._of_features = keras.Model(features, _probabilities(trained, features))

    def fit(self, image: NDArray[np.uint8]) -> NDArray[np.uint8]:
        """Returns the copies of an image before augmentation, uint8 (copies, height, width, channels)."""
        evaluated = self._model.fit(image)
        if self._cropping is None:
            return np.stack([evaluated] * (1 + len(self._keys)))
        fitting = Fitting(self._cropping.crop(training=True), image.shape[2])
        return np.stack([evaluated, *(fitting.fit_one(image, key) for key in self._keys)])

    def probabilities(self, copies: NDArray[np.uint8]) -> NDArray[np.float32]:
        """Returns the mean probabilities, float32 (n, classes), for stacked results of `fit`."""
        rows = len(copies)
        more = (1 << (rows - 1).bit_length()) - rows  # each batch size is traced and compiled: use few
        filled = np.concatenate([copies, np.repeat(copies[-1:], more, axis=0)])
        return np.asarray(self._means(tf.constant(filled)))[:rows]

    @tf.function(autograph=False)
    def _means(self, copies: tf.Tensor) -> tf.Tensor:
        none = tf.zeros(copies.shape[0], tf.int64)
        found = [self._model.core(copies[:, 0], training=False)]
        for number, key in enumerate(self._keys, 1):
            keys = tf.fill([copies.shape[0]], tf.constant(key, tf.uint64))
            features, _ = self._augmenter(copies[:, number], none, tf.constant(0, tf.int64), keys, none > 0)
            found.append(self._of_features(features, training=False))
        return tf.add_n(found) / len(found)


def served(trained: Trained) -> Served:
    """Returns the served form of a model.

    Raises:
      UsageError: its outputs are not classes, or its inputs are not images.
    """
    data = trained.state.task.data
    names = classes_of(trained.model, data)
    if names is None:
        raise UsageError(
            f"{trained.name}: gives outputs of shape {shape_of(trained.model, data)}, not one for each of the "
            f"{len(data.class_names)} classes; only such a model can be exported"
        )
    images, pixels, fitting = _input(trained)
    return Served(keras.Model(images, _probabilities(trained, pixels)), fitting, told_apart(names))


def model_of_images(trained: Trained) -> tuple[keras.Model, Fitting | None]:
    """Returns the model from raw images to its unchanged outputs, and the `Fitting` for images of any size."""
    images, pixels, fitting = _input(trained)
    return keras.Model(images, _outputs(trained, pixels)), fitting


def _input(trained: Trained) -> tuple[keras.KerasTensor, keras.KerasTensor, Fitting | None]:
    """Returns raw images, the model's input made from them, and the `Fitting` for images of any size."""
    request, manifest, recipe = trained.split.request, trained.split.manifest, recipe_of(trained.split)
    assert recipe is not None
    channels = manifest.features["image"].shape[2] or 3
    fitting = fitting_of(request, recipe, channels)
    shape = (*fitting.crop.size, channels) if fitting else trained.split.image_shape
    images = keras.Input(shape, dtype="uint8", name="images")
    measured = trained.split.statistics
    return images, preprocess(recipe, images, ImageStatistics(measured.image_mean, measured.image_std)), fitting


def _probabilities(trained: Trained, pixels: keras.KerasTensor) -> keras.KerasTensor:
    outputs = _outputs(trained, pixels)
    if gives_probabilities(trained.model):
        return keras.layers.Activation("linear", dtype="float32", name="probabilities")(outputs)
    return keras.layers.Softmax(dtype="float32", name="probabilities")(outputs)


def _outputs(trained: Trained, pixels: keras.KerasTensor) -> Any:
    model = trained.model
    wanted = model.inputs[0].dtype if getattr(model, "inputs", None) else "uint8"
    if pixels.dtype == "uint8" and wanted != "uint8":
        pixels = ops.cast(pixels, wanted)  # like `Forward` in training
    core = without_own_layers(model)
    outputs = core(pixels)
    if not trained.state.eval_flip:
        return outputs
    mirrored = core(ops.flip(pixels, axis=2))
    return keras.tree.map_structure(
        lambda *both: ops.divide(ops.add(*(ops.cast(each, "float32") for each in both)), 2.0), outputs, mirrored
    )


def told_apart(names: Sequence[str]) -> tuple[str, ...]:
    """Returns the names, with the class number added to names that several classes share."""
    return tuple(name if list(names).count(name) == 1 else f"{name} ({number})" for number, name in enumerate(names))


def fitting_of(request: Request, recipe: Recipe, channels: int) -> Fitting | None:
    """Returns how an evaluation resizes images to the model's size; None if they have it already."""
    if cropping := cropping_of(recipe):
        return Fitting(cropping.crop(training=False), channels)
    return Fitting(Stretched(request.size), channels) if request.size else None


def without_own_layers(model: keras.Model) -> keras.Model:
    """Returns a model without our own layers that shares all variables and outputs; the model itself if it has none."""
    if not any(isinstance(layer, ScalePixels | LocalResponseNorm) for layer in model.layers):
        return model
    if not isinstance(model, keras.Sequential):
        return keras.models.clone_model(model, clone_function=lambda layer: layer, call_function=_call_plainly)
    outputs = inputs = keras.Input(model.input_shape[1:], dtype=model.inputs[0].dtype)
    for layer in model.layers:
        outputs = _call_plainly(layer, outputs)
    return keras.Model(inputs, outputs, name=model.name)


def _call_plainly(layer: keras.layers.Layer, *arguments: Any, **options: Any) -> Any:
    if isinstance(layer, ScalePixels):
        (images,) = arguments
        return ops.divide(ops.cast(images, "float32"), 255.0) if images.dtype == "uint8" else images
    if isinstance(layer, LocalResponseNorm):
        return _response_normalised(*arguments)
    return layer(*arguments, **options)


def _response_normalised(activations: keras.KerasTensor) -> keras.KerasTensor:
    """Computes `LocalResponseNorm`: x / (1 + sum of 9 neighbours' squares * 0.001 / 9)^0.75."""
    channels = activations.shape[-1]
    squares = ops.pad(ops.square(activations), [[0, 0], [0, 0], [0, 0], [4, 4]])
    neighbours = [squares[..., i : i + channels] for i in range(9)]
    total = functools.reduce(ops.add, neighbours)
    return ops.divide(activations, ops.power(ops.add(ops.multiply(total, 0.001 / 9.0), 1.0), 0.75))
