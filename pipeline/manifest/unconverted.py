"""What to do with a folder that is not a data set yet, by what lies in it: images, TFRecords, a table of images."""

from __future__ import annotations

import itertools
import os
from collections.abc import Iterator, Sequence

from pipeline.errors import to_run
from pipeline.files.remote import in_command
from pipeline.manifest import naming

_MOST = 2_000  # files to look at
_SPLITS = {"train", "training", "test", "val", "valid", "validation", "dev", "eval"}


def advice(folder: str) -> str:
    """Returns the command that makes a data set of a local folder, whole if its files tell which; else how to make one.

    Args:
      folder: path as the user gave it.
    """
    source, out = in_command(folder, "--source"), in_command(f"{folder.rstrip('/')}-data", "--data_dir")
    convert, index = to_run("beam_jobs.convert"), to_run("pipeline.index")
    files = list(itertools.islice(_files(folder), _MOST))
    if files and any(name.startswith(naming.CONVERTING) for name in os.listdir(folder)):
        return "its conversion did not finish: run the same command again"
    if any(naming.is_foreign_file(os.path.basename(path)) for path in files):
        return f"it has TFRecords; use them where they are: {index} {in_command(folder)}"
    images = [path for path in files if path.lower().endswith(naming.IMAGE_ENDINGS)]
    if images:
        return f"it has images; convert them: {convert} {_of_images(folder, files, images)} {out}"
    if any(path.endswith(".parquet") for path in files):
        return f"it has Parquet files; convert them: {convert} --dataset=parquet {source} {out}"
    return f"make one with: {convert}; from existing TFRecords: {index}"


def _of_images(folder: str, files: Sequence[str], images: Sequence[str]) -> str:
    """Returns the flags for a folder with images: those of its table, or of its folders of classes."""
    tables = [path for path in files if path.lower().endswith((".csv", ".tsv")) and os.sep not in path]
    if tables:
        return f"--dataset=image_table {in_command(os.path.join(folder, tables[0]), '--source')}"
    folders = {path.split(os.sep)[0].lower() for path in images if os.sep in path}
    split = "" if folders and folders <= _SPLITS else " --split=train:0.8,validation:0.2"
    return f"--dataset=image_folder {in_command(folder, '--source')}{split}"


def _files(folder: str) -> Iterator[str]:
    """Yields the files of a folder and those below, relative to it, without hidden ones."""
    for place, folders, names in os.walk(folder):
        folders[:] = sorted(name for name in folders if not name.startswith("."))
        for name in sorted(names):
            if not name.startswith("."):
                yield os.path.relpath(os.path.join(place, name), folder)
