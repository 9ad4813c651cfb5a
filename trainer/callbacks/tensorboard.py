"""Files for TensorBoard: scalars, histograms, images, the graph, the flags, a profile."""

from __future__ import annotations

import dataclasses
import functools
import json
import math
import os
import pathlib
import re
import socket
import textwrap
import time
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from typing import Any, Protocol

import numpy as np
import tensorflow as tf

from pipeline.errors import UsageError
from pipeline.images import as_pixels
from pipeline.order.views import Intervals
from trainer.callbacks.base import Callback
from trainer.config import TrainConfig
from trainer.config.phases import NO_PHASES, Phases
from trainer.config.steps import Period, period_of
from trainer.loop import Action, Progress
from trainer.run_folder import EVENTS, FLAGS
from trainer.runtime import function_def_to_graph
from trainer.step.state import TrainState
from trainer.step.summaries import ACTIVATIONS, BUCKETS, HISTOGRAMS, IMAGES, NORM, are_images, outputs_of_layers
from trainer.step.train_step import AVERAGED, Traced

_VERSION = "brain.Event:2"  # version of the files; from 2 on, TensorBoard respects session logs


class TrainScalars(Callback):
    """Passes a step's numbers to `write`, with the speed since the last call, as in the log line.

    Args:
      period: period of writing.
      rows: number of rows per step.
      rate: function that returns the learning rate of a global step, int64 scalar.
      write: function of a global step and {tag: value}.
      more: function that returns further {tag: value}.
      skips: (first, end) of steps that are not trained on, so that they have no loss or gradient.
      phases: phases of the training; the number of each step's phase is written.
    """

    def __init__(
        self,
        period: Period,
        rows: int,
        rate: Callable[[tf.Tensor], tf.Tensor],
        write: Callable[[int, dict[str, float]], None],
        more: Callable[[], dict[str, float]] = dict,
        skips: Intervals = (),
        phases: Phases = NO_PHASES,
    ) -> None:
        self._period, self._rows, self._rate, self._more, self._write = period, rows, rate, more, write
        self._skips, self._phases = skips, phases
        self._earlier: Progress | None = None

    def actions(self) -> list[Action]:
        return [Action(self._period, self.write, needs=frozenset({NORM}))]

    def write(self, progress: Progress) -> None:
        """Writes the scalars of a step, whose summaries must include NORM."""
        spent = progress.since(self._earlier)
        self._earlier = progress
        averages = zip(AVERAGED, progress.result.averages.numpy().tolist(), strict=True)
        of_batch: dict[str, float] = {}
        if not progress.is_skipped(self._skips):
            of_batch = {f"train/{name}": value for name, value in progress.values.items()}
            of_batch["train/gradient_norm"] = float(progress.result.norm)
        phases = self._phases
        values = {
            **of_batch,
            **{f"train/epoch_{name}": value for name, value in progress.means.items()},
            **{f"train/{name}_average": value for name, value in averages if not math.isnan(value)},  # NaN: none yet
            "train/learning_rate": float(self._rate(tf.constant(progress.step - 1, tf.int64))),
            **({"train/phase": phases.number_at(progress.step - 1) + 1.0} if phases.are_given else {}),
            "train/examples_per_second": spent.rate(self._rows),
            "train/input_wait": spent.waiting,
            **self._more(),
        }
        self._write(progress.step, values)

    def on_end(self, step: int) -> None:
        """Writes the final values from `more`, if any."""
        if (self._period.steps or self._period.seconds) and (more := self._more()):
            self._write(step, more)


class Shown(Protocol):
    """A step to show in TensorBoard.

    Attributes:
      graphs: graphs of the step by name, available once traced.
      state: state trained by the step.
    """

    graphs: dict[str, Traced]
    state: TrainState


