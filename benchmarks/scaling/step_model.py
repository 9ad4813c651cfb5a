"""A model of the step: the computation of a replica, and the communication between replicas."""

from __future__ import annotations

import dataclasses


@dataclasses.dataclass(frozen=True)
class Link:
    """The link of each worker to the others.

    Attributes:
      bits: rate per second in each direction; infinite for a link without cost.
      latency: seconds until the first byte arrives.
    """

    bits: float = float("inf")
    latency: float = 0.0

    def seconds(self, num_bytes: float) -> float:
        """Returns the seconds in which `num_bytes` bytes are transferred."""
        return 8 * num_bytes / self.bits


@dataclasses.dataclass(frozen=True)
class Parts:
    """The measured parts of a step.

    Attributes:
      rows: number of rows of one replica.
      compute: seconds of a step of a single replica, including its input.
      gradients: bytes that a replica must add to those of the others.
      hop: seconds for an empty message to reach the next process, including TensorFlow's overhead.
      copy: seconds per byte exchanged by processes on one machine.
      server: seconds by which a step with a parameter server takes longer than `compute`, over a link without cost.
    """

    rows: int
    compute: float
    gradients: int
    hop: float
    copy: float
    server: float

    def faster(self, times: float) -> Parts:
        """Returns the parts for a device that computes `times` times as fast."""
        return dataclasses.replace(self, compute=self.compute / times)


def exchange(parts: Parts, workers: int, link: Link) -> float:
    """Returns the seconds in which workers sum their gradients in a ring.

    Each sends 2 (N - 1) pieces of a part in N of the gradients (Patarasuk and Yuan 2009, "Bandwidth optimal all-reduce
    algorithms for clusters of workstations"), each piece once it has the one before.
    """
    hops = 2 * (workers - 1)
    sent = hops / workers * parts.gradients
    return hops * (parts.hop + link.latency) + sent * parts.copy + link.seconds(sent)


def synchronous(parts: Parts, workers: int, link: Link) -> float:
    """Returns the examples per second of workers that sum their gradients in each step."""
    return workers * parts.rows / (parts.compute + exchange(parts, workers, link))


def asynchronous(parts: Parts, workers: int, link: Link) -> float:
    """Returns the examples per second of workers with one parameter server on a machine of its own.

    A worker fetches the weights and sends its gradients. The server's own link carries the traffic of all workers,
    which limits the steps per second.
    """
    step = parts.compute + parts.server + 2 * link.latency + link.seconds(2 * parts.gradients)
    busy = link.seconds(parts.gradients)
    return parts.rows * min(workers / step, 1 / busy if busy else float("inf"))
