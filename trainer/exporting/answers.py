"""Runs `trainer.predict` with checked flags: it runs a model, and prints or writes the predictions."""

from __future__ import annotations

import contextlib
import csv
import functools
import io
import json
import pathlib
import shutil
import sys
import tempfile
import zipfile
from collections.abc import Iterable, Mapping, Sequence
from types import TracebackType
from typing import IO, Any, NamedTuple, Self

import numpy as np
from numpy.typing import NDArray
from tqdm import tqdm

from pipeline.commands.text import count_of, some_of
from pipeline.errors import DataError, UsageError, named, to_run
from pipeline.files import write
from trainer.cluster import failures
from trainer.config.trained import ARRAYS, PredictConfig
from trainer.exporting import inputs
from trainer.exporting.inputs import ImageFile, Record, RecordFile
from trainer.exporting.predictions import FILE, PROBLEM, RECORD, Prediction, Predictor

CLASS_NAMES = "class_names"  # array next to those of the outputs
_MOST_NAMED = 3  # files named in an error


def run(config: PredictConfig, paths: Sequence[str]) -> None:
    """Prints or writes the requested predictions.

    Args:
      config: flags of the command.
      paths: image files; empty if records are given.

    Raises:
      PipelineError: any error that a user can cause. Unreadable files are only reported after the others' predictions.
    """
    with failures.in_one_line(1):
        if config.exported is not None:
            predictor = Predictor.of_export(config.exported)
        else:
            assert config.model_dir is not None
            chosen = {"checkpoint": config.checkpoint, "weights": config.weights, "data_dir": config.data_dir}
            predictor = Predictor.of_run(config.model_dir, **chosen, eval_copies=config.eval_copies)
        _check(predictor, config, are_records=not paths)
        records: Sequence[RecordFile] = [] if paths else inputs.record_files(config.inputs, config.split)
        left_out = list[tuple[str, str]]()
        if paths and config.output is not None and config.output.endswith(ARRAYS):
            records = [ImageFile.of(path, predictor.read, left_out) for path in paths]
        print(predictor.name, file=sys.stderr, flush=True)
        if records:
            _answer_records(predictor, config, records)
            bad = [Prediction(path, (), why) for path, why in left_out]
        else:
            bad = _told(predictor, config, predictor.batches(paths, config.top, config.batch_size), len(paths))
        if bad:
            said = some_of(list(map(str, bad)), _MOST_NAMED)
            raise DataError(f"{len(bad):,} of {count_of(len(paths), 'image')} cannot be read: {said}")


def _check(predictor: Predictor, config: PredictConfig, are_records: bool) -> None:
    first, is_arrays = config.inputs[0], config.output is not None and config.output.endswith(ARRAYS)
    if predictor.image_shape is not None:
        if are_records:
            raise UsageError(
                f"{first}: has records, but {predictor.name} takes images; give image files "
                f"({to_run('trainer.evaluate')} evaluates it on a data set)"
            )
        if is_arrays or config.split is not None:
            flag = f"--split={config.split}" if config.split is not None else f"--output={config.output}"
            raise UsageError(f"{flag}: is for records, but {predictor.name} takes images; leave it out")
        return
    if not are_records and predictor.image is None:
        raise UsageError(
            f"{first}: is neither a TFRecord file nor a data set, but {predictor.name} takes records; give "
            "TFRecord files, or the folder of a data set and --split"
        )
    if not are_records and config.split is not None:
        raise UsageError(f"--split={config.split}: is for data sets, not for image files; leave it out")
    if not is_arrays:
        predictor.check_table(f"give --output=FILE{ARRAYS}, which gets all as arrays")


def _answer_records(predictor: Predictor, config: PredictConfig, files: Sequence[RecordFile]) -> None:
    batches = predictor.record_batches(files, config.batch_size)
    if config.output is None or not config.output.endswith(ARRAYS):
        answers = (predictor.of_outputs(records, outputs, config.top) for records, outputs in batches)
        _told(predictor, config, answers, None)
        return
    output, what = pathlib.Path(config.output), "image" if isinstance(files[0], ImageFile) else "record"
    with named(f"--output={output}", "cannot be written"):
        output.parent.mkdir(parents=True, exist_ok=True)
        with tqdm(unit=f" {what}s", disable=None) as bar, ArrayFile(output) as file:
            for records, outputs in batches:
                file.add(records, outputs)
                bar.update(len(records))
            if file.rows:
                file.write(predictor.class_names)
                bar.close()
                print(f"{count_of(file.rows, what)}: {output}")


def _told(
    predictor: Predictor, config: PredictConfig, batches: Iterable[list[Prediction]], images: int | None
) -> list[Prediction]:
    """Prints a line for each prediction, or writes them to --output; returns the failures of unreadable files.

    The file is replaced as a whole or stays as it was. `images` is the number of images; None if they are records.
    """
    bad, what = list[Prediction](), "record" if images is None else "image"
    if config.output is None:
        for batch in batches:
            print(*batch, sep="\n", flush=True)
            bad += [one for one in batch if one.problem]
        return bad
    output, count = pathlib.Path(config.output), 0
    cells = _cells(predictor, config.top)
    with named(f"--output={output}", "cannot be written"):
        output.parent.mkdir(parents=True, exist_ok=True)
        with tqdm(total=images, unit=f" {what}s", disable=None) as bar, write.replaced(output) as file:
            line = _jsonl_line if output.suffix == ".jsonl" else functools.partial(_csv_line, len(cells))
            if output.suffix == ".csv":
                file.write(_csv([FILE, *cells, PROBLEM] if images is not None else [FILE, RECORD, *cells]))
            for batch in batches:
                file.writelines(line(one) for one in batch)
                bad += [one for one in batch if one.problem]
                count += len(batch)
                bar.update(len(batch))
    print(f"{count_of(count, what)}: {output}")
    return bad


