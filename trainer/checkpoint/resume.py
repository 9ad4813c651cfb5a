"""Checks what a checkpoint must share with a run that resumes from it: model, optimizer, order, flags."""

from __future__ import annotations

import dataclasses
import json
import os
from collections.abc import Mapping, Sequence
from typing import Any, Protocol

from pipeline.commands import aliases
from pipeline.commands.text import count_of
from pipeline.errors import UsageError
from pipeline.files import code
from pipeline.order.order import Spec
from pipeline.resolved import ResolvedInput, ResolvedRequest
from trainer.checkpoint import structure as structures
from trainer.checkpoint.structure import Change, Structure
from trainer.config import TrainConfig
from trainer.config.model import FirstWeights, dtype_policy, is_weight_file
from trainer.config.phases import FLAG, Phases
from trainer.config.train_config import changed_flags

_COMPARED_APART = (
    "structure",
    "data",
    "order",
    "config",
    "code",
    "class_names",
    "first_weights",
    "phases",
)  # parts of a checkpoint's content; other parts must be equal
STEP = "step"  # key added to the content of a checkpoint's record
_DIGEST = "manifest_digest"  # field of an order spec; in a mixture after `source 0: `
_SIZE = "record_bytes"  # likewise
_SHAPE = "image_shape"
CLASS_NAMES = "class_names"  # class names of the training data, by number; earlier checkpoints lack them


class State(Protocol):
    """The state to save and restore: `trainer.step.state.TrainState`, which this floor cannot import."""

    @property
    def task(self) -> Any:
        """Task, whose `data` is the DataSpec of the rows."""

    @property
    def model(self) -> Any:
        """The Keras model."""

    @property
    def optimizer(self) -> Any:
        """Optimizer of the model."""

    @property
    def schedule(self) -> Any:
        """Schedule of the learning rate; None if the optimizer is a compiled model's."""

    @property
    def phases(self) -> Phases:
        """Phases: what is frozen, and how fast the rest learns."""

    @property
    def step(self) -> int:
        """The global step."""

    def is_finite(self) -> Any:
        """Returns whether all variables are finite, bool scalar."""

    def trackable(self) -> dict[str, Any]:
        """Returns the variables and objects to save, by name."""


