"""What `trainer.export` does once its flags are checked."""

from __future__ import annotations

import json
import os
import pathlib
import shutil
import tempfile
from collections.abc import Sequence
from typing import Any

import keras
import tensorflow as tf

from pipeline.commands import quiet
from pipeline.commands.text import count_of
from pipeline.errors import DataError, UsageError, named
from trainer.cluster import failures
from trainer.exporting import comparison
from trainer.exporting.flags import EXPORT, ExportConfig
from trainer.exporting.formats import FORMATS, README, readme_of
from trainer.exporting.served import Served, served
from trainer.inference import Trained, build_first

_TOLERANCE = 1e-4
_ROUGH_TOLERANCE = 0.02  # of models that compute in less than float32, and of JPEGs that are decoded in part


def run(config: ExportConfig, found: Sequence[pathlib.Path]) -> None:
    """Exports the first checkpoint that can be read.

    Args:
      config: the flags.
      found: the checkpoints to choose from.

    Raises:
      PipelineError: whatever a user can cause; then nothing is left in --output.
    """
    with failures.in_one_line(1):
        trained = build_first(found, config, print)
        _check(config, trained)
        model = served(trained)
        print(trained)
        height, width, channels = model.core_shape
        fitted = f" of any size, fitted to {height}x{width}" if model.fitting else f" of {height}x{width}x{channels}"
        outputs = f"probabilities, class and class_name of {len(model.class_names)} classes"
        print(f"in: uint8 images{fitted}; out: {outputs}")
        output = pathlib.Path(config.output)
        with named(f"--output={output}", "cannot be written"):
            output.parent.mkdir(parents=True, exist_ok=True)
            partial = pathlib.Path(tempfile.mkdtemp(prefix=f".{output.name}-", dir=output.parent))
        try:
            _write_all(config, trained, model, partial)
            with named(f"--output={output}", "cannot be written"):
                partial.chmod(0o777 & ~_umask())
                partial.rename(output)
        finally:
            shutil.rmtree(partial, ignore_errors=True)
        print(f"exported: {', '.join(str(output / FORMATS[name].file) for name in config.formats)}")


def _write_all(config: ExportConfig, trained: Trained, model: Served, folder: pathlib.Path) -> None:
    """Writes each format, compares it with the model, and writes the description of all."""
    images = comparison.stored_images(trained, config.examples)
    expected = comparison.trained_probabilities(trained, config.examples)
    tolerance, differences, files = config.tolerance or _tolerance(trained, model), {}, {}
    for name in config.formats:
        kind = FORMATS[name]
        path = folder / kind.file
        with named(f"--output={config.output}", "cannot be written"), quiet.logs():
            kind.write(model, path, config.stablehlo_batch)
        batches = comparison.batches_of(model, images, kind.any_size, kind.rows(config.stablehlo_batch))
        files[name] = comparison.File(path, batches)
    flags = trained.config.model
    modules = [given.partition(":")[0] for given in (flags.model, flags.task) if given and ":" in given]
    for name, difference in comparison.largest_differences(files, expected, model, modules):
        if not difference <= tolerance:  # NaN is no less
            raise DataError(
                f"--format={name}: a probability of the reloaded file differs by {difference:.2g} from the trained "
                f"model's, more than --tolerance={tolerance:g}; nothing is exported"
            )
        compared = f"reloaded, on {count_of(len(expected), 'example')} of {trained.split.request.split}"
        print(f"{name}: {compared}: largest difference {difference:.2g} (allowed {tolerance:g})", flush=True)
        differences[name] = difference
    about = _about(config, trained, model, differences)
    name = f"{trained.name} at step {trained.record.step}"
    with named(f"--output={config.output}", "cannot be written"):
        (folder / EXPORT).write_text(json.dumps(about, indent=1) + "\n", encoding="utf-8")
        said = readme_of(name, model, config.formats, config.stablehlo_batch)
        (folder / README).write_text(said, encoding="utf-8")


def _tolerance(trained: Trained, model: Served) -> float:
    """Returns how far the probabilities of a file may be from those of the model.

    If a recipe crops JPEGs, the input decodes that part of each alone, and at its border libjpeg interpolates colours
    without their neighbours. An exported model gets an image that was decoded as a whole.
    """
    is_jpeg = trained.split.manifest.features["image"].encoding in ("jpeg", "any")
    in_part = is_jpeg and model.fitting is not None and not trained.split.request.size
    return _ROUGH_TOLERANCE if in_part or trained.config.model.precision != "float32" else _TOLERANCE


def _check(config: ExportConfig, trained: Trained) -> None:
    """Raises UsageError for what is known not to work."""
    if "onnx" in config.formats and trained.config.model.precision == "bfloat16":
        raise UsageError(
            "--format=onnx: the model computes in bfloat16 (--precision), in which ONNX Runtime has no convolution; "
            "leave onnx out, or train in float32 or float16"
        )


def _about(config: ExportConfig, trained: Trained, model: Served, differences: dict[str, float]) -> dict[str, Any]:
    kinds, batch = {name: FORMATS[name] for name in differences}, config.stablehlo_batch
    return {
        "model": trained.name,
        "step": trained.record.step,
        "weights": "ema" if trained.averaged else "raw",
        "dataset": trained.split.manifest.dataset,
        "image_size": model.core_shape[:2],  # height, width: what the model gets
        "preprocessing": {
            "resize": trained.config.data.resize,
            "distort": trained.config.data.distort,
            "fits": model.fitting is not None,  # whether images of other sizes are cut and stretched to it
        },
        "class_names": list(model.class_names),
        "files": {
            name: {
                "file": kinds[name].file,
                "images": model.spec(kinds[name].any_size, kinds[name].rows(batch)).shape.as_list(),
                "largest_difference": difference,
            }
            for name, difference in differences.items()
        },
        "versions": {"tensorflow": tf.__version__, "keras": keras.__version__},
    }


def _umask() -> int:
    mask = os.umask(0)
    os.umask(mask)
    return mask
