"""Makes batches from the rows of windows: decodes them if needed, augments them (XLA), adds labels and weights."""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import tensorflow as tf

from pipeline.augmentation.base import ImageStatistics, Recipe, Unaugmented
from pipeline.augmentation.composed import Augmenter, cropping_of, cut, unmixed
from pipeline.augmentation.geometry import CroppingRecipe
from pipeline.augmentation.libraries import library_of, user_recipe
from pipeline.augmentation.recipes import make_recipe
from pipeline.batch import AUGMENT, DECODE, GATHER, NUMBERS, WEIGHTS
from pipeline.batch.weights import of_classes, times
from pipeline.decode.annotation import Annotations
from pipeline.decode.forms import Examples, Form, PixelRows
from pipeline.errors import UsageError
from pipeline.manifest.manifest import BOX_LABELS, BOXES, POINT_LABELS, POINTS
from pipeline.order import graph_hashing
from pipeline.order.feed import WindowPlan
from pipeline.order.hashing import Domain
from pipeline.read import window
from pipeline.read.window import Columns
from pipeline.records.annotation import WEIGHT
from pipeline.request import AUGMENT_EPOCH, AUGMENT_KEY, BOTH, DEVICE, HOST, JobOptions, Request, Taking
from pipeline.resolved import ResolvedInput, ResolvedRequest, resolve_all


class RealRows(NamedTuple):
    """The part of a `WindowPlan` that makes elements of rows; see there."""

    epoch: tf.Tensor
    real: tf.Tensor
    real_rows: tf.Tensor


