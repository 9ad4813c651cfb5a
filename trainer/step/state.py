"""What training changes and a checkpoint holds: model, optimizer, average of the weights, global step."""

from __future__ import annotations

import dataclasses
from typing import Any

import keras
import tensorflow as tf

from pipeline.errors import UsageError
from trainer import models
from trainer.config import TrainConfig
from trainer.config.model import OptimizerFlags, dtype_policy
from trainer.step import optimizers
from trainer.step.averages import Averages
from trainer.step.forward import check_state
from trainer.step.schedules import Schedule
from trainer.task.base import Task
from trainer.task.compiled import CompiledMeasure
from trainer.task.sums import Measure, RowMeasure


@dataclasses.dataclass(frozen=True, eq=False)
class TrainState:
    """The variables of a run, and what is computed with them.

    Attributes:
      task: whose model it is.
      model: features -> outputs.
      measure: the loss and the metrics.
      optimizer: built, so that a checkpoint finds its variables.
      global_step: int64 variable, updates so far.
      schedule: global step -> learning rate, which the optimizer is given before each update; None: it has its own.
      averages: of the weights; None: not kept.
    """

    task: Task
    model: keras.Model
    measure: Measure
    optimizer: keras.optimizers.Optimizer
    global_step: tf.Variable
    schedule: Schedule | None
    averages: Averages | None = None

    @property
    def step(self) -> int:
        """The global step as a number."""
        return int(self.global_step.numpy())

    @property
    def eval_flip(self) -> bool:
        """Whether evaluations take images and their mirror images."""
        return self.task.config.model.eval_flip

    def initialize(self, strategy: tf.distribute.Strategy) -> None:
        """Gives the model of a new run its first weights, as its task wants, and begins their average with them."""
        with strategy.scope():
            self.task.initialize(self.model)
        if self.averages:
            self.averages.reset()

    def take_averages(self) -> None:
        """Sets the weights to their average, where there is one; no update may follow. Every worker calls it."""
        if self.averages:
            self.averages.to_weights()

    def loss_scale(self) -> tf.Tensor | None:
        """Returns what the loss is multiplied by before it is differentiated, float32 scalar; None: by nothing."""
        scale = getattr(self.optimizer, "dynamic_scale", None)
        return None if scale is None else tf.convert_to_tensor(scale.value)

    def rate(self, step: tf.Tensor) -> tf.Tensor:
        """Returns the learning rate of the update that follows a global step, int64 scalar; float32 scalar."""
        return self.schedule(step) if self.schedule else tf.convert_to_tensor(self.optimizer.learning_rate)

    def has_finite_weights(self) -> tf.Tensor:
        """Returns whether the sum of all squared weights is finite, bool scalar; cheap enough for every step."""
        return tf.math.is_finite(tf.add_n([tf.nn.l2_loss(v.value) for v in self.model.trainable_variables]))

    @tf.function(autograph=False)
    def is_finite(self) -> tf.Tensor:
        """Returns whether no weight, moment or velocity is NaN or infinite, bool scalar."""
        variables = [v.value for v in (*self.model.variables, *self.optimizer.variables) if v.dtype.startswith("float")]
        return tf.reduce_all([tf.reduce_all(tf.math.is_finite(v)) for v in variables])

    def trackable(self) -> dict[str, Any]:
        """Returns what a checkpoint stores, by name."""
        stored = {"model": self.model, "optimizer": self.optimizer, "global_step": self.global_step}
        return {**stored, "averages": self.averages} if self.averages else stored