class TensorBoard(Callback):
    """Writes an events file, on the chief.

    Args:
      config: flags of the run.
      steps_per_epoch: T.
      start_step: global step of the state that training begins with.
      is_chief: whether this worker writes.
      stepper: step whose graph, histograms and images are written.
      read_histograms: function that returns the current histograms; None if they are in a step's result.

    Attributes:
      file: events file.
    """

    def __init__(
        self,
        config: TrainConfig,
        steps_per_epoch: int,
        start_step: int,
        is_chief: bool,
        stepper: Shown,
        read_histograms: Callable[[], tf.Tensor] | None = None,
    ) -> None:
        shows = bool(config.steps.summary_every or config.steps.summary_secs)
        self.file = EventFile(config.run.folder.logs, start_step, is_chief and shows)
        self._flags, self._start_step, self._stepper = config.output, start_step, stepper
        self._config = dataclasses.asdict(config)
        if config.output.activation_every and not outputs_of_layers(stepper.state.model):
            raise UsageError(
                f"--activation_every={config.output.activation_every}: the model does not say which layers follow one "
                "another; make it by keras.Sequential or keras.Model(inputs, outputs), or leave the flag out"
            )
        self._steps_per_epoch, self._read_histograms = steps_per_epoch, read_histograms

    def on_metrics(self, step: int, values: dict[str, float]) -> None:
        """Writes numbers."""
        self.file.scalars(step, values)

    def actions(self) -> list[Action]:
        """Returns the actions that write flags, graph, histograms and images; a new run also writes them at step 1."""
        first = () if self._start_step else (1,)
        found = [Action(Period(), self._write_start, at=(self._start_step + 1,))]
        shown = [
            (self._flags.histogram_every, HISTOGRAMS, self._write_histograms),
            (self._flags.activation_every, ACTIVATIONS, self._write_activations),
        ]
        if are_images(self._stepper.state.task.data.features):
            shown.append((self._flags.image_every, IMAGES, self._write_images))
        for every, summary, write in shown:
            if every:
                period = period_of(every, self._steps_per_epoch)
                pauses = summary == HISTOGRAMS and self._read_histograms is not None
                found.append(Action(period, write, at=first, needs=frozenset({summary}), pauses=pauses))
        return found

    def _write_start(self, progress: Progress) -> None:
        self.file.text(progress.step, FLAGS, json.dumps(self._config, indent=1))
        if self.file.is_first and (graphs := self._stepper.graphs):  # one graph per folder
            layers = {layer.name for layer in self._stepper.state.model._flatten_layers()}
            parts = [readable_graph(*graphs[name], layers) for name in sorted(graphs)]
            nodes = [node for part in parts for node in part.node]
            self.file.graph(tf.compat.v1.GraphDef(node=nodes, versions=parts[0].versions))

    def _write_histograms(self, progress: Progress) -> None:
        if self.file.writes:
            paths = [variable.path for variable in self._stepper.state.model.trainable_variables]
            tags = [*(f"weights/{path}" for path in paths), *(f"gradients/{path}" for path in paths)]
            found = self._read_histograms() if self._read_histograms else progress.result.histograms
            rows = zip(tags, found.numpy().tolist(), strict=True)
            # A histogram without counts is that of a frozen weight's gradient, which nothing computes.
            self.file.histograms(progress.step, {tag: row for tag, row in rows if any(row[-BUCKETS:])})

    def _write_activations(self, progress: Progress) -> None:
        if self.file.writes:
            rows, zeros = (part.numpy().tolist() for part in progress.result.activations)
            if sum(rows[0][-BUCKETS:]):  # otherwise the batch has no real rows here
                names = list(outputs_of_layers(self._stepper.state.model))
                self.file.histograms(
                    progress.step, {f"activations/{name}": row for name, row in zip(names, rows, strict=True)}
                )
                self.file.scalars(
                    progress.step, {f"sparsity/{name}": share for name, share in zip(names, zeros, strict=True)}
                )

    def _write_images(self, progress: Progress) -> None:
        if self.file.writes:
            images = progress.result.images.numpy()  # the first images of the last batch
            self.file.images(progress.step, {f"images/{i}": image for i, image in enumerate(images)})


class Profiler(Callback):
    """Records the steps from START to STOP, or to the end of training, with TensorFlow's profiler (--profile).

    A run that begins between START and STOP records nothing.

    Args:
      steps: START and STOP; None to record nothing.
      folder: TensorBoard's folder.
      writes: whether this worker records.
    """

    def __init__(self, steps: tuple[int, int] | None, folder: pathlib.Path, writes: bool) -> None:
        self._steps, self._folder, self._writes, self._records = steps, folder, writes, False

    def actions(self) -> list[Action]:
        return [Action(Period(), self._switch, at=self._steps)] if self._steps else []

    def _switch(self, progress: Progress) -> None:
        assert self._steps is not None
        if progress.step == self._steps[1]:
            self.on_train_end()
        elif self._writes:
            tf.profiler.experimental.start(str(self._folder))
            self._records = True

    def on_train_end(self) -> None:
        """Ends the recording."""
        if self._records:
            self._records = False
            tf.profiler.experimental.stop()


