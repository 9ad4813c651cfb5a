"""Runs `trainer.export` with checked flags: writes files, reloads them in another process, and compares outputs."""

from __future__ import annotations

import dataclasses
import itertools
import json
import pathlib
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import keras
import numpy as np
import tensorflow as tf
from numpy.typing import NDArray

from pipeline import images
from pipeline.batch.compose import make_dataset
from pipeline.batch.diagnosis import Fed, naming_records
from pipeline.commands import quiet
from pipeline.commands.text import count_of
from pipeline.decode.images import decode_file
from pipeline.decode.records import ExampleParser
from pipeline.errors import DataError, UsageError, named, root_cause
from pipeline.files.write import temporary_name
from pipeline.manifest.manifest import UPRIGHT
from trainer.cluster import failures
from trainer.config.trained import EXPORT, FORMATS, ExportConfig, Format
from trainer.exporting import reading
from trainer.exporting.formats import README, readme_of
from trainer.exporting.parsed import Parsed, parsed, row_bytes
from trainer.exporting.served import Served, served
from trainer.inference import Trained, build_first

_TOLERANCE = 1e-4
_MOST_OUTPUT = 256 << 20  # 256 MiB: limit on the examples' outputs
_ROWS = 32  # records per batch
_NO_PYTHON = "an exported program runs without it"
_ROUGH_TOLERANCE = 0.02  # for models that compute in less than float32, and partially decoded JPEGs


def run(config: ExportConfig, found: Sequence[pathlib.Path]) -> None:
    """Exports the first checkpoint that can be read.

    Args:
      config: flags of the command.
      found: checkpoints to choose from.

    Raises:
      PipelineError: any error that a user can cause; nothing is then left in --output.
    """
    with failures.in_one_line(1):
        trained = build_first(found, config, print)
        formats = _formats(config, trained)
        model = parsed(trained, _NO_PYTHON) if trained.takes_records else served(trained)
        print(trained)
        if (copies := trained.record.config().data.eval_copies) > 1:
            print(f"note: exported programs do not average over copies of an image (--eval_copies={copies} of the run)")
        print(model.in_words)
        output = pathlib.Path(config.output)
        with named(f"--output={output}", "cannot be written"):
            output.parent.mkdir(parents=True, exist_ok=True)
            partial = output.parent / temporary_name(output.name)
            partial.mkdir()
        try:
            _write_all(config, formats, trained, model, partial)
            with named(f"--output={output}", "cannot be written"):
                partial.rename(output)
        finally:
            shutil.rmtree(partial, ignore_errors=True)
        print(f"exported: {', '.join(str(output / FORMATS[name].file) for name in formats)}")


def _write_all(
    config: ExportConfig, formats: Sequence[str], trained: Trained, model: Served | Parsed, folder: pathlib.Path
) -> None:
    batches: Callable[[Format], list[NDArray]]
    if isinstance(model, Parsed):
        with naming_records(lambda: [Fed(trained.split.request)]):
            stored, expected = parsed_examples(trained, config.examples, model)
        batches = lambda kind: stored  # noqa: E731
    else:
        images = stored_images(trained, config.examples)
        expected = {"probabilities": trained_probabilities(trained, config.examples)}
        batches = lambda kind: batches_of(model, images, kind.any_size, kind.rows(config.stablehlo_batch))  # noqa: E731
    tolerance, differences, files = config.tolerance or _tolerance(trained, model), {}, {}
    for name in formats:
        kind = FORMATS[name]
        path = folder / kind.file
        with named(f"--output={config.output}", "cannot be written"), quiet.logs():
            kind.write(model, path, config.stablehlo_batch)
        files[name] = File(path, batches(kind))
    modules = trained.config.model.modules
    helps = "; a parser that draws in evaluations, too, must draw in training alone" if trained.parses else ""
    what, count = "a probability" if model.class_names else "an output", len(next(iter(expected.values())))
    for name, difference in largest_differences(files, expected, model, modules):
        if not difference <= tolerance:  # NaN must fail, too
            raise DataError(
                f"--format={name}: {what} of the reloaded file differs by {difference:.2g} from the trained "
                f"model's, more than --tolerance={tolerance:g}; nothing is exported{helps}"
            )
        compared = f"reloaded, on {count_of(count, 'example')} of {trained.split.request.split}"
        print(f"{name}: {compared}: largest difference {difference:.2g} (allowed {tolerance:g})", flush=True)
        differences[name] = difference
    about = _about(config, trained, model, differences)
    name = f"{trained.name} at step {trained.record.step}"
    with named(f"--output={config.output}", "cannot be written"):
        (folder / EXPORT).write_text(json.dumps(about, indent=1) + "\n", encoding="utf-8")
        if isinstance(model, Parsed):
            said = model.readme(name)
        else:
            rule = trained.split.manifest.pixel_rule
            upright = rule is not None and rule.orientation == UPRIGHT
            said = readme_of(name, model, formats, config.stablehlo_batch, upright)
        (folder / README).write_text(said, encoding="utf-8")


