"""Exact resume for Keras' `fit` after a kill, even mid-epoch: the input's only state is the step."""

from __future__ import annotations

import base64
import inspect
import io
import json
import logging
import os
from collections.abc import Iterator, Sequence
from typing import Any

import keras
import numpy as np
import tensorflow as tf
from tensorflow.core.protobuf import trackable_object_graph_pb2

from pipeline.errors import DataError, UsageError, root_cause
from pipeline.files import code
from pipeline.order.order import MixtureSpec, Spec, check_replicas

_SPEC, _OPTIMIZER = (f"order/{name}/.ATTRIBUTES/VARIABLE_VALUE" for name in ("spec", "optimizer"))  # in checkpoints
_MEMORY = "memory/.ATTRIBUTES/py_state"  # likewise; earlier checkpoints lack it
_GRAPH = "_CHECKPOINTABLE_OBJECT_GRAPH"  # likewise: the objects that have variables

_logger = logging.getLogger("pipeline")


class ExactResume(keras.callbacks.Callback):  # type: ignore[misc]
    """A callback for Keras' `fit` that saves every `every` steps, and resumes at exactly that step.

        resume = ExactResume(model, "run", order_spec("demo/digits", global_batch_size=64, training=True), every=100)
        resume.restore()
        for step, rest in resume.fits(epochs=10, steps_per_epoch=steps):
            data = input_fn("demo/digits", global_batch_size=64, training=True, start_step=step, weights="mean")
            model.fit(data, **rest, callbacks=[resume])

    The model, the optimizer, the seeds of layers that draw, such as `Dropout`, the arguments of the order and the state
    of callbacks are saved together, in one checkpoint that is complete or absent. Kill the program at any moment and
    run it again: it ends with the same weights as an uninterrupted run, bit-identical on CPUs for the same number of
    replicas. The rest of an interrupted epoch is fitted as a short one, whose loss and metrics cover the whole epoch.
    Callbacks with state, such as `EarlyStopping` or `ReduceLROnPlateau`, keep it if they are passed as `callbacks` here
    as well as to `fit`. The log says if the script, or a module that it imports from the same folder, was edited since
    the checkpoint.

    A model that is compiled again, as when layers thaw, gets another callback, which counts on from the one before:

        base.trainable = True
        model.compile(keras.optimizers.Adam(1e-5), loss)
        resume = ExactResume(model, "run", spec, every=100, after=resume)

    Then `restore` and `fits` as before. A program that is run again reaches the compile in which it was stopped:
    earlier ones have nothing left to fit.
    """

    def __init__(
        self,
        model: keras.Model,
        folder: str | os.PathLike[str],
        spec: Spec,
        *,
        every: int,
        keep: int = 2,
        callbacks: Sequence[keras.callbacks.Callback] = (),
        after: ExactResume | None = None,
    ) -> None:
        """Makes the callback; with a strategy, call this in its scope.

        Args:
          model: model, built and compiled.
          folder: folder of the checkpoints; created if needed.
          spec: result of `order_spec` for the input of the `fit`.
          every: number of steps between checkpoints; `fits` saves another one at its end.
          keep: number of newest checkpoints to keep.
          callbacks: callbacks of the `fit` whose state checkpoints keep: public attributes that hold numbers, texts or
            arrays, except for arguments such as `patience`. Each run must give the same classes in the same order.
          after: callback of the previous compile, once its `fits` have ended; its steps and epochs count as well.

        Raises:
          UsageError: the model is not built or not compiled, or scales its loss (float16), so that its optimizer does
            not count all steps; the replicas do not divide the batch; or `after` had the same optimizer.
        """
        super().__init__()
        optimizer = getattr(model, "optimizer", None)
        if not model.built or optimizer is None:
            raise UsageError("must be built and compiled: give it an Input, and call compile", argument="model")
        if isinstance(optimizer, keras.optimizers.LossScaleOptimizer):
            raise UsageError("its optimizer scales the loss, and does not count the steps that it skips; use bfloat16")
        for name, value in (("every", every), ("keep", keep)):
            if value < 1:
                raise UsageError("must be 1 or more", argument=name, value=str(value))
        for part in spec.parts if isinstance(spec, MixtureSpec) else (spec,):
            check_replicas(part.global_batch_size, tf.distribute.get_strategy().num_replicas_in_sync)
        if after and int(optimizer.iterations.numpy()):
            raise UsageError("has the optimizer of the compile before; compile it with a new one", argument="model")
        self._firsts: list[int] = [*after._firsts, after.step] if after else [0]  # the step at which each compile began
        self._end: int | None = None  # step at which this compile ended, once another one has begun
        optimizer.build(model.trainable_variables)  # creates the slots, so that they can be restored
        self._fitted, self._iterations, self._spec, self._every = model, optimizer.iterations, spec, every
        self._optimizer = type(optimizer).__name__
        order = tf.train.Checkpoint(spec=tf.Variable(spec.to_json()), optimizer=tf.Variable(self._optimizer))
        self._restored = tf.train.Checkpoint(model=model, optimizer=optimizer, order=order)
        self._state = tf.train.Checkpoint(model=model, optimizer=optimizer, order=order, memory=_Memory(self._memory))
        self._manager = tf.train.CheckpointManager(self._state, os.fspath(folder), max_to_keep=keep)
        self._saved = 0
        self._code = code.of_program(["__main__"], ("pipeline",))
        self._states = [_CallbackState(each) for each in callbacks]
        self._earlier: list[_CallbackState] = []
        self._steps_per_epoch = 0  # until `fits` is called
        self._sums: list[Any] = []  # metrics over the steps of an interrupted epoch, until its rest begins
        self._weights: list[Any] | None = None  # weights at the end of the rest of an interrupted epoch

    @property
    def step(self) -> int:
        """Number of updates so far, over all epochs and fits; the `batch` of Keras' callbacks starts over in each."""
        return int(self._iterations.numpy()) + self._firsts[-1] if self._end is None else self._end

    def restore(self) -> int:
        """Restores the newest checkpoint, if there is one.

        Returns:
          The step to resume at, 0 if nothing was saved.

        Raises:
          UsageError: the checkpoint has a different order of examples, model or optimizer.
          DataError: the checkpoint cannot be read.
        """
        newest = self._manager.latest_checkpoint
        if newest is None:
            return self.step
        try:
            reader = tf.train.load_checkpoint(newest)
            stored, step = json.loads(reader.get_tensor(_SPEC)), int(newest.rpartition("-")[2])
            memory = json.loads(reader.get_tensor(_MEMORY)) if reader.has_tensor(_MEMORY) else {}
            if not self._has_saved(newest, step, memory.get("firsts", [0])):
                return self.step
            # Continuing in another order would repeat some records and leave others out.
            if changed := self._spec.differences(stored, step):
                said = ", ".join(f"{name} was {old}, is {new}" for name, (new, old) in changed.items())
                raise UsageError(f"the order of examples has changed: {said}", path=newest, advice="use another folder")
            if note := self._spec.later_changes(stored, step):
                _logger.warning("%s: %s", newest, note)
            if (stored := reader.get_tensor(_OPTIMIZER).decode()) != self._optimizer:
                raise UsageError(
                    f"has optimizer {stored}, the model has {self._optimizer}", path=newest, advice="use another folder"
                )
            # Restoring writes variables one by one, so look first for anything that could stop it.
            if not _fits(reader, newest, self._restored):
                raise UsageError("has a different model or optimizer", path=newest, advice="use another folder")
            for name in reader.get_variable_to_shape_map():
                reader.get_tensor(name)
            self._restored.restore(newest).assert_existing_objects_matched().expect_partial()
            self._state.save_counter.assign(self._restored.save_counter)  # every checkpoint has it
        except (tf.errors.OpError, IndexError, RuntimeError) as error:  # raised by its reader
            raise DataError(f"cannot be read: {root_cause(str(error))[1]}", path=newest) from None
        except (AssertionError, ValueError) as error:
            if isinstance(error, UsageError):
                raise
            raise UsageError("has a different model or optimizer", path=newest, advice="use another folder") from None
        if changes := code.changes(memory.get("code"), self._code):
            _logger.warning("%s: changed since: %s", newest, "; ".join(changes))
        self._remember(newest, memory)
        self._saved = self.step
        return self.step

    def _has_saved(self, path: str, step: int, firsts: list[int]) -> bool:
        """Returns whether a checkpoint is from this compile; a later compile's checkpoint sets where this one ended.

        `firsts` are the steps at which the checkpoint's compile and earlier ones began.
        """
        number = len(self._firsts)
        if len(firsts) > number:
            self._end = firsts[number]
        if len(firsts) < number and step != self.step:
            raise UsageError(
                f"is of the compile before, which ended at step {self.step}", path=path, advice="restore it first"
            )
        return len(firsts) == number

    def _memory(self) -> str:
        """Returns a checkpoint's content besides variables: the code, and state of metrics, callbacks and seeds."""
        is_in_epoch = self._steps_per_epoch and not self._is_between_epochs
        sums = [variable.numpy().tolist() for variable in self._metric_variables] if is_in_epoch else []
        states = [[type(state.callback).__name__, state.save()] for state in self._states]
        seeds = [variable.numpy().tolist() for variable in self._seed_variables]
        found = {"code": self._code, "metrics": sums, "callbacks": states, "seeds": seeds}
        return json.dumps({**found, "firsts": self._firsts})

    def _remember(self, path: str, memory: dict[str, Any]) -> None:
        """Restores a result of `_memory`; earlier versions stored nothing."""
        self._sums = memory.get("metrics", [])
        kinds = [type(state.callback).__name__ for state in self._states]
        stored = memory.get("callbacks", [])
        if [kind for kind, _ in stored] == kinds:
            for state, (_, values) in zip(self._states, stored, strict=True):
                state.load(values)
        elif kinds:
            was = ", ".join(kind for kind, _ in stored) or "no callbacks"
            _logger.warning("%s: has the state of %s, not of %s: they begin anew", path, was, ", ".join(kinds))
        seeds, values = self._seed_variables, memory.get("seeds", [])
        if len(values) == len(seeds):
            for variable, value in zip(seeds, values, strict=True):
                variable.assign(np.asarray(value, variable.numpy().dtype))
        elif seeds:
            _logger.warning(
                "%s: has the state of %d of the model's seeds, as of a Dropout, not of %d: they begin anew, so that "
                "the weights will be others than without the interruption",
                *(path, len(values), len(seeds)),
            )

    @property
    def _seed_variables(self) -> list[Any]:
        """Seed states of layers that draw, such as Dropout, which TensorFlow's checkpoints leave out."""
        weights = set(map(id, self._fitted.weights))
        return [variable for variable in self._fitted.variables if id(variable) not in weights]

    @property
    def _metric_variables(self) -> list[Any]:
        return [variable for metric in self._fitted.metrics for variable in metric.variables]

    @property
    def _is_between_epochs(self) -> bool:
        return bool(self._steps_per_epoch) and self.step % self._steps_per_epoch == 0

    def fits(self, *, epochs: int, steps_per_epoch: int) -> Iterator[tuple[int, dict[str, Any]]]:
        """Yields the remaining fits: the rest of an interrupted epoch, then all other epochs in one `fit`.

        Each item is the `start_step` of the input and arguments for `fit`: initial_epoch, epochs, steps_per_epoch and
        shuffle. The iteration ends early if a callback has stopped the training.

        Args:
          epochs: number of epochs to train, including those before the interruption.
          steps_per_epoch: result of the function of that name for the input.

        Raises:
          UsageError: the model's `steps_per_execution` does not divide `steps_per_epoch`, which would lengthen epochs.
        """
        if steps_per_epoch % (at_once := self._fitted.steps_per_execution):
            raise UsageError(
                f"steps_per_execution={at_once} must divide steps_per_epoch={steps_per_epoch}: Keras makes whole calls"
            )
        self._steps_per_epoch = steps_per_epoch
        if self._end is not None:  # the weights belong to a later compile, which restores them
            return
        while (step := self.step) < epochs * steps_per_epoch and not any(state.has_stopped for state in self._states):
            epoch, done = divmod(step, steps_per_epoch)
            last = epoch + 1 if done else epochs
            yield (
                step,
                {"initial_epoch": epoch, "epochs": last, "steps_per_epoch": steps_per_epoch - done, "shuffle": False},
            )
            if self.step == step or self._fitted.stop_training:
                break
            if self._weights:  # `EarlyStopping` may set the best weights at the end of each `fit`
                self._fitted.set_weights(self._weights)
            self._weights = None
            for state in self._states:
                state.load(state.save())
        self.save()

    def save(self) -> None:
        """Saves the state unless this step is already saved: overwriting it could be interrupted."""
        if self._manager.latest_checkpoint != os.path.join(self._manager.directory, f"ckpt-{self.step}"):
            self._manager.save(checkpoint_number=self.step)
        self._saved = self.step

    def set_params(self, params: dict[str, Any]) -> None:
        """Notes which callbacks come before this one, as Keras calls all callbacks of a `fit` in order."""
        super().set_params(params)
        self._earlier = [state for state in self._states if state.callback.params is params]

    def on_train_begin(self, logs: dict[str, Any] | None = None) -> None:
        """Restores the callbacks' state, which most of them reset when a `fit` begins."""
        for state in self._earlier:
            state.resume()

    def on_epoch_begin(self, epoch: int, logs: dict[str, Any] | None = None) -> None:
        """Makes the save that was due at the end of the previous epoch, now that all callbacks have seen that end."""
        for state in self._states:  # callbacks after this one were reset later
            state.resume()
        if self._is_between_epochs:
            self._save_if_due()

    def on_train_batch_end(self, batch: int, logs: dict[str, Any] | None = None) -> None:
        """Saves every `every` updates; with `steps_per_execution`, after the call that reaches that number."""
        variables = self._metric_variables
        if len(self._sums) == len(variables):  # the metrics exist from this batch on, and are sums
            for variable, value in zip(variables, self._sums, strict=True):
                variable.assign(variable.numpy() + np.asarray(value, variable.numpy().dtype))
        self._sums = []
        if not self._is_between_epochs:
            self._save_if_due()

    def on_epoch_end(self, epoch: int, logs: dict[str, Any] | None = None) -> None:
        """Keeps the weights at the end of a partial epoch, in case callbacks change them when its `fit` ends."""
        if self._states and self.params.get("steps") != self._steps_per_epoch:
            self._weights = self._fitted.get_weights()

    def _save_if_due(self) -> None:
        if self.step // self._every > self._saved // self._every:
            self.save()


