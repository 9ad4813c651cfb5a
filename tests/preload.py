"""What the server of `tests.forked` loads before it forks: modules alone; no operation of TensorFlow has run."""

import gc
import sys

import apache_beam  # noqa: F401

_HIDDEN = ("matplotlib", "sklearn", "jax")  # as `trainer.run` hides them
sys.modules.update(dict.fromkeys(_HIDDEN))
import keras  # noqa: E402, F401

for _package in _HIDDEN:
    del sys.modules[_package]

import beam_jobs.conversion.job  # noqa: E402, F401
import pipeline.batch.compose  # noqa: E402, F401
import trainer.training  # noqa: E402, F401

gc.collect()
gc.freeze()  # so that a child's collector copies none of these objects' pages
gc.set_threshold(20_000)  # as in tests/conftest.py
