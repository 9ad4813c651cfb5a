"""One of two workers that sum gradients: prints as JSON the seconds for a model's gradients, and for a small one.

TF_CONFIG=... python -m benchmarks.scaling.exchange [flags of trainer.run]
"""

from __future__ import annotations

import json
import math
import sys

from benchmarks import inputs, loops


def main() -> None:
    """Prints `{"bytes": ..., "all": seconds, "small": seconds}`."""
    made = loops.make([*sys.argv[1:], "--strategy=multiworker"])
    tf = inputs.load_tensorflow()
    from trainer.callbacks.bottleneck import exchange_seconds  # noqa: PLC0415

    variables = made.stepper.state.model.trainable_variables
    sizes = [math.prod(variable.shape) for variable in variables]
    small = [variables[sizes.index(min(sizes))]]
    seconds = [exchange_seconds(made.strategy, some, tf.float32) for some in (variables, small)]
    print(json.dumps({"bytes": 4 * sum(sizes), "all": seconds[0], "small": seconds[1]}), flush=True)


if __name__ == "__main__":
    main()
