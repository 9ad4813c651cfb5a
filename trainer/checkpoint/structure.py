"""The structure of a model, which checkpoints store besides the weights and workers compare.

Weights fit any model with the same shapes, so another model could silently resume from a checkpoint. The structure
tells models apart: class, configuration, inputs and weights of each layer, and the optimizer and loss of a compiled
model. It is JSON, and the same in every process: names that Keras numbers are numbered per model, and code is
represented by its digest.
"""

from __future__ import annotations

import ast
import base64
import binascii
import collections
import difflib
import functools
import hashlib
import inspect
import itertools
import json
import marshal
import re
import sys
import textwrap
import types
import warnings
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, NamedTuple

import keras

Structure = Mapping[str, Any]

_PYTHON = ".".join(map(str, sys.version_info[:2]))
_MOST_CHARACTERS = 60  # characters of a value in a message
# Layers without weights that only act in training: adding or removing one does not change the model.
_OF_TRAINING = re.compile(r"\w*Dropout(\dD)?|Gaussian(Noise|Dropout)|ActivityRegularization")
# Arguments that affect how a layer is trained rather than what it computes: any layer's, and those of Keras' layers.
_HARMLESS = re.compile(r"seed|trainable|\w*_(regularizer|constraint)")
_HARMLESS_OF_KERAS = re.compile(r"rate|stddev|momentum")
_MOST_NAMED = 5  # changes in one message
_LEFT_OUT = re.compile(r"name|\w*_?initializer")  # names are stored separately; initial weights are replaced
_OF_LIBRARIES = ("keras", "tensorflow", "trainer", "builtins")
_SIMPLE = (bool, int, float, str, types.FunctionType, types.BuiltinFunctionType)  # types of attributes to compare
_CODE = "code"


class Change(NamedTuple):
    """A difference between two structures.

    Attributes:
      what: place of the change, such as `layer conv2d: activation`.
      was, now: values as text; None if missing.
      is_harmless: whether weights still fit across the change.
    """

    what: str
    was: str | None
    now: str | None
    is_harmless: bool

    def __str__(self) -> str:
        """Returns text such as `layer conv2d: activation was relu, is gelu`."""
        if self.was is None or self.now is None:
            return f"{self.what} is {'new' if self.was is None else 'gone'}"
        return f"{self.what} was {self.was}, is {self.now}"


def of(model: keras.Model) -> dict[str, Any]:
    """Returns the structure of a built model, JSON-compatible."""
    with warnings.catch_warnings():  # Keras warns about loading lambdas; none are loaded here
        warnings.simplefilter("ignore")
        found: dict[str, Any] = {
            "keras": keras.__version__,
            "class": type(model).__name__,
            "config": {} if _graph(model) else _config(model),
            "layers": [described for _, described in _parts(model, "", collections.Counter(), set())],
            _CODE: _code_of_class(model),
        }
        if model.compiled:
            found["optimizer"] = _object(model.optimizer)
            weights = getattr(getattr(model, "_compile_loss", None), "_user_loss_weights", None)  # has no public name
            found["loss"] = _canonical(model.loss if weights is None else {"loss": model.loss, "loss_weights": weights})
    result: dict[str, Any] = json.loads(json.dumps(found))
    return result


def layers_of(model: keras.Model) -> dict[str, keras.layers.Layer]:
    """Returns the layers of a built model, including nested ones, by their names in messages: `block/conv2d_1`."""
    parts = _parts(model, "", collections.Counter(), set())
    return {described["name"]: part for part, described in parts if isinstance(part, keras.layers.Layer)}


def changes(
    was: Structure, now: Structure, precisions: tuple[str, str] | None = None, is_trained: bool = True
) -> list[Change]:
    """Returns the differences between two structures, harmless ones last.

    Args:
      was, now: structures to compare.
      precisions: dtype policies of both runs; a change from one to the other is left out, as a flag reports it.
      is_trained: whether to compare the optimizer and the loss.
    """
    same_keras = was["keras"] == now["keras"]  # if not, one version may have arguments that the other lacks
    found = [*_of_skeleton(_skeleton(was), _skeleton(now), same_keras), *_of_training(was, now, same_keras)]
    for part in ("optimizer", "loss") if is_trained else ():
        found += _of_part(part, was.get(part), now.get(part), same_keras)
    for key in _differing(was["config"], now["config"], same_keras):
        found.append(Change(f"the model's {key}", *_both(was["config"].get(key), now["config"].get(key)), False))
    if was[_CODE] != now[_CODE] and was["class"] == now["class"]:
        found.append(Change(f"the code of {now['class']}", "another", "this one", True))
    policies = precisions and tuple(map(_text, precisions))
    found = [one for one in found if not (policies and one.what.endswith(": dtype") and (one.was, one.now) == policies)]
    return sorted(found, key=lambda change: change.is_harmless)


