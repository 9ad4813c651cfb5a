"""The arguments of `input_fn`: their types, defaults and checks."""

from __future__ import annotations

import dataclasses
import functools
import inspect
import numbers
import os
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import field
from typing import Any, Concatenate, Generic, ParamSpec, TypeAlias, TypeVar, overload

from pipeline.augmentation import recipes
from pipeline.commands import aliases, values
from pipeline.errors import UsageError, unknown
from pipeline.files.paths import PathLike, folder
from pipeline.manifest.manifest import BOX_LABELS, CONVENTIONS, MASK, MOST_CLASSES, Feature
from pipeline.manifest.sources import VIEWS, Source, Sources, in_order_of, own_views, schedule_of, sources_of
from pipeline.order.sharding import (
    SHUFFLE_BYTES,
    InputContext,
    Shard,
    as_shard,
    check_replicas,
    check_streams,
    truth_value,
    whole_number,
)
from pipeline.order.shares import Shares, Weights, check_divided, checked_shares, unit_of
from pipeline.order.views import LABEL, View, Where, checked_skips

UserAugment: TypeAlias = Callable[..., Any]  # of (images, keys), and training by name
UserParse: TypeAlias = Callable[..., Any]  # of serialized records, and keys and training by name
Size: TypeAlias = "str | int | tuple[int, int] | None"
P = ParamSpec("P")
Options = TypeVar("Options")
Result = TypeVar("Result")
First = TypeVar("First")

WEIGHTS = ("mask", "mean", "none")
POLICIES = ("raise", "skip")  # policies for corrupt records
MOST_COPIES = 1024  # copies per image; each copy is augmented by its own ops
MAX_CORRUPT = 100  # most records to skip
HOST, DEVICE, BOTH = PLACES = ("host", "device", "both")  # places to augment
AUGMENT_KEY, AUGMENT_EPOCH = "distort_key", "distort_epoch"  # features of rows, see `pipeline.commands.aliases`
_MOST_FACTOR = 3.4e38  # largest factor for a class, as float32
_SIZE = re.compile(r"([1-9]\d{0,4})x([1-9]\d{0,4})")


@dataclasses.dataclass(frozen=True)
class EpochOptions:
    """The arguments of `input_fn` (see there) that determine the length of an epoch.

    Metadata: `least` and `most`, the bounds of a whole number, besides a default of None; `known`, the allowed names;
      `of_images` if the option has no meaning for records that a `parse` function reads.
    """

    data_dir: PathLike | Sources
    split: str = "train"
    _: dataclasses.KW_ONLY
    global_batch_size: int = field(metadata={"least": 1})
    remainder: str = "pad"
    classes: str | Sequence[str] | None = field(default=None, metadata={"of_images": True})
    where: Where = None
    limit: int | str | None = None
    balance: str | None = None
    weigh: str | None = None
    schedule: Any = ()


@dataclasses.dataclass(frozen=True, kw_only=True)
class OrderOptions(EpochOptions):
    """The arguments of `input_fn` that determine the order of examples."""

    training: bool
    seed: int = 0
    augment: str | UserAugment | None = field(default=None, metadata={"of_images": True})
    resize: Size = field(default=None, metadata={"of_images": True})
    parse: UserParse | None = None
    streams: int | None = field(default=None, metadata={"least": 1})
    shuffle_bytes: int = field(default=SHUFFLE_BYTES, metadata={"least": 1})
    record_bytes: int | None = field(default=None, metadata={"least": 1})
    skip_steps: Any = ()


@dataclasses.dataclass(frozen=True, kw_only=True)
class JobOptions(OrderOptions):
    """The arguments of `input_fn` that all workers of a job share: all except `shard`."""

    start_step: int = field(default=0, metadata={"least": 0})
    epochs: int | None = field(default=None, metadata={"least": 1})
    augment_on: str = field(default=HOST, metadata={"known": PLACES})
    copies: int = field(default=1, metadata={"least": 1, "most": MOST_COPIES})
    eval_copies: int = field(default=1, metadata={"least": 1, "most": MOST_COPIES})
    statistics: PathLike | None = None
    features: Sequence[str] = field(default=(), metadata={"of_images": True})
    label: str = LABEL
    weights: str = field(default="mask", metadata={"known": WEIGHTS})
    class_weight: Mapping[int, float] | None = None
    on_corrupt: str = field(default="raise", metadata={"known": POLICIES})
    max_corrupt: int = field(default=MAX_CORRUPT, metadata={"least": 0})
    record_ids: bool = False
    portable: bool = False
    cache_dir: PathLike | None = None
    cache_bytes: int | None = field(default=None, metadata={"least": 1})


