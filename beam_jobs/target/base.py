"""The target that --data_dir names: the folder or store that a conversion writes to."""

from __future__ import annotations

from typing import TypeAlias

from beam_jobs.storage import paths
from beam_jobs.storage.paths import RemotePath
from beam_jobs.target.local import LocalTarget
from beam_jobs.target.remote import RemoteTarget

Target: TypeAlias = LocalTarget | RemoteTarget


def target_of(data_dir: str) -> Target:
    """Returns the target for a local path or a URL."""
    path = paths.path_of(data_dir)
    return RemoteTarget(path) if isinstance(path, RemotePath) else LocalTarget(path, data_dir)
