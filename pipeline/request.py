"""What an input is asked for, checked once: which records, in which order, what of each, how they are delivered."""

from __future__ import annotations

import dataclasses
import operator
import re
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Required, TypeAlias, TypedDict, Unpack

from pipeline.distort import recipes
from pipeline.errors import UsageError, unknown
from pipeline.manifest.storage import PathLike
from pipeline.order.order import SHUFFLE_BYTES, check_streams
from pipeline.order.sharding import InputContext, Shard, as_shard
from pipeline.read.corruption import MAX_CORRUPT, POLICIES

if TYPE_CHECKING:
    import tensorflow as tf

UserDistort: TypeAlias = "Callable[[tf.Tensor, tf.Tensor], Any]"  # of (images, keys)
UserParse: TypeAlias = "Callable[[tf.Tensor], Any]"  # of serialized records
Size: TypeAlias = "str | tuple[int, int] | None"

WEIGHTS = ("mask", "mean")
_INT64 = 1 << 63
_SIZE = re.compile(r"([1-9]\d{0,4})x([1-9]\d{0,4})")


class OrderOptions(TypedDict, total=False):
    """The options of `input_fn` that the order of examples depends on."""

    global_batch_size: Required[int]
    training: Required[bool]
    seed: int
    remainder: str
    streams: int | None
    shuffle_bytes: int
    distort: str | UserDistort | None
    resize: Size
    parse: UserParse | None


class JobOptions(OrderOptions, total=False):
    """The options of `input_fn` that all workers of a job share: every one but `shard`."""

    features: Sequence[str]
    start_step: int
    epochs: int | None
    weights: str
    on_corrupt: str
    max_corrupt: int
    record_ids: bool


class InputOptions(JobOptions, total=False):
    """All options of `input_fn`."""

    shard: Shard | InputContext | None


@dataclasses.dataclass(frozen=True)
class DataRequest:
    """Which records: `data_dir` and `split` of `input_fn`."""

    data_dir: PathLike
    split: str = "train"


@dataclasses.dataclass(frozen=True)
class OrderRequest:
    """In which order: the options of this name of `input_fn`."""

    global_batch_size: int
    training: bool
    seed: int = 0
    remainder: str = "pad"
    streams: int | None = None
    shuffle_bytes: int = SHUFFLE_BYTES

    def __post_init__(self) -> None:
        size = whole_number("global_batch_size", self.global_batch_size, 1)
        streams = None if self.streams is None else whole_number("streams", self.streams, 1)
        if streams is not None:
            check_streams(size, streams)
        _normalise(
            self,
            global_batch_size=size,
            training=bool(self.training),
            seed=whole_number("seed", self.seed, -_INT64),
            streams=streams,
            shuffle_bytes=whole_number("shuffle_bytes", self.shuffle_bytes, 1),
        )


@dataclasses.dataclass(frozen=True)
class ExampleRequest:
    """What of each record: the options of this name of `input_fn`."""

    distort: str | UserDistort | None = None
    resize: Size = None
    features: Sequence[str] = ()
    parse: UserParse | None = None

    def __post_init__(self) -> None:
        if isinstance(self.features, str) or not all(isinstance(name, str) for name in self.features):
            raise UsageError(f"features={self.features!r}: must be a sequence of names")
        _normalise(self, resize=parse_size(self.resize), features=tuple(self.features))
        if self.parse is None:
            return
        if not callable(self.parse):
            raise UsageError(f"parse={self.parse!r}: must be a function of serialized records (rows,)")
        for name in ("distort", "resize", "features"):
            if getattr(self, name):
                value = getattr(self, name)
                raise UsageError(f"{name}={value!r} with parse: the parse function returns everything that is fed")

    @property
    def size(self) -> tuple[int, int] | None:
        """(height, width) that every image is stretched to; None: as stored."""
        return parse_size(self.resize)

    @property
    def crops(self) -> bool:
        """Whether the recipe chooses the part of an image that is decoded."""
        return isinstance(self.distort, str) and recipes.crops(self.distort)


