"""Augmentation by other libraries, seeded per record: Keras layers, torchvision transforms, Albumentations.

These libraries draw from generators that count their calls, so that a resumed run, or a run on other workers, would
draw differently. Here they are called once per image, and all their generators are seeded from the row's key.
"""

from __future__ import annotations

import contextlib
import copy
import functools
import random
import sys
import threading
from collections.abc import Callable, Iterator
from typing import Any, NamedTuple, Protocol

import numpy as np
import tensorflow as tf

from pipeline import graph_calls
from pipeline.augmentation.base import UserAugmented
from pipeline.errors import UsageError, of_user
from pipeline.order import graph_hashing, hashing

_FIRST_DRAW = 1 << 32  # a key's first draw for seeds; `pipeline.uniform` in a user's function uses the draws before it
_CHANNELS = (1, 3, 4)  # numbers of channels that images may have
_KERAS, _TORCHVISION, _ALBUMENTATIONS = "Keras", "torchvision", "Albumentations"
_MIXES = (
    "mixes the rows of a batch, but is called on one image at a time here; use the recipe mixup, cutmix or "
    "mixup_or_cutmix"
)
_TRACED = (
    "draws from Python's generator while TensorFlow traces it, so that all images would get the same draws; use "
    "RandAugment, or the recipe randaugment"
)
_REFUSED = {
    (_KERAS, "AugMix"): _TRACED,
    **{(library, name): _MIXES for library in (_KERAS, _TORCHVISION) for name in ("MixUp", "CutMix")},
}
_TAKE_PIL = {"ToTensor", "PILToTensor"}  # torchvision transforms that leave tensors unchanged

_OF_EVALUATIONS = {"Normalize", "Grayscale", "ToGray"}  # a model trained with one of these needs it in evaluations, too

_global_draws = threading.Lock()  # held while the generators of the whole process are seeded


class _Wrapped(Protocol):
    """A library's transform, for batches."""

    def __call__(self, images: tf.Tensor, keys: tf.Tensor, training: bool) -> tf.Tensor:
        """Returns images (rows, ...), each from a separate call that draws from the image's key.

        Args:
          images: (rows, height, width, channels).
          keys: uint64 (rows,).
          training: whether to draw; if not, the library's own form for evaluations is used.
        """


class Augment:
    """Function of (images, keys, training), for `augment` of `input_fn` or for `parse`. See `augment`."""

    def __init__(self, transform: Any, evaluation: Any = None) -> None:
        self._training = _wrapped(transform)
        self._evaluation = self._training if evaluation is None else _wrapped(evaluation)

    @tf.autograph.experimental.do_not_convert
    def __call__(self, images: tf.Tensor, keys: tf.Tensor, training: bool) -> tf.Tensor:
        """Returns the augmented images, (rows, height, width, channels); in evaluation, as described at `augment`.

        Args:
          images: (rows, height, width, channels).
          keys: uint64 (rows,), one per image. Equal keys give equal draws, so that an image and its mask stay together.
          training: whether to augment. It has no default, so that `lambda images, keys: own(images, keys)` cannot
            silently augment evaluations.
        """
        if training:
            return self._training(images, keys, training=True)
        # A Python transform has no form for evaluations: one given for evaluations is applied unchanged.
        has_form = isinstance(self._evaluation, _Layer) or self._evaluation is self._training
        return self._evaluation(images, keys, training=not has_form)


def augment(transform: Any, evaluation: Any = None) -> Augment:
    """Returns an augmentation by another library's transform, with draws that depend only on (seed, epoch, record).

        layers = keras.Sequential([keras.layers.RandomFlip("horizontal"), keras.layers.RandomRotation(0.1)])
        train = input_fn(..., training=True, augment=augment(layers))

    The draws are equal on any topology, after any resume and in any process. Layers of Keras become operations of the
    input's graph. Transforms of torchvision and Albumentations run in this process, one image at a time.

    Args:
      transform: a layer of Keras, or a `keras.Sequential` or `keras.layers.Pipeline` of layers; a transform of
        torchvision (v2), which gets uint8 `tv_tensors.Image`, or PIL images if it has a `ToTensor` or `PILToTensor`; or
        a transform of Albumentations (2.0.8), which gets uint8 arrays.
      evaluation: the transform in evaluations, for a `transform` that changes shape or dtype, or that normalises or
        makes grey images; None: images stay as they are, and layers of Keras are called with `training=False`.

    Raises:
      UsageError: `transform` is none of these, or its draws cannot be seeded per image; or, when called, it fails or
        its images differ in shape.
    """
    return Augment(transform, evaluation)


