"""`manifest.json`: what makes a directory a data set. Written last, so that a killed conversion leaves none."""

from __future__ import annotations

import json
import os
import re
from typing import Any, Protocol

from pipeline.errors import DataError
from pipeline.manifest import checks, naming, seal
from pipeline.manifest.from_json import from_json
from pipeline.manifest.manifest import FORMAT_VERSION, MEMBERS_VERSION, Manifest
from pipeline.manifest.storage import folder

_WEIGHTED = re.compile(r"=\d*\.?\d+$")  # as `a=0.7`, which in a mixture is a source and its weight


class RemoteFolder(Protocol):
    """A folder that is not a local path, such as one of an object store: `/` gives a file in it, with `read_text`."""

    def __truediv__(self, name: str) -> Any: ...


def load(data_dir: str | os.PathLike[str] | RemoteFolder) -> Manifest:
    """Reads and checks `data_dir/manifest.json`.

    Raises:
      DataError: there is no manifest, or it is of another version, cut, invalid or edited.
    """
    found = folder(data_dir) if isinstance(data_dir, str | os.PathLike) else data_dir
    path = found / naming.MANIFEST
    try:
        text = path.read_text(encoding="utf-8")
    except FileNotFoundError:
        advice = "make one with: python -m beam_jobs.convert; from existing TFRecords: python -m pipeline.index"
        if _WEIGHTED.search(str(found)):
            advice = "leave out the weight: it is for several sources, with commas between them"
            if "," in str(found):
                advice = "give the folder of one data set: several, with weights, are for training and audits"
        raise DataError(
            f"{path}: no manifest, so {found} is not a data set (or its conversion did not finish); {advice}"
        ) from None
    except NotADirectoryError:
        raise DataError(f"{found}: is a file, not a data set; name the folder that holds {naming.MANIFEST}") from None
    except (OSError, UnicodeDecodeError) as error:
        reason = getattr(error, "strerror", None) or error
        raise DataError(f"{path}: cannot be read: {reason}") from None
    return parse(text, str(path))


def parse(text: str, file: str) -> Manifest:
    """Returns the manifest that a text holds, checked.

    Args:
      text: the file's.
      file: its path, for messages.

    Raises:
      DataError: it is of another version, cut, invalid or edited.
    """
    try:
        content = json.loads(text)
    except (ValueError, RecursionError) as error:
        raise DataError(f"{file}: not valid JSON ({error}); convert the data again") from None
    _check_version(content, file)
    plain = {name: value for name, value in content.items() if name != seal.KEY}
    manifest: Manifest = from_json(Manifest, plain, f"{file}: not a valid manifest (convert the data again)")
    checks.check(manifest, file)
    if problem := seal.problem(content):  # after what names the field
        raise DataError(f"{file}: {problem}")
    return manifest


def _check_version(content: Any, file: str) -> None:
    version = content.get("format_version") if isinstance(content, dict) else None
    if not isinstance(version, int) or isinstance(version, bool) or version < 1:
        raise DataError(f"{file}: format_version is {version!r}, not a version of a manifest")
    if version < FORMAT_VERSION:
        raise DataError(f"{file}: format_version {version} is of an earlier release; convert the data again")
    if version > MEMBERS_VERSION:
        raise DataError(
            f"{file}: format_version {version} is newer than {MEMBERS_VERSION}, the newest that this release "
            "reads; upgrade it"
        )