class Taking(Generic[P, Options]):
    """Decorator for a function of checked options, which callers pass as keyword arguments.

        @Taking(OrderOptions)
        def order_spec(options: OrderOptions) -> Spec:

    The function may have one other argument, before the options: `self`, or a strategy.

    Args:
      kind: dataclass of the options.
      **refused: {option of `input_fn`: reason why the function does not take it}.
    """

    def __init__(self, kind: Callable[P, Options], **refused: str) -> None:
        self._kind, self._refused = kind, refused

    @overload
    def __call__(self, function: Callable[[Options], Result], /) -> Callable[P, Result]: ...

    @overload
    def __call__(self, function: Callable[[First, Options], Result], /) -> Callable[Concatenate[First, P], Result]: ...

    def __call__(self, function: Callable[..., Any], /) -> Callable[..., Any]:
        """Returns the function with the options as arguments.

        It raises TypeError for a missing or unknown option, UsageError for one that is refused or cannot work.
        """
        *first, _ = inspect.signature(function).parameters.values()
        taken = inspect.signature(self._kind).parameters.values()
        options = sorted(taken, key=lambda one: (one.kind, one.default is not one.empty))  # required ones first
        signature = inspect.signature(function).replace(parameters=[*first, *options])
        kind: Callable[..., Any] = self._kind
        refused = self._refused

        @functools.wraps(function)
        def taking(*arguments: Any, **named: Any) -> Any:
            named = aliases.renamed(named, {*signature.parameters, *refused}, f"{function.__name__}: ")
            for name in refused:
                if name in named:
                    raise UsageError(f"{function.__name__}: takes no {name}; {refused[name]}")
            try:
                bound = signature.bind(*arguments, **named).arguments
            except TypeError as error:
                raise TypeError(f"{function.__qualname__}() {error}") from None
            return function(*(bound.pop(one.name) for one in first), kind(**bound))

        del taking.__wrapped__  # type: ignore[attr-defined]
        taking.__signature__ = signature  # type: ignore[attr-defined]
        # For a `tf.function`: the same as `tf.autograph.experimental.do_not_convert`, which would load TensorFlow.
        taking.autograph_info__ = {}  # type: ignore[attr-defined]
        taking.__annotations__ = {one.name: one.annotation for one in signature.parameters.values()}
        return taking


