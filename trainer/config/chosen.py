"""Defaults for a run that names neither model nor task: the data set's images and their number decide.

They are a network for the image size, AdamW, and a batch size and epochs that take a few minutes on two cores:

| images | model |
|---|---|
| colour, both sides of 24 pixels or more | `cifar10_cnn`, with its augmentation |
| others of 12 pixels or more | `lenet` |
| smaller | `mlp` |

Images larger than 32 pixels, and images of several sizes, are stretched to 32x32.
"""

from __future__ import annotations

import contextlib
import math
import os
from collections.abc import Collection, Mapping
from typing import Any

from pipeline.augmentation.recipes import sets_size
from pipeline.errors import PipelineError, UsageError
from pipeline.files.paths import with_version
from pipeline.manifest import Manifest, load
from pipeline.manifest.sources import parse_sources
from pipeline.manifest.splits import names_of, of_folds, select, to_evaluate
from pipeline.request import parse_size
from trainer.config import file
from trainer.config.meaning import PARAMETER_SERVER
from trainer.config.model import ModelFlags
from trainer.run_folder import RunFolder

_TRAIN = "train"  # the default of --train_split
_TUTORIAL_SIDE = 24  # pixels: cifar10_cnn's augmentation crops to 24x24
_LENET_SIDE = 12  # pixels: the minimum for its layers
_SIDE = 32  # pixels
# (upper bound on training images, batch size, epochs): few images get small batches, so that there are enough updates.
_SIZES = ((5_000, 32, 40), (25_000, 64, 20), (math.inf, 128, 10))
_INSTEAD = {"epochs": "train_steps", "eval_split": "eval_data_dir"}  # {flag: flag that replaces it, if given}
CHOSEN = ("model", "resize", "optimizer", "global_batch_size", "epochs", "train_split", "eval_split")


def decides(given: Mapping[str, Any]) -> bool:
    """Returns whether the data set decides, since the user's own flags, {flag: value}, name nothing to train.

    Classic parameter-server command lines keep the flags' defaults.
    """
    return given.get("strategy") != PARAMETER_SERVER and not {"model", "task", "ps_hosts"} & set(given)


def run_beside(data_dir: str) -> str | None:
    """Returns the default of --model_dir: `DATA-run`, in this folder for remote data; None for several data sets.

    Args:
      data_dir: value of --data_dir.
    """
    try:
        if not isinstance(parse_sources(data_dir), str):
            return None
    except UsageError:
        return None
    path = with_version(data_dir)[0].rstrip("/")
    if "://" in path:
        return f"{path.partition('?')[0].rstrip('/').rsplit('/', 1)[-1]}-run"
    return f"{path if os.path.basename(path) not in ('', '.', '..') else os.path.abspath(path)}-run"


def chosen(data_dir: str, given: Mapping[str, Any]) -> dict[str, Any]:
    """Returns {flag: value} as decided by the data set; empty unless its records are images with labels.

    Args:
      data_dir: value of --data_dir. Several data sets decide nothing, nor does a folder that cannot be read, which is
        reported when it is needed.
      given: {flag: value} of the user's own flags, which are left out of the result.

    Raises:
      UsageError: the labels are not classes, so there is no model to choose.
    """
    try:
        sources = parse_sources(data_dir)
        made = load(sources) if isinstance(sources, str) else None
        if made is None or not made.has_images or "label" not in made.features:
            return {}
        found = _of_splits(made, given.get("train_split"))
    except (PipelineError, OSError):
        return {}
    require_classes(data_dir, made)
    found = {**_of_images(made, given.get("resize"), given.get("augment")), **found}
    without = {*given, *[other for other, flag in _INSTEAD.items() if flag in given]}
    return {name: value for name, value in found.items() if name not in without}


def require_classes(data_dir: str, made: Manifest) -> None:
    """Raises UsageError if a data set's labels are not classes, as our own models need."""
    if "label" in made.features and not made.features["label"].is_class:
        raise UsageError(
            f"--data_dir={data_dir}: its labels are not a class per image: give a Task with loss and metrics of its "
            "own (--task=MODULE:CLASS), or a compiled model (--model=MODULE:FUNCTION)"
        )


def of_run(folder: RunFolder, given: Collection[str], names: Collection[str]) -> list[str]:
    """Returns an existing run's values of the flags that data sets decide, as arguments, unless the user gave them.

    Args:
      folder: folder of the run, with its config.
      given: names of the user's own flags.
      names: names of all flags.
    """
    stored = {flag.partition("=")[0].removeprefix("--"): flag for flag in file.flags(folder.config, names)}
    without = {*given, *[other for other, flag in _INSTEAD.items() if flag in given]}
    # With a task, the default model is stored too, but its defaults, such as averaged weights, did not apply.
    if stored.get("task") and stored.get("model") == f"--model={ModelFlags.model}" and "ema" not in stored:
        without.add("model")
    return [flag for name, flag in stored.items() if name in (*CHOSEN, "task") and name not in without]


def _of_images(made: Manifest, resize: str | None, augment: str | None) -> dict[str, Any]:
    """Returns the model, and the image size unless the user or a recipe determines it."""
    height, width, channels = made.features["image"].shape
    found: dict[str, Any] = {}
    if resize:
        height = width = _SIDE
        with contextlib.suppress(UsageError):  # reported with the user's other mistakes
            height, width = parse_size(resize) or (height, width)
    elif not height or not width or max(height, width) > _SIDE:
        height = width = _SIDE
        if not sets_size(augment or "none"):
            found["resize"] = f"{_SIDE}x{_SIDE}"
    side = min(height, width)
    if channels in (3, None) and side >= _TUTORIAL_SIDE:
        return {**found, "model": "cifar10_cnn"}
    return {**found, "model": "lenet" if side >= _LENET_SIDE else "mlp"}


def _of_splits(made: Manifest, given: str | None) -> dict[str, Any]:
    """Returns the optimizer, batch size and number of epochs, and splits to replace flag defaults that do not fit."""
    largest = max(made.splits, key=lambda name: made.splits[name].num_examples)
    usual, _ = of_folds(made) or (largest, "")
    trained = given or (_TRAIN if _TRAIN in made.splits else usual)
    found: dict[str, Any] = {} if trained == _TRAIN else {"train_split": trained}
    names = names_of(trained)
    if to_evaluate(made.splits, names) is None:
        others = sorted((n for n in made.splits if n not in names), key=lambda name: -made.splits[name].num_examples)
        found["eval_split"] = others[0] if others else "none"
    count = select(made, trained).num_examples
    size, epochs = next((size, epochs) for most, size, epochs in _SIZES if count < most)
    return {"optimizer": "adamw", "global_batch_size": size, "epochs": epochs, **found}
