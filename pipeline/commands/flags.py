"""Flags as fields of dataclasses: `flag` declares one with its bounds and help text; `check` checks values."""

from __future__ import annotations

import contextlib
import dataclasses
import functools
import math
import operator
import typing
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from types import TracebackType
from typing import Any, NamedTuple, Self, TypeVar

from pipeline.errors import MistakesError, PipelineError, UsageError, unknown

_Config = TypeVar("_Config")

# {kind of bound: (check of a value, its wording in messages)}
_BOUNDS: dict[str, tuple[Callable[[Any, Any], bool], str]] = {
    "least": (operator.ge, "{} or more"),
    "above": (lambda value, bound: math.isfinite(value) and value > bound, "a number above {}"),
    "below": (operator.lt, "below {}"),
    "most": (operator.le, "{} or less"),
}


class Mistakes:
    """Context that collects mistakes in flags and raises all of them together at the end.

        with Mistakes() as mistakes:
            with mistakes.noted():
                ...  # a check
            with mistakes.noted():
                ...  # another one, made even if the first one failed

    Raises:
      UsageError: a check failed; `MistakesError` if several did.
    """

    def __init__(self) -> None:
        self.found: list[PipelineError] = []

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: Any, error: BaseException | None, trace: TracebackType | None) -> None:
        if error is not None and not isinstance(error, UsageError):
            return
        self.found += error.mistakes if error else ()
        found = list({str(mistake): mistake for mistake in self.found}.values())
        if len(found) > 1:
            raise MistakesError(found) from None
        if found and found[0] is not error:
            raise found[0]

    @contextlib.contextmanager
    def noted(self) -> Iterator[None]:
        """Context for a check, whose error is raised at the end."""
        try:
            yield
        except UsageError as error:
            self.found += error.mistakes


class Flag(NamedTuple):
    """A flag of a command.

    Attributes:
      field: field of the dataclass that declares the flag.
      kind: type of the value (of each value if the flag may be repeated): str, int, float or bool.
      is_optional: whether the value may be None.
      group: dataclass that declares the flag.
    """

    field: dataclasses.Field[Any]
    kind: type
    is_optional: bool
    group: type

    @property
    def name(self) -> str:
        """Name of the flag, without dashes."""
        return self.field.name

    @property
    def is_required(self) -> bool:
        """Whether the flag must be given."""
        return self.field.default is self.field.default_factory is dataclasses.MISSING


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
    unset: str = "",
    metavar: str | None = None,
    positional: bool = False,
    repeated: bool = False,
    bare: int | str | None = None,
    off: str | None = None,
    parse: Callable[[Any], Any] | None = None,
    needs: str = "",
    first: bool = False,
    meaning: Mapping[str, Any] | None = None,
) -> Any:
    """Declares a dataclass field that is a flag of a command.

    Args:
      default: value if the flag is not given; without a default the flag is required.
      text: help text.
      least: smallest value allowed. None as a value is not compared with bounds.
      above: bound that values must exceed; they must also be finite.
      below: bound that values must stay below.
      most: largest value allowed; only `check_most` compares it.
      known: allowed names.
      default_of: help text on the source of the default, such as "the model".
      unset: help text on the meaning of a default of None, or on the value used instead of another default.
      metavar: name of the value in --help.
      positional: whether the flag is given by position, without its name.
      repeated: whether the flag may be given several times; the value is then a list, empty by default.
      bare: value if the name is given alone; None if a value must follow.
      off: value if the name is given with a `no` prefix; None if there is no such name.
      parse: function from a text, or a Python caller's value, to the final value, which it returns unchanged if given
        one; it raises ValueError with what the value must be. Bounds only apply to numbers. None to parse by the type
        of the field.
      needs: attribute of the dataclass without which the flag has no effect, so that `check_needs` refuses it.
      first: whether `--help` shows the flag if a command has many; `--help=all` shows them all.
      meaning: further metadata of the field.
    """
    bounds = {"least": least, "above": above, "below": below, "most": most}
    metadata = {
        "text": f"{text}; may be given several times" if repeated else text,
        "bounds": {name: bound for name, bound in bounds.items() if bound is not None},
        "known": known,
        "default_of": default_of,
        "unset": unset,
        "metavar": metavar,
        "positional": positional,
        "repeated": repeated,
        "bare": bare,
        "off": off,
        "parse": parse,
        "needs": needs,
        "first": first,
        **(meaning or {}),
    }
    if repeated and default is dataclasses.MISSING:
        return dataclasses.field(default_factory=list, metadata=metadata)
    return dataclasses.field(default=default, metadata=metadata)


def fields_with(flags: Any, meaning: str) -> list[dataclasses.Field[Any]]:
    """Returns the fields of a dataclass of flags that declare a meaning."""
    return [field for field in dataclasses.fields(flags) if field.metadata.get(meaning)]


def flags_of(kind: type) -> Mapping[str, Flag]:
    """Returns the flags of a dataclass by name, including flags of nested dataclasses."""
    return _by_name(kind)


@functools.cache  # not `flags_of` itself: mypy does not consider dataclasses hashable
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


