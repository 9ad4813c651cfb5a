"""PyTorch on this input: tensors in the batches' own memory, a resume by the step, ranks by `Shard`.

`torch.from_dlpack` copies nothing: its address is the batch's. Started by torchrun, each rank feeds its rows of the
global batch to DistributedDataParallel, whose mean over ranks is the mean over the real rows (weights="mean").

    python examples/pytorch_loop.py --data_dir=demo/digits --state=demo/torch.pt --steps=100
    torchrun --nproc_per_node=2 examples/pytorch_loop.py --data_dir=demo/digits --state=demo/ddp.pt --steps=100
"""

import argparse
import json
import os
import pathlib
import sys

from pipeline import Shard, input_fn, manifest, order_spec
from pipeline.errors import PipelineError, UsageError

parser = argparse.ArgumentParser(description="A PyTorch loop with exact resume, alone or under torchrun.")
parser.add_argument("--data_dir", required=True, help="made by beam_jobs.convert")
parser.add_argument("--state", required=True, help="the file that holds weights, optimizer, step and order")
parser.add_argument("--steps", type=int, default=100, help="where training ends")
parser.add_argument("--global_batch_size", type=int, default=64)
args = parser.parse_args()

import torch._dynamo  # before TensorFlow: it loads Triton, whose LLVM aborts if TensorFlow's is already loaded

# isort: split
import numpy as np
import tensorflow as tf
import torch
from torch import distributed, nn

tf.config.set_visible_devices([], "GPU")  # TensorFlow only feeds: the GPUs are PyTorch's
RANK, RANKS = int(os.environ.get("RANK", "0")), int(os.environ.get("WORLD_SIZE", "1"))


def load(path: pathlib.Path, spec, model: nn.Module, optimizer: torch.optim.Optimizer) -> int:
    """Restores the state, if any, and returns the step to resume at."""
    if not path.exists():
        return 0
    saved = torch.load(path)
    changed = spec.differences(json.loads(saved["order"]))
    if changed:  # resuming in another order would repeat some records and skip others
        raise UsageError(f"{path}: saved with another order of examples, as (now, saved): {changed}")
    model.load_state_dict(saved["model"])
    optimizer.load_state_dict(saved["optimizer"])
    return saved["step"]


def save(path: pathlib.Path, spec, model: nn.Module, optimizer: torch.optim.Optimizer, step: int) -> None:
    """Writes the state atomically."""
    path.parent.mkdir(parents=True, exist_ok=True)
    new = path.with_name(f"new-{path.name}")
    state = {"model": model.state_dict(), "optimizer": optimizer.state_dict()}
    torch.save({**state, "step": step, "order": spec.to_json()}, new)
    os.replace(new, path)


def main() -> None:
    """Trains up to --steps, resuming from --state."""
    what = {"data_dir": args.data_dir, "global_batch_size": args.global_batch_size, "training": True}
    spec, data, path = order_spec(**what), manifest.load(args.data_dir), pathlib.Path(args.state)
    torch.manual_seed(0)
    model = nn.Sequential(nn.Flatten(), nn.Linear(int(np.prod(data.image_shape)), 64), nn.ReLU())
    model.append(nn.Linear(64, len(data.class_names)))
    optimizer = torch.optim.Adam(model.parameters())
    start = load(path, spec, model, optimizer)
    batches = input_fn(**what, start_step=start, shard=Shard(RANK, RANKS), augment="shift", weights="mean")
    if RANKS > 1:
        distributed.init_process_group("gloo")
    trained = nn.parallel.DistributedDataParallel(model) if RANKS > 1 else model
    for step, batch in zip(range(start, args.steps), batches, strict=False):
        images, labels, weights = tensors = [torch.from_dlpack(tensor) for tensor in batch]
        copied = sum(t.data_ptr() != np.asarray(b).ctypes.data for t, b in zip(tensors, batch, strict=True))
        loss = (nn.functional.cross_entropy(trained(images), labels, reduction="none") * weights).mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        mean = loss.detach() / RANKS
        if RANKS > 1:
            distributed.all_reduce(mean)
        if RANK == 0:
            print(f"step {step}: loss {mean.item():.9g}, rank 0 has {len(images)} rows, {copied} copied", flush=True)
            if (step + 1) % 10 == 0 or step + 1 == args.steps:
                save(path, spec, model, optimizer, step + 1)
    if RANKS > 1:
        distributed.destroy_process_group()


if __name__ == "__main__":
    try:
        main()
    except PipelineError as error:
        print(f"pytorch_loop: {error}", file=sys.stderr)
        sys.exit(error.exit_code)
