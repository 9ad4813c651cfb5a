"""The whole config of a run: from the command line, a file, or keywords; checks across groups of flags."""

from __future__ import annotations

import argparse
import contextlib
import dataclasses
import functools
import json
import os
import pathlib
import sys
import types
from collections.abc import Collection, Mapping, Sequence
from typing import Any

from pipeline import order_flags
from pipeline.commands import aliases, commandline
from pipeline.commands.flags import Flag, Mistakes, check_all, check_needs, flags_of, make
from pipeline.errors import DataError, UsageError, unknown
from pipeline.manifest import succession
from pipeline.manifest.sources import VIEWS, own_views, schedule_of
from pipeline.order.views import View
from trainer.config import chosen, file, meaning
from trainer.config.data import DataFlags, OrderFlags
from trainer.config.meaning import (
    MULTIWORKER,
    PARAMETER_SERVER,
    check_apart,
    check_local,
    check_parameter_server,
    fields,
    shapes_training,
)
from trainer.config.model import ModelFlags, OptimizerFlags, compiling, defaults_of, epochs_of
from trainer.config.run import OF_ONE_PROCESS, AggregationFlags, ClusterFlags, RunFlags
from trainer.config.steps import Interval, OutputFlags, StepFlags
from trainer.run_folder import RunFolder, check_file

_DESCRIPTION = (
    "Trains a model on one device or many; resumes where it stopped. --config=FILE.yaml takes flags from a file, which "
    "those of the command line override; --dump_config prints them all, as such a file, and ends. --model_dir "
    "alone resumes the run that is there with its flags."
)
_GIVEN = "_given"  # attribute, not a field: flags given to `TrainConfig.of`
_OF_DATA = "_of_data"  # attribute, not a field: flags that `parse` took from the data set
_INT64 = (1 << 63) - 1  # range of TensorFlow's integers
_DECIDING = (
    *("data_dir", "model_dir", "task", "augment", "train_steps", "eval_data_dir", "strategy", "ps_hosts"),
    *chosen.CHOSEN,
)
_CALLED = {str: "a text", int: "a whole number", float: "a number", bool: "True or False", types.NoneType: "None"}


