import socket

import pytest

from pipeline.errors import RerunError
from trainer.launching.local import ports
from trainer.launching.local.ports import Ports


def test_two_launchers_at_once_get_different_ports(monkeypatch):
    monkeypatch.setattr(ports.random, "randrange", lambda count: 0)
    with Ports() as one, Ports() as other:
        first, second = one.take(3), other.take(3)
        assert len({*first, *second}) == 6
    with Ports() as third:
        assert third.take(3) == first


def test_a_port_in_use_and_those_of_outgoing_connections_are_left_out(monkeypatch):
    monkeypatch.setattr(ports.random, "randrange", lambda count: 0)
    with Ports() as one:
        [free] = one.take(1)
    with socket.create_server(("localhost", free)), Ports() as one:
        assert free not in one.take(20)
    low, high = map(int, ports._RANGE.read_text().split())
    with Ports() as one:
        assert not [port for port in one.take(50) if low <= port <= high]


def test_none_left(monkeypatch):
    monkeypatch.setattr(ports, "_candidates", lambda: iter([20_000, 20_001]))
    monkeypatch.setattr(ports, "_is_free", lambda port: port == 20_000)
    with Ports() as one, pytest.raises(RerunError, match="2 free ports are needed .*, and 1 were found"):
        one.take(2)
