"""What a checkpoint belongs to: the model and its structure, optimizer, order of examples, all flags."""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Mapping
from typing import Any

from pipeline.errors import UsageError
from pipeline.order.mixture_spec import Spec
from trainer.config import TrainConfig
from trainer.config.changes import changed_flags
from trainer.step.state import TrainState, policy
from trainer.stored import structure as structures
from trainer.stored.structure import Change

_DIGEST = "manifest_digest"  # the field of an order spec, in a mixture after `source 0: `
_SIZE = "record_bytes"  # likewise


@dataclasses.dataclass(frozen=True, eq=False)
class Origin:
    """What a run trains, to be compared with what a checkpoint has been trained with.

    Attributes:
      state: of the run.
      spec: of its order of examples.
      config: all flags.
      structure: of the model as its code makes it, before a checkpoint restores the optimizer's rate.
      data: what is read, in words, by the digest of its manifest.
    """

    state: TrainState
    spec: Spec
    config: TrainConfig
    structure: structures.Structure
    data: Mapping[str, str]

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
            "structure": self.structure,
            "data": dict(self.data),
            "order": json.loads(self.spec.to_json()),
            "config": dataclasses.asdict(config),
        }

    def check(self, path: str, stored: dict[str, Any]) -> None:
        """Raises UsageError where a checkpoint with such a content cannot be resumed by this run."""
        for name, here in self.content().items():
            was = stored.get(name, stored.get(name.removeprefix("--")))  # without -- in earlier versions
            if name not in ("structure", "data", "order", "config") and was != here:
                before, now = ("unset" if value is None else value for value in (was, here))
                raise UsageError(
                    f"{path} has {name} {before}, this run has {now}; use the old one, or another --model_dir"
                )
        changed = [change for change in self._model_changes(stored) if not change.is_harmless]
        if changed and not self.config.model.allow_model_change:
            raise UsageError(
                f"{path} is of another model: {structures.in_words(changed)}; go back to the old one, or use another "
                "--model_dir, or accept the new one with --allow_model_change"
            )
        changes = self._order_changes(stored)
        if changes and not self.config.order.allow_order_change:
            raise UsageError(
                f"{path}: the order of examples has changed: {'; '.join(changes)}; use the old values, or another "
                "--model_dir, or accept the new order with --allow_order_change"
            )

    def changes(self, stored: dict[str, Any]) -> tuple[str, ...]:
        """Returns which training options have changed since: `--learning_rate was 0.05, is 0.01`."""
        model, flags = map(str, self._model_changes(stored)), changed_flags(stored.get("config", {}), self.config)
        return (*self._order_changes(stored), *flags, *model)

    def keep_rate(self, stored: dict[str, Any]) -> None:
        """Sets the learning rate of a compiled model to its code's, where that has changed since a checkpoint.

        The rate is a variable, so the checkpoint has restored the old one.
        """
        for was, here in zip(*map(_rates, (stored.get("structure", {}), self.structure)), strict=False):
            if was != here:
                self.state.optimizer.learning_rate.assign(here)

    def _model_changes(self, stored: dict[str, Any]) -> list[Change]:
        """Returns in what the model has changed; nothing of a checkpoint of a version that did not store it."""
        if "structure" not in stored:
            return []
        before = stored.get("config", {}).get("model", {}).get("precision")
        both = (policy(before), policy(self.config.model.precision)) if before else None
        return structures.changes(stored["structure"], self.structure, both)

    def _same_bits(self) -> dict[str, Any]:
        """Returns the flags that the bits of the sums depend on."""
        order = self.config.order
        threads = {"--cpu_threads": order.cpu_threads} if order.virtual_replicas else {}
        return {"--virtual_replicas": order.virtual_replicas, **threads}

    def _order_changes(self, stored: dict[str, Any]) -> list[str]:
        changed = self.spec.differences(stored.get("order", {}))
        here = {"data": self.data, "config": {"data": {"data_dir": self.config.data.data_dir}}}
        said = []
        for name, (now, was) in changed.items():
            if name.endswith(_DIGEST) and was and now:
                what = f"{name.removesuffix(_DIGEST)}the data"
                said.append(f"{what} was {_data(was, stored)}, is {_data(now, here)}")
            else:
                why = self._resized(stored) if name.endswith(_SIZE) else ""
                said.append(f"{name} was {_short(was)}, is {_short(now)}{why}")
        return said

    def _resized(self, stored: dict[str, Any]) -> str:
        """Returns the flag behind another size of the records, which nobody would know it by."""
        was = stored.get("config", {}).get("data", {}).get("resize")
        now = self.config.data.resize
        return "" if was == now else f" (--resize was {was or 'unset'}, is {now or 'unset'})"


def _data(digest: str, content: Mapping[str, Any]) -> str:
    """Returns in words what has a digest, by the content of a checkpoint, which may be of an earlier version."""
    words = content.get("data", {}).get(digest)
    folder = content.get("config", {}).get("data", {}).get("data_dir")
    parts = [*([words] if words else []), *([f"--data_dir={folder}"] if folder else []), f"digest {_short(digest)}"]
    return f"{parts[0]} ({', '.join(parts[1:])})" if len(parts) > 1 else parts[0]


def _rates(found: structures.Structure) -> list[float]:
    """Returns the learning rate of a compiled model, if it is a number, not a schedule."""
    configs = found.get("optimizer", {}).values()
    return [one["learning_rate"] for one in configs if isinstance(one.get("learning_rate"), int | float)]


def _short(value: Any) -> str:
    text = str(value)
    return f"{text[:12]}..." if len(text) == 64 else text  # a digest