@dataclasses.dataclass(frozen=True)
class TrainConfig:
    """All flags. The defaults shown are for the model and the optimizer that are named before --help."""

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
        check_all(
            *(self._check_cluster, self._check_aggregation, self._check_parts, self._check_parameter_server),
            *(self._check_virtual_replicas, self._check_headspace, self._check_ranked),
            *(self._check_fresh, self._check_views),
        )

    def _check_views(self) -> None:
        sources, for_all = self.data.sources, {name: getattr(self.order, name) for name in VIEWS}
        if len(sources) > 1:
            sources, for_all = own_views(sources, for_all)
        for source in sources:
            View(**{**for_all, **source.options})

    def _check_virtual_replicas(self) -> None:
        if self.order.virtual_replicas is not None and self.run.strategy == "central_storage":
            raise UsageError(
                f"--virtual_replicas={self.order.virtual_replicas} with --strategy=central_storage: is not supported; "
                "use one_device, mirrored or multiworker"
            )

    def _check_headspace(self) -> None:
        for name, folder in meaning.given(self, "logs_rows").items() if self.output.headspace else ():
            raise UsageError(
                f"--headspace={self.output.headspace} with --{name}={folder}: waiting for input is not measured then; "
                "give one of them"
            )

    def _check_fresh(self) -> None:
        start = self.model.initialize_from
        if self.run.fresh and start is not None:
            folder, weights = os.path.realpath(self.run.model_dir), os.path.realpath(start)
            if os.path.commonpath([folder, weights]) == folder:
                raise UsageError(
                    f"--initialize_from={start} with --fresh: lies in --model_dir={self.run.model_dir}, which is "
                    "emptied first; use another --model_dir"
                )

    def _check_ranked(self) -> None:
        if self.steps.ranks and not self.data.evaluates:
            flag = "keep_best" if self.steps.keep_best else "early_stopping"
            raise UsageError(
                f"--{flag}={getattr(self.steps, flag)} with --eval_split={self.data.eval_split or 'none'}: needs "
                "evaluations to compare; give it a split"
            )

    @classmethod
    def of(cls, **flags: Any) -> TrainConfig:
        """Makes a config from flags: `TrainConfig.of(data_dir="mnist", model_dir="run", model="lenet")`.

        Args:
          **flags: values by name, without dashes; data_dir and model_dir are required and may be pathlib paths.

        Raises:
          UsageError: a flag is unknown or missing, or a value is invalid.
        """
        flags = aliases.renamed(flags, flags_of(cls))
        with Mistakes() as mistakes:
            for name in flags:
                with mistakes.noted():
                    if name not in flags_of(cls):
                        raise unknown("flag", name, flags_of(cls))
            known = {name: value for name, value in flags.items() if name in flags_of(cls)}
            config = cls._of(known, mistakes, _INT64)
            with mistakes.noted():
                config._check_given()
        vars(config)[_GIVEN] = flags
        return config

    def with_code(self, **names: str) -> TrainConfig:
        """Returns the config with a user's model or task; its defaults apply to flags that were not given.

        Args:
          **names: value of `model` or `task`, each as module:name.

        Raises:
          UsageError: a value cannot work.
        """
        if _GIVEN in vars(self):
            return self.of(**{**vars(self)[_GIVEN], **names})
        model: dict[str, Any] = dict(names)
        return dataclasses.replace(self, model=dataclasses.replace(self.model, **model))  # built from all flags

    @property
    def of_data(self) -> str:
        """The flags that the data set determined, for a run's first line; empty if there are none."""
        flags = vars(self).get(_OF_DATA, {})
        return f"chosen for {self.data.data_dir}: " + " ".join(f"--{n}={v}" for n, v in flags.items()) if flags else ""

    @property
    def repeats_on_gpus(self) -> bool:
        """Whether a run on GPUs uses TensorFlow's op determinism and can be repeated bit for bit."""
        return bool(self.run.deterministic or self.order.virtual_replicas)

    def with_mode(self, jit_compile: str) -> TrainConfig:
        """Returns the config with this value of --jit_compile."""
        return dataclasses.replace(self, model=dataclasses.replace(self.model, jit_compile=jit_compile))

    @classmethod
    def _of(cls, flags: Mapping[str, Any], mistakes: Mistakes, most: int | None) -> TrainConfig:
        given = dict[str, Any]()
        for name, value in flags.items():
            with mistakes.noted():
                given[name] = _as_flag(flags_of(cls)[name], value)
        missing = [name for name, flag in flags_of(cls).items() if flag.is_required and name not in flags]
        mistakes.found += [UsageError(f"{name}: is missing") for name in missing]
        model = given.get("model", None if given.get("task") else ModelFlags.model)
        values = {**defaults_of(model, given.get("optimizer"), given.get("augment")), **given}
        return make(cls, values, mistakes, {*missing, *(flags.keys() - given.keys())}, most)

    @classmethod
    def of_stored(cls, groups: Mapping[str, Mapping[str, Any]], **flags: Any) -> TrainConfig:
        """Makes a config from flags by group, as stored in a checkpoint; drops flags that this version lacks.

        Args:
          groups: flags stored by this version or an earlier one.
          **flags: values to use instead of the stored ones.

        Raises:
          UsageError: a value cannot work.
        """
        given = {**aliases.stored(groups), **flags}
        with Mistakes() as mistakes:
            config = cls._of({name: v for name, v in given.items() if name in flags_of(cls)}, mistakes, None)
        return config

    def last_step(self, steps_per_epoch: int) -> int:
        """Returns the global step at which training ends, given T steps per epoch."""
        epochs = self.steps.epochs or epochs_of(self.model.model)
        return self.steps.train_steps or epochs * steps_per_epoch

    def gradients_of_step(self, num_workers: int) -> int:
        """Returns the number of gradients per step in a job with parameter servers.

        Raises:
          UsageError: there are fewer workers, or they cannot share the batch equally.
        """
        flags, rows = self.aggregation, self.order.global_batch_size
        if not flags.sync:
            return 1
        needed = flags.replicas_to_aggregate or num_workers
        if needed > num_workers:
            raise UsageError(
                f"--replicas_to_aggregate={needed}: there are {num_workers} workers; give no more than that"
            )
        if rows % needed:
            raise UsageError(
                f"--global_batch_size={rows} with --sync and {num_workers} workers: each gradient covers an equal part "
                f"of the batch; give a multiple of {needed}, or another --replicas_to_aggregate"
            )
        return needed

    def _check_given(self) -> None:
        """Raises UsageError for values that users must not give but an earlier run may have stored."""
        check_all(
            *(functools.partial(self._check_written, *flag) for flag in fields(self, "writes")),
            *(self._check_evaluated, self._check_compared, self._check_drawn),
        )

    def _check_written(self, group: Any, field: dataclasses.Field[Any]) -> None:
        what = field.metadata["writes"]
        check_local(group, field.name, what=what)
        if what == "folder":
            for name in ("data_dir", "eval_data_dir"):
                check_apart(field.name, getattr(group, field.name), getattr(self.data, name), name)

    def _check_evaluated(self) -> None:
        steps, other = self.steps, self.data.eval_data_dir
        if other is not None and not self.data.evaluates:
            raise UsageError(
                f"--eval_data_dir={other} with --eval_split={self.data.eval_split or 'none'}: there is no evaluation; "
                "give a split of it, or leave out both"
            )
        if other is not None and not other.strip():
            raise UsageError("--eval_data_dir: is empty (a shell variable that is not set?); name a folder")
        if steps.eval_every and not self.data.evaluates:
            raise UsageError(
                f"--eval_every={steps.eval_every} with --eval_split={self.data.eval_split or 'none'}: there is nothing "
                "to evaluate; give --eval_every=0, or a split"
            )

    def _check_compared(self) -> None:
        why = "evaluations are ranked for --keep_best and --early_stopping alone; give one of them, or leave it out"
        check_needs(self.steps, ranks=why)

    def _check_drawn(self) -> None:
        for name, value in meaning.given(self, "draws").items():
            if not (self.steps.summary_every or self.steps.summary_secs):
                raise UsageError(
                    f"--{name}={value} with --summary_every=0: nothing is written for TensorBoard; give --{name}=0, or "
                    "--summary_every=STEPS"
                )

    def _check_cluster(self) -> None:
        strategy, cluster = self.run.strategy, self.cluster
        if not cluster.given:
            return
        if strategy in OF_ONE_PROCESS:
            raise UsageError(
                f"--worker_hosts={cluster.worker_hosts} with --strategy={strategy}: is for --strategy=multiworker and "
                f"{PARAMETER_SERVER}"
            )
        if strategy == MULTIWORKER:
            for name, value in (("ps_hosts", cluster.ps_hosts), ("chief_host", cluster.chief_host)):
                if value:
                    raise UsageError(f"--{name}={value} with --strategy=multiworker: its processes are all workers")
        elif not cluster.ps_hosts:
            raise UsageError(f"--strategy={strategy}: needs --ps_hosts=host:port,... as well as --worker_hosts")

    def _check_aggregation(self) -> None:
        strategy = self.run.strategy
        if self.aggregation.sync and strategy != PARAMETER_SERVER:
            raise UsageError(
                f"--sync with --strategy={strategy}: this strategy is synchronous anyway; leave it out, or use "
                f"--strategy={PARAMETER_SERVER}"
            )

    def _check_parts(self) -> None:
        number, rows = self.aggregation.replicas_to_aggregate, self.order.global_batch_size
        if number and rows % number:
            raise UsageError(
                f"--replicas_to_aggregate={number} with --global_batch_size={rows}: each gradient covers an equal part "
                "of the global batch; give a multiple"
            )

    def _check_parameter_server(self) -> None:
        if self.run.strategy != PARAMETER_SERVER:
            return
        check_all(
            lambda: check_parameter_server(self), self._check_takes_turns, self._check_no_nadam, self._check_shown
        )

    def _check_shown(self) -> None:
        if Interval.of(self.output.histogram_every).is_time:
            raise UsageError(
                f"--histogram_every={self.output.histogram_every} with --strategy={PARAMETER_SERVER}: workers follow "
                "the number of a step, not the chief's clock; give it in steps or epochs"
            )

    def _check_takes_turns(self) -> None:
        turns = schedule_of(self.order.mixture_schedule)
        in_turns = turns and all(sum(weight > 0 for _, weight in weights) == 1 for _, weights in turns)
        if len(self.data.sources) > 1 and not in_turns:
            raise UsageError(
                f"--data_dir={self.data.data_dir} with --strategy={PARAMETER_SERVER}: a step uses one data set; give "
                "--strategy=multiworker for steps of several, or --mixture_schedule with one weight above 0 from each "
                "step on"
            )

    def _check_no_nadam(self) -> None:
        name = self.optimizer.optimizer.partition("(")[0].strip()
        if name == "nadam":
            raise UsageError(
                f"--optimizer={name} with --strategy={PARAMETER_SERVER}: it multiplies a variable once per step, which "
                "several workers would do at once; use adam"
            )


