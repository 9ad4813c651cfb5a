"""What the server of `forked` loads before it forks: modules alone; no operation of TensorFlow has run."""

import gc

import tests.startup.sitecustomize  # noqa: F401, before what loads TensorFlow

# isort: split
import apache_beam  # noqa: F401

import beam_jobs.conversion.job  # noqa: F401
import pipeline.batch.compose  # noqa: F401
import trainer.training  # noqa: F401

gc.collect()
gc.freeze()  # so that a child's collector copies none of these objects' pages
gc.set_threshold(20_000)  # as in tests/conftest.py