def in_words(changed: Sequence[Change]) -> str:
    """Returns the first changes in one line, and the number of others."""
    more = f"; and {len(changed) - _MOST_NAMED} more" if len(changed) > _MOST_NAMED else ""
    return "; ".join(map(str, changed[:_MOST_NAMED])) + more


def _parts(
    whole: Any, prefix: str, counts: collections.Counter[str], seen: set[int]
) -> Iterator[tuple[Any, dict[str, Any]]]:
    """Yields the layers of a model or a layer with their descriptions, each followed by the layers inside it.

    `counts` has the number of names that Keras has made so far, by kind; `seen` the ids of layers already yielded, as a
    layer may be shared.
    """
    graph = _graph(whole)
    nodes = graph._nodes if graph else ()
    parts = graph.operations if graph else whole._flatten_layers(include_self=False, recursive=False)
    names: dict[int, str] = {}
    for part in parts:
        if id(part) in seen:
            continue
        seen.add(id(part))
        auto = _auto_name(part, counts)
        names[id(part)] = name = f"{prefix}{auto or part.name}"
        is_layer, is_graph = isinstance(part, keras.layers.Layer), _graph(part) is not None
        described = {
            "name": name,
            "is_named": auto is None,
            "class": type(part).__name__,
            "config": {} if is_graph else _config(part),
            "inputs": [_inputs(node, names) for node in part._inbound_nodes if _is_of(node, nodes, names)],
            "weights": [[v.name, list(v.shape), v.dtype] for v in part.weights] if is_layer and not is_graph else [],
            _CODE: _code_of_class(part),
        }
        yield part, described
        if is_layer:
            yield from _parts(part, f"{name}/", counts, seen)


def _graph(part: Any) -> Any:
    """Returns the graph of a functional or sequential model; None for a subclassed model or a layer."""
    graph = getattr(part, "_functional", None) or part  # inside Sequential
    return graph if isinstance(graph, keras.Model) and hasattr(graph, "operations") else None


def _is_of(node: Any, nodes: Sequence[Any], names: Mapping[int, str]) -> bool:
    """Returns whether a call of a layer belongs to this model, as a layer may be shared with others."""
    if any(node is one for one in nodes):
        return True
    sources = [tensor._keras_history.operation for tensor in node.input_tensors]
    return bool(sources) and all(id(source) in names for source in sources)


def _inputs(node: Any, names: Mapping[int, str]) -> Any:
    """Returns the arguments of a call, with tensors represented by their layer and its output index."""

    def shown(value: Any) -> Any:
        history = getattr(value, "_keras_history", None)
        if history is None:
            return _canonical(value)
        return {"from": names.get(id(history.operation), "an input"), "output": history.tensor_index}

    arguments = keras.tree.map_structure(shown, [list(node.arguments.args), _without_none(node.arguments.kwargs)])
    return arguments if arguments[1] else arguments[0]


def _auto_name(part: Any, counts: collections.Counter[str]) -> str | None:
    """Returns a name made by Keras, renumbered per model rather than per process; None if the user named the layer."""
    words = re.sub("([a-z])([A-Z])", r"\1_\2", re.sub("(.)([A-Z][a-z]+)", r"\1_\2", type(part).__name__)).lower()
    if not re.fullmatch(rf"{re.escape(words)}(_\d+)?", part.name):
        return None
    counts[words] += 1
    return words if counts[words] == 1 else f"{words}_{counts[words] - 1}"


