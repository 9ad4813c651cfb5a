"""The served model of a task that parses records: serialized records in, the model's outputs out, by name."""

from __future__ import annotations

import dataclasses
import functools
import gc
import math
import pathlib
import re
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import keras
import numpy as np
import tensorflow as tf

from pipeline.decode.images import decode_file
from pipeline.decode.user import Supervised
from pipeline.errors import UsageError
from pipeline.graph_calls import UserFunction
from pipeline.manifest import Manifest, PixelRule
from pipeline.order.hashing import Domain, derive_key
from trainer.exporting.served import Fitting, model_of_images, of_classes, told_apart
from trainer.inference import Trained
from trainer.task import classes_of, gives_probabilities, tags_of

Outputs = dict[str, tf.Tensor]  # outputs by name, (rows, ...) each
FEATURES, OUTPUTS = "features", "outputs"  # names of a single tensor
_RECORDS = tf.TensorSpec([None], tf.string, name="records")
_ANY_ROWS = "predictions and exports parse any number of records: shapes begin with -1, or tf.shape(records)[0]"
_README = """\
# {name}

`saved_model` takes serialized examples (`tf.train.Example`), as they are in TFRecord files, and gives {outputs}.
The parser of the training is inside. {needs}

The signature `serve_features` takes what the parser returns as features: {features}.
`export.json` says how far the program is from the trained model.

## saved_model

`pip install tensorflow`, then in this folder, with a TFRecord file:

```python
import tensorflow as tf

model = tf.saved_model.load("saved_model")
for records in tf.data.TFRecordDataset("records.tfrecord").batch(32):
    said = model.serve(records)
    print({{name: value.numpy() for name, value in said.items()}})
```
"""


@dataclasses.dataclass(frozen=True)
class ImageFeature:
    """The record feature that holds the image, needed to turn image files into records.

    Attributes:
      name: name of the feature.
      shape: (height, width, channels) of each image; None for a varying size.
      is_raw: whether it holds pixels instead of a file.
      pixel_rule: rule for decoding image files.
    """

    name: str
    shape: tuple[int | None, ...]
    is_raw: bool
    pixel_rule: PixelRule

    @classmethod
    def of(cls, manifest: Manifest) -> ImageFeature:
        """Returns the image feature of a data set."""
        image = manifest.features["image"]
        return cls(image.named("image"), image.shape, image.encoding == "raw", manifest.pixels)


@dataclasses.dataclass(frozen=True, eq=False)
class Parsed:
    """A model of serialized records.

    Attributes:
      outputs: function from features to outputs.
      serve: function from records, string (rows,), to outputs.
      serve_features: function from feature tensors to outputs; its arguments have the features' names.
      class_names: unique names by class number; empty if the outputs are not one number per class. If a row may have
        several classes, the outputs have no `class`.
      needs: features that every record must have, according to the graph.
      held: variables and tables that the functions use.
      image: image feature; None if the task parses the records.
    """

    outputs: Callable[[Any], Outputs]
    serve: Any
    serve_features: Any
    class_names: tuple[str, ...]
    needs: tuple[str, ...]
    held: Sequence[Any]
    image: ImageFeature | None = None

    @property
    def specs(self) -> dict[str, tf.TensorSpec]:
        """The outputs by name, (None, ...) each."""
        traced = self.serve.get_concrete_function()
        return {name: tf.TensorSpec.from_tensor(value) for name, value in traced.structured_outputs.items()}

    @property
    def kinds(self) -> dict[str, list[Any]]:
        """Type and shape of a row of each output in the form used by export.json: [dtype, *sides]."""
        return {name: [spec.dtype.name, *spec.shape[1:].as_list()] for name, spec in self.specs.items()}

    @property
    def in_words(self) -> str:
        """Inputs and outputs in one line of text."""
        needs = f" with {', '.join(self.needs)}" if self.needs else ""
        return f"in: serialized examples{needs}, or features; out: {self._outputs_in_words()}"

    def _outputs_in_words(self, quote: str = "") -> str:
        return ", ".join(f"{quote}{name}{quote} ({kind_of_row(spec)})" for name, spec in self.specs.items())

    def answers(self, records: Any) -> dict[str, Any]:
        """Returns {name: output} as NumPy arrays, for records given as bytes (rows,).

        Raises:
          tf.errors.OpError: a record cannot be parsed.
        """
        return {name: value.numpy() for name, value in self.serve(tf.constant(records, tf.string)).items()}

    def save(self, path: pathlib.Path) -> None:
        """Writes a SavedModel."""
        program = tf.Module()
        program.held, program.serve, program.serve_features = self.held, self.serve, self.serve_features
        signatures = {"serving_default": self.serve, "serve_features": self.serve_features}
        tf.saved_model.save(program, str(path), signatures=signatures)

    def readme(self, name: str) -> str:
        """Returns the content of README.md; `name` names the model and its step."""
        specs = self.serve_features.input_signature
        features = ", ".join(f"`{spec.name}` ({kind_of_row(spec)})" for spec in specs)
        needs = "Records need the features that it reads"
        if self.needs:
            needs = f"Each record needs {' and '.join(f'`{one}`' for one in self.needs)}"
        return _README.format(name=name, outputs=self._outputs_in_words("`"), features=features, needs=f"{needs}.")


