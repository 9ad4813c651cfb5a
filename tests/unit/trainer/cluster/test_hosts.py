import pytest

from pipeline.errors import UsageError
from trainer.cluster import hosts, tf_config
from trainer.config.run import ClusterFlags


@pytest.fixture(autouse=True)
def no_tf_config(monkeypatch):
    monkeypatch.delenv("TF_CONFIG", raising=False)


def text_of(**flags):
    return hosts.tf_config(ClusterFlags(worker_hosts="a:1, b:2", **flags), "multiworker")


def test_workers_are_numbered_as_they_are_listed():
    cluster = tf_config.parse(text_of(task_index=1), hosts.SOURCE)
    assert (cluster.addresses, cluster.rank, cluster.source) == (("a:1", "b:2"), 1, "--worker_hosts")


def test_one_worker_needs_no_index():
    text = hosts.tf_config(ClusterFlags(worker_hosts="a:1"), "multiworker")
    assert tf_config.parse(text).addresses == ("a:1",)


@pytest.mark.parametrize(
    ("flags", "said"),
    [
        ({}, "say which of its 2 processes this is"),
        ({"task_index": 2}, "--task_index=2: --job_name=worker has 2, numbered from 0"),
        ({"job_name": "ps", "task_index": 0}, "--job_name=ps with --strategy=multiworker: must be worker"),
    ],
)
def test_wrong_processes(flags, said):
    with pytest.raises(UsageError) as error:
        text_of(**flags)
    assert said in str(error.value)


def test_another_tf_config_is_refused_and_the_same_is_not(monkeypatch):
    monkeypatch.setenv("TF_CONFIG", text_of(task_index=1))
    assert text_of(task_index=1) == text_of(task_index=1)
    with pytest.raises(UsageError, match="give one of them"):
        text_of(task_index=0)