def _tolerance(trained: Trained, model: Served | Parsed) -> float:
    """Returns how far a file's outputs may be from the model's.

    If a recipe crops JPEGs, the input decodes only that part of each, and libjpeg interpolates colours at its border
    without their neighbours. An exported model gets a fully decoded image.
    """
    in_part = False
    if not trained.parses:
        is_jpeg = trained.split.manifest.features["image"].encoding in ("jpeg", "any")
        in_part = is_jpeg and getattr(model, "fitting", model) is not None and not trained.split.request.size
    return _ROUGH_TOLERANCE if in_part or trained.config.model.precision != "float32" else _TOLERANCE


def _formats(config: ExportConfig, trained: Trained) -> list[str]:
    if trained.takes_records:
        for name in config.formats if config.format else ():
            if not FORMATS[name].holds_parser:
                raise UsageError(
                    f"--format={name}: cannot hold the parser of {trained.name}; give saved_model, "
                    "whose signature serve_features takes what the parser returns"
                )
        return [name for name in config.formats if FORMATS[name].holds_parser]
    if "onnx" in config.formats and trained.config.model.precision == "bfloat16":
        raise UsageError(
            "--format=onnx: the model computes in bfloat16 (--precision), for which ONNX Runtime has no convolution; "
            "leave onnx out, or train in float32 or float16"
        )
    return config.formats


def _about(
    config: ExportConfig, trained: Trained, model: Served | Parsed, differences: dict[str, float]
) -> dict[str, Any]:
    files = {n: {"file": FORMATS[n].file, "largest_difference": found} for n, found in differences.items()}
    if isinstance(model, Parsed):
        takes: dict[str, Any] = {
            "records": {
                "needs": list(model.needs),  # features that each record must have
                "outputs": model.kinds,
                "image": model.image and dataclasses.asdict(model.image),  # how image files become records
            }
        }
    else:
        takes = {
            "image_size": model.core_shape[:2],  # height, width of the model's input
            "preprocessing": {
                "resize": trained.config.data.resize,
                "distort": trained.config.data.augment,
                "fits": model.fitting is not None,  # whether images of other sizes are cropped and stretched to it
                "pixel_rule": dataclasses.asdict(trained.pixel_rule),  # how files become images
            },
        }
        for name, file in files.items():
            kind = FORMATS[name]
            file["images"] = model.spec(kind.any_size, kind.rows(config.stablehlo_batch)).shape.as_list()
    return {
        "model": trained.name,
        "step": trained.record.step,
        "weights": "ema" if trained.averaged else "raw",
        "dataset": trained.split.manifest.dataset,
        **takes,
        "class_names": list(model.class_names),
        "files": files,
        "versions": {"tensorflow": tf.__version__, "keras": keras.__version__},
    }


_TIMEOUT = 600.0  # seconds for each file


@dataclasses.dataclass(frozen=True)
class File:
    """An exported file or folder.

    Attributes:
      path: path of the file.
      batches: batches to feed it; rows beyond the expected ones are copies.
    """

    path: pathlib.Path
    batches: Sequence[NDArray]


def batches_of(served: Served, images: Sequence[NDArray[np.uint8]], any_size: bool, rows: int | None) -> list[NDArray]:
    """Returns stored images in batches that a file accepts.

    Args:
      served: model to export.
      images: images of the split, (height, width, channels) each.
      any_size: whether the file accepts images of any size; otherwise they are fitted.
      rows: fixed size of the batches; the last one is filled up with copies. None for any size.
    """
    if served.fitting and any_size:
        return [image[None] for image in images]
    if served.fitting:
        images = [served.fit(image) for image in images]
    if rows is None:
        return [np.stack(images)]
    filled = [*images, *[images[-1]] * (-len(images) % rows)]
    return [np.stack(filled[start : start + rows]) for start in range(0, len(filled), rows)]


def largest_differences(
    files: Mapping[str, File], expected: Mapping[str, NDArray], served: Served | Parsed, modules: Sequence[str]
) -> Iterator[tuple[str, float]]:
    """Yields each format with the largest difference between its file's outputs and the expected outputs.

    Args:
      files: files by format; a single process reads them in this order.
      expected: outputs by name, (n, ...) each. If an output exceeds 1, its differences are relative to its largest
        value.
      served: model whose class names the files return.
      modules: user's modules, whose layers the files may contain.

    Raises:
      DataError: a file cannot be read, or returns a class or name that contradicts its own probabilities.
    """
    with tempfile.TemporaryDirectory(prefix="trainer-export-") as scratch:
        said = _read(files, pathlib.Path(scratch), len(served.class_names), modules)
        for kind in files:
            answers = pathlib.Path(scratch, f"{kind}.answers.npz")
            if not answers.exists():
                own = "; a layer of your own needs @keras.saving.register_keras_serializable()" if modules else ""
                raise DataError(f"--format={kind}: the file cannot be reloaded: {said}{own if kind == 'keras' else ''}")
            with np.load(answers) as found:
                yield kind, _largest_difference(kind, dict(found), expected, served)