@dataclasses.dataclass(frozen=True, eq=False)
class RunSpec:
    """Model, optimizer, order and flags of a run, to compare with a checkpoint's.

    Attributes:
      state: task, model and optimizer of the run.
      spec: order of its examples.
      config: flags of the run.
      structure: model as built by its code, before a checkpoint restores the optimizer's learning rate.
      data: {digest of a manifest: description of its data set}.
      code: versions, and digests of the source files that compute; see `pipeline.files.code`.
    """

    state: State
    spec: Spec
    config: TrainConfig
    structure: Structure
    data: Mapping[str, str]
    code: Mapping[str, Any]

    @classmethod
    def of(cls, state: State, training: ResolvedInput, config: TrainConfig) -> RunSpec:
        """Returns the spec of a run, before a checkpoint is restored."""
        data = {part.spec.manifest_digest: data_in_words(part) for part in training.parts}
        return cls(
            state, training.spec, config, structures.of(state.model), data, code.of_program(config.model.modules)
        )

    def content(self) -> dict[str, Any]:
        """Returns everything in a checkpoint except variables, as JSON."""
        config, order, data = self.config, self.config.order, self.state.task.data
        shape = getattr(data.features, "shape", None)
        scaling = " with loss scaling" if config.model.precision == "float16" else ""
        compiled, first = self.state.schedule is None, self.state.task.first_weights
        return {
            "model": config.model.task or config.model.model,
            "optimizer": "that of the model" if compiled else config.optimizer.optimizer.partition("(")[0] + scaling,
            _SHAPE: None if shape is None else shape[1:].as_list(),
            "num_classes": len(data.class_names),
            CLASS_NAMES: list(data.class_names),
            "--ema": "set" if config.optimizer.ema else None,
            "--virtual_replicas": order.virtual_replicas,
            **({"--cpu_threads": order.cpu_threads} if order.virtual_replicas else {}),  # then sums' bits depend on it
            "structure": self.structure,
            "data": dict(self.data),
            "first_weights": first and dataclasses.asdict(first),
            **self.state.phases.content(),
            "code": self.code,
            "order": json.loads(self.spec.to_json()),
            "config": dataclasses.asdict(config),
        }

    def check(self, path: str, stored: Mapping[str, Any]) -> None:
        """Raises UsageError if this run cannot resume from a checkpoint.

        Args:
          path: path of the checkpoint.
          stored: content of its record.
        """
        for name, here in self.content().items():
            was = stored.get(name)
            if name not in _COMPARED_APART and was != here:
                before, now = ("unset" if value is None else value for value in (was, here))
                why, helps = self._reshaped(stored, was, here) if name == _SHAPE else ("", "")
                if name == "--ema":
                    helps = " --ema=0," if was is None else f" --ema={stored['config']['optimizer']['ema']:g},"
                what = f"{path} has {name} {before}, this run has {now}{why}"
                raise UsageError(f"{what}; use the old one,{helps} or another --model_dir")
        self._check_first_weights(path, stored)
        past, _ = self.state.phases.changes(stored, stored.get(STEP, 0))
        if past:
            raise UsageError(
                f"{path}: {past}, and the run is past that; use the old phases, which may change from step "
                f"{stored[STEP]} on, or another --model_dir",
                argument=FLAG,
            )
        changed = [change for change in self._model_changes(stored) if not change.is_harmless]
        if changed and not self.config.model.allow_model_change:
            raise UsageError(
                f"{path} has a different model: {structures.in_words(changed)}; go back to the old one, or use another "
                "--model_dir, or accept the new one with --allow_model_change"
            )
        changes = self._order_changes(stored)
        if changes and not self.config.order.allow_order_change:
            raise UsageError(
                f"{path}: the order of examples has changed: {'; '.join(changes)}; use the old values or another "
                "--model_dir, accept the new order with --allow_order_change, or start over with --fresh"
            )

    def _check_first_weights(self, path: str, stored: Mapping[str, Any]) -> None:
        """Raises UsageError if --initialize_from names different weights than the run began with.

        The file itself may be gone, since the checkpoint has the trained weights.
        """
        given, before = self.config.model.initialize_from, stored["config"]["model"].get("initialize_from")
        began = stored.get("first_weights") and FirstWeights(**stored["first_weights"])
        here = FirstWeights.of(given) if given and is_weight_file(given) and os.path.isfile(given) else None
        is_same = here.sha256 == began.sha256 if here and began else given == before
        if is_same or not (is_weight_file(given) or is_weight_file(before)):
            return
        if before is None:
            raise UsageError(
                f"{path}: the run did not begin with --initialize_from={given}; leave it out, or use another "
                "--model_dir"
            )
        now = f"--initialize_from={given} is {here or 'something else'}" if given else "--initialize_from is not given"
        raise UsageError(
            f"{path}: the run began with {began or before}, and {now}; give --initialize_from={before} again (a resume "
            "does not read the file), or another --model_dir"
        )

    def changes(self, stored: Mapping[str, Any]) -> tuple[str, ...]:
        """Returns training options that differ from the stored ones: `--learning_rate was 0.05, is 0.01`."""
        model, flags = map(str, self._model_changes(stored)), changed_flags(stored["config"], self.config)
        skips = self.spec.later_changes(stored["order"], stored[STEP]) if STEP in stored else None
        edited = code.changes(stored.get("code"), self.code)
        later = [*filter(None, (skips, self.state.phases.changes(stored, stored.get(STEP, 0))[1]))]
        return (*self._order_changes(stored), *later, *flags, *model, *edited)

    def take_over(self, stored: Mapping[str, Any]) -> None:
        """Notes the weights that the run began with; resets a compiled model's learning rate if its code changed it.

        The rate is a variable, which restoring the checkpoint has set to the old value.
        """
        if first := stored.get("first_weights"):
            self.state.task.first_weights = FirstWeights(**first)
        for was, here in zip(*map(_rates, (stored.get("structure", {}), self.structure)), strict=False):
            if was != here:
                self.state.optimizer.learning_rate.assign(here)

    def _model_changes(self, stored: Mapping[str, Any]) -> list[Change]:
        if "structure" not in stored:  # earlier checkpoints lack it
            return []
        before = stored["config"]["model"]["precision"]
        both = dtype_policy(before), dtype_policy(self.config.model.precision)
        return structures.changes(stored["structure"], self.structure, both)

    def _order_changes(self, stored: Mapping[str, Any]) -> list[str]:
        changed = self.spec.differences(stored["order"], stored.get(STEP))
        here = {"data": self.data, "config": {"data": {"data_dir": self.config.data.data_dir}}}
        said = []
        for name, (now, was) in changed.items():
            if name.endswith(_DIGEST) and was and now:
                what = f"{name.removesuffix(_DIGEST)}the data"
                said.append(f"{what} was {_data(was, stored)}, is {_data(now, here)}")
            else:
                why = self._flag_behind(stored, "resize") if name.endswith(_SIZE) else ""
                said.append(f"{name} was {_short(was)}, is {_short(now)}{why}")
        if CLASS_NAMES in stored and (other := other_class(stored, self.state.task.data.class_names)):
            said.append("class {} was {!r}, is {!r}".format(*other))
        return said

    def _reshaped(self, stored: Mapping[str, Any], was: Any, here: Any) -> tuple[str, str]:
        """Returns why the image shape differs, and a remedy: the flag that changed, or one that undoes it."""
        why = self._flag_behind(stored, "resize", "augment")
        is_other_size = was and here and len(was) == len(here) == 3 and was[2] == here[2]
        return why, f" --resize={was[0]}x{was[1]}," if is_other_size and not why else ""

    def _flag_behind(self, stored: Mapping[str, Any], *names: str) -> str:
        """Returns text about the first of some flags that has changed; the size alone does not reveal which one."""
        for name in names:
            was, now = aliases.stored(stored["config"]).get(name), getattr(self.config.data, name)
            if was != now:
                return f" (--{name} was {was or 'unset'}, is {now or 'unset'})"
        return ""