def _cells(predictor: Predictor, top: int | None) -> list[str]:
    if not predictor.class_names:
        columns = predictor.columns.items()
        return [f"{name}_{n}" if count else name for name, count in columns for n in range(1, (count or 1) + 1)]
    return [f"{name}_{n}" for n in range(1, predictor.most(top) + 1) for name in ("class", "probability")]


def _jsonl_line(one: Prediction) -> bytes:
    content: dict[str, Any] = {FILE: one.path} | ({} if one.record is None else {RECORD: one.record})
    top = [{"class": n, "class_name": name, "probability": round(p, 6)} for n, name, p in one.best]
    if one.problem:
        content[PROBLEM] = one.problem
    elif one.numbers:
        content |= {name: list(row) if len(row) > 1 else row[0] for name, row in one.numbers.items()}
    else:
        content |= {"classes": top} if one.is_open else {**top[0], "top": top}
    return f"{json.dumps(content)}\n".encode()


def _csv_line(count: int, one: Prediction) -> bytes:
    """Returns a CSV line with `count` columns for the prediction."""
    cells = [cell for _, name, probability in one.best for cell in (name, f"{probability:.6f}")]
    cells += [f"{value:.9g}" for row in one.numbers.values() for value in row]
    cells += [""] * (count - len(cells))
    if one.record is not None:
        return _csv([one.path, str(one.record), *cells])
    return _csv([one.path, *cells, one.problem or ""])


def _csv(cells: Sequence[str]) -> bytes:
    row = io.StringIO()
    csv.writer(row, lineterminator="\n").writerow(cells)
    return row.getvalue().encode("utf-8", "backslashreplace")  # a file name need not be valid text


class _Column(NamedTuple):
    """The rows of an output so far: their bytes, type and shape."""

    content: IO[bytes]
    dtype: np.dtype[Any]
    shape: tuple[int, ...]


class ArrayFile:
    """An .npz file with an array for each output of a model, with records along the first axis.

    `record` has the records' numbers, and `file` the file or split of each. `class_names` has names by class number.

    Attributes:
      rows: number of records so far.
    """

    def __init__(self, path: pathlib.Path) -> None:
        """Begins without records; `write` creates the file."""
        self.rows = 0
        self._path, self._files, self._numbers = path, list[str](), list[int]()
        self._columns, self._open = dict[str, _Column](), contextlib.ExitStack()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self._open.close()

    def add(self, records: Sequence[Record], outputs: Mapping[str, NDArray[Any]]) -> None:
        """Adds the outputs for some records, (rows, ...) each; text such as class names is left out.

        Raises:
          UsageError: an output's shape differs from that of earlier records, or its name is reserved for another array.
        """
        for name, values in outputs.items():
            if values.dtype == object:
                continue
            if name in (FILE, RECORD, CLASS_NAMES):
                raise UsageError(f"the output {name!r} has the name of another array in the file; rename it")
            if name not in self._columns:
                made = tempfile.TemporaryFile(dir=self._path.parent)  # noqa: SIM115, closed with the stack
                content = self._open.enter_context(made)
                self._columns[name] = _Column(content, values.dtype, values.shape[1:])
            column = self._columns[name]
            if column.shape != values.shape[1:]:
                place = f"{records[0].of.name}, record {records[0].number}"
                raise UsageError(
                    f"the output {name!r} has shape {values.shape[1:]} from {place} on, {column.shape} before, but an "
                    "array has a single shape; give files whose records have outputs of the same shape"
                )
            column.content.write(np.ascontiguousarray(values).data)
        self._files += [record.of.name for record in records]
        self._numbers += [record.number for record in records]
        self.rows += len(records)

    def write(self, class_names: Sequence[str]) -> None:
        """Writes the file; an existing one is replaced as a whole or stays as it was."""
        with write.replaced(self._path) as file, zipfile.ZipFile(file, "w") as arrays:
            small = {FILE: np.array(self._files, str), RECORD: np.array(self._numbers, np.int64)}
            if class_names:
                small[CLASS_NAMES] = np.array(class_names)
            for name, values in small.items():
                with arrays.open(f"{name}.npy", "w") as entry:
                    np.lib.format.write_array(entry, values, allow_pickle=False)
            for name, column in self._columns.items():
                column.content.seek(0)
                with arrays.open(f"{name}.npy", "w", force_zip64=True) as entry:
                    head = {
                        "descr": np.lib.format.dtype_to_descr(column.dtype),
                        "fortran_order": False,
                        "shape": (self.rows, *column.shape),
                    }
                    np.lib.format.write_array_header_2_0(entry, head)
                    shutil.copyfileobj(column.content, entry)