def _config(part: Any) -> dict[str, Any]:
    """Returns a layer's arguments or, if it has no `get_config`, its JSON-compatible attributes."""
    try:
        config = part.get_config()
    except Exception:  # a layer with complex arguments may raise NotImplementedError or anything else
        config = {name: v for name, v in vars(part).items() if name[0] != "_" and name not in _attributes()}
        config = {name: v for name, v in config.items() if isinstance(v, _SIMPLE)}
    if isinstance(part, keras.layers.InputLayer):
        config.pop("dtype", None)  # the dtype of the images fed: uint8, or float32 after an augmentation
    given: dict[str, Any] = _canonical({name: v for name, v in config.items() if not _LEFT_OUT.fullmatch(name)})
    return given


@functools.cache
def _attributes() -> frozenset[str]:
    """Returns the names of attributes that every model has."""
    return frozenset(vars(keras.Model()))


def _object(one: Any) -> Any:
    return {type(one).__name__: _config(one)}


def _canonical(value: Any) -> Any:
    """Returns a value as JSON that is the same in every process: without addresses, paths and numbered names."""
    if isinstance(value, dict) and "class_name" in value and "config" in value:  # as Keras serializes an object
        return _serialized(value)
    if isinstance(value, dict):
        return {str(name): _canonical(inner) for name, inner in sorted(_without_none(value).items())}
    if isinstance(value, list | tuple):
        found = [_canonical(inner) for inner in value]
        return found[0] if len(found) == 3 and _is_code(found[0]) and found[1:] == [None, None] else found
    if isinstance(value, bool | int | float | None):
        # A learning rate is a float32 variable, which does not have more digits.
        return float(f"{value:.6g}") if isinstance(value, float) else value
    return _lambda(value) or value if isinstance(value, str) else _of_object(value)


def _of_object(value: Any) -> Any:
    if isinstance(value, types.FunctionType) and value.__name__ == "<lambda>":
        return _digest_of_code(value.__code__)
    if isinstance(value, keras.Loss | keras.optimizers.Optimizer | keras.layers.Layer):
        return _object(value)
    return str(getattr(value, "__name__", None) or type(value).__name__)


def _serialized(value: Mapping[str, Any]) -> Any:
    name, config = value["class_name"], value["config"]
    if name == "__lambda__":
        return _canonical([config["code"], config.get("defaults"), config.get("closure")])
    if name == "DTypePolicy":
        return config.get("name")
    if name in ("function", "__keras_tensor__"):
        return str(config) if name == "function" else name
    if isinstance(config, dict):
        config = {key: inner for key, inner in config.items() if not _LEFT_OUT.fullmatch(key)}
    inside = _canonical(config)
    return {name: inside} if inside else name


def _without_none(value: Mapping[str, Any]) -> dict[str, Any]:
    return {name: inner for name, inner in value.items() if inner is not None}


def _lambda(text: str) -> Any:
    """Returns the digest of a lambda serialized by Keras; None if the text is not one."""
    try:
        code = marshal.loads(base64.b64decode(text, validate=False)) if len(text) > 64 else None
    except (ValueError, EOFError, TypeError, binascii.Error):
        return None
    return _digest_of_code(code) if isinstance(code, types.CodeType) else None


def _digest_of_code(code: types.CodeType) -> dict[str, str]:
    """Returns the digest of a function's code, without file and line numbers, for each release of Python."""

    def parts(one: types.CodeType) -> list[Any]:
        inner = [parts(c) if isinstance(c, types.CodeType) else repr(c) for c in one.co_consts]
        return [one.co_code.hex(), inner, one.co_names, one.co_varnames, one.co_freevars]

    return {_CODE: _digest(json.dumps(parts(code))), "python": _PYTHON}


def _is_code(value: Any) -> bool:
    return isinstance(value, dict) and set(value) == {_CODE, "python"}


def _code_of_class(part: Any) -> str | None:
    """Returns the digest of the source of a user's class, without comments and docstrings; None for a library's."""
    own = [kind for kind in type(part).__mro__ if kind.__module__.partition(".")[0] not in _OF_LIBRARIES]
    try:
        trees = [ast.parse(textwrap.dedent(inspect.getsource(kind))) for kind in own]
    except (OSError, TypeError, SyntaxError):  # defined in an interpreter, or installed without source
        return None
    for node in (node for tree in trees for node in ast.walk(tree)):
        match node:
            case ast.ClassDef(body=[ast.Expr(ast.Constant()), *_]):
                node.body[0] = ast.Pass()
            case ast.FunctionDef(body=[ast.Expr(ast.Constant()), *_]):
                node.body[0] = ast.Pass()
    return _digest("".join(map(ast.dump, trees))) if trees else None