@dataclasses.dataclass(frozen=True, kw_only=True)
class Request(JobOptions):
    """The arguments of `input_fn`, checked as far as possible without the data set.

    Raises:
      TypeError: `input_fn` has no such option, or requires one that is missing.
      UsageError: a value cannot work.
    """

    shard: Shard | InputContext | None = None

    def __post_init__(self) -> None:
        self._check_data()
        self._set("seed", whole_number("seed", self.seed))
        for option in dataclasses.fields(self):
            value, least = getattr(self, option.name), option.metadata.get("least")
            if least is not None and (value is not None or option.default is not None):
                number, most = whole_number(option.name, value, least), option.metadata.get("most")
                if most is not None and number > most:
                    raise UsageError(f"{option.name}={number}: must be {most} or less")
                self._set(option.name, number)
        if self.streams is not None:
            check_streams(self.global_batch_size, self.streams)
        self._check_examples()
        self._check_copies()
        self._check_view()
        self._check_delivery()

    def _check_copies(self) -> None:
        """Raises UsageError if another option rules out several copies of a record."""
        for name in ("copies", "eval_copies"):
            count, why = getattr(self, name), self._why_no_copies(to_train=name == "copies")
            if count > 1 and why:
                raise UsageError(f"{name}={count} with {why}")

    def _why_no_copies(self, to_train: bool) -> str:
        why = ""
        if self.parse is not None:
            why = (
                "parse: the parse function returns everything that is fed; return the copies from it, and draw the "
                "others by other keys, such as tf.bitwise.invert(keys)"
            )
        elif self.augment in (None, "none"):
            why = "no augment: all copies would be equal; name a recipe, or leave it out"
        elif to_train and not self.training:
            why = (
                "training=False: an evaluation draws nothing, so that all copies would be equal; leave it out, or ask "
                "for augmented ones by eval_copies"
            )
        elif to_train and self.mixes:
            why = (
                f"augment={self.augment!r}: each mixed copy would need a label of its own; leave out what mixes, or "
                "the copies"
            )
        elif not to_train and self.training:
            why = "training=True: it is for evaluations; give copies instead"
        elif not to_train and self.augment_on != HOST:
            why = f"augment_on={self.augment_on!r}: copies of an evaluation are augmented in the input; use {HOST!r}"
        elif isinstance(self.augment, str) and not recipes.draws(self.augment):
            why = (
                f"augment={self.augment!r}, of which nothing draws: all copies would be equal; add a recipe that draws"
            )
        return why

    def _check_view(self) -> None:
        self._set("skip_steps", checked_skips(self.skip_steps))
        for name, value in self.view.repeating.items() if not self.training else ():
            raise UsageError(
                f"{name}={value!r} with training=False: an evaluation counts each record once, so that its numbers "
                "are those of the data; choose records with where or limit, or average the classes' own numbers"
            )
        if not self.training and self.skip_steps:
            raise UsageError("skip_steps with training=False: an evaluation skips nothing; leave it out")

    def _check_data(self) -> None:
        sources = sources_of(self.data_dir, self.split)
        if self.is_mixture:
            sources, for_all = own_views(sources, {name: getattr(self, name) for name in VIEWS})
            self._set("data_dir", sources)
            for name, value in for_all.items():
                self._set(name, value)
        self._set("schedule", in_order_of(schedule_of(self.schedule), sources if self.is_mixture else ()))
        for option in dataclasses.fields(self):
            if option.type == "bool":
                self._set(option.name, truth_value(option.name, getattr(self, option.name)))
        if self.is_mixture and not self.training:
            raise UsageError(
                f"training=False with {len(self.sources)} sources: an evaluation sees each once, by itself; call it "
                f"for each, with statistics={self.sources[0].data_dir!r} if the recipe normalises"
            )

    def _check_examples(self) -> None:
        if isinstance(self.features, str) or not all(isinstance(name, str) for name in self.features):
            raise UsageError(f"features={self.features!r}: must be a sequence of names")
        self._set("resize", parse_size(self.resize))
        self._set("features", tuple(self.features))
        known = (LABEL, *(name for name in CONVENTIONS if name != BOX_LABELS))  # box labels come with boxes
        if self.label not in known:
            raise unknown("label", str(self.label), known)
        if self.label != LABEL:
            self._check_label()
        if self.parse is None:
            return
        if not callable(self.parse):
            raise UsageError(f"parse={self.parse!r}: must be a function of serialized records (rows,)")
        for name in (option.name for option in dataclasses.fields(self) if option.metadata.get("of_images")):
            if value := getattr(self, name):
                how = "; augment in it, by keys: parse(records, keys)" if name == "augment" else ""
                raise UsageError(f"{name}={value!r} with parse: the parse function returns everything that is fed{how}")

    def _check_label(self) -> None:
        """Raises UsageError if another option rules out a label that lies on the image."""
        why = {
            "parse": "the parse function returns everything that is fed",
            "classes": "chooses by the classes of images",
        }
        if self.label != MASK:
            why["class_weight"] = "needs classes"
        for name, reason in why.items():
            if getattr(self, name) is not None:
                raise UsageError(f"label={self.label!r} with {name}: {reason}; leave out one of them")

    def _check_delivery(self) -> None:
        for option in dataclasses.fields(self):
            value, known = getattr(self, option.name), option.metadata.get("known")
            if known and value not in known:
                raise unknown(option.name, str(value), known)
        if self.augment_on != HOST:
            self._check_device()
        if self.on_corrupt == "skip" and self.portable:
            raise UsageError("on_corrupt='skip' with portable=True: TensorFlow's own reader cannot skip; use 'raise'")
        if self.on_corrupt == "skip" and self.weights == "mean" and self.shard is not None:
            raise UsageError(
                "weights='mean' with on_corrupt='skip' and shard: a worker does not know how many rows the others "
                "skip; use weights='mask' and divide by the sum of the weights"
            )
        if self.class_weight is not None:
            self._check_class_weight()
        self._set("shard", as_shard(self.shard))
        if self.weights == "none":
            self._check_unweighted()
        for source in self.sources:
            check_cache(source.data_dir, self.cache_dir, self.cache_bytes)
        if self.cache_dir is not None and self.portable:
            raise UsageError(
                "cache_dir with portable=True: TensorFlow's own reader reads no copies; leave out one of them"
            )

    def _check_class_weight(self) -> None:
        self._set("class_weight", class_weights(self.class_weight))
        if not self.training:
            raise UsageError("class_weight with training=False: an evaluation counts each row once; leave it out")
        if self.augment_on != HOST and self.mixes:
            raise UsageError(
                f"class_weight with augment_on={self.augment_on!r} and augment={self.augment!r}: the class of a mixed "
                "row is known only after it is mixed; use augment_on='host'"
            )

    def _check_unweighted(self) -> None:
        """Raises UsageError if another option rules out `weights="none"`."""
        for name, why in (
            ("training", "training takes full batches; use 'mean' for Keras, else 'mask'"),
            ("start_step", "an evaluation begins at its first record; leave it out"),
            (
                "shard",
                "without weights, no row stands for padding, so that replicas would get different numbers of rows",
            ),
        ):
            if getattr(self, name):
                raise UsageError(f"weights='none' with {name}={getattr(self, name)!r}: {why}")
        if self.on_corrupt == "skip" or self.remainder != "pad":
            name = "remainder" if self.remainder != "pad" else "on_corrupt"
            raise UsageError(
                f"weights='none' with {name}={getattr(self, name)!r}: every record is one row; leave it out"
            )

    def _check_device(self) -> None:
        """Raises UsageError if another option rules out augmentation on a device, alone or together with the host."""
        if self.augment in (None, "none"):
            what = "parse: the parse function returns everything that is fed" if self.parse else "no augment"
            raise UsageError(f"augment_on={self.augment_on!r} with {what}; leave it out")
        if self.is_mixture and self.mixes:
            raise UsageError(
                f"augment_on={self.augment_on!r} with augment={self.augment!r} and {len(self.sources)} sources: rows "
                "are mixed with rows of their own source, which do not lie side by side in a batch; use "
                "augment_on='host'"
            )

    def _set(self, name: str, value: Any) -> None:
        object.__setattr__(self, name, value)

    @property
    def view(self) -> View:
        """View: the records of an epoch, and how often each occurs."""
        return View(self.where, self.limit, self.balance, self.weigh, self.classes)

    @property
    def is_mixture(self) -> bool:
        """Whether `data_dir` is a list of sources and weights, so that messages name the source."""
        return not isinstance(self.data_dir, str | os.PathLike)

    @property
    def sources(self) -> tuple[Source, ...]:
        """Data sets to feed together: a mixture's sources, or a single one."""
        if self.is_mixture:
            return self.data_dir  # type: ignore[return-value]
        return (Source(self.data_dir, self.split, 1.0),)  # type: ignore[arg-type]

    @property
    def folder(self) -> PathLike:
        """Folder of the data set, or of a mixture's first source."""
        return self.sources[0].data_dir

    @property
    def _weighted(self) -> Sequence[tuple[int, Weights]]:
        """(first step, (source, weight)...) of each segment: the schedule's, or one with the sources' own weights."""
        return self.schedule or ((0, tuple((str(source), source.weight) for source in self.sources)),)

    @functools.cached_property
    def shares(self) -> Shares:
        """Each source's share of the rows of a step.

        Without a schedule a unit has all rows that its source fills in a step; with one, all units have the same number
        of rows.

        Raises:
          UsageError: a source with a weight above 0 has no row in a segment.
        """
        segments = tuple((step, checked_shares(self.global_batch_size, sources)) for step, sources in self._weighted)
        units = (unit_of(segments),) * len(self.sources) if self.schedule else segments[0][1]
        return Shares(segments, units)

    def check_replicas(self, num_replicas: int, what: str = "replicas") -> None:
        """Raises UsageError if the replicas do not divide the global batch or, in a mixture, each source's rows."""
        if not self.is_mixture:
            check_replicas(self.global_batch_size, num_replicas)
            return
        for _, sources in self._weighted:
            check_divided(self.global_batch_size, sources, num_replicas, what)

    @property
    def size(self) -> tuple[int, int] | None:
        """(height, width) to which every image is stretched; None to keep images as stored."""
        return parse_size(self.resize)

    @property
    def images_per_record(self) -> int:
        """Number of images per record, the copies of this input; if more than 1, images have an axis for them."""
        return self.copies if self.training else self.eval_copies

    @property
    def crops(self) -> bool:
        """Whether the recipe chooses the part of each image to decode."""
        return isinstance(self.augment, str) and recipes.crops(self.augment)

    @property
    def mixes(self) -> bool:
        """Whether the recipe mixes rows of a batch and their labels."""
        return isinstance(self.augment, str) and recipes.mixes(self.augment)


