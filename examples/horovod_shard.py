"""Independent processes that share one global batch, as under Horovod or MPI: no TensorFlow strategy, no communication.

Each process gives its rank and gets its rows of every global batch. With 1, 2 or 4 of them the rows of a step form the
same global batch, and each record occurs once per epoch. Real work would all-reduce gradients after each batch.

    for rank in 0 1; do python examples/horovod_shard.py --data_dir=demo/digits --rank=$rank --size=2 & done; wait
    mpirun -np 2 python examples/horovod_shard.py --data_dir=demo/digits
"""

import argparse
import os
import sys

from pipeline import Shard, input_fn
from pipeline.errors import PipelineError


def from_environment(name: str, default: str) -> str:
    """Returns RANK or SIZE as Horovod or Open MPI sets it for a process."""
    return os.environ.get(f"HOROVOD_{name}", os.environ.get(f"OMPI_COMM_WORLD_{name}", default))


parser = argparse.ArgumentParser(description="One of several processes that share the global batch.")
parser.add_argument("--data_dir", required=True, help="made by beam_jobs.convert")
parser.add_argument("--rank", type=int, default=from_environment("RANK", "0"), help="default: HOROVOD_RANK, or MPI's")
parser.add_argument("--size", type=int, default=from_environment("SIZE", "1"), help="default: HOROVOD_SIZE, or MPI's")
parser.add_argument("--steps", type=int, default=23)
parser.add_argument("--start_step", type=int, default=0)
parser.add_argument("--global_batch_size", type=int, default=64)


def main() -> None:
    """Prints this rank's record ids of each step."""
    args = parser.parse_args()
    batches = input_fn(
        args.data_dir,
        global_batch_size=args.global_batch_size,
        training=True,
        start_step=args.start_step,
        shard=Shard(args.rank, args.size),
        augment="shift",
        record_ids=True,
    )
    steps = range(args.start_step, args.start_step + args.steps)
    for step, (_, _, weights, records) in zip(steps, batches.as_numpy_iterator(), strict=False):
        real = " ".join(map(str, records[weights > 0]))  # the rest are copies that fill an epoch's last batch
        print(f"step {step} rank {args.rank} of {args.size}: {real}", flush=True)


if __name__ == "__main__":
    try:
        main()
    except PipelineError as error:
        print(f"horovod_shard: {error}", file=sys.stderr)
        sys.exit(error.exit_code)
