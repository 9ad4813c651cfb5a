"""From image records to the image files, labels and features in them; and a check for undecodable records."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from typing import Any

import numpy as np
import tensorflow as tf
from numpy.typing import NDArray

from pipeline import operations
from pipeline.decode.images import InStrings, decode_file
from pipeline.errors import UsageError, root_cause, unknown
from pipeline.manifest import Feature, Manifest
from pipeline.manifest.manifest import NO_LABEL
from pipeline.records import tf_example

_DTYPES = {"int64": tf.int64, "float32": tf.float32, "string": tf.string}
_JUDGED_TOGETHER = 64  # images that one thread checks
_HASHES = (1 << 63) - 1  # range of text hashes; among a million names, two are unlikely to share one


@dataclasses.dataclass(frozen=True)
class ExampleParser:
    """Parses `tf.train.Example`s.

    Attributes:
      image, label: features of these names in the manifest.
      features: features to parse besides image and label, by name.
    """

    image: Feature
    label: Feature
    features: dict[str, Feature]

    @classmethod
    def wanted(cls, manifest: Manifest, names: tuple[str, ...]) -> ExampleParser:
        """Returns the parser for some features of a data set besides image and label.

        Raises:
          UsageError: there is no such feature, or it cannot be fed.
        """
        for name in names:
            feature = manifest.features.get(name)
            if feature is None or name in ("image", "label"):
                others = [other for other in manifest.features if other not in ("image", "label")]
                raise unknown("features", name, others)
            if None in feature.shape and len(feature.shape) > 1:
                raise UsageError(f"features: {name!r} has the shape {feature.shape}: only vectors may vary in length")
        features = {name: manifest.features[name] for name in names}
        return cls(manifest.features["image"], manifest.features["label"], features)

    def parse(self, records: tf.Tensor) -> tuple[tf.Tensor, tf.Tensor, dict[str, tf.Tensor]]:
        """Returns the images' bytes (n,), the labels (n, ...) and the features of serialized Examples (n,)."""
        found = tf.io.parse_example(records, {**self._image_and_label(), **self._kinds()})
        return (*self._image_and_label_of(found), self._features_of(found))

    def places(self, records: tf.Tensor) -> tuple[tf.Tensor, tf.Tensor]:
        """Finds images in records with a compiled operation: returns bounds, int64 (n, 2), and the labels (n, ...).

        An image's first bound is -1 if its record has an unusual form, which only TensorFlow's parser can read.
        """
        image, label = self.image.named("image"), self.label.named("label")
        if self.label.is_class and not self.label.texts:
            found = operations.find_images(records, image, label)
            return found[:, :2], self._labels(found[:, 2])
        found = operations.find_images(records, image, "")  # the operation reads no other labels
        return found[:, :2], self._labels(tf.io.parse_example(records, {label: self._label_kind()})[label])

    def find(self, records: tf.Tensor) -> tuple[InStrings, tf.Tensor, dict[str, tf.Tensor]]:
        """Does the same as `parse` with compiled operations, but only locates the images in the records."""
        places, found_labels = self.places(records)

        def in_place() -> tuple[tf.Tensor, ...]:
            return records, places, found_labels

        def parsed() -> tuple[tf.Tensor, ...]:
            images, labels = self._image_and_label_of(tf.io.parse_example(records, self._image_and_label()))
            sizes = tf.strings.length(images)
            ends = tf.cast(tf.stack([tf.zeros_like(sizes), sizes], axis=1), tf.int64)
            return images, ends, labels

        # TensorFlow reads records in the forms of other writers, and reports what is wrong with unreadable ones.
        strings, bounds, labels = tf.cond(tf.reduce_all(places[:, 0] >= 0), in_place, parsed)
        features = tf.io.parse_example(records, self._kinds()) if self.features else {}
        return InStrings(strings, bounds), labels, self._features_of(features)

    def _image_and_label(self) -> dict[str, Any]:
        return {
            self.image.named("image"): tf.io.FixedLenFeature([], tf.string),
            self.label.named("label"): self._label_kind(),
        }

    def _label_kind(self) -> tf.io.FixedLenFeature:
        label = self.label
        none: Any = "" if label.texts else label.no_label
        if label.stored_as is None:  # a record without a label is an error
            none = None
        elif label.shape:
            none = [none] * (label.shape[0] or 0)
        return tf.io.FixedLenFeature(label.shape, _DTYPES[label.stored_dtype], none)

    def _image_and_label_of(self, found: dict[str, tf.Tensor]) -> tuple[tf.Tensor, tf.Tensor]:
        return found[self.image.named("image")], self._labels(found[self.label.named("label")])

    def _labels(self, stored: tf.Tensor) -> tf.Tensor:
        """Returns the labels for stored ones, (n, ...): `Feature.label_of` each."""
        label, none = self.label, tf.constant(NO_LABEL, tf.int64)
        if label.texts:
            return _places_of(stored, label.texts)
        if label.stored_as is None or not label.is_class:
            return stored
        return tf.where(stored >= 0, stored + label.offset, none)

    def _kinds(self) -> dict[str, Any]:
        kinds: dict[str, Any] = {}
        for name, feature in self.features.items():
            dtype, varies = _DTYPES[feature.dtype], None in feature.shape
            kind = tf.io.RaggedFeature(dtype) if varies else tf.io.FixedLenFeature(feature.shape, dtype)
            kinds[feature.named(name)] = kind
        return kinds

    def _features_of(self, found: dict[str, tf.Tensor]) -> dict[str, tf.Tensor]:
        return {name: found[feature.named(name)] for name, feature in self.features.items()}