def library_of(transform: Any) -> str | None:
    """Returns the library of a transform, without importing any; None if `augment` does not wrap it."""
    kinds = {kind.__module__.split(".")[0] + "." + kind.__name__ for kind in type(transform).__mro__}
    if "keras.Layer" in kinds:
        return _KERAS
    if kinds & {"albumentations.BasicTransform", "albumentations.BaseCompose"}:
        return _ALBUMENTATIONS
    if "torch.Module" in kinds or any(kind.startswith("torchvision.") for kind in kinds):
        return _TORCHVISION
    return None


def user_recipe(augment: Any, name: str = "augment", no_python: str = "") -> UserAugmented:
    """Returns the recipe that calls a user's function of (images, keys).

    Args:
      augment: the user's function.
      name: name of the argument or method that is the function, for messages.
      no_python: reason why the function may not call Python; "" if it may.

    Raises:
      UsageError: the function is a library's transform that draws by itself, or needs an argument that it does not get.
    """
    if library := library_of(augment):
        kind = f"{type(augment).__name__} of {library}"
        raise UsageError(f"{name}: {kind} draws by itself; give it as pipeline.augment(...)")
    return UserAugmented(graph_calls.UserFunction.of(name, augment, any_keys=True, no_python=no_python))


def _wrapped(transform: Any) -> _Wrapped:
    kinds: dict[str | None, Callable[[Any], _Wrapped]] = {
        _KERAS: _Layer,
        _TORCHVISION: lambda own: _PerImage(_Torchvision(own)),
        _ALBUMENTATIONS: lambda own: _PerImage(_Albumentations(own)),
    }
    library = library_of(transform)
    if library is None:
        raise UsageError(
            f"augment: {transform!r} is not a layer of Keras 3 or a transform of torchvision or Albumentations; pass a "
            "function of (images, keys) to input_fn directly"
        )
    return kinds[library](transform)


def _check_parts(library: str, parts: list[Any]) -> None:
    for part in parts:
        name = type(part).__name__
        needs_others = getattr(part, "metadata_key", None) is not None  # Albumentations' transforms have it
        why = "takes pixels of other rows by metadata" if needs_others else _REFUSED.get((library, name))
        if why:
            raise UsageError(f"augment: {name} of {library} {why}")


_Values = list[tuple[Any, Any]]  # variables of Keras, and values for them


