"""The state of training, as stored in checkpoints: model, optimizer, learning rate, averaged weights, step."""

from __future__ import annotations

import dataclasses
import hashlib
import inspect
import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import keras
import tensorflow as tf

from pipeline.errors import UsageError
from pipeline.order import graph_hashing
from pipeline.order.hashing import Domain
from trainer import models
from trainer.config import TrainConfig, meaning
from trainer.config.model import OptimizerFlags, dtype_policy
from trainer.config.phases import NO_PHASES, Phase, Phases
from trainer.plan import Plan
from trainer.step import optimizers, sizes, trained
from trainer.step.measures import WEIGHT, ClassLosses, CompiledMeasure, Measure, RowMeasure, Sums
from trainer.step.sizes import Fed
from trainer.step.trained import Trained
from trainer.task import DataSpec, Task, classes_of, data_spec_of, gives_probabilities
from trainer.topology import keep_order_of_sums

Schedule = Callable[[tf.Tensor], tf.Tensor]  # global step (int64 scalar) -> rate of the next update (float32 scalar)

DECAY = 0.9  # decay of the losses' moving averages, as in the CIFAR-10 tutorial (cifar10.py)
_WARM_UP = 10.0  # decay min(d, (1 + step) / (10 + step)), as in tf.train.ExponentialMovingAverage with num_updates
_WIDTH = 2  # the axis of a batch of images
_SEED_BITS = 32  # bits of a key in each of the two numbers of a Keras seed
_SEED_NAME = "seed_generator_state"  # name of Keras' variables


@dataclasses.dataclass(frozen=True, eq=False)
class TrainState:
    """The variables of a run, and computations with them.

    Attributes:
      task: task that built the model.
      model: Keras model from features to outputs.
      measure: loss and metrics.
      optimizer: built optimizer, so that a checkpoint finds its variables.
      global_step: number of updates so far, int64 variable.
      schedule: function from global step to learning rate, set before each update; None if the optimizer has its own.
      phases: phases: what is frozen, how fast the rest learns, and on which images.
      trained: parts of the model that each phase trains.
      fed: model that computes the steps of each phase.
      averages: averages of the weights; None if not kept.
    """

    task: Task
    model: keras.Model
    measure: Measure
    optimizer: keras.optimizers.Optimizer
    global_step: tf.Variable
    schedule: Schedule | None
    phases: Phases
    trained: tuple[Trained, ...]
    fed: tuple[Fed, ...]
    averages: Averages | None = None

    @property
    def step(self) -> int:
        """The global step as a number."""
        return int(self.global_step.numpy())

    @property
    def eval_flip(self) -> bool:
        """Whether evaluations average over images and their mirror images."""
        return self.task.config.model.eval_flip

    def evaluating(self, trainable: list[tf.Tensor], fixed: list[tf.Tensor]) -> Forward:
        """Returns the model as evaluations call it, given the values of its trainable and its other variables."""
        return Forward(self.model, trainable, fixed, self.eval_flip, self._mean_of_copies)

    @property
    def _mean_of_copies(self) -> Callable[[Any], Any] | None:
        if self.task.config.data.eval_copies == 1:
            return None
        is_logits = classes_of(self.model, self.task.data) and not gives_probabilities(self.model)
        return mean_of_logits if is_logits else mean_of_outputs

    def initialize(self, strategy: tf.distribute.Strategy) -> None:
        """Lets the task set the first weights of a new run, and starts their average from them."""
        with strategy.scope():
            self.task.initialize(self.model)
        if self.averages:
            self.averages.reset()

    def digest_of_weights(self, strategy: tf.distribute.Strategy) -> int:
        """Returns 48 bits of a digest of the model's variables on this process's first replica."""
        digest = hashlib.blake2b(digest_size=6)
        for variable in self.model.variables:
            value, *_ = strategy.experimental_local_results(variable.value)
            digest.update(value.numpy().tobytes())
        return int.from_bytes(digest.digest(), "big")

    def take_averages(self) -> None:
        """Sets the weights to their average, if there is one. All workers call it; no update may follow."""
        if self.averages:
            self.averages.to_weights()

    def values(self) -> tuple[list[tf.Tensor], list[tf.Tensor]]:
        """Returns the values of the trainable variables, then of the others; a step reads them once."""
        variables = (self.model.trainable_variables, self.model.non_trainable_variables)
        trainable, fixed = [[tf.convert_to_tensor(v.value) for v in some] for some in variables]
        return trainable, fixed

    def assign_statistics(self, new: list[tf.Tensor], trained: Trained) -> None:
        """Sets the floating-point variables that are not trained, and belong to no frozen layer, to new values."""
        variables = self.model.non_trainable_variables
        for index, value in zip(trained.statistics, new, strict=True):
            variables[index].assign(value)

    def loss_scale(self) -> tf.Tensor | None:
        """Returns the factor on the loss that keeps float16 gradients from underflowing, float32 scalar; None for 1."""
        scale = getattr(self.optimizer, "dynamic_scale", None)
        return None if scale is None else tf.convert_to_tensor(scale.value)

    def rate(self, step: tf.Tensor) -> tf.Tensor:
        """Returns the learning rate, float32 scalar, of the update that follows a global step, int64 scalar."""
        return self.schedule(step) if self.schedule else tf.convert_to_tensor(self.optimizer.learning_rate)

    def has_finite_weights(self) -> tf.Tensor:
        """Returns whether the sum of all squared weights is finite, bool scalar. Cheap enough for every step."""
        return tf.math.is_finite(tf.add_n([tf.nn.l2_loss(v.value) for v in self.model.trainable_variables]))

    @tf.function(autograph=False)
    def is_finite(self) -> tf.Tensor:
        """Returns whether all variables of the model and the optimizer are finite, bool scalar."""
        variables = [v.value for v in (*self.model.variables, *self.optimizer.variables) if v.dtype.startswith("float")]
        return tf.reduce_all([tf.reduce_all(tf.math.is_finite(v)) for v in variables])

    def trackable(self) -> dict[str, Any]:
        """Returns the objects that a checkpoint stores, by name."""
        stored = {"model": self.model, "optimizer": self.optimizer, "global_step": self.global_step}
        return {**stored, "averages": self.averages} if self.averages else stored


