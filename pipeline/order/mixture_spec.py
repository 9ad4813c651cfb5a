"""The order spec of a mixture: what a checkpoint compares of each source."""

from __future__ import annotations

import dataclasses
import hashlib
import json
from typing import Any, TypeAlias

from pipeline.order.order import OrderSpec

MIXTURE_VERSION = 1  # of the rules here, in `pipeline.mixture` and in `pipeline.batch.compose`


@dataclasses.dataclass(frozen=True)
class MixtureSpec:
    """The arguments of the order of several sources: those of each, whose `global_batch_size` is its share.

    Attributes:
      parts: in the order of the sources.
    """

    parts: tuple[OrderSpec, ...]

    @property
    def global_batch_size(self) -> int:
        """G."""
        return sum(part.global_batch_size for part in self.parts)

    def to_json(self) -> str:
        """Returns the spec as one line of JSON with sorted keys."""
        return json.dumps(self._fields(), sort_keys=True)

    @property
    def digest(self) -> str:
        """SHA-256 of `to_json()`, hexadecimal."""
        return hashlib.sha256(self.to_json().encode()).hexdigest()

    def differences(self, other: dict[str, Any]) -> dict[str, tuple[Any, Any]]:
        """Returns {field: (here, other's)} of the fields in which a stored spec differs."""
        mine = self._fields()
        if other.get("sources", 1) != mine["sources"]:
            return {"sources": (mine["sources"], other.get("sources", 1))}
        fields = sorted(mine.keys() | other.keys())
        return {name: (mine.get(name), other.get(name)) for name in fields if mine.get(name) != other.get(name)}

    def _fields(self) -> dict[str, Any]:
        each = {
            f"source {number}: {name}": value
            for number, part in enumerate(self.parts)
            for name, value in dataclasses.asdict(part).items()
        }
        return {"mixture_version": MIXTURE_VERSION, "sources": len(self.parts), **each}


Spec: TypeAlias = OrderSpec | MixtureSpec
