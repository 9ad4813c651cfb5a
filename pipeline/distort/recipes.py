"""Named distortions of a whole batch: `cifar10_tutorial`, `pad_crop_flip(pad=2)`, `random_resized_crop`, `none`.

A recipe is a frozen dataclass whose fields are its arguments. It is stateless: all its randomness comes from one
uint64 key per example, so that a record is distorted alike on any replica, host or device.
"""

from __future__ import annotations

import dataclasses
import importlib
from typing import TYPE_CHECKING

from pipeline.commands.call import parse_call
from pipeline.errors import UsageError, unknown

if TYPE_CHECKING:
    from pipeline.distort.base import Recipe

RECIPES = {  # their classes, and the modules of these
    "cifar10_tutorial": ("cifar10_tutorial", "Cifar10Tutorial"),
    "none": ("base", "Undistorted"),
    "pad_crop_flip": ("shifts", "PadCropFlip"),
    "random_crop": ("cropping", "RandomCrop"),
    "random_resized_crop": ("cropping", "RandomResizedCrop"),
    "shift": ("shifts", "Shift"),
}
CROPPING = ("random_crop", "random_resized_crop")  # the CroppingRecipes


def make_recipe(text: str, flag: str = "distort") -> Recipe:
    """Returns the recipe that `text` names: a name, or a name with arguments as in a Python call.

    Args:
      text: `cifar10_tutorial(crop=28)`.
      flag: what the user called it, for errors.

    Raises:
      UsageError: no such recipe or argument (the nearest is suggested), or a value out of its bounds.
    """
    name, arguments = parse_call(text, flag, "a recipe")
    if name not in RECIPES:
        raise unknown(flag, name, RECIPES)
    module, class_name = RECIPES[name]
    recipe = getattr(importlib.import_module(f"{__package__}.{module}"), class_name)
    defaults = {field.name: field.default for field in dataclasses.fields(recipe)}
    for argument, value in arguments.items():
        if not defaults:
            raise UsageError(f"{flag}: {name} takes no arguments; got {argument!r}")
        if argument not in defaults:
            raise unknown(f"{flag}: argument of {name}", argument, defaults)
        default = defaults[argument]
        if type(value) is not type(default) and not (isinstance(default, float) and type(value) is int):
            raise UsageError(
                f"{flag}: {name}({argument}={value!r}): needs {type(default).__name__}, such as {default!r}"
            )
    return recipe(**arguments)


def crops(text: str) -> bool:
    """Says whether the recipe that `text` names is one of `CROPPING`; loads none."""
    return text.partition("(")[0].strip() in CROPPING