class Averages(tf.Module):
    """Moving average of each weight, on the weight's devices, for evaluations and exports (Polyak and Juditsky 1992).

    Attributes:
      values: averages, in the order of `model.trainable_variables`.
    """

    def __init__(self, model: keras.Model, decay: float) -> None:
        """Makes the averages, equal to the weights. Call it in the strategy's scope."""
        super().__init__()
        self._weights, self._decay = [v.value for v in model.trainable_variables], decay
        self.values = [tf.Variable(v, trainable=False, name="average") for v in self._weights]

    def reset(self) -> None:
        """Sets the averages to the weights."""
        for average, weight in zip(self.values, self._weights, strict=True):
            average.assign(weight)

    def to_weights(self) -> None:
        """Sets the weights to the averages."""
        for weight, average in zip(self._weights, self.values, strict=True):
            weight.assign(average)

    def update(self, step: tf.Tensor, weights: Sequence[int], strategy: tf.distribute.Strategy | None = None) -> None:
        """Updates the averages with the weights after an update.

        Args:
          step: number of the update, int64 scalar.
          weights: indices of the trained weights.
          strategy: strategy of parameter servers, which update their own variables; None to update the context's
            variables.
        """
        count = tf.cast(step, tf.float32)
        # The decay grows with the updates: otherwise early averages would mostly be the first, random weights.
        decay = tf.minimum(self._decay, (1.0 + count) / (_WARM_UP + count))
        for average, weight in [(self.values[i], self._weights[i]) for i in weights]:
            if strategy:
                strategy.extended.update(average, _move, args=(weight, decay))
            else:
                _move(average, weight, decay)


def _move(average: tf.Variable, weight: Any, decay: tf.Tensor) -> None:
    average.assign_sub((1.0 - decay) * (average - weight))


