"""Initial weights from Keras' files, for the same model or one that only differs in its head.

There are three formats: `.h5`, in which Keras publishes the weights of `keras.applications` with and without heads;
`.weights.h5`; and `.keras`. In the first, layers are in the order of the model; in the others, they are named after
their classes, with a number: `layers/functional/layers/conv2d_3/vars/0`.
"""

from __future__ import annotations

import contextlib
import io
import pathlib
import zipfile
from collections import Counter
from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple

import h5py
import keras
import numpy as np
from numpy.typing import NDArray

from pipeline.commands.text import count_of
from pipeline.errors import UsageError, line_of
from trainer.config.model import IMAGENET, FirstWeights
from trainer.runtime import file_utils, legacy_h5_format, to_snake_case

_MOST_OF_HEAD = 3  # maximum number of layers in a head: VGG has fc1, fc2 and predictions
_texts = legacy_h5_format.load_attributes_from_hdf5_group  # reads a list of texts, which Keras splits if it is long

Arrays = Sequence[NDArray[Any]]


def load(model: keras.Model, source: str, flag: str = "--initialize_from") -> tuple[FirstWeights, str]:
    """Loads the weights of a file into a model. A head for another number of classes keeps its own weights.

    Args:
      model: built model.
      source: path of the file, or `imagenet`.
      flag: flag to name in errors.

    Returns:
      Identity of the file, and a line about the weights that were not loaded; empty if all were.

    Raises:
      UsageError: the file does not exist, cannot be downloaded or read, or has another architecture; the message names
        the first layer that differs, with both shapes.
    """
    try:
        path = _imagenet_file(model) if source == IMAGENET else pathlib.Path(source)
        note = _load(model, path)
        return FirstWeights.of(path), f"{flag}={source}: {note}" if note else ""
    except (OSError, ValueError, KeyError, zipfile.BadZipFile, UsageError) as error:
        raise UsageError(f"{flag}={source}: {line_of(error)}") from None


class _Leaf(NamedTuple):
    """A layer with weights, with its `place` in Keras' newer formats."""

    place: str
    layer: Any

    @property
    def shapes(self) -> list[tuple[int, ...]]:
        return [tuple(weight.shape) for weight in self.layer.weights]


def _load(model: keras.Model, path: pathlib.Path) -> str:
    """Loads a file; returns a line about the weights that were not loaded."""
    with _opened(path) as file:
        if _is_flat(model):
            return _fill(model, file.get("model_weights", file))
    model.load_weights(str(path))  # only Keras knows where the file has other kinds of layers
    return ""


@contextlib.contextmanager
def _opened(path: pathlib.Path) -> Iterator[h5py.File]:
    if not path.is_file():
        raise FileNotFoundError("there is no such file")
    source: Any = str(path)
    if path.suffix == ".keras":
        with zipfile.ZipFile(path) as archive:
            source = io.BytesIO(archive.read("model.weights.h5"))
    with h5py.File(source, "r") as file:
        yield file


def _fill(model: keras.Model, group: Any) -> str:
    """Sets the weights layer by layer; all must fit, except in the head."""
    whole, base = list(_leaves(model)), base_of(model)
    head = whole[-1] if base is None or whole[-1].layer not in base.layers else None
    head = head if len(whole) > 1 else None
    by_order = _legacy_names(group) is not None
    is_bare = base is not None and "layers/functional" not in group  # only the base's file, with or without a head
    ours = list(_leaves(base, nested=not by_order)) if is_bare else whole
    body = [leaf for leaf in ours if head is None or leaf.layer is not head.layer]
    found, rest = _split(_stored(group), body, by_order)
    for leaf, arrays in zip(body, found, strict=True):
        if arrays is None or [one.shape for one in arrays] != leaf.shapes:
            has = "no such layer" if arrays is None else _in_words([one.shape for one in arrays])
            raise UsageError(
                f"has a different architecture: layer {leaf.layer.name} has {_in_words(leaf.shapes)} here, and the "
                f"file has {has}"
            )
    if len(rest) > (_MOST_OF_HEAD if is_bare else 1 if head else 0):
        name, arrays = rest[0]
        raise UsageError(
            f"has a different architecture: it has {count_of(len(rest), 'more layer')}, the first of them {name} of "
            f"{_in_words([one.shape for one in arrays])}"
        )
    for leaf, arrays in zip(body, found, strict=True):
        _assign(leaf, arrays or ())
    return _fill_head(head, rest) if head else ""


def _fill_head(head: _Leaf, rest: Sequence[tuple[str, Arrays]]) -> str:
    last = rest[-1][1] if rest else []
    if len(rest) == 1 and [one.shape for one in last] == head.shapes:
        _assign(head, last)
        return ""
    classes = f"one of {count_of(last[0].shape[-1], 'class', 'classes')}" if last else "none"
    return f"taken but for the head, which begins anew ({_in_words(head.shapes)}; the file has {classes})"


def _assign(leaf: _Leaf, arrays: Arrays) -> None:
    for weight, value in zip(leaf.layer.weights, arrays, strict=True):
        weight.assign(value)