@dataclasses.dataclass(frozen=True)
class DeliveryRequest:
    """How batches are delivered: the options of this name of `input_fn`."""

    start_step: int = 0
    epochs: int | None = None
    weights: str = "mask"
    shard: Shard | InputContext | None = None
    on_corrupt: str = "raise"
    max_corrupt: int = MAX_CORRUPT
    record_ids: bool = False

    def __post_init__(self) -> None:
        if self.weights not in WEIGHTS:
            raise unknown("weights", str(self.weights), WEIGHTS)
        if self.on_corrupt not in POLICIES:
            raise unknown("on_corrupt", str(self.on_corrupt), POLICIES)
        if self.on_corrupt == "skip" and self.weights == "mean" and self.shard is not None:
            raise UsageError(
                "weights='mean' with on_corrupt='skip' and shard: a worker does not know how many rows the others "
                "skip; use weights='mask' and divide by the sum of the weights"
            )
        _normalise(
            self,
            start_step=whole_number("start_step", self.start_step, 0),
            epochs=None if self.epochs is None else whole_number("epochs", self.epochs, 1),
            shard=as_shard(self.shard),
            max_corrupt=whole_number("max_corrupt", self.max_corrupt, 0),
        )


@dataclasses.dataclass(frozen=True)
class Request:
    """The arguments of `input_fn`, grouped by concern and checked as far as they can be without the data set."""

    data: DataRequest
    order: OrderRequest
    examples: ExampleRequest
    delivery: DeliveryRequest

    @classmethod
    def of(cls, data_dir: PathLike, split: str = "train", **options: Unpack[InputOptions]) -> Request:
        """Returns the request with these options of `input_fn`, and its defaults for the others.

        Raises:
          TypeError: an option that `input_fn` lacks, or a missing one that it requires.
          UsageError: a value that cannot work.
        """
        check_names(options, InputOptions)
        return cls(
            DataRequest(data_dir, split),
            OrderRequest(**_fields_of(OrderRequest, options)),
            ExampleRequest(**_fields_of(ExampleRequest, options)),
            DeliveryRequest(**_fields_of(DeliveryRequest, options)),
        )

    def deliver(self, **changes: Any) -> Request:
        """Returns the request with these fields of its `delivery` changed."""
        return dataclasses.replace(self, delivery=dataclasses.replace(self.delivery, **changes))


def check_names(options: Mapping[str, Any], known: type) -> None:
    """Raises TypeError for an option that a TypedDict lacks."""
    for name in options:
        if name not in known.__annotations__:
            raise TypeError(f"got an unexpected keyword argument {name!r}")


def _fields_of(group: Any, options: Mapping[str, Any]) -> dict[str, Any]:
    return {field.name: options[field.name] for field in dataclasses.fields(group) if field.name in options}


def _normalise(group: Any, **values: Any) -> None:
    for name, value in values.items():
        object.__setattr__(group, name, value)


def parse_size(size: Any, flag: str = "resize") -> tuple[int, int] | None:
    """Returns a size as (height, width): of `224x160`, (224, 160), or None.

    Raises:
      UsageError: it is none.
    """
    if not size:
        return None
    match = _SIZE.fullmatch(size) if isinstance(size, str) else None  # autograph, inside a tf.function, knows no `:=`
    if match:
        return int(match[1]), int(match[2])
    if isinstance(size, tuple | list) and len(size) == 2 and all(isinstance(n, int) and 0 < n < 10**5 for n in size):
        return int(size[0]), int(size[1])
    raise UsageError(f"{flag}={size!r}: must be a height and a width, such as 224x224")


def whole_number(name: str, value: int, least: int) -> int:
    """Returns `value` as an int; NumPy's integers are accepted.

    Raises:
      UsageError: it is not a whole number, or not in least..2^63 - 1.
    """
    try:
        number = operator.index(value)
    except TypeError:
        raise UsageError(f"{name}={value!r}: must be a whole number") from None
    if not least <= number < _INT64:
        bound = f"{least} or more" if number < least and least > -_INT64 else "in the range of a signed 64-bit integer"
        raise UsageError(f"{name}={value}: must be {bound}")
    return number
