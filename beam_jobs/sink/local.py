"""Conversion into a local or mounted folder: files are written to an inner folder, then moved into place."""

from __future__ import annotations

import contextlib
import dataclasses
import glob
import os
import pathlib
import shutil
from collections.abc import Iterator, Sequence

from beam_jobs.plan import Plan
from beam_jobs.shards import receipts
from beam_jobs.sink import staging
from pipeline.commands.text import count_of
from pipeline.errors import PipelineError, TransientError, UsageError, reason_of
from pipeline.files.paths import LocalPath, locked
from pipeline.files.remote import is_url
from pipeline.manifest import Manifest, naming

_READ_AT_ANY_DEPTH = ("image_folder", "parquet")  # a data set inside such a source would be read with it


class LocalSink:
    """A local or mounted folder.

    Attributes:
      data_dir: absolute path of the folder that will hold the data set.
      shown: folder as the user named it.
      flag: flag that names it.
      extends: kind of command that makes the next version of the data set there, such as `an edit`; empty for a
        conversion, which can make a data set in any folder.
    """

    def __init__(self, data_dir: LocalPath, shown: str = "", flag: str = "--data_dir", extends: str = "") -> None:
        self.data_dir, self.flag, self.extends = data_dir, flag, extends
        self.shown = shown or str(data_dir)

    def check(self, dataset: str, source: str) -> None:
        """Checks that a conversion may write here, without writing anything.

        Args:
          dataset: value of --dataset.
          source: files of the source, as the user gave them; "" without --source.

        Raises:
          UsageError: the folder cannot be used, or converting into it would harm the source.
        """
        try:
            problem = self._problem() or self._danger(dataset, source)
        except OSError as error:
            problem = f"cannot be used: {reason_of(error)}"
        if problem:
            raise UsageError(f"{self.flag}={self.data_dir}: {problem}")

    @contextlib.contextmanager
    def locked(self) -> Iterator[None]:
        """Creates the folder and locks out other conversions until the block ends.

        First it finishes what a killed command was deleting.

        Raises:
          UsageError: another conversion is writing there, or the folder cannot be opened.
          DataError: the folder cannot be made, or a file to delete cannot be removed.
        """
        self.data_dir.make_folder()
        try:
            descriptor = os.open(self.data_dir, os.O_RDONLY)
        except OSError as error:
            raise UsageError(f"{self.flag}={self.data_dir}: cannot be opened: {reason_of(error)}") from None
        with locked(descriptor) as is_free:  # without locks, each plan still has its own inner folder
            if not is_free:
                raise UsageError(f"{self.flag}={self.data_dir}: another command is writing there; wait until it ends")
            if (self.data_dir / naming.VERSIONS).is_dir() and (self.data_dir / naming.MANIFEST).exists():
                staging.finish_version(self.data_dir)
            yield

    def check_plan(self, plan: Plan, present: Manifest | None) -> None:
        """Raises the errors that `opened` would raise before the conversion, without writing anything."""
        if self.data_dir.exists():
            staging.check_names_free(self.data_dir, plan.file_names, present)
        self._check_space(plan, present, 0)

    @contextlib.contextmanager
    def opened(self, plan: Plan, present: Manifest | None) -> Iterator[Plan]:
        """Yields the plan with the folder that workers write to, which may hold shards of an earlier run.

        When the block ends, the data set in that folder replaces `present`, or follows it as its next version. If the
        block fails, finished shards are kept for the next run, a line on stderr says so, and the list of invalid rows
        stays with them; without a data set, it is moved to the folder that users know.

        Args:
          plan: the plan of the conversion.
          present: the manifest of the data set to replace, or to append to, or None.

        Raises:
          DataError: a file cannot be written, moved or removed, the disk is too small, a file of another tool is in the
            way, or the data set is incomplete.
        """
        self._prepare(plan.digest, plan.file_names, present)
        with staging.opened(self.data_dir, plan.digest) as folder:
            finished = sum(receipt.info.num_bytes for receipt in receipts.in_folder(folder))
            self._check_space(plan, present, finished)
            listed = folder if present else self.data_dir  # a data set may already have its own list
            try:
                yield dataclasses.replace(plan, data_dir=folder, receipts_dir=folder, rejects_dir=listed)
            except PipelineError:
                staging.move_rejects(folder, listed)
                raise
            if plan.base and present:
                staging.publish_version(folder, self.data_dir, present)
            else:
                staging.publish(folder, self.data_dir, present)

    @contextlib.contextmanager
    def edited(self, digest: str, names: Sequence[str], num_bytes: int, parent: Manifest) -> Iterator[LocalPath]:
        """Yields the folder to write the next version of a data set to, which follows `parent` when the block ends.

        Args:
          digest: identity of the edit.
          names: base names of the shards that are written.
          num_bytes: upper bound of their total size.
          parent: manifest of the newest version.

        Raises:
          DataError: see `opened`.
        """
        self._prepare(digest, names, parent)
        self._check_room(num_bytes, "new version takes")
        with staging.opened(self.data_dir, digest) as folder:
            yield folder
            staging.publish_version(folder, self.data_dir, parent)

    def _prepare(self, digest: str, names: Sequence[str], present: Manifest | None) -> None:
        staging.undo_interrupted_publish(self.data_dir)
        staging.undo_interrupted_append(self.data_dir, digest)
        staging.check_names_free(self.data_dir, names, present)
        staging.remove_leftovers(self.data_dir, digest)  # also the data set that a killed command was replacing

    def tidy(self) -> None:
        """Removes the files of a conversion that was killed after publishing.

        Raises:
          DataError: a file cannot be removed.
        """
        staging.undo_interrupted_append(self.data_dir, None)
        staging.remove_leftovers(self.data_dir, None)

    def _problem(self) -> str | None:
        existing = self._existing()
        if existing.is_symlink() and not existing.exists():
            return f"{existing} is a link to a missing file or folder"
        if not existing.is_dir():
            return f"{existing} is not a folder"
        if not os.access(existing, os.W_OK | os.X_OK):
            is_mount = os.statvfs(existing).f_flag & os.ST_RDONLY
            reason = f"{existing} is mounted read-only" if is_mount else f"no permission to write in {existing}"
            if self.extends:
                return (
                    f"{reason}, and {self.extends} writes its version into the data set's own folder; make it "
                    "writable, or copy the data set to a folder that is, and give that"
                )
            return f"{reason}; choose another, or make it writable"
        if existing == self.data_dir and not os.access(existing, os.R_OK):
            return "no permission to list it"
        return None

    def _existing(self) -> LocalPath:
        """Returns the folder or its nearest parent that exists, or is a broken link."""
        existing = self.data_dir
        while not existing.exists() and not existing.is_symlink() and existing != existing.parent:
            existing = existing.parent
        return existing

    def _danger(self, dataset: str, source: str) -> str | None:
        """Returns why a conversion must not write here: it could damage the source or a folder with other files."""
        place = pathlib.Path(os.path.realpath(self.data_dir))
        for special, what in (("/", "the root of the file system"), (os.path.expanduser("~"), "your home folder")):
            if _is_same(place, pathlib.Path(special)):
                return f"is {what}; choose a folder for the data set alone"
        if not source or is_url(source):
            return None
        for folder in _folders_of(source):
            if _is_same(place, folder):
                # A data set may be replaced by one made from its own records, as it stays until the new one is
                # complete.
                if dataset == "tfrecord" and os.path.lexists(self.data_dir / naming.MANIFEST):
                    continue
                return f"holds --source={source}, whose files could be overwritten; choose another"
            if any(_is_same(place, parent) for parent in folder.parents):
                return f"contains --source={source}, which is not part of the data set; choose another"
            is_read_whole = dataset in _READ_AT_ANY_DEPTH and os.path.isdir(source)
            if is_read_whole and any(_is_same(folder, parent) for parent in place.parents):
                return f"lies in --source={source}, which is read with all its folders; choose another"
        return None

    def _check_space(self, plan: Plan, replaced: Manifest | None, finished: int) -> None:
        """Checks that the new shards fit on the disk alongside the data set that they replace."""
        if plan.config.compression:
            return
        beside = ", beside the one that it replaces," if replaced and plan.base is None else ""
        what = "data set" if plan.base is None else "new version"
        self._check_room(plan.num_bytes * plan.config.passes - finished, f"{what}{beside} takes")

    def _check_room(self, needed: int, what: str) -> None:
        free = shutil.disk_usage(self._existing()).free
        if needed > free:
            raise TransientError(
                f"the {what} {count_of(needed, 'byte')}, but its disk has {free:,} free",
                path=self.data_dir,
                advice="make room",
            )


def _folders_of(source: str) -> set[pathlib.Path]:
    """Returns a source's folder, or the folders of its files, with links and `..` resolved."""
    if os.path.isdir(source):
        return {pathlib.Path(os.path.realpath(source))}
    files = [source, *glob.iglob(source, recursive=True)]
    return {pathlib.Path(os.path.realpath(file)).parent for file in files if os.path.exists(file)}


def _is_same(path: pathlib.Path, other: pathlib.Path) -> bool:
    """Returns whether both paths are the same folder, even through different mounts."""
    return path == other or (path.exists() and other.exists() and path.samefile(other))