class EventFile:
    """A file of scalars, histograms, images and the graph for TensorBoard, created when the first is written.

    An events file is a TFRecord of Event messages. It begins with a session log, which makes TensorBoard drop what an
    earlier process wrote about steps after this one's start, so that after a kill and a resume each step is shown once.
    `tf.summary` does not write session logs. If a finished run repeats its evaluation, the same point is added again.

    Attributes:
      folder: folder of the file.
      writes: whether to write anything.
      is_first: whether the folder has no file from an earlier process.
    """

    def __init__(self, folder: str | pathlib.Path, start_step: int, writes: bool = True) -> None:
        """Looks for earlier files.

        Args:
          folder: folder for the file.
          start_step: global step of the state that training begins with.
          writes: whether to write anything.
        """
        self.folder, self._start_step, self.writes = pathlib.Path(folder), start_step, writes
        self.is_first = not any(self.folder.glob(f"{EVENTS}*"))

    def scalars(self, step: int, values: Mapping[str, float]) -> None:
        """Writes a global step's numbers by tag."""
        # As simple values rather than tensors: TensorBoard shows both, but its EventAccumulator only purges these.
        self._summary(step, (_value(tag=tag, simple_value=value) for tag, value in values.items()))

    def histograms(self, step: int, rows: Mapping[str, Sequence[float]]) -> None:
        """Writes histograms by tag, each a row of `LoopResult.histograms`."""
        self._summary(step, (_value(tag=tag, histo=_histogram(row)) for tag, row in rows.items()))

    def images(self, step: int, images: Mapping[str, tf.Tensor]) -> None:
        """Writes images by tag, (height, width, channels), uint8 or floats in any range."""
        self._summary(step, (_value(tag=tag, image=_image(image)) for tag, image in images.items()))

    def text(self, step: int, tag: str, text: str) -> None:
        """Writes a text that TensorBoard shows verbatim: lines that begin with four spaces are code in Markdown."""
        content = tf.make_tensor_proto([textwrap.indent(text, "    ").encode()], tf.string)
        plugin = tf.compat.v1.SummaryMetadata.PluginData(plugin_name="text")
        self._summary(
            step, [_value(tag=tag, tensor=content, metadata=tf.compat.v1.SummaryMetadata(plugin_data=plugin))]
        )

    def graph(self, definition: Any) -> None:
        """Writes a GraphDef."""
        if self.writes:
            self._write(graph_def=definition.SerializeToString())

    def _summary(self, step: int, values: Iterable[Any]) -> None:
        if self.writes:
            self._write(step=step, summary=tf.compat.v1.Summary(value=values))

    def _write(self, **fields: object) -> None:
        self._file.write(_event(**fields))
        self._file.flush()

    @functools.cached_property
    def _file(self) -> tf.io.TFRecordWriter:
        tf.io.gfile.makedirs(self.folder)
        seconds, fraction = divmod(time.time_ns(), 10**9)  # TensorBoard reads the files in order of their names
        name = f"{EVENTS}{seconds:010}.{fraction:09}.{socket.gethostname()}.{os.getpid()}.v2"
        file = tf.io.TFRecordWriter(str(self.folder / name))
        file.write(_event(file_version=_VERSION))
        start = tf.compat.v1.SessionLog(status=tf.compat.v1.SessionLog.START)
        file.write(_event(step=self._start_step + 1, session_log=start))
        return file


def _value(**fields: Any) -> Any:
    return tf.compat.v1.Summary.Value(**fields)


def _event(**fields: object) -> bytes:
    event: bytes = tf.compat.v1.Event(wall_time=time.time(), **fields).SerializeToString()
    return event


def _histogram(row: Sequence[float]) -> Any:
    least, greatest, total, squares, *counts = (float(number) for number in row)
    limits = least + (greatest - least) * np.arange(1, BUCKETS + 1) / BUCKETS
    limits[-1] = greatest
    return tf.compat.v1.HistogramProto(
        min=least,
        max=greatest,
        num=sum(counts),
        sum=total,
        sum_squares=squares,
        bucket_limit=limits.tolist(),
        bucket=counts,
    )


def _image(pixels: tf.Tensor) -> Any:
    """Returns the Summary.Image, a PNG, of pixels (height, width, channels).

    Floats, which may be standardized, are stretched from their range to 0..255.
    """
    values = as_pixels(np.asarray(pixels))
    height, width, channels = values.shape
    png = tf.io.encode_png(values).numpy()
    return tf.compat.v1.Summary.Image(height=height, width=width, colorspace=channels, encoded_image_string=png)


