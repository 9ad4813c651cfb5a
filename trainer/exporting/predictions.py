"""Predictions for images or serialized records with the model in a run's checkpoint or an exported file."""

from __future__ import annotations

import dataclasses
import itertools
import json
import os
import pathlib
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any, cast

import numpy as np
import tensorflow as tf
from numpy.typing import NDArray

from pipeline import images
from pipeline.commands import commandline
from pipeline.commands.text import printable
from pipeline.decode.images import decode_file
from pipeline.errors import DataError, UsageError, line_of, location, message_of, reason_of, root_cause, to_run
from pipeline.files.reading import content_of
from pipeline.images import BadImageError
from pipeline.manifest import PixelRule
from pipeline.manifest.manifest import FAST, UPRIGHT
from pipeline.order.sharding import whole_number
from pipeline.records.tf_example import encode
from trainer.checkpoint import files
from trainer.config.trained import EXPORT, CheckpointFlags
from trainer.exporting import inputs, reading
from trainer.exporting.inputs import Record, RecordFile
from trainer.exporting.parsed import ImageFeature, parsed
from trainer.exporting.served import Augmented, served
from trainer.inference import Trained, build_first

# Best format first. StableHLO is missing because its programs only take batches of a fixed size.
_READ = {"saved_model": reading.saved_model, "keras": reading.keras, "onnx": reading.onnx}  # readers by format
_AGAIN = f"export the run again ({to_run('trainer.export')})"
_RULE = PixelRule()  # rule of data sets converted by this release
_OF_TENSORFLOW = tf.errors.OpError, UnicodeDecodeError  # the latter if a message contains bytes of a record
NOT_CLASSES = "its outputs are not one number per class"
NOT_A_TABLE = "its outputs are arrays, not classes or a few numbers"
FILE, RECORD, PROBLEM = "file", "record", "problem"  # columns of predictions besides the outputs
_TOP = 3  # classes shown if an image or record has one class
_LIKELY = 0.5  # probability above which a class is shown if there may be several
_BATCH = 64  # files or records that `predict` reads at a time


