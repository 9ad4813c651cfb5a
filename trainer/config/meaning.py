"""What a flag of the trainer means on a resume, for workers and with parameter servers; checks that groups share."""

from __future__ import annotations

import dataclasses
import os
from collections.abc import Iterator, Mapping
from typing import Any

from pipeline.commands import flags
from pipeline.errors import UsageError
from pipeline.manifest.sources import parse_sources, sources_of

PARAMETER_SERVER = "parameter_server"


def flag(
    default: Any = dataclasses.MISSING,
    text: str = "",
    *,
    shapes_training: bool | None = None,
    per_machine: bool = False,
    per_process: bool = False,
    by_model: bool = False,
    parameter_server: str | Mapping[str, str] | None = None,
    **options: Any,
) -> Any:
    """Returns a field that is a flag of the trainer.

    Args:
      default: its value if it is not given; without a default it is required.
      text: for --help.
      shapes_training: whether a resumed run tells that it differs from the checkpoint's; None: as the attribute
        `shapes_training` of its group says, or yes if there is none.
      per_machine: whether workers may have different values, as of a folder that is mounted elsewhere.
      per_process: whether it says which process of a job this is: `trainer.launch` sets it, and workers compare the
        resulting clusters.
      by_model: whether `trainer.config.model` has other defaults for some models and optimizers.
      parameter_server: why it cannot be given with --strategy=parameter_server; or {value that cannot: reason}.
      **options: those of `pipeline.commands.flags.flag`.
    """
    meaning = {
        "shapes_training": shapes_training,
        "per_machine": per_machine,
        "per_process": per_process,
        "by_model": by_model,
        "parameter_server": parameter_server,
    }
    return flags.flag(default, text, meaning=meaning, default_of="the model" if by_model else "", **options)


def fields(config: Any) -> Iterator[tuple[Any, dataclasses.Field[Any]]]:
    """Yields each flag of a config as its group, which is an instance, and its field."""
    for group in (getattr(config, field.name) for field in dataclasses.fields(config)):
        for field in dataclasses.fields(group):
            yield group, field


def shapes_training(group: Any, field: dataclasses.Field[Any]) -> bool:
    """Returns whether a flag shapes what is trained, whatever the other flags are."""
    said: bool | None = field.metadata.get("shapes_training")
    return getattr(group, "shapes_training", True) if said is None else said


def check_parameter_server(config: Any) -> None:
    """Raises UsageError if a flag has a value that its field rules out with parameter servers."""
    with flags.Mistakes() as mistakes:
        for group, field in fields(config):
            with mistakes.noted():
                why, value = field.metadata.get("parameter_server"), getattr(group, field.name)
                if isinstance(why, Mapping):
                    why = why.get(value)
                elif value == field.default:
                    continue
                if why:
                    raise UsageError(f"--{field.name}={value} with --strategy={PARAMETER_SERVER}: {why}")


def check_apart(name: str, path: str | None, data_dir: str | None) -> None:
    """Raises UsageError if a folder for output is a data set's folder, lies in it, or holds it.

    Links and `..` are resolved. Data at a URL cannot clash.

    Args:
      name: of the flag for the output.
      path: its value; None: not given.
      data_dir: as in --data_dir: a folder, or several with weights; None: not given.
    """
    if data_dir is None:
        return
    sources = parse_sources(data_dir)
    folders = [sources] if isinstance(sources, str) else [one.data_dir for one in sources_of(sources, "")]
    for folder in (os.fspath(one) for one in folders):
        if not folder or "://" in folder:
            continue
        data = os.path.realpath(folder)
        if data == os.path.realpath(os.sep):
            raise UsageError(f"--data_dir={data_dir}: is the root of the file system; name the data set's own folder")
        given = None if path is None else os.path.realpath(path)
        if given is not None and os.path.commonpath([given, data]) in (given, data):
            where = "is" if given == data else "lies in" if os.path.commonpath([given, data]) == data else "holds"
            raise UsageError(
                f"--{name}={path}: {where} the data set's folder, --data_dir={data_dir}; name a folder beside it"
            )


def check_local(group: object, *names: str, what: str = "folder") -> None:
    """Raises UsageError if a named field is empty, or is a URL, which only data sets may be; None is allowed."""
    for name in names:
        value = getattr(group, name)
        if value is not None and not value.strip():
            raise UsageError(f"--{name}: is empty (a shell variable that is not set?); name a {what}")
        if value is not None and "://" in value:
            raise UsageError(
                f"--{name}={value}: must be a {what} on this machine, or mounted; mount the store and give the path "
                "there"
            )
