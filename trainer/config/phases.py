"""Phases of training (`--phases`): what is frozen, how fast the rest learns, and on which images, from a step on."""

from __future__ import annotations

import bisect
import dataclasses
import math
from collections.abc import Mapping, Sequence
from typing import Any, Self

from pipeline import segments
from pipeline.augmentation import recipes
from pipeline.commands import values
from pipeline.errors import UsageError, unknown
from pipeline.order.views import Intervals
from pipeline.request import parse_size
from pipeline.segments import Segment

FLAG = "--phases"
BASE, NOTHING = "base", "none"  # values of `freeze`; anything else names layers
_PACE = ("learning_rate", "schedule")
KEYS = ("freeze", *_PACE, "resize", "augment")
_STORED = "phases"  # in the content of a checkpoint's record
_MOST = 3.4e38  # the largest float32


@dataclasses.dataclass(frozen=True)
class Phase:
    """Settings that apply from a step until the next phase. Unset ones stay as in the previous phase.

    Attributes:
      start: first step: the number of updates before the phase.
      freeze: `base`, `none`, or patterns of layer names, joined by +.
      learning_rate: highest rate; None for --learning_rate.
      schedule: schedule of the rate; None for --schedule.
      since: step from which the schedule and its warm-up are counted: the first step of the latest phase that sets a
        rate or a schedule.
      resize: size of the training images, such as `128x128`; None for the run's.
      augment: augmentation recipe; None for --augment.
    """

    start: int = 0
    freeze: str = NOTHING
    learning_rate: float | None = None
    schedule: str | None = None
    since: int = 0
    resize: str | None = None
    augment: str | None = None

    def __str__(self) -> str:
        """The step and the settings: `step 150: freeze=none, learning_rate=0.0001`."""
        given = {name: getattr(self, name) for name in KEYS}
        return f"step {self.start}: {', '.join(f'{name}={value}' for name, value in given.items() if value)}"


@dataclasses.dataclass(frozen=True)
class Phases:
    """The phases of a run; without --phases there is a single one that changes nothing.

    Attributes:
      each: phases in order; the first begins at step 0.
      skips: (first, end) of steps that make no update.
    """

    each: tuple[Phase, ...] = (Phase(),)
    skips: Intervals = ()

    @classmethod
    def of(cls, text: str, steps_per_epoch: int, last_step: int, skips: Intervals = ()) -> Self:
        """Parses a value of --phases.

        Args:
          text: value of the flag; empty for a single phase.
          steps_per_epoch: T.
          last_step: step at which training ends.
          skips: (first, end) of steps that make no update.

        Raises:
          UsageError: the phases do not begin with step 0 or overlap, or one begins after training has ended.
        """
        phase, found = Phase(), list[Phase]()
        parsed = [(one, one.first_step(steps_per_epoch, FLAG), options_of(one)) for one in segments.parse(text)]
        segments.check_starts([start for _, start, _ in parsed], FLAG)
        for one, start, options in parsed:
            if start >= last_step:
                raise UsageError(f"{FLAG}: {one.start!r} begins at step {start}, but training ends at step {last_step}")
            is_paced = not options.keys().isdisjoint(_PACE)
            phase = dataclasses.replace(phase, **options, start=start, since=start if is_paced else phase.since)
            found.append(phase)
        return cls(tuple(found) or (Phase(),), skips)

    @property
    def are_given(self) -> bool:
        """Whether --phases was given."""
        return self.each != Phases.each

    @property
    def starts(self) -> list[int]:
        """First steps of all phases."""
        return [one.start for one in self.each]

    @property
    def of_images(self) -> bool:
        """Whether a phase changes the images."""
        return any(one.resize or one.augment for one in self.each)

    def number_at(self, step: int) -> int:
        """Returns the index of the phase of the update that follows a global step."""
        return bisect.bisect_right(self.starts, step) - 1

    def at(self, step: int) -> str:
        """Describes the phase of the update that follows a global step: `phase 2 of 3, from step 150: ...`."""
        number = self.number_at(step)
        return f"phase {number + 1} of {len(self.each)}, from {self.each[number]}"

    def next_after(self, step: int) -> float:
        """Returns the first step of the next phase; infinity if there is none."""
        return min((start for start in self.starts if start > step), default=math.inf)

    def paced_until(self, since: int) -> int | None:
        """Returns the step at which a schedule that began at a step ends; None for the end of training."""
        return min((one.since for one in self.each if one.since > since), default=None)

    def updates_of(self, numbers: Sequence[int]) -> Intervals:
        """Returns (first, end) of the steps of some phases, given by index, without steps that make no update."""
        starts, found = [*self.starts, 1 << 62], list[tuple[int, int]]()
        for first, end in ((starts[number], starts[number + 1]) for number in numbers):
            for skipped, until in self.skips:
                if first < until and skipped < end:
                    found.append((first, skipped))
                    first = until  # noqa: PLW2901, what is left of the phase
            found.append((first, end))
        return tuple((first, end) for first, end in found if first < end)

    def content(self) -> dict[str, Any]:
        """Returns the phases as a checkpoint stores them; empty without --phases."""
        return {_STORED: [dataclasses.asdict(one) for one in self.each]} if self.are_given else {}

    def changes(self, stored: Mapping[str, Any], step: int) -> tuple[str, str]:
        """Describes differences from a checkpoint's phases: in phases that began before a step, and in later ones.

        Args:
          stored: content of the checkpoint's record.
          step: step of the checkpoint.
        """
        was, now = ([one for one in each if _changes(one, each)] for each in (_of_content(stored).each, self.each))
        past, here = ([one for one in each if one.start < step] for each in (was, now))
        if past == here:
            return "", f"phases were {_text(was)}, are {_text(now)}, from step {step} on" if was != now else ""
        differing = [one for one in (*past, *here) if one not in past or one not in here]
        first = min(differing, key=lambda one: one.start).start
        at = [next((repr(str(one)) for one in each if one.start == first), "none") for each in (past, here)]
        return f"the phase that begins at step {first} was {at[0]}, is {at[1]}", ""

    def ends_otherwise(self, stored: Mapping[str, Any], step: int) -> bool:
        """Returns whether a schedule that began before a step has a different end than with a checkpoint's phases."""
        ends = (
            {one.since: each.paced_until(one.since) for one in each.each if one.since < step}
            for each in (_of_content(stored), self)
        )
        return next(ends) != next(ends)


