import os
import types

import pytest
import tensorflow as tf

from pipeline.errors import UsageError
from trainer.cluster import strategies
from trainer.cluster.tf_config import ALONE, Cluster
from trainer.config import TrainConfig
from trainer.config.run import OF_ONE_PROCESS, RunFlags
from trainer.step import gradients


def create(cluster=ALONE, global_batch_size=100, **flags):
    return strategies.create(RunFlags(model_dir="", **flags), global_batch_size, cluster)


@pytest.mark.parametrize(
    ("flags", "gpus", "determinism"),
    [
        ({}, 1, False),
        ({"virtual_replicas": 4}, 0, False),
        ({"virtual_replicas": 4}, 1, True),
        ({"deterministic": True}, 0, True),
    ],
)
def test_virtual_replicas_on_a_gpu_have_op_determinism(flags, gpus, determinism, monkeypatch, tmp_path):
    """Else the same run ends with other bits: seen on an H100. Here TensorFlow is said to find one."""
    enabled = []
    monkeypatch.setenv("XLA_FLAGS", "")
    monkeypatch.setattr(tf.config.experimental, "enable_op_determinism", lambda: enabled.append(True))
    monkeypatch.setattr(tf.config.threading, "set_intra_op_parallelism_threads", lambda _: None)
    monkeypatch.setattr(tf.config, "list_physical_devices", lambda kind: [kind] * gpus)
    given = {"data_dir": "d", "model_dir": str(tmp_path), "model": "lenet", "global_batch_size": 8}
    strategies.configure(TrainConfig.of(**given, **flags), is_chief=True)
    assert enabled == [True] * determinism
    # XLA chooses algorithms on GPUs alone.
    assert ("dump_autotune_results" in os.environ["XLA_FLAGS"]) is bool(determinism and gpus)


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


def test_each_strategy_is_made_by_a_class_of_its_own():
    assert len({type(create(strategy=name)) for name in OF_ONE_PROCESS}) == len(OF_ONE_PROCESS) == 3


SMI = """#!/bin/sh
echo "$*" > {folder}/asked
printf '%s\\n' 'NVIDIA H100 80GB HBM3, 81559' 'NVIDIA H100 80GB HBM3, 81559'
printf '%s\\n' 'NVIDIA T4, 15360' 'NVIDIA T4, 16384' 'NVIDIA GB10, [N/A]'
"""


def test_gpus_have_their_model_and_its_memory_where_that_is_one(monkeypatch, tmp_path):
    """There is no GPU here: what TensorFlow and nvidia-smi say of them is given."""
    found = ["NVIDIA T4", "NVIDIA H100 80GB HBM3", None, "NVIDIA GB10"]
    gpus = [tf.config.PhysicalDevice(f"/physical_device:GPU:{i}", "GPU") for i in range(len(found))]
    monkeypatch.setattr(tf.config, "list_physical_devices", lambda kind: gpus)
    details = {gpu.name: {"device_name": model} if model else {} for gpu, model in zip(gpus, found, strict=True)}
    monkeypatch.setattr(tf.config.experimental, "get_device_details", lambda gpu: details[gpu.name])
    names = [f"/job:localhost/replica:0/task:0/device:{name}" for name in ("GPU:1", "GPU:0", "GPU:2", "GPU:3", "CPU:0")]
    strategy = types.SimpleNamespace(extended=types.SimpleNamespace(worker_devices=names))
    monkeypatch.setenv("PATH", str(tmp_path))
    without = ["GPU:1 (NVIDIA H100 80GB HBM3)", "GPU:0 (NVIDIA T4)", "GPU:2", "GPU:3 (NVIDIA GB10)", "CPU:0"]
    assert strategies.device_names(strategy) == without
    (tmp_path / "nvidia-smi").write_text(SMI.format(folder=tmp_path))
    (tmp_path / "nvidia-smi").chmod(0o755)
    assert strategies.device_names(strategy) == ["GPU:1 (NVIDIA H100 80GB HBM3, 79.6 GiB)", *without[1:]]
    assert strategies.first_gpu() == "GPU:0 (NVIDIA T4)"
    gpus.clear()
    assert strategies.first_gpu() is None
    assert "--query-gpu=name,memory.total" in (tmp_path / "asked").read_text()


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


@pytest.mark.parametrize(
    ("flags", "facts"),
    [
        ({"all_reduce": "ring", "strategy": "mirrored"}, ["--all_reduce=ring", "multiworker"]),
        ({"all_reduce": "hierarchical_copy"}, ["--all_reduce=hierarchical_copy", "one_device", "mirrored"]),
        ({"all_reduce": "nccl", "strategy": "central_storage"}, ["--all_reduce=nccl", "mirrored", "multiworker"]),
        ({"all_reduce": "tree", "strategy": "mirrored"}, ["--all_reduce", "'tree'", "hierarchical_copy"]),
    ],
)
def test_a_strategy_without_this_way_to_sum(flags, facts):
    with pytest.raises(UsageError) as caught:
        RunFlags(model_dir="", **flags)
    assert [fact for fact in facts if fact not in str(caught.value)] == []


def test_nccl_needs_gpus():
    with pytest.raises(UsageError, match="--all_reduce=nccl: .*GPUs"):
        create(strategy="mirrored", num_replicas=2, all_reduce="nccl")


def test_the_way_to_sum_is_that_of_the_flag_and_gives_the_sum():
    found = {}
    for how in ("auto", "hierarchical_copy"):
        strategy = create(strategy="mirrored", num_replicas=2, all_reduce=how)
        rows = strategy.experimental_distribute_values_from_function(
            lambda context: tf.constant([1.0, 10.0]) * (1 + context.replica_id_in_sync_group)
        )
        total = strategy.run(gradients.all_sum, (rows,))
        found[how] = strategy.experimental_local_results(total)[0].numpy().tolist()
        assert (
            type(strategy.extended._cross_device_ops).__name__
            == {
                "auto": "ReductionToOneDevice",
                "hierarchical_copy": "HierarchicalCopyAllReduce",
            }[how]
        )
    assert found == {"auto": [3.0, 30.0], "hierarchical_copy": [3.0, 30.0]}
