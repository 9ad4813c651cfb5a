"""The files that a model is exported to: a module each, with `FILE` and `write`."""
