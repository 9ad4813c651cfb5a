"""Several machines as processes on loopback."""

from __future__ import annotations

import socket


def free_ports(count: int) -> list[int]:
    """Returns ports that were free a moment ago, all different."""
    sockets = [socket.socket() for _ in range(count)]
    for one in sockets:
        one.bind(("localhost", 0))
    ports = [one.getsockname()[1] for one in sockets]
    for one in sockets:
        one.close()
    return ports