def class_weights(given: Any, name: str = "class_weight") -> dict[int, float]:
    """Checks class weights and returns them by class number.

    Args:
      given: {class number: factor}.
      name: name of the argument or flag, for messages.

    Raises:
      UsageError: a class is not a number from 0, or a factor is not a finite number from 0.
    """
    if not isinstance(given, Mapping) or not given:
        raise UsageError(f"{name}={given!r}: must map class numbers to factors, as in {{0: 1.0, 3: 2.5}}")
    found: dict[int, float] = {}
    for number, factor in given.items():
        is_number = isinstance(number, numbers.Integral) and not isinstance(number, bool)
        if not is_number or not 0 <= int(number) < MOST_CLASSES:
            raise UsageError(f"{name}: the class {number!r} must be a number from 0 to {MOST_CLASSES - 1:,}")
        is_factor = isinstance(factor, numbers.Real) and not isinstance(factor, bool)
        if not is_factor or not 0 <= float(factor) <= _MOST_FACTOR:
            raise UsageError(f"{name}: the factor of class {number} is {factor!r}: must be a number, 0 or more")
        found[int(number)] = float(factor)
    return found


def check_classes(
    given: Mapping[int, float], class_names: Sequence[str], label: Feature | None, name: str = "class_weight"
) -> None:
    """Raises UsageError if a data set with named classes does not have a class with a factor.

    Args:
      given: {class number: factor}.
      class_names: class names; empty if there are none.
      label: feature of the labels; None if the user's parser makes them.
      name: argument or flag, for the error.
    """
    if given and label is not None and not label.is_class:
        raise UsageError(f"{name}: needs one class per image; the labels are {label}")
    unknown_ones = [str(number) for number in given if number >= len(class_names)] if class_names else []
    if unknown_ones:
        raise UsageError(
            f"{name}: there is no class {', '.join(unknown_ones)}; the data set has 0 to {len(class_names) - 1}"
        )


