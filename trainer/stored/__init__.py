"""Checkpoints, seen from outside the run that writes them: found, read, loaded into a model."""
