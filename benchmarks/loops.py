"""Training loops to measure: this trainer's, a plain `tf.function`, Keras' fit, each with real or constant input.

`limit` is the work that all of them must do: the model's convolutions and matrix products.
"""

from __future__ import annotations

import dataclasses
import functools
import itertools
import queue
import threading
from collections.abc import Callable, Iterator, Sequence
from typing import Any

from benchmarks import inputs
from benchmarks.one_by_one import one_by_one
from benchmarks.rounds import Contest, Take

_LOOPS = 2  # inner loops of a take


@dataclasses.dataclass(frozen=True)
class Made:
    """The parts of a run: see `trainer.training`. `spec` has the shapes of a batch."""

    config: Any
    plan: Any
    strategy: Any
    spec: Any

    @functools.cached_property
    def stepper(self) -> Any:
        """The trainer's step, made on first use, since other loops do not need it."""
        from trainer.step import state, train_step  # noqa: PLC0415
        from trainer.task import Task  # noqa: PLC0415

        config, plan = self.config, self.plan
        schedule = state.schedule(config.optimizer, plan.training.steps_per_epoch, plan.last_step)
        trained = state.build(config, self.spec, self.strategy, Task, schedule)
        return train_step.create(self.strategy, trained, config, plan.training)

    @property
    def rows(self) -> int:
        """Number of rows in a batch."""
        return int(self.config.order.global_batch_size)

    @property
    def steps(self) -> int:
        """Number of steps in a take."""
        return _LOOPS * int(self.config.steps.steps_per_loop)


def make(flags: Sequence[str]) -> Made:
    """Returns the parts of the run described by flags of `trainer.run`, without checkpoints."""
    inputs.load_tensorflow()
    from trainer import config as configs  # noqa: PLC0415
    from trainer import plan as plans  # noqa: PLC0415
    from trainer.cluster import strategies, tf_config  # noqa: PLC0415
    from trainer.task import data_spec_of  # noqa: PLC0415

    config = configs.parse([*flags, "--model_dir=unused", "--eval_split=none"])
    plan = plans.make(config)
    strategy = strategies.create(config.run, config.order.global_batch_size, tf_config.ALONE)
    return Made(config, plan, strategy, data_spec_of(plan.training.first))


def batches(made: Made, constant: bool) -> Iterator[Any]:
    """Returns an iterator over the run's batches, or over one of them repeatedly."""
    from pipeline.distribution import distribute_request  # noqa: PLC0415

    virtual = made.config.order.virtual_replicas
    found = iter(distribute_request(made.strategy, made.plan.training.request, virtual_replicas=virtual))
    return itertools.repeat(next(found)) if constant else found


def ours(made: Made, constant: bool) -> Contest:
    """Returns the trainer's loop: inner loops, checks for finite numbers, log lines."""
    from trainer import loop  # noqa: PLC0415
    from trainer.callbacks.progress import LogLine  # noqa: PLC0415
    from trainer.callbacks.terminal import Output  # noqa: PLC0415

    stepper, feed = made.stepper, batches(made, constant)
    silent = Output(rank=-1)  # prints nothing, being neither chief nor worker

    def take() -> tuple[int, float]:
        begin = stepper.state.step
        actions = LogLine(made.config.steps.period("log", 1), made.rows, silent).actions()
        inner_loop, most = functools.partial(stepper.run, feed), made.config.steps.steps_per_loop
        loop.train(inner_loop, begin, begin + made.steps, most, actions, lambda due: (False, set()))
        return made.steps * made.rows, 0.0

    return _warm(take, stepper.state.model)


def _warm(take: Take, model: Any) -> Contest:
    """Runs a loop once; returns it with the number of the model's trainable weights."""
    take()
    return Contest(take, {"weights": sum(variable.numpy().size for variable in model.trainable_variables)})


