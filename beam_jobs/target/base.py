"""The target that --data_dir names: the one interface of a conversion to the folder or store that it writes to."""

from __future__ import annotations

from contextlib import AbstractContextManager
from typing import Protocol

from beam_jobs.plan import Plan
from beam_jobs.storage import paths
from beam_jobs.storage.paths import RemotePath, StoragePath
from beam_jobs.target.local import LocalTarget
from beam_jobs.target.remote import RemoteTarget
from pipeline.manifest import Manifest


class Target(Protocol):
    """Where a conversion writes to.

    Attributes:
      data_dir: the folder that will hold the data set.
      shown: the folder as the user named it, without secrets.
    """

    @property
    def data_dir(self) -> StoragePath: ...  # noqa: D102

    @property
    def shown(self) -> str: ...  # noqa: D102

    def check(self, dataset: str, source: str) -> None:
        """Checks that a conversion may write here, without writing anything.

        Args:
          dataset: the name that --dataset gives.
          source: its files, as the user gave them; "" where --source is not given.

        Raises:
          UsageError: the folder cannot be used, or converting into it would harm the source.
          DataError: the store cannot be reached.
        """
        ...

    def locked(self) -> AbstractContextManager[None]:
        """Keeps other conversions out until the block ends; what the folder holds is only read from here on.

        Raises:
          UsageError: another conversion is writing there, or the folder cannot be opened.
          DataError: the folder or the lock cannot be made.
        """
        ...

    def opened(self, plan: Plan, present: Manifest | None) -> AbstractContextManager[Plan]:
        """Yields the plan with the folders that workers write to, as an earlier run of the same plan left them.

        At the end of the block, the data set that they hold replaces `present`. If the block fails, finished shards are
        kept for the next run, a line on stderr says so, and the list of invalid rows lies where the user finds it.

        Args:
          plan: the plan of the conversion.
          present: the manifest of the data set to replace, or None.

        Raises:
          DataError: a file cannot be written, moved or removed, the disk is too small, a file of another tool is in the
            way, or the data set is incomplete.
        """
        ...

    def tidy(self) -> None:
        """Removes what a conversion left that was killed after it had published.

        Raises:
          DataError: a file cannot be removed.
        """
        ...


def target_of(data_dir: str) -> Target:
    """Returns the target for a local path or a URL."""
    path = paths.path_of(data_dir)
    return RemoteTarget(path) if isinstance(path, RemotePath) else LocalTarget(path, data_dir)
