"""What the converter says at its end."""

from __future__ import annotations

import shlex

from pipeline.manifest import Manifest


def summary(made: Manifest, data_dir: str, writing_seconds: float, total_seconds: float) -> str:
    """Returns a few lines for a person: what was written, how fast, where, and the next commands.

    Args:
      made: the manifest that was published.
      data_dir: the folder, as the user named it.
      writing_seconds: from the start of the Beam pipeline to its end.
      total_seconds: from the start of the command.
    """
    lines = []
    for name, split in sorted(made.splits.items(), key=lambda item: -item[1].num_examples):
        lines.append(f"  {name}: {split.num_examples} examples, {len(split.shards)} shards, {_size(split.num_bytes)}")
    examples = sum(split.num_examples for split in made.splits.values())
    rate = examples / max(writing_seconds, 1e-9)
    lines.append(f"  {writing_seconds:.1f} s, {rate:,.0f} examples/s ({total_seconds:.1f} s with start-up and checks)")
    folder = shlex.quote(data_dir)
    model = "cifar10_cnn" if made.image_shape[-1] == 3 else "lenet"
    lines.append(f"look at it:  python -m pipeline.inspect {folder}")
    run = shlex.quote(f"{data_dir.rstrip('/')}-run")
    command = f"python -m trainer.run --data_dir={folder} --model_dir={run} --model={model} --strategy=mirrored"
    lines.append(f"train on it: {command}")
    return "\n".join([f"{made.dataset} is in {data_dir}:", *lines])


def _size(num_bytes: int) -> str:
    return f"{num_bytes / (1 << 20):.1f} MiB"