class _Layer:
    """A Keras layer: each of its generators gets a seed drawn from the row's key."""

    def __init__(self, layer: Any) -> None:
        import keras  # noqa: PLC0415, here because who has no layers of Keras need not load it

        if keras.backend.backend() != "tensorflow":
            raise UsageError(
                f"augment: Keras has the backend {keras.backend.backend()}, whose draws cannot be part of tf.data; set "
                "KERAS_BACKEND=tensorflow, or use recipes"
            )
        self._layer, self._name = layer, type(layer).__name__
        _check_parts(_KERAS, layer._flatten_layers())

    def __call__(self, images: tf.Tensor, keys: tf.Tensor, training: bool) -> tf.Tensor:
        self._check_axes(images)
        with tf.init_scope():
            if not self._layer.built:
                self._called(tf.zeros([1, *images.shape[1:]], images.dtype), training=False)
            # Constants, so that the input has no variables and other processes can run it.
            weights = [(variable, variable.numpy()) for variable in self._layer.weights]
        known = {id(variable) for variable, _ in weights}
        seeds = [variable for variable in self._layer.variables if id(variable) not in known]

        def row(training: bool) -> Any:
            def of_row(image: tf.Tensor, key: tf.Tensor) -> tf.Tensor:
                drawn = [(seed, _keras_seed(key, number, seed.dtype)) for number, seed in enumerate(seeds)]
                return self._with_state(image[None], weights, drawn, training)[0][0]

            specs = tf.TensorSpec(images.shape[1:], images.dtype), tf.TensorSpec([], tf.uint64)
            return tf.function(of_row, autograph=False).get_concrete_function(*specs)

        called = row(training=True)
        spec = tf.TensorSpec(called.structured_outputs.shape, called.structured_outputs.dtype)
        if not training:
            unseeded = [(seed, tf.zeros(seed.shape, seed.dtype)) for seed in seeds]
            whole, draws = self._with_state(images, weights, unseeded, training=False)
            if (whole.shape[1:], whole.dtype) != (spec.shape, spec.dtype):
                other = f"in training, and {whole.dtype.name} {whole.shape[1:]} in evaluations"
                raise _needs_evaluation(self._name, f"makes {spec.dtype.name} {spec.shape} {other}")
            if not draws:
                return whole
            called = row(training=False)  # RandomGrayscale and others also draw in evaluations
        augmented = tf.map_fn(lambda given: called(*given), (images, keys), fn_output_signature=spec)
        return tf.ensure_shape(augmented, [images.shape[0], *spec.shape])

    def _check_axes(self, images: tf.Tensor) -> None:
        """Raises UsageError if the layer would silently mistake the height for channels."""
        first = next(one for one in self._layer._flatten_layers() if not one._layers)
        is_last = images.shape[-1] in _CHANNELS and images.shape[1] not in _CHANNELS
        if is_last and getattr(first, "data_format", None) == "channels_first":
            raise UsageError(
                f"augment: {self._name} has data_format='channels_first', but gets images (rows, height, width, "
                f"channels), {images.shape}; make its layers with data_format='channels_last'"
            )

    def _with_state(
        self, images: tf.Tensor, weights: _Values, seeds: _Values, training: bool
    ) -> tuple[tf.Tensor, bool]:
        """Returns the layer's result, given the values of its weights and of its generators, and whether it drew."""
        import keras  # noqa: PLC0415, as above

        weights = [(variable, tf.constant(value, variable.dtype)) for variable, value in weights]
        own = {id(variable) for variable, _ in (*weights, *seeds)}
        with keras.StatelessScope([*weights, *seeds]) as scope:
            before = [scope.get_current_value(one) for one, _ in weights]
            made = self._called(images, training)
            after = [scope.get_current_value(one) for one, _ in weights]
            draws = any(scope.get_current_value(seed) is not given for seed, given in seeds)
        changed = [weights[i][0].path for i in range(len(weights)) if before[i] is not after[i]]
        if changed:
            raise UsageError(f"augment: {self._name} changes {', '.join(changed)}: its calls depend on each other")
        if any(at not in own for at in scope.state_mapping):
            raise UsageError(
                f"augment: {self._name} draws from a generator that is not its own, as keras.random does without a "
                "seed; make a keras.random.SeedGenerator in its __init__ and draw with it"
            )
        if not isinstance(made, tf.Tensor) or made.shape[:1] != images.shape[:1]:
            raise UsageError(f"augment: {self._name} must return one image for each; it returned {made}")
        return made, draws

    def _called(self, images: tf.Tensor, training: bool) -> Any:
        try:
            return self._layer(images, training=training)
        except Exception as error:
            given = f"{images.dtype.name} {images.shape}"
            raise UsageError(f"augment: {self._name} fails on {given}: {of_user(error)}") from error


def _needs_evaluation(name: str, why: str) -> UsageError:
    return UsageError(
        f"augment: {name} {why}, so that evaluations need a transform of their own: augment(transform, evaluation=...)"
    )


def _keras_seed(key: tf.Tensor, number: int, dtype: str) -> tf.Tensor:
    """Returns a state for a Keras generator, (2,): two numbers below 2**30 from a draw, because Keras adds to them."""
    drawn = graph_hashing.splitmix64(key + tf.constant(_FIRST_DRAW + number, tf.uint64))
    both = tf.stack([tf.bitwise.right_shift(drawn, tf.constant(bits, tf.uint64)) for bits in (34, 4)])
    return tf.cast(tf.bitwise.bitwise_and(both, tf.constant((1 << 30) - 1, tf.uint64)), dtype)


class _Kind(NamedTuple):
    """Shape and dtype of an image."""

    shape: tuple[int, ...]
    dtype: np.dtype[Any]


class _Transform(Protocol):
    """A transform of images in Python.

    Attributes:
      name: its name in messages.
      parts: the transform itself and the transforms it consists of.
    """

    name: str
    parts: list[Any]

    def seeding(self) -> contextlib.AbstractContextManager[Callable[[np.ndarray, int], np.ndarray]]:
        """Returns a context in which the transform of (image, seed) can be called, in any thread."""


