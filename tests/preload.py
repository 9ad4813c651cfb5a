"""What the server of `tests.forked` loads before it forks: modules alone; no operation of TensorFlow has run."""

import gc
import sys

import apache_beam  # noqa: F401

sys.modules.update(dict.fromkeys(("matplotlib", "sklearn")))  # Keras would load these too; `trainer.run` hides them so
import keras  # noqa: E402, F401

for _package in ("matplotlib", "sklearn"):
    del sys.modules[_package]

import beam_jobs.conversion.job  # noqa: E402, F401
import pipeline.batch.compose  # noqa: E402, F401
import trainer.training  # noqa: E402, F401

gc.collect()
gc.freeze()  # so that a child's collector copies none of these objects' pages