def changed_flags(stored: Mapping[str, Mapping[str, Any]], config: TrainConfig) -> list[str]:
    """Returns `--learning_rate was 0.05, is 0.01` for each changed flag that affects training.

    Args:
      stored: another run's flags by group, from this version or an earlier one; missing flags are not compared.
      config: this run's flags.
    """
    before = aliases.stored(stored)
    if "jit_compile" in before:  # a boolean in earlier versions
        before["jit_compile"] = compiling(before["jit_compile"])
    shaping = [
        (field.name, getattr(group, field.name)) for group, field in fields(config) if shapes_training(group, field)
    ]
    if config.optimizer.ends:
        shaping += [(field.name, getattr(group, field.name)) for group, field in fields(config, "ends")]
    here = json.loads(json.dumps(dict(shaping)))  # as a checkpoint stores them
    return [
        f"--{name} was {_text(before[name])}, is {_text(value)}"
        for name, value in here.items()
        if name in before and before[name] != value
    ]


def _text(value: Any) -> str:
    return "unset" if value is None else str(value)


def parse(argv: Sequence[str] | None, unsettled: Collection[str] = ()) -> TrainConfig:
    """Parses the command line, with the defaults of the model and the optimizer that it names.

    Args:
      argv: command-line arguments; None for the process's own.
      unsettled: flags whose value is not known yet; nothing that depends on them is checked.

    Raises:
      UsageError: flags are unknown, missing, invalid or incompatible; the message lists all of them.
      SystemExit: after --help and --dump_config.
    """
    arguments, dumps = _arguments(argv)
    named = _values_of(arguments, *_DECIDING)
    given = {name: value for name, value in vars(named).items() if value is not None}
    asks = any(token.startswith(("-h", "--help", "--flags")) for token in arguments)
    decides = named.data_dir and chosen.decides(given) and not asks
    of_data = chosen.chosen(named.data_dir, given) if decides else {}
    model = named.model or of_data.get("model", ModelFlags.model)
    optimizer = named.optimizer or of_data.get("optimizer")
    defaults = {**defaults_of(None if named.task and not named.model else model, optimizer, named.augment), **of_data}
    if named.ps_hosts:  # it has no meaning with another strategy
        defaults = {**defaults, "strategy": PARAMETER_SERVER}
    config = commandline.parse(
        "trainer.run",
        _DESCRIPTION,
        TrainConfig,
        arguments,
        {**defaults, "model": model},
        check=TrainConfig._check_given,
        unsettled=unsettled,
        most=_INT64,
    )
    vars(config)[_OF_DATA] = of_data
    if dumps and not unsettled:
        print(file.text_of(dataclasses.asdict(config)), end="", flush=True)
        sys.exit(0)
    return config