def row_bytes(spec: tf.TensorSpec) -> int:
    """Returns the number of bytes per row of a tensor, counting sides of unknown length as 1."""
    size: int = spec.dtype.size * math.prod(side or 1 for side in spec.shape[1:].as_list())
    return size


def kind_of_row(spec: tf.TensorSpec) -> str:
    """Returns the type and shape of a tensor's rows as text, such as `float32 32x32x4`, `float32 ?x4`, `int64`."""
    return f"{spec.dtype.name} {'x'.join('?' if side is None else str(side) for side in spec.shape[1:])}".rstrip()


def parsed(trained: Trained, no_python: str = "") -> Parsed:
    """Returns the served model of a task that parses records.

    Features used only for labels or sample weights may be missing from records if the task parses them with
    `tf.io.parse_example` outside loops and TensorFlow functions, as most tasks do.

    Args:
      trained: trained model.
      no_python: reason why the parser may not call Python; empty if it may.

    Raises:
      UsageError: the parser needs batches of a fixed size, or calls Python although it may not.
    """
    names = told_apart(classes_of(trained.model, trained.state.task.data) or ())
    outputs = functools.partial(_outputs, trained, names, None)
    if trained.parses:
        model, answer, traced = trained.model, outputs, _traced(trained, no_python)
    else:
        model, fitting = model_of_images(trained)
        names = told_apart(tags_of(trained.model, trained.state.task.data))
        shares = _in_shares(trained.model) if names else None
        outputs, answer = (
            functools.partial(_outputs, trained, (), shares),
            functools.partial(_of_images, model, shares),
        )
        traced = _traced_images(trained, model, fitting)
    graph, needs = _without_unused(traced)

    def serve(records: tf.Tensor) -> Outputs:
        return answer(_features(traced, graph, records))

    given = named(traced.structured_outputs, FEATURES)
    arguments = [re.sub(r"\W", "_", name) for name in given]  # as required by signatures
    if len(set(arguments)) < len(arguments):
        arguments = [f"{FEATURES}_{number}" for number in range(len(arguments))]
    specs = [tf.TensorSpec(t.shape, t.dtype, name) for t, name in zip(given.values(), arguments, strict=True)]

    def serve_features(*tensors: tf.Tensor) -> Outputs:
        return answer(tf.nest.pack_sequence_as(traced.structured_outputs, tensors))

    return Parsed(
        outputs,
        tf.function(serve, autograph=False, input_signature=[_RECORDS]),
        tf.function(serve_features, autograph=False, input_signature=specs),
        names,
        needs,
        [*(v.value for v in model.variables), *traced.graph.variables, *_tables(traced)],
        None if trained.parses else ImageFeature.of(trained.split.manifest),
    )


def parser_of(trained: Trained) -> Callable[..., Any]:
    """Returns the task's parser for evaluations, without checks: (records, keys) -> features."""
    assert trained.split.request.parse is not None
    user = UserFunction.of("Task.parse", trained.split.request.parse)

    def parse(records: tf.Tensor, keys: tf.Tensor) -> Any:
        found = Supervised.of(user.unchecked(records, *([keys] if user.takes_keys else []), training=False))
        assert found is not None  # `data_spec_of` has rejected anything else
        return found.x

    return parse


