"""The whole config of a run: from the command line, a file, or keywords."""

from __future__ import annotations

import argparse
import dataclasses
import functools
import re
import sys
import typing
from collections.abc import Mapping, Sequence
from typing import Any

from pipeline.commands import commandline
from pipeline.errors import UsageError, unknown
from trainer.config import file, together
from trainer.config.flags.aggregation import AggregationFlags
from trainer.config.flags.cluster import ClusterFlags
from trainer.config.flags.data import DataFlags
from trainer.config.flags.model import ModelFlags
from trainer.config.flags.optimizer import OptimizerFlags
from trainer.config.flags.order import OrderFlags
from trainer.config.flags.output import OutputFlags
from trainer.config.flags.run import PARAMETER_SERVER, RunFlags
from trainer.config.flags.steps import StepFlags
from trainer.config.model_defaults import DEFAULT_EPOCHS, MODEL_DEFAULTS, OWN_EPOCHS, defaults_of
from trainer.config.values import as_flag

_DESCRIPTION = (
    "Trains a model on one device or many; resumes where it stopped. --config=FILE.yaml takes flags from a file, which "
    "those of the command line override; --dump_config prints them all, as such a file, and ends."
)
_GIVEN = "_given"  # no field: the flags that `TrainConfig.of` was given
_ALIAS = re.compile(r"^--task_id(?==|$)")  # of the classic examples


@dataclasses.dataclass(frozen=True)
class TrainConfig:
    """All flags. The defaults shown are those of the model and the optimizer that are named before --help."""

    data: DataFlags
    run: RunFlags
    model: ModelFlags
    optimizer: OptimizerFlags
    order: OrderFlags
    steps: StepFlags
    output: OutputFlags
    cluster: ClusterFlags
    aggregation: AggregationFlags

    def __post_init__(self) -> None:
        """Checks values of several groups together."""
        together.check_cluster(self.run.strategy, self.cluster)
        together.check_aggregation(self.run.strategy, self.aggregation, self.order.global_batch_size)
        if self.run.strategy == PARAMETER_SERVER:
            together.check_parameter_server(self)
        if self.order.virtual_replicas is not None and self.run.strategy == "central_storage":
            raise UsageError(
                f"--virtual_replicas={self.order.virtual_replicas} with --strategy=central_storage: is not supported; "
                "use one_device, mirrored or multiworker"
            )

        if self.output.headspace and self.run.log_keys:
            raise UsageError(
                f"--headspace={self.output.headspace} with --log_keys={self.run.log_keys}: waiting for input is not "
                "measured then; give one of them"
            )
        if self.steps.ranks and not self.data.evaluates:
            flag = "keep_best" if self.steps.keep_best else "early_stopping"
            raise UsageError(
                f"--{flag}={getattr(self.steps, flag)} with --eval_split={self.data.eval_split or 'none'}: needs "
                "evaluations to compare; give it a split"
            )

    @classmethod
    def of(cls, **flags: Any) -> TrainConfig:
        """Returns the config of some flags: `TrainConfig.of(data_dir="mnist", model_dir="run", model="lenet")`.

        Args:
          **flags: by name, without the dashes; data_dir and model_dir are required, and may be of pathlib.

        Raises:
          UsageError: an unknown flag, a missing one, or a value that cannot work.
        """
        for name in flags:
            if name not in _groups_of_flags():
                raise unknown("flag", name, _groups_of_flags())
        config = cls._of(flags)
        together.check_given(config)
        vars(config)[_GIVEN] = flags
        return config

    def with_code(self, **names: str) -> TrainConfig:
        """Returns the config with a model or task of one's own, and the defaults of such where no flags were given.

        Args:
          **names: `model`, `task`: module and name, as these flags take them.

        Raises:
          UsageError: a value cannot work.
        """
        if _GIVEN in vars(self):
            return self.of(**{**vars(self)[_GIVEN], **names})
        model: dict[str, Any] = dict(names)
        return dataclasses.replace(self, model=dataclasses.replace(self.model, **model))  # all of it was given

    @classmethod
    def _of(cls, flags: Mapping[str, Any]) -> TrainConfig:
        given = {name: as_flag(name, value, _types_of_flags()[name]) for name, value in flags.items()}
        model = given.get("model", None if given.get("task") else ModelFlags.model)
        values = {**defaults_of(model, given.get("optimizer")), **given}
        for name in ("data_dir", "model_dir"):
            if name not in values:
                raise UsageError(f"{name}: is missing")
        return cls(
            **{
                name: kind(
                    **{field.name: values[field.name] for field in dataclasses.fields(kind) if field.name in values}
                )
                for name, kind in _groups().items()
            }
        )

    @classmethod
    def of_stored(cls, groups: Mapping[str, Mapping[str, Any]], **flags: Any) -> TrainConfig:
        """Returns the config of flags by group, as a checkpoint holds them, without those that this version lacks.

        Args:
          groups: of this version or an earlier one.
          **flags: other values of some flags.

        Raises:
          UsageError: a value cannot work.
        """
        stored = {name: value for group in groups.values() for name, value in group.items()}
        return cls._of({name: v for name, v in {**stored, **flags}.items() if name in _groups_of_flags()})

    def last_step(self, steps_per_epoch: int) -> int:
        """Returns the global step at which training ends, given T."""
        epochs = self.steps.epochs or DEFAULT_EPOCHS.get(self.model.model, OWN_EPOCHS)
        return self.steps.train_steps or epochs * steps_per_epoch