def base_of(model: keras.Model) -> Any:
    """Returns the part of a model that `pretrained` has built; None if there is none."""
    parts = [model, *getattr(model, "layers", ())]
    return next((part for part in parts if hasattr(part, "application")), None)


def _is_flat(model: keras.Model) -> bool:
    """Returns whether all weights belong to layers without nested layers, in functional and sequential models.

    Keras' files store the weights of composite layers, such as `LSTM` and `Bidirectional`, and of subclassed models
    elsewhere.
    """
    parts = [model, *model._flatten_layers(include_self=False)]
    models = [part for part in parts if isinstance(part, keras.Model)]
    leaves = [leaf.layer for leaf in _leaves(model)]
    inside = [part for layer in leaves for part in layer._flatten_layers(include_self=False) if part.weights]
    own = {id(weight) for layer in leaves for weight in layer.weights}
    is_known = all(part._obj_type() in ("Functional", "Sequential") for part in models)
    return is_known and not inside and own == {id(weight) for weight in model.weights}


def _leaves(model: Any, prefix: str = "", nested: bool = True) -> Iterator[_Leaf]:
    """Yields a functional or sequential model's layers with weights; if `nested`, also from models inside it."""
    counts = Counter[str]()
    for layer in getattr(model, "layers", ()):
        kind = to_snake_case(type(layer).__name__)
        name = f"{kind}_{counts[kind]}" if counts[kind] else kind
        counts[kind] += 1
        place = f"{prefix}layers/{name}"
        if isinstance(layer, keras.Model) and nested:
            yield from _leaves(layer, f"{place}/")
        elif layer.weights:
            yield _Leaf(place, layer)


def _stored(group: Any) -> dict[str, Arrays]:
    """Returns the arrays of each layer with weights in a file, in file order or by place."""
    names = _legacy_names(group)
    if names is not None:
        each = {name: [np.asarray(group[name][one]) for one in _texts(group[name], "weight_names")] for name in names}
        return {name: arrays for name, arrays in each.items() if arrays and not _is_normalisation(arrays)}
    found = dict[str, Arrays]()

    def visit(name: str, part: Any) -> None:
        if name.endswith("/vars") and len(part) and "seed_generator" not in name:
            arrays = [np.asarray(part[str(i)]) for i in range(len(part))]
            if not _is_normalisation(arrays):
                found[name.removesuffix("/vars")] = arrays

    group.visititems(visit)
    return found


def _is_normalisation(arrays: Arrays) -> bool:
    """Returns whether arrays are mean, variance and count of EfficientNet's first layer, which our model lacks."""
    return [one.shape for one in arrays] == [(3,), (3,), ()]


def _split(
    stored: dict[str, Arrays], body: Sequence[_Leaf], by_order: bool
) -> tuple[list[Arrays | None], list[tuple[str, Arrays]]]:
    """Returns the arrays of each layer of the body, None for missing ones, and the remaining layers."""
    if by_order:
        found = list(stored.items())
        missing: list[Arrays | None] = [None] * (len(body) - len(found))
        return [arrays for _, arrays in found[: len(body)]] + missing, found[len(body) :]
    places = {leaf.place for leaf in body}
    return [stored.get(leaf.place) for leaf in body], [one for one in stored.items() if one[0] not in places]


def _legacy_names(group: Any) -> list[str] | None:
    """Returns the layer names of a file in the published format; None if it is in a newer one."""
    return _texts(group, "layer_names") if {"layer_names", "layer_names0"} & set(group.attrs) else None


def _in_words(shapes: Sequence[tuple[int, ...]]) -> str:
    return " and ".join(map(str, shapes))


class _Asked(Exception):  # noqa: N818, not an error
    """Raised when Keras asks for a file."""


def _imagenet_file(model: keras.Model) -> pathlib.Path:
    """Returns Keras' file of ImageNet weights without the head; downloads it unless it is in Keras' cache."""
    base = base_of(model)
    if base is None:
        raise UsageError("the model was not built by trainer.models.pretrained; give a file of its weights")
    asked: dict[str, Any] = {}

    def ask(fname: str, origin: str, **options: Any) -> str:
        asked.update(options, fname=fname, origin=origin)
        raise _Asked

    # Only the function that builds a model knows the name, URL and digest of its file.
    get_file, file_utils.get_file = file_utils.get_file, ask
    try:
        with contextlib.suppress(_Asked):
            getattr(keras.applications, base.application)(
                include_top=False, weights=IMAGENET, input_shape=base.input_shape[1:]
            )
    finally:
        file_utils.get_file = get_file
    folder = pathlib.Path(file_utils.config.keras_home()) / asked["cache_subdir"]
    try:
        return pathlib.Path(get_file(**asked))
    except Exception as error:  # Keras has no more specific error
        raise UsageError(
            f"{asked['fname']} is not in {folder} and cannot be fetched ({line_of(error)}); fetch {asked['origin']} "
            "elsewhere and put it there, or give it as --initialize_from=FILE"
        ) from None