def _places_of(texts: tf.Tensor, names: Sequence[str]) -> tf.Tensor:
    """Returns the index of each text, string (n,), among names, int64 (n,); -1 if it is not among them.

    It searches by hash, without a table, so that any process can run the graph.
    """
    with tf.init_scope(), tf.device("CPU:0"):
        hashes = _hashed(tf.constant(names)).numpy()
    order = np.argsort(hashes)
    found = tf.searchsorted(tf.constant(hashes[order]), _hashed(texts))
    places = tf.gather(tf.constant(order.astype(np.int64)), tf.minimum(found, len(names) - 1))
    return tf.where(tf.equal(tf.gather(tf.constant(names), places), texts), places, tf.constant(NO_LABEL, tf.int64))


def _hashed(texts: tf.Tensor) -> tf.Tensor:
    return tf.strings.to_hash_bucket_fast(texts, _HASHES)


class ImageJudge:
    """Finds the records of a data set whose images cannot be decoded in the way that training decodes them."""

    rows = _JUDGED_TOGETHER

    def __init__(self, manifest: Manifest) -> None:
        image = manifest.features["image"]
        self._features, self._image, self._dct = manifest.features, image, manifest.pixels.dct
        self._upright = manifest.turns_images

    def problems(self, records: Sequence[bytes]) -> list[str | None]:
        """Returns for each record why it is invalid; None if it is valid."""
        return [self.problem(record) for record in records]

    def problem(self, record: bytes) -> str | None:
        """Returns why a record is invalid; None if it is valid."""
        try:
            data = tf_example.example(record, self._features, decode_image=False)["image"]
            found = self.pixels(data)
        except tf_example.BadExampleError as error:
            return str(error)
        return tf_example.shape_problem(self._image, found.shape)

    def pixels(self, data: bytes) -> NDArray[np.uint8]:
        """Decodes the stored bytes of an image to the same pixels as in training, uint8 (height, width, channels).

        Raises:
          BadExampleError: TensorFlow cannot decode it.
        """
        from pipeline import images  # noqa: PLC0415, with Pillow, which raw images do not need

        image = self._image
        if image.encoding == "raw":
            return tf_example.image(data, image)
        try:
            with tf.device("CPU:0"):
                found = decode_file(tf.constant(data), image.shape[2] or 3, image.encoding or "", self._dct).numpy()
        except tf.errors.OpError as error:
            raise tf_example.BadExampleError(f"its image cannot be decoded: {root_cause(error.message)[1]}") from None
        return images.turned(found, images.orientation_of(data)) if self._upright else found
