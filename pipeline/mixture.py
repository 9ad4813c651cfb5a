"""A request for one data set or several: each source an input of its own with its rows of every step.

Source i of the mixture takes G_i rows of every global batch, on its own way through its own epochs. Rows lie in blocks:
of gcd(G_0, G_1, ...) equal blocks each has its part of every source's rows, so that any number of replicas that
divides every G_i gets the same number of rows of each source.
"""

from __future__ import annotations

import contextlib
import dataclasses
from collections.abc import Iterator, Sequence

import numpy as np

from pipeline.errors import UsageError
from pipeline.manifest.sources import Source
from pipeline.order import counts, shares
from pipeline.order.hashing import Domain, derive_key
from pipeline.order.mixture_spec import MixtureSpec, Spec
from pipeline.request import Request
from pipeline.resolved import ResolvedRequest, resolve

_ADVICE = "the rows of a step must be alike (resize stretches images to one size)"


@dataclasses.dataclass(frozen=True)
class Mixture:
    """What is fed: a data set, or a mixture of them.

    Attributes:
      request: for all of it.
      parts: of each source; one where there is one data set.
    """

    request: Request
    parts: tuple[ResolvedRequest, ...]

    @property
    def first(self) -> ResolvedRequest:
        """The source whose epochs are counted, and whose statistics normalise; what batches are is the same of all."""
        return self.parts[0]

    @property
    def spec(self) -> Spec:
        """The arguments of the order."""
        return MixtureSpec(tuple(part.spec for part in self.parts)) if self.request.sources else self.first.spec

    @property
    def steps_per_epoch(self) -> int:
        """T, of the first source."""
        return self.first.order.steps_per_epoch

    def check_pairs(self, num_replicas: int = 1) -> None:
        """Raises UsageError where rows are mixed in pairs, but a replica or a stream has an odd number of one."""
        for part, source in zip(self.parts, self.request.sources or (None,), strict=True):
            with of_source(self.request, source):
                part.check_pairs(num_replicas)


def resolve_all(request: Request) -> Mixture:
    """Returns a request with the records and the order of each of its sources.

    Raises:
      DataError: no valid data set.
      UsageError: a value that cannot work with these data sets, or sources that do not fit together.
    """
    parts = []
    for part, source in zip(parts_of(request), request.sources or (None,), strict=True):
        with of_source(request, source):
            parts.append(resolve(part))
    check_alike(parts, [str(source) for source in request.sources])
    return Mixture(request, tuple(dataclasses.replace(part, statistics=parts[0].statistics) for part in parts))


def check_alike(parts: Sequence[ResolvedRequest], names: Sequence[str]) -> None:
    """Raises UsageError where the rows of two sources do not fit together, naming both and what differs."""
    for other, source in zip(parts[1:], names[1:], strict=True):
        for name, own in _facts(parts[0]).items():
            theirs = _facts(other)[name]
            if own != theirs:
                raise UsageError(
                    f"the sources '{names[0]}' and '{source}' differ in {name}: {own} and {theirs}; {_ADVICE}"
                )


def _facts(part: ResolvedRequest) -> dict[str, str]:
    """Returns what all sources must have in common, in words."""
    manifest, request = part.manifest, part.request
    facts = {"the number of classes": str(len(manifest.class_names)), "class names": ", ".join(manifest.class_names)}
    if request.parse is not None:
        return facts
    image = manifest.features.get("image")
    if image is not None:
        facts["channels"] = str(image.shape[2] or 3)
        facts["the shape of images"] = str(part.image_shape)
    for name in request.features:
        if name in manifest.features:  # else the reader says so
            feature = manifest.features[name]
            facts[f"feature {name!r}"] = f"{feature.dtype} {feature.shape}"
    return facts


def parts_of(request: Request) -> tuple[Request, ...]:
    """Returns the request for each source's rows, an input like any other; of one data set, itself.

    Each has its part of `shuffle_bytes`, and a seed of its own: with the same one, equally long sources would be
    permuted alike, and the same records meet in every epoch. The first keeps the seed, and says where the run ends.

    Raises:
      UsageError: a source has no row, or a value cannot work with its rows.
    """
    if not request.sources:
        return (request,)
    rows = shares.checked_shares(request.global_batch_size, *_weights(request))
    numbered = zip(range(len(rows)), request.sources, rows, strict=True)
    return tuple(_part(request, number, source, share) for number, source, share in numbered)


def _part(request: Request, number: int, source: Source, rows: int) -> Request:
    with of_source(request, source):
        return dataclasses.replace(
            request,
            data_dir=source.data_dir,
            split=source.split,
            global_batch_size=rows,
            seed=int(derive_key(Domain.SOURCE, request.seed, number) >> np.uint64(1)) if number else request.seed,
            epochs=None if number else request.epochs,
            shuffle_bytes=max(1, request.shuffle_bytes * rows // request.global_batch_size),
        )


def check_replicas(request: Request, num_replicas: int, what: str = "replicas") -> None:
    """Raises UsageError where the replicas do not divide the global batch, and in a mixture each source's rows."""
    if not request.sources:
        counts.check_replicas(request.global_batch_size, num_replicas)
    else:
        shares.check_divided(request.global_batch_size, *_weights(request), num_replicas, what)


def _weights(request: Request) -> tuple[list[float], list[str]]:
    return [source.weight for source in request.sources], [str(source) for source in request.sources]


@contextlib.contextmanager
def of_source(request: Request, source: object) -> Iterator[None]:
    """Context in which a UsageError of a mixture says of which source it is."""
    try:
        yield
    except UsageError as error:
        if not request.sources:
            raise
        raise UsageError(f"source '{source}': {error}") from None
