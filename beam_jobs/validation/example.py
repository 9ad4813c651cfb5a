"""Checks the features of examples against the manifest, and counts what the manifest has totals of."""

from __future__ import annotations

import math

import numpy as np

from beam_jobs.examples import images
from beam_jobs.examples.images import BadImageError
from beam_jobs.validation.report import ShardReport
from pipeline.commands.text import count_of
from pipeline.manifest import Feature, Manifest
from pipeline.records import tf_example
from pipeline.records.tf_example import Values

_NO_IMAGE = Feature("uint8")  # where records are of any kind
_RAW_AT_ONCE = 64  # images whose pixels are summed together
_FORMATS = {"png": ("PNG",), "jpeg": ("JPEG",), "any": ("PNG", "JPEG")}
_BYTES = ("string", "uint8")  # dtypes of features that are kept as bytes


class ExampleCheck:
    """Checks the examples of one shard, and counts them in its report."""

    def __init__(self, manifest: Manifest, decodes: bool, report: ShardReport) -> None:
        """Makes a check that also looks at the pixels if it decodes; labels, sizes and sums go to the report."""
        self._features = manifest.features
        self._image = manifest.features.get("image", _NO_IMAGE)
        self._classes = {"label": len(manifest.class_names)}
        self._classes |= {
            name: len(f.class_names) for name, f in self._features.items() if f.class_names and f.dtype == "int64"
        }
        self._usual = {name: _usual(feature) for name, feature in self._features.items()}
        self._raw_shape = manifest.image_shape if self._image.encoding == "raw" else None
        self._decodes = decodes
        self._report = report
        self._raw: list[bytes] = []

    def check(self, record: bytes) -> tuple[bytes | None, list[str]]:
        """Returns the example's key, None where it has none, and what is wrong with it."""
        if not self._features:  # of `pipeline.index`: any bytes will do
            return None, []
        try:
            found = tf_example.decode(record)
        except ValueError as error:
            return None, [str(error)]
        problems = []
        for name, feature in self._features.items():
            if name not in found:
                problems.append(f"feature {name!r} is missing")
            elif problem := self._problem(name, feature, found[name]):
                problems.append(problem)
        if len(found) > len(self._features) or problems:
            more = sorted(found.keys() - self._features.keys())
            problems += [f"feature {name!r} is not in the manifest" for name in more]
        key = found.get("key")
        return key[0] if isinstance(key, list) and len(key) == 1 else None, problems

    def finish(self) -> None:
        """Sums the pixels that are still waiting; call it after the last example."""
        if self._raw and self._raw_shape:
            self._report.sums.add(
                np.frombuffer(b"".join(self._raw), np.uint8).reshape(len(self._raw), *self._raw_shape)
            )
            self._raw.clear()

    def _problem(self, name: str, feature: Feature, values: Values) -> str | None:
        kind = None if isinstance(values, list) else values.dtype
        if (kind, len(values)) != self._usual[name] and (problem := _kind_problem(feature, values)):
            return f"feature {name!r} {problem}"
        if name == "image":
            return self._image_problem(values[0])
        if name == "key" and not values[0]:
            return "its key is empty"
        if name in self._classes:
            return self._label_problem(name, values)
        return None

    def _label_problem(self, name: str, values: Values) -> str | None:
        for value in values.tolist():  # type: ignore[union-attr]
            if not 0 <= value < self._classes[name]:
                return f"{name} {value} is not in 0..{self._classes[name] - 1}"
        if name == "label":
            self._report.labels[int(values[0])] += 1
        return None

    def _image_problem(self, data: bytes) -> str | None:
        if self._raw_shape:
            if len(data) != math.prod(self._raw_shape):
                return (
                    f"its image has {count_of(len(data), 'byte')}, not the "
                    f"{math.prod(self._raw_shape)} of {_text(self._image)}"
                )
            self._report.sizes[self._raw_shape[:2]] += 1
            if self._decodes:
                self._raw.append(data)
                if len(self._raw) == _RAW_AT_ONCE:
                    self.finish()
            return None
        if not data:
            return "its image is empty"
        return self._decoded_problem(data) if self._decodes else None

    def _decoded_problem(self, data: bytes) -> str | None:
        try:
            opened = images.open_file(data)
            if opened.format not in _FORMATS[str(self._image.encoding)]:
                return f"its image is of format {opened.format}, the manifest says {self._image.encoding}"
            pixels = images.pixels(opened)
        except BadImageError as error:
            return str(error)
        if any(side not in (None, has) for side, has in zip(self._image.shape, pixels.shape, strict=True)):
            return f"its image is {'x'.join(map(str, pixels.shape))}, not {_text(self._image)}"
        self._report.sizes[pixels.shape[0], pixels.shape[1]] += 1
        self._report.sums.add(images.with_channels(pixels, self._report.sums.channels))
        return None


def _usual(feature: Feature) -> tuple[np.dtype | None, int | None]:
    """Returns (dtype or None for bytes, number of values or None if it varies) of a feature."""
    sizes = [1] if feature.dtype == "uint8" else feature.shape
    count = None if None in sizes else math.prod(size for size in sizes if size is not None)
    return None if feature.dtype in _BYTES else np.dtype(feature.dtype), count


def _kind_problem(feature: Feature, values: Values) -> str | None:
    """Returns what is wrong with the type or the number of a feature's values."""
    kind = "bytes" if isinstance(values, list) else str(values.dtype)
    expected = "bytes" if feature.dtype in _BYTES else feature.dtype
    if kind != expected and (kind != "bytes" or values):  # without a value it has no kind
        return f"holds {kind}, the manifest says {feature.dtype}"
    _, count = _usual(feature)
    if count is not None:
        return None if len(values) == count else f"has {count_of(len(values), 'value')}, the manifest says {count}"
    unit = math.prod(size for size in feature.shape if size is not None)
    return f"has {count_of(len(values), 'value')}, not a multiple of {unit}" if unit and len(values) % unit else None


def _text(feature: Feature) -> str:
    return "x".join("?" if size is None else str(size) for size in feature.shape)
