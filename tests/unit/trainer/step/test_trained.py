"""What each phase of a training trains, and how: through the steps that a run makes."""

import keras
import numpy as np
import pytest
import tensorflow as tf

from pipeline.errors import UsageError
from trainer.config.model import OptimizerFlags
from trainer.config.phases import Phases
from trainer.models.layers import BatchNormalization, fuse_layers
from trainer.step import optimizers, state, trained
from trainer.step.summaries import HISTOGRAMS

RATE = 0.05
# Each layer is trained from the start, or thaws, or both: frozen again in between.
PHASES = "0: freeze=a; 2: freeze=b+c; 4: freeze=none; 6: freeze=b"
TRAINED = ("bc", "bc", "a", "a", "abc", "abc", "ac", "ac")  # in each step


def three_layers():
    return keras.Sequential([keras.Input((4, 3, 1)), keras.layers.Flatten(), *(dense(name) for name in "abc")])


def dense(name):
    return keras.layers.Dense(5, activation="tanh" if name < "c" else None, name=name, dtype="float32")


def batches(rows=8):
    draw = np.random.default_rng(0)
    images = draw.normal(size=(len(TRAINED), rows, 4, 3, 1)).astype(np.float32)
    return images, draw.integers(0, 5, (len(TRAINED), rows)), np.ones((len(TRAINED), rows), np.float32)


def weights_of(model):
    return {layer.name: [v.numpy() for v in layer.variables] for layer in model.layers if layer.variables}


def steps_of(stepper, rows=None):
    """Returns the weights before the first step and after each of them."""
    data = tf.data.Dataset.from_tensor_slices(rows or batches())
    iterator, found = iter(stepper.strategy.experimental_distribute_dataset(data)), [weights_of(stepper.state.model)]
    for _ in TRAINED:
        stepper.run(iterator, 1)
        found.append(weights_of(stepper.state.model))
    return found


def expected(first, flags):
    """Returns what `steps_of` does, where each layer has an optimizer of its own that sees its steps alone."""
    model = three_layers()
    for layer in model.layers:
        layer.set_weights(first.get(layer.name, []))
    own = {}
    for name in "abc":
        own[name] = optimizers.create(OptimizerFlags(**flags))
        optimizers.build(own[name], model.get_layer(name).trainable_variables)
        own[name].learning_rate = RATE
    found = [first]
    for names, images, labels in zip(TRAINED, *batches()[:2], strict=True):
        with tf.GradientTape() as tape:
            loss = tf.reduce_mean(tf.nn.sparse_softmax_cross_entropy_with_logits(labels, model(images)))
        variables = {name: model.get_layer(name).trainable_variables for name in names}
        for name, gradients in tape.gradient(loss, {n: [v.value for v in vs] for n, vs in variables.items()}).items():
            own[name].apply(gradients, variables[name])
        found.append(weights_of(model))
    return found


@pytest.mark.slow
@pytest.mark.parametrize(
    ("flags", "replicas"),
    [
        ({"optimizer": "adam"}, 1),
        ({"optimizer": "adamw", "weight_decay": 0.1}, 2),
        ({"optimizer": "momentum", "weight_decay": 0.1}, 1),
        ({"optimizer": "adafactor"}, 1),
        ({"optimizer": "lamb"}, 1),
        ({"optimizer": "adam", "jit_compile": "on"}, 1),
        ({"optimizer": "adam", "jit_compile": "on"}, 2),
    ],
)
def test_each_weight_is_updated_as_by_an_optimizer_that_sees_its_steps_alone(flags, replicas, make_stepper):
    stepper = make_stepper(replicas, **flags, build=three_layers, rate=RATE, phases=PHASES)
    found = steps_of(stepper)
    of_optimizer = {name: value for name, value in flags.items() if name != "jit_compile"}
    for step, (here, there) in enumerate(zip(found, expected(found[0], of_optimizer), strict=True)):
        for name in "abc":
            for one, other in zip(here[name], there[name], strict=True):
                np.testing.assert_allclose(one, other, atol=2e-5, err_msg=f"{name} after step {step}")
    assert int(stepper.state.optimizer.iterations.numpy()) == len(TRAINED)


