"""Machines joined by a slow link: Linux network namespaces, each with an end of a rate-limited link."""

from __future__ import annotations

import contextlib
import os
import subprocess
from collections.abc import Iterator, Sequence

from benchmarks.scaling.step_model import Link

_NAME = f"stepfeed{os.getpid()}"
# Network cards split data into packets. Here the kernel would do that, on the workers' cores.
_MTU = 65_000
_BURST = "128kb"  # burst size of the token bucket: more would hide the rate from small models
_QUEUE = "200ms"  # of packets that wait for the bucket


def why_not() -> str | None:
    """Returns why links cannot be slowed down here; None if they can."""
    try:
        with slowed(2, Link(bits=1e9)):
            return None
    except (OSError, subprocess.CalledProcessError) as error:
        said = (error.stderr or "").strip() if isinstance(error, subprocess.CalledProcessError) else str(error)
        return f"needs root, ip and tc of iproute2: {said.splitlines()[0] if said else error}"


@contextlib.contextmanager
def slowed(count: int, link: Link) -> Iterator[list[tuple[str, Sequence[str]]]]:
    """Context of machines on a bridge, each with its own link.

    Yields:
      The address of each, and the prefix of commands that should run there.

    Raises:
      OSError: ip or tc is missing.
      CalledProcessError: the system does not permit it.
    """
    names, bridge = [f"{_NAME}n{i}" for i in range(count)], f"b{os.getpid()}"
    with contextlib.ExitStack() as made:
        _do("ip", "netns", "add", f"{_NAME}b")
        made.callback(_do, "ip", "netns", "del", f"{_NAME}b")
        inside = ("ip", "netns", "exec", f"{_NAME}b")
        _do(*inside, "ip", "link", "add", bridge, "type", "bridge")
        _do(*inside, "ip", "link", "set", bridge, "up")
        found: list[tuple[str, Sequence[str]]] = []
        for number, name in enumerate(names):
            _do("ip", "netns", "add", name)
            made.callback(_do, "ip", "netns", "del", name)
            here, port, address = ("ip", "netns", "exec", name), f"p{number}", f"10.77.0.{number + 1}"
            _do(*inside, "ip", "link", "add", port, "type", "veth", "peer", "name", "eth0", "netns", name)
            _do(*inside, "ip", "link", "set", port, "mtu", f"{_MTU}")
            _do(*inside, "ip", "link", "set", port, "master", bridge)
            _do(*inside, "ip", "link", "set", port, "up")
            _do(*here, "ip", "link", "set", "eth0", "mtu", f"{_MTU}")
            _do(*here, "ip", "address", "add", f"{address}/24", "dev", "eth0")
            for device in ("lo", "eth0"):
                _do(*here, "ip", "link", "set", device, "up")
            rate = f"{link.bits / 1e6:.0f}mbit"
            for where, device in ((here, "eth0"), (inside, port)):
                _do(
                    *where,
                    "tc",
                    "qdisc",
                    "add",
                    "dev",
                    device,
                    "root",
                    "tbf",
                    "rate",
                    rate,
                    "burst",
                    _BURST,
                    "latency",
                    _QUEUE,
                )
            found.append((address, here))
        yield found


def _do(*command: str) -> None:
    subprocess.run(command, check=True, capture_output=True, text=True)
