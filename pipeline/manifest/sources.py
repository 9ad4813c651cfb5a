"""The sources of an input, `DIR` or `DIR:SPLIT` with a weight each, given as a list or as the text of a flag."""

from __future__ import annotations

import dataclasses
import math
import operator
import os
import re
from collections.abc import Mapping, Sequence
from typing import Any

from pipeline import segments
from pipeline.errors import UsageError, unknown
from pipeline.files.paths import PathLike, folder
from pipeline.segments import Segment

Sources = Sequence[tuple[PathLike, float] | tuple[PathLike, float, Mapping[str, Any]]]
VIEWS = ("classes", "where", "limit", "balance", "weigh")  # options that a source may override
Weights = tuple[tuple[int, tuple[tuple[str, float], ...]], ...]  # (first step, (source, weight)...) of each segment

# The text after the last colon is a split only if it looks like one: `gs://bucket/x` and `C:\x` are folders.
_SLICE = r"\w+(\[[^\[\]]*\])?"
WITH_SPLIT = re.compile(rf"(?P<folder>.+?):(?P<split>{_SLICE}(\+{_SLICE})*)")
# Text up to a semicolon outside of strings.
_VALUE = re.compile(r"""(?:'(?:[^'\\]|\\.)*'|"(?:[^"\\]|\\.)*"|[^;])*""", re.DOTALL)
_LIKE_NAMED = re.compile(r"[^\s'\"]+:")  # no value has a colon outside strings
_WEIGHTED = re.compile(r"(?P<source>.+)=(?P<weight>[^=/]*)")


@dataclasses.dataclass(frozen=True)
class Source:
    """One data set of an input.

    Attributes:
      data_dir: folder of the data set.
      split: split or slice of one.
      weight: share of each step's rows, relative to the sum of all weights.
      options: values of `VIEWS` that differ from the mixture's.
    """

    data_dir: PathLike
    split: str
    weight: float
    options: Mapping[str, Any] = dataclasses.field(default_factory=dict, hash=False)

    def __str__(self) -> str:
        return f"{os.fspath(self.data_dir)}:{self.split}"


def sources_of(given: Any, split: str) -> tuple[Source, ...]:
    """Returns the sources of an input: a mixture's, or the single data set, which gets all rows.

    Args:
      given: path of a data set; or tuples of `DIR` or `DIR:SPLIT`, a weight and optionally a dict of `VIEWS`, where a
        path that is not a text, or ends in a slash, is a `DIR`.
      split: split of the sources without one.

    Raises:
      UsageError: `given` is neither, or a weight is not above 0.
    """
    if isinstance(given, str | os.PathLike):
        folder(given)
        return (Source(given, split, 1.0),)
    try:
        pairs = list(given)
        if not pairs:
            raise TypeError
        return tuple(_checked(one, split) for one in pairs)
    except TypeError:
        raise UsageError(
            f"data_dir={given!r}: must be the path of a data set's folder, or several with their weights, such as "
            "[('mnist', 0.7), ('digits:train[:50%]', 0.3)]"
        ) from None


def _checked(one: Any, split: str) -> Source:
    if isinstance(one, Source):
        return one
    if not isinstance(one, tuple | list) or len(one) not in (2, 3) or not isinstance([*one, {}][2], Mapping):
        raise TypeError
    source, weight, options = [*one, {}][:3]
    for name in options:
        if name not in VIEWS:
            raise unknown(f"source {os.fspath(source)!r}: option", str(name), VIEWS)
    folder(source)
    match = WITH_SPLIT.fullmatch(source) if isinstance(source, str) else None
    data_dir, own = (match["folder"], match["split"]) if match else (source, split)
    return Source(data_dir, own, _number(source, weight), dict(options))


def _number(source: PathLike, weight: Any, may_be_zero: bool = False) -> float:
    try:
        number = math.nan if isinstance(weight, bool | str) else float(weight)
    except (TypeError, ValueError):
        number = math.nan
    if not 0 <= number < math.inf or not (number or may_be_zero):
        least = "of 0 or more" if may_be_zero else "above 0"
        raise UsageError(f"source {os.fspath(source)!r}: its weight, {weight!r}, must be a number {least}")
    return number