def parse(argv: Sequence[str] | None) -> TrainConfig:
    """Returns the config of the command line; its defaults are those of the model and the optimizer that it names.

    Raises:
      UsageError: an unknown flag or a value that cannot work.
      SystemExit: after --help and --dump_config.
    """
    arguments, dumps = _arguments(argv)
    named = _values_of(arguments, "model", "task", "optimizer")
    model = named.model or ModelFlags.model
    if model not in MODEL_DEFAULTS and ":" not in model:
        raise unknown("--model", model, MODEL_DEFAULTS)
    defaults = defaults_of(named.model or (None if named.task else model), named.optimizer)
    config = commandline.parse(
        "trainer.run", _DESCRIPTION, TrainConfig, arguments, _by_group({**defaults, "model": model})
    )
    together.check_given(config)
    if dumps:
        print(file.text_of(dataclasses.asdict(config)), end="", flush=True)
        sys.exit(0)
    return config


def values(argv: Sequence[str] | None, *names: str) -> dict[str, str]:
    """Returns the values of some flags of the command line as text, also where others cannot be used.

    Raises:
      UsageError: the file of --config cannot be used.
    """
    return {name: value for name, value in vars(_values_of(_arguments(argv)[0], *names)).items() if value is not None}


def _arguments(argv: Sequence[str] | None) -> tuple[list[str], bool]:
    """Returns the arguments with those of --config, and whether --dump_config is one."""
    given = [_ALIAS.sub("--task_index", token) for token in (sys.argv[1:] if argv is None else argv)]
    return file.taken_out(given, _groups_of_flags())


def _values_of(arguments: Sequence[str], *names: str) -> argparse.Namespace:
    parser = argparse.ArgumentParser(add_help=False, allow_abbrev=False)
    for name in names:
        parser.add_argument(f"--{name}", nargs="?")
    return parser.parse_known_args(arguments)[0]


def _by_group(flags: Mapping[str, Any]) -> dict[str, dict[str, Any]]:
    """Returns all defaults by group: these, and otherwise those of the flags."""
    return {
        name: {
            field.name: flags.get(field.name, field.default)
            for field in dataclasses.fields(group)
            if field.name in flags or field.default is not dataclasses.MISSING
        }
        for name, group in _groups().items()
    }


@functools.cache
def _groups() -> Mapping[str, Any]:
    return typing.get_type_hints(TrainConfig)


@functools.cache
def _groups_of_flags() -> dict[str, str]:
    """Returns the group of each flag, by its name."""
    return {field.name: name for name, kind in _groups().items() for field in dataclasses.fields(kind)}


@functools.cache
def _types_of_flags() -> dict[str, Any]:
    """Returns the type of each flag, by its name."""
    return {name: kind for group in _groups().values() for name, kind in typing.get_type_hints(group).items()}
