import numpy as np
import pytest
import tensorflow as tf

from trainer import optimizers, strategies
from trainer.cluster import ALONE
from trainer.config import TrainConfig
from trainer.step import FINITE, Stepper

RATE = 0.5


def strategy_of(replicas, name="mirrored"):
    config = TrainConfig.for_model(
        "mlp", data_dir="", model_dir="", strategy=name, num_replicas=replicas, global_batch_size=8
    )
    return strategies.create(config, ALONE)


def stepper_of(strategy, state, schedule=None):
    return Stepper(strategy, state, schedule or optimizers.StaircaseDecay(RATE, 1.0, 1))


def endless(strategy, batch):
    return iter(strategy.experimental_distribute_dataset(tf.data.Dataset.from_tensors(batch).repeat()))


def steps(n):
    return tf.constant(n, tf.int64)


def expected_update(state, images, labels):
    """Returns the weights after one plain gradient step on the real rows alone, and the loss before it."""
    with tf.GradientTape() as tape:
        losses = tf.nn.sparse_softmax_cross_entropy_with_logits(labels, state.model(images))
        loss = tf.reduce_mean(losses) + tf.add_n(state.model.losses)
    gradients = tape.gradient(loss, state.model.trainable_variables)
    pairs = zip(state.model.trainable_variables, gradients, strict=True)
    return [v.numpy() - RATE * g.numpy() for v, g in pairs], float(loss)


@pytest.mark.parametrize("replicas", [1, 2, 4])
def test_a_padded_batch_gives_the_gradient_of_its_real_rows(replicas, make_state, batch):
    images, labels, _ = batch
    reference = make_state(tf.distribute.get_strategy())
    expected, loss = expected_update(reference, images[:3], labels[:3])
    strategy = strategy_of(replicas)
    state = make_state(strategy)
    stepper = stepper_of(strategy, state)
    result = stepper.train(endless(strategy, batch), steps(1))
    assert float(result.loss) == pytest.approx(loss, rel=1e-5)
    for variable, value in zip(state.model.trainable_variables, expected, strict=True):
        np.testing.assert_allclose(variable.numpy(), value, atol=2e-6)


@pytest.mark.parametrize("replicas", [1, 2])
def test_accuracy_counts_real_rows(replicas, make_state, batch):
    images, labels, weights = batch
    strategy = strategy_of(replicas)
    state = make_state(strategy)
    correct = np.argmax(state.model(images), -1) == labels
    stepper = stepper_of(strategy, state)
    result = stepper.train(endless(strategy, batch), steps(1))
    assert float(result.accuracy) == pytest.approx(np.sum(correct * weights) / 3, rel=1e-6)


@pytest.mark.parametrize("replicas", [1, 2])
def test_evaluation_sums_over_batches(replicas, make_state, batch):
    images, labels, weights = batch
    strategy = strategy_of(replicas)
    state = make_state(strategy)
    losses = tf.nn.sparse_softmax_cross_entropy_with_logits(labels, state.model(images)).numpy()
    stepper = stepper_of(strategy, state)
    sums = stepper.evaluate(endless(strategy, batch), steps(3))
    assert float(sums.weight) == 9.0
    assert float(sums.loss) == pytest.approx(3 * np.sum(losses * weights), rel=1e-5)
    assert state.step == 0


def test_loops_of_any_length_give_the_same_weights_and_one_trace(make_state, batch):
    results = []
    for lengths in ([6], [1, 2, 3]):
        strategy = strategy_of(2)
        state = make_state(strategy, optimizer="adam")
        stepper = stepper_of(strategy, state, optimizers.StaircaseDecay(0.01, 0.5, 2))
        iterator = endless(strategy, batch)
        for n in lengths:
            stepper.train(iterator, steps(n))
        results.append([v.numpy() for v in state.model.variables])
        assert state.step == 6
    for one, other in zip(*results, strict=True):
        np.testing.assert_array_equal(one, other)