@pytest.mark.slow
def test_float16_counts_updates_in_the_same_way(make_stepper):
    """The scale of the loss is one of all weights; its own count is that of Keras."""
    flags = {"precision": "float16", "optimizer": "adam(epsilon=1e-3)"}
    stepper = make_stepper(1, **flags, build=three_layers, rate=RATE, phases=PHASES)
    found = steps_of(stepper)
    for here, there in zip(found, expected(found[0], {"optimizer": flags["optimizer"]}), strict=True):
        for name in "abc":
            for one, other in zip(here[name], there[name], strict=True):
                np.testing.assert_allclose(one, other, atol=5e-3)


def with_norms():
    parts = [
        keras.layers.Conv2D(3, 2, name="stem", kernel_regularizer=keras.regularizers.L2(0.1)),
        keras.layers.BatchNormalization(name="norm"),
        keras.layers.ReLU(),
        keras.layers.Flatten(),
        keras.layers.BatchNormalization(name="late"),  # of rows, which Keras computes itself
        keras.layers.Dense(5, name="head"),
    ]
    return fuse_layers(keras.Sequential([keras.Input((4, 3, 1)), *parts]))


FROZEN = "0: freeze=stem+norm+late; 3: freeze=none"


@pytest.mark.parametrize("virtual", [0, pytest.param(3, marks=pytest.mark.slow)])
def test_nothing_of_a_frozen_layer_changes_and_its_norms_compute_as_in_inference(virtual, make_stepper):
    """With three units, the mean of equal statistics would not have their bits."""
    units = {"virtual_replicas": virtual, "global_batch_size": 9} if virtual else {}
    flags = {"optimizer": "adamw", "weight_decay": 0.1, "ema": 0.9, **units}
    stepper = make_stepper(1, **flags, build=with_norms, rate=RATE, phases=FROZEN)
    images, labels, weights = batches(9)
    for norm in ("norm", "late"):
        layer = stepper.state.model.get_layer(norm)
        layer.set_weights([np.linspace(0.3, 0.9, w.size, dtype=np.float32) for w in layer.get_weights()])
    stepper.state.averages.reset()
    rows = images, labels, weights
    if virtual:
        rows = [np.reshape(part, (len(TRAINED), 3, 3, *part.shape[2:])) for part in rows]
    logits = stepper.state.model(images[0], training=False)
    losses = tf.nn.sparse_softmax_cross_entropy_with_logits(labels[0], logits)
    iterator = iter(tf.data.Dataset.from_tensor_slices(tuple(rows)))
    first = everything(stepper.state)
    result = stepper.run(iterator, 1)
    values = dict(zip(result.names, result.values.numpy().tolist(), strict=True))
    assert values["loss"] == pytest.approx(float(tf.reduce_mean(losses)), rel=1e-5)
    # The regularisation of a frozen weight is part of the loss that is shown, and moves nothing.
    kernel = stepper.state.model.get_layer("stem").kernel.numpy()
    assert values["regularization"] == pytest.approx(0.1 * np.sum(kernel**2), rel=1e-5)
    stepper.run(iterator, 2)
    then = everything(stepper.state)
    changed = {name for name in first if first[name] != then[name]}
    assert changed == {"head/kernel", "head/bias", "average/head/kernel", "average/head/bias"}
    stepper.run(iterator, 1)
    last = everything(stepper.state)
    assert all(last[name] != then[name] for name in first)


def everything(state):
    """Returns the bytes of the model's variables and of the averages of its weights, by name."""
    of_weights = zip(state.model.trainable_variables, state.averages.values, strict=True)
    averages = {f"average/{named(weight)}": average.numpy().tobytes() for weight, average in of_weights}
    return {named(variable): variable.numpy().tobytes() for variable in state.model.variables} | averages


def named(variable):
    return "/".join(variable.path.split("/")[-2:])  # without the model


def test_slots_of_frozen_weights_stay_zero(make_stepper):
    stepper = make_stepper(1, "adam", build=three_layers, rate=RATE, phases="0: freeze=a+b")
    steps_of(stepper)
    slots = {v.path: np.abs(v.numpy()).max() for v in stepper.state.optimizer.variables if v.shape.rank != 0}
    assert {path for path, most in slots.items() if most} == {path for path in slots if "_c_" in path}


