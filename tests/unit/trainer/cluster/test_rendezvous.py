"""Workers as threads, and what else may connect to the chief's port as sockets."""

import asyncio
import concurrent.futures
import contextlib
import gc
import json
import re
import socket
import time

import pytest

from pipeline.errors import DataError, PipelineError, RerunError, UsageError
from tests.helpers.forked import free_ports
from trainer.cluster import messages, rendezvous, tf_config
from trainer.cluster.rendezvous import LostError
from trainer.cluster.tf_config import Cluster

SAME = [{"version": "v1"}, {"--seed": "--seed=0", "--rate": "--rate=0.1"}]


@pytest.fixture
def addresses():
    return tuple(f"localhost:{port}" for port in free_ports(3))


@pytest.fixture
def start(addresses):
    """Returns a function that starts a worker; its future's result is None, or the error that ended it."""
    pool = concurrent.futures.ThreadPoolExecutor()

    def meet(rank, description, timeout, addresses):
        try:
            rendezvous.meet(Cluster(addresses, rank), description, timeout).close()
        except PipelineError as error:
            return error

    def start(rank, description=SAME, timeout=20, addresses=addresses):
        return pool.submit(meet, rank, description, timeout, addresses)

    yield start
    pool.shutdown()


@pytest.fixture
def connect(addresses):
    """Returns a function that connects to the chief as soon as it listens, and sends bytes."""
    with contextlib.ExitStack() as opened:

        def connect(data):
            deadline = time.monotonic() + 10
            while True:
                try:
                    connection = socket.create_connection(tf_config.split_address(addresses[0]))
                    break
                except ConnectionRefusedError:
                    assert time.monotonic() < deadline
                    time.sleep(0.01)
            opened.enter_context(connection).sendall(data)
            return connection

        yield connect


def hello(addresses, rank):
    jobs = {"TF_CONFIG": f"3 workers in TF_CONFIG ({', '.join(addresses)})"}
    content = {"rank": rank, "name": f"worker {rank} ({addresses[rank]})", "description": [jobs, *SAME]}
    return json.dumps(content).encode() + b"\n"


def waited_for(connection):
    return json.loads(connection.makefile().readline())["waiting"]


def line(future):
    return str(future.result(timeout=30))


@pytest.mark.parametrize("host", ["localhost", "127.0.0.1", "[::1]"])
def test_equal_workers_go_on_again_and_again_on_the_same_ports(start, host):
    if host == "[::1]" and not socket.has_dualstack_ipv6():
        pytest.skip("no IPv6")
    addresses = tuple(f"{host}:{port}" for port in free_ports(3))
    for _ in range(10):
        workers = [start(rank, addresses=addresses) for rank in (0, 1, 2)]
        assert [worker.result(timeout=30) for worker in workers] == [None] * 3


def test_the_ports_are_free_as_soon_as_a_worker_may_go_on(start, connect, addresses):
    chief = start(0)
    others = [connect(hello(addresses, rank)) for rank in (1, 2)]
    assert '{"exit_code": 0, "error": ""}\n' in others[0].makefile()
    tf_config.listen(addresses[0], "the chief", "TF_CONFIG").close()  # although the connections are still open
    assert chief.result() is None


@pytest.mark.parametrize(
    ("others", "said"),
    [
        (
            [SAME, [SAME[0], {"--seed": "--seed=1", "--rate": "--rate=0.1"}]],
            r"worker 2 \(localhost:\d+\) has --seed=1, the chief has --seed=0; start all .*same flags",
        ),
        (
            [[SAME[0], {"--seed": "--seed=1", "--rate": "--rate=1"}]] * 2,
            r"worker 1 \(localhost:\d+\), worker 2 \(localhost:\d+\) have --seed=1, --rate=1, the chief has --seed=0, ",
        ),
        (  # the flags differ because the versions do
            [[{"version": "v2"}, {"--new": "--new=1"}], SAME],
            r"worker 1 \(localhost:\d+\) has v2, the chief has v1; ",
        ),
        ([[*SAME[:1], {**SAME[1], "--new": "--new=1"}], SAME], r".* has --new=1, the chief has no --new; "),
        ([[], SAME], r".* has no version, the chief has v1; "),
    ],
)
def test_who_differs_is_named_by_all_in_one_line(start, others, said):
    workers = [start(0), *(start(rank, description) for rank, description in enumerate(others, 1))]
    lines = {line(worker) for worker in workers}
    assert len(lines) == 1
    assert re.match(said, lines.pop())
    assert all(isinstance(worker.result(), UsageError) for worker in workers)


