"""Everything that a user decides about a run: flags in groups, the defaults of each model, the command line."""

from trainer.config.train_config import TrainConfig, parse, values

__all__ = ["TrainConfig", "parse", "values"]
