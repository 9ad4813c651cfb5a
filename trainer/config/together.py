"""What values of several groups of flags rule out together."""

from __future__ import annotations

import dataclasses
from typing import TYPE_CHECKING

from pipeline.errors import UsageError
from pipeline.manifest.sources import parse_sources
from trainer.config.flags.aggregation import AggregationFlags
from trainer.config.flags.checks import check_apart, check_local, check_most
from trainer.config.flags.cluster import ClusterFlags
from trainer.config.flags.run import PARAMETER_SERVER

if TYPE_CHECKING:
    from trainer.config.train_config import TrainConfig

_OF_CLUSTERS = ("multiworker", PARAMETER_SERVER)
_INT64 = (1 << 63) - 1  # TensorFlow's whole numbers
_FLOAT32 = 3.4e38  # the largest number of a weight
_SECONDS = 10**9  # 31 years; the clocks of TensorFlow and of threads overflow with more
# What a flag may be at most. An earlier run may have stored more: its checkpoints can be read.
_MOST: dict[str, float] = {
    **{"train_steps": 10**12, "epochs": 10**9},  # more than any training takes; their products fit into 64 bits
    **{"steps_per_loop": 10**6, "headspace": 10**6},  # a signal waits for the end of a loop
    **{"prefetch": 1024, "cpu_threads": 1024, "num_replicas": 1024},  # each takes memory, or is a thread or a device
    **{"join_timeout": _SECONDS, "collective_timeout": _SECONDS},
    **dict.fromkeys(("learning_rate", "decay_factor", "clip_norm", "weight_decay", "end_factor"), _FLOAT32),
}


def check_given(config: TrainConfig) -> None:
    """Raises UsageError where a user gives what cannot work; a config that an earlier run has stored may have it."""
    check_local(config.run, "model_dir", "log_keys")
    check_local(config.output, "metrics_jsonl", what="file")
    check_apart("model_dir", config.run.model_dir, config.data.data_dir)
    check_apart("log_keys", config.run.log_keys, config.data.data_dir)
    for group in (getattr(config, field.name) for field in dataclasses.fields(config)):
        for name, value in vars(group).items():
            if name in _MOST or isinstance(value, int):
                check_most(group, _MOST.get(name, _INT64), name)
    _check_used(config)


def _check_used(config: TrainConfig) -> None:
    """Raises UsageError where a flag has no effect beside the others."""
    steps, output = config.steps, config.output
    if steps.eval_every and not config.data.evaluates:
        raise UsageError(
            f"--eval_every={steps.eval_every} with --eval_split={config.data.eval_split or 'none'}: there is nothing "
            "to evaluate; give --eval_every=0, or a split"
        )
    for name in ("best_metric", "best_mode"):
        value = getattr(steps, name)
        if value and value != getattr(type(steps), name) and not steps.ranks:
            raise UsageError(
                f"--{name}={value}: evaluations are ranked for --keep_best and --early_stopping alone; give one of "
                f"them, or leave --{name} out"
            )
    for name in ("histogram_every", "image_every"):
        value = getattr(output, name)
        if value and not (steps.summary_every or steps.summary_secs):
            raise UsageError(
                f"--{name}={value} with --summary_every=0: nothing is written for TensorBoard; give --{name}=0, or "
                "--summary_every=STEPS"
            )


def check_cluster(strategy: str, flags: ClusterFlags) -> None:
    """Raises UsageError where the flags of a cluster do not fit the strategy."""
    if not flags.given:
        return
    if strategy not in _OF_CLUSTERS:
        raise UsageError(
            f"--worker_hosts={flags.worker_hosts} with --strategy={strategy}: is for --strategy=multiworker and "
            f"{PARAMETER_SERVER}"
        )
    if strategy == "multiworker":
        for name, value in (("ps_hosts", flags.ps_hosts), ("chief_host", flags.chief_host)):
            if value:
                raise UsageError(f"--{name}={value} with --strategy=multiworker: its processes are all workers")
    elif not flags.ps_hosts:
        raise UsageError(f"--strategy={strategy}: needs --ps_hosts=host:port,... as well as --worker_hosts")


def check_aggregation(strategy: str, flags: AggregationFlags, global_batch_size: int) -> None:
    """Raises UsageError where gradients cannot come together as the flags say."""
    if flags.sync and strategy != PARAMETER_SERVER:
        raise UsageError(
            f"--sync with --strategy={strategy}: this strategy is synchronous anyway; leave it out, or use "
            f"--strategy={PARAMETER_SERVER}"
        )
    if flags.replicas_to_aggregate and global_batch_size % flags.replicas_to_aggregate:
        raise UsageError(
            f"--replicas_to_aggregate={flags.replicas_to_aggregate} with --global_batch_size={global_batch_size}: each "
            "gradient is of an equal part of the global batch; give a multiple"
        )


def check_parameter_server(config: TrainConfig) -> None:
    """Raises UsageError where a flag has no meaning, or is not supported, with parameter servers."""
    order, output, run = config.order, config.output, config.run
    unsupported: dict[str, tuple[object, str]] = {
        "virtual_replicas": (order.virtual_replicas, "what is summed first depends on which worker is first"),
        "log_keys": (run.log_keys, "is not supported; the ledger at the end of the run says which steps were applied"),
        "profile": (output.profile, "is not supported; profile a run with --strategy=one_device"),
        "histogram_every": (output.histogram_every, "is not supported; use --strategy=one_device or mirrored"),
        "image_every": (output.image_every, "is not supported; use --strategy=one_device or mirrored"),
        "headspace": (output.headspace, "is not supported; use --strategy=one_device or mirrored"),
        "prefetch": (order.prefetch != type(order).prefetch and str(order.prefetch), "a batch is made with its step"),
        "cache_dir": (config.data.cache_dir, "workers read with TensorFlow's own operations, which use no cache"),
        "deterministic": (run.deterministic, "the order in which workers' gradients are applied is not determined"),
    }
    for name, (value, why) in unsupported.items():
        if value:
            raise UsageError(f"--{name}={value} with --strategy={PARAMETER_SERVER}: {why}")
    if not isinstance(parse_sources(config.data.data_dir), str):
        raise UsageError(
            f"--data_dir={config.data.data_dir} with --strategy={PARAMETER_SERVER}: trains on one data set; use "
            "--strategy=multiworker for several"
        )
    if config.data.on_corrupt == "skip":
        raise UsageError(
            f"--on_corrupt=skip with --strategy={PARAMETER_SERVER}: workers read with TensorFlow's own operations, "
            "which skip nothing; repair the data (python -m beam_jobs.validate)"
        )
    if config.model.precision == "float16":
        raise UsageError(
            f"--precision=float16 with --strategy={PARAMETER_SERVER}: the loss scale would be changed by several "
            "workers at once; use bfloat16"
        )
    name = config.optimizer.optimizer.partition("(")[0].strip()
    if name == "nadam":
        raise UsageError(
            f"--optimizer={name} with --strategy={PARAMETER_SERVER}: it multiplies a variable once per step, which "
            "several workers would do at once; use adam"
        )
