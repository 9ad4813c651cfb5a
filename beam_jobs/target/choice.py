"""The target that --data_dir names."""

from __future__ import annotations

from beam_jobs.storage import paths
from beam_jobs.storage.paths import RemotePath
from beam_jobs.target.base import Target
from beam_jobs.target.local import LocalTarget
from beam_jobs.target.remote import RemoteTarget


def target_of(data_dir: str) -> Target:
    """Returns the target for a local path or a URL."""
    path = paths.path_of(data_dir)
    return RemoteTarget(path) if isinstance(path, RemotePath) else LocalTarget(path, data_dir)
