"""This worker's own port in TF_CONFIG."""

from __future__ import annotations

import errno
import socket

from pipeline.errors import UsageError
from trainer.cluster.tf_config import VARIABLE, Cluster


def split(address: str) -> tuple[str, int]:
    """Returns host and port of `host:port` or `[::1]:port`."""
    host, _, port = address.rpartition(":")
    return host.strip("[]"), int(port)


def listen(cluster: Cluster) -> socket.socket:
    """Returns a socket that listens on this worker's port, on all of its addresses, as TensorFlow's server will.

    Raises:
      UsageError: the port is in use, or may not be used.
    """
    _, port = split(cluster.addresses[cluster.rank])
    dual = socket.has_dualstack_ipv6()
    family = socket.AF_INET6 if dual else socket.AF_INET
    try:
        return socket.create_server(("", port), family=family, dualstack_ipv6=dual)
    except OSError as error:
        raise unusable(cluster, _reason(error)) from None


def unusable(cluster: Cluster, reason: str) -> UsageError:
    """Returns the error for this worker's port."""
    address = cluster.addresses[cluster.rank]
    port, name = split(address)[1], cluster.name(cluster.rank)
    return UsageError(f"port {port}, which {VARIABLE} gives to {name}, {reason}")


def _reason(error: OSError) -> str:
    if error.errno == errno.EADDRINUSE:
        return "is used by another process on this machine; end that process or use another port"
    return f"cannot be used: {error.strerror or error}; use another port"