def _traced(trained: Trained, no_python: str) -> Any:
    """Returns a concrete function from records to features: the task's parser for evaluations.

    Each record counts as record 0 of epoch 0, so that its outputs do not depend on other records.
    """
    assert trained.split.request.parse is not None
    checked = UserFunction.of("Task.parse", trained.split.request.parse, no_python=no_python)
    key = int(derive_key(Domain.AUGMENT, trained.split.order.seed, 0, 0))
    keys_of = lambda records: tf.fill(tf.shape(records), tf.constant(key, tf.uint64))  # noqa: E731
    try:
        tf.function(
            lambda records: checked(records, lambda: keys_of(records), training=False), autograph=False
        ).get_concrete_function(_RECORDS)
    except UsageError as error:
        raise (error.advised(_ANY_ROWS) if error.__cause__ else error) from None
    # Traced without checks: their graph is a function inside the graph, where `_without_unused` would find nothing.
    parse = parser_of(trained)
    return tf.function(lambda records: parse(records, keys_of(records)), autograph=False).get_concrete_function(
        _RECORDS
    )


def _traced_images(trained: Trained, model: keras.Model, fitting: Fitting | None) -> Any:
    """Returns a concrete function from records to {"images": raw images of the model's size}."""
    manifest = trained.split.manifest
    if manifest.turns_images:
        raise UsageError(
            f"{trained.name}: gives no classes, so predictions and exports take records, whose photographs TensorFlow "
            "cannot turn upright; convert the data set"
        )
    image, dct = manifest.features["image"], manifest.pixels.dct
    name, spec = image.named("image"), tf.TensorSpec(model.input_shape[1:], tf.uint8)

    def pixels(content: tf.Tensor) -> tf.Tensor:
        if image.encoding == "raw":
            found = tf.reshape(tf.io.decode_raw(content, tf.uint8), image.shape)
        else:
            found = decode_file(content, image.shape[2] or 3, image.encoding or "", dct)
        return fitting.fit(found[None])[0] if fitting else tf.ensure_shape(found, spec.shape)

    def parse(records: tf.Tensor) -> dict[str, tf.Tensor]:
        contents = tf.io.parse_example(records, {name: tf.io.FixedLenFeature([], tf.string)})[name]
        return {"images": tf.map_fn(pixels, contents, fn_output_signature=spec)}

    return tf.function(parse, autograph=False).get_concrete_function(_RECORDS)


def _in_shares(model: keras.Model) -> Callable[[tf.Tensor], tf.Tensor]:
    """Returns a function that turns each output into an independent class probability."""
    done = gives_probabilities(model, keras.activations.sigmoid)
    return lambda outputs: tf.cast(outputs if done else tf.sigmoid(outputs), tf.float32)


def _of_images(
    model: keras.Model, shares: Callable[[tf.Tensor], tf.Tensor] | None, features: dict[str, tf.Tensor]
) -> Outputs:
    if shares:
        return {"probabilities": shares(model(features["images"], training=False))}
    found = named(model(features["images"], training=False), OUTPUTS, model.output_names)
    return {name: tf.cast(value, tf.float32) if value.dtype.is_floating else value for name, value in found.items()}


def _without_unused(traced: Any) -> tuple[Any, tuple[str, ...]]:
    """Returns the part of a graph that the outputs need, and the features that it requires.

    TensorFlow's op that parses examples fails on any missing feature, even an unused one such as the label. Unused
    features get a default, which makes them optional.
    """
    whole = traced.graph.as_graph_def()
    nodes = {node.name: node for node in whole.node}
    kept, used, left = dict[str, Any](), set[tuple[str, int]](), [tensor.name for tensor in traced.outputs]
    while left:
        text = left.pop()
        name, _, index = text.removeprefix("^").partition(":")
        if not text.startswith("^"):
            used.add((name, int(index or 0)))
        if name not in kept:
            kept[name] = nodes[name]
            left += nodes[name].input
    graph, needs = tf.compat.v1.GraphDef(versions=whole.versions, library=whole.library), list[str]()
    for node in [node for node in kept.values() if node.op == "ParseExampleV2"]:
        needs += _relaxed(node, nodes, used, kept)
    graph.node.extend(kept.values())
    return graph, tuple(dict.fromkeys(needs))