def own_views(sources: Sequence[Source], given: Mapping[str, Any]) -> tuple[tuple[Source, ...], dict[str, Any]]:
    """Returns the sources with the views given to some of them by name, and the values for all sources.

    Args:
      sources: sources of a mixture.
      given: values of `VIEWS`; a text such as `b: score > 0.5; c: label == 3` only applies to the sources b and c.

    Raises:
      UsageError: a name stands for no source or for several, or for one that already has such a view.
    """
    found, rest = list(sources), dict(given)
    for option, text in given.items():
        parts = _named_parts(option, text, sources) if sources and isinstance(text, str) else []
        if not parts:
            continue
        rest[option] = None
        for name, value in parts:
            matching = [number for number, one in enumerate(sources) if name in _names_of(one)]
            number = matching[0]
            if len(matching) > 1 or option in found[number].options:
                raise UsageError(
                    f"{option}={text}: {name!r} does not name one source that has no {option} of its own yet; write "
                    "it as DIR:SPLIT, each source once"
                )
            options = {**found[number].options, option: value}
            found[number] = dataclasses.replace(found[number], options=options)
    return tuple(found), rest


def _named_parts(option: str, text: str, sources: Sequence[Source]) -> list[tuple[str, str]]:
    """Returns (name, value) of each part of a text; empty if it applies to all sources."""
    names = sorted({name for one in sources for name in _names_of(one)}, key=len, reverse=True)
    name_of = re.compile(rf"\s*({'|'.join(map(re.escape, names))}):\s")
    found: list[tuple[str, str]] = []
    at, end = 0, len(text.rstrip())
    while at < end:
        match = name_of.match(text, at)
        start = match.end() if match else at
        value = _VALUE.match(text, start)
        assert value is not None  # the pattern matches any text
        part = text[at : value.end()].strip()
        if match:
            found.append((match[1], value[0].strip()))
        elif found or _LIKE_NAMED.match(part):
            raise UsageError(
                f"{option}={text}: {part!r} does not begin with a source's name, a colon and a space; the sources are "
                + ", ".join(sorted({os.fspath(one.data_dir) for one in sources}))
            )
        else:
            return []
        at = value.end() + 1
    return found


def flags_for(data_dir: str | None, flags: Mapping[str, Any]) -> dict[str, Any]:
    """Returns a run's flags for its data in another place, or for other data if they are given.

    If there are as many sources as in the run's mixture, they replace its sources, in order, in its schedule and in
    views by name. Other data get neither.
    """
    of_run, split = parse_sources(str(flags.get("data_dir"))), flags.get("train_split") or "train"
    if data_dir in (None, flags.get("data_dir")) or isinstance(of_run, str):
        return dict(flags)
    before = sources_of(of_run, split)
    each, for_all = own_views(before, {name: flags.get(name) for name in VIEWS})
    found = {**flags, **for_all, "mixture_schedule": None}
    given = parse_sources(str(data_dir))
    after = () if isinstance(given, str) else sources_of(given, split)
    if len(after) != len(before):
        return found
    for name in VIEWS:
        parts = [f"{new}: {old.options[name]}" for old, new in zip(each, after, strict=True) if name in old.options]
        found |= {name: "; ".join(parts)} if parts else {}
    texts = [
        f"{step}:{','.join(f'{new}={weight!r}' for new, (_, weight) in zip(after, weights, strict=True))}"
        for step, weights in in_order_of(schedule_of(flags.get("mixture_schedule") or ""), before)
    ]
    return {**found, "mixture_schedule": ";".join(texts) or None}


def _names_of(source: Source) -> tuple[str, str]:
    """Returns the names of a source in texts: its folder, or the folder with its split."""
    return str(source), os.fspath(source.data_dir)


def parse_sources(text: str, flag: str = "--data_dir") -> str | list[tuple[PathLike, float]]:
    """Returns the sources and weights of a text such as `a=0.7,b:train[:50%]=0.3`; other texts unchanged.

    A text lists sources if it has a comma and one of its parts has a weight. A text that ends in a slash is a folder.

    Raises:
      UsageError: a source has no weight, or a weight is not a number.
    """
    parts = [part.strip() for part in text.split(",")]
    if len(parts) < 2 or text.endswith("/") or not any(map(_WEIGHTED.fullmatch, parts)):
        return text
    return [_weighted(part, flag, text) for part in parts]