class _CallbackState:
    """The state of a callback: its public attributes that have changed since it was made, except its arguments."""

    def __init__(self, callback: keras.callbacks.Callback) -> None:
        self.callback = callback
        # Keras' callbacks change some arguments as well, such as the sign of `min_delta`, but the user chooses those.
        kinds = [kind for kind in type(callback).__mro__ if "__init__" in vars(kind)]
        self._arguments = {name for kind in kinds for name in inspect.signature(vars(kind)["__init__"]).parameters}
        self._made = self._values()
        self._loaded: dict[str, Any] = {}

    def _values(self) -> dict[str, Any]:
        known = {*self._arguments, "params"}
        own = {name: value for name, value in vars(self.callback).items() if name[0] != "_" and name not in known}
        values = {name: _as_json(value) for name, value in own.items()}
        return {name: value for name, value in values.items() if value is not _OTHER}

    def save(self) -> dict[str, Any]:
        """Returns the state as a JSON-compatible object."""
        now = self._values()
        return {name: value for name, value in now.items() if name not in self._made or value != self._made[name]}

    def load(self, values: dict[str, Any]) -> None:
        """Keeps a state for `resume`."""
        self._loaded = values

    def resume(self) -> None:
        """Sets the attributes to the kept state, once."""
        for name, value in self._loaded.items():
            setattr(self.callback, name, _of_json(value))
        self._loaded = {}

    @property
    def has_stopped(self) -> bool:
        """Whether the callback had stopped the training, and still would."""
        stop, loaded = self.callback, self._loaded
        is_early = isinstance(stop, keras.callbacks.EarlyStopping) and loaded.get("stopped_epoch", 0) > 0
        return is_early and loaded.get("wait", 0) >= stop.patience