def check_cache(data_dir: PathLike, cache_dir: Any, cache_bytes: Any) -> None:
    """Raises UsageError if `cache_dir` cannot be a cache folder, or is needed but missing."""
    if cache_dir is None:
        if cache_bytes is not None:
            raise UsageError(f"cache_bytes={cache_bytes}: is the size of a cache; give its folder as cache_dir, too")
        return
    path = os.fspath(cache_dir) if isinstance(cache_dir, str | os.PathLike) else None
    if not isinstance(path, str) or not path or "://" in path:
        raise UsageError(f"cache_dir={cache_dir!r}: must be the path of a folder on this machine")
    data, cache = (os.path.realpath(folder(each).url) for each in (data_dir, path))
    if not folder(data_dir).is_remote and os.path.commonpath([data, cache]) in (data, cache):
        raise UsageError(f"cache_dir={path}: must be outside of data_dir={data_dir}, and not contain it")


def parse_size(size: Any, flag: str = "resize") -> tuple[int, int] | None:
    """Parses a size, given as `224x160`, (224, 160), or 224 for both, into (height, width); None if it is empty.

    Raises:
      UsageError: it is not a size.
    """
    if not size:
        return None
    if isinstance(size, int) and not isinstance(size, bool):
        size = str(size)
    match = (
        _SIZE.fullmatch(values.both_sides(size)) if isinstance(size, str) else None
    )  # no `:=`, which autograph does not support
    if match:
        return int(match[1]), int(match[2])
    if isinstance(size, tuple | list) and len(size) == 2 and all(isinstance(n, int) and 0 < n < 10**5 for n in size):
        return int(size[0]), int(size[1])
    raise UsageError(f"{flag}={size!r}: must be a height and a width, such as 224x224")
