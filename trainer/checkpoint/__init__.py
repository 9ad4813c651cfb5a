"""Checkpoints: saving, restoring and pruning them, checks on resume, and reading them without a run."""

from pipeline.errors import DataError


class NotFiniteError(DataError):
    """A loss or a weight is NaN or infinite, so the state is not saved."""
