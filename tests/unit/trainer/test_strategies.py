import pytest
import tensorflow as tf

from pipeline.errors import UsageError
from trainer import strategies
from trainer.agreement import Agreement
from trainer.cluster import ALONE, Cluster
from trainer.config import TrainConfig


def config_of(**values):
    return TrainConfig.for_model("mlp", data_dir="", model_dir="", **values)


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
    strategy = strategies.create(config_of(**values), ALONE)
    assert isinstance(strategy, kind)
    assert strategies.device_names(strategy) == devices
    assert strategy.num_replicas_in_sync == len(devices)


def test_more_replicas_than_the_process_was_split_into():
    with pytest.raises(UsageError, match=r"--num_replicas=5: this process has already split its CPU into 4"):
        strategies.create(config_of(strategy="mirrored", num_replicas=5), ALONE)


def test_replicas_that_do_not_divide_the_batch():
    with pytest.raises(UsageError, match=r"global_batch_size=10 .* 4 replicas; nearest that work: 8 and 12"):
        strategies.create(config_of(strategy="mirrored", num_replicas=4, global_batch_size=10), ALONE)


def test_workers_that_do_not_divide_the_batch_are_found_before_they_are_joined():
    cluster = Cluster(("a:1", "b:2", "c:3"), 0)
    with pytest.raises(UsageError, match=r"global_batch_size=100 .* 3 replicas"):
        strategies.create(config_of(strategy="multiworker"), cluster)


def test_alone_agreement_is_ones_own_word():
    agreement = Agreement(tf.distribute.OneDeviceStrategy("/cpu:0"), ALONE)
    assert agreement.any(True) is True
    assert agreement.any(False) is False
    agreement.check_equal("the step", 7)
    agreement.wait()