def _weighted(part: str, flag: str, text: str) -> tuple[PathLike, float]:
    match = _WEIGHTED.fullmatch(part)
    if not match:
        raise UsageError(f"{flag}={text}: the source {part!r} has no weight; write {part or 'DIR'}=0.3")
    source, weight = match["source"], match["weight"]
    try:
        return os.path.expanduser(source), float(weight)
    except ValueError:
        raise UsageError(f"{flag}={text}: the weight of {source!r}, {weight!r}, is not a number") from None


def schedule_of(given: Any) -> Weights:
    """Returns the weights of a mixture from each step on, checked as far as possible without the sources.

    Args:
      given: pairs of a first step and {source: weight}, or a text such as `0:a=0.9,b=0.1;10000:a=0.5,b=0.5`.

    Raises:
      UsageError: `given` is none of these, the first step is not 0, steps do not increase, or a weight is below 0.
    """
    try:
        pairs = [_weights(one, given) for one in segments.parse(given)] if isinstance(given, str) else given or ()
        named = [(operator.index(step), dict(weights).items()) for step, weights in pairs]
        found = tuple(
            (step, tuple((os.fspath(source), _number(source, weight, may_be_zero=True)) for source, weight in weights))
            for step, weights in named
        )
    except (TypeError, ValueError) as error:
        if isinstance(error, UsageError):
            raise
        raise UsageError(
            f"schedule={given!r}: must be pairs of a first step and the sources' weights, such as "
            "[(0, {'a': 0.9, 'b': 0.1}), (10000, {'a': 0.5, 'b': 0.5})]"
        ) from None
    segments.check_starts([step for step, _ in found], "schedule")
    return found


def in_order_of(schedule: Weights, sources: Sequence[Source]) -> Weights:
    """Returns a schedule with all sources, as `DIR:SPLIT`, in the same order in every segment.

    Raises:
      UsageError: there is no mixture, a segment does not name each of its sources once, or a weight of 0 leaves a
        segment without rows, a source without any rows in the run, or the run's epochs without a length.
    """
    if schedule and not sources:
        raise UsageError("schedule: changes the weights of a mixture; give data_dir several sources")
    found = []
    for step, weights in schedule:
        own: dict[str, float] = {}
        for name, weight in weights:
            matching = [str(one) for one in sources if name in _names_of(one)]
            if not matching:
                raise unknown(f"schedule, step {step}: source", name, [os.fspath(one.data_dir) for one in sources])
            if len(matching) > 1 or matching[0] in own:
                raise UsageError(
                    f"schedule, step {step}: {name!r} does not name one source that has no weight yet; write it as "
                    "DIR:SPLIT, each source once"
                )
            own[matching[0]] = weight
        for source in map(str, sources):
            if source not in own:
                raise UsageError(
                    f"schedule, step {step}: the source {source!r} has no weight; give it one, or 0: no rows"
                )
        if not any(own.values()):
            raise UsageError(f"schedule, step {step}: all weights are 0; give one source a weight above 0")
        found.append((step, tuple((str(one), own[str(one)]) for one in sources)))
    for number, source in enumerate(map(str, sources)):
        of_source = [weights[number][1] for _, weights in found]
        if found and not any(of_source):
            raise UsageError(
                f"schedule: the source {source!r} has the weight 0 in all segments; leave it out of data_dir, too"
            )
        if found and not number and not of_source[0]:
            raise UsageError(
                f"schedule: {source!r}, the first source of data_dir, has the weight 0 at step 0, but its rows there "
                "count the run's epochs; name a source first that begins at step 0"
            )
    return tuple(found)


def _weights(segment: Segment, given: str) -> tuple[int, list[tuple[PathLike, float]]]:
    parts = [_weighted(part, "schedule", given) for part in segment.parts]
    if len(dict(parts)) < len(parts):
        raise UsageError(f"schedule={given}: step {segment.start} names a source twice")
    return int(segment.start), parts
