"""Predictions for images, by the model in a run's checkpoint or in an exported file."""

from __future__ import annotations

import csv
import dataclasses
import functools
import io
import itertools
import json
import os
import pathlib
import sys
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any

import numpy as np
import tensorflow as tf
from numpy.typing import NDArray
from tqdm import tqdm

from pipeline import images
from pipeline.commands import commandline
from pipeline.commands.text import count_of
from pipeline.decode import decode_file
from pipeline.errors import DataError, UsageError, line_of, named, reason_of, root_cause, to_run
from pipeline.files import write
from pipeline.files.reading import content_of
from pipeline.images import BadImageError
from pipeline.manifest import PixelRule
from pipeline.manifest.manifest import FAST, UPRIGHT
from pipeline.order.sharding import whole_number
from trainer.checkpoint import files
from trainer.cluster import failures
from trainer.config.trained import EXPORT, CheckpointFlags, PredictConfig
from trainer.exporting import reading
from trainer.exporting.served import Augmented, Served, served
from trainer.inference import Trained, build_first

# The best first. A StableHLO program is not among them: it takes batches of one size alone.
_READ = {"saved_model": reading.saved_model, "keras": reading.keras, "onnx": reading.onnx}  # the readers by format
_AGAIN = f"export the run again ({to_run('trainer.export')})"
_RULE = PixelRule()  # of data sets that are converted today
_BATCH = 64  # files that `predict` reads at a time


