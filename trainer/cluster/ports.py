"""The ports of this process."""

from __future__ import annotations

import errno
import socket

from pipeline.errors import UsageError, reason_of
from trainer.cluster.tf_config import Cluster


def split(address: str) -> tuple[str, int]:
    """Returns host and port of `host:port` or `[::1]:port`."""
    host, _, port = address.rpartition(":")
    return host.strip("[]"), int(port)


def listen(cluster: Cluster) -> socket.socket:
    """Returns a socket that listens on this worker's port, on all of its addresses, as TensorFlow's server will.

    Raises:
      UsageError: the port is in use, or may not be used.
    """
    rank = cluster.rank
    return listen_at(cluster.addresses[rank], cluster.name(rank), cluster.source)


def listen_at(address: str, name: str, source: str) -> socket.socket:
    """Returns a socket as `listen`.

    Args:
      address: `host:port`; of this machine.
      name: what messages call this process.
      source: that gives it this address.

    Raises:
      UsageError: as `listen`.
    """
    _, port = split(address)
    dual = socket.has_dualstack_ipv6()
    family = socket.AF_INET6 if dual else socket.AF_INET
    try:
        return socket.create_server(("", port), family=family, dualstack_ipv6=dual)
    except OSError as error:
        raise unusable_at(address, name, source, _reason(error)) from None


def unusable(cluster: Cluster, reason: str) -> UsageError:
    """Returns the error for this worker's port."""
    return unusable_at(cluster.addresses[cluster.rank], cluster.name(cluster.rank), cluster.source, reason)


def unusable_at(address: str, name: str, source: str, reason: str) -> UsageError:
    """Returns the error for a process's port; the arguments are as of `listen_at`."""
    return UsageError(f"port {split(address)[1]}, which {source} gives to {name}, {reason}")


def free() -> int:
    """Returns a port of this machine that was free a moment ago."""
    with socket.socket() as one:
        one.bind(("", 0))
        port: int = one.getsockname()[1]
        return port


def _reason(error: OSError) -> str:
    if error.errno == errno.EADDRINUSE:
        return "is used by another process on this machine; end that process or use another port"
    return f"cannot be used: {reason_of(error)}; use another port"
