"""Connections to a worker that is lost, but does not close them itself, since it has stopped."""

import socket
import types

import pytest

from trainer.cluster.tf_config import PS, WORKER
from trainer.parameter_server.connecting import Members


@pytest.fixture
def listening():
    """Two workers that never answer."""
    with socket.create_server(("localhost", 0)) as one, socket.create_server(("localhost", 0)) as other:
        yield one, other


def connected(server):
    return socket.create_connection(server.getsockname(), timeout=10)


def assert_open(connection):
    connection.settimeout(0.5)
    with pytest.raises(TimeoutError):
        connection.recv(1)


def test_connections_to_a_lost_worker_are_closed_also_new_ones(listening):
    addresses = [f"localhost:{one.getsockname()[1]}" for one in listening]
    members = Members(types.SimpleNamespace(), types.SimpleNamespace(), {WORKER: addresses, PS: []})
    members.admit({0: 1, 1: 1})
    with connected(listening[0]) as kept, connected(listening[1]) as lost:
        with members.calls_fail({0: 1}):
            assert lost.recv(1) == b""
            with connected(listening[1]) as again:
                assert again.recv(1) == b""
        with connected(listening[1]) as after:  # it may come back
            assert_open(after)
        assert_open(kept)
