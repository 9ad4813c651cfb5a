"""Sockets on the ports that a cluster gives to this process."""

from __future__ import annotations

import errno
import socket

from pipeline.errors import UsageError, reason_of


def split(address: str) -> tuple[str, int]:
    """Returns host and port of `host:port` or `[::1]:port`."""
    host, _, port = address.rpartition(":")
    return host.strip("[]"), int(port)


def listen(address: str, name: str, source: str) -> socket.socket:
    """Returns a socket that listens on this process's port at all addresses, as TensorFlow's server will.

    Args:
      address: `host:port` of this process.
      name: what messages call this process.
      source: where the address comes from, for messages.

    Raises:
      UsageError: the port is in use, or may not be used.
    """
    _, port = split(address)
    dual = socket.has_dualstack_ipv6()
    family = socket.AF_INET6 if dual else socket.AF_INET
    try:
        return socket.create_server(("", port), family=family, dualstack_ipv6=dual)
    except OSError as error:
        is_used = error.errno == errno.EADDRINUSE
        reason = (
            "is used by another process on this machine; end that process or use another port"
            if is_used
            else f"cannot be used: {reason_of(error)}; use another port"
        )
        raise unusable(address, name, source, reason) from None


def unusable(address: str, name: str, source: str, reason: str) -> UsageError:
    """Returns the error for a process's port; the arguments are those of `listen`."""
    return UsageError(f"port {split(address)[1]}, which {source} gives to {name}, {reason}")


def free() -> int:
    """Returns a port of this machine that was free a moment ago."""
    with socket.socket() as one:
        one.bind(("", 0))
        port: int = one.getsockname()[1]
        return port
