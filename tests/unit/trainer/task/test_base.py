import keras
import numpy as np
import pytest
import tensorflow as tf

from pipeline.errors import UsageError
from trainer.task.base import DataSpec, RowMeasure, Task, load_first_weights


def task(config_of, **flags):
    spec = DataSpec(tf.TensorSpec([None, 3]), tf.TensorSpec([None], tf.int64), ("a", "b", "c"))
    return Task(config_of(**flags), spec)


def test_label_smoothing_is_that_of_keras(config_of):
    logits = tf.constant(np.random.default_rng(0).normal(size=(5, 3)), tf.float32)
    labels = tf.constant([0, 1, 2, 1, 0], tf.int64)
    expected = keras.losses.CategoricalCrossentropy(from_logits=True, label_smoothing=0.2, reduction=None)
    found = task(config_of, label_smoothing=0.2).loss(labels, logits)
    np.testing.assert_allclose(found, expected(tf.one_hot(labels, 3), logits), rtol=1e-6)
    plain = task(config_of).loss(labels, logits)
    np.testing.assert_allclose(plain, task(config_of).loss(tf.one_hot(labels, 3), logits), rtol=1e-6)


def test_soft_labels(config_of):
    logits = tf.constant([[2.0, 1.0, 0.0], [0.0, 1.0, 2.0]])
    soft = tf.constant([[0.7, 0.3, 0.0], [0.6, 0.0, 0.4]])
    made = task(config_of)
    expected = -np.sum(soft * tf.nn.log_softmax(logits), axis=1)
    np.testing.assert_allclose(made.loss(soft, logits), expected, rtol=1e-6)
    assert made.metrics(soft, logits)["accuracy"].numpy().tolist() == [1.0, 0.0]


class Returns(Task):
    given = None

    def evaluate(self, model, features, labels):
        return self.given


@pytest.mark.parametrize(
    ("give", "message"),
    [
        (lambda: tf.zeros(4), r"Returns.evaluate: must return losses \(rows,\) and a dict"),
        (lambda: (tf.zeros(()), {}), r"loss must have one number for each of 4 rows, shape \(4,\); got shape \(\)"),
        (
            lambda: (tf.zeros(4), {"error": tf.zeros((4, 2))}),
            r"error must have one number for each of 4 rows.*got shape \(4, 2\)",
        ),
        (lambda: (tf.zeros(4), {"loss": tf.zeros(4)}), "called weight or loss"),
        (
            lambda: (tf.zeros(4), {"error": 3.0}),
            r"error must have one number for each of 4 rows.*got 3.0",
        ),
    ],
)
def test_what_a_task_may_not_return(give, message, config_of):
    made = Returns(config_of(), None)
    made.given = give()
    with pytest.raises(UsageError, match=message):
        RowMeasure(made).evaluation_sums(None, None, None, tf.ones(4))


def test_a_step_of_its_own(make_strategy, config_of, batch):
    """Two passes of the model in one step: the loss is on both."""
    from trainer.step import state, train_step

    class Twice(Task):
        def build_model(self):
            keras.utils.set_random_seed(2)
            return keras.Sequential([keras.Input((4, 3, 1)), keras.layers.Flatten(), keras.layers.Dense(5)])

        def train_step(self, model, features, labels):
            outputs = model(features, training=True), model(-features, training=True)
            losses = [self.loss(labels, one) for one in outputs]
            return losses[0] + 0.5 * losses[1], {"second": losses[1]}

    images, labels, weights = batch
    config = config_of(optimizer="sgd")
    spec = DataSpec(tf.TensorSpec([None, 4, 3, 1]), tf.TensorSpec([None], tf.int64), tuple("abcde"))
    strategy = make_strategy(2)
    stepper = train_step.create(
        strategy, state.create(strategy, config, Twice(config, spec), lambda step: 0.1), config, None
    )
    model = stepper.state.model
    losses = [
        tf.nn.sparse_softmax_cross_entropy_with_logits(labels, model(sign * images)).numpy()[:3] for sign in (1, -1)
    ]
    batches = iter(strategy.experimental_distribute_dataset(tf.data.Dataset.from_tensors((images, labels, weights))))
    result = stepper.run(batches, 1)
    values = dict(zip(stepper.value_names, result.values.numpy().tolist(), strict=True))
    assert values["loss"] == pytest.approx(np.mean(losses[0] + 0.5 * losses[1]), rel=1e-5)
    assert values["second"] == pytest.approx(np.mean(losses[1]), rel=1e-5)


def weights_of(state):
    return [v.numpy() for v in state.model.trainable_variables]


def same(one, other):
    return all(np.array_equal(a, b) for a, b in zip(one, other, strict=True))


@pytest.fixture
def make(make_strategy, make_state):
    """Returns a function that makes a state of a seed."""
    return lambda seed, **flags: make_state(make_strategy(), seed=seed, **flags)


@pytest.fixture
def saved(make, make_checkpoints):
    """A state whose checkpoints at steps 10 and 20 differ."""
    state = make(1)
    checkpoints = make_checkpoints(state)
    for step in (10, 20):
        state.global_step.assign(step)
        state.model.trainable_variables[0].assign_add(tf.ones(state.model.trainable_variables[0].shape))
        checkpoints.save()
    return state


@pytest.mark.parametrize("name", ["", "ckpt-20"])
def test_the_newest_or_the_named_checkpoint(name, saved, make, tmp_path):
    state = make(2)
    assert not same(weights_of(state), weights_of(saved))
    load_first_weights(state.model, str(tmp_path / name))
    assert same(weights_of(state), weights_of(saved))
    assert state.step == 0
    load_first_weights(state.model, str(tmp_path / "ckpt-10"))
    assert not same(weights_of(state), weights_of(saved))


def test_the_average_where_there_is_one(make, make_checkpoints, tmp_path):
    averaged = make(1, ema=0.5)
    for value in averaged.averages.values:
        value.assign(tf.fill(value.shape, 0.25))
    averaged.global_step.assign(3)
    make_checkpoints(averaged, ema=0.5).save()
    state = make(2)
    load_first_weights(state.model, str(tmp_path))
    assert all(np.all(value == 0.25) for value in weights_of(state))


def test_a_file_of_keras(make, tmp_path):
    one, other = make(1), make(2)
    path = str(tmp_path / "model.weights.h5")
    one.model.save_weights(path)
    load_first_weights(other.model, path)
    assert same(weights_of(one), weights_of(other))


def test_another_model_is_one_line(saved, make, tmp_path):
    layers = [keras.Input((4, 3, 1)), keras.layers.Flatten(), keras.layers.Dense(5)]
    small = make(0, build=lambda: keras.Sequential(layers)).model
    for path in (str(tmp_path), str(tmp_path / "none"), str(tmp_path / "no.weights.h5")):
        with pytest.raises(UsageError, match=f"^--initialize_from={path}: ") as caught:
            load_first_weights(small, path)
        assert "\n" not in str(caught.value)


@pytest.mark.parametrize("text", ["--initialize_from", "task"])
def test_a_new_run_begins_with_them_and_so_does_the_average(text, saved, make_strategy, make_state, tmp_path):
    flags = {"initialize_from": tmp_path} if text == "--initialize_from" else {}
    state = make_state(make_strategy(), seed=2, ema=0.9, **flags)
    state.task.initialize(state.model)
    assert same(weights_of(state), weights_of(saved)) == bool(flags)
    state.averages.reset()
    assert same([value.numpy() for value in state.averages.values], weights_of(state))