def _largest_difference(
    kind: str, found: Mapping[str, NDArray], expected: Mapping[str, NDArray], served: Served | Parsed
) -> float:
    differences = []
    for name, wanted in expected.items():
        given = found[name][: len(wanted)]
        largest = max(1.0, float(np.abs(wanted).max(initial=0.0)))
        differences.append(float(np.abs(given.astype(np.float64) - wanted).max(initial=0.0)) / largest)
    if "class" in expected:
        count = len(expected["probabilities"])
        classes = found["probabilities"][:count].argmax(axis=1)
        names = np.array(served.class_names)[classes]
        if not np.array_equal(found["class"][:count], classes) or not np.array_equal(
            found.get("class_name", names)[:count], names
        ):
            raise DataError(f"--format={kind}: the reloaded file gives classes that contradict its probabilities")
    return float(np.max(differences))  # NaN if one of them is


def _read(files: Mapping[str, File], scratch: pathlib.Path, classes: int, modules: Sequence[str]) -> str:
    """Has a process write the outputs of all files, up to the first one that it cannot read; returns its error."""
    for kind, file in files.items():
        np.savez(scratch / f"{kind}.images.npz", *file.batches)
    named = [text for kind, file in files.items() for text in (kind, str(file.path))]
    command = [sys.executable, "-P", str(reading.__file__), str(scratch), str(classes), ",".join(modules), *named]
    seconds = _TIMEOUT * len(files)
    try:
        done = subprocess.run(command, capture_output=True, text=True, errors="replace", timeout=seconds, check=False)
    except subprocess.TimeoutExpired:
        names = ",".join(files)
        raise DataError(f"--format={names}: not reloaded and run within {seconds:g} s; give fewer --examples") from None
    _, is_tensorflows, error = done.stderr.rpartition("tensorflow.python.framework.errors_impl.")
    if is_tensorflows and (cause := root_cause(error.partition(": ")[2])[1]):
        return cause
    return (done.stderr.strip().splitlines() or [f"exit code {done.returncode}"])[-1]


def stored_images(trained: Trained, count: int) -> list[NDArray[np.uint8]]:
    """Returns the first images of the split, decoded but not preprocessed: uint8 (height, width, channels) each."""
    manifest = trained.split.manifest
    parser, feature = ExampleParser.wanted(manifest, ()), manifest.features["image"]

    def parse(records: tf.Tensor) -> tuple[tf.Tensor, tf.Tensor]:
        image, label, _ = parser.parse(records)
        return image, label

    request = dataclasses.replace(trained.split.request, parse=parse, augment=None, resize=None)
    rows = _real_rows(make_dataset(request), lambda batch: batch[0], count)
    if feature.encoding == "raw":
        return [np.frombuffer(row, np.uint8).reshape(manifest.image_shape) for row in rows]
    of_file = feature.shape[2] or 3, feature.encoding or "", manifest.pixels.dct
    found = ((row, decode_file(tf.constant(row), *of_file).numpy()) for row in rows)
    turns = manifest.turns_images
    return [images.turned(pixels, images.orientation_of(row)) if turns else pixels for row, pixels in found]


def trained_probabilities(trained: Trained, count: int) -> NDArray[np.float32]:
    """Returns the trained model's probabilities for the split's first images, fed as in the run."""
    probabilities = tf.function(lambda features: trained.probabilities(trained.forward()(features)), autograph=False)
    rows = _real_rows(make_dataset(trained.split.request), lambda batch: probabilities(batch[0]), count)
    return np.stack(list(rows))


def parsed_examples(
    trained: Trained, count: int, model: Parsed
) -> tuple[list[NDArray[np.object_]], dict[str, NDArray]]:
    """Returns the split's first records in batches, with the model's outputs for them, fed as in the run.

    Args:
      trained: trained model.
      count: number of records; fewer if the outputs are large, such as masks.
      model: served form of the model.
    """
    specs = {name: spec for name, spec in model.specs.items() if name not in ("class", "class_name")}
    count = min(count, max(1, _MOST_OUTPUT // sum(row_bytes(spec) for spec in specs.values())))
    compute, request = tf.function(model.outputs, autograph=False), trained.split.request
    stored = dataclasses.replace(request, parse=tf.identity, augment=None, resize=None, label="label", eval_copies=1)
    records, found = list[bytes](), list[dict[str, NDArray]]()
    for (given, real), (features, *_) in zip(make_dataset(stored), make_dataset(request), strict=True):
        rows = real.numpy() > 0  # without padding and skipped records
        records += given.numpy()[rows].tolist()
        outputs = compute(features)
        found.append({name: outputs[name].numpy()[rows] for name in specs})
        if len(records) >= count:
            break
    batches = [np.array(records[i : min(i + _ROWS, count)], object) for i in range(0, min(count, len(records)), _ROWS)]
    return batches, {name: np.concatenate([one[name] for one in found])[:count] for name in specs}


def _real_rows(batches: Any, values: Any, count: int) -> Iterator[Any]:
    """Yields the first `count` rows of the batches' `values`, without padding and skipped records."""

    def rows() -> Iterator[Any]:
        for batch in batches:
            yield from values(batch).numpy()[batch[-1].numpy() > 0]

    return itertools.islice(rows(), count)
