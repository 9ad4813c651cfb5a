"""The forms of a judgement: lines, JSON, a folder with pictures."""

from __future__ import annotations

import functools
import json
import pathlib
from collections.abc import Callable, Mapping
from typing import IO, Any

from PIL.Image import Image

from pipeline.errors import named
from pipeline.files.write import replaced
from trainer.evaluation.judging import Judgement
from trainer.evaluation.pictures import confusion_matrix, worst_mistakes
from trainer.evaluation.report import summary
from trainer.inference import Trained


def to_json(trained: Trained, judgement: Judgement) -> dict[str, Any]:
    """Returns everything in a judgement in types that JSON has."""
    evaluation, report = judgement.evaluation, judgement.report
    shown = ("split", "num_examples", "num_skipped", "loss", "metrics")
    sources = [{name: getattr(part, name) for name in shown} for part in evaluation.parts]
    return {
        "checkpoint": str(trained.record.path),
        "step": trained.record.step,
        "weights": "ema" if trained.averaged else "raw",
        "data_dir": trained.config.data.data_dir,
        **{name: getattr(evaluation, name) for name in shown},
        **({"sources": sources} if sources else {}),
        "report": report and report.to_json(),
    }


def say(trained: Trained, judgement: Judgement) -> None:
    """Prints a judgement, with its tables."""
    print(trained)
    print(*judgement.evaluation.lines, sep="\n", flush=True)
    if judgement.report:
        print("", *summary(judgement.report), sep="\n", flush=True)


def say_line(trained: Trained, judgement: Judgement) -> None:
    """Prints a judgement as one line, and a line for each source if there are several."""
    for line in judgement.evaluation.lines:
        print(f"step {trained.record.step}, {line}", flush=True)


def say_json(trained: Trained, judgement: Judgement, more: Mapping[str, Any]) -> None:
    """Prints a judgement as a line of JSON, with the fields of `more`."""
    print(json.dumps({**to_json(trained, judgement), **more}), flush=True)


def write(trained: Trained, judgement: Judgement, folder: str, more: Mapping[str, Any]) -> list[str]:
    """Writes the report, with the fields of `more`, and the pictures if there are classes; returns the files' paths.

    Raises:
      DataError: the folder cannot be written to.
    """
    into, text = pathlib.Path(folder), json.dumps({**to_json(trained, judgement), **more}, indent=1)
    writers: dict[str, Callable[[IO[bytes]], Any]] = {"report.json": lambda file: file.write(text.encode())}
    for name, picture in pictures(trained, judgement).items():
        writers[f"{name}.png"] = functools.partial(picture.save, format="PNG")
    with named(f"--output={folder}", "cannot be written to"):
        for name, writer in writers.items():
            with replaced(into / name, sync=False) as file:
                writer(file)
    return [str(into / name) for name in writers]


def pictures(trained: Trained, judgement: Judgement) -> dict[str, Image]:
    """Returns the pictures by name; none if there are no classes."""
    report = judgement.report
    if report is None:
        return {}
    datasets = ", ".join(split.manifest.dataset for split in trained.splits.values())
    title = f"{datasets} {judgement.evaluation.split}: {trained}"
    return {
        "confusion": confusion_matrix(report, title),
        "mistakes": worst_mistakes(report, judgement.images, title),
    }