def test_another_cluster_is_named_before_all_are_there(start, addresses):
    began = time.monotonic()
    workers = [start(0, addresses=addresses[:2]), start(2)]
    lines = {line(worker) for worker in workers}
    assert len(lines) == 1
    assert all(isinstance(worker.result(), UsageError) for worker in workers)
    text = lines.pop()
    assert f"worker 2 ({addresses[2]}) has 3 workers in TF_CONFIG ({', '.join(addresses)}), the chief has 2 " in text
    assert time.monotonic() - began < 10


@pytest.mark.parametrize("absent", [0, 1])
def test_who_does_not_come_in_time_is_named_by_all(start, addresses, absent, capfd, monkeypatch):
    monkeypatch.setattr(rendezvous, "NOTICE_SECONDS", 0.2)
    workers = [start(rank, timeout=1.5) for rank in (0, 1, 2) if rank != absent]
    name = f"worker 1 ({addresses[1]})" if absent else f"the chief ({addresses[0]})"
    for worker in workers:
        assert isinstance(worker.result(timeout=30), RerunError)
        assert line(worker).startswith(f"{name} did not come within 1.5 s (--join_timeout); ")
    said, expected = capfd.readouterr().out, f"waiting for {name}"
    assert said.replace(expected, "").strip() == ""  # threads of one process print their lines into each other's
    assert said.count(expected) >= 4  # each worker, more than once


def test_who_runs_out_of_time_first_ends_all_with_the_same_line(start, addresses):
    began = time.monotonic()
    workers = [start(0, timeout=20), start(2, timeout=1)]
    for worker, timeout in zip(workers, (20, 1), strict=True):
        assert line(worker).startswith(f"worker 1 ({addresses[1]}) did not come within {timeout} s (--join_timeout); ")
    assert time.monotonic() - began < 10


def test_a_host_without_an_address_is_waited_for_with_the_reason(start, capfd):
    chief = ("nowhere.invalid:2222", "localhost:1")
    worker = start(1, timeout=1.5, addresses=(chief[0], f"localhost:{free_ports(1)[0]}"))
    assert "[" in line(worker)
    assert "waiting for the chief (nowhere.invalid:2222) [" in capfd.readouterr().out


def test_a_worker_that_leaves_is_waited_for_again(start, connect, addresses):
    chief = start(0)
    first = connect(hello(addresses, 1))
    assert waited_for(first) == f"worker 2 ({addresses[2]})"
    first.close()
    time.sleep(0.2)
    assert waited_for(connect(hello(addresses, 2))) == f"worker 1 ({addresses[1]})"
    assert start(1).result(timeout=30) is None
    assert chief.result(timeout=30) is None


def test_a_chief_that_leaves_is_waited_for_again(start, addresses):
    with socket.create_server(tf_config.split_address(addresses[0])) as gone:
        workers = [start(1), start(2)]
        for _ in workers:
            gone.accept()[0].close()
    workers.append(start(0))
    assert [worker.result(timeout=30) for worker in workers] == [None] * 3


def test_a_second_process_with_the_same_task_is_refused(start, connect, addresses):
    chief = start(0)
    first = connect(hello(addresses, 1))
    assert waited_for(first) == f"worker 2 ({addresses[2]})"
    second = start(1)
    assert isinstance(second.result(timeout=30), RerunError)
    assert f"worker 1 ({addresses[1]}) is there already, a process on 127.0.0.1; this one" in line(second)
    first.close()
    others = [start(1), start(2)]
    assert [worker.result(timeout=30) for worker in (chief, *others)] == [None] * 3


@pytest.mark.parametrize("rank", [0, 2])
@pytest.mark.parametrize(
    ("error", "kind", "said"),
    [
        (UsageError("--task=m:f: m.py:3: no"), UsageError, "--task=m:f: m.py:3: no"),
        (DataError("shard 3 is corrupt"), DataError, "shard 3 is corrupt"),
        (KeyError("x\ny"), DataError, r"KeyError: 'x\ny'"),
    ],
)
def test_who_fails_before_the_others_are_met_ends_them(start, addresses, rank, error, kind, said, capfd):
    others = [start(other) for other in range(3) if other != rank]
    cluster = Cluster(addresses, rank)
    with pytest.raises(type(error)) as raised, rendezvous.explaining(cluster, 20):
        raise error
    assert raised.value is error
    outcomes = [other.result(timeout=10) for other in others]
    assert [str(one) for one in outcomes] == [f"{cluster.names[rank]} cannot begin: {said}"] * 2
    assert [type(one) for one in outcomes] == [kind] * 2
    assert "telling the other" not in capfd.readouterr().out


