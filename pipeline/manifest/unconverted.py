"""Advice for a folder that is not a data set yet, by its content: images, TFRecords, tables, archives."""

from __future__ import annotations

import itertools
import os
import tarfile
from collections.abc import Iterator, Sequence

from pipeline.errors import to_run
from pipeline.files.remote import in_command
from pipeline.manifest import naming

_MOST = 2_000  # most files to look at
_TABLES = tuple(f".{kind}{packed}" for kind in ("csv", "tsv", "jsonl") for packed in ("", ".gz"))
_ARCHIVES = (".zip", ".tar")
_ARROW = (".arrow", ".feather")
_MOST_MEMBERS = 100  # most members of a tar to look at
_SPLITS = {"train", "training", "test", "val", "valid", "validation", "dev", "eval"}


def advice(folder: str) -> str:
    """Returns the command that makes a data set of a local folder, complete if its files suffice, or else how to do it.

    Args:
      folder: path as the user gave it.
    """
    out = in_command(f"{folder.rstrip('/')}-data", "--data_dir")
    convert, index = to_run("beam_jobs.convert"), to_run("pipeline.index")
    files = list(itertools.islice(_files(folder), _MOST))
    if files and any(name.startswith(naming.CONVERTING) for name in os.listdir(folder)):
        return "its conversion did not finish: run the same command again"
    if any(naming.is_foreign_file(os.path.basename(path)) for path in files):
        return f"it has TFRecords; use them where they are: {index} {in_command(folder)}"
    images = [path for path in files if path.lower().endswith(naming.IMAGE_ENDINGS)]
    if images:
        return f"it has images; convert them: {convert} {_of_images(folder, files, images)} {out}"
    if found := _of_other_files(folder, files):
        return f"it has {found[0]}; convert them: {convert} {found[1]} {out}"
    return f"make one with: {convert}; from existing TFRecords: {index}"


def _of_other_files(folder: str, files: Sequence[str]) -> tuple[str, str] | None:
    """Returns the kind of data in a folder without images and TFRecords, and flags to convert it; None if unclear."""
    source = in_command(folder, "--source")
    if any(path.endswith(".parquet") for path in files):
        return "Parquet files", f"--dataset=parquet {source}"
    if any(path.lower().endswith(_ARROW) for path in files):
        return "Arrow files", f"--dataset=arrow {source}"
    tables, packed = _tables(files), [path for path in files if path.lower().endswith(_ARCHIVES)]
    if len(tables) == len(packed) == 1:
        table = in_command(os.path.join(folder, tables[0]), "--source")
        archive = in_command(os.path.join(folder, packed[0]), "--image_dir")
        return "a table and an archive", f"--dataset=image_table {table} {archive}"
    if packed and not tables and _has_samples(os.path.join(folder, packed[0])):
        return "tars of WebDataset", f"--dataset=webdataset {source}"
    return None


def _of_images(folder: str, files: Sequence[str], images: Sequence[str]) -> str:
    """Returns the flags for a folder of images with a table or with a folder per class."""
    if tables := _tables(files):
        return f"--dataset=image_table {in_command(os.path.join(folder, tables[0]), '--source')}"
    folders = {path.split(os.sep)[0].lower() for path in images if os.sep in path}
    split = "" if folders and folders <= _SPLITS else " --split=train:0.8,validation:0.2"
    return f"--dataset=image_folder {in_command(folder, '--source')}{split}"


def _tables(files: Sequence[str]) -> list[str]:
    """Returns the tables next to the folders, which may name images in them."""
    return [path for path in files if path.lower().endswith(_TABLES) and os.sep not in path]


def _has_samples(path: str) -> bool:
    """Returns whether a tar holds WebDataset samples: images with classes or JSON of the same name."""
    found: dict[str, set[str]] = {}  # {name: endings}
    try:
        with tarfile.open(path, "r:") as tar:
            for info in itertools.islice(tar, _MOST_MEMBERS):
                name, _, ending = os.path.basename(info.name).partition(".")
                found.setdefault(os.path.join(os.path.dirname(info.name), name), set()).add(f".{ending.lower()}")
    except (OSError, tarfile.TarError):
        return False
    return any({".cls", ".json"} & endings and endings.intersection(naming.IMAGE_ENDINGS) for endings in found.values())


def _files(folder: str) -> Iterator[str]:
    """Yields the files in a folder and below, relative to it, except for hidden ones."""
    for place, folders, names in os.walk(folder):
        folders[:] = sorted(name for name in folders if not name.startswith("."))
        for name in sorted(names):
            if not name.startswith("."):
                yield os.path.relpath(os.path.join(place, name), folder)
