"""The features of a data set of TensorFlow Datasets (TFDS) that are its image, its label and what else is kept."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np

from beam_jobs.sources.base import OTHER_DATA, OWN_FEATURES
from beam_jobs.sources.records.columns import Columns
from beam_jobs.storage.paths import LocalPath
from pipeline.errors import DataError, UsageError, unknown
from pipeline.manifest import Feature

_DTYPES = {**dict.fromkeys("biu", "int64"), "f": "float32"}  # {kind of NumPy's dtype: dtype of a feature}


def choose(features: Any, root: LocalPath, keep: Sequence[str]) -> Columns:
    """Returns the columns of a data set.

    Args:
      features: TFDS's.
      root: the folder of the data set, for errors.
      keep: names of other features to keep, as in the records: `a/b` is the feature b in the feature a.

    Raises:
      UsageError: a feature cannot be kept.
      DataError: no feature is an image or a class label, or it is of another type.
    """
    image, label = _image_and_label(features, root)
    return Columns(image, label, extra={name: _kept(features, name, root) for name in keep})


def _image_and_label(features: Any, root: LocalPath) -> tuple[str, str]:
    """Returns the names of the image and of the label."""
    import tensorflow_datasets as tfds  # noqa: PLC0415

    found = []
    for usual, kind in (("image", tfds.features.Image), ("label", tfds.features.ClassLabel)):
        names = [name for name, feature in features.items() if isinstance(feature, kind)]
        if usual not in names and len(names) != 1:
            held = ", ".join(f"{name} ({type(feature).__name__})" for name, feature in sorted(features.items()))
            problem = f"{len(names)} features" if names else "no feature"
            raise DataError(
                f"{root}: has {problem} of type {kind.__name__}, and none is named {usual!r}; it has {held}; "
                f"{OTHER_DATA}"
            )
        found.append(usual if usual in names else names[0])
    image, label = found
    dtype = np.dtype(features[image].np_dtype)
    if dtype != np.uint8:
        raise DataError(f"{root}: its images are of dtype {dtype}; they must be uint8")
    if features[label].names is None:
        raise DataError(f"{root}: its ClassLabel {label!r} does not say how many classes there are")
    return image, label


def _kept(features: Any, name: str, root: LocalPath) -> Feature:
    """Returns a feature to keep."""
    import tensorflow_datasets as tfds  # noqa: PLC0415

    if name in OWN_FEATURES:
        raise UsageError(f"--keep_columns={name}: every converted record has a feature of this name")
    stored = dict(_flat(features.get_serialized_info()))
    if name not in stored:
        raise unknown(f"--keep_columns: {root}: feature", name, set(stored).difference(OWN_FEATURES))
    info = stored[name]
    dtype = "string" if info.np_dtype in (np.str_, np.bytes_, np.object_) else _DTYPES.get(np.dtype(info.np_dtype).kind)
    is_list = tuple(info.shape) == (None,)
    if dtype is None or (None in info.shape and not is_list) or (dtype == "string" and info.shape):
        raise UsageError(
            f"--keep_columns={name}: {root}: is {np.dtype(info.np_dtype)} of shape {tuple(info.shape)}; numbers of a "
            "fixed shape, lists of numbers, and single texts or byte strings can be kept"
        )
    kind = dict(features.items()).get(name)
    class_names = tuple(kind.names or ()) if isinstance(kind, tfds.features.ClassLabel) else ()
    return Feature(dtype, tuple(info.shape), class_names=class_names)


def _flat(infos: Any, prefix: str = "") -> Iterator[tuple[str, Any]]:
    """Yields (name in the records, how it is stored) of all features."""
    for name, info in infos.items():
        if isinstance(info, dict):
            yield from _flat(info, f"{prefix}{name}/")
        else:
            yield f"{prefix}{name}", info