@dataclasses.dataclass(frozen=True, eq=False)
class Batches:
    """Turns a window's rows into the batches that the user receives.

    Attributes:
      resolved: request with its data set.
      form: form that makes examples from columns.
      recipe: input's part of the augmentation; None if the user's parser returns everything.
      by_passes: whether compiled code may augment; not in a dataset that another process runs.
      annotations: masks, boxes and points to feed; None if there are none.
      until: last stage to run; `pipeline.bench` uses it to time stages. None runs all of them.
    """

    resolved: ResolvedRequest
    form: Form
    recipe: Recipe | None
    by_passes: bool = False
    annotations: Annotations | None = None
    until: str | None = None

    def element(self, taken: Columns, plan: WindowPlan | RealRows, number: tf.Tensor) -> tuple[Any, ...]:
        """Returns an element of a window: (x, labels, weights), and record ids if requested.

        If the user's parser returns neither (x, y) nor (x, y, sample_weight), it is (parsed, weights).

        Args:
          taken: rows of the element, by column.
          plan: plan of the window.
          number: number of the element, int64 scalar; or numbers of several, (elements,), which gives every component a
            leading axis.
        """
        records, real = taken[window.RECORD_ID], tf.gather(plan.real, number)
        if window.GOOD in taken:  # skipped records have weight 0, like padding
            real = tf.logical_and(real, taken[window.GOOD])
        if self.until == NUMBERS:  # costs no more than tf.data itself
            return (number[..., None] + tf.zeros([records.shape[-1]], tf.int64),)
        if self.until == GATHER:
            return tuple(taken.values())
        weights = self._weights(real, tf.gather(plan.real_rows, number), has_skipped=window.GOOD in taken)
        if self.until == WEIGHTS:
            return (*weights, *self._ids(records))
        taken = {name: column for name, column in taken.items() if name not in (window.RECORD_ID, window.GOOD)}
        examples = self.form.examples(taken, lambda: self.keys_of(plan.epoch, records), records)
        examples = dataclasses.replace(examples, labels=self._renumbered(examples.labels))
        if self.until == DECODE:
            return examples.images, examples.labels, records
        x, labels = examples.images, examples.labels
        if self.recipe is not None:
            x, labels = self._augmented(taken, examples, plan.epoch, records, real)
            if self.until == AUGMENT:
                return x, labels, records
        targets = [] if labels is None else [labels]
        return (x, *targets, *self._of_examples(weights, labels, examples.sample_weight), *self._ids(records))

    @property
    def are_stored(self) -> bool:
        """Whether elements are unchanged rows of the window, so that `stored` can return them."""
        return isinstance(self.form, PixelRows) and self.hands_on and self.annotations is None

    def stored(self, columns: Columns, plan: WindowPlan, stop: tf.Tensor, rows: int) -> tuple[Any, ...]:
        """Returns the contiguous elements of a window together, in the window's memory, with a leading axis.

        Args:
          columns: columns of the window.
          plan: plan of the window, from `with_contiguous_elements`.
          stop: number of the element after the last.
          rows: number of rows per element.
        """
        first = plan.contiguous[0]
        together = {
            name: tf.reshape(column[: (stop - first) * rows], [-1, rows, *column.shape[1:]])
            for name, column in columns.items()
        }
        real = together.pop(window.GOOD, tf.ones([stop - first, rows], tf.bool))
        records = together.pop(window.RECORD_ID)
        weights = self._weights(real, plan.real_rows[first:stop], has_skipped=window.GOOD in columns)
        images, labels = self.form.as_images(together.pop("image")), self._renumbered(together.pop("label"))
        together |= self._for_device(plan.epoch, records)
        weights = self._of_examples(weights, labels)
        return {"image": images, **together} if together else images, labels, *weights, *self._ids(records)

    def _renumbered(self, labels: tf.Tensor | None) -> tf.Tensor | None:
        """Returns the labels to feed for the data set's labels: the classes of a view are renumbered."""
        new = self.resolved.new_labels
        return labels if new is None else tf.gather(tf.constant(new), tf.math.floormod(labels, len(new)))

    def _augmented(
        self, taken: Columns, examples: Examples, epoch: tf.Tensor, records: tf.Tensor, real: tf.Tensor
    ) -> tuple[Any, tf.Tensor | None]:
        """Returns x and the labels. If the device augments too, x includes the keys it needs.

        Args:
          taken: columns of the batch's rows, (rows, ...) each.
          examples: examples made from them, with the keys of copy 0.
          epoch: int64 scalar.
          records: record ids, int64 (rows,).
          real: mask of the rows that are neither padding nor skipped, bool (rows,).
        """
        images, labels = examples.images, examples.labels
        if self.resolved.request.images_per_record > 1 and not self._copies_are_alike:
            images, labels = self._copied(taken, examples, epoch, records, real)
        elif self.on_device:
            images = self.form.as_images(images)
        else:
            images, labels = self._augmenter(images, labels, epoch, records, real)
        features = examples.features
        if self.annotations is not None:
            features, labels = self._placed(features, labels, epoch, records)
        features = {**features, **self._for_device(epoch, records)}
        return {"image": images, **features} if features else images, labels

    def _placed(
        self, features: Columns, labels: tf.Tensor | None, epoch: tf.Tensor, records: tf.Tensor
    ) -> tuple[Columns, Any]:
        """Returns the features with masks, boxes and points as they lie on the images that are fed, and the labels."""
        request, annotations = self.resolved.request, self.annotations
        assert annotations is not None
        names = [own for name in annotations.features for own in (name, name + WEIGHT) if own in features]
        keys = self.keys_of(epoch, records)
        moved = annotations.moved({name: features[name] for name in names}, keys)
        if POINTS in moved and POINT_LABELS in features:
            feature = self.resolved.manifest.features[POINT_LABELS]
            features = {
                **features,
                POINT_LABELS: annotations.renamed(features[POINT_LABELS], feature.class_names, keys),
            }
        if request.label in moved:
            own = {name: values for name, values in moved.items() if name.removesuffix(WEIGHT) == request.label}
            own |= {name: moved[name] for name in (BOX_LABELS,) if name in moved and request.label == BOXES}
            labels = own if len(own) > 1 else own[request.label]
        fed = {name: values for name, values in moved.items() if name.removesuffix(WEIGHT) in request.features}
        return {**{name: values for name, values in features.items() if name not in names}, **fed}, labels

    def _copied(
        self, taken: Columns, examples: Examples, epoch: tf.Tensor, records: tf.Tensor, real: tf.Tensor
    ) -> tuple[tf.Tensor, tf.Tensor | None]:
        """Returns images with the copies' axis after the rows' axis, and the labels of copy 0.

        In an evaluation copy 0 is not augmented; the others are, without mixing rows.
        """
        first, labels = examples.images, examples.labels
        form, copies = self.form, []
        if not self.resolved.order.training:
            evaluated, labels = self._augmenter(first, labels, epoch, records, real)
            form, copies = self.form.augmented, [evaluated]
        for copy in range(len(copies), self.resolved.request.images_per_record):
            keys = functools.partial(self.keys_of, epoch, records, copy)
            images = form.examples(taken, keys, records).images if copy and form.draws else first
            if self.on_device:
                copies.append(form.as_images(images))
            else:
                copies.append(self._copier(images, examples.labels, epoch, keys(), real)[0])
        if any(copy.shape != copies[0].shape or copy.dtype != copies[0].dtype for copy in copies):
            kinds = [f"{copy.dtype.name} {copy.shape[records.shape.rank :]}" for copy in copies[:2]]
            raise UsageError(
                f"eval_copies: the augment function returns {kinds[0]} in evaluations and {kinds[1]} in training; "
                "copies of an image must be alike"
            )
        return tf.stack(copies, axis=records.shape.rank), labels

    @property
    def _copies_are_alike(self) -> bool:
        """Whether copies of a record differ only in the keys from which the device augments them."""
        return not self.form.draws and (self.on_device or isinstance(self.recipe, Unaugmented))

    def _for_device(self, epoch: tf.Tensor, records: tf.Tensor) -> Columns:
        """Returns the features that a device needs to augment rows; empty if it does not augment."""
        request = self.resolved.request
        if request.augment_on == HOST:
            return {}
        if request.images_per_record > 1:
            each = [self.keys_of(epoch, records, copy) for copy in range(request.images_per_record)]
            return {AUGMENT_KEY: tf.stack(each, axis=records.shape.rank)}
        keys = self.keys_of(epoch, records)
        return {AUGMENT_KEY: keys, **({AUGMENT_EPOCH: tf.fill(tf.shape(keys), epoch)} if request.mixes else {})}

    @property
    def on_device(self) -> bool:
        """Whether the replicas' steps do everything with the images, which are handed on unchanged."""
        return self.resolved.request.augment_on == DEVICE

    @property
    def hands_on(self) -> bool:
        """Whether images are handed on unaugmented."""
        return self.on_device or (isinstance(self.recipe, Unaugmented | CroppingRecipe) and self.recipe.hands_on)

    @property
    def alias_window(self) -> bool:
        """Whether the user's images may share memory with the rows they are made from."""
        return self.on_device or self.recipe is None or self.recipe.hands_on

    @functools.cached_property
    def _augmenter(self) -> Augmenter:
        assert self.recipe is not None
        return augmenter_of(self.resolved, self.recipe, self.by_passes, self.keys_of, self.form.as_images)

    @functools.cached_property
    def _copier(self) -> Augmenter:
        """Augments copies, given their keys, without mixing rows."""
        assert self.recipe is not None
        made = augmenter_of(
            self.resolved, unmixed(self.recipe), self.by_passes, lambda epoch, keys: keys, self.form.as_images
        )
        return dataclasses.replace(made, training=True)

    def keys_of(self, epoch: tf.Tensor, records: tf.Tensor, copy: int = 0) -> tf.Tensor:
        """Returns the key of a copy of each record in an epoch, uint64, from which all its augmentations are drawn.

        Copies in an evaluation are the same in each epoch.
        """
        order = self.resolved.order
        if copy == 0:
            return graph_hashing.derive_key(Domain.AUGMENT, order.seed, epoch, records)
        return graph_hashing.derive_key(Domain.AUGMENT, order.seed, epoch if order.training else 0, records, copy)

    def _weights(self, real: tf.Tensor, real_rows: tf.Tensor, has_skipped: bool) -> list[tf.Tensor]:
        """Returns the float32 weights of the rows of one or several elements, in a list; empty without weights.

        Args:
          real: mask of the rows that are neither padding nor skipped, bool (rows,) or (elements, rows).
          real_rows: rows of each element's global batch that are not padding.
          has_skipped: whether rows may be skipped; the element is then a global batch.
        """
        request, weights = self.resolved.request, tf.cast(real, tf.float32)
        if request.weights == "mean":
            # Keras divides the sum by the batch size G. Weights of G / real rows make that the mean over real rows.
            count = tf.cast(real_rows, tf.float32)
            if has_skipped:  # the plan does not know skipped rows
                count = tf.reduce_sum(weights, axis=-1)
            if has_skipped or request.skip_steps:  # a step may have no real row
                count = tf.maximum(count, 1.0)
            weights *= (self.resolved.order.global_batch_size / count)[..., None]
        return [] if request.weights == "none" else [weights]

    def _of_examples(self, weights: list[tf.Tensor], labels: Any, sample_weight: Any = None) -> list[Any]:
        """Returns the sample weights: the rows' weights, times class factors, times the user's own."""
        class_weight = self.resolved.request.class_weight
        if class_weight:
            weights = [times(weights[0], of_classes(class_weight, labels, is_image=self.recipe is not None))]
        if sample_weight is None:
            return weights
        if not weights:
            return [sample_weight]
        return [tf.nest.map_structure(lambda own: times(own, weights[0]), sample_weight)]

    def _ids(self, records: tf.Tensor) -> list[tf.Tensor]:
        """Returns the record ids of rows, given their ids in the order, in a list; empty if they are not requested."""
        if not self.resolved.request.record_ids:
            return []
        order = self.resolved.order
        return [records % order.num_stored if order.repeats else records]