def model_of(made: Made, fused: bool = False) -> tuple[Any, Any]:
    """Returns a user's model and optimizer: the run's, with Keras' and TensorFlow's own layers unless `fused`."""
    import keras  # noqa: PLC0415

    from trainer import models  # noqa: PLC0415
    from trainer.config.model import dtype_policy  # noqa: PLC0415
    from trainer.models import layers  # noqa: PLC0415
    from trainer.step import optimizers  # noqa: PLC0415

    tf, config = inputs.load_tensorflow(), made.config
    keras.config.set_dtype_policy(dtype_policy(config.model.precision))
    optimizer = optimizers.create(config.optimizer, config.model.precision)
    optimizer.learning_rate = config.optimizer.learning_rate
    model = models.build(config.model, made.spec.features, len(made.spec.class_names))
    if fused:
        return model, optimizer

    class LocalResponseNorm(layers.LocalResponseNorm):
        def call(self, activations: Any) -> Any:
            exact = tf.cast(activations, tf.float32)
            return tf.cast(tf.nn.local_response_normalization(exact, 4, 1.0, 0.001 / 9.0, 0.75), activations.dtype)

    kinds = {
        layers.BatchNormalization: keras.layers.BatchNormalization,
        layers.LocalResponseNorm: LocalResponseNorm,
        layers.MaxPooling2D: keras.layers.MaxPooling2D,
    }

    def own(layer: Any) -> Any:
        return kinds.get(type(layer), type(layer)).from_config(layer.get_config())

    theirs = keras.models.clone_model(model, clone_function=own)
    theirs.set_weights(model.get_weights())
    return theirs, optimizer


def _dataset(made: Made, constant: bool) -> Any:
    """Returns the tutorials' one-by-one `tf.data`, or one of its batches repeatedly."""
    tf = inputs.load_tensorflow()
    dataset = one_by_one(made.config.data.data_dir, made.rows, made.config.data.augment)
    return tf.data.Dataset.from_tensors(next(iter(dataset))).repeat() if constant else dataset


def plain(made: Made, constant: bool, compiled: bool = False, fused: bool = False) -> Contest:
    """Returns a loop as a user would write it: one `tf.function` per step, in a Python loop.

    Args:
      made: parts of the run.
      constant: whether the input is one constant batch, already a tensor.
      compiled: whether XLA compiles the step.
      fused: whether the model has this project's layers instead of Keras' own.
    """
    import keras  # noqa: PLC0415

    tf, (model, optimizer) = inputs.load_tensorflow(), model_of(made, fused)
    optimizer.build(model.trainable_variables)
    loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
    dataset = iter(_dataset(made, constant))
    feed = itertools.repeat(next(dataset)) if constant else dataset

    @tf.function(jit_compile=compiled)
    def step(images: Any, labels: Any) -> Any:
        with tf.GradientTape() as tape:
            total = loss(labels, model(images, training=True)) + tf.add_n([tf.constant(0.0), *model.losses])
        optimizer.apply_gradients(
            zip(tape.gradient(total, model.trainable_variables), model.trainable_variables, strict=True)
        )
        return total

    def take() -> tuple[int, float]:
        for _ in range(made.steps):
            total = step(*next(feed))
        float(total)
        return made.steps * made.rows, 0.0

    return _warm(take, model)


def fit(made: Made, constant: bool) -> Contest:
    """Returns Keras' `fit` under the run's strategy."""
    import keras  # noqa: PLC0415

    dataset = _dataset(made, constant)
    with made.strategy.scope():
        model, optimizer = model_of(made)
        loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
        model.compile(optimizer, loss, metrics=["accuracy"])
    go, done = queue.Queue[None](), queue.Queue[BaseException | None]()

    class Turns(keras.callbacks.Callback):
        """Makes an epoch of `fit` wait for its turn: a single call, since each would refill the shuffle buffer."""

        def on_epoch_begin(self, epoch: int, logs: Any = None) -> None:
            go.get()

        def on_epoch_end(self, epoch: int, logs: Any = None) -> None:
            done.put(None)

    def run() -> None:
        try:
            model.fit(
                dataset, epochs=1 << 30, steps_per_epoch=made.steps, shuffle=False, verbose=0, callbacks=[Turns()]
            )
        except BaseException as error:  # raised by the waiting thread
            done.put(error)

    def take() -> tuple[int, float]:
        go.put(None)
        if error := done.get():
            raise error
        return made.steps * made.rows, 0.0

    threading.Thread(target=run, daemon=True).start()
    return _warm(take, model)


