"""The description of a run, which must be the same on all workers: versions, code, flags, data, order, model."""

from __future__ import annotations

import tensorflow as tf

from pipeline.commands.text import count_of
from pipeline.files.code import code_of_modules, code_of_packages, versions
from pipeline.resolved import ResolvedInput
from trainer.checkpoint import structure
from trainer.checkpoint.resume import data_in_words
from trainer.checkpoint.structure import Structure
from trainer.cluster import algorithms
from trainer.cluster.messages import Description
from trainer.config import TrainConfig
from trainer.config.meaning import fields
from trainer.plan import Plan


def of(config: TrainConfig, plan: Plan) -> Description:
    """Returns the description of a run. A part that may differ because of another one comes after it."""
    gpus = count_of(len(tf.config.list_physical_devices("GPU")), "GPU")
    order = f"an order of digest {plan.training.spec.digest[:12]}"
    chosen = algorithms.in_words(config.run.folder)
    data = {"data": _data(plan.training)}
    if config.data.eval_data_dir is not None and plan.evaluation:  # otherwise they follow from the training data
        [part] = plan.evaluation.values()
        data["evaluation data"] = f"evaluation data of digest {part.manifest.digest[:12]}"
    flags = {**_flags(config), **data, "GPUs": gpus, "algorithms": chosen}
    return [versions(), code_of_packages(), flags, code_of_modules(config.model.modules), {"order": order}]


def of_server(config: TrainConfig) -> Description:
    """Returns the description for a parameter server, which does not read data."""
    return [versions(), _flags(config)]


def of_graph_reader(config: TrainConfig, plan: Plan) -> Description:
    """Returns the description for a worker that runs the chief's graphs, which contain the chief's data path."""
    software, packages, flags, *rest = of(config, plan)
    return [
        software,
        packages,
        {"--data_dir": f"--data_dir={config.data.data_dir}"},
        {**flags, "GPUs": "", "algorithms": ""},
        *rest,
    ]


def model_difference(chief: Structure, other: Structure) -> str | None:
    """Returns how a worker's built model differs from the chief's; None if they agree.

    For example `another model: layer dense: activation gelu, the chief has relu`.
    """
    changes = structure.changes(chief, other)
    if not changes:
        return None
    first = changes[0]
    if first.now is None:
        return f"another model: no {first.what}"
    more = "" if first.was is None else f" {first.now}"
    of_chief = ", which the chief does not have" if first.was is None else f", the chief has {first.was}"
    return f"another model: {first.what}{more}{of_chief}"


def _data(training: ResolvedInput) -> str:
    """Returns a description of the data; for a mixture with splits and rows, which only --data_dir has otherwise."""
    digests = [part.manifest.digest[:12] for part in training.parts]
    if not training.request.is_mixture:
        return f"{data_in_words(training.first)}, a data set of digest {digests[0]}"
    sources = [
        f"{part.spec.global_batch_size} rows of {part.spec.split} of digest {digest}"
        for part, digest in zip(training.parts, digests, strict=True)
    ]
    return f"a mixture of {' and '.join(sources)}"


def _flags(config: TrainConfig) -> dict[str, str]:
    words, logs = dict[str, str](), dict[str, str]()
    for group, field in fields(config):
        name, value = f"--{field.name}", getattr(group, field.name)
        if field.metadata["logs_rows"]:
            logs[name] = name if value else f"no {name}"
        elif not (field.metadata["per_machine"] or field.metadata["per_process"]):  # the cluster itself is compared
            words[name] = f"no {name}" if value is None else f"{name}={value}"
    return {**words, **logs}