def recipes_of(resolved: ResolvedRequest) -> tuple[Recipe | None, Recipe | None]:
    """Returns the parts of a request's recipe for the input and for the replicas' steps; None for nothing to augment.

    Raises:
      UsageError: there is no such recipe, it does not fit the images, or it has no part for the steps.
    """
    recipe, place = recipe_of(resolved), resolved.request.augment_on
    if recipe is None or place == HOST:
        return recipe, None
    if place == DEVICE:
        return recipe, recipe  # the input crops while it decodes
    parts = cut(recipe)
    if parts is None:
        raise UsageError(
            f"augment_on={BOTH!r} with augment={resolved.request.augment!r}: is not known to make floats of pixels, "
            "which is what the device would do; use 'host' or 'device'"
        )
    return parts


def best_place(inputs: Sequence[ResolvedInput], on_gpus: bool) -> str:
    """Returns the value of `augment_on` that sends few bytes across the bus and keeps steps short.

    That is `both` if it sends pixels as uint8 instead of float32, else `host`. The input keeps operations on whole
    images, as its compiled code is faster than a step; the rest fuses into the step's first operation.

    Args:
      inputs: training inputs of the phases, all of which get the place.
      on_gpus: whether the replicas are on GPUs.
    """
    for request in (one.request for one in inputs):
        if not on_gpus or (request.mixes and (request.is_mixture or request.class_weight)):
            return HOST
    recipes = [recipe_of(one.first) for one in inputs]
    return BOTH if all(recipe is not None and cut(recipe) for recipe in recipes) else HOST


