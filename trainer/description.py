"""What has to be equal on all workers of a job, in words: versions, flags and data, the order of examples."""

from __future__ import annotations

import dataclasses
import importlib.metadata
import platform
from typing import Any

import keras
import numpy as np
import tensorflow as tf

from pipeline.commands.text import count_of
from pipeline.mixture import Mixture
from trainer.cluster.difference import Description
from trainer.config import TrainConfig
from trainer.config.flags.cluster import ClusterFlags
from trainer.plan import Plan

_PACKAGE = "stepfeed"
# The same folder may be mounted elsewhere, and disks differ in size.
_OF_EACH_MACHINE = ("data_dir", "model_dir", "log_keys", "metrics_jsonl", "cache_dir", "cache_bytes")
_OF_EACH_PROCESS = tuple(field.name for field in dataclasses.fields(ClusterFlags))  # compared as a cluster


def of(config: TrainConfig, plan: Plan) -> Description:
    """Returns the description of a run, each part before those that may differ because of it."""
    gpus = count_of(len(tf.config.list_physical_devices("GPU")), "GPU")
    order = f"an order of digest {plan.training.spec.digest[:12]}"
    return [_versions(), {**_flags(config), "data": _data(plan.training), "GPUs": gpus}, {"order": order}]


def of_server(config: TrainConfig) -> Description:
    """Returns the description of a parameter server, which reads no data."""
    return [_versions(), _flags(config)]


def of_graph_reader(config: TrainConfig, plan: Plan) -> Description:
    """Returns the description of a worker that runs graphs of the chief, with the chief's path of the data."""
    versions, flags, order = of(config, plan)
    return [versions, {"--data_dir": f"--data_dir={config.data.data_dir}"}, {**flags, "GPUs": ""}, order]


def _data(training: Mixture) -> str:
    """Returns the data in words; of a mixture with the splits and rows, which no flag but --data_dir has."""
    digests = [part.manifest.digest[:12] for part in training.parts]
    if not training.request.sources:
        return f"a data set of digest {digests[0]}"
    sources = [
        f"{part.spec.global_batch_size} rows of {part.spec.split} of digest {digest}"
        for part, digest in zip(training.parts, digests, strict=True)
    ]
    return f"a mixture of {' and '.join(sources)}"


def _versions() -> dict[str, str]:
    versions = {
        "Python": ".".join(platform.python_version_tuple()[:2]),
        "TensorFlow": tf.__version__,
        "Keras": keras.__version__,
        "NumPy": np.__version__,
        _PACKAGE: _installed(_PACKAGE),
    }
    return {name: f"{name} {version}" for name, version in versions.items()}


def _installed(package: str) -> str:
    try:
        return importlib.metadata.version(package)
    except importlib.metadata.PackageNotFoundError:
        return "of no version"  # run from its sources


def _flags(config: TrainConfig) -> dict[str, str]:
    """Returns all flags but for paths, those that are added later, too."""
    groups: dict[str, dict[str, Any]] = dataclasses.asdict(config)
    values = {name: value for group in groups.values() for name, value in group.items()}
    flags = {name: value for name, value in values.items() if name not in _OF_EACH_MACHINE + _OF_EACH_PROCESS}
    words = {f"--{name}": f"no --{name}" if value is None else f"--{name}={value}" for name, value in flags.items()}
    return {**words, "--log_keys": "--log_keys" if config.run.log_keys else "no --log_keys"}