class Predictor:
    """A model that is ready to classify images.

        from trainer import Predictor

        predictor = Predictor.of_run("run")  # or .of_export("exported")
        print(predictor.predict(["photo.png"])[0])

    Attributes:
      name: what it is, in one line.
      class_names: names by class number.
      image_shape: (height, width, channels) that the model gets.
      pixel_rule: how files become pixels: turned upright or not, and by which DCT, as in training.
    """

    def __init__(
        self,
        name: str,
        class_names: Sequence[str],
        image_shape: tuple[int, int, int],
        probabilities: Callable[[NDArray[np.uint8]], NDArray[np.float32]],
        fit: Callable[[NDArray[np.uint8]], NDArray[np.uint8]] | None = None,
        pixel_rule: PixelRule = _RULE,
    ) -> None:
        """Makes a predictor of its parts; `of_run` and `of_export` find them.

        Args:
          name: what it is.
          class_names: names by class number.
          image_shape: (height, width, channels) that the model gets.
          probabilities: returns float32 (n, classes) for uint8 (n, height, width, channels).
          fit: brings an image of any size to that of the model, as the run's input did; None: images are stretched, as
            `beam_jobs.convert --resize` does it.
          pixel_rule: how files become pixels, as in the data set that the model was trained on.
        """
        self.name, self.class_names, self.image_shape = name, tuple(class_names), image_shape
        self.pixel_rule = pixel_rule
        self._probabilities, self._fit = probabilities, fit

    @classmethod
    def of_run(
        cls,
        model_dir: str | os.PathLike[str],
        *,
        checkpoint: str | None = None,
        weights: str | None = None,
        data_dir: str | None = None,
        eval_copies: int | None = None,
    ) -> Predictor:
        """Returns the model of a run.

        Args:
          model_dir: folder of the run; it may be training.
          checkpoint: `ckpt-400`, `400` or `best`; None: the newest.
          weights: `raw`, or `ema` for the average over the steps; None: the average if the run kept one.
          data_dir: folder of the run's data set if that has moved: the class names are in its manifest.
          eval_copies: copies of each image over which the probabilities are averaged: itself, as without copies, and
            others augmented by the run's recipe; None: the run's --eval_copies.

        Raises:
          PipelineError: there is no such checkpoint, or its model is not one of images and classes.
        """
        if eval_copies is not None:
            eval_copies = whole_number("eval_copies", eval_copies, 1)
        flags = CheckpointFlags(os.fspath(model_dir), checkpoint, weights, data_dir)
        found = files.candidates(flags.folder.path, flags.checkpoint)
        return cls.of_trained(build_first(found, flags, lambda line: print(line, file=sys.stderr)), eval_copies)

    @classmethod
    def of_trained(cls, trained: Trained, eval_copies: int | None = None) -> Predictor:
        """Returns the model of a checkpoint; `eval_copies` as for `of_run`."""
        model = served(trained)
        if (copies := eval_copies or trained.config.data.eval_copies) > 1:
            return cls._of_copies(trained, Augmented(trained, model, copies), model)
        fitting = model.fitting
        compute = tf.function(
            model.core, autograph=False, input_signature=[tf.TensorSpec((None, *model.core_shape), tf.uint8)]
        )
        return cls(
            str(trained),
            model.class_names,
            model.core_shape,
            lambda batch: np.asarray(compute(tf.constant(batch))),
            None if fitting is None else (lambda image: np.asarray(fitting.fit(tf.constant(image[None])))[0]),
            trained.split.manifest.pixels,
        )

    @classmethod
    def _of_copies(cls, trained: Trained, augmented: Augmented, model: Served) -> Predictor:
        fitting, size = model.fitting, model.core_shape[:2]

        def fit(image: NDArray[np.uint8]) -> NDArray[np.uint8]:
            own = np.asarray(fitting.fit(tf.constant(image[None])))[0] if fitting else images.resized(image, size)
            return augmented.fit(image, own)

        return cls(
            str(trained),
            model.class_names,
            model.core_shape,
            augmented.probabilities,
            fit,
            trained.split.manifest.pixels,
        )

    @classmethod
    def of_export(cls, path: str | os.PathLike[str]) -> Predictor:
        """Returns the model of what `trainer.export` wrote: its folder, or one of the files in it.

        Raises:
          DataError: there is no such export, or it is damaged.
          UsageError: the file does not fit: it is a StableHLO program, or takes images that are cut already.
        """
        about, kind, file = _exported(pathlib.Path(path))
        if kind == "onnx":
            commandline.require("onnxruntime")
        _, height, width, channels = about["files"][kind]["images"]
        any_size = height is None
        if not any_size and about["preprocessing"]["fits"]:
            raise UsageError(
                f"{file}: takes images that are cut to {height}x{width} already, as --augment and --resize of the run "
                "do it; export a saved_model, which does it itself"
            )
        shape = (*about["image_size"], channels) if any_size else (height, width, channels)

        asked: list[NDArray[np.uint8]] = []
        batches = (asked.pop() for _ in itertools.count())  # so that the reader loads its file once
        answers = _READ[kind](str(file), batches, len(about["class_names"]))

        def probabilities(batch: NDArray[np.uint8]) -> NDArray[np.float32]:
            asked.append(batch)
            try:
                return np.asarray(next(answers)["probabilities"], np.float32)
            except Exception as error:  # each library raises its own, and what a damaged file leads to
                raise DataError(f"cannot be loaded and run: {line_of(error)}", path=file) from None

        # A file that takes any size gets images as they are, one size at a time.
        fit = (lambda image: image) if any_size else None
        rule = PixelRule(**about["preprocessing"].get("pixel_rule", {}))  # earlier exports say nothing of it
        return cls(str(file), about["class_names"], shape, probabilities, fit, rule)

    def probabilities(self, pictures: Sequence[NDArray[np.uint8]]) -> NDArray[np.float32]:
        """Returns the probabilities of images: float32 (n, classes).

        Args:
          pictures: uint8 (height, width, channels) each, of any size; with the channels of `image_shape`.

        Raises:
          UsageError: one has another type, or other channels.
          DataError: an exported file cannot be loaded and run.
        """
        channels = self.image_shape[2]
        for number, picture in enumerate(pictures):
            wanted = f"pictures[{number}]: must be uint8 of shape (height, width, {channels})"
            if not isinstance(picture, np.ndarray):
                raise UsageError(f"{wanted}, not {type(picture).__name__}; files are for `predict`, by their paths")
            if picture.dtype != np.uint8 or picture.ndim != 3 or picture.shape[2] != channels or not picture.size:
                raise UsageError(f"{wanted}, not {picture.dtype} of shape {picture.shape}")
        return self._of_fitted([self._fitted(picture) for picture in pictures])

    def _of_fitted(self, fitted: Sequence[NDArray[np.uint8]]) -> NDArray[np.float32]:
        """Returns the probabilities of fitted images; those of one size are computed at once."""
        found = np.zeros((len(fitted), len(self.class_names)), np.float32)
        by_shape: dict[tuple[int, ...], list[int]] = {}
        for number, picture in enumerate(fitted):
            by_shape.setdefault(picture.shape, []).append(number)
        for numbers in by_shape.values():
            found[numbers] = self._probabilities(np.stack([fitted[number] for number in numbers]))
        return found

    def predict(self, paths: Iterable[str | os.PathLike[str]], top: int = 3) -> list[Prediction]:
        """Returns the predictions for image files, in their order.

        Args:
          paths: of the files; a `Prediction` says why one cannot be read.
          top: how many of the most likely classes to return for each.

        Raises:
          DataError: an exported file cannot be loaded and run.
        """
        return [one for batch in self.batches([os.fspath(path) for path in paths], top, _BATCH) for one in batch]

    def batches(self, paths: Sequence[str], top: int, size: int) -> Iterator[list[Prediction]]:
        """Yields the predictions of `size` files at a time."""
        for start in range(0, len(paths), size):
            read = [(path, self._read(path)) for path in paths[start : start + size]]
            answers = iter(self._of_fitted([picture for _, picture in read if isinstance(picture, np.ndarray)]))
            yield [
                Prediction(path, (), picture)
                if isinstance(picture, str)
                else Prediction(path, self._best(next(answers), top))
                for path, picture in read
            ]

    def _read(self, path: str) -> NDArray[np.uint8] | str:
        """Returns the image of a file as the model takes it; or why it cannot be read."""
        try:
            # Fitted at once: a batch of photographs as they are would need gigabytes.
            return self._fitted(pixels_of(content_of(path), self.image_shape[2], self.pixel_rule))
        except OSError as error:
            return reason_of(error)
        except BadImageError as error:
            return str(error)

    def _fitted(self, picture: NDArray[np.uint8]) -> NDArray[np.uint8]:
        return self._fit(picture) if self._fit else images.resized(picture, self.image_shape[:2])

    def _best(self, probabilities: NDArray[np.float32], top: int) -> tuple[tuple[int, str, float], ...]:
        order = np.argsort(-probabilities, kind="stable")[:top]
        return tuple((int(n), self.class_names[n], float(probabilities[n])) for n in order)