def schedule(flags: OptimizerFlags, steps_per_epoch: int, last_step: int, phases: Phases = NO_PHASES) -> Schedule:
    """Returns the learning rate as the flags describe it: warm-up, then a staircase, a curve, a line, or a constant.

    A phase that sets a rate or a schedule restarts it: s, w and last_step count from the phase's first step, and
    last_step is the first step of the next such phase.

    With r = learning_rate, s = global step, w = steps of warm-up, and p = (s - w) / (last_step - w) in [0, 1]:
    exponential r * decay_factor^floor(s / stair), without the floor unless it is a staircase; piecewise
    r * decay_factor^(stairs before s); cosine r * (e + (1 - e) * (1 + cos(pi * p)) / 2), e = end_factor (Loshchilov and
    Hutter 2017, "SGDR", without restarts); linear r * (e + (1 - e) * (1 - p)). Below w all are multiplied by
    (s + 1) / w (Goyal et al. 2017, 2.2).

    Args:
      flags: flags of the optimizer.
      steps_per_epoch: T; turns epochs in flags into steps, rounded down.
      last_step: step at which training, and thus the cosine and linear schedules, end.
      phases: phases, with rates and schedules of their own.
    """
    warmup = int(flags.warmup_epochs * steps_per_epoch)

    def of_phase(phase: Phase) -> Schedule:
        kind, end = phase.schedule or flags.schedule, phases.paced_until(phase.since) or last_step
        shape = _shape(flags, kind, steps_per_epoch, warmup, end - phase.since)
        highest = flags.learning_rate if phase.learning_rate is None else phase.learning_rate

        def rate(step: tf.Tensor) -> tf.Tensor:
            number = tf.cast(step - phase.since, tf.float64)
            share = shape(number)
            if warmup:
                share *= tf.clip_by_value((number + 1) / warmup, 0.0, 1.0)
            return tf.cast(highest * share, tf.float32)

        return rate

    first, *others = [(phase.since, of_phase(phase)) for phase in phases.each if phase.start == phase.since]

    def rate(step: tf.Tensor) -> tf.Tensor:
        found = first[1](step)
        for since, of_later in others:
            found = tf.where(step >= since, of_later(step), found)
        return found

    return rate


def _shape(flags: OptimizerFlags, kind: str, steps_per_epoch: int, warmup: int, last_step: int) -> Schedule:
    """Returns the function from a step to its share of the highest rate, without warm-up; float64 scalars."""
    factor, end = tf.constant(flags.decay_factor, tf.float64), flags.end_factor
    if kind == "exponential":
        stair = max(1, int(flags.decay_epochs * steps_per_epoch))
        if not flags.decay_staircase:
            return lambda step: factor ** (step / stair)
        return lambda step: factor ** tf.floor(step / stair)
    if kind == "piecewise":
        stairs = tf.constant([int(epoch * steps_per_epoch) for epoch in flags.stairs], tf.float64)
        return lambda step: factor ** tf.reduce_sum(tf.cast(step >= stairs, tf.float64))

    def progress(step: tf.Tensor) -> tf.Tensor:
        return tf.clip_by_value((step - warmup) / max(1, last_step - warmup), 0.0, 1.0)

    if kind == "cosine":
        return lambda step: end + (1 - end) * (1 + tf.cos(math.pi * progress(step))) / 2
    if kind == "linear":
        return lambda step: end + (1 - end) * (1 - progress(step))
    return tf.ones_like


def planned(config: TrainConfig, plan: Plan, strategy: tf.distribute.Strategy, task: type[Task]) -> TrainState:
    """Returns the state at step 0 of a planned run; for arguments and errors see `build`."""
    data, in_epoch = data_spec_of(plan.training.first), plan.training.steps_per_epoch
    specs = sizes.specs_of(data, plan)
    rates = schedule(config.optimizer, in_epoch, plan.last_step, plan.phases)
    return build(config, data, strategy, task, rates, plan.phases, specs)


def build(
    config: TrainConfig,
    data: DataSpec,
    strategy: tf.distribute.Strategy,
    task: type[Task],
    schedule: Schedule | None = None,
    phases: Phases = NO_PHASES,
    specs: Sequence[DataSpec] = (),
) -> TrainState:
    """Returns the state at step 0, with which runs, replays, evaluations and exports begin.

    Args:
      config: config of the run.
      data: shapes of the batches.
      strategy: strategy in whose scope the variables are made.
      task: class that builds the model.
      schedule: schedule of the learning rate, which a compiled model does not use; None if nothing is trained, so that
        the optimizer's flags do not matter.
      phases: phases, which determine what is frozen.
      specs: shapes of the batches of each phase; empty if they are all `data`.

    Raises:
      UsageError: the model cannot take the data, or a flag contradicts it.
    """
    made = task(config, data)
    if schedule is None:
        config = dataclasses.replace(config, optimizer=OptimizerFlags())
    keep_order_of_sums()
    keras.config.set_dtype_policy(dtype_policy(config.model.precision))
    keras.utils.set_random_seed(config.order.seed)
    with strategy.scope():
        model = made.build_model()
        _check_model(model, made)
        _check_mirrored(made)
        flag = f"--task={config.model.task}" if config.model.task else f"--model={config.model.model}"
        _check_central(strategy, flag, model)
        _check_inputs(flag, model, made)
        if model.compiled:
            _check_compiled(flag, model, config)
            measure: Measure = CompiledMeasure(model, made.data, flag, ClassLosses.of(made))
            optimizer, own_schedule = model.optimizer, None
        else:
            measure, own_schedule = RowMeasure(made, ClassLosses.of(made)), schedule
            optimizer = optimizers.create(config.optimizer, config.model.precision)
        optimizers.build(optimizer, model.trainable_variables)
        step = tf.Variable(0, dtype=tf.int64, aggregation=tf.VariableAggregation.ONLY_FIRST_REPLICA, name="global_step")
        averages = Averages(model, config.optimizer.ema) if config.optimizer.ema else None
        of_phases = trained.of(model, phases)
        fed = sizes.fed_by(Fed(data, model, measure), made, specs or [data] * len(phases.each), phases, flag)
    of_phases = tuple(
        one if own.model is model else dataclasses.replace(one, frozen=own.twins(model, one.frozen))
        for one, own in zip(of_phases, fed, strict=True)
    )
    return TrainState(made, model, measure, optimizer, step, own_schedule, phases, of_phases, fed, averages)


