import json

import pytest

from pipeline.errors import UsageError
from trainer.cluster import tf_config
from trainer.cluster.tf_config import Task
from trainer.config import TrainConfig, parse

FLAGS = ["--data_dir=D", "--model_dir=M", "--strategy=parameter_server"]
CLASSIC = ["--worker_hosts=a:1,b:2", "--ps_hosts=c:3"]


def of(*flags):
    return tf_config.of(parse([*FLAGS, *flags]).cluster, "parameter_server")


@pytest.fixture(autouse=True)
def no_tf_config(monkeypatch):
    monkeypatch.delenv("TF_CONFIG", raising=False)


def test_classic_flags_make_worker_0_the_chief():
    found = of(*CLASSIC, "--job_name=worker", "--task_id=0")
    assert (found.mine, found.is_chief, found.chief_works) == (Task("chief"), True, True)
    assert found.others == [Task("worker", 1), Task("ps", 0)]
    assert found.name(Task("chief")) == "the chief (a:1)"


@pytest.mark.parametrize("flags", [["--job_name=worker", "--task_index=1"], ["--job_name=worker", "--task_id", "1"]])
def test_other_workers(flags):
    found = of(*CLASSIC, *flags)
    assert (found.mine, found.is_chief, found.name(found.mine)) == (Task("worker", 1), False, "worker 1 (b:2)")


def test_a_chief_of_its_own():
    found = of(*CLASSIC, "--chief_host=d:4", "--job_name=chief")
    assert (found.is_chief, found.chief_works) == (True, False)
    assert found.others == [Task("worker", 0), Task("worker", 1), Task("ps", 0)]


def test_tf_config(monkeypatch):
    cluster = {"chief": ["d:4"], "worker": ["a:1", "b:2"], "ps": ["c:3"]}
    monkeypatch.setenv("TF_CONFIG", json.dumps({"cluster": cluster, "task": {"type": "ps", "index": 0}}))
    found = of()
    assert (found.mine, found.source, str(found)) == (
        Task("ps"),
        "TF_CONFIG",
        "chief d:4, 2 workers a:1, b:2, 1 ps c:3",
    )


@pytest.mark.parametrize(
    ("flags", "said"),
    [
        ([], "needs TF_CONFIG with jobs chief, worker and ps, or --worker_hosts="),
        (["--ps_hosts=c:3"], "--ps_hosts=c:3: needs --worker_hosts"),
        (["--worker_hosts=a:1", "--job_name=worker"], "needs --ps_hosts="),
        (CLASSIC, "say which process this is: --job_name="),
        ([*CLASSIC, "--job_name=worker"], "say which of its 2 processes this is"),
        ([*CLASSIC, "--job_name=worker", "--task_index=2"], "--task_index=2: --job_name=worker has 2, numbered from 0"),
        ([*CLASSIC, "--job_name=chief"], "needs --chief_host="),
        ([*CLASSIC, "--job_name=pss"], "did you mean 'ps'"),
        (["--worker_hosts=a:1,a", "--ps_hosts=c:3", "--job_name=ps"], "worker 'a' is not host:port"),
        (["--worker_hosts=a:1", "--ps_hosts=a:1", "--job_name=ps"], "--ps_hosts: 'a:1' is listed 2 times"),
        (
            ["--worker_hosts=a:1", "--ps_hosts=b:70000", "--job_name=ps"],
            "--ps_hosts: ps 'b:70000': the port must be 1 to",
        ),
        (["--worker_hosts=a:1,", "--ps_hosts=b:2", "--job_name=ps"], "--worker_hosts: worker '' is not host:port"),
        ([*CLASSIC, "--chief_host=d", "--job_name=ps"], "--chief_host: chief 'd' is not host:port"),
        ([*CLASSIC, "--chief_host=d:1,e:2", "--job_name=ps"], "--chief_host: 2 chiefs"),
        (
            ["--worker_hosts=localhost:1", "--ps_hosts=[::1]:1", "--job_name=ps"],
            "--ps_hosts: 'localhost:1' and '[::1]:1'",
        ),
    ],
)
def test_wrong_clusters(flags, said):
    with pytest.raises(UsageError) as error:
        of(*flags)
    assert said in str(error.value)
    assert "\n" not in str(error.value)


@pytest.mark.parametrize(
    ("task", "flag"),
    [(Task("ps"), "--ps_hosts"), (Task("worker", 1), "--worker_hosts"), (Task("chief"), "--worker_hosts")],
    ids=lambda value: getattr(value, "job", value),
)
def test_a_port_is_of_the_flag_that_gives_it(task, flag):
    assert of(*CLASSIC, "--job_name=ps").source_of(task) == flag


def test_both_ways_at_once(monkeypatch):
    monkeypatch.setenv("TF_CONFIG", '{"cluster": {}}')
    with pytest.raises(UsageError) as error:
        of(*CLASSIC, "--job_name=ps")
    assert all(name in str(error.value) for name in ("--worker_hosts=a:1,b:2", "TF_CONFIG"))


@pytest.mark.parametrize(
    "flags",
    [
        {"virtual_replicas": 4},
        {"log_keys": "K"},
        {"log_losses": "L"},
        {"profile": "3:5"},
        {"histogram_every": "30s"},
        {"activation_every": 5},
        {"image_every": 5},
        {"headspace": 5},
        {"deterministic": True},
        {"on_corrupt": "skip"},
        {"cache_dir": "C"},
        {"precision": "float16"},
        {"optimizer": "nadam"},
        {"num_replicas": 2},
        {"prefetch": 0},
        {"replicas_to_aggregate": 2},
        {"max_staleness": 1},
        {"sync": True, "replicas_to_aggregate": 3},
    ],
    ids=str,
)
def test_what_does_not_apply_is_refused(flags):
    name, value = list(flags.items())[-1]
    with pytest.raises(UsageError) as error:
        TrainConfig.of(data_dir="D", model_dir="M", strategy="parameter_server", global_batch_size=100, **flags)
    assert f"--{name}={value}" in str(error.value)


@pytest.mark.parametrize(
    "flags", [{"worker_hosts": "a:1"}, {"sync": True}, {"worker_hosts": "a:1", "ps_hosts": "b:1"}], ids=str
)
@pytest.mark.parametrize("strategy", ["one_device", "multiworker"])
def test_other_strategies_refuse_what_is_not_theirs(strategy, flags):
    if strategy == "multiworker" and flags == {"worker_hosts": "a:1"}:
        return
    with pytest.raises(UsageError, match=f"--strategy={strategy}"):
        TrainConfig.of(data_dir="D", model_dir="M", strategy=strategy, **flags)
