"""Named augmentations of a whole batch: `cifar10_tutorial`, `pad_crop_flip(pad=2) | cutout(size=8) | mixup`, `none`.

A recipe is a frozen dataclass whose fields are its arguments. It has no state: all its randomness comes from one uint64
key per example, so that a record is augmented the same on any replica, host or device. docs/augmentation.md has the
grammar and a table.
"""

from __future__ import annotations

import dataclasses
import importlib
from typing import TYPE_CHECKING

from pipeline.augmentation import RECIPES
from pipeline.commands.text import parse_calls
from pipeline.errors import UsageError, unknown

if TYPE_CHECKING:
    from pipeline.augmentation.base import Recipe


def make_recipe(text: str, flag: str = "augment") -> Recipe:
    """Returns the recipe for a text: names, or names with arguments as in a Python call, separated by `|`.

    Args:
      text: text such as `cifar10_tutorial(crop=28)` or `pad_crop_flip | cutout(size=8)`.
      flag: name of the flag or argument with the text, for errors.

    Raises:
      UsageError: there is no such recipe or argument (the nearest is suggested), a value is out of its bounds, or the
        recipes cannot follow each other.
    """
    calls = check_names(text, flag)
    recipes = [_made(name, arguments, flag) for name, arguments in calls]
    if len(recipes) == 1:
        return recipes[0]
    composed = importlib.import_module(f"{__package__}.composed")  # not at the top: it loads TensorFlow
    made: Recipe = composed.Composed(tuple(name for name, _ in calls), tuple(recipes))
    return made


def check_names(text: str, flag: str) -> list[tuple[str, dict[str, object]]]:
    """Returns the calls in a text, each as (name, arguments). Checks the names without loading TensorFlow.

    Raises:
      UsageError: the text is not a recipe, or there is no such recipe or argument (the nearest is suggested).
    """
    calls = parse_calls(text, flag, "a recipe")
    for name, arguments in calls:
        if name not in RECIPES:
            raise unknown(flag, name, RECIPES)
        known = _defaults(name)
        for argument in arguments:
            if not known:
                raise UsageError(f"{flag}: {name} takes no arguments; got {argument!r}")
            if argument not in known:
                raise unknown(f"{flag}: argument of {name}", argument, known)
    return calls


def _defaults(name: str) -> dict[str, object]:
    """Returns the arguments of a recipe, with their defaults."""
    return {field.name: field.default for field in dataclasses.fields(RECIPES[name])}


def _made(name: str, arguments: dict[str, object], flag: str) -> Recipe:
    defaults = _defaults(name)
    for argument, value in arguments.items():
        _check_type(f"{flag}: {name}({argument}={value!r})", value, defaults[argument])
    made: Recipe = RECIPES[name](**arguments)
    return made


def _check_type(what: str, value: object, default: object) -> None:
    """Raises UsageError if a value does not have the default's type; a default of None stands for an optional int."""
    if default is None:
        if value is not None and type(value) is not int:
            raise UsageError(f"{what}: needs int, such as 80, or None")
    elif type(value) is not type(default) and not (isinstance(default, float) and type(value) is int):
        raise UsageError(f"{what}: needs {type(default).__name__}, such as {default!r}")


def crops(text: str) -> bool:
    """Returns whether the first recipe in a text decodes only a part of each image, without loading TensorFlow."""
    return _of(text.partition("|")[0], "decodes_part")


def images_of_size(augment: str, size: str) -> dict[str, str | None]:
    """Returns the arguments `augment` and `resize` for an input with images of a size, `224x160` or the square `224`.

    A recipe that crops images while decoding them, such as `random_resized_crop`, gets the size as its argument.

    Raises:
      UsageError: the size is not square, but the recipe cuts squares.
    """
    height, _, width = size.partition("x")
    if not crops(augment):
        return {"augment": augment, "resize": f"{height}x{width or height}"}
    if width not in ("", height):
        raise UsageError(f"augment={augment!r}: cuts squares, and {size} is not one")
    calls = parse_calls(augment, "augment", "a recipe")
    calls[0][1]["size"] = int(height)
    texts = [f"{name}({', '.join(f'{key}={value!r}' for key, value in own.items())})" for name, own in calls]
    return {"augment": " | ".join(text.removesuffix("()") for text in texts), "resize": None}


def mixes(text: str) -> bool:
    """Returns whether the last recipe in a text mixes rows, without loading TensorFlow."""
    return _of(text.rpartition("|")[2], "mixes_rows")


def sets_size(text: str) -> bool:
    """Returns whether a recipe in a text decides the size of the images, without loading TensorFlow."""
    return any(_of(call, "sets_size") for call in text.split("|"))


def draws(text: str) -> bool:
    """Returns whether a recipe in a text draws, apart from recipes that mix rows, without loading TensorFlow."""
    return any(not _of(call, "draws_nothing") and not _of(call, "mixes_rows") for call in text.split("|"))


def _of(call: str, attribute: str) -> bool:
    return getattr(RECIPES.get(call.partition("(")[0].strip()), attribute, False)
