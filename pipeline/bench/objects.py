"""The result as one JSON object."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from typing import Any

from pipeline.bench import tables
from pipeline.bench.result import Result
from pipeline.bench.stages import SECTIONS, Stage
from pipeline.resolved import ResolvedRequest

_MICRO, _MB = 1e6, 1e6


def as_object(
    result: Result, resolved: ResolvedRequest, devices: Sequence[str], cores: int, source: str
) -> dict[str, Any]:
    """Returns what `tables` prints, as JSON can hold it; the arguments are as there."""
    spec, request = resolved.spec, resolved.request
    return {
        "dataset": resolved.manifest.dataset,
        "images": resolved.order.num_records,
        "spec": dataclasses.asdict(spec),
        "distort": request.distort,
        "distort_on": request.distort_on,
        "resize": list(request.size) if request.size else None,
        "windows": resolved.order.windows,
        "devices": list(devices),
        "cores": cores,
        "read_from": source,
        "stages": [_stage(result, stage) for stage in result.stages],
        "sections": {SECTIONS[part]: dataclasses.asdict(spread) for part, spread in result.sections.items()},
        "images_per_second": dataclasses.asdict(result.rate),
        "processor_us_per_image": dataclasses.asdict(result.processor),
        "busy_share": result.busy,
        "bound": {"stage": result.bound, "by_processor": result.is_processor_bound, "reason": tables.reason(result)},
    }


def _stage(result: Result, stage: Stage) -> dict[str, Any]:
    cost = result.costs.get(stage.name)
    if cost is None:
        return {"stage": stage.name, "occurs": "absent", "note": stage.note}
    took = cost.processor.median
    rate = _MICRO / took if took else None
    return {
        "stage": stage.name,
        "occurs": "once" if stage.once else "each epoch",
        "note": stage.note,
        "processor_us_per_image": dataclasses.asdict(cost.processor),
        "clock_us_per_image": dataclasses.asdict(cost.clock),
        "share": None if stage.once else cost.share,
        "images_per_second_per_core": rate,
        "megabytes_per_second_per_core": rate * stage.row_bytes / _MB if rate and stage.row_bytes else None,
    }