def pixels_of(file: bytes, channels: int, rule: PixelRule) -> NDArray[np.uint8]:
    """Returns the pixels of an image file as training got those of its files: uint8 (height, width, channels).

    Args:
      file: its content, in any format that a conversion reads.
      channels: 1 or 3.
      rule: that of the data set that the model was trained on.

    Raises:
      BadImageError: it is no usable image; the message says why.
    """
    opened = images.open_file(file)
    kind = images.kept_as(opened, file)
    upright = rule.orientation == UPRIGHT or kind is None  # other formats were always decoded, and turned, when stored
    if kind != "jpeg" or rule.dct != FAST:
        return images.pixels(opened, channels, upright)
    try:  # Pillow has no fast DCT
        found: NDArray[np.uint8] = decode_file(tf.constant(file), channels, kind, FAST).numpy()
    except tf.errors.OpError as error:
        raise BadImageError(f"the image cannot be decoded: {root_cause(error.message)[1]}") from None
    return images.turned(found, images.orientation(opened)) if upright else found


@dataclasses.dataclass(frozen=True)
class Prediction:
    """The classes that a model gives an image.

    Attributes:
      path: of its file.
      best: (number, name, probability) of the most likely classes, the best first; empty if the file cannot be read.
      problem: why it cannot be read; None: it was.
    """

    path: str
    best: tuple[tuple[int, str, float], ...]
    problem: str | None = None

    def __str__(self) -> str:
        """As a line: `photo.png: cat 0.983, dog 0.012`."""
        said = self.problem or ", ".join(f"{name} {probability:.3f}" for _, name, probability in self.best)
        return f"{self.path}: {said}"


