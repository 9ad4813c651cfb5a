"""The flags of a run of the trainer, as its folder has them: for commands that make its order again."""

from __future__ import annotations

import pathlib
from collections.abc import Mapping
from typing import Any

from pipeline.commands import commandline
from pipeline.errors import DataError, name_of, reason_of
from pipeline.files.reading import content_of

_CONFIG = "config.yaml"  # in a run's folder: its flags, in groups, as `trainer.run` stores them


def flags_of_run(model_dir: str) -> dict[str, Any]:
    """Returns the flags of the run in a folder, by name, as it has stored them.

    Raises:
      DataError: there is no run, or its flags cannot be read.
    """
    commandline.require("yaml")
    import yaml  # noqa: PLC0415, which most calls of the commands do not need

    flag, path = f"--model_dir={model_dir}", pathlib.Path(model_dir) / _CONFIG
    try:
        groups = yaml.safe_load(content_of(path).decode())
    except (OSError, UnicodeDecodeError) as error:
        why = f"{_CONFIG} cannot be read: {reason_of(error)}"
        raise DataError(f"{flag}: {why}; give the --model_dir of a run of {name_of('trainer.run')}") from None
    except yaml.YAMLError as error:
        raise DataError(f"{flag}: {_CONFIG} is not YAML: {' '.join(str(error).split())}") from None
    if not isinstance(groups, dict) or not all(isinstance(group, dict) for group in groups.values()):
        raise DataError(f"{flag}: {_CONFIG} does not have the flags of a run, in groups")
    return {name: value for group in groups.values() for name, value in group.items()}


def workers_of_run(flags: Mapping[str, Any]) -> int:
    """Returns the workers that share the order by a run's flags: the hosts that they name, else 1.

    With parameter servers the order is that of one process. Only with --sync each step is cut into equal parts, by
    --replicas_to_aggregate or the number of workers; an asynchronous worker makes whole steps.
    """
    workers = len([host for host in str(flags.get("worker_hosts") or "").split(",") if host]) or 1
    if flags.get("strategy") != "parameter_server":
        return workers
    return int(flags.get("replicas_to_aggregate") or workers) if flags.get("sync") else 1


def replicas_of_run(flags: Mapping[str, Any]) -> int:
    """Returns the replicas that a run's flags tell of: --num_replicas, or one per worker."""
    return int(flags.get("num_replicas") or workers_of_run(flags))