class _PerImage:
    """A transform in Python, called by TensorFlow."""

    def __init__(self, transform: _Transform) -> None:
        self._transform = transform
        self._kinds: dict[_Kind, _Kind] = {}

    def __call__(self, images: tf.Tensor, keys: tf.Tensor, training: bool) -> tf.Tensor:
        if not images.shape[1:].is_fully_defined():
            raise UsageError(
                f"augment: {self._transform.name} needs images of a known size, got {images.shape}; use resize, or "
                "tf.ensure_shape"
            )
        given = _Kind(tuple(images.shape[1:]), np.dtype(images.dtype.as_numpy_dtype))
        made = self._kinds.get(given) or self._kinds.setdefault(given, self._kind_of(given))
        if not training:
            if made != given:
                raise _needs_evaluation(self._transform.name, f"makes {_text(made)} of {_text(given)}")
            for part in self._transform.parts:
                if type(part).__name__ in _OF_EVALUATIONS and getattr(part, "p", 1) == 1:
                    raise _needs_evaluation(self._transform.name, f"has a {type(part).__name__}")
            return images
        call = functools.partial(self._rows, made)
        [augmented] = graph_calls.call_numpy(call, [images, keys], [tf.as_dtype(made.dtype)], graph_calls.SEEDED)
        return tf.ensure_shape(augmented, [images.shape[0], *made.shape])

    def _kind_of(self, given: _Kind) -> _Kind:
        with self._transform.seeding() as call:
            made = self._checked(call, np.zeros(given.shape, given.dtype), 0)
        return _Kind(made.shape, made.dtype)

    def _rows(self, kind: _Kind, images: np.ndarray, keys: np.ndarray) -> tuple[np.ndarray]:
        made = np.empty((len(images), *kind.shape), kind.dtype)
        with np.errstate(over="ignore"):
            seeds = hashing.splitmix64(keys + np.uint64(_FIRST_DRAW))
        with self._transform.seeding() as call:
            for row, (image, seed) in enumerate(zip(images, seeds, strict=True)):
                found = self._checked(call, np.array(image), int(seed))  # a copy, which the transform may change
                if (found.shape, found.dtype) != kind:
                    raise UsageError(
                        f"augment: {self._transform.name} makes images of {_text(kind)} and of "
                        f"{_text(_Kind(found.shape, found.dtype))}; end it with a crop or resize to one size"
                    )
                made[row] = found
        return (made,)

    def _checked(self, call: Callable[[np.ndarray, int], np.ndarray], image: np.ndarray, seed: int) -> np.ndarray:
        try:
            made = call(image, seed)
        except Exception as error:
            text = _text(_Kind(image.shape, image.dtype))
            raise UsageError(f"augment: {self._transform.name} fails on {text}: {of_user(error)}") from error
        if not isinstance(made, np.ndarray) or made.ndim not in (2, 3) or made.dtype == object:
            raise UsageError(f"augment: {self._transform.name} must return an image, returned {type(made).__name__}")
        return made[..., None] if made.ndim == 2 else made


def _text(kind: _Kind) -> str:
    return f"{kind.dtype.name} {kind.shape}"


class _Albumentations:
    """An Albumentations transform, which has its own generators: each call uses a copy, kept for the next call."""

    def __init__(self, transform: Any) -> None:
        self.name = f"{type(transform).__name__} of {_ALBUMENTATIONS}"
        self.parts = list(_parts(transform))
        _check_parts(_ALBUMENTATIONS, self.parts)
        if not hasattr(transform, "set_random_seed"):
            raise UsageError(f"augment: {self.name} cannot be seeded in this version; use Albumentations 2.0.8")
        self._has_own = _has_own(self.parts, "albumentations.")
        self._transform = transform
        self._idle: list[Any] = []  # copies that no call is using

    @contextlib.contextmanager
    def seeding(self) -> Iterator[Callable[[np.ndarray, int], np.ndarray]]:
        # Not one copy per thread: to Python, a TensorFlow thread exists only for the duration of one call.
        try:
            transform = self._idle.pop()
        except IndexError:
            transform = copy.deepcopy(self._transform)
        seed_opencv = sys.modules["cv2"].setRNGSeed

        def call(image: np.ndarray, seed: int) -> np.ndarray:
            transform.set_random_seed(seed)
            seed_opencv(seed & (1 << 31) - 1)  # OpenCV has one generator per thread
            made = transform(image=image)["image"]
            return _of_torch(made) if hasattr(made, "detach") else made

        try:
            with _seeded(call) if self._has_own else contextlib.nullcontext(call) as seeded:
                yield seeded
        finally:
            self._idle.append(transform)


