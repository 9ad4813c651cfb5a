import keras
import numpy as np
import pytest
import tensorflow as tf

from pipeline.errors import UsageError
from trainer.config.model import OPTIMIZERS, OptimizerFlags
from trainer.step import optimizers

NOT_OPTIMIZERS = {"lossscaleoptimizer", "optimizer", "optimizermap"}
NEEDS_MORE = {"multioptimizer", "schedulefreeadamw"}  # several optimizers; another mode for evaluation


def test_all_of_keras_by_name():
    known = {name.lower() for name, kind in vars(keras.optimizers).items() if isinstance(kind, type)}
    known = {name for name in known if not name.startswith("_")}
    assert known - NOT_OPTIMIZERS - NEEDS_MORE == set(OPTIMIZERS) - {"momentum", "nesterov"}


@pytest.mark.parametrize("name", OPTIMIZERS)
def test_each_can_be_made_and_takes_an_update(name):
    optimizer = optimizers.create(OptimizerFlags(optimizer=name, weight_decay=0.1))
    weights = keras.Variable(np.ones((2, 3), np.float32))
    optimizers.build(optimizer, [weights])
    optimizer.learning_rate = 0.5
    optimizer.apply([tf.ones((2, 3))])
    assert np.all(weights.numpy() < 1)


@pytest.mark.parametrize(("name", "slots"), [("sgd", 0), ("momentum", 1), ("nesterov", 1), ("adam", 2)])
def test_variables_of_an_optimizer(name, slots):
    optimizer = optimizers.create(OptimizerFlags(optimizer=name, momentum=0.7))
    optimizer.build([tf.Variable([1.0])])
    assert len(optimizer.variables) == 2 + slots  # iterations and learning rate
    assert getattr(optimizer, "momentum", 0.0) == (0.7 if slots == 1 else 0.0)
    assert getattr(optimizer, "nesterov", False) == (name == "nesterov")


def test_arguments_as_in_a_call():
    assert optimizers.create(OptimizerFlags(optimizer="adam(beta_2=0.95, epsilon=1e-5)")).beta_2 == 0.95


@pytest.mark.parametrize(
    ("text", "fact"),
    [
        ("adam(beta=0.95)", "beta"),
        ("adam(learning_rate=1)", "learning_rate has a flag"),
        ("sgd(nesterov=True)", "name"),
    ],
)
def test_arguments_that_it_does_not_take_are_one_line(text, fact):
    with pytest.raises(UsageError, match=fact) as caught:
        optimizers.create(OptimizerFlags(optimizer=text))
    assert "\n" not in str(caught.value)


def test_biases_and_norms_do_not_decay():
    kernel, bias = keras.Variable(np.ones((2, 3), np.float32)), keras.Variable(np.ones(3, np.float32))
    optimizer = optimizers.create(OptimizerFlags(optimizer="sgd", weight_decay=0.1))
    optimizers.build(optimizer, [kernel, bias])
    optimizer.learning_rate = 0.5
    optimizer.apply([tf.zeros((2, 3)), tf.zeros(3)])
    np.testing.assert_allclose(kernel.numpy(), 1 - 0.5 * 0.1)  # decoupled: times the rate
    np.testing.assert_array_equal(bias.numpy(), 1.0)


def test_adamw_decays_by_the_flag_alone():
    assert optimizers.create(OptimizerFlags(optimizer="adamw")).weight_decay == 0.0
    assert optimizers.create(OptimizerFlags(optimizer="adamw", weight_decay=0.2)).weight_decay == 0.2


UPDATES = {
    "momentum": ({"optimizer": "momentum"}, True),
    "nesterov, decay": ({"optimizer": "nesterov", "momentum": 0.937, "weight_decay": 0.1}, True),
    "clipped values, average": ({"optimizer": "nesterov(clipvalue=0.1, use_ema=True)"}, True),
    "clipped by the norm of all": ({"optimizer": "momentum(global_clipnorm=0.1)"}, False),
    "accumulated": ({"optimizer": "momentum(gradient_accumulation_steps=3)"}, False),
    "none": ({"optimizer": "sgd"}, False),
    "adam": ({"optimizer": "adam"}, False),
}


def updated(flags, precision, compiled):
    """Returns all variables after 20 updates, and how many of the kernels an update has."""
    random = np.random.default_rng(3)
    shapes = [(3, 3, 3, 17), (17,), (130, 33), ()]
    weights = [keras.Variable(random.normal(size=shape), dtype="float32") for shape in shapes]
    if "global" not in flags["optimizer"]:  # where Keras fails for two kinds of variables
        weights.append(keras.Variable(random.normal(size=5), dtype="bfloat16"))
    optimizer = optimizers.create(OptimizerFlags(**flags), precision)
    optimizers.build(optimizer, weights)
    optimizers.of_one_copy(optimizer)

    @tf.function(autograph=False)
    def update(gradients, rate):
        optimizer.learning_rate = rate
        optimizers.apply(optimizer, gradients, weights, [None] * len(weights), tf.constant(0, tf.int64), compiled)

    for _ in range(20):
        scale = 10.0 ** random.integers(-4, 3)
        given = [tf.constant(random.normal(size=one.shape) * scale, one.dtype) for one in weights]
        update(given, tf.constant(random.random() / 10, tf.float32))
    graph = update.get_concrete_function(given, tf.constant(0.1)).graph.as_graph_def()
    nodes = [*graph.node, *(node for function in graph.library.function for node in function.node_def)]
    kernels = sum(node.op == "ResourceApplyKerasMomentum" for node in nodes)
    return [variable.numpy() for variable in (*weights, *optimizer.variables)], kernels


@pytest.mark.parametrize(("flags", "is_one"), UPDATES.values(), ids=UPDATES)
@pytest.mark.parametrize("precision", ["float32", "float16"])
def test_an_update_in_one_kernel_has_the_bits_of_one_of_many(flags, is_one, precision):
    """One for each variable of float32; none where Grappler would give those of many other bits, or in XLA."""
    expected, of_many = updated(flags, precision, compiled=True)
    found, of_one = updated(flags, precision, compiled=False)
    assert (of_many, of_one) == (0, 4 if is_one else 0)
    for one, other in zip(found, expected, strict=True):
        np.testing.assert_array_equal(one, other)


def test_float16_scales_the_loss():
    optimizer = optimizers.create(OptimizerFlags(), "float16")
    assert isinstance(optimizer, keras.optimizers.LossScaleOptimizer)