def test_only_the_gradients_of_trained_weights_are_computed(make_stepper):
    stepper = make_stepper(1, build=with_norms, rate=RATE, phases=FROZEN)
    iterator, found = iter(tf.data.Dataset.from_tensor_slices(batches())), []
    for _ in range(4):
        result = stepper.run(iterator, 1, frozenset({HISTOGRAMS}))
        kinds = {operation.type for operation in stepper.graphs["step"].graph.get_operations()}
        counts = result.histograms.numpy()[:, 4:].sum(1)
        found.append(("Conv2DBackpropFilter" in kinds, (counts > 0).tolist()))
    frozen, thawed = found[0], found[3]
    names = [named(v).partition("/")[0] for v in stepper.state.model.trainable_variables]
    assert frozen == (False, [*(True for _ in names), *(name == "head" for name in names)])
    assert thawed == (True, [True] * (2 * len(names)))


def test_a_schedule_begins_anew_with_a_phase_that_gives_a_rate_or_a_schedule():
    flags = OptimizerFlags(learning_rate=0.8, schedule="linear", warmup_epochs=0.2)
    text = "0: freeze=a; 1 epoch: learning_rate=0.4; 15: freeze=none; 20: schedule=constant"
    rate = state.schedule(flags, 10, 30, Phases.of(text, 10, 30))
    found = [float(rate(tf.constant(step, tf.int64))) for step in range(30)]
    warm = [1 / 2, *(1 for _ in range(9))]
    down = [w * (1 - max(0, (s - 2) / 8)) for s, w in enumerate(warm)]
    np.testing.assert_allclose(found[:10], 0.8 * np.array(down), rtol=1e-6)
    np.testing.assert_allclose(found[10:20], 0.4 * np.array(down), rtol=1e-6)  # on, where the next phase thaws
    np.testing.assert_allclose(found[20:], 0.4 * np.array(warm), rtol=1e-6)


def nested():
    """Returns a model as `keras:NAME` is: a base, of blocks, and a head."""
    dense = keras.layers.Dense
    inner = keras.Sequential([keras.Input((6,)), dense(6, name="in_1"), dense(6)], name="inner")
    base = keras.Sequential([keras.Input((6,)), dense(6, name="stem"), inner, BatchNormalization()])
    base.application = "Made"
    return keras.Sequential([keras.Input((6,)), base, dense(4), dense(5, name="head")])


@pytest.mark.parametrize(
    ("freeze", "left"),
    [
        ("none", "stem in_1 dense batch_normalization dense_1 head"),
        ("base", "dense_1 head"),
        ("inner", "stem batch_normalization dense_1 head"),
        ("in_* + stem", "dense batch_normalization dense_1 head"),
        ("dense*", "stem in_1 batch_normalization head"),
        ("*/inner/dense", "stem in_1 batch_normalization dense_1 head"),
    ],
)
def test_layers_are_frozen_by_name(freeze, left):
    """Keras' own names are numbered in each model alone."""
    model = nested()
    [found] = trained.of(model, Phases.of(f"0: freeze={freeze}", 1, 10))
    layers = ["stem", "in_1", "dense", "batch_normalization", "dense_1", "head"]  # of two weights each
    assert list(dict.fromkeys(layers[index // 2] for index in found.weights)) == left.split()
    assert len(found.statistics) == (2 if "batch_normalization" in left else 0)


def test_the_base_of_any_other_model_is_all_but_its_last_layer():
    [found] = trained.of(three_layers(), Phases.of("0: freeze=base", 1, 10))
    assert found.weights == (4, 5)


@pytest.mark.parametrize(
    ("phases", "said"),
    [
        ("0: freeze=steem", r"--phases: 'step 0: freeze=steem': layer: unknown 'steem'; did you mean 'stem'\?"),
        ("0: freeze=none; 5: freeze=stem+x*", "--phases: 'step 5: freeze=stem.x.*': layer: unknown 'x.*'"),
        ("0: freeze=*", "--phases: 'step 0: freeze=.*': leaves nothing to train; freeze fewer layers"),
    ],
)
def test_names_that_cannot_work(phases, said):
    with pytest.raises(UsageError, match=said):
        trained.of(nested(), Phases.of(phases, 1, 10))


def test_a_step_that_is_skipped_is_no_update():
    phases = Phases.of("0: freeze=a; 4: freeze=none; 9: freeze=a; 20: freeze=none", 1, 30, ((2, 6), (24, 26)))
    updates = phases.updates_of([1, 3])
    counts = [int(trained.count_of(updates, tf.constant(step, tf.int64))) for step in range(28)]
    assert counts == [*[0] * 7, 1, 2, *[3] * 12, 4, 5, 6, *[7] * 3, 8]