def values(argv: Sequence[str] | None, *names: str) -> dict[str, str]:
    """Returns the text of some flags on the command line, even if other flags are wrong.

    Raises:
      UsageError: the file given by --config cannot be used.
    """
    return {name: value for name, value in vars(_values_of(_arguments(argv)[0], *names)).items() if value is not None}


def _arguments(argv: Sequence[str] | None) -> tuple[list[str], bool]:
    """Returns the arguments, preceded by the flags in --config, and whether --dump_config is among them.

    If neither data nor a file is given, the stored flags of the run in --model_dir come first, except for this
    process's place in its cluster.
    """
    given = commandline.with_folder(sys.argv[1:] if argv is None else argv, flags_of(TrainConfig))
    aliases.check_arguments(given)  # before a file's flags are added, which may use the other name
    given = aliases.arguments(given, flags_of(TrainConfig))
    arguments, dumps = file.taken_out(given, flags_of(TrainConfig))
    named = _values_of(arguments, *_DECIDING)
    if named.data_dir and named.model_dir is None and (beside := chosen.run_beside(named.data_dir)):
        named.model_dir = beside
        arguments.append(f"--model_dir={beside}")
    has_file = any(token.split("=")[0] == "--config" for token in given)
    folder = RunFolder(pathlib.Path(named.model_dir or "").expanduser())
    if named.data_dir and "--fresh" not in arguments and folder.config.is_file():
        decided = {name: value for name, value in vars(named).items() if value is not None}
        if chosen.decides(decided):
            arguments = [*chosen.of_run(folder, decided, flags_of(TrainConfig)), *arguments]
    if named.data_dir is None and named.model_dir and not has_file:
        stored = folder.config
        check_file(stored)
        if stored.is_file():
            places = tuple(f"--{field.name}=" for field in dataclasses.fields(ClusterFlags))
            of_run = [one for one in _led(folder) if not one.startswith(places)]
            if "ema" in defaults_of(_values_of(of_run, "model").model):
                of_run.insert(0, "--ema=0")  # the run may be older than this default
            arguments = [*of_run, *arguments]
    return arguments, dumps


