"""A conversion into an object store or HDFS: shards are written in place, and the manifest comes last.

There is no rename to rely on. An old manifest is removed before the first shard is overwritten; receipts lie in a
folder of their own, so that rerunning the same command resumes where a killed one stopped.
"""

from __future__ import annotations

import contextlib
import dataclasses
from collections.abc import Iterator

from beam_jobs.plan import Plan
from beam_jobs.storage import paths, write
from beam_jobs.storage.paths import RemotePath
from beam_jobs.target import lease, staging
from beam_jobs.target.present import files_of
from pipeline import manifest
from pipeline.errors import DataError, UsageError
from pipeline.manifest import Manifest, naming


class RemoteTarget:
    """A folder of an object store or HDFS; its methods are those of `LocalTarget`.

    Attributes:
      data_dir: the folder.
      shown: its URL, without the store's options and the user, which may hold a secret.
    """

    def __init__(self, data_dir: RemotePath) -> None:
        self.data_dir = data_dir
        self.shown = str(data_dir)

    def check(self, dataset: str, source: str) -> None:
        """Checks that the store can be reached and that no shard would overwrite a source file; see `LocalTarget`."""
        self.data_dir.files()
        if not paths.is_url(source):
            return
        place, path = f"{self.data_dir}/", RemotePath(source)
        if str(self.data_dir) in (str(path), str(path.parent)):
            problem = "holds --source, whose files could be overwritten"
        elif f"{path}/".startswith(place):
            problem = "contains --source, which is no part of the data set"
        elif dataset == "parquet" and place.startswith(f"{path}/"):
            problem = "lies in --source, which is read with all its folders"
        else:
            return
        raise UsageError(f"--data_dir={self.data_dir}: {problem}; choose another")

    def locked(self) -> contextlib.AbstractContextManager[None]:
        """Holds a lease; see `LocalTarget`."""
        return lease.held(self.data_dir)

    def check_plan(self, plan: Plan, present: Manifest | None) -> None:
        """Does nothing: a store has room, and no folder can have the name of a file; see `LocalTarget`."""

    @contextlib.contextmanager
    def opened(self, plan: Plan, present: Manifest | None) -> Iterator[Plan]:
        """Removes the old manifest first, and last the receipts and obsolete files; see `LocalTarget`."""
        if present:
            (self.data_dir / naming.MANIFEST).remove()
        folder = self.data_dir / staging.folder_name(plan.digest)
        try:
            yield dataclasses.replace(plan, data_dir=self.data_dir, receipts_dir=folder)
            made = {name for shard in manifest.load(self.data_dir).shards for name in shard.files}
            for name in files_of(present) - made - {*write.BESIDE_SHARDS}:
                (self.data_dir / name).remove()
            self.tidy()
        except BaseException as error:
            with contextlib.suppress(DataError):  # the store may be away
                staging.say_kept(folder, error)
            raise

    def tidy(self) -> None:
        """Removes the receipts of all conversions; see `LocalTarget`."""
        for name in self.data_dir.folders():
            if staging.FOLDER.fullmatch(name):
                (self.data_dir / name).remove_folder()
