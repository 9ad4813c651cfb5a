"""Batches as NumPy arrays in the tensors' own memory, for a loop without any framework; the step is the whole state.

`np.asarray(tensor)` copies nothing (`tensor.numpy()` would): its address is the one that DLPack gives for the tensor.
The arrays are read-only and keep their memory alive. Killed or not, the next run resumes after the last saved step.

    python examples/numpy_iteration.py --data_dir=demo/digits --state=demo/numpy.json --steps=30
"""

import argparse
import json
import os
import pathlib
import sys

import numpy as np

from pipeline import input_fn, order_spec
from pipeline.errors import PipelineError, UsageError

parser = argparse.ArgumentParser(description="NumPy batches without a copy; the step is the state.")
parser.add_argument("--data_dir", required=True, help="made by beam_jobs.convert")
parser.add_argument("--state", required=True, help="the file that holds the step and the order")
parser.add_argument("--steps", type=int, default=30, help="where the run ends")
parser.add_argument("--global_batch_size", type=int, default=64)


def load(path: pathlib.Path, spec) -> int:
    """Returns the step to resume at: 0 if nothing is saved."""
    if not path.exists():
        return 0
    saved = json.loads(path.read_text())
    changed = spec.differences(saved["order"])
    if changed:  # the rest of another order would repeat records and leave others out
        raise UsageError(f"{path}: saved with another order of examples, as (now, saved): {changed}")
    return saved["step"]


def save(path: pathlib.Path, spec, step: int) -> None:
    """Writes the state atomically."""
    path.parent.mkdir(parents=True, exist_ok=True)
    new = path.with_name(f"new-{path.name}")
    new.write_text(json.dumps({"step": step, "order": json.loads(spec.to_json())}))
    os.replace(new, path)


def main() -> None:
    """Prints the record ids of every batch up to --steps."""
    args = parser.parse_args()
    state = pathlib.Path(args.state)
    what = {"data_dir": args.data_dir, "global_batch_size": args.global_batch_size, "training": True}
    spec = order_spec(**what)
    start = load(state, spec)
    dataset = input_fn(**what, start_step=start, distort="shift", record_ids=True)
    for step, tensors in zip(range(start, args.steps), dataset, strict=False):
        images, _labels, weights, records = arrays = [np.asarray(tensor) for tensor in tensors]
        copied = sum(a.ctypes.data != np.from_dlpack(t).ctypes.data for a, t in zip(arrays, tensors, strict=True))
        real = " ".join(map(str, records[weights > 0]))  # the rest are copies that fill an epoch's last batch
        print(f"step {step}: images {images.shape} {images.dtype}, {copied} arrays copied, records {real}", flush=True)
        if (step + 1) % 10 == 0 or step + 1 == args.steps:
            save(state, spec, step + 1)


if __name__ == "__main__":
    try:
        main()
    except PipelineError as error:
        print(f"numpy_iteration: {error}", file=sys.stderr)
        sys.exit(error.exit_code)