def _digest(text: str) -> str:
    return hashlib.sha256(text.encode()).hexdigest()[:12]


def _skeleton(structure: Structure) -> list[dict[str, Any]]:
    """Returns the layers that act outside of training as well, bypassing the others."""
    inputs: dict[str, Any] = {}
    for layer in structure["layers"]:
        if _OF_TRAINING.fullmatch(layer["class"]) and len(layer["inputs"]) == 1:
            inputs[layer["name"]] = _first_tensor(layer["inputs"][0])

    def past(value: Any) -> Any:
        if isinstance(value, dict) and "from" in value:
            source = value
            while inputs.get(source["from"]):
                source = inputs[source["from"]]
            return source
        if isinstance(value, dict):
            return {name: past(inner) for name, inner in value.items()}
        return [past(inner) for inner in value] if isinstance(value, list) else value

    kept = [layer for layer in structure["layers"] if not _OF_TRAINING.fullmatch(layer["class"])]
    return [{**layer, "inputs": past(layer["inputs"])} for layer in kept]


def _first_tensor(arguments: Any) -> Any:
    if isinstance(arguments, dict):
        return arguments if "from" in arguments else None
    return next(filter(None, map(_first_tensor, arguments)), None) if isinstance(arguments, list) else None


def _of_skeleton(was: list[dict[str, Any]], now: list[dict[str, Any]], same_keras: bool) -> Iterator[Change]:
    keys, new_keys = (
        [json.dumps([one["class"], one["config"], one["weights"]]) for one in side] for side in (was, now)
    )
    pairs: list[tuple[dict[str, Any], dict[str, Any]]] = []
    is_shifted = False
    for _, a, b, c, d in difflib.SequenceMatcher(None, keys, new_keys, autojunk=False).get_opcodes():
        gone, added = was[a:b], now[c:d]
        if [one["class"] for one in gone] == [one["class"] for one in added]:
            pairs += zip(gone, added, strict=True)
            continue
        is_shifted = True
        yield from (Change(f"layer {one['name']} ({one['class']})", "there", None, False) for one in gone)
        yield from (Change(f"layer {one['name']} ({one['class']})", None, "there", False) for one in added)
    renamed = {old["name"]: new["name"] for old, new in pairs}
    for old, new in pairs:
        yield from _of_layer(old, new, same_keras)
        sources = _renamed(old["inputs"], renamed)
        if not is_shifted and sources != new["inputs"]:
            both = _sources(sources), _sources(new["inputs"])
            both = both if both[0] != both[1] else _both(sources, new["inputs"])
            yield Change(f"layer {new['name']}: its inputs", *both, False)


def _renamed(value: Any, names: Mapping[str, str]) -> Any:
    if isinstance(value, dict):
        return {key: names.get(i, i) if key == "from" else _renamed(i, names) for key, i in value.items()}
    return [_renamed(inner, names) for inner in value] if isinstance(value, list) else value


def _sources(inputs: Any) -> str:
    return _text(re.findall(r'"from": "([^"]*)"', json.dumps(inputs)))


def _of_layer(old: Mapping[str, Any], new: Mapping[str, Any], same_keras: bool) -> Iterator[Change]:
    name = f"layer {new['name']}"
    if old["name"] != new["name"] and (old["is_named"] or new["is_named"]):
        yield Change("the name of a layer", old["name"], new["name"], True)
    for key in _differing(old["config"], new["config"], same_keras):
        was, now = old["config"].get(key), new["config"].get(key)
        if key == "dtype" or not _other_python(was, now):
            is_harmless = _HARMLESS.fullmatch(key) or (new[_CODE] is None and _HARMLESS_OF_KERAS.fullmatch(key))
            yield Change(f"{name}: {key}", *_both(was, now), bool(is_harmless))
    if old["weights"] != new["weights"]:
        for was, now in zip(old["weights"], new["weights"], strict=False):
            if was != now:
                yield Change(f"{name}: weight {now[0]}", *_both(was[1:], now[1:]), False)
        if len(old["weights"]) != len(new["weights"]):
            yield Change(f"{name}: its weights", str(len(old["weights"])), str(len(new["weights"])), False)
    if old.get(_CODE) != new.get(_CODE):
        yield Change(f"{name}: the code of {new['class']}", "another", "this one", True)