def _check_model(model: Any, task: Task) -> None:
    name = type(task).__name__
    if not isinstance(model, keras.Model):
        raise UsageError(f"{name}.build_model: must return a Keras model, returned {model!r}")
    if not model.built:
        raise UsageError(f"{name}.build_model: the model is not built; give it a keras.Input")
    _check_state(model)


def _check_state(model: keras.Model) -> None:
    """Refuses a model with state that could not be resumed or averaged."""
    for variable in model.non_trainable_variables:
        if not variable.dtype.startswith(("float", "bfloat")) and variable.name != _SEED_NAME:
            raise UsageError(
                f"the model's variable {variable.path} is {variable.dtype}: state that is not trained must be "
                "floating-point, which is averaged over the replicas, or the seed of a layer of Keras"
            )


def _check_inputs(flag: str, model: keras.Model, task: Task) -> None:
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
    """Refuses flags that training a compiled model would ignore: flags of the optimizer and the loss."""
    for group in (config.optimizer, config.model):
        for field in dataclasses.fields(group):
            own, value = meaning.compiled(group, field), getattr(group, field.name)
            if own and value != field.default:
                raise UsageError(
                    f"--{field.name}={value}: {flag} is compiled with {own} of its own; leave the flag out, or do not "
                    "compile the model"
                )


def mean_of_logits(copies: tf.Tensor) -> tf.Tensor:
    """Returns the logarithm of the mean probabilities, (rows, classes), of logits, (rows, copies, classes)."""
    total = tf.reduce_logsumexp(tf.nn.log_softmax(tf.cast(copies, tf.float32)), axis=1)
    return total - math.log(copies.shape[1])


def mean_of_outputs(copies: Any) -> Any:
    """Returns the mean outputs, (rows, ...) each, of the outputs for copies, (rows, copies, ...) each."""
    return tf.nest.map_structure(lambda each: tf.reduce_mean(each, axis=1), copies)


class Forward:
    """Calls a model as a pure function of the values of its variables, and keeps the new state.

    Attributes:
      state: values of `model.non_trainable_variables` after the last call.
      losses: regularisation terms of the last call.
    """

    def __init__(
        self,
        model: keras.Model,
        trainable: list[tf.Tensor],
        state: list[tf.Tensor],
        eval_flip: bool = False,
        mean_of_copies: Callable[[Any], Any] | None = None,
    ) -> None:
        """Takes a model and the values of its variables.

        Args:
          model: model to call.
          trainable: values of its trainable variables.
          state: values of its other variables.
          eval_flip: whether evaluations take the mean over images and their mirror images.
          mean_of_copies: function that returns the outputs for images, (rows, ...), given those for their copies,
            (rows, copies, ...), in evaluations; None: features have no axis of copies.
        """
        self._model, self._trainable, self.state, self._eval_flip = model, trainable, state, eval_flip
        self._mean_of_copies = mean_of_copies
        self.losses: list[tf.Tensor] = []

    def __call__(self, features: Any, training: bool = False) -> Any:
        """Returns the model's outputs; in float32 if the model computes in float16 or bfloat16.

        With `eval_flip`, an evaluation returns the mean over images and their mirror images: a part of the multi-crop
        evaluation of airbench94 (Jordan 2024).
        """
        if training or self._mean_of_copies is None:
            return self._of_images(features, training)
        copies = features.shape[1]
        outputs = self._of_images(tf.reshape(features, [-1, *features.shape[2:]]), training)
        rows = tf.nest.map_structure(lambda each: tf.reshape(each, [-1, copies, *each.shape[1:]]), outputs)
        return self._mean_of_copies(rows)

    def _of_images(self, features: Any, training: bool) -> Any:
        outputs = self._outputs(features, training)
        if training or not self._eval_flip:
            return outputs
        mirrored = self._outputs(tf.reverse(features, axis=[_WIDTH]), training)
        return tf.nest.map_structure(lambda one, other: (one + other) / 2, outputs, mirrored)

    def _outputs(self, features: Any, training: bool) -> Any:
        mode = {"training": training} if _takes_training(self._model) else {}
        outputs, self.state, self.losses = self._model.stateless_call(
            self._trainable, self.state, _as_input(self._model, features), return_losses=True, **mode
        )
        low = (tf.float16, tf.bfloat16)
        return tf.nest.map_structure(lambda v: tf.cast(v, tf.float32) if v.dtype in low else v, outputs)