_OTHER = object()  # stands for a value that is not state
_OF_OTHERS = 2  # `isbuiltin` of types that another library has added to NumPy


def _as_json(value: Any) -> Any:
    """Returns a JSON-compatible value; `_OTHER` for anything but numbers, texts and arrays."""
    if isinstance(value, np.generic):
        value = value.item()
    if value is None or isinstance(value, bool | int | float | str):
        return value
    if isinstance(value, np.ndarray):
        if value.dtype.hasobject:
            return _OTHER
        # NumPy's format has no names for types from other libraries, such as bfloat16: it stores them as bytes.
        is_foreign = value.dtype.isbuiltin == _OF_OTHERS
        file = io.BytesIO()
        np.save(file, value.view(f"V{value.dtype.itemsize}") if is_foreign else value, allow_pickle=False)
        array = {"array": base64.b64encode(file.getvalue()).decode()}
        return {**array, "dtype": value.dtype.name} if is_foreign else array
    if isinstance(value, list | tuple):
        parts = [_as_json(one) for one in value]
        return _OTHER if any(part is _OTHER for part in parts) else parts
    if isinstance(value, dict) and all(isinstance(name, str) for name in value):
        inside = {name: _as_json(one) for name, one in value.items()}
        return _OTHER if any(one is _OTHER for one in inside.values()) else {"dict": inside}
    return _OTHER