def test_one_trace_for_all_lengths_and_iterators(make_state, batch):
    strategy = strategy_of(2)
    stepper = stepper_of(strategy, make_state(strategy))
    for n in (1, 2, 3):
        stepper.train(endless(strategy, batch), steps(n))
        stepper.evaluate(endless(strategy, batch), steps(n))
    assert stepper.train.experimental_get_tracing_count() == 1


def test_the_learning_rate_follows_the_global_step(make_state, batch):
    strategy = strategy_of(1)
    state = make_state(strategy)
    state.global_step.assign(7)
    stepper = stepper_of(strategy, state, optimizers.StaircaseDecay(0.8, 0.5, 4))
    stepper.train(endless(strategy, batch), steps(1))  # the update from step 7 to 8
    assert float(state.optimizer.learning_rate.numpy()) == pytest.approx(0.4)
    stepper.train(endless(strategy, batch), steps(1))
    assert float(state.optimizer.learning_rate.numpy()) == pytest.approx(0.2)


@pytest.mark.parametrize(("value", "bad_loss"), [(np.inf, True), (np.nan, False)])
@pytest.mark.parametrize("replicas", [1, 2])
def test_the_first_bad_step_ends_the_loop(replicas, value, bad_loss, make_state, batch):
    images, labels, weights = batch
    bad = images.copy()
    bad[1, 0, 0, 0] = value  # ReLU gives 0 for NaN: the loss stays finite, the gradient does not
    batches = tf.data.Dataset.from_tensor_slices(
        (np.stack([images, images, bad, images]), np.stack([labels] * 4), np.stack([weights] * 4))
    )
    strategy = strategy_of(replicas)
    state = make_state(strategy)
    stepper = stepper_of(strategy, state)
    iterator = iter(strategy.experimental_distribute_dataset(batches))
    result = stepper.train(iterator, steps(4))
    assert (int(result.bad_step), state.step) == (3, 3)
    assert np.isfinite(result.loss) == (not bad_loss)


@pytest.mark.parametrize("replicas", [1, 2])
def test_a_step_of_which_all_is_skipped_changes_nothing(replicas, make_state, batch):
    images, labels, weights = batch
    strategy = strategy_of(replicas)
    state = make_state(strategy)
    decayed = [v.numpy() - RATE * g for v, g in zip(state.model.trainable_variables, penalties(state), strict=True)]
    stepper = stepper_of(strategy, state)
    result = stepper.train(endless(strategy, (images, labels, 0 * weights)), steps(1))
    assert int(result.bad_step) == FINITE
    for variable, value in zip(state.model.trainable_variables, decayed, strict=True):
        np.testing.assert_allclose(variable.numpy(), value, atol=1e-6)


def penalties(state):
    """Returns the gradients of the regularisation, which is all that is left."""
    with tf.GradientTape() as tape:
        loss = tf.add_n(state.model.losses)
    sources = [v.value for v in state.model.trainable_variables]
    return tape.gradient(loss, sources, unconnected_gradients="zero")


def test_good_steps_are_finite(make_state, batch):
    strategy = strategy_of(1)
    stepper = stepper_of(strategy, make_state(strategy))
    result = stepper.train(endless(strategy, batch), steps(2))
    assert int(result.bad_step) == FINITE


@pytest.mark.parametrize("replicas", [2, 4])
def test_fifty_steps_agree_with_one_replica(replicas, make_state, batch):
    images, labels, _ = batch
    full = (images, labels, np.ones(8, np.float32))
    losses = []
    for count in (1, replicas):
        strategy = strategy_of(count)
        stepper, iterator = stepper_of(strategy, make_state(strategy)), endless(strategy, full)
        losses.append([float(stepper.train(iterator, steps(1)).loss) for _ in range(50)])
    np.testing.assert_allclose(losses[0], losses[1], rtol=1e-4)


def test_central_storage_computes_the_same(make_state, batch):
    losses = []
    for strategy in (strategy_of(2), strategy_of(2, "central_storage")):
        stepper, iterator = stepper_of(strategy, make_state(strategy)), endless(strategy, batch)
        losses.append([float(stepper.train(iterator, steps(1)).loss) for _ in range(5)])
    np.testing.assert_allclose(losses[0], losses[1], rtol=1e-6)