def _of_training(was: Structure, now: Structure, same_keras: bool) -> Iterator[Change]:
    sides = [[one for one in side["layers"] if _OF_TRAINING.fullmatch(one["class"])] for side in (was, now)]
    if [one["class"] for one in sides[0]] == [one["class"] for one in sides[1]]:
        for old, new in zip(*sides, strict=True):
            yield from (change._replace(is_harmless=True) for change in _of_layer(old, new, same_keras))
            if _feeding(old, was) != _feeding(new, now):
                was_fed, is_fed = _sources(old["inputs"]), _sources(new["inputs"])
                yield Change(f"layer {new['name']}: its inputs", was_fed, is_fed, True)
        return
    names = [[f"{one['name']}({one['config'].get('rate', '')})" for one in side] or ["none"] for side in sides]
    yield Change("layers that only take part in training", *_both(*names), True)


def _feeding(layer: Mapping[str, Any], whole: Structure) -> list[int]:
    """Returns the indices of the layers that feed a layer, whose names may differ between two structures."""
    numbers = {one["name"]: number for number, one in enumerate(whole["layers"])}
    return [numbers.get(name, -1) for name in re.findall(r'"from": "([^"]*)"', json.dumps(layer["inputs"]))]


def _of_part(part: str, was: Any, now: Any, same_keras: bool) -> Iterator[Change]:
    """Yields differences between compiled models' optimizers or losses; state only fits the same optimizer class."""
    if was == now or was is None or now is None:
        return
    sides = [one if isinstance(one, dict) and len(one) == 1 else {_text(one): {}} for one in (was, now)]
    (old_class, old), (new_class, new) = (next(iter(side.items())) for side in sides)
    if old_class != new_class:
        yield Change(f"the model's {part}", old_class, new_class, part == "loss")
        return
    for key in _differing(old, new, same_keras):
        yield Change(f"the model's {part}: {key}", *_both(old.get(key), new.get(key)), True)


def _differing(old: Mapping[str, Any], new: Mapping[str, Any], same_keras: bool) -> list[str]:
    names = {**old, **new} if same_keras else [key for key in old if key in new]
    return [key for key in names if old.get(key) != new.get(key)]


def _other_python(was: Any, now: Any) -> bool:
    """Returns whether two values are code from different Python releases, whose digests are not comparable."""
    pythons = [json.dumps(value) for value in (was, now)]
    found = [re.findall(r'"python": "([\d.]+)"', text) for text in pythons]
    return found[0] != found[1] and len(found[0]) == len(found[1])


def _both(was: Any, now: Any) -> tuple[str, str]:
    """Returns two values as text, without their common beginning if they are long."""
    texts = _text(was), _text(now)
    shared = sum(1 for _ in itertools.takewhile(lambda two: two[0] == two[1], zip(*texts, strict=False)))
    start = texts[0].rfind(",", 0, shared) + 1 if max(map(len, texts)) > _MOST_CHARACTERS else 0
    old, new = (f"{'...' if start else ''}{text[start:].strip()}" for text in texts)
    return _cut(old), _cut(new)


def _cut(text: str) -> str:
    return text if len(text) <= _MOST_CHARACTERS else f"{text[:_MOST_CHARACTERS]}..."


def _text(value: Any) -> str:
    """Returns a value as text: `relu`, `L2(l2=0.1)`, `3, 3`."""
    if isinstance(value, dict):
        if set(value) == {"value"}:
            return _text(value["value"])
        if _is_code(value):
            return f"a lambda of digest {value[_CODE][:6]}"
        if set(value) == {"from", "output"}:
            return str(value["from"])
        items = list(value.items())
        if len(items) == 1 and isinstance(items[0][1], dict):
            text = f"{items[0][0]}({', '.join(f'{k}={_text(v)}' for k, v in items[0][1].items())})"
        else:
            text = ", ".join(f"{k}={_text(v)}" for k, v in items)
    elif isinstance(value, list):
        text = ", ".join(f"({_text(one)})" if isinstance(one, list) else _text(one) for one in value)
    else:
        text = "unset" if value is None else str(value)
    return text