class Predictor:
    """A model ready to classify images, or to predict for serialized records if the run's task parses them.

        from trainer import Predictor

        predictor = Predictor.of_run("run")  # or .of_export("exported")
        print(predictor.predict(["photo.png"])[0])

        parsing = Predictor.of_run("run-of-a-task-that-parses")
        print(parsing.outputs(list_of_serialized_examples))  # {name: array}

    Attributes:
      name: description of the model in one line.
      class_names: names by class number; empty for a model of records whose outputs are not one number per class.
      image_shape: (height, width, channels) of the model's images; None if it takes records.
      pixel_rule: rule for decoding files as in training: whether they are turned upright, and which DCT is used.
    """

    def __init__(
        self,
        name: str,
        class_names: Sequence[str],
        image_shape: tuple[int, int, int] | None,
        compute: Callable[[NDArray[Any]], Any],
        fit: Callable[[NDArray[np.uint8]], NDArray[np.uint8]] | None = None,
        pixel_rule: PixelRule = _RULE,
        image: ImageFeature | None = None,
        kinds: Mapping[str, Sequence[Any]] | None = None,
    ) -> None:
        """Makes a predictor from its parts; `of_run` and `of_export` find them.

        Args:
          name: description of the model.
          class_names: names by class number.
          image_shape: (height, width, channels) of the model's images; None if it takes records.
          compute: function that returns the probabilities, float32 (n, classes), for images, uint8 (n, height, width,
            channels); or the outputs by name, (n, ...) each, for records, bytes (n,).
          fit: function that brings an image of any size to the model's size as the run's input did; None to stretch
            images like `beam_jobs.convert --resize`.
          pixel_rule: rule for decoding files, the same as for the training data.
          image: image feature of the records that the model takes; None if it takes images, or records of other kinds.
          kinds: (dtype, *sides) of each output's rows for records, as in export.json.
        """
        self.name, self.class_names, self.image_shape = name, tuple(class_names), image_shape
        self.pixel_rule = pixel_rule
        self._compute, self._fit, self.image, self._kinds = compute, fit, image, dict(kinds or {})

    @property
    def has_several(self) -> bool:
        """Whether an image or a record may have several classes, or none."""
        return bool(self.class_names) and bool(self._kinds) and "class" not in self._kinds

    @property
    def columns(self) -> dict[str, int | None]:
        """Number of values per table row, by output; None for a single value.

        Empty if the outputs are classes, or one of them is neither a number nor a vector of known length.
        """
        kinds = {name: (tf.as_dtype(kind), sides) for name, (kind, *sides) in self._kinds.items()}
        if self.class_names or any(
            not (kind.is_floating or kind.is_integer or kind.is_bool) or len(sides) > 1 or None in sides
            for kind, sides in kinds.values()
        ):
            return {}
        return {name: sides[0] if sides and sides[0] != 1 else None for name, (_, sides) in kinds.items()}

    def check_table(self, advice: str) -> None:
        """Raises UsageError if predictions are neither classes nor numbers, or an output has the name of a column.

        Args:
          advice: advice for the error.
        """
        if not self.class_names and not self.columns:
            raise UsageError(f"{self.name}: {NOT_A_TABLE}; {advice}")
        if taken := self.columns.keys() & {FILE, RECORD, PROBLEM}:
            raise UsageError(f"{self.name}: the output {min(taken)!r} has the name of another column; {advice}")

    def most(self, top: int | None) -> int:
        """Returns the largest number of classes in a prediction; for `top` see `predict`."""
        return min(top or (len(self.class_names) if self.has_several else _TOP), len(self.class_names))

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
          checkpoint: `ckpt-400`, `400` or `best`; None for the newest.
          weights: `raw`, or `ema` for the average over the steps; None for the average if the run kept one.
          data_dir: folder of the run's data set if that has moved: the class names are in its manifest.
          eval_copies: number of copies of each image to average over: the image itself, and others augmented by the
            run's recipe; None for the run's --eval_copies.

        Raises:
          PipelineError: the checkpoint does not exist, or its model takes images but does not classify them.
        """
        if eval_copies is not None:
            eval_copies = whole_number("eval_copies", eval_copies, 1)
        flags = CheckpointFlags(os.fspath(model_dir), checkpoint, weights, data_dir)
        found = files.candidates(flags.folder.path, flags.checkpoint)
        return cls.of_trained(build_first(found, flags, lambda line: print(line, file=sys.stderr)), eval_copies)

    @classmethod
    def of_trained(cls, trained: Trained, eval_copies: int | None = None) -> Predictor:
        """Returns the model of a checkpoint; for `eval_copies` see `of_run`."""
        if trained.takes_records:
            dataclasses.replace(trained.split.request, eval_copies=eval_copies or 1)  # rejects copies of records
            of_records = parsed(trained)
            names, kinds = of_records.class_names, of_records.kinds
            return cls(str(trained), names, None, of_records.answers, image=of_records.image, kinds=kinds)
        model = served(trained)
        copies = eval_copies or trained.config.data.eval_copies
        asked = Augmented(trained, model, copies) if copies > 1 else model
        shape = model.core_shape
        return cls(str(trained), model.class_names, shape, asked.probabilities, asked.fit, trained.pixel_rule)

    @classmethod
    def of_export(cls, path: str | os.PathLike[str]) -> Predictor:
        """Returns an exported model, given the folder that `trainer.export` wrote or one of the files in it.

        Raises:
          DataError: the export does not exist or is damaged.
          UsageError: the file cannot be used: it is a StableHLO program, or takes images that are already cropped.
        """
        about, kind, file = _exported(pathlib.Path(path))
        if "records" in about:
            if image := about["records"].get("image"):
                image = ImageFeature(**{**image, "pixel_rule": PixelRule(**image["pixel_rule"])})
            try:
                compute = reading.program(str(file))
            except Exception as error:  # a damaged file may raise anything
                raise DataError(f"cannot be loaded: {line_of(error)}", path=file) from None
            kinds = about["records"].get("outputs")
            return cls(str(file), about["class_names"], None, compute, image=image, kinds=kinds)
        if kind == "onnx":
            commandline.require("onnxruntime")
        _, height, width, channels = about["files"][kind]["images"]
        any_size = height is None
        if not any_size and about["preprocessing"]["fits"]:
            raise UsageError(
                f"{file}: takes images already cropped to {height}x{width}, as --augment and --resize of the run "
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
            except Exception as error:  # each library has its own errors, and a damaged file may raise anything
                raise DataError(f"cannot be loaded and run: {line_of(error)}", path=file) from None

        # A file that accepts any size gets images unchanged, one size at a time.
        fit = (lambda image: image) if any_size else None
        rule = PixelRule(**about["preprocessing"].get("pixel_rule", {}))  # missing in earlier exports
        return cls(str(file), about["class_names"], shape, probabilities, fit, rule)

    def probabilities(self, pictures: Sequence[NDArray[np.uint8]] | Sequence[bytes]) -> NDArray[np.float32]:
        """Returns the probabilities for images or records, float32 (n, classes).

        Args:
          pictures: images, uint8 (height, width, channels) each, of any size, with the channels of `image_shape`; or
            serialized records if the model takes these.

        Raises:
          UsageError: an image has the wrong type or number of channels, or the model's outputs are not one number per
            class.
          DataError: an exported file cannot be loaded and run, or a record cannot be parsed.
        """
        if self.image_shape is None:
            if not self.class_names:
                raise UsageError(f"{self.name}: {NOT_CLASSES}; call outputs")
            found: NDArray[np.float32] = self.outputs(cast(Sequence[bytes], pictures))["probabilities"]
            return found
        channels = self.image_shape[2]
        for number, picture in enumerate(pictures):
            wanted = f"pictures[{number}]: must be uint8 of shape (height, width, {channels})"
            if not isinstance(picture, np.ndarray):
                raise UsageError(f"{wanted}, not {type(picture).__name__}; files are for `predict`, by their paths")
            if picture.dtype != np.uint8 or picture.ndim != 3 or picture.shape[2] != channels or not picture.size:
                raise UsageError(f"{wanted}, not {picture.dtype} of shape {picture.shape}")
        return self._of_fitted([self._fitted(picture) for picture in cast(Sequence[NDArray[np.uint8]], pictures)])

    def outputs(self, records: Sequence[bytes]) -> dict[str, NDArray[Any]]:
        """Returns the model's outputs by name, (n, ...) each, for n serialized records.

        They are `probabilities`, float32 (n, classes), `class`, int64 (n,), and `class_name`, bytes (n,), if the model
        outputs a number per class. Other outputs are unchanged, named by their dict keys, or by Keras if there are
        several; a single output is named `outputs`.

        Raises:
          UsageError: the model takes images, or a record is not bytes.
          DataError: a record cannot be parsed.
        """
        if self.image_shape is not None:
            raise UsageError(f"{self.name}: takes images, not records; call probabilities")
        for number, record in enumerate(records):
            if not isinstance(record, bytes):
                raise UsageError(f"records[{number}]: must be the bytes of a record, not {type(record).__name__}")
        return self._of_records(records, lambda number, reason: DataError(reason, path=f"records[{number}]"))

    def _of_records(
        self, records: Sequence[bytes], error_of: Callable[[int, str], DataError]
    ) -> dict[str, NDArray[Any]]:
        """Returns the outputs for records; `error_of` makes the error for one of them from its number."""
        try:
            found: dict[str, NDArray[Any]] = self._compute(np.array(records, object))
            return found
        except _OF_TENSORFLOW as error:
            for number, record in enumerate(records):
                try:
                    self._compute(np.array([record], object))
                except _OF_TENSORFLOW as own:
                    raise error_of(number, root_cause(message_of(own))[1]) from None
            raise DataError(f"{self.name}: {root_cause(message_of(error))[1]}") from None

    def _of_fitted(self, fitted: Sequence[NDArray[np.uint8]]) -> NDArray[np.float32]:
        """Returns the probabilities for fitted images; images of the same size are computed together."""
        found = np.zeros((len(fitted), len(self.class_names)), np.float32)
        by_shape: dict[tuple[int, ...], list[int]] = {}
        for number, picture in enumerate(fitted):
            by_shape.setdefault(picture.shape, []).append(number)
        for numbers in by_shape.values():
            found[numbers] = self._compute(np.stack([fitted[number] for number in numbers]))
        return found

    def predict(
        self, paths: Iterable[str | os.PathLike[str]], top: int | None = None, split: str | None = None
    ) -> list[Prediction]:
        """Returns the predictions for image files, or for records in TFRecord files and data sets, in order.

        Args:
          paths: paths of files; for a model of records, also of data sets. The `Prediction` for an unreadable image has
            the reason.
          top: number of most likely classes to return for each; None for 3, or for all above 0.5 if there may be
            several.
          split: split of the data sets, or a part of one; None if they have only one.

        Raises:
          DataError: an exported file cannot be loaded and run, or a record cannot be read.
          UsageError: the model's outputs are neither classes nor numbers.
        """
        given = [os.fspath(path) for path in paths]
        if self.image_shape is None:
            self.check_table("call outputs")
        if self.image_shape is not None or (self.image is not None and not inputs.are_records(given)):
            return [one for batch in self.batches(given, top, _BATCH) for one in batch]
        batches = self.record_batches(inputs.record_files(given, split), _BATCH)
        return [one for records, outputs in batches for one in self.of_outputs(records, outputs, top)]

    def batches(self, paths: Sequence[str], top: int | None, size: int) -> Iterator[list[Prediction]]:
        """Yields the predictions for `size` image files at a time."""
        for start in range(0, len(paths), size):
            read = [(path, self.read(path)) for path in paths[start : start + size]]
            good = [(path, content) for path, content in read if not isinstance(content, str)]
            places = [(path, None) for path, _ in good]
            answers = iter(self._predictions(places, self._of_contents(good), top) if good else ())
            yield [Prediction(path, (), why) if isinstance(why, str) else next(answers) for path, why in read]

    def _of_contents(self, good: Sequence[tuple[str, Any]]) -> dict[str, NDArray[Any]]:
        """Returns the outputs for image files, given (path, content) of each as returned by `read`."""
        contents = [content for _, content in good]
        if self.image_shape is not None:
            return {"probabilities": self._of_fitted(contents)}
        return self._of_records(contents, lambda number, reason: DataError(reason, path=good[number][0]))

    def _record_of(self, file: bytes) -> bytes:
        """Returns the record for the content of an image file: an Example that contains only the image.

        If all images of the data set have the same size, the image is stretched to it.
        """
        assert self.image is not None
        height, width, channels = self.image.shape
        found = pixels_of(file, channels or 3, self.image.pixel_rule)
        if height is not None and width is not None:
            found = images.resized(found, (height, width))
        return encode({self.image.name: found.tobytes() if self.image.is_raw else images.encoded(found, "png")})

    def record_batches(
        self, files: Iterable[RecordFile], size: int
    ) -> Iterator[tuple[list[Record], dict[str, NDArray[Any]]]]:
        """Yields `size` records at a time, with {name: output} for them.

        Raises:
          DataError: a record is truncated or corrupt, or cannot be parsed.
        """
        left = itertools.chain.from_iterable(file.records() for file in files)
        while records := list(itertools.islice(left, size)):
            found = self._of_records([one.content for one in records], lambda number, why: records[number].error(why))
            yield records, found

    def of_outputs(
        self, records: Sequence[Record], outputs: Mapping[str, NDArray[Any]], top: int | None
    ) -> list[Prediction]:
        """Returns the predictions for records, given their outputs."""
        return self._predictions([(one.of.name, one.number) for one in records], outputs, top)

    def _predictions(
        self, places: Sequence[tuple[str, int | None]], outputs: Mapping[str, NDArray[Any]], top: int | None
    ) -> list[Prediction]:
        """Returns the predictions for rows of outputs, given each row's file and record number."""
        if not self.class_names:
            flat = {name: outputs[name].reshape(len(places), -1).tolist() for name in self.columns}
            return [
                Prediction(path, (), record=record, numbers={name: tuple(values[row]) for name, values in flat.items()})
                for row, (path, record) in enumerate(places)
            ]
        least = _LIKELY if self.has_several and top is None else -1.0
        return [
            Prediction(path, self._best(row, top, least), record=record, is_open=self.has_several)
            for (path, record), row in zip(places, outputs.get("probabilities", ()), strict=True)
        ]

    def read(self, path: str) -> Any:
        """Returns a file's image in the form that the model takes, pixels or a record; or why it cannot be read."""
        try:
            if self.image_shape is None:
                return self._record_of(content_of(path))
            # Fitted right away: a batch of full-size photographs would need gigabytes.
            return self._fitted(pixels_of(content_of(path), self.image_shape[2], self.pixel_rule))
        except OSError as error:
            return reason_of(error)
        except BadImageError as error:
            return str(error)

    def _fitted(self, picture: NDArray[np.uint8]) -> NDArray[np.uint8]:
        if self._fit:
            return self._fit(picture)
        assert self.image_shape is not None
        return images.resized(picture, self.image_shape[:2])

    def _best(
        self, probabilities: NDArray[np.float32], top: int | None, least: float
    ) -> tuple[tuple[int, str, float], ...]:
        order = np.argsort(-probabilities, kind="stable")[: self.most(top)]
        return tuple((int(n), self.class_names[n], float(probabilities[n])) for n in order if probabilities[n] > least)


