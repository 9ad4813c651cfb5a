"""Named distortions of a whole batch: `cifar10_tutorial`, `pad_crop_flip(pad=2) | cutout(size=8) | mixup`, `none`.

A recipe is a frozen dataclass whose fields are its arguments. It has no state: all its randomness comes from one uint64
key per example, so that a record is distorted alike on any replica, host or device. docs/distortions.md has the grammar
and a table.
"""

from __future__ import annotations

import dataclasses
import importlib
from typing import TYPE_CHECKING, Any

from pipeline.commands.text import parse_calls
from pipeline.errors import UsageError, unknown

if TYPE_CHECKING:
    from pipeline.distort.base import Recipe

RECIPES = {  # name: (module, class)
    "affine": ("geometry", "Affine"),
    "cifar10_tutorial": ("cifar10_tutorial", "Cifar10Tutorial"),
    "color_jitter": ("pixels", "ColorJitter"),
    "cutmix": ("mixing", "CutMix"),
    "cutout": ("pixels", "Cutout"),
    "flip": ("geometry", "Flip"),
    "mixup": ("mixing", "Mixup"),
    "mixup_or_cutmix": ("mixing", "MixupOrCutMix"),
    "none": ("base", "Undistorted"),
    "normalize": ("pixels", "Normalize"),
    "pad_crop_flip": ("geometry", "PadCropFlip"),
    "randaugment": ("randaugment", "RandAugment"),
    "random_crop": ("geometry", "RandomCrop"),
    "random_erasing": ("pixels", "RandomErasing"),
    "random_resized_crop": ("geometry", "RandomResizedCrop"),
    "resize": ("geometry", "Resize"),
    "shift": ("geometry", "Shift"),
}
ARGUMENTS = {  # the fields of these classes, to notice a misspelt argument before TensorFlow is loaded
    "affine": ("rotate", "scale", "shift", "shear", "fill"),
    "cifar10_tutorial": ("crop", "flip", "brightness", "contrast_low", "contrast_high", "standardize"),
    "color_jitter": ("brightness", "contrast", "saturation", "hue"),
    "cutmix": ("prob", "until_epoch", "alpha"),
    "cutout": ("size",),
    "flip": ("prob",),
    "mixup": ("prob", "until_epoch", "alpha"),
    "mixup_or_cutmix": ("prob", "until_epoch", "mixup_alpha", "cutmix_alpha", "cutmix_prob"),
    "none": (),
    "normalize": (),
    "pad_crop_flip": ("pad", "flip", "normalize"),
    "randaugment": ("n", "m", "fill"),
    "random_crop": ("size", "flip", "normalize"),
    "random_erasing": ("prob", "min_area", "max_area", "max_shape"),
    "random_resized_crop": ("size", "flip", "normalize", "min_area", "max_shape", "central", "scaled_decoding"),
    "resize": ("height", "width"),
    "shift": ("pixels",),
}
CROPPING = ("random_crop", "random_resized_crop")  # the CroppingRecipes
MIXING = ("cutmix", "mixup", "mixup_or_cutmix")  # the MixingRecipes


def make_recipe(text: str, flag: str = "distort") -> Recipe:
    """Returns the recipe of a text: names, or names with arguments as in a Python call, with `|` between them.

    Args:
      text: `cifar10_tutorial(crop=28)`, `pad_crop_flip | cutout(size=8)`.
      flag: name of the flag or argument that has the text, for errors.

    Raises:
      UsageError: no such recipe or argument (the nearest is suggested), a value out of its bounds, or recipes that
        cannot follow each other.
    """
    calls = check_names(text, flag)
    recipes = [_made(name, arguments, flag) for name, arguments in calls]
    if len(recipes) == 1:
        return recipes[0]
    composed: Recipe = _class("composed", "Composed")(tuple(name for name, _ in calls), tuple(recipes))
    return composed


def check_names(text: str, flag: str) -> list[tuple[str, dict[str, object]]]:
    """Returns the calls in a text, (name, arguments) each. Checks the names, without loading the recipes.

    Raises:
      UsageError: it is not a recipe, or there is no such recipe or argument (the nearest is suggested).
    """
    calls = parse_calls(text, flag, "a recipe")
    for name, arguments in calls:
        if name not in RECIPES:
            raise unknown(flag, name, RECIPES)
        for argument in arguments:
            if not ARGUMENTS[name]:
                raise UsageError(f"{flag}: {name} takes no arguments; got {argument!r}")
            if argument not in ARGUMENTS[name]:
                raise unknown(f"{flag}: argument of {name}", argument, ARGUMENTS[name])
    return calls


def _class(module: str, name: str) -> Any:
    """Loads a class by name, because its module loads TensorFlow."""
    return getattr(importlib.import_module(f"{__package__}.{module}"), name)


def _made(name: str, arguments: dict[str, object], flag: str) -> Recipe:
    recipe = _class(*RECIPES[name])
    defaults = {field.name: field.default for field in dataclasses.fields(recipe)}
    for argument, value in arguments.items():
        _check_type(f"{flag}: {name}({argument}={value!r})", value, defaults[argument])
    made: Recipe = recipe(**arguments)
    return made


def _check_type(what: str, value: object, default: object) -> None:
    """Raises UsageError if a value does not have the default's type; a default of None means an optional int."""
    if default is None:
        if value is not None and type(value) is not int:
            raise UsageError(f"{what}: needs int, such as 80, or None")
    elif type(value) is not type(default) and not (isinstance(default, float) and type(value) is int):
        raise UsageError(f"{what}: needs {type(default).__name__}, such as {default!r}")


def crops(text: str) -> bool:
    """Returns whether the first recipe in a text is one of `CROPPING`, without loading it."""
    return text.partition("|")[0].partition("(")[0].strip() in CROPPING


def mixes(text: str) -> bool:
    """Returns whether the last recipe in a text is one of `MIXING`, without loading it."""
    return text.rpartition("|")[2].partition("(")[0].strip() in MIXING