def limit(made: Made) -> Contest:
    """Returns a loop over only the model's convolutions and matrix products, forward and backward, in sequence."""
    import keras  # noqa: PLC0415

    tf, (model, _) = inputs.load_tensorflow(), model_of(made)
    layers = [one for one in model.layers if isinstance(one, (keras.layers.Conv2D, keras.layers.Dense))]
    parts = [_part(layer, made.rows, number > 0) for number, layer in enumerate(layers)]
    multiplications = 0
    for layer in layers:
        # A convolution uses each weight once per output pixel.
        pixels = layer.output.shape[1:-1]
        multiplications += layer.kernel.shape.num_elements() * functools.reduce(lambda a, b: a * b, pixels, 1)
    tensors = [given for given, *_ in parts]

    @tf.function(autograph=False)
    def step(tensors: Any) -> Any:
        found: list[Any] = []
        for (_, forward, _), given in zip(parts, tensors, strict=True):
            with tf.control_dependencies(found[-1:]):
                found.append(_corner(tf, forward(*given)))
        for (_, _, backward), given in zip(reversed(parts), reversed(tensors), strict=True):
            for gradient in backward:
                with tf.control_dependencies(found[-1:]):
                    found.append(_corner(tf, gradient(*given)))
        return tf.add_n(found)

    def take() -> tuple[int, float]:
        for _ in range(made.steps):
            last = step(tensors)
        float(last)
        return made.steps * made.rows, 0.0

    contest = _warm(take, model)
    return Contest(take, {**contest.facts, "multiplications": multiplications})


def _corner(tf: Any, value: Any) -> Any:
    """Returns one element of a tensor, so that nothing is pruned."""
    return tf.cast(tf.reshape(value, [-1])[0], tf.float32)


def _part(layer: Any, rows: int, needs_input: bool) -> tuple[list[Any], Any, list[Any]]:
    """Returns a layer's input, kernel and output gradient, its forward pass, and the gradients needed for training."""
    tf, kind = inputs.load_tensorflow(), layer.compute_dtype
    shapes = [(rows, *layer.input.shape[1:]), layer.kernel.shape, (rows, *layer.output.shape[1:])]
    given = [tf.cast(tf.random.uniform(shape), kind) for shape in shapes]
    if len(shapes[1]) == 2:
        return (
            given,
            lambda x, w, g: tf.matmul(x, w),
            [lambda x, w, g: tf.matmul(x, g, transpose_a=True), lambda x, w, g: tf.matmul(g, w, transpose_b=True)],
        )
    how: dict[str, Any] = {"strides": [1, *layer.strides, 1], "padding": layer.padding.upper()}
    backward: list[Any] = []
    if layer.trainable:
        backward.append(
            lambda x, w, g: tf.raw_ops.Conv2DBackpropFilter(input=x, filter_sizes=w.shape, out_backprop=g, **how)
        )
        if needs_input:
            backward.append(
                lambda x, w, g: tf.raw_ops.Conv2DBackpropInput(input_sizes=x.shape, filter=w, out_backprop=g, **how)
            )
    return given, lambda x, w, g: tf.raw_ops.Conv2D(input=x, filter=w, **how), backward


def contest(name: str, flags: Sequence[str]) -> Contest:
    """Returns a loop of the run described by flags of `trainer.run`."""
    return CONTESTANTS[name](make(flags))


CONTESTANTS: dict[str, Callable[[Made], Contest]] = {
    "ours": functools.partial(ours, constant=False),
    "constant": functools.partial(ours, constant=True),
    "plain": functools.partial(plain, constant=True),
    "plain, XLA": functools.partial(plain, constant=True, compiled=True),
    "plain, fused": functools.partial(plain, constant=True, fused=True),
    "plain input": functools.partial(plain, constant=False),
    "fit constant": functools.partial(fit, constant=True),
    "fit": functools.partial(fit, constant=False),
    "limit": limit,
}
