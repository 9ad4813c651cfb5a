"""Finds the TFRecord files that --source names, and the split of each."""

from __future__ import annotations

import re

from beam_jobs.sources import listing
from beam_jobs.sources.listing import SPLIT_OF_WORD
from beam_jobs.storage.paths import StoragePath

_RECORD_FILE = re.compile(r"[^._].*(\.tfrec.*|-\d{5,}-of-\d{5,})", re.IGNORECASE)
_BESIDE = (".offsets", ".index", ".idx", ".crc", ".json", ".txt")  # what lies beside records and is named after them


def find(source: str) -> tuple[StoragePath, list[StoragePath]]:
    """Returns the folder that holds all files, and these, sorted by path.

    Args:
      source: a file, a folder with files like `*.tfrecord*` or `*-00000-of-00001*`, or a glob.

    Raises:
      DataError: as `listing.find`.
    """
    wanted = "file like *.tfrecord* or *-00000-of-00001; name the files with a glob"
    root, names = listing.find(source, _is_records, False, wanted, "--source of tfrecord is a folder, a file or a glob")
    if not root.is_remote:
        names.sort(key=lambda name: name.split("/"))
    common = listing.common_folder(names)
    return (root / common if common else root), [root / name for name in names]


def split_of(name: str) -> str:
    """Returns the split of a file: the first word in its name that means one, else train."""
    return next((SPLIT_OF_WORD[word] for word in listing.words(name) if word in SPLIT_OF_WORD), "train")


def _is_records(name: str) -> bool:
    return _RECORD_FILE.fullmatch(name) is not None and not name.endswith(_BESIDE)
