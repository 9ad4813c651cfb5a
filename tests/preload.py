"""What the server of `tests.forked` loads before it forks: modules alone; no operation of TensorFlow has run.

AutoGraph has rewritten the packages' functions, too, which takes 2 s in a process that trains: only source is read.
"""

import gc
import inspect
import sys
import types
from collections.abc import Iterator

import apache_beam  # noqa: F401

sys.modules.update(dict.fromkeys(("matplotlib", "sklearn")))  # Keras would load these too; `trainer.run` hides them so
import keras  # noqa: E402, F401
from tensorflow.python.autograph.core import converter  # noqa: E402
from tensorflow.python.autograph.impl import api  # noqa: E402

for _package in ("matplotlib", "sklearn"):
    del sys.modules[_package]

import beam_jobs.conversion.job  # noqa: E402, F401
import pipeline.batch.compose  # noqa: E402, F401
import trainer.training  # noqa: E402, F401

TRACED = ("pipeline.order.order", "pipeline.order.hashing_tf", "pipeline.batch.", "trainer.step", "trainer.state")


def functions(module: types.ModuleType) -> Iterator[types.FunctionType]:
    """Yields a module's own functions and methods."""
    for holder in (module, *(kind for _, kind in inspect.getmembers(module, inspect.isclass))):
        for _, function in inspect.getmembers(holder, inspect.isfunction):
            if function.__module__ == module.__name__ and not inspect.isgeneratorfunction(function):
                yield function


def rewrite_with_autograph() -> None:
    """Fills AutoGraph's cache with the functions that datasets and steps call, as one that calls them does."""
    program = converter.ProgramContext(converter.STANDARD_OPTIONS.call_options())
    for name, module in list(sys.modules.items()):
        if name.startswith(TRACED):
            for function in functions(module):
                try:
                    api._convert_actual(function, program)
                except Exception:
                    continue


rewrite_with_autograph()
gc.collect()
gc.freeze()  # so that a child's collector copies none of these objects' pages
