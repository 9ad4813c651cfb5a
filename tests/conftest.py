"""One environment for all tests, and four logical CPUs, so that strategies of up to four replicas are real anywhere."""

import contextlib
import ctypes
import gc
import importlib
import logging
import os
import sys
from collections.abc import Iterator

import pytest
from hypothesis import HealthCheck, settings

import tests.startup.sitecustomize  # noqa: F401
from tests import environment
from tests.helpers import lanes

LOGICAL_DEVICES = 4
COLLECTED_EVERY = 20_000  # new objects; at Python's 700, looking for garbage takes 6% of the time of building graphs

pytest_plugins = ["tests.helpers.processor_time"]

environment.make()

# A test that takes long on a busy machine is not wrong.
settings.register_profile("busy", deadline=None, suppress_health_check=[HealthCheck.too_slow])
settings.load_profile("busy")


def pytest_configure(config: pytest.Config) -> None:
    """Hides GPUs from all processes of the tests, whose replicas are logical CPUs; `-m gpu` runs the GPU tests."""
    lanes.configure(config.getoption("markexpr"))
    if config.getoption("markexpr") != "gpu":
        os.environ["CUDA_VISIBLE_DEVICES"] = "-1"


def pytest_sessionstart(session: pytest.Session) -> None:
    """Has each worker of xdist load its share of the modules first: the others then find them compiled."""
    if worker := getattr(session.config, "workerinput", None):
        folders = [session.config.invocation_params.dir / arg for arg in session.config.args]
        files = sorted(path for folder in folders for path in folder.rglob("test_*.py"))
        for path in files[int(worker["workerid"].removeprefix("gw")) :: worker["workercount"]]:
            with contextlib.suppress(Exception, pytest.skip.Exception):  # which the collection will meet again
                importlib.import_module(".".join(path.relative_to(session.config.rootpath).with_suffix("").parts))


@pytest.hookimpl(tryfirst=True)  # before tests that are not selected are dropped
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Marks all but COUNT evenly spaced cases of a test with the mark `quick(COUNT)` as slow.

    They are chosen among the cases that are not marked as slow by themselves.
    """
    cases: dict[str, list[pytest.Item]] = {}
    for item in items:
        if item.get_closest_marker("quick") and not item.get_closest_marker("slow"):
            cases.setdefault(item.nodeid.partition("[")[0], []).append(item)
    for found in cases.values():
        count = found[0].get_closest_marker("quick").args[0]
        taken = {number * (len(found) - 1) // max(count - 1, 1) for number in range(count)}
        for number, item in enumerate(found):
            if number not in taken:
                item.add_marker("slow")


def pytest_runtest_setup(item: pytest.Item) -> None:
    """Skips the GPU tests if there is no GPU."""
    if item.get_closest_marker("gpu"):
        import tensorflow as tf

        if not tf.config.list_physical_devices("GPU"):
            pytest.skip("needs a GPU, and make test-gpu")


def pytest_collection_finish(session: pytest.Session) -> None:
    """Configures TensorFlow once, before its runtime starts, where the selected tests have imported it."""
    del session
    if "tensorflow" in sys.modules:
        import tensorflow as tf

        cpus = tf.config.list_physical_devices("CPU")
        devices = [tf.config.LogicalDeviceConfiguration()] * LOGICAL_DEVICES
        tf.config.set_logical_device_configuration(cpus[0], devices)
    gc.freeze()  # loaded modules stay
    gc.set_threshold(COLLECTED_EVERY)


@pytest.fixture(autouse=True)
def _warnings_are_logged() -> None:
    """Sets the root logger's level back, which a conversion by an earlier test of this process leaves above all."""
    logging.getLogger().setLevel(logging.WARNING)


@pytest.fixture(scope="module", autouse=True)
def _graphs_are_freed() -> Iterator[None]:
    """Frees the graphs of a module's tests; TensorFlow would keep graphs that contain an all-reduce.

    In a graph, `ReplicaContext.all_reduce` is a `tf.custom_gradient`. TensorFlow registers the gradient of each under a
    name that nothing removes, and the gradient holds the graph, with all its functions. What XLA compiled stays in any
    case: TensorFlow keeps about 1.7 MB for a function of 60 operations until the process ends, used again or not.
    """
    yield
    if "tensorflow" in sys.modules:
        from tensorflow.python.framework import ops

        gradients = ops.gradient_registry._registry
        for name in [name for name in gradients if name.startswith("CustomGradient-")]:
            del gradients[name]
        gc.collect()
        gc.freeze()  # freezes what is left: scanning it again takes 0.6 s after each of 200 modules
        if sys.platform == "linux":
            ctypes.CDLL(None).malloc_trim(0)  # XLA's compiler leaves free pages in the heaps of its threads
