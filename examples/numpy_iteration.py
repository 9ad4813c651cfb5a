"""Batches as NumPy arrays in the tensors' own memory, for a loop without any framework; the step is the whole state.

`StepIterator` copies nothing: the arrays are read-only views that keep the memory of their batch alive. Killed or not,
the next run resumes after the last saved step.

    python examples/numpy_iteration.py --data_dir=demo/digits --state=demo/numpy.json --steps=30
"""

import argparse
import json
import os
import pathlib
import sys

from pipeline.errors import PipelineError, UsageError

parser = argparse.ArgumentParser(description="NumPy batches without a copy; the step is the state.")
parser.add_argument("--data_dir", required=True, help="made by beam_jobs.convert")
parser.add_argument("--state", required=True, help="the file that holds the step and the order")
parser.add_argument("--steps", type=int, default=30, help="where the run ends")
parser.add_argument("--global_batch_size", type=int, default=64)
args = parser.parse_args()

from pipeline import StepIterator  # after parsing, so that --help is fast


def restore(batches: StepIterator, path: pathlib.Path) -> None:
    """Continues at the saved step; another order would repeat some records and skip others."""
    try:
        batches.set_state(json.loads(path.read_text()))
    except UsageError as error:
        raise UsageError(f"{path}: {error}") from None


def save(batches: StepIterator, path: pathlib.Path) -> None:
    """Writes the state atomically."""
    path.parent.mkdir(parents=True, exist_ok=True)
    new = path.with_name(f"new-{path.name}")
    new.write_text(json.dumps(batches.get_state()))
    os.replace(new, path)


def main() -> None:
    """Prints the record ids of every batch up to --steps."""
    path, what = pathlib.Path(args.state), {"global_batch_size": args.global_batch_size, "training": True}
    batches = StepIterator(args.data_dir, **what, augment="shift", record_ids=True)
    if path.exists():
        restore(batches, path)
    for step in range(batches.step, args.steps):
        images, _labels, weights, records = arrays = next(batches)
        copied = sum(array.flags.owndata for array in arrays)
        real = " ".join(map(str, records[weights > 0]))  # the rest are copies that fill an epoch's last batch
        print(f"step {step}: images {images.shape} {images.dtype}, {copied} arrays copied, records {real}", flush=True)
        if (step + 1) % 10 == 0 or step + 1 == args.steps:
            save(batches, path)


if __name__ == "__main__":
    try:
        main()
    except PipelineError as error:
        print(f"numpy_iteration: {error}", file=sys.stderr)
        sys.exit(error.exit_code)
