"""What a trained model says of images: of a run's checkpoint, or of an exported file."""

from __future__ import annotations

import csv
import dataclasses
import itertools
import json
import os
import pathlib
import sys
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import IO, Any

import numpy as np
import tensorflow as tf
from numpy.typing import NDArray
from tqdm import tqdm

from pipeline import images
from pipeline.commands.text import count_of
from pipeline.errors import DataError, UsageError, named
from pipeline.images import BadImageError
from trainer.checkpoint import files
from trainer.cluster import failures
from trainer.config.run import CheckpointFlags
from trainer.exporting import reading
from trainer.exporting.flags import EXPORT, PredictConfig
from trainer.exporting.served import served
from trainer.inference import Trained, build_first

ENDINGS = (".png", ".jpg", ".jpeg", ".bmp", ".gif", ".webp", ".tif", ".tiff", ".jp2", ".avif", ".heic", ".heif", ".ppm")
_READ = {
    "saved_model": reading.saved_model,
    "keras": reading.keras,
    "onnx": reading.onnx,
}  # the best first; a StableHLO program takes one size of batch


class Predictor:
    """A model of images, ready to be asked.

        from trainer import Predictor

        predictor = Predictor.of_run("run")  # or .of_export("exported")
        print(predictor.predict(["photo.png"])[0])

    Attributes:
      name: what it is, in one line.
      class_names: by class number.
      image_shape: (height, width, channels) that the model gets.
    """

    def __init__(
        self,
        name: str,
        class_names: Sequence[str],
        image_shape: tuple[int, int, int],
        probabilities: Callable[[NDArray[np.uint8]], NDArray[np.float32]],
        fit: Callable[[NDArray[np.uint8]], NDArray[np.uint8]] | None = None,
    ) -> None:
        """Takes the parts.

        Args:
          name: what it is.
          class_names: by class number.
          image_shape: that the model gets.
          probabilities: of uint8 (n, height, width, channels), float32 (n, classes).
          fit: brings an image of any size to that of the model, as the run's input did; None: images are stretched, as
            `beam_jobs.convert --resize` does it.
        """
        self.name, self.class_names, self.image_shape = name, tuple(class_names), image_shape
        self._probabilities, self._fit = probabilities, fit

    @classmethod
    def of_run(
        cls,
        model_dir: str | os.PathLike[str],
        *,
        checkpoint: str | None = None,
        weights: str | None = None,
        data_dir: str | None = None,
    ) -> Predictor:
        """Returns the model of a run.

        Args:
          model_dir: of `trainer.run`; it may be training.
          checkpoint: `ckpt-400`, `400` or `best`; None: the newest.
          weights: `raw`, or `ema` for the average over the steps; None: the average if the run kept one.
          data_dir: of the run's data set, where that has moved: the class names are in its manifest.

        Raises:
          PipelineError: there is no such checkpoint, or its model is not one of images and classes.
        """
        flags = CheckpointFlags(os.fspath(model_dir), checkpoint, weights, data_dir)
        return cls.of_trained(build_first(files.candidates(flags.folder.path, flags.checkpoint), flags, print))

    @classmethod
    def of_trained(cls, trained: Trained) -> Predictor:
        """Returns the model of a checkpoint."""
        model = served(trained)
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
        )

    @classmethod
    def of_export(cls, path: str | os.PathLike[str]) -> Predictor:
        """Returns the model of what `trainer.export` wrote: its folder, or one of the files in it.

        Raises:
          DataError: there is no such export, or it is damaged.
          UsageError: the file cannot be asked: it is a StableHLO program, or takes images that are cut already.
        """
        about, kind, file = _exported(pathlib.Path(path))
        _, height, width, channels = about["files"][kind]["images"]
        any_size = height is None
        if not any_size and about["preprocessing"]["fits"]:
            raise UsageError(
                f"{file}: takes images that are cut to {height}x{width} already, as --distort and --resize of the run "
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
                reason = (str(error).strip().splitlines() or [type(error).__name__])[0]
                raise DataError(f"{file}: cannot be loaded and run: {reason}") from None

        # Of a file that takes any size, images come one by one, as they are.
        return cls(str(file), about["class_names"], shape, probabilities, (lambda image: image) if any_size else None)

    def probabilities(self, pictures: Sequence[NDArray[np.uint8]]) -> NDArray[np.float32]:
        """Returns the probabilities of images: float32 (n, classes).

        Args:
          pictures: uint8 (height, width, channels) each, of any size; with the channels of `image_shape`.
        """
        fitted = [self._fitted(picture) for picture in pictures]
        found: list[Any] = [None] * len(fitted)
        by_shape: dict[tuple[int, ...], list[int]] = {}
        for number, picture in enumerate(fitted):
            by_shape.setdefault(picture.shape, []).append(number)
        for numbers in by_shape.values():
            answers = self._probabilities(np.stack([fitted[number] for number in numbers]))
            for number, answer in zip(numbers, answers, strict=True):
                found[number] = answer
        return np.stack(found) if found else np.zeros((0, len(self.class_names)), np.float32)

    def predict(self, paths: Iterable[str | os.PathLike[str]], top: int = 3) -> list[Prediction]:
        """Returns what the model says of image files, in their order.

        Args:
          paths: of the files; see `Prediction` for what cannot be read.
          top: most classes of each.
        """
        return [one for batch in self.batches([os.fspath(path) for path in paths], top, 64) for one in batch]

    def batches(self, paths: Sequence[str], top: int, size: int) -> Iterator[list[Prediction]]:
        """Yields the predictions of `size` files at a time."""
        for start in range(0, len(paths), size):
            yield self._of_files(paths[start : start + size], top)

    def _of_files(self, paths: Sequence[str], top: int) -> list[Prediction]:
        read = [self._read(path) for path in paths]
        pictures = [picture for picture in read if isinstance(picture, np.ndarray)]
        answers = iter(self.probabilities(pictures))
        return [
            Prediction(path, (), picture)
            if isinstance(picture, str)
            else Prediction(path, self._best(next(answers), top))
            for path, picture in zip(paths, read, strict=True)
        ]

    def _read(self, path: str) -> NDArray[np.uint8] | str:
        """Returns the image of a file, upright; or why it cannot be read."""
        try:
            return images.pixels(images.open_file(pathlib.Path(path).read_bytes()), self.image_shape[2], upright=True)
        except OSError as error:
            return error.strerror or str(error)
        except BadImageError as error:
            return str(error)

    def _fitted(self, picture: NDArray[np.uint8]) -> NDArray[np.uint8]:
        return self._fit(picture) if self._fit else images.resized(picture, self.image_shape[:2])

    def _best(self, probabilities: NDArray[np.float32], top: int) -> tuple[tuple[int, str, float], ...]:
        order = np.argsort(-probabilities, kind="stable")[:top]
        return tuple((int(n), self.class_names[n], float(probabilities[n])) for n in order)


@dataclasses.dataclass(frozen=True)
class Prediction:
    """What a model says of an image.

    Attributes:
      path: of its file.
      best: (number, name, probability) of the most likely classes, the best first; empty if the file cannot be read.
      problem: why it cannot be read; None: it was.
    """

    path: str
    best: tuple[tuple[int, str, float], ...]
    problem: str | None = None

    def __str__(self) -> str:
        """Such as `photo.png: cat 0.983, dog 0.012`."""
        said = self.problem or ", ".join(f"{name} {probability:.3f}" for _, name, probability in self.best)
        return f"{self.path}: {said}"


def run(config: PredictConfig, found: Sequence[pathlib.Path]) -> None:
    """Prints or writes the predictions that the flags ask for.

    Args:
      config: the flags.
      found: the checkpoints to choose from; none with --exported.

    Raises:
      PipelineError: whatever a user can cause; what could be read is written all the same, and names the rest.
    """
    with failures.in_one_line(1):
        paths, others = image_files(config.images)
        if not paths:
            raise DataError(f"{' '.join(config.images)}: {count_of(others, 'file')}, and none has an image's ending")
        if config.exported is not None:
            predictor = Predictor.of_export(config.exported)
        else:
            assert config.model_dir is not None
            flags = CheckpointFlags(config.model_dir, config.checkpoint, config.weights, config.data_dir)
            predictor = Predictor.of_trained(build_first(found, flags, lambda line: print(line, file=sys.stderr)))
        print(predictor.name, file=sys.stderr, flush=True)
        bad = _told(predictor, config, paths, print) if config.output is None else _written(predictor, config, paths)
        if others:
            left = count_of(others, "file")
            print(f"left out {left} of another ending than an image's", file=sys.stderr)
        if bad:
            more = f"; and {len(bad) - 1} more" if len(bad) > 1 else ""
            raise DataError(f"{bad[0]}{more}: {len(paths) - len(bad):,} of {len(paths):,} images have an answer")


def _told(
    predictor: Predictor, config: PredictConfig, paths: Sequence[str], tell: Callable[[Prediction], object]
) -> list[Prediction]:
    """Tells the prediction of each image; returns those of the files that cannot be read."""
    bad = []
    with tqdm(total=len(paths), unit=" images", disable=None if len(paths) > config.batch_size else True) as bar:
        for batch in predictor.batches(paths, config.top, config.batch_size):
            for one in batch:
                tell(one)
            bad += [one for one in batch if one.problem]
            bar.update(len(batch))
    return bad


def _written(predictor: Predictor, config: PredictConfig, paths: Sequence[str]) -> list[Prediction]:
    """Writes the predictions to --output, which is there as a whole or not at all."""
    output = pathlib.Path(str(config.output))
    partial = output.with_name(f".{output.name}.{os.getpid()}.tmp")
    classes = min(config.top, len(predictor.class_names))
    with named(f"--output={output}", "cannot be written"):
        output.parent.mkdir(parents=True, exist_ok=True)
        try:
            with partial.open("w", encoding="utf-8", errors="backslashreplace", newline="") as stream:
                bad = _told(predictor, config, paths, writer_of(stream, output.suffix, classes))
            partial.replace(output)
        finally:
            partial.unlink(missing_ok=True)
    print(f"{count_of(len(paths), 'image')}: {output}")
    return bad


def image_files(paths: Sequence[str]) -> tuple[list[str], int]:
    """Returns the files that are given, and of folders those inside that have an image's ending, sorted.

    Returns:
      The paths, and the number of other files in the folders.

    Raises:
      DataError: there is no such file or folder, or it cannot be listed.
    """
    found, others = [], 0
    for path in paths:
        with named(path, "cannot be read"):
            if not os.path.isdir(path):
                os.stat(path)
                found.append(path)
                continue
            inside = sorted(
                os.path.join(place, name)
                for place, _, names in os.walk(path, onerror=_raise)
                for name in names
                if not name.startswith(".")
            )
        chosen = [name for name in inside if os.path.splitext(name)[1].lower() in ENDINGS]
        found, others = found + chosen, others + len(inside) - len(chosen)
    return found, others


def _raise(error: OSError) -> None:
    raise error


def writer_of(stream: IO[str], kind: str, top: int) -> Callable[[Prediction], object]:
    """Returns what writes a prediction as a line of `.jsonl` or `.csv`; files that cannot be read have no classes."""
    if kind == ".jsonl":
        return lambda one: stream.write(json.dumps(_content(one)) + "\n")
    rows = csv.writer(stream, lineterminator="\n")
    rows.writerow(["file", *(f"{name}_{n}" for n in range(1, top + 1) for name in ("class", "probability")), "problem"])

    def write(one: Prediction) -> None:
        cells = [cell for _, name, probability in one.best for cell in (name, f"{probability:.6f}")]
        rows.writerow([one.path, *cells, *[""] * (2 * top - len(cells)), one.problem or ""])

    return write


def _content(one: Prediction) -> dict[str, Any]:
    if one.problem:
        return {"file": one.path, "problem": one.problem}
    classes = [{"class": n, "class_name": name, "probability": round(p, 6)} for n, name, p in one.best]
    return {"file": one.path, **classes[0], "top": classes}


def _exported(path: pathlib.Path) -> tuple[dict[str, Any], str, pathlib.Path]:
    """Returns the description of an export, the format to ask, and its file.

    Raises:
      DataError, UsageError: as `Predictor.of_export`.
    """
    folder = path if (path / EXPORT).is_file() else path.parent
    try:
        about = json.loads((folder / EXPORT).read_text(encoding="utf-8"))
        made = {name: folder / file["file"] for name, file in about["files"].items()}
        _ = about["preprocessing"]["fits"], about["image_size"]
    except OSError:
        raise DataError(f"{path}: no export: there is no {folder / EXPORT}; trainer.export writes it") from None
    except (ValueError, LookupError, TypeError):
        raise DataError(f"{folder / EXPORT}: is not what this version of trainer.export writes; export again") from None
    wanted = [name for name, file in made.items() if path in (folder, file)]
    if not wanted:
        raise DataError(f"{path}: is not one of the exported files: {', '.join(map(str, made.values()))}")
    kind = next((name for name in _READ if name in wanted), None)
    if kind is None:
        raise UsageError(f"{path}: a StableHLO program is not asked here; export one of {', '.join(_READ)}")
    if not made[kind].exists():
        raise DataError(f"{made[kind]}: is missing; copy the export again")
    return about, kind, made[kind]
