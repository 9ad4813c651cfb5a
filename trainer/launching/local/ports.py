"""Free ports of this machine, which two launchers at once do not both take."""

from __future__ import annotations

import contextlib
import pathlib
import random
import socket
from collections.abc import Iterator

from pipeline.errors import RerunError

_LOWEST, _HIGHEST = 10_000, 65_535
_RANGE = pathlib.Path("/proc/sys/net/ipv4/ip_local_port_range")  # what outgoing connections take
_LEAST = 1_000  # ports outside that range, for it to be avoided


class Ports:
    """Takes ports; a context manager that frees them.

    A trainer listens on its port itself, so it cannot be held by a socket here. An abstract socket of the port's name
    stands for it, which every launcher of this machine sees and which the system removes with the process. Ports
    that the system gives to outgoing connections are avoided, so that no other program gets one by chance.
    """

    def __init__(self) -> None:
        self._held: dict[int, socket.socket] = {}

    def take(self, count: int) -> list[int]:
        """Returns so many free ports.

        Raises:
          RerunError: there are not so many.
        """
        taken: list[int] = []
        for port in _candidates():
            if len(taken) == count:
                return taken
            if port not in self._held and _is_free(port) and (name := _named(port)):
                self._held[port] = name
                taken.append(port)
        raise RerunError(f"{count} free ports are needed on this machine, and {len(taken)} were found; try again later")

    def free(self) -> None:
        """Lets other launchers have the ports."""
        for name in self._held.values():
            name.close()
        self._held.clear()

    def __enter__(self) -> Ports:
        """Returns itself."""
        return self

    def __exit__(self, *error: object) -> None:
        """Frees the ports."""
        self.free()


def _candidates() -> Iterator[int]:
    """Yields ports from a random one on."""
    first, last = _outgoing()
    ports = [*range(_LOWEST, min(first, _HIGHEST)), *range(max(last + 1, _LOWEST), _HIGHEST + 1)]
    if len(ports) < _LEAST:
        ports = list(range(_LOWEST, _HIGHEST + 1))
    start = random.randrange(len(ports))
    yield from ports[start:]
    yield from ports[:start]


def _outgoing() -> tuple[int, int]:
    with contextlib.suppress(OSError, ValueError):
        first, last = map(int, _RANGE.read_text().split())
        return first, last
    return 32_768, 60_999  # Linux's default


def _is_free(port: int) -> bool:
    """Whether a trainer can listen on it, on all of its addresses as TensorFlow's server does."""
    dual = socket.has_dualstack_ipv6()
    family = socket.AF_INET6 if dual else socket.AF_INET
    try:
        socket.create_server(("", port), family=family, dualstack_ipv6=dual).close()
    except OSError:
        return False
    return True


def _named(port: int) -> socket.socket | None:
    """Returns what holds the port's name; None: another launcher does."""
    name = socket.socket(socket.AF_UNIX)
    try:
        name.bind(f"\0stepfeed-port-{port}")
    except OSError:
        name.close()
        return None
    return name