def other_class(stored: Mapping[str, Any], names: Sequence[str]) -> tuple[int, str, str] | None:
    """Returns the first class that a checkpoint names differently: its number, its name there and here.

    Unnamed classes, 0 to n - 1, match any names.

    Args:
      stored: content of the checkpoint's record.
      names: class names here, as many as in the checkpoint.
    """
    was, unnamed = stored.get(CLASS_NAMES, []), [*map(str, range(len(names)))]
    if unnamed in (was, [*names]):
        return None
    return next((found for found in zip(range(len(was)), was, names, strict=False) if found[1] != found[2]), None)


def code_changes(stored: Mapping[str, Any], config: TrainConfig) -> list[str]:
    """Returns source files and versions that differ from a checkpoint's run; empty for an old checkpoint.

    Args:
      stored: content of the checkpoint's record.
      config: flags of the run.
    """
    return code.changes(stored.get("code"), code.of_program(config.model.modules))


def data_in_words(part: ResolvedRequest) -> str:
    """Returns a description of a data set: `photos:train, 1,429 records, images upright, exact DCT`."""
    rule = "" if part.manifest.pixel_rule is None else f", {part.manifest.pixel_rule}"
    return f"{part.manifest.dataset}:{part.spec.split}, {count_of(sum(part.order.counts), 'record')}{rule}"


def _data(digest: str, content: Mapping[str, Any]) -> str:
    """Describes the data set with a digest, from a checkpoint's content; old checkpoints only know its folder."""
    words, folder = content.get("data", {}).get(digest), content["config"]["data"]["data_dir"]
    parts = [*([words] if words else []), f"--data_dir={folder}", f"digest {_short(digest)}"]
    return f"{parts[0]} ({', '.join(parts[1:])})"


def _rates(found: Structure) -> list[float]:
    """Returns the learning rate of a compiled model, if it is a number rather than a schedule."""
    configs = found.get("optimizer", {}).values()
    return [one["learning_rate"] for one in configs if isinstance(one.get("learning_rate"), int | float)]


def _short(value: Any) -> str:
    text = str(value)
    return f"{text[:12]}..." if len(text) == 64 else text  # abbreviates a digest
