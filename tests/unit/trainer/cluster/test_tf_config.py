import json
import socket

import hypothesis.strategies as st
import pytest
from hypothesis import given

from pipeline.errors import UsageError
from trainer.cluster import tf_config
from trainer.config.run import ClusterFlags

HERE = socket.gethostname()
TWO = {"worker": ["a:1", "b:2"]}


def text(jobs, kind, index):
    return json.dumps({"cluster": jobs, "task": {"type": kind, "index": index}})


@pytest.mark.parametrize(
    ("config", "addresses", "rank", "chief"),
    [
        (text(TWO, "worker", 0), ("a:1", "b:2"), 0, True),
        (text(TWO, "worker", 1), ("a:1", "b:2"), 1, False),
        (text(TWO, "worker", "1"), ("a:1", "b:2"), 1, False),
        (text({**TWO, "chief": ["c:3"]}, "chief", 0), ("c:3", "a:1", "b:2"), 0, True),
        (text({**TWO, "chief": ["c:3"]}, "worker", 1), ("c:3", "a:1", "b:2"), 2, False),
    ],
)
def test_ranks(config, addresses, rank, chief):
    parsed = tf_config.parse(config)
    assert (parsed.addresses, parsed.rank, parsed.is_chief) == (addresses, rank, chief)
    assert parsed.size == len(addresses)


@pytest.mark.parametrize(
    ("config", "words"),
    [
        ("{", "not valid JSON"),
        ("[]", "no 'cluster'"),
        (json.dumps({"cluster": TWO}), "no 'task'"),
        (json.dumps({"cluster": TWO, "task": {"type": "worker"}}), "index is None"),
        (text(TWO, "worker", 2), "task index 2, but worker has 2"),
        (text(TWO, "worker", -1), "task index -1"),
        (text(TWO, "worker", True), "index is True"),
        (text(TWO, "worker", "²"), "index is '²'"),
        (text(TWO, "chief", 0), "task type 'chief', but cluster has worker"),
        (text(TWO, ["worker"], 0), "task type ['worker']"),
        (text({**TWO, "ps": ["p:1"]}, "ps", 0), "'ps'"),
        (text({**TWO, "chief": ["c:3", "d:4"]}, "worker", 0), "2 chiefs"),
        (text({"worker": "a:1"}, "worker", 0), "must be a list"),
        (text({"worker": []}, "worker", 0), "must be a list"),
        (text({"worker": [["a:1"]]}, "worker", 0), "is not host:port"),
        (text({"worker": ["::1:2222"]}, "worker", 0), "'::1:2222' is not host:port; an IPv6 address needs brackets"),
        (text({**TWO, "chief": ["b:2"]}, "worker", 0), "'b:2' is listed 2 times"),
    ],
)
def test_a_config_that_cannot_work_is_one_line(config, words):
    with pytest.raises(UsageError) as caught:
        tf_config.parse(config)
    assert words in str(caught.value)
    assert "TF_CONFIG" in str(caught.value)
    assert "\n" not in str(caught.value)


NAMES = st.from_regex(r"[a-z0-9]([a-z0-9._-]{0,9}[a-z0-9])?", fullmatch=True)
HOSTS = NAMES | st.ip_addresses(v=4).map(str) | st.ip_addresses(v=6).map("[{}]".format)
PORTS = st.integers(1, 65535)
LOCAL = [
    "localhost",
    "LOCALHOST",
    "localhost.",
    "127.0.0.1",
    "127.0.0.2",
    "0.0.0.0",
    "[::1]",
    "[::ffff:127.0.0.1]",
    HERE,
]


@given(host=HOSTS, ports=st.lists(PORTS, min_size=1, max_size=4, unique=True))
def test_names_and_addresses_are_taken_as_they_are(host, ports):
    addresses = tuple(f"{host}:{port}" for port in ports)
    assert tf_config.parse(text({"worker": list(addresses)}, "worker", 0)).addresses == addresses
    with pytest.raises(UsageError, match=r"are the same|is listed"):
        tf_config.parse(text({"worker": [*addresses, addresses[-1].upper()]}, "worker", 0))


@given(
    host=st.sampled_from(["", "http://a", "a b", "a;b", "[::g]", "::1", "[::1", "-a"]) | HOSTS,
    port=st.sampled_from(["", "0", "-1", "²", "65536", "9" * 5000, "1 "]),
)
def test_what_is_not_host_and_port_is_named(host, port):
    with pytest.raises(UsageError) as caught:
        tf_config.parse(text({"worker": ["a:1", f"{host}:{port}"]}, "worker", 0))
    assert repr(f"{host}:{port}") in str(caught.value)
    assert "\n" not in str(caught.value)


