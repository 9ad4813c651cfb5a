"""Training loops to measure: this trainer's, with its input or one constant batch; a bare one; Keras' fit."""

from __future__ import annotations

import functools
import itertools
import queue
import threading
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

from benchmarks import inputs
from benchmarks.one_by_one import one_by_one
from benchmarks.rounds import Take

_STEPS = 40  # of a take: two inner loops of the default length


class Made(NamedTuple):
    """The parts of a run: see `trainer.training`."""

    config: Any
    plan: Any
    strategy: Any
    stepper: Any


def make(flags: Sequence[str]) -> Made:
    """Returns the parts of the run that flags of `trainer.run` describe, without checkpoints."""
    inputs.load_tensorflow()
    from trainer import config as configs  # noqa: PLC0415
    from trainer import plan as plans  # noqa: PLC0415
    from trainer.cluster import strategies, tf_config  # noqa: PLC0415
    from trainer.step import state, train_step  # noqa: PLC0415
    from trainer.task import Task, data_spec_of  # noqa: PLC0415

    config = configs.parse([*flags, "--model_dir=unused", "--eval_split=none"])
    plan = plans.make(config, tf_config.ALONE)
    strategy = strategies.create(config.run, config.order.global_batch_size, tf_config.ALONE)
    schedule = state.schedule(config.optimizer, plan.training.steps_per_epoch, plan.last_step)
    trained = state.create(strategy, config, Task(config, data_spec_of(plan.training.first)), schedule)
    return Made(config, plan, strategy, train_step.create(strategy, trained, config, plan.training))


def batches(made: Made, constant: bool) -> Any:
    """Returns an iterator of the run's batches, or of one of them again and again."""
    from pipeline.distribution import distribute_request  # noqa: PLC0415

    virtual = made.config.order.virtual_replicas
    found = iter(distribute_request(made.strategy, made.plan.training.request, virtual_replicas=virtual))
    return itertools.repeat(next(found)) if constant else found


def ours(made: Made, constant: bool) -> Take:
    """Returns a Take of the trainer's loop: inner loops, checks for finite numbers, log lines."""
    from trainer import loop  # noqa: PLC0415
    from trainer.callbacks.progress import LogLine  # noqa: PLC0415
    from trainer.callbacks.terminal import Output  # noqa: PLC0415

    rows, feed = made.config.order.global_batch_size, batches(made, constant)
    silent = Output(rank=-1)  # prints nothing, as neither the chief nor another worker

    def take() -> tuple[int, float]:
        begin = made.stepper.state.step
        actions = LogLine(made.config.steps.period("log", 1), rows, silent).actions()
        inner_loop, most = functools.partial(made.stepper.run, feed), made.config.steps.steps_per_loop
        loop.train(inner_loop, begin, begin + _STEPS, most, actions, lambda due: (False, set()))
        return _STEPS * rows, 0.0

    take()
    return take


def bare(made: Made) -> Take:
    """Returns a Take of what a user would write: one `tf.function` per step, in a Python loop, one constant batch."""
    import keras  # noqa: PLC0415

    from trainer import models  # noqa: PLC0415
    from trainer.step import optimizers  # noqa: PLC0415

    tf, (images, labels, _) = inputs.load_tensorflow(), next(batches(made, constant=True))
    spec = made.stepper.state.task.data
    model = models.build(made.config.model, spec.features, len(spec.class_names))
    optimizer = optimizers.create(made.config.optimizer)
    optimizer.learning_rate = made.config.optimizer.learning_rate
    loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)

    @tf.function
    def step(images: Any, labels: Any) -> Any:
        with tf.GradientTape() as tape:
            total = loss(labels, model(images, training=True)) + tf.add_n([tf.constant(0.0), *model.losses])
        optimizer.apply_gradients(
            zip(tape.gradient(total, model.trainable_variables), model.trainable_variables, strict=True)
        )
        return total

    def take() -> tuple[int, float]:
        for _ in range(_STEPS):
            total = step(images, labels)
        float(total)
        return _STEPS * len(labels), 0.0

    take()
    return take


def fit(made: Made) -> Take:
    """Returns a Take of Keras' `fit` under the run's strategy, fed by the one-by-one `tf.data` of the tutorials."""
    import keras  # noqa: PLC0415

    from trainer import models  # noqa: PLC0415

    rows, spec = made.config.order.global_batch_size, made.stepper.state.task.data
    dataset = one_by_one(made.config.data.data_dir, rows, made.config.data.distort)
    with made.strategy.scope():
        model = models.build(made.config.model, spec.features, len(spec.class_names))
        loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
        model.compile(keras.optimizers.SGD(made.config.optimizer.learning_rate), loss, metrics=["accuracy"])
    go, done = queue.Queue[None](), queue.Queue[BaseException | None]()

    class Turns(keras.callbacks.Callback):
        """Makes an epoch of `fit` wait for its turn: one call, since each call would refill the shuffle buffer."""

        def on_epoch_begin(self, epoch: int, logs: Any = None) -> None:
            go.get()

        def on_epoch_end(self, epoch: int, logs: Any = None) -> None:
            done.put(None)

    def run() -> None:
        try:
            model.fit(dataset, epochs=1 << 30, steps_per_epoch=_STEPS, shuffle=False, verbose=0, callbacks=[Turns()])
        except BaseException as error:  # whoever waits raises it
            done.put(error)

    def take() -> tuple[int, float]:
        go.put(None)
        if error := done.get():
            raise error
        return _STEPS * rows, 0.0

    threading.Thread(target=run, daemon=True).start()
    take()
    return take


CONTESTANTS: dict[str, Callable[[Made], Take]] = {
    "ours": lambda made: ours(made, constant=False),
    "constant": lambda made: ours(made, constant=True),
    "bare": bare,
    "fit": fit,
}