class _Torchvision:
    """A torchvision transform: each thread has a generator, which is passed to the PyTorch functions that draw."""

    def __init__(self, transform: Any) -> None:
        self.name = f"{type(transform).__name__} of {_TORCHVISION}"
        self.parts = list(_parts(transform))
        _check_parts(_TORCHVISION, self.parts)
        self._takes_pil = any(type(part).__name__ in _TAKE_PIL for part in self.parts)
        self._has_own = _has_own(self.parts, "torchvision.transforms.v2.", "torch.nn.modules.container")
        self._transform = transform

    def seeding(self) -> contextlib.AbstractContextManager[Callable[[np.ndarray, int], np.ndarray]]:
        import torch  # noqa: PLC0415, here because the input does not need it

        generator = torch.Generator()
        drawing_from = _torch_mode()

        def call(image: np.ndarray, seed: int) -> np.ndarray:
            generator.manual_seed(seed)
            with torch.no_grad(), drawing_from(generator):
                made = self._transform(self._given(image))
            is_pil = hasattr(made, "getbands")
            return _of_torch(made) if isinstance(made, torch.Tensor) else np.asarray(made) if is_pil else made

        return _seeded(call) if self._has_own else contextlib.nullcontext(call)

    def _given(self, image: np.ndarray) -> Any:
        if self._takes_pil:
            import PIL.Image  # noqa: PLC0415, here because the input does not need it

            return PIL.Image.fromarray(image[..., 0] if image.shape[-1] == 1 else image)
        import torch  # noqa: PLC0415, likewise
        from torchvision import tv_tensors  # noqa: PLC0415, likewise

        return tv_tensors.Image(torch.from_numpy(image).permute(2, 0, 1).contiguous())


@functools.cache
def _torch_mode() -> Callable[[Any], contextlib.AbstractContextManager[None]]:
    """Returns a context for one thread in which the PyTorch functions that draw use the generator given to it.

    Otherwise they would use the process's generator, and other threads, such as the user's loop, may draw from it.
    """
    import torch  # noqa: PLC0415, here because the input does not need it
    from torch.overrides import TorchFunctionMode  # noqa: PLC0415, likewise

    free = "rand randn randint randperm normal bernoulli multinomial poisson _sample_dirichlet"
    of_tensors = "uniform_ normal_ random_ bernoulli_ exponential_ geometric_ log_normal_ cauchy_ bernoulli multinomial"
    drawing = {getattr(torch, name) for name in free.split()}
    drawing |= {getattr(torch.Tensor, name) for name in of_tensors.split()}

    class Drawing(TorchFunctionMode):  # type: ignore[misc]
        def __init__(self, generator: Any) -> None:
            super().__init__()
            self._generator = generator

        def __torch_function__(self, function: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
            named = dict(kwargs or {})
            if function is torch.randn_like:  # it takes no generator
                return torch.empty_like(*args, **named).normal_(generator=self._generator)
            if function in drawing and named.get("generator") is None:
                named["generator"] = self._generator
            return function(*args, **named)

    return Drawing


def _parts(transform: Any) -> Iterator[Any]:
    """Yields a transform and the transforms it consists of."""
    yield transform
    inner = getattr(transform, "transforms", None)
    if inner is None and hasattr(transform, "children"):
        inner = transform.children()
    for part in inner or ():
        yield from _parts(part)


def _has_own(parts: list[Any], *modules: str) -> bool:
    """Returns whether a part comes from outside these modules, so that it may draw from any generator of the process.

    That includes the user's own code, but also PyTorch's Dropout, whose function accepts no generator.
    """
    return any(type(part).__name__ == "Lambda" or not type(part).__module__.startswith(modules) for part in parts)


class _Generator(NamedTuple):
    """A generator shared by the whole process."""

    state: Callable[[], Any]
    restore: Callable[[Any], Any]
    seed: Callable[[int], Any]


def _generators() -> list[_Generator]:
    """Returns the generators of Python, NumPy and, if it is loaded, PyTorch."""
    seed_numpy = lambda seed: np.random.seed([seed >> 32, seed & 0xFFFFFFFF])  # noqa: E731
    found = [
        _Generator(random.getstate, random.setstate, random.seed),
        _Generator(np.random.get_state, np.random.set_state, seed_numpy),
    ]
    if torch := sys.modules.get("torch"):
        found.append(_Generator(torch.get_rng_state, torch.set_rng_state, torch.default_generator.manual_seed))
    return found


@contextlib.contextmanager
def _seeded(call: Callable[[np.ndarray, int], np.ndarray]) -> Iterator[Callable[[np.ndarray, int], np.ndarray]]:
    """Context for a function of (image, seed) that draws from the process's generators; restores them at the end."""
    generators = _generators()

    def seeded(image: np.ndarray, seed: int) -> np.ndarray:
        for generator in generators:
            generator.seed(seed)
        return call(image, seed)

    with _global_draws:
        states = [generator.state() for generator in generators]
        try:
            yield seeded
        finally:
            for generator, state in zip(generators, states, strict=True):
                generator.restore(state)


def _of_torch(image: Any) -> np.ndarray:
    """Returns a PyTorch tensor, (channels, height, width), as an array (height, width, channels)."""
    found: np.ndarray = (image.permute(1, 2, 0) if image.ndim == 3 else image).detach().cpu().numpy()
    return found