def run(config: PredictConfig, paths: Sequence[str], found: Sequence[pathlib.Path]) -> None:
    """Prints or writes the predictions that the flags ask for.

    Args:
      config: the flags.
      paths: of the image files.
      found: the checkpoints to choose from; none with --exported.

    Raises:
      PipelineError: whatever a user can cause. If some files cannot be read, the others have been answered before.
    """
    with failures.in_one_line(1):
        if config.exported is not None:
            predictor = Predictor.of_export(config.exported)
        else:
            assert config.model_dir is not None
            flags = CheckpointFlags(config.model_dir, config.checkpoint, config.weights, config.data_dir)
            trained = build_first(found, flags, lambda line: print(line, file=sys.stderr))
            predictor = Predictor.of_trained(trained, config.eval_copies)
        print(predictor.name, file=sys.stderr, flush=True)
        bad = _printed(predictor, config, paths) if config.output is None else _written(predictor, config, paths)
        if bad:
            raise DataError(f"{len(bad):,} of {count_of(len(paths), 'image')} cannot be read, the first {bad[0]}")


def _printed(predictor: Predictor, config: PredictConfig, paths: Sequence[str]) -> list[Prediction]:
    """Prints a line for each image; returns the predictions of files that cannot be read."""
    bad = []
    for batch in predictor.batches(paths, config.top, config.batch_size):
        print(*batch, sep="\n", flush=True)
        bad += [one for one in batch if one.problem]
    return bad


def _written(predictor: Predictor, config: PredictConfig, paths: Sequence[str]) -> list[Prediction]:
    """Writes the predictions to --output, which is replaced as a whole or stays as it was; returns as `_printed`."""
    assert config.output is not None
    output, bad = pathlib.Path(config.output), list[Prediction]()
    classes = min(config.top, len(predictor.class_names))
    with named(f"--output={output}", "cannot be written"):
        output.parent.mkdir(parents=True, exist_ok=True)
        with tqdm(total=len(paths), unit=" images", disable=None) as bar, write.replaced(output) as file:
            line = _jsonl_line if output.suffix == ".jsonl" else functools.partial(_csv_line, classes)
            if output.suffix == ".csv":
                columns = (f"{name}_{number}" for number in range(1, classes + 1) for name in ("class", "probability"))
                file.write(_csv(["file", *columns, "problem"]))
            for batch in predictor.batches(paths, config.top, config.batch_size):
                file.writelines(line(one) for one in batch)
                bad += [one for one in batch if one.problem]
                bar.update(len(batch))
    print(f"{count_of(len(paths), 'image')}: {output}")
    return bad


def _jsonl_line(one: Prediction) -> bytes:
    content: dict[str, Any] = {"file": one.path}
    if one.problem:
        content["problem"] = one.problem
    else:
        top = [{"class": n, "class_name": name, "probability": round(p, 6)} for n, name, p in one.best]
        content |= {**top[0], "top": top}
    return f"{json.dumps(content)}\n".encode()


def _csv_line(classes: int, one: Prediction) -> bytes:
    cells = [cell for _, name, probability in one.best for cell in (name, f"{probability:.6f}")]
    return _csv([one.path, *cells, *[""] * (2 * classes - len(cells)), one.problem or ""])


def _csv(cells: Sequence[str]) -> bytes:
    row = io.StringIO()
    csv.writer(row, lineterminator="\n").writerow(cells)
    return row.getvalue().encode("utf-8", "backslashreplace")  # a file's name need not be valid text


def _exported(path: pathlib.Path) -> tuple[dict[str, Any], str, pathlib.Path]:
    """Returns the description of an export, the format to use, and its file.

    Raises:
      DataError, UsageError: as `Predictor.of_export`.
    """
    folder = path if (path / EXPORT).is_file() else path.parent
    try:
        about = json.loads(content_of(folder / EXPORT))
        made = {name: folder / file["file"] for name, file in about["files"].items()}
        _ = about["preprocessing"]["fits"], about["image_size"]
    except OSError:
        raise DataError(f"is not an export: there is no {EXPORT} in it", path=path, advice=_AGAIN) from None
    except (ValueError, LookupError, TypeError):
        raise DataError("is not what this version writes", path=folder / EXPORT, advice=_AGAIN) from None
    wanted = [name for name, file in made.items() if path in (folder, file)]
    if not wanted:
        raise DataError(f"is not one of the exported files: {', '.join(map(str, made.values()))}", path=path)
    kind = next((name for name in _READ if name in wanted), None)
    if kind is None:
        raise UsageError(f"{path}: a StableHLO program is not asked here; export one of {', '.join(_READ)}")
    if not made[kind].exists():
        raise DataError("is missing", path=made[kind], advice="copy the export again")
    return about, kind, made[kind]
