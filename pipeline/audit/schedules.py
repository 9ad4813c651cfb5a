"""Proves that a schedule hands out each source's units one after another, and the same ones to all replicas.

The content of a unit follows from the source's own order, which `pipeline.audit.proof` proves. This module restates the
rules of docs/views.md plainly and shares no code with `pipeline.order.shares`, which `input_fn` uses.
"""

from __future__ import annotations

import dataclasses
import functools
import math
from collections.abc import Sequence
from fractions import Fraction

import numpy as np

from pipeline.audit.proof import Check, Fault
from pipeline.commands.text import count_of
from pipeline.order.reading import Topology
from pipeline.order.shares import Shares, rows_in_blocks, segments_text
from pipeline.resolved import ResolvedInput

_NEAR = 3  # steps compared before and after a change
_FAR = 1 << 40  # a step after all changes


@dataclasses.dataclass(frozen=True)
class Plan:
    """The units of its sources that each step must take.

    Attributes:
      global_batch_size: G.
      weights: (first step, weight of each source) of each segment.
    """

    global_batch_size: int
    weights: tuple[tuple[int, tuple[float, ...]], ...]

    @classmethod
    def of(cls, mixture: ResolvedInput) -> Plan:
        """Returns the plan for a request with a schedule."""
        segments = mixture.request.schedule
        weights = tuple((first, tuple(weight for _, weight in named)) for first, named in segments)
        return cls(mixture.request.global_batch_size, weights)

    @functools.cached_property
    def rows(self) -> list[tuple[int, ...]]:
        """Rows of each source in each segment: rounded down, and the rest given to the largest remainders."""
        found = []
        for _, weights in self.weights:
            exact = [Fraction(str(float(weight))) for weight in weights]
            quotas = [self.global_batch_size * weight / sum(exact) for weight in exact]
            rows = [math.floor(quota) for quota in quotas]
            while sum(rows) < self.global_batch_size:
                rows[max(range(len(rows)), key=lambda i: (quotas[i] - rows[i], -i))] += 1
            found.append(tuple(rows))
        return found

    @functools.cached_property
    def unit(self) -> int:
        """U, the greatest common divisor of all these numbers of rows."""
        rows = {count for of_segment in self.rows for count in of_segment if count}
        return next(unit for unit in range(min(rows), 0, -1) if not any(count % unit for count in rows))

    def segment(self, step: int) -> int:
        """Returns the number of the segment that a step is in."""
        return max(number for number, (first, _) in enumerate(self.weights) if first <= step)

    def units(self, step: int) -> list[list[int]]:
        """Returns the units of each source that a step takes: the next ones not taken by earlier steps."""
        here, found = self.segment(step), []
        for source, rows in enumerate(self.rows[here]):
            taken = (step - self.weights[here][0]) * (rows // self.unit)
            for number in range(here):
                length = self.weights[number + 1][0] - self.weights[number][0]
                taken += length * (self.rows[number][source] // self.unit)
            found.append(list(range(taken, taken + rows // self.unit)))
        return found


def checks(mixture: ResolvedInput, topologies: Sequence[Topology]) -> list[Check]:
    """Returns checks of a mixture's schedule with the job's topologies and with others to compare."""
    plan, shares = Plan.of(mixture), mixture.request.shares
    first = topologies[0]
    same = [f"; every global batch is the same on {one} as on {first}" if one != first else "" for one in topologies]
    return [
        ("each step's rows are split over the weights of its segment", lambda: _check_rows(plan, shares)),
        ("each source continues in its own units across every change", lambda: _check_units(plan, shares)),
        *(
            (
                f"every row is of one unit, and every replica has as many rows of it ({topology}){text}",
                functools.partial(_check_replicas, plan, topology),
            )
            for topology, text in zip(topologies, same, strict=True)
        ),
    ]


def _check_rows(plan: Plan, shares: Shares) -> str:
    for (first, found), wanted in zip(shares.segments, plan.rows, strict=True):
        if found != wanted:
            raise Fault(f"from step {first} on, the sources have {found} rows, and must have {wanted}")
    for unit in shares.units:
        if unit != plan.unit:
            raise Fault(f"a unit has {unit} rows, and must have {plan.unit}")
    return f"{segments_text(shares.segments)}; units of {count_of(plan.unit, 'row')}"


def _check_units(plan: Plan, shares: Shares) -> str:
    changes = [first for first, _ in plan.weights] + [_FAR]
    steps = sorted({max(0, change + i) for change in changes for i in range(-_NEAR, _NEAR + 1)})
    for step in steps:
        found = shares.units_at(step)
        wanted = [(source, number) for source, units in enumerate(plan.units(step)) for number in units]
        if found != wanted:
            raise Fault(f"step {step}: (source, unit) is {_different(found, wanted)}")
        # A run that resumes here reads each source from its next unit on, for as many units as the rest of the segment
        # takes.
        resumed, stop, each = shares.between(step, step + 1)[0]
        for source, units in enumerate(plan.units(step)):
            begin, end = (shares.units_before(source, one) for one in (resumed, stop))
            if (list(range(begin, end)), each[source]) != (units, len(units)):
                raise Fault(f"a run that resumes at step {step} takes units {begin} to {end - 1} of source {source}")
    count = len(plan.weights) - 1
    return f"{len(steps)} steps compared, around {count_of(count, 'change')}, and as many runs that resume there"


def _check_replicas(plan: Plan, topology: Topology) -> str:
    for number, (first, _) in enumerate(plan.weights):
        count = sum(plan.rows[number]) // plan.unit
        # Block i is row i of each unit, one after another.
        wanted = np.arange(plan.unit)[None] * count + np.arange(count)[:, None]
        own = plan.unit // topology.workers
        each = np.array(rows_in_blocks([own] * count))
        for worker in range(topology.workers):
            begin = worker * plan.global_batch_size // topology.workers
            wrong = np.argwhere(each + begin != wanted[:, worker * own : (worker + 1) * own])
            for unit, row in wrong[:1].tolist():
                raise Fault(
                    f"from step {first} on: row {worker * own + row} of unit {unit} of a step is at another row"
                )
        replica_of = wanted * topology.replicas // plan.global_batch_size
        for unit in range(count):
            if (np.bincount(replica_of[unit], minlength=topology.replicas) * topology.replicas != plan.unit).any():
                raise Fault(f"from step {first} on: replicas have different numbers of rows of unit {unit} of a step")
    each_has = plan.unit // topology.replicas
    return (
        f"rows 0 to {plan.global_batch_size - 1:,} of each segment, {count_of(each_has, 'row')} of a unit per replica"
    )


def _different(found: Sequence[tuple[int, int]], wanted: Sequence[tuple[int, int]]) -> str:
    if len(found) != len(wanted):
        return f"one of {len(found)}, and must be one of {len(wanted)}"
    return next(f"{one}, and must be {other}" for one, other in zip(found, wanted, strict=True) if one != other)


def span_text(mixture: ResolvedInput, source: int, epoch: int) -> str:
    """Returns text that names the steps of a run that take an epoch of a source."""
    shares, steps = mixture.request.shares, mixture.parts[source].order.steps_per_epoch
    ends = [shares.step_of_unit(source, unit) for unit in (epoch * steps, (epoch + 1) * steps - 1)]
    unit = count_of(shares.units[source], "row")
    if ends[0] is None:
        return f"its steps here are units of {unit}; the run never takes its epoch {epoch}"
    last = f"to {ends[1]:,}" if ends[1] is not None else "on, which the run never ends"
    return f"its steps here are units of {unit}; its epoch {epoch} is in the run's steps {ends[0]:,} {last}"
