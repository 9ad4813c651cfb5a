import pytest
import tensorflow as tf

from pipeline.bench import devices
from pipeline.errors import UsageError

on_cpus = pytest.mark.skipif(bool(tf.config.list_physical_devices("GPU")), reason="for machines without a GPU")


@on_cpus
@pytest.mark.parametrize("replicas", [None, 1])
def test_one_replica_on_a_cpu_needs_no_strategy(replicas):
    assert devices.strategy_of(replicas, 8) is None
    assert devices.names_of(None) == ["CPU:0"]


@on_cpus
def test_more_replicas_are_logical_cpus():
    strategy = devices.strategy_of(2, 8)
    assert devices.names_of(strategy) == ["CPU:0", "CPU:1"]
    with pytest.raises(UsageError, match="--replicas=8: this process has already split its CPU into 4"):
        devices.strategy_of(8, 8)