def _relaxed(node: Any, nodes: Mapping[str, Any], used: set[tuple[str, int]], kept: dict[str, Any]) -> list[str]:
    """Gives defaults to the unused features of a node that parses examples; returns the used ones without a default.

    Args:
      node: ParseExampleV2 node with inputs (serialized, names, sparse keys, dense keys, ragged keys, defaults ...) and
        outputs (3 for each sparse feature, then one for each dense one, ...).
      nodes: nodes of the graph by name.
      used: (node, output) of the used tensors.
      kept: nodes of the new graph by name; defaults are added.
    """
    constants = [nodes[text.partition(":")[0]] for text in node.input[3:]]
    features = tf.make_ndarray(constants[0].attr["value"].tensor).tolist()
    shapes, types = node.attr["dense_shapes"].list.shape, node.attr["Tdense"].list.type
    needs = []
    for number, (feature, default) in enumerate(zip(features, constants[2:], strict=True)):
        if default.op != "Const" or tf.make_ndarray(default.attr["value"].tensor).size:
            continue
        if (node.name, 3 * node.attr["num_sparse"].i + number) in used:
            needs.append(feature.decode(errors="backslashreplace"))
            continue
        shape, dtype = tf.TensorShape(shapes[number]), tf.dtypes.as_dtype(types[number])
        zeros = np.full(shape.as_list(), b"") if dtype == tf.string else np.zeros(shape.as_list())
        made = tf.compat.v1.NodeDef(name=f"{node.name}/default_{number}", op="Const")
        made.attr["dtype"].type = dtype.as_datatype_enum
        made.attr["value"].tensor.CopyFrom(tf.make_tensor_proto(zeros, dtype))
        kept[made.name] = made
        node.input[5 + number] = made.name
    return needs


def _features(traced: Any, graph: Any, records: tf.Tensor) -> Any:
    """Returns the features of records, using the graph from `_without_unused`."""
    captured = map(tf.compat.v1.get_default_graph().capture, traced.captured_inputs)  # variables and tables
    given = {inner.name: value for inner, value in zip(traced.inputs, [records, *captured], strict=True)}
    wanted = [tensor.name for tensor in traced.outputs]
    found = tf.graph_util.import_graph_def(graph, input_map=given, return_elements=wanted, name="parse")
    for tensor, known in zip(found, traced.outputs, strict=True):
        tensor.set_shape(known.shape)
    return tf.nest.pack_sequence_as(traced.structured_outputs, found, expand_composites=True)


def _tables(traced: Any) -> list[Any]:
    handles = {id(handle) for handle in traced.captured_inputs}
    resource = tf.saved_model.experimental.TrackableResource
    return [one for one in gc.get_objects() if isinstance(one, resource) and id(one.resource_handle) in handles]


def _outputs(
    trained: Trained, names: Sequence[str], shares: Callable[[tf.Tensor], tf.Tensor] | None, features: Any
) -> Outputs:
    """Returns the outputs for features: in the form used for images if they are classes, otherwise unchanged."""
    outputs = trained.forward()(features)
    if shares:
        return {"probabilities": shares(outputs)}
    if not names:
        return named(outputs, OUTPUTS, getattr(trained.model, "output_names", None) or ())
    return of_classes(trained.probabilities(outputs), names)


def named(structure: Any, one: str, known: Sequence[str] = ()) -> dict[str, tf.Tensor]:
    """Returns the tensors of a structure by name, in the order of `tf.nest.flatten`.

    Args:
      structure: single tensor, named `one`; dict, whose keys are the names; or anything else, with the names `known`,
        or `one` with a number.
      one: name for a single tensor.
      known: names, ignored unless there is one for each tensor.
    """
    flat = tf.nest.flatten(structure)
    if isinstance(structure, Mapping) and len(structure) == len(flat):
        return {str(key): structure[key] for key in sorted(structure)}
    if len(flat) == 1:
        return {one: flat[0]}
    names = known if len(known) == len(flat) else [f"{one}_{number}" for number in range(len(flat))]
    return dict(zip(names, flat, strict=True))
