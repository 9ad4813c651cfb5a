"""A conversion into a local or mounted folder: it takes shape in an inner folder, then is moved into its place."""

from __future__ import annotations

import contextlib
import dataclasses
import pathlib
from collections.abc import Iterator

from beam_jobs.plan import Plan
from beam_jobs.target import staging, target
from pipeline.manifest import Manifest

check_folder = target.check_folder
locked = target.locked


@contextlib.contextmanager
def opened(data_dir: pathlib.Path, plan: Plan, present: Manifest | None) -> Iterator[Plan]:
    """Makes the inner folder, or finds it as an earlier run of the plan left it; yields the plan that writes there.

    Args:
      data_dir: the folder, of which the caller has the lock.
      plan: of the conversion.
      present: the manifest of the data set that is there and will be replaced.

    Raises:
      DataError: a file cannot be written, there is no room, or a place is taken by what is not ours.
    """
    staging.take_back(data_dir)
    staging.check_places(data_dir, plan.file_names, present)
    staging.remove_leftovers(data_dir, plan.digest)
    with staging.opened(data_dir, plan.digest) as folder:
        target.check_space(plan, present, staging.bytes_in(folder))
        yield dataclasses.replace(plan, data_dir=str(folder))


def tidy(data_dir: pathlib.Path) -> None:
    """Removes what is left of a conversion that was killed after it had published."""
    staging.remove_leftovers(data_dir, None)


def publish(plan: Plan, data_dir: pathlib.Path, present: Manifest | None) -> Manifest:
    """Moves the data set that `plan` wrote into `data_dir`; see `staging.publish`."""
    return staging.publish(pathlib.Path(plan.data_dir), data_dir, present)