def test_a_second_process_with_the_same_task_that_fails_does_not_end_the_job(start, connect, addresses):
    chief, first = start(0), connect(hello(addresses, 1))
    assert waited_for(first) == f"worker 2 ({addresses[2]})"
    with pytest.raises(UsageError), rendezvous.explaining(Cluster(addresses, 1), 20):
        raise UsageError("the port is in use")
    first.close()
    others = [start(1), start(2)]
    assert [worker.result(timeout=30) for worker in (chief, *others)] == [None] * 3


@pytest.mark.parametrize("rank", [0, 1])
def test_who_fails_before_the_others_come_tells_them_for_a_while(start, addresses, rank, capfd):
    began = time.monotonic()
    with pytest.raises(UsageError), rendezvous.explaining(Cluster(addresses, rank), 0.8):
        raise UsageError("no")
    assert 0.7 < time.monotonic() - began < 5
    assert capfd.readouterr().out == "telling the others why the job cannot begin, for at most 0.8 s: no\n"
    another = socket.create_server(tf_config.split_address(addresses[0]))  # another program has the chief's port
    with another, pytest.raises(UsageError), rendezvous.explaining(Cluster(addresses, rank), 0.2):
        raise UsageError("no")
    with pytest.raises(UsageError), rendezvous.explaining(Cluster(addresses[:1]), 100):  # alone
        raise UsageError("no")
    assert time.monotonic() - began < 10


@pytest.fixture
def tied(addresses):
    """Returns a function that has three workers meet, and then each call its function with their ties."""
    pool = concurrent.futures.ThreadPoolExecutor()

    def part(rank, function):
        with rendezvous.meet(Cluster(addresses, rank), SAME, 20) as ties, ties.told():
            return function(ties)

    def tied(*functions):
        workers = [pool.submit(part, rank, function) for rank, function in enumerate(functions)]
        return [worker.exception(timeout=60) or worker.result() for worker in workers]

    yield tied
    pool.shutdown()


def fails(error):
    def fails(ties):
        raise error

    return fails


def loses_another(ties):
    time.sleep(0.2)  # as TensorFlow takes a while to notice
    raise LostError("lost another worker (Connection reset by peer)")


@pytest.mark.parametrize("rank", [0, 1, 2])
@pytest.mark.parametrize(
    ("error", "kind", "said"),
    [
        (UsageError("--model=m:f: m.py:3: no"), UsageError, "--model=m:f: m.py:3: no"),
        (DataError("shard 3 is corrupt"), DataError, "shard 3 is corrupt"),
        (KeyError("x\ny"), DataError, r"KeyError: 'x\ny'"),
    ],
)
def test_a_worker_that_fails_ends_the_others_with_its_words(tied, addresses, rank, error, kind, said):
    outcomes = tied(*(fails(error) if one == rank else loses_another for one in range(3)))
    assert outcomes.pop(rank) is error
    name = f"worker {rank}" if rank else "the chief"
    assert [str(one) for one in outcomes] == [f"lost {name} ({addresses[rank]}): {said}"] * 2
    assert [type(one) for one in outcomes] == [kind] * 2


def test_a_worker_that_is_gone_without_a_word_is_lost(tied):
    began = time.monotonic()
    outcomes = tied(loses_another, lambda ties: None, loses_another)
    assert [str(one)[:19] for one in outcomes] == ["lost another worker", "None", "lost another worker"]
    assert time.monotonic() - began < 8


def test_all_that_stop_together_tell_nobody(tied):
    began, stopped = time.monotonic(), RerunError("training stopped by SIGTERM")
    assert tied(*[fails(stopped)] * 3) == [stopped] * 3
    assert time.monotonic() - began < 2


def compares(value, timeout=20):
    def difference(chief, other):
        return None if chief == other else f"another {other['x']}"

    return lambda ties: ties.compare({"x": value}, difference, timeout)


