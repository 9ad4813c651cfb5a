"""Flags as fields of dataclasses: `flag` declares one together with all that is known of it; `check` uses that."""

from __future__ import annotations

import dataclasses
import functools
import math
import operator
import typing
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any, NamedTuple, TypeVar

from pipeline.errors import UsageError, unknown

_Config = TypeVar("_Config")

# What each bound asks of a value, and how a message says it.
_BOUNDS: dict[str, tuple[Callable[[Any, Any], bool], str]] = {
    "least": (operator.ge, "{} or more"),
    "above": (lambda value, bound: math.isfinite(value) and value > bound, "a number above {}"),
    "below": (operator.lt, "below {}"),
    "most": (operator.le, "{} or less"),
}


class Flag(NamedTuple):
    """A flag of a command.

    Attributes:
      field: that declares it.
      kind: type of its value: str, int, float or bool; of one of them where it may be given several times.
      is_optional: whether its value may be None.
      group: the dataclass of the field.
    """

    field: dataclasses.Field[Any]
    kind: type
    is_optional: bool
    group: type

    @property
    def name(self) -> str:
        """What it is called, without dashes."""
        return self.field.name


def flag(
    default: Any = dataclasses.MISSING,
    text: str = "",
    *,
    least: float | None = None,
    above: float | None = None,
    below: float | None = None,
    most: float | None = None,
    known: Iterable[str] | None = None,
    default_of: str = "",
    metavar: str | None = None,
    alias: str | None = None,
    positional: bool = False,
    repeated: bool = False,
    meaning: Mapping[str, Any] | None = None,
) -> Any:
    """Returns a field of a dataclass that is a flag of a command.

    Args:
      default: its value where it is not given; without one it is required.
      text: for --help.
      least: the smallest value that works; None is never compared with a bound.
      above: the values that work are finite and larger.
      below: the values that work are smaller.
      most: the largest value that works; compared by `check_most` alone.
      known: the names that work.
      default_of: what another default than this one may come from, for --help, such as "the model".
      metavar: what --help calls its value.
      alias: another name of it.
      positional: whether it is given by its place, without its name.
      repeated: whether it may be given several times; its value is a list, empty without a default.
      meaning: further metadata of the field.
    """
    bounds = {"least": least, "above": above, "below": below, "most": most}
    metadata = {
        "text": f"{text}; may be given several times" if repeated else text,
        "bounds": {name: bound for name, bound in bounds.items() if bound is not None},
        "known": known,
        "default_of": default_of,
        "metavar": metavar,
        "alias": alias,
        "positional": positional,
        "repeated": repeated,
        **(meaning or {}),
    }
    if repeated and default is dataclasses.MISSING:
        return dataclasses.field(default_factory=list, metadata=metadata)
    return dataclasses.field(default=default, metadata=metadata)


def flags_of(kind: type) -> Mapping[str, Flag]:
    """Returns the flags of a dataclass by their names, also those of the dataclasses that are its fields."""
    return _by_name(kind)


@functools.cache
def _by_name(kind: type) -> Mapping[str, Flag]:
    return {flag.name: flag for flag in _flags_of(kind)}


def _flags_of(kind: Any) -> Iterator[Flag]:
    hints = typing.get_type_hints(kind)
    for field in dataclasses.fields(kind):
        hint = hints[field.name]
        if dataclasses.is_dataclass(hint):
            yield from _flags_of(hint)
            continue
        kinds = typing.get_args(hint) if typing.get_origin(hint) is not list else ()
        inner = next((one for one in kinds if one is not type(None)), hint)
        yield Flag(field, next(iter(typing.get_args(inner)), inner), type(None) in kinds, kind)


def make(kind: type[_Config], values: Mapping[str, Any]) -> _Config:
    """Returns a dataclass of flags, or of groups of them, from values by the names of the flags.

    Args:
      kind: the dataclass.
      values: those that differ from the fields' own defaults; may have more names than the dataclass has flags.
    """
    fields = dataclasses.fields(kind)  # type: ignore[arg-type]
    hints = typing.get_type_hints(kind)
    groups = {field.name: hints[field.name] for field in fields if dataclasses.is_dataclass(hints[field.name])}
    given = {field.name: values[field.name] for field in fields if field.name in values and field.name not in groups}
    return kind(**given, **{name: make(group, values) for name, group in groups.items()})


def check(flags: Any) -> None:
    """Checks the values of a dataclass, group by group or flag by flag, against what their fields say.

    Raises:
      UsageError: one is unknown or breaks a bound; `most` is not compared.
    """
    for field in dataclasses.fields(flags):
        value, known = getattr(flags, field.name), field.metadata.get("known")
        if value is None:
            continue
        if known is not None:
            check_name(field.name, value, known)
        bounds = {name: bound for name, bound in field.metadata.get("bounds", {}).items() if name != "most"}
        if not all(_BOUNDS[name][0](value, bound) for name, bound in bounds.items()):
            raise UsageError(f"--{field.name}={value}: must be {words(bounds)}")


def check_most(flags: Any, default: float = math.inf) -> None:
    """Checks the values of a dataclass against the largest that their fields allow.

    Args:
      flags: the dataclass.
      default: the largest whole number of a field that does not say it.

    Raises:
      UsageError: a value is larger.
    """
    for field in dataclasses.fields(flags):
        value, most = getattr(flags, field.name), field.metadata.get("bounds", {}).get("most")
        most = default if most is None and isinstance(value, int) else most
        if value is not None and most is not None and not value <= most:
            raise UsageError(f"--{field.name}={value}: must be {words({'most': most})}")


def check_name(flag: str, value: str, known: Iterable[str]) -> None:
    """Raises UsageError, with the nearest known name, where the value is none of them."""
    if value not in known:
        raise unknown(f"--{flag}", value, known)


def words(bounds: Mapping[str, float]) -> str:
    """Returns bounds in words: `0 or more and below 1`."""
    shown = {name: f"{bound:g}" if isinstance(bound, float) else str(bound) for name, bound in bounds.items()}
    return " and ".join(_BOUNDS[name][1].format(bound) for name, bound in shown.items())
