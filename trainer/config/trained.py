"""Flags of commands that use a trained model: trainer.evaluate, trainer.export, trainer.predict."""

from __future__ import annotations

import dataclasses
import os
import pathlib
from collections.abc import Callable
from typing import Any, ClassVar

from pipeline.commands.flags import check, check_all, check_needs, fields_with, flag
from pipeline.errors import UsageError, name_of, unknown
from pipeline.order.views import View
from pipeline.registry import Registry
from pipeline.request import MOST_COPIES
from trainer.config.meaning import check_apart, check_local, order_flag
from trainer.run_folder import RunFolder

WEIGHTS = ("raw", "ema")
_COPIES = "take the mean over so many copies of an image: itself, and others augmented as in training (None: the run's)"


@dataclasses.dataclass(frozen=True)
class CheckpointFlags:
    """The trained model. Flags that are not given come from its run.

    Attributes:
      needs_split: whether a split must be named if the run evaluated none; if not, the training split is used.
    """

    needs_split: ClassVar[bool] = False

    model_dir: str = flag(text=f"folder of a run of {name_of('trainer.run')}; it may be training")
    checkpoint: str | None = flag(None, "ckpt-400, 400, best or best/ckpt-400 (None: the newest)")
    weights: str | None = flag(
        None, "raw, or ema: the average over the steps (None: the average if the run kept one)", known=WEIGHTS
    )
    data_dir: str | None = flag(
        None, "folder of a data set of the same classes (None: the run's)", meaning={"of_run": "data_dir"}
    )
    statistics: str | None = flag(None, "folder of the data set whose statistics normalise images (None: the run's)")
    split: str | None = order_flag("split", unset="the run's --eval_split", of_run="eval_split")
    cache_dir: str | None = flag(
        None,
        "folder on a local disk for copies of a remote data set's shards (None: the run's)",
        meaning={"of_run": "cache_dir"},
    )
    cache_bytes: int | None = flag(
        None, "bytes that the copies may take (None: the run's)", least=1, meaning={"of_run": "cache_bytes"}
    )

    @property
    def folder(self) -> RunFolder:
        """The layout of --model_dir, which may also name a checkpoint in the folder."""
        return RunFolder(pathlib.Path(self.model_dir))

    @property
    def of_run(self) -> dict[str, Any]:
        """Flags of `trainer.run`, by name, with values to use instead of the run's."""
        values = {field.metadata["of_run"]: getattr(self, field.name) for field in fields_with(self, "of_run")}
        return {name: value for name, value in values.items() if value is not None}

    def __post_init__(self) -> None:
        check_all(lambda: check(self), lambda: self._check_folder("model_dir"))

    def _check_folder(self, name: str) -> None:
        check_local(self, name)
        check_apart(name, getattr(self, name), self.data_dir)


@dataclasses.dataclass(frozen=True)
class EvaluateConfig(CheckpointFlags):
    """What to evaluate, and where to write the results. Data flags default to the run's."""

    needs_split: ClassVar[bool] = True

    batch_size: int | None = flag(
        None,
        "examples at a time (None: the run's --global_batch_size)",
        least=1,
        meaning={"of_run": "global_batch_size"},
    )
    mistakes: int = flag(24, "number of worst mistakes to keep and draw", least=0)
    output: str | None = flag(None, "folder for report.json, confusion.png and mistakes.png")
    json: bool = flag(False, "print one line of JSON per checkpoint, instead of tables")
    eval_copies: int | None = flag(None, _COPIES, least=1, most=MOST_COPIES, meaning={"of_run": "eval_copies"})
    where: str | None = order_flag("where", unset="the run's --eval_where", of_run="eval_where")
    limit: str | None = order_flag("limit", unset="the run's --eval_limit", of_run="eval_limit")
    continuous: bool = flag(False, "evaluate each checkpoint of a run that is training, until its last step")
    interval: float = flag(
        10.0, "seconds between checks for new checkpoints, with --continuous", above=0, needs="continuous"
    )

    def __post_init__(self) -> None:
        check_all(
            super().__post_init__,
            lambda: self._check_folder("output"),
            self._check_one,
            lambda: check_needs(self),
            lambda: View(where=self.where, limit=self.limit),
        )

    def _check_one(self) -> None:
        if self.continuous and self.checkpoint is not None:
            raise UsageError(
                f"--checkpoint={self.checkpoint} with --continuous: each checkpoint is evaluated; leave one of them out"
            )


EXPORT = "export.json"  # describes the exported files next to it
ARRAYS = ".npz"
_OUTPUTS = (".jsonl", ".csv", ARRAYS)  # suffixes of prediction files


@dataclasses.dataclass(frozen=True)
class Format:
    """A kind of exported file.

    Attributes:
      write: function that writes a `Served` model (or a `Parsed` one if `holds_parser`) to a path; the third argument
        is the number of rows in a batch, for static shapes.
      file: file name in the export's folder.
      installed: packages to install in addition to Python, for README.md.
      imported: imports of the program in README.md.
      program: code of that program for the pixels.
      libraries: modules needed in addition to TensorFlow.
      any_size: whether it takes images of any size; otherwise only of the model's size.
      is_static: whether it only takes batches with a fixed number of rows.
      holds_parser: whether it can contain the parser of a task that parses records.
    """

    write: Callable[[Any, pathlib.Path, int], None]
    file: str
    installed: str
    imported: str
    program: str
    libraries: tuple[str, ...] = ()
    any_size: bool = False
    is_static: bool = False
    holds_parser: bool = False

    def rows(self, batch: int) -> int | None:
        """Returns the fixed number of rows per batch; None for any number."""
        return batch if self.is_static else None