def create(strategy: tf.distribute.Strategy, config: TrainConfig, task: Task, schedule: Schedule) -> TrainState:
    """Returns the state at step 0, its variables on the strategy's devices.

    Args:
      strategy: in whose scope the variables are made.
      config: of the run.
      task: builds the model.
      schedule: of a model that its author has not compiled.

    Raises:
      UsageError: the model cannot take the data, or a flag contradicts it.
    """
    keras.config.set_dtype_policy(dtype_policy(config.model.precision))
    keras.utils.set_random_seed(config.order.seed)
    with strategy.scope():
        model = task.build_model()
        _check_model(model, task)
        _check_mirrored(task)
        flag = f"--task={config.model.task}" if config.model.task else f"--model={config.model.model}"
        _check_central(strategy, flag, model)
        _check_inputs(flag, model, task)
        if model.compiled:
            _check_compiled(flag, model, config)
            measure: Measure = CompiledMeasure(model, task.data, flag)
            optimizer, own_schedule = model.optimizer, None
        else:
            measure, own_schedule = RowMeasure(task), schedule
            optimizer = optimizers.create(config.optimizer, config.model.precision)
        optimizers.build(optimizer, model.trainable_variables)
        step = tf.Variable(0, dtype=tf.int64, aggregation=tf.VariableAggregation.ONLY_FIRST_REPLICA, name="global_step")
        averages = Averages(model, config.optimizer.ema) if config.optimizer.ema else None
    return TrainState(task, model, measure, optimizer, step, own_schedule, averages)


def _check_model(model: Any, task: Task) -> None:
    name = type(task).__name__
    if not isinstance(model, keras.Model):
        raise UsageError(f"{name}.build_model: must return a Keras model, returned {model!r}")
    if not model.built:
        raise UsageError(f"{name}.build_model: the model is not built; give it a keras.Input")
    check_state(model)


def _check_inputs(flag: str, model: keras.Model, task: Task) -> None:
    """Refuses a model that has nothing to train, or does not take what it is fed."""
    if not model.trainable_variables:
        raise UsageError(f"{flag}: the model has no trainable weights; add a layer that has, or set trainable = True")
    is_fed = model.compiled or type(task).train_step is Task.train_step  # a task may feed it otherwise
    if is_fed and (reason := models.takes(model, task.data.features)):
        shapes = tf.nest.map_structure(lambda spec: f"{spec.dtype.name} {tuple(spec.shape)}", task.data.features)
        raise UsageError(f"{flag}: the model does not take the data, which are {shapes}: {reason}")


def _check_central(strategy: tf.distribute.Strategy, flag: str, model: keras.Model) -> None:
    central = isinstance(strategy, tf.distribute.experimental.CentralStorageStrategy)
    statistics = [v.path for v in model.non_trainable_variables if v.dtype.startswith(("float", "bfloat"))]
    if central and strategy.num_replicas_in_sync > 1 and statistics:
        raise UsageError(
            f"--strategy=central_storage: {flag} has state that is not trained, as BatchNorm has ({statistics[0]}); "
            "TensorFlow cannot average it under this strategy: use --strategy=mirrored, or --num_replicas=1"
        )


def _check_mirrored(task: Task) -> None:
    shape = getattr(task.data.features, "shape", None)
    if task.config.model.eval_flip and (shape is None or shape.rank != 4):
        raise UsageError("--eval_flip: mirrors images, which this task's features are not; leave the flag out")


def _check_compiled(flag: str, model: keras.Model, config: TrainConfig) -> None:
    """Refuses what the training of a compiled model would ignore: flags of its optimizer and loss."""
    of_optimizer = {field.name: field.default for field in dataclasses.fields(OptimizerFlags)}
    for own, given, defaults in (
        ("an optimizer", config.optimizer, {n: v for n, v in of_optimizer.items() if n not in ("ema", "clip_norm")}),
        ("a loss", config.model, {"label_smoothing": 0.0}),
    ):
        for name, default in defaults.items():
            if (value := getattr(given, name)) != default:
                raise UsageError(
                    f"--{name}={value}: {flag} is compiled with {own} of its own; leave the flag out, or do not "
                    "compile the model"
                )
    weights = getattr(getattr(model, "_compile_loss", None), "_user_loss_weights", None)  # public nowhere
    if weights is not None:
        raise UsageError(f"{flag}: compiled with loss_weights={weights}, which one loss of one output does not need")
