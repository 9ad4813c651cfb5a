"""A model of the step: what one replica computes, and what several send each other."""

from __future__ import annotations

import dataclasses


@dataclasses.dataclass(frozen=True)
class Link:
    """What joins a worker to the others, the same for all.

    Attributes:
      bits: per second, in each direction; infinite: a link that costs nothing.
      latency: seconds until the first byte arrives.
    """

    bits: float = float("inf")
    latency: float = 0.0

    def seconds(self, num_bytes: float) -> float:
        """Returns how long so many bytes take, one after the other."""
        return 8 * num_bytes / self.bits


@dataclasses.dataclass(frozen=True)
class Parts:
    """The measured parts of a step.

    Attributes:
      rows: rows of one replica.
      compute: seconds of a step of one replica alone, with its input.
      gradients: bytes that a replica has to add to those of the others.
      hop: seconds for a message of no bytes to reach the next process, with all that TensorFlow does about it.
      copy: seconds per byte that processes of one machine exchange.
      server: seconds that a step with a parameter server takes longer than `compute`, if the link costs nothing.
    """

    rows: int
    compute: float
    gradients: int
    hop: float
    copy: float
    server: float

    def faster(self, times: float) -> Parts:
        """Returns the parts where a device computes so many times as fast."""
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
    """Returns the examples per second of workers beside one parameter server, on a machine of its own.

    A worker fetches the weights and sends its gradients. The server's own link carries those of all: at most so many
    steps a second as it can send the weights.
    """
    step = parts.compute + parts.server + 2 * link.latency + link.seconds(2 * parts.gradients)
    busy = link.seconds(parts.gradients)
    return parts.rows * min(workers / step, 1 / busy if busy else float("inf"))
