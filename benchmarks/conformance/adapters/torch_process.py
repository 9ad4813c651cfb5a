"""Code shared by adapters of PyTorch libraries: the process group, and states in files."""

from __future__ import annotations

from typing import Any


def join(rank: int, ranks: int) -> None:
    """Joins the process group given by torchrun's variables, as a training script does first."""
    import torch.distributed as dist  # noqa: PLC0415

    dist.init_process_group("gloo", rank=rank, world_size=ranks)


def save(state: Any, path: str) -> None:
    """Writes a state as a checkpoint would."""
    import torch  # noqa: PLC0415

    torch.save(state, path)


def load(path: str) -> Any:
    """Loads a state."""
    import torch  # noqa: PLC0415

    return torch.load(path, weights_only=False)
