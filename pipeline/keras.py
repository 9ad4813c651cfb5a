"""Keras' `fit` that resumes exactly after a kill, in the middle of an epoch, too: the input's state is the step."""

from __future__ import annotations

import json
import logging
import os
from collections.abc import Iterator
from typing import Any

import keras
import tensorflow as tf

from pipeline.errors import DataError, UsageError, root_cause
from pipeline.order.order import MixtureSpec, Spec, check_replicas

_SPEC, _OPTIMIZER = (f"order/{name}/.ATTRIBUTES/VARIABLE_VALUE" for name in ("spec", "optimizer"))  # in checkpoints

_logger = logging.getLogger("pipeline")


class ExactResume(keras.callbacks.Callback):  # type: ignore[misc]
    """A callback for Keras' `fit` that saves every `every` steps, and resumes at the very step.

        resume = ExactResume(model, "run", order_spec("demo/digits", global_batch_size=64, training=True), every=100)
        resume.restore()
        for step, rest in resume.fits(epochs=10, steps_per_epoch=steps):
            data = input_fn("demo/digits", global_batch_size=64, training=True, start_step=step, weights="mean")
            model.fit(data, **rest, callbacks=[resume])

    Model, optimizer and the arguments of the order are saved together, in one checkpoint that is complete or absent.
    Kill the program at any moment and run it again: it ends with the same weights; on CPUs they are bit-identical for
    the same number of replicas. The rest of an interrupted epoch is fitted as a short one, so Keras' metrics of that
    epoch cover the rest only, and callbacks with a state, such as `EarlyStopping`, begin without it.
    """

    def __init__(
        self, model: keras.Model, folder: str | os.PathLike[str], spec: Spec, *, every: int, keep: int = 2
    ) -> None:
        """Makes it; under a strategy, in its scope.

        Args:
          model: built and compiled.
          folder: of the checkpoints; it is made.
          spec: what `order_spec` returns for the input of the `fit`.
          every: steps between two checkpoints; `fits` makes another one at its end.
          keep: the newest checkpoints that are kept.

        Raises:
          UsageError: the model is not built or not compiled, or scales its loss (float16), so that its optimizer does
            not count all steps; the replicas do not divide the batch.
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
        optimizer.build(model.trainable_variables)  # its slots, so that they can be restored
        self._fitted, self._iterations, self._spec, self._every = model, optimizer.iterations, spec, every
        self._optimizer = type(optimizer).__name__
        order = tf.train.Checkpoint(spec=tf.Variable(spec.to_json()), optimizer=tf.Variable(self._optimizer))
        self._state = tf.train.Checkpoint(model=model, optimizer=optimizer, order=order)
        self._manager = tf.train.CheckpointManager(self._state, os.fspath(folder), max_to_keep=keep)
        self._saved = 0

    @property
    def step(self) -> int:
        """Updates so far, over all epochs and fits; the `batch` of Keras' callbacks starts over in each."""
        return int(self._iterations.numpy())

    def restore(self) -> int:
        """Restores the newest checkpoint, if there is one.

        Returns:
          The step to resume at, 0 if nothing was saved.

        Raises:
          UsageError: it was saved with another order of examples, model or optimizer.
          DataError: it cannot be read.
        """
        newest = self._manager.latest_checkpoint
        if newest is None:
            return self.step
        try:
            stored = json.loads(tf.train.load_variable(newest, _SPEC))
            # The rest of another order would repeat records and leave others out.
            step = int(newest.rpartition("-")[2])
            if changed := self._spec.differences(stored, step):
                said = ", ".join(f"{name} was {old}, is {new}" for name, (new, old) in changed.items())
                raise UsageError(f"the order of examples has changed: {said}", path=newest, advice="use another folder")
            if note := self._spec.later_changes(stored, step):
                _logger.warning("%s: %s", newest, note)
            if (stored := tf.train.load_variable(newest, _OPTIMIZER).decode()) != self._optimizer:
                raise UsageError(
                    f"has optimizer {stored}, the model has {self._optimizer}", path=newest, advice="use another folder"
                )
            self._state.restore(newest).assert_existing_objects_matched()
        except (tf.errors.OpError, IndexError, RuntimeError) as error:  # as its reader raises them
            raise DataError(f"cannot be read: {root_cause(str(error))[1]}", path=newest) from None
        except (AssertionError, ValueError) as error:
            if isinstance(error, UsageError):
                raise
            raise UsageError("is of another model or optimizer", path=newest, advice="use another folder") from None
        self._saved = self.step
        return self.step

    def fits(self, *, epochs: int, steps_per_epoch: int) -> Iterator[tuple[int, dict[str, Any]]]:
        """Yields what is left to do: the rest of an interrupted epoch, then all others in one `fit`.

        Each is the `start_step` of the input, and arguments for `fit`: initial_epoch, epochs, steps_per_epoch and
        shuffle. Ends early where a callback has stopped the training.

        Args:
          epochs: to train to, those before the interruption counted.
          steps_per_epoch: what the function of that name returns for the input.

        Raises:
          UsageError: the model's `steps_per_execution` does not divide it, so that epochs would have more steps.
        """
        if steps_per_epoch % (at_once := self._fitted.steps_per_execution):
            raise UsageError(
                f"steps_per_execution={at_once} must divide steps_per_epoch={steps_per_epoch}: Keras makes whole calls"
            )
        while (step := self.step) < epochs * steps_per_epoch:
            epoch, done = divmod(step, steps_per_epoch)
            last = epoch + 1 if done else epochs
            yield (
                step,
                {"initial_epoch": epoch, "epochs": last, "steps_per_epoch": steps_per_epoch - done, "shuffle": False},
            )
            if self.step == step or self._fitted.stop_training:
                break
        self.save()

    def save(self) -> None:
        """Saves the state, unless that of this step is saved already: overwriting it could be interrupted."""
        if self._manager.latest_checkpoint != os.path.join(self._manager.directory, f"ckpt-{self.step}"):
            self._manager.save(checkpoint_number=self.step)
        self._saved = self.step

    def on_train_batch_end(self, batch: int, logs: dict[str, Any] | None = None) -> None:
        """Saves every `every` updates; with `steps_per_execution`, after the call that reaches that many."""
        if self.step // self._every > self._saved // self._every:
            self.save()