def pixels_of(file: bytes, channels: int, rule: PixelRule) -> NDArray[np.uint8]:
    """Decodes an image file by the training data's rule: uint8 (height, width, channels).

    Args:
      file: content of the file, in any format that a conversion reads.
      channels: 1 or 3.
      rule: rule of the data set that the model was trained on.

    Raises:
      BadImageError: the content is not a usable image; the message says why.
    """
    opened = images.open_file(file)
    kind = images.kept_as(opened, file)
    upright = rule.orientation == UPRIGHT or kind is None  # other formats were always turned in conversion
    if kind != "jpeg" or rule.dct != FAST:
        return images.pixels(opened, channels, upright)
    try:  # Pillow does not offer the fast DCT
        found: NDArray[np.uint8] = decode_file(tf.constant(file), channels, kind, FAST).numpy()
    except tf.errors.OpError as error:
        raise BadImageError(f"the image cannot be decoded: {root_cause(error.message)[1]}") from None
    return images.turned(found, images.orientation(opened)) if upright else found


@dataclasses.dataclass(frozen=True)
class Prediction:
    """The classes or numbers that a model predicts for an image or a record.

    Attributes:
      path: path of the file; `folder:split` for a record of a data set.
      best: (number, name, probability) of the most likely classes, best first; empty if the file cannot be read, or if
        none of several possible classes applies.
      problem: reason why it cannot be read; None if it was read.
      record: number of the record in that file or split; None for an image.
      is_open: whether it may have several classes, or none.
      numbers: values of each output by name, if the outputs are not classes.
    """

    path: str
    best: tuple[tuple[int, str, float], ...]
    problem: str | None = None
    record: int | None = None
    is_open: bool = False
    numbers: Mapping[str, tuple[float, ...]] = dataclasses.field(default_factory=dict)

    def __str__(self) -> str:
        """Text such as `photo.png: cat 0.983, dog 0.012`, or `voc:test, record 7: cat 0.983, dog 0.012`."""
        said = self.problem or ", ".join(f"{name} {probability:.3f}" for _, name, probability in self.best)
        if self.is_open and not said:
            said = f"no class above {_LIKELY}"
        if self.numbers:
            values = {name: " ".join(f"{value:.6g}" for value in row) for name, row in self.numbers.items()}
            said = ", ".join(values.values() if len(values) == 1 else (f"{name} {row}" for name, row in values.items()))
        return printable(f"{location(self.path, self.record, None)}: {said}")


def _exported(path: pathlib.Path) -> tuple[dict[str, Any], str, pathlib.Path]:
    """Returns the description of an export, the format to use, and its file."""
    folder = path if (path / EXPORT).is_file() else path.parent
    try:
        about = json.loads(content_of(folder / EXPORT))
        made = {name: folder / file["file"] for name, file in about["files"].items()}
        _ = about["class_names"], "records" in about or (about["preprocessing"]["fits"], about["image_size"])
    except OSError:
        raise DataError(f"is not an export: there is no {EXPORT} in it", path=path, advice=_AGAIN) from None
    except (ValueError, LookupError, TypeError):
        raise DataError("was not written by this version", path=folder / EXPORT, advice=_AGAIN) from None
    wanted = [name for name, file in made.items() if path in (folder, file)]
    if not wanted:
        raise DataError(f"is not one of the exported files: {', '.join(map(str, made.values()))}", path=path)
    kind = next((name for name in _READ if name in wanted), None)
    if kind is None:
        raise UsageError(f"{path}: a StableHLO program cannot be used here; export one of {', '.join(_READ)}")
    if not made[kind].exists():
        raise DataError("is missing", path=made[kind], advice="copy the export again")
    return about, kind, made[kind]