_FORMATS = "saved_model,keras"
FORMATS: Registry[Format] = Registry("trainer.exporting.formats", Format)


@dataclasses.dataclass(frozen=True)
class _Required:
    output: str = flag(text="folder to create; an existing one is not touched")


@dataclasses.dataclass(frozen=True)
class ExportConfig(CheckpointFlags, _Required):
    """What to export, and how to compare it with the model. Data flags default to the run's."""

    format: str | None = flag(
        None,
        "any of saved_model, keras, onnx and stablehlo, comma-separated; only saved_model can hold a task's parser",
        unset=_FORMATS,
    )
    stablehlo_batch: int = flag(1, "images per batch of the StableHLO program, whose shapes are static", least=1)
    examples: int = flag(200, "examples of the split on which each file is compared with the trained model", least=1)
    tolerance: float | None = flag(
        None,
        "largest difference of a probability (None: 1e-4; 0.02 if --precision is not float32, or JPEGs are cropped)",
        above=0,
    )

    def __post_init__(self) -> None:
        check_all(super().__post_init__, lambda: self._check_folder("output"), *(self._check_formats, self._check_new))

    def _check_formats(self) -> None:
        for name in self.formats:
            if name not in FORMATS:
                raise unknown("--format", name, FORMATS)

    def _check_new(self) -> None:
        if os.path.lexists(self.output):
            raise UsageError(f"--output={self.output}: already exists; give a new folder")

    @property
    def of_run(self) -> dict[str, Any]:
        """Flags as in `CheckpointFlags`, but without copies: an exported program computes each image once."""
        return {**super().of_run, "eval_copies": 1}

    @property
    def formats(self) -> list[str]:
        """The formats in the given order, without duplicates."""
        return list(dict.fromkeys(name.strip() for name in (self.format or _FORMATS).split(",")))


@dataclasses.dataclass(frozen=True)
class PredictConfig:
    """Which model predicts, for which images or records, and where the predictions go."""

    inputs: list[str] = flag(
        text="image files, and folders of them; TFRecord files, and folders of data sets, if the run's task parses "
        "records; the first may be the run (or the export) instead",
        positional=True,
        repeated=True,
        metavar="INPUT",
    )
    model_dir: str | None = flag(None, f"folder of a run of {name_of('trainer.run')}; it may be training")
    exported: str | None = flag(
        None, f"instead of a run: the folder that {name_of('trainer.export')} wrote, or one of the files in it"
    )
    checkpoint: str | None = flag(
        None, "checkpoint of the run: ckpt-400, 400, best or best/ckpt-400 (None: the newest)", needs="model_dir"
    )
    weights: str | None = flag(
        None,
        "weights of the run: raw, or ema: the average over the steps (None: the average if it kept one)",
        known=WEIGHTS,
        needs="model_dir",
    )
    data_dir: str | None = flag(None, "folder of the run's data set, if that has moved", needs="model_dir")
    eval_copies: int | None = flag(None, _COPIES, least=1, most=MOST_COPIES, needs="model_dir")
    split: str | None = flag(
        None, "split of the data sets, or a part of one, such as test[:100]", unset="the only one that they have"
    )
    top: int | None = flag(
        None,
        "classes per image or record, the most likely ones",
        unset="3; if it may have several, all above 0.5",
        least=1,
    )
    output: str | None = flag(
        None,
        "file for the answers: FILE.jsonl or FILE.csv for classes and numbers; FILE.npz for all outputs for records, "
        "of any shape (None: classes and numbers are printed)",
    )
    batch_size: int = flag(64, "images or records per batch", least=1)

    def __post_init__(self) -> None:
        """Takes the model from the inputs if it comes first there; checks the values and their combinations."""
        if self.model_dir is None and self.exported is None and self.inputs:
            first, *others = self.inputs
            kind = "exported" if os.path.isfile(os.path.join(first, EXPORT)) else "model_dir"
            if kind == "exported" or RunFolder(pathlib.Path(first)).is_run():
                object.__setattr__(self, kind, first)
                object.__setattr__(self, "inputs", others)
        check_all(lambda: check(self), self._check_inputs, self._check_model, self._check_output)

    def _check_inputs(self) -> None:
        if not self.inputs:
            raise UsageError("INPUT is missing: give image files, folders of them, or TFRecords for a task that parses")

    def _check_model(self) -> None:
        if (self.model_dir is None) == (self.exported is None):
            if self.exported is not None or not self.inputs:
                are = "or --exported is missing" if self.exported is None else "and --exported"
                raise UsageError(f"--model_dir {are}: give one of them")
            first = self.inputs[0]
            problem = "is not the folder of a run" if os.path.exists(first) else "no such file or folder"
            raise UsageError(f"{first}: {problem}; give the folder of a run first, or by --model_dir, or --exported")
        if self.exported is not None:
            check_needs(self, model_dir="is of a run, not of --exported; give --model_dir")

    def _check_output(self) -> None:
        if self.output is not None and not self.output.endswith(_OUTPUTS):
            raise UsageError(f"--output={self.output}: must end with {', '.join(_OUTPUTS[:-1])} or {ARRAYS}")
