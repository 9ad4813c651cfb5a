"""A config as a YAML file: flags by name, optionally in groups."""

from __future__ import annotations

import argparse
import pathlib
import re
from collections.abc import Collection, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any, ClassVar

from pipeline.commands import aliases
from pipeline.commands.flags import Mistakes
from pipeline.errors import UsageError, reason_of, unknown
from pipeline.files.reading import content_of
from pipeline.files.write import replace

if TYPE_CHECKING:
    import yaml


# Values that YAML and the command line read differently: tag, pattern, and possible first characters.
_RESOLVED = (
    ("null", "~|null|Null|NULL|", "~nN"),
    ("merge", "<<", "<"),
    ("bool", "on|On|ON|off|Off|OFF", "oO"),
    ("float", r"[-+]?\.(inf|Inf|INF)", "-+."),
)


def _loader() -> type[yaml.SafeLoader]:
    """Returns a loader that leaves numbers and dates as text, so that each flag's type determines how they are read."""
    import yaml  # noqa: PLC0415, 0.04 s, which most command lines need not wait for

    class Texts(yaml.SafeLoader):
        yaml_implicit_resolvers: ClassVar[dict[str, Any]] = {}

    for kind, pattern, first in _RESOLVED:
        Texts.add_implicit_resolver(f"tag:yaml.org,2002:{kind}", re.compile(rf"(?:{pattern})\Z"), ["", *first])
    return Texts


def taken_out(arguments: Sequence[str], names: Collection[str]) -> tuple[list[str], bool]:
    """Replaces --config=FILE with the flags in that file, which come first, so that the other arguments override them.

    Args:
      arguments: command-line arguments without the program.
      names: names of all flags.

    Returns:
      Arguments without --config and --dump_config, and whether --dump_config was given.

    Raises:
      UsageError: the file cannot be read, or contains something other than flags.
    """
    parser = argparse.ArgumentParser(add_help=False, allow_abbrev=False, exit_on_error=False)
    parser.add_argument("--config", nargs="?", const="", action="append", default=[])
    parser.add_argument("--dump_config", action="store_true")
    try:
        found, rest = parser.parse_known_args(list(arguments))
    except argparse.ArgumentError:
        raise UsageError("--dump_config: takes no value; write --dump_config alone") from None
    if "" in found.config:
        raise UsageError("--config: expected a value, as in --config=FILE.yaml")
    if len(found.config) > 1:
        raise UsageError(f"{' '.join(f'--config={path}' for path in found.config)}: give one file")
    of_file = [flag for path in found.config for flag in flags(pathlib.Path(path).expanduser(), names)]
    return [*of_file, *rest], found.dump_config


def text_of(groups: dict[str, dict[str, Any]]) -> str:
    """Returns the text of a config file with flags by group; values of None are left out."""
    import yaml  # noqa: PLC0415, as in `_loader`

    values = {
        group: {name: value for name, value in members.items() if value is not None}
        for group, members in groups.items()
    }
    text: str = yaml.safe_dump(values, sort_keys=False)
    return text


def write(path: pathlib.Path, groups: dict[str, dict[str, Any]]) -> None:
    """Writes a config file with flags by group, atomically."""
    replace(path, text_of(groups))


def flags(path: pathlib.Path, names: Collection[str]) -> Iterator[str]:
    """Yields the flags of a file as arguments: `--learning_rate=0.1`.

    Args:
      path: path of the file.
      names: names of all flags.

    Raises:
      UsageError: the file cannot be read, or contains something other than flags.
    """
    import yaml  # noqa: PLC0415, as in `_loader`

    loader = _loader()
    try:
        text = content_of(path).decode()
        _check_once(path, yaml.compose(text, loader), {})
        content = yaml.load(text, loader)
    except (OSError, UnicodeDecodeError) as error:
        raise UsageError(f"--config={path}: cannot be read: {reason_of(error)}") from None
    except yaml.YAMLError as error:
        raise UsageError(f"--config={path}: is not YAML: {' '.join(str(error).split())}") from None
    if not isinstance(content, dict):
        raise UsageError(f"--config={path}: must hold flags, as in 'learning_rate: 0.1'; got {type(content).__name__}")
    with Mistakes() as mistakes:
        with mistakes.noted():
            aliases.check_once(_names_in(content), f"--config={path}: ")
        yield from _flag(path, "", content, names, mistakes)


def _check_once(path: pathlib.Path, tree: yaml.Node | None, seen: dict[str, int]) -> None:
    """Raises UsageError if a group or a flag is given twice: YAML would silently use the last one.

    `seen` maps flags in other groups to their lines; this group's flags are added.
    """
    from yaml import MappingNode  # noqa: PLC0415, as in `_loader`

    if not isinstance(tree, MappingNode):
        return
    keys = [(key.value, key.start_mark.line + 1, value) for key, value in tree.value if isinstance(key.value, str)]
    merges = any(name == "<<" for name, _, _ in keys)  # a group may override values merged into it
    here: dict[str, int] = {}
    for name, line, value in (key for key in keys if key[0] != "<<"):
        is_group = isinstance(value, MappingNode)
        first = here.get(name) or (None if is_group or merges else seen.get(name))
        if first:
            raise UsageError(f"--config={path}: {name} is given twice, in lines {first} and {line}; remove one of them")
        here[name] = line
        if is_group:
            _check_once(path, value, seen)
        else:
            seen.setdefault(name, line)


def _names_in(content: Mapping[Any, Any]) -> Iterator[str]:
    for name, value in content.items():
        yield from _names_in(value) if isinstance(value, dict) else [str(name)]


def _flag(path: pathlib.Path, name: str, value: Any, names: Collection[str], mistakes: Mistakes) -> Iterator[str]:
    if isinstance(value, dict):  # a group, which may share its name with a flag
        for inner, part in value.items():
            yield from _flag(path, str(inner), part, names, mistakes)
        return
    name = aliases.TODAY.get(name, name)
    if name not in names:
        mistakes.found.append(unknown(f"--config={path}: flag", name, names))
    elif value is not None:
        yield f"--{name}={','.join(map(str, value)) if isinstance(value, list) else value}"
