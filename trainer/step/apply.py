"""What follows the sum of the gradients: clipping, the optimizer, the average; equal on all replicas."""

from __future__ import annotations

import dataclasses

import tensorflow as tf

from trainer.step.state import TrainState
from trainer.topology import without_all_reduce


@dataclasses.dataclass(frozen=True, eq=False)
class Update:
    """Applies summed gradients.

    Attributes:
      state: what is trained.
      clip_norm: the most that the norm of all gradients together may be; None: anything.
    """

    state: TrainState
    clip_norm: float | None

    def __post_init__(self) -> None:
        """Has the optimizer take gradients as they are, instead of adding those of all replicas once more."""
        without_all_reduce(getattr(self.state.optimizer, "inner_optimizer", self.state.optimizer))

    def apply(self, gradients: list[tf.Tensor]) -> list[tf.Tensor]:
        """Changes the weights, in a replica context.

        Args:
          gradients: per trainable variable, the sum over all replicas, times the loss scale.

        Returns:
          The gradients, without the scale and before they are clipped.
        """
        scale = self.state.loss_scale()
        plain = gradients if scale is None else [gradient / scale for gradient in gradients]
        clipped = self.clipped(plain)
        scaled = clipped if scale is None else [gradient * scale for gradient in clipped]
        self.state.optimizer.apply(scaled, self.state.model.trainable_variables)
        return plain

    def clipped(self, gradients: list[tf.Tensor]) -> list[tf.Tensor]:
        """Returns gradients, or these in other pieces, such that the norm of all together is at most the given one."""
        return gradients if self.clip_norm is None else tf.clip_by_global_norm(gradients, self.clip_norm)[0]