def _led(folder: RunFolder) -> list[str]:
    """Returns the stored flags of a run as arguments; relative paths still point to where they did when it began."""
    stored = list(file.flags(folder.config, flags_of(TrainConfig)))
    values = {name.removeprefix("--"): value for name, _, value in (one.partition("=") for one in stored)}
    order: dict[str, Any] = {}
    with contextlib.suppress(DataError):  # an earlier version wrote none
        order = order_flags.order_in(folder.order)
    written = [name for name, flag in flags_of(TrainConfig).items() if flag.field.metadata["writes"]]
    now = succession.pinned(values, order, folder.path, {*written} - {"model_dir"})
    return [f"--{name}={now[name] or ''}" for name in values]


def _values_of(arguments: Sequence[str], *names: str) -> argparse.Namespace:
    parser = argparse.ArgumentParser(add_help=False, allow_abbrev=False)
    for name in names:
        parser.add_argument(*commandline.names_of(flags_of(TrainConfig)[name]), nargs="?")
    return parser.parse_known_args(arguments)[0]


def _as_flag(flag: Flag, given: Any) -> Any:
    """Converts a value to its flag's type as stored in checkpoints: paths to text, NumPy numbers to Python's."""
    kinds = (flag.kind, types.NoneType) if flag.is_optional else (flag.kind,)
    value = os.fspath(given) if isinstance(given, os.PathLike) else given
    numpy = sys.modules.get("numpy")  # a value of NumPy's type can only exist if it is loaded
    if numpy is not None and isinstance(value, numpy.generic):
        value = value.item()
    if parse := flag.field.metadata.get("parse"):
        try:
            return parse(value)
        except ValueError as error:
            raise UsageError(f"{flag.name}={given!r}: {error}") from None
    if type(value) is int and float in kinds:
        return float(value)
    if type(value) is float and int in kinds and value.is_integer():
        return int(value)
    if type(value) not in kinds:  # nor a subclass, which YAML does not write
        known = " or ".join(_CALLED[one] for one in kinds)
        raise UsageError(f"{flag.name}={given!r}: must be {known}; got {type(given).__name__}")
    return value