def recipe_of(resolved: ResolvedRequest) -> Recipe | None:
    """Returns a request's recipe; None if the user's parser returns everything.

    Raises:
      UsageError: there is no such recipe, or it does not fit the images.
    """
    augment = resolved.request.augment
    if resolved.request.parse is not None:
        return None
    if library_of(augment) or callable(augment):
        return user_recipe(augment, no_python=no_python(resolved.request))
    if not isinstance(augment, str | None):
        raise UsageError(f"augment={augment!r}: must be a recipe's name, a function of (images, keys), or None")
    recipe = make_recipe("none" if augment is None else augment)
    cropping = cropping_of(recipe)
    image = resolved.manifest.features.get("image")
    channels = (image.shape[2] if image else None) or 3
    recipe.check((*cropping.crop(True).size, channels) if cropping else resolved.image_shape or (0, 0, 0))
    return recipe


def is_read_by_graph(request: Request) -> bool:
    """Whether TensorFlow's own ops read the data, so that any process can run the dataset."""
    return request.portable or tf.inside_function()


def no_python(request: Request) -> str:
    """Returns the reason why a request's functions may not call Python, for `UserFunction`; "" if they may."""
    if not is_read_by_graph(request):
        return ""
    how = "portable=True" if request.portable else "a dataset made inside a tf.function, as for parameter servers,"
    return f"{how} runs the input in other processes"


