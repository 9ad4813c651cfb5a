"""A worker of a job with parameter servers says on which GPU it computes, before it serves the chief."""

import pytest

from trainer.callbacks.heartbeat import Heartbeat
from trainer.cluster import strategies
from trainer.cluster.tf_config import Cluster
from trainer.parameter_server import training

GPU = "GPU:0 (NVIDIA T4, 15 GiB)"


@pytest.mark.parametrize(
    ("rank", "gpu", "said"),
    [(1, GPU, f"worker 0 (b:1): here {GPU}\n"), (1, None, ""), (2, GPU, "")],
)
def test_a_worker_names_its_gpu_where_there_is_one(rank, gpu, said, config_of, monkeypatch, capsys):
    """There is no GPU here: TensorFlow's answers about it are faked, and nothing is served."""
    served = []
    monkeypatch.setattr(strategies, "first_gpu", lambda: gpu)
    monkeypatch.setattr(strategies, "configure", lambda config: None)
    monkeypatch.setattr(training.WorkerClient, "serve", lambda client: served.append(capsys.readouterr().out))
    roles = Cluster(("b:1",), rank, ("c:1",), "a:1")
    config = config_of(data_dir="data", strategy="parameter_server")
    heartbeat = Heartbeat()
    training.serve(config, None, roles, None, heartbeat)
    assert served == [said]
    assert heartbeat._beat.devices == (GPU if said else "CPU:0",)