@given(one=st.sampled_from(LOCAL), other=st.sampled_from(LOCAL), port=PORTS)
def test_a_machine_by_two_names_is_one(one, other, port):
    with pytest.raises(UsageError, match=r"are the same|is listed"):
        tf_config.parse(text({"worker": [f"{one}:{port}", f"{other}:{port}"]}, "worker", 0))


def test_different_machines_may_have_the_same_port():
    addresses = ("a:1", "a.example:1", "10.0.0.1:1", "[fe80::1]:1", "localhost:1", "under_score:1")
    assert tf_config.parse(text({"worker": list(addresses)}, "worker", 0)).addresses == addresses


def test_no_variable_no_cluster(monkeypatch):
    monkeypatch.delenv("TF_CONFIG", raising=False)
    assert tf_config.of(ClusterFlags(), "multiworker") is None
    monkeypatch.setenv("TF_CONFIG", "  ")
    assert tf_config.of(ClusterFlags(), "multiworker") is None
    monkeypatch.setenv("TF_CONFIG", text(TWO, "worker", 1))
    assert tf_config.of(ClusterFlags(), "multiworker") == tf_config.Cluster(("a:1", "b:2"), 1)


def test_the_text_for_a_process():
    found = json.loads(tf_config.text_of({"chief": ["a:1"], "worker": ["b:2", "c:3"]}, tf_config.Task("worker", 1)))
    assert found == {
        "cluster": {"chief": ["a:1"], "worker": ["b:2", "c:3"]},
        "task": {"type": "worker", "index": 1},
    }


@pytest.mark.parametrize(
    ("jobs", "names"),
    [
        (TWO, ["the chief (a:1)", "worker 1 (b:2)"]),
        ({**TWO, "chief": ["[::1]:3"]}, ["the chief ([::1]:3)", "worker 0 (a:1)", "worker 1 (b:2)"]),
    ],
)
def test_workers_are_called_as_in_the_variable(jobs, names):
    cluster = tf_config.parse(text(jobs, "worker", 1))
    assert cluster.names == names


@pytest.mark.parametrize(
    ("config", "tasks"),
    [
        (text(TWO, "worker", 0), 2),
        (text({"chief": ["a:1"], "ps": ["b:2", "c:3"]}, "ps", 0), 3),
        *((config, 0) for config in ("", "{", "[]", "{}", '{"cluster": {}}', '{"cluster": {"worker": 1}}')),
        (text({"worker": ["a:1"]}, "worker", 0), 1),
    ],
)
def test_other_strategies_train_one_task_only(config, tasks, monkeypatch):
    monkeypatch.setenv("TF_CONFIG", config)
    if tasks < 2:
        tf_config.check_alone("mirrored")
    else:
        with pytest.raises(UsageError, match=f"TF_CONFIG .* {tasks} tasks.*--strategy=mirrored.*multiworker"):
            tf_config.check_alone("mirrored")


@pytest.fixture
def no_tf_config(monkeypatch):
    monkeypatch.delenv("TF_CONFIG", raising=False)


def text_of_flags(**flags):
    return tf_config.of_flags(ClusterFlags(worker_hosts="a:1, b:2", **flags), "multiworker")


@pytest.mark.usefixtures("no_tf_config")
def test_workers_are_numbered_as_they_are_listed():
    cluster = tf_config.parse(text_of_flags(task_index=1), source=tf_config.HOSTS_FLAG)
    assert (cluster.addresses, cluster.rank, cluster.source) == (("a:1", "b:2"), 1, "--worker_hosts")


@pytest.mark.usefixtures("no_tf_config")
def test_one_worker_needs_no_index():
    text = tf_config.of_flags(ClusterFlags(worker_hosts="a:1"), "multiworker")
    assert tf_config.parse(text).addresses == ("a:1",)


@pytest.mark.parametrize(
    ("flags", "said"),
    [
        ({}, "say which of its 2 processes this is"),
        ({"task_index": 2}, "--task_index=2: --job_name=worker has 2, numbered from 0"),
        ({"job_name": "ps", "task_index": 0}, "--job_name=ps with --strategy=multiworker: must be worker"),
    ],
)
def test_flags_that_do_not_say_which_process_this_is(flags, said, no_tf_config):
    with pytest.raises(UsageError) as error:
        text_of_flags(**flags)
    assert said in str(error.value)


def test_another_tf_config_is_refused_and_the_same_is_not(no_tf_config, monkeypatch):
    monkeypatch.setenv("TF_CONFIG", text_of_flags(task_index=1))
    assert text_of_flags(task_index=1) == text_of_flags(task_index=1)
    with pytest.raises(UsageError, match="--worker_hosts=a:1, b:2 and TF_CONFIG"):
        text_of_flags(task_index=0)