def augmenter_of(
    resolved: ResolvedRequest,
    recipe: Recipe,
    by_passes: bool,
    keys_of: Callable[[tf.Tensor, tf.Tensor], tf.Tensor],
    images_of: Callable[[tf.Tensor], tf.Tensor],
) -> Augmenter:
    """Returns the augmentation for a request's batches; for the other arguments see `Augmenter`."""
    of = resolved.statistics
    statistics = ImageStatistics(of.image_mean, of.image_std)
    classes = len(resolved.class_names)
    return Augmenter(recipe, statistics, classes, resolved.order.training, by_passes, keys_of, images_of)


class DeviceAugmentation:
    """Does a device's part of the augmentation, with `augment_on="device"` or `"both"`.

    Call it inside a replica's step, in a `tf.function`.

    The draws are identical to the host's. The images agree within 2e-5, because floating-point operations may round
    differently on another kind of device.

    Args:
      resolved: request with its data set; for a mixture any source's, as all augment alike.

    Raises:
      UsageError: there is no such recipe, or it does not fit the images.
    """

    def __init__(self, resolved: ResolvedRequest) -> None:
        _, recipe = recipes_of(resolved)
        assert recipe is not None
        self._augmenter = augmenter_of(resolved, recipe, False, lambda epoch, keys: keys, lambda images: images)

    def __call__(self, x: dict[str, tf.Tensor], labels: Any, weights: tf.Tensor) -> tuple[Any, Any, tf.Tensor]:
        """Returns (images, labels, weights) of a batch, as with `augment_on="host"`.

        Args:
          x: images, uint8 (rows, height, width, channels); keys, (rows,) or (rows, copies); and other features, if any.
            Copies of which the input has decoded different parts are images (rows, copies, height, width, channels).
          labels: int64 (rows,), or as in the manifest's feature.
          weights: sample weights, float32 (rows,).
        """
        features = {name: value for name, value in x.items() if name not in (AUGMENT_KEY, AUGMENT_EPOCH)}
        keys, epoch = x[AUGMENT_KEY], x.get(AUGMENT_EPOCH, tf.constant(0, tf.int64))
        images, real = features.pop("image"), weights > 0
        if keys.shape.rank == 1:
            images, labels = self._augmenter(images, labels, epoch, keys, real)
        else:
            each = tf.unstack(images, axis=1) if images.shape.rank == 5 else [images] * keys.shape[1]
            made = zip(each, tf.unstack(keys, axis=1), strict=True)
            images = tf.stack([self._augmenter(one, labels, epoch, key, real)[0] for one, key in made], axis=1)
        return {"image": images, **features} if features else images, labels, weights


@Taking(JobOptions)
def augment_fn(options: JobOptions) -> DeviceAugmentation:
    """Returns a function that augments batches in a replica's step, for `augment_on="device"` or `"both"`.

        options = dict(global_batch_size=1024, training=True, augment="pad_crop_flip | mixup", augment_on="device")
        batches, augment = distribute(strategy, "cifar10", **options), augment_fn("cifar10", **options)

        def step(batch):  # in strategy.run
            images, labels, weights = augment(*batch)

    Args:
      options: arguments of the `input_fn` or `distribute` call that makes the batches.

    Raises:
      DataError: no valid data set in `data_dir`.
      UsageError: a value that cannot work, or `augment_on` is `host`.
    """
    request = Request(**vars(options))
    if request.augment_on == HOST:
        raise UsageError(f"augment_fn: augment_on={HOST!r}: the input augments by itself; give 'device' or 'both'")
    return DeviceAugmentation(resolve_all(request).first)