def make(
    kind: type[_Config],
    values: Mapping[str, Any],
    mistakes: Mistakes | None = None,
    wrong: Collection[str] = (),
    most: float | None = None,
) -> _Config:
    """Makes a dataclass of flags, or of groups of flags, from values.

    Args:
      kind: dataclass to make.
      values: {flag name: value}; names of other flags are ignored.
      mistakes: collector of errors; None to raise them. A value that is wrong by itself is noted once. Reading it from
        the result raises an error without a message, so that a check of several flags is silent if it needs that value,
        and still runs if it does not.
      wrong: flag names known to be wrong or missing.
      most: largest value for fields that declare none, as in `check_most`; None to skip these comparisons.

    Raises:
      UsageError: values cannot work; the error reports all of them.
    """
    if mistakes is None:
        with Mistakes() as own:
            made = make(kind, values, own, wrong, most)
        return made
    hints, hidden = typing.get_type_hints(kind), set(wrong)
    given: dict[str, Any] = {}
    for field in dataclasses.fields(kind):  # type: ignore[arg-type]
        name = field.name
        if dataclasses.is_dataclass(hints[name]):
            given[name] = make(hints[name], values, mistakes, wrong, most)
        elif name in wrong:
            given[name] = values.get(name)
        elif name in values:
            given[name], before = values[name], len(mistakes.found)
            with mistakes.noted():
                _check_value(field, given[name])
                if most is not None:
                    _check_most(field, given[name], most)
            hidden |= {name} if len(mistakes.found) > before else set()
    config: Any = object.__new__(_hiding(kind, hidden) if hidden else kind)
    with mistakes.noted():
        config.__init__(**given)
    return config  # type: ignore[no-any-return]


def _hiding(kind: Any, hidden: Collection[str]) -> type:
    """Returns a subclass in which reading some attributes raises an error without a message."""

    class Hiding(kind):  # type: ignore[misc]
        def __getattribute__(self, name: str) -> Any:
            if name in hidden:
                raise MistakesError
            return super().__getattribute__(name)

    return Hiding


def check_all(*checks: Callable[[], Any]) -> None:
    """Runs all checks and raises one UsageError with everything they find."""
    with Mistakes() as mistakes:
        for one in checks:
            with mistakes.noted():
                one()


def check(flags: Any) -> None:
    """Checks a dataclass's values against the known names and bounds that its fields declare, except `most`.

    Raises:
      UsageError: a value is unknown or breaks a bound.
    """
    with Mistakes() as mistakes:
        for field in dataclasses.fields(flags):
            with mistakes.noted():
                _check_value(field, getattr(flags, field.name))


def _check_value(field: dataclasses.Field[Any], value: Any) -> None:
    known = field.metadata.get("known")
    if value is None:
        return
    if known is not None:
        check_name(field.name, value, known)
    if parse := field.metadata.get("parse"):
        try:
            parse(value)
        except ValueError as error:
            raise UsageError(f"--{field.name}={value}: {error}") from None
        if isinstance(value, str):
            return
    bounds = {name: bound for name, bound in field.metadata.get("bounds", {}).items() if name != "most"}
    if not all(_BOUNDS[name][0](value, bound) for name, bound in bounds.items()):
        raise UsageError(f"--{field.name}={value}: must be {words(bounds)}")


def check_most(flags: Any, default: float = math.inf) -> None:
    """Checks a dataclass's values against the largest values that its fields declare.

    Args:
      flags: dataclass of flags.
      default: largest whole number for fields that do not declare one.

    Raises:
      UsageError: a value is larger.
    """
    with Mistakes() as mistakes:
        for field in dataclasses.fields(flags):
            with mistakes.noted():
                _check_most(field, getattr(flags, field.name), default)


def _check_most(field: dataclasses.Field[Any], value: Any, default: float) -> None:
    most = field.metadata.get("bounds", {}).get("most")
    most = default if most is None and isinstance(value, int) else most
    if value is not None and most is not None and not value <= most:
        raise UsageError(f"--{field.name}={value}: must be {words({'most': most})}")


def check_name(flag: str, value: str, known: Iterable[str]) -> None:
    """Raises UsageError, with the nearest known name, if the value is not a known name."""
    if value not in known:
        raise unknown(f"--{flag}", value, known)


def shown(name: str, value: Any) -> str:
    """Returns a flag in command-line form."""
    return f"--{name}" if value is True else f"--{name}={value}"


def check_needs(flags: Any, **why: str) -> None:
    """Checks that no flag with `needs` is given without the attribute that it needs.

    Args:
      flags: dataclass of flags.
      **why: {needed attribute: message of the error}; by default, the message asks for the flag of that name.

    Raises:
      UsageError: a flag has a value other than its default while the attribute it needs is None, False or empty.
    """
    with Mistakes() as mistakes:
        for field in fields_with(flags, "needs"):
            with mistakes.noted():
                value, needed = getattr(flags, field.name), field.metadata["needs"]
                if value != field.default and not _is_empty(value) and _is_empty(getattr(flags, needed)):
                    raise UsageError(f"{shown(field.name, value)}: {why.get(needed, f'needs --{needed}')}")


def _is_empty(value: Any) -> bool:
    return value is None or value is False or value == ""


def check_ending(flag: str, path: str | None, ending: str) -> None:
    """Raises UsageError if the name of a file to write has the wrong ending; None passes."""
    if path is not None and not path.endswith(ending):
        raise UsageError(f"--{flag}={path}: the file's name must end in {ending}")


def words(bounds: Mapping[str, float]) -> str:
    """Returns bounds as text: `0 or more and below 1`."""
    shown = {name: f"{bound:g}" if isinstance(bound, float) else str(bound) for name, bound in bounds.items()}
    return " and ".join(_BOUNDS[name][1].format(bound) for name, bound in shown.items())