def test_what_workers_have_made_is_compared(tied, addresses):
    assert tied(*[compares("a" * 200_000)] * 3) == [None] * 3
    outcomes = tied(compares("a"), compares("b"), compares("a"))
    said = f"worker 1 ({addresses[1]}) has another b; start all workers with the same flags, data, code and versions"
    assert [str(one) for one in outcomes] == [said] * 3
    outcomes = tied(compares("a"), compares("a"), fails(UsageError("no model")))
    lost = f"lost worker 2 ({addresses[2]}): no model"
    assert [str(one) for one in outcomes] == [lost, lost, "no model"]
    outcomes = tied(compares("a", timeout=0.5), compares("a"), lambda ties: time.sleep(1.5))
    assert isinstance(outcomes[0], LostError)
    assert f"lost worker 2 ({addresses[2]}): it did not build its model within 0.5 s" in str(outcomes[0])


STRANGERS = [
    b"",
    b"GET / HTTP/1.1\r\nHost: localhost\r\n\r\n",
    b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n",
    b"\xff\xfe\n",
    b"[]\n",
    b"[" * 500_000 + b"\n",
    b'{"rank": 1}\n',
    *(b'{"rank": %s, "name": "x", "description": []}\n' % rank for rank in (b"0", b"-1", b"true", b'"1"')),
    b'{"rank": 1, "name": 1, "description": []}\n',
    b'{"rank": 1, "name": "x", "description": {}}\n',
    *(b'{"rank": 1, "name": "x", "exit_code": %s, "error": "no"}\n' % code for code in (b"0", b"3", b"[]", b'"2"')),
    b'{"rank": 1, "name": "x", "exit_code": 2}\n',
    b'{"rank": 0, "name": "x", "exit_code": 2, "error": "no"}\n',
    b'{"rank": 1, "name": "x", "description": [{"--seed": 1}]}\n',
]


def test_strangers_are_not_answered(start, connect, monkeypatch, caplog):
    monkeypatch.setattr(rendezvous, "ANSWER_SECONDS", 0.5)
    chief = start(0)
    strangers = [connect(data) for data in STRANGERS]
    with contextlib.suppress(ConnectionError):
        strangers.append(connect(b"x" * 10 * messages.MOST_BYTES))
    for stranger in strangers:
        with contextlib.suppress(ConnectionError):  # a reset: closed with bytes unread
            assert stranger.recv(100) == b""
    workers = [start(1), start(2)]
    assert [worker.result(timeout=30) for worker in (chief, *workers)] == [None] * 3
    gc.collect()  # asyncio logs uncaught exceptions
    assert not caplog.records


def test_a_worker_waits_where_another_program_has_the_chiefs_port(start, addresses):
    with socket.create_server(tf_config.split_address(addresses[0])) as other:
        worker = start(1, timeout=2)
        connection, _ = other.accept()
        with connection:
            connection.sendall(b"\x00\x00\x12\x04\x00\x00\n")  # as a gRPC server begins
        assert isinstance(worker.result(timeout=30), RerunError)


@pytest.mark.parametrize("rank", [0, 1])
def test_a_port_in_use_is_named(start, addresses, rank):
    port = tf_config.split_address(addresses[rank])[1]
    with socket.create_server(("127.0.0.1", port)):
        worker = start(rank, timeout=2)
        assert isinstance(worker.result(timeout=30), UsageError)
    assert f"port {port}, which TF_CONFIG gives to " in line(worker)
    assert "used by another process" in line(worker)


@pytest.mark.parametrize("turns", range(8))
def test_a_connection_that_is_accepted_at_the_last_moment_is_closed(turns):
    """Its process is to ask again; it would wait for an answer until Python collects garbage."""

    async def serve(reader, writer):
        await reader.read()

    async def accepted():
        server = rendezvous.Server(serve)
        await server.start(port)
        client = socket.create_connection(port.getsockname(), timeout=10)
        for _ in range(turns):  # of the loop, from nothing to a task that waits
            await asyncio.sleep(0)
        await server.close()
        return client

    port = socket.create_server(("127.0.0.1", 0))
    gc.disable()
    try:
        with asyncio.run(accepted()) as client, contextlib.suppress(ConnectionResetError):
            assert client.recv(1) == b""
    finally:
        gc.enable()
