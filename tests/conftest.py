"""Four logical CPUs, so that strategies of up to four replicas are real on any machine."""

import gc
import os
import sys

import pytest

LOGICAL_DEVICES = 4
COLLECTED_EVERY = 20_000  # new objects; at Python's 700, looking for garbage takes 6% of the time of building graphs

pytest_plugins = ["tests.processor_time"]

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")


def pytest_collection_finish(session: pytest.Session) -> None:
    """Configures TensorFlow once, before its runtime starts, where the selected tests have imported it."""
    del session
    if "tensorflow" in sys.modules:
        import tensorflow as tf

        cpus = tf.config.list_physical_devices("CPU")
        devices = [tf.config.LogicalDeviceConfiguration()] * LOGICAL_DEVICES
        tf.config.set_logical_device_configuration(cpus[0], devices)
    gc.freeze()  # what is loaded stays
    gc.set_threshold(COLLECTED_EVERY)