# {operation that calls a function on its last inputs: attribute that names the function}. Other operations, such as a
# dataset's, pass it something else and stay unchanged.
_CALLS = {
    **dict.fromkeys(("PartitionedCall", "StatefulPartitionedCall"), "f"),
    **dict.fromkeys(("While", "StatelessWhile"), "body"),
    **dict.fromkeys(("If", "StatelessIf"), "then_branch"),
}
_CALL = re.compile(r"(?<![^/])(?:Stateful)?PartitionedCall(?:_\d+)?/")  # the scope of a call, which is meaningless
_OUTER_CALL = re.compile(rf"^(?:{_CALL.pattern})+")
_LOOP = re.compile(r"^(while/)+")  # the scope of `TrainStep.train`
_TAPE = re.compile(r"^(?P<call>.*/)?gradient_tape/(?:while/)?(?P<replica>(?:replica_\d+|worker)/)?")


def readable_graph(graph: tf.Graph, scope: str = "", device: str = "", layers: Collection[str] = ()) -> Any:
    """Returns a GraphDef of a graph with function calls inlined.

    Nodes added by a tape get the scope `gradients` within their replica:
    `gradient_tape/while/replica_1/dense_1/MatMul`, of the layer `dense`, becomes `replica_1/gradients/dense/MatMul`. No
    scope is named after the loop over steps.

    Args:
      graph, scope, device: see `Traced`.
      layers: layer names of the model.
    """
    found = graph.as_graph_def()
    nodes = _expanded(found, {one.signature.name: one for one in found.library.function})
    names, taken = dict[str, str](), {node.name for node in nodes}
    for node in nodes:
        name = _renamed(node.name, layers)
        names[node.name] = node.name if name in taken else name
        taken.add(names[node.name])
    # Once all others have their names. A call within a replica comes last: it must not take the replica's own names.
    for pattern in (_OUTER_CALL, _CALL):
        for old, name in names.items():
            if (shorter := pattern.sub("", name)) not in taken:
                names[old] = shorter
                taken.add(shorter)
    names = {old: "/".join(filter(None, (scope, name))) for old, name in names.items()}
    for node in nodes:
        node.name, node.device = names[node.name], node.device or device
        node.input[:] = [_with_name(one, names) for one in node.input]
        node.attr.pop("_class", None)  # colocation, by old names
    return tf.compat.v1.GraphDef(node=nodes, versions=found.versions)


def _renamed(name: str, layers: Collection[str]) -> str:
    name = _LOOP.sub("", name)
    *scopes, operation = _TAPE.sub(
        lambda match: f"{match['call'] or ''}{match['replica'] or ''}gradients/", name
    ).split("/")
    # Keras opens a layer's scope twice, to build it and to call it, so TensorFlow appends a number to its name.
    plain = (scope.rpartition("_")[0] for scope in scopes)
    return "/".join(
        [*(layer if layer in layers else scope for layer, scope in zip(plain, scopes, strict=True)), operation]
    )


def _expanded(graph: Any, functions: Mapping[str, Any]) -> list[Any]:
    """Returns the nodes of a GraphDef, with each call replaced by the called function's nodes in the call's scope."""
    nodes, results = [], dict[str, str]()
    for node in graph.node:
        key = _CALLS.get(node.op)
        function = functions.get(node.attr[key].func.name) if key else None
        if function is None:
            nodes.append(node)
            continue
        inner, flat = function_def_to_graph.function_def_to_graph_def(function)
        given = [one for one in node.input if not one.startswith("^")]
        arguments = [one.name for one in function.signature.input_arg]
        # The first input of a conditional is not passed to its branches.
        passed = dict(zip(arguments, given[len(given) - len(arguments) :], strict=True))
        parts = [part for part in _expanded(inner, functions) if part.name not in passed]
        inside = {part.name: f"{node.name}/{part.name}" for part in parts}

        def outer(tensor: str, passed: dict[str, str] = passed, inside: dict[str, str] = inside) -> str:
            return passed.get(tensor.partition(":")[0]) or _with_name(tensor, inside)

        for part in parts:
            part.input[:] = map(outer, part.input)
            part.name, part.device = inside[part.name], part.device or node.device
            nodes.append(part)
        for index, one in enumerate(function.signature.output_arg):
            results[f"{node.name}:{index}"] = outer(flat[function.ret[one.name]])
    for node in nodes:
        node.input[:] = [results.get(one if ":" in one else f"{one}:0", one) for one in node.input]
    kept = {node.name for node in nodes}
    for node in nodes:  # the call itself is gone, so nothing can wait for it
        node.input[:] = [one for one in node.input if one.lstrip("^").partition(":")[0] in kept or one[0] != "^"]
    return nodes


def _with_name(tensor: str, names: Mapping[str, str]) -> str:
    mark = "^" if tensor.startswith("^") else ""
    node, colon, index = tensor.removeprefix(mark).partition(":")
    return f"{mark}{names.get(node, node)}{colon}{index}"
