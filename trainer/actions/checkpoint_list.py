"""The file `checkpoint`, from which `tf.train.latest_checkpoint` reads what is in a folder."""

from __future__ import annotations

import pathlib
import re
from collections.abc import Sequence

import tensorflow as tf

from trainer.stored.files import PREFIX

_NAME = "checkpoint"


def read(folder: pathlib.Path) -> list[str]:
    """Returns the names in the list, which is written after a save and before a removal: all were complete."""
    listing = folder / _NAME
    text = listing.read_text(encoding="utf-8", errors="replace") if listing.is_file() else ""
    return re.findall(r'^all_model_checkpoint_paths: "([^"]*)"', text, re.MULTILINE)


def write(folder: pathlib.Path, steps: Sequence[int]) -> None:
    """Writes the list; the last of the steps is what `tf.train.latest_checkpoint` returns.

    There are no absolute paths in it, so the folder can move.
    """
    listing, new = folder / _NAME, folder / f"{_NAME}.tmp"
    if not steps:
        listing.unlink(missing_ok=True)
        return
    names = [f"{PREFIX}-{step}" for step in steps]
    state = tf.compat.v1.train.generate_checkpoint_state_proto("/", names[-1], names)
    new.write_text(str(state), encoding="utf-8")
    new.replace(listing)