def _of_json(value: Any) -> Any:
    if isinstance(value, list):
        return [_of_json(one) for one in value]
    if isinstance(value, dict):
        if "dict" in value:
            return {name: _of_json(one) for name, one in value["dict"].items()}
        array = np.load(io.BytesIO(base64.b64decode(value["array"])), allow_pickle=False)
        # Earlier versions stored no name: there, pairs of bytes are bfloat16 weights.
        name = value.get("dtype") or ("bfloat16" if array.dtype == "V2" else None)
        return array.view(tf.as_dtype(name).as_numpy_dtype) if name else array
    return value


class _Memory(tf.train.experimental.PythonState):
    """A text in the checkpoint."""

    def __init__(self, text: Any) -> None:
        super().__init__()
        self._text = text

    def serialize(self) -> str:
        return self._text()

    def deserialize(self, string_value: str) -> None:
        """Ignores the text, which is read separately."""


def _fits(reader: Any, path: str, state: tf.train.Checkpoint) -> bool:
    """Returns whether a checkpoint has a value of the right shape and dtype for every variable of a state."""
    graph = trackable_object_graph_pb2.TrackableObjectGraph.FromString(reader.get_tensor(_GRAPH))
    shapes, dtypes = reader.get_variable_to_shape_map(), reader.get_variable_to_dtype_map()
    matched = tf.train.CheckpointView(path).match(state)
    for number, part in matched.items():
        for key in (one.checkpoint_key for one in graph.nodes[number].attributes if one.name == "VARIABLE_VALUE"):
            is_variable = isinstance(part, keras.Variable | tf.Variable)
            if is_variable and (shapes[key], dtypes[key]) != (list(part.shape), tf.as_dtype(part.dtype)):
                return False
    known = set(map(id, matched.values()))
    parts = tf.train.TrackableView(state).descendants()
    return all(id(part) in known for part in parts if isinstance(part, keras.Variable | tf.Variable))
