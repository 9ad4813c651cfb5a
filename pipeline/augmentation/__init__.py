"""The recipes that augment a batch of images."""

from __future__ import annotations

from typing import Any

from pipeline.registry import Registry

# Subclasses of `pipeline.augmentation.base.Recipe`, dataclasses whose fields are the recipe's arguments.
RECIPES: Registry[Any] = Registry("pipeline.augmentation", besides=("composed", "libraries"))
