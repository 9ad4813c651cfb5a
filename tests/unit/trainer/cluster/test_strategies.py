import pytest
import tensorflow as tf

from pipeline.errors import UsageError
from trainer.cluster import strategies
from trainer.cluster.tf_config import ALONE, Cluster
from trainer.config.run import RunFlags


def create(cluster=ALONE, global_batch_size=100, **flags):
    return strategies.create(RunFlags(model_dir="", **flags), global_batch_size, cluster)


@pytest.mark.parametrize(
    ("values", "kind", "devices"),
    [
        ({"strategy": "one_device"}, tf.distribute.OneDeviceStrategy, ["CPU:0"]),
        ({"strategy": "mirrored"}, tf.distribute.MirroredStrategy, ["CPU:0"]),
        ({"strategy": "mirrored", "num_replicas": 2}, tf.distribute.MirroredStrategy, ["CPU:0", "CPU:1"]),
        ({"strategy": "mirrored", "num_replicas": 4}, tf.distribute.MirroredStrategy, [f"CPU:{i}" for i in range(4)]),
        (
            {"strategy": "central_storage", "num_replicas": 2},
            tf.distribute.experimental.CentralStorageStrategy,
            ["CPU:0", "CPU:1"],
        ),
    ],
)
def test_devices(values, kind, devices):
    strategy = create(**values)
    assert isinstance(strategy, kind)
    assert strategies.device_names(strategy) == devices
    assert strategy.num_replicas_in_sync == len(devices)


def test_more_replicas_than_the_process_was_split_into():
    with pytest.raises(UsageError, match=r"--num_replicas=5: .* 4"):
        create(strategy="mirrored", num_replicas=5)


@pytest.mark.parametrize(
    ("flags", "cluster", "facts"),
    [
        ({"strategy": "mirrored", "num_replicas": 4}, ALONE, r"global_batch_size=10 .* 4 replicas.* 8 and 12"),
        # found before the workers are joined
        ({"strategy": "multiworker"}, Cluster(("a:1", "b:2", "c:3"), 0), r"global_batch_size=10 .* 3 replicas"),
    ],
)
def test_replicas_that_do_not_divide_the_batch(flags, cluster, facts):
    with pytest.raises(UsageError, match=facts):
        create(cluster, global_batch_size=10, **flags)
