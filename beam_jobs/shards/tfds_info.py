"""The metadata files that let TensorFlow Datasets (TFDS) read our data sets where they are.

With them, `tfds.builder_from_directory(data_dir).as_dataset(split="train")` yields the same examples.
Format: tensorflow_datasets/core/proto/{dataset_info,feature}.proto as JSON (protobuf writes int64 as strings).
"""

from __future__ import annotations

import json
import re
from collections.abc import Sequence
from typing import Any

from pipeline.manifest import Feature, Manifest, naming

DATASET_INFO, FEATURES, LABELS = naming.TFDS_FILES
_VERSION = "1.0.0"  # required by TFDS; our data sets are told apart by the manifest's digest
_CLASSES = "tensorflow_datasets.core.features"


def metadata_files(manifest: Manifest) -> dict[str, bytes]:
    """Returns {file name: content} of the files that TFDS needs; none for compressed shards, which it cannot read."""
    if manifest.compression:
        return {}
    files = {DATASET_INFO: dataset_info(manifest), FEATURES: features(manifest)}
    names = [name.strip() for name in manifest.class_names]
    # TFDS splits the file at newlines, drops blank lines and refuses repeated names.
    if all(name and len(name.splitlines()) == 1 for name in names) and len(set(names)) == len(names):
        files[LABELS] = "".join(f"{name}\n" for name in names).encode()
    return files


def dataset_info(manifest: Manifest) -> bytes:
    """Returns the content of `dataset_info.json`: the splits, with the number of examples in each shard."""
    splits = [
        {
            "name": name,
            "filepathTemplate": "{SPLIT}-{SHARD_X_OF_Y}.{FILEFORMAT}",
            "numBytes": str(split.num_bytes),
            "shardLengths": [str(shard.num_examples) for shard in split.shards],
        }
        for name, split in manifest.splits.items()
    ]
    return _json(
        {
            "name": _name(manifest.dataset),
            "version": _VERSION,
            "fileFormat": "tfrecord",
            "splits": splits,
            "supervisedKeys": {"tuple": {"items": [{"featureKey": "image"}, {"featureKey": "label"}]}},
        }
    )


def features(manifest: Manifest) -> bytes:
    """Returns the content of `features.json`: raw images as a tensor of bytes, others as images, labels as classes."""
    found = {name: _feature(name, feature, manifest) for name, feature in manifest.features.items()}
    content = {"features": {name: value for name, value in found.items() if value}}
    return _json({"pythonClassName": f"{_CLASSES}.features_dict.FeaturesDict", "featuresDict": content})


def _feature(name: str, feature: Feature, manifest: Manifest) -> dict[str, Any]:
    """Returns a feature's description; empty if TFDS cannot describe it, which leaves the feature out."""
    if name == "image" and feature.encoding != "raw":
        image: dict[str, Any] = {"dtype": "uint8", "shape": _shape(feature.shape)}
        if feature.encoding != "any" and feature.shape[-1] is not None:
            image["encodingFormat"] = feature.encoding
        return _typed("image_feature.Image", "image", image)
    classes = manifest.class_names if name == "label" else feature.class_names
    if classes:
        return _typed("class_label_feature.ClassLabel", "classLabel", {"numClasses": str(len(classes))})
    if feature.dtype == "string":
        return _typed("text_feature.Text", "text", {}) if not feature.shape else {}
    if sum(size is None for size in feature.shape) > 1:
        return {}
    encoding = "bytes" if feature.encoding == "raw" else "none"
    tensor = {"dtype": feature.dtype, "shape": _shape(feature.shape), "encoding": encoding}
    return _typed("tensor_feature.Tensor", "tensor", tensor)


def _typed(python_class: str, kind: str, content: dict[str, Any]) -> dict[str, Any]:
    return {"pythonClassName": f"{_CLASSES}.{python_class}", kind: content}


def _shape(shape: Sequence[int | None]) -> dict[str, Any]:
    return {"dimensions": [str(-1 if size is None else size) for size in shape]} if shape else {}


def _name(dataset: str) -> str:
    """Returns a name that TFDS allows: lower-case letters, digits and _, starting with a letter."""
    name = re.sub(r"[^a-z0-9]+", "_", dataset.removeprefix("tfds:").lower()).strip("_")
    return name if name[:1].isalpha() else f"dataset_{name}".rstrip("_")


def _json(content: dict[str, Any]) -> bytes:
    return (json.dumps(content, indent=1, sort_keys=True) + "\n").encode()
