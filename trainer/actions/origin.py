"""What a checkpoint belongs to: model, optimizer, order of examples, all flags."""

from __future__ import annotations

import dataclasses
import json
from typing import Any

from pipeline.errors import UsageError
from pipeline.order.mixture_spec import Spec
from trainer.config import TrainConfig
from trainer.config.changes import changed_flags
from trainer.step.state import TrainState


@dataclasses.dataclass(frozen=True, eq=False)
class Origin:
    """What a run trains, to be compared with what a checkpoint has been trained with.

    Attributes:
      state: of the run.
      spec: of its order of examples.
      config: all flags.
    """

    state: TrainState
    spec: Spec
    config: TrainConfig

    def content(self) -> dict[str, Any]:
        """Returns what a checkpoint stores, as JSON."""
        config, data = self.config, self.state.task.data
        shape = getattr(data.features, "shape", None)
        scaling = " with loss scaling" if config.model.precision == "float16" else ""
        compiled = self.state.schedule is None
        return {
            "model": config.model.task or config.model.model,
            "optimizer": "that of the model" if compiled else config.optimizer.optimizer.partition("(")[0] + scaling,
            "image_shape": None if shape is None else shape[1:].as_list(),
            "num_classes": len(data.class_names),
            "--ema": None if config.optimizer.ema is None else "set",
            **self._same_bits(),
            "order": json.loads(self.spec.to_json()),
            "config": dataclasses.asdict(config),
        }

    def check(self, path: str, stored: dict[str, Any]) -> None:
        """Raises UsageError where a checkpoint with such a content cannot be resumed by this run."""
        for name, here in self.content().items():
            was = stored.get(name, stored.get(name.removeprefix("--")))  # without -- in earlier versions
            if name not in ("order", "config") and was != here:
                before, now = ("unset" if value is None else value for value in (was, here))
                raise UsageError(
                    f"{path} has {name} {before}, this run has {now}; use the old one, or another --model_dir"
                )
        changes = self._order_changes(stored)
        if changes and not self.config.order.allow_order_change:
            raise UsageError(
                f"{path}: the order of examples has changed: {'; '.join(changes)}; use the old values, or another "
                "--model_dir, or accept the new order with --allow_order_change"
            )

    def changes(self, stored: dict[str, Any]) -> tuple[str, ...]:
        """Returns which training options have changed since: `--learning_rate was 0.05, is 0.01`."""
        return (*self._order_changes(stored), *changed_flags(stored.get("config", {}), self.config))

    def _same_bits(self) -> dict[str, Any]:
        """Returns the flags that the bits of the sums depend on."""
        order = self.config.order
        threads = {"--cpu_threads": order.cpu_threads} if order.virtual_replicas else {}
        return {"--virtual_replicas": order.virtual_replicas, **threads}

    def _order_changes(self, stored: dict[str, Any]) -> list[str]:
        changed = self.spec.differences(stored.get("order", {}))
        return [f"{name} was {_short(was)}, is {_short(now)}" for name, (now, was) in changed.items()]


def _short(value: Any) -> str:
    text = str(value)
    return f"{text[:12]}..." if len(text) == 64 else text  # a digest
