"""What a resumed run trains with that its checkpoint did not."""

from __future__ import annotations

import dataclasses
import json
from typing import Any

from trainer.config.flags.optimizer import ENDING
from trainer.config.train_config import TrainConfig

# These groups say where, how long and in which order a run trains, and what it writes. None but the order shapes it; a
# checkpoint compares the order itself, which names what the flags come to.
_OTHER_GROUPS = ("run", "steps", "output", "order", "cluster")
# The order names the data, which a cache copies; an evaluation trains nothing; a changed model names its changes.
_OTHER_FLAGS = ("data_dir", "train_split", "eval_split", "cache_dir", "cache_bytes", "allow_model_change")


def changed_flags(stored: dict[str, dict[str, Any]], config: TrainConfig) -> list[str]:
    """Returns `--learning_rate was 0.05, is 0.01` for each flag that shapes the training and has changed.

    Args:
      stored: another run's flags by group, of this version or an earlier one; a flag that is not there is not compared.
      config: this run's flags.
    """
    before = {name: value for flags in stored.values() for name, value in flags.items()}
    here = json.loads(json.dumps(dataclasses.asdict(config)))
    shaping = [flags for group, flags in here.items() if group not in _OTHER_GROUPS]
    if config.optimizer.schedule in ENDING:
        shaping.append({name: here["steps"][name] for name in ("train_steps", "epochs")})
    return [
        f"--{name} was {_text(before[name])}, is {_text(value)}"
        for flags in shaping
        for name, value in flags.items()
        if name not in _OTHER_FLAGS and name in before and before[name] != value
    ]


def _text(value: Any) -> str:
    return "unset" if value is None else str(value)