def _of_content(stored: Mapping[str, Any]) -> Phases:
    return Phases(tuple(Phase(**one) for one in stored.get(_STORED, ())) or Phases.each)


NO_PHASES = Phases()


def options_of(segment: Segment) -> dict[str, Any]:
    """Returns the values that a phase sets, by field of `Phase`.

    Raises:
      UsageError: a key is unknown or given twice, or a value is invalid.
    """
    found = dict[str, Any]()
    for part in segment.parts:
        name, is_given, value = (text.strip() for text in part.partition("="))
        where = f"{FLAG}: {segment.start!r}"
        if not part:
            raise UsageError(f"{where}: sets nothing; write a step and its settings, such as 0: freeze=base")
        if name not in KEYS:
            raise unknown(f"{where}: key", name, KEYS)
        if name in found or not (is_given and value):
            raise UsageError(f"{where}: {name} must have one value, such as {name}={_LIKE[name]}")
        found[name] = _READ.get(name, lambda where, text: text)(where, value)
    return found


_LIKE = {"freeze": "base", "learning_rate": "0.001", "schedule": "cosine", "resize": "128x128", "augment": "flip"}


def _rate(where: str, text: str) -> float:
    try:
        rate = float(text)
    except ValueError:
        rate = math.nan
    if not 0 < rate <= _MOST:
        raise UsageError(f"{where}: learning_rate={text}: must be a number above 0")
    return rate


def _size(where: str, text: str) -> str:
    size = values.both_sides(text)  # as checkpoints store and compare it
    parse_size(size, f"{where}: resize")
    return size


def _recipe(where: str, text: str) -> str:
    recipes.check_names(text, f"{where}: augment")
    return text


_READ = {"learning_rate": _rate, "resize": _size, "augment": _recipe}


def _changes(phase: Phase, each: Sequence[Phase]) -> bool:
    """Returns whether a phase differs from the previous one."""
    at = each.index(phase)
    return not at or dataclasses.replace(each[at - 1], start=phase.start) != phase


def _text(each: Sequence[Phase]) -> str:
    return "; ".join(map(str, each))