def seeded(state: list[tf.Tensor], *key: Any) -> list[tf.Tensor]:
    """Returns the state with seeds hashed from integers, so that dropout does not depend on earlier calls."""

    def seed(index: int, value: tf.Tensor) -> tf.Tensor:
        if value.dtype.is_floating:
            return value
        hashed = graph_hashing.derive_key(Domain.MODEL, key[0], index, *key[1:])
        low = tf.bitwise.bitwise_and(hashed, tf.constant((1 << _SEED_BITS) - 1, tf.uint64))
        high = tf.bitwise.right_shift(hashed, tf.constant(_SEED_BITS, tf.uint64))
        return tf.cast(tf.stack([high, low]), value.dtype)

    return [seed(index, value) for index, value in enumerate(state)]


def _takes_training(model: keras.Model) -> bool:
    """Returns whether the model's call takes the argument `training`, which a subclass may lack."""
    parameters = inspect.signature(model.call).parameters.values()
    return any(one.name == "training" or one.kind is one.VAR_KEYWORD for one in parameters)


def _as_input(model: keras.Model, features: Any) -> Any:
    """Casts uint8 pixels to the model's input dtype (values stay in 0..255); returns other features unchanged."""
    wanted = model.inputs[0].dtype if getattr(model, "inputs", None) else None
    if not tf.is_tensor(features) or features.dtype != tf.uint8 or wanted in (None, "uint8"):
        return features
    return tf.cast(features, wanted)


def moving_averages(averages: tf.Tensor, values: tf.Tensor) -> tf.Tensor:
    """Returns moving averages after one more update with these values; they start at the first values."""
    return tf.where(tf.math.is_nan(averages), values, DECAY * averages + (1 - DECAY) * values)


def flat_sums(sums: Sums, penalty: tf.Tensor) -> tf.Tensor:
    """Returns 1, an update's regularisation, then the measure's sums over its rows, flattened; float64."""
    own = tf.stack([tf.constant(1.0, tf.float64), tf.cast(penalty, tf.float64)])
    return tf.concat([own, *(tf.reshape(tf.cast(value, tf.float64), [-1]) for value in sums.values())], axis=0)


def epoch_sums(before: tf.Tensor, sums: Sums, penalty: tf.Tensor, begins: tf.Tensor) -> tf.Tensor:
    """Returns the sums over an epoch after one more update, float64.

    Args:
      before: sums after the previous update; if they have another length, such as 0, the sums start again.
      sums: sums of the measure over all rows of the update.
      penalty: the update's regularisation.
      begins: whether the update is the first of its epoch, bool scalar.

    Returns:
      The number of updates, the sum of each regularisation times the weight of its rows, then the measure's sums, flat.
    """
    here = flat_sums(sums, tf.cast(penalty, tf.float64) * tf.cast(sums[WEIGHT], tf.float64))
    size = here.shape[0]
    return tf.where(begins | tf.not_equal(tf.size(before), size), here, fitted(before, size) + here)


def fitted(flat: tf.Tensor, size: int) -> tf.Tensor:
    """Returns a vector truncated or zero-padded to a length."""
    return tf.ensure_shape(tf.pad(flat[:size], [[0, size - tf.minimum(tf.size(flat), size)]]), [size])


def flat_parts(flat: tf.Tensor, specs: Mapping[str, tf.TensorSpec]) -> tuple[Sums, tf.Tensor]:
    """Splits a result of `flat_sums` or `epoch_sums` into the measure's sums, float64, and the values before them.

    Args:
      flat: float64 vector.
      specs: shapes of the sums, by name.
    """
    _, penalty, *parts = tf.split(flat, [1, 1, *(spec.shape.num_elements() for spec in specs.values())])
    sums = {name: tf.reshape(part, spec.shape) for (name, spec), part in zip(specs.items(), parts, strict=True)}
    return sums, penalty[0]
