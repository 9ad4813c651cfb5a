"""What follows the sum of the gradients, on one replica and on several: clipping, averages, precision, XLA."""

import keras
import numpy as np
import pytest
import tensorflow as tf

from trainer.step.updates import Wanted


def train(stepper, batch, steps=3):
    batches = iter(stepper.strategy.experimental_distribute_dataset(tf.data.Dataset.from_tensors(batch).repeat()))
    result = stepper.train(batches, tf.constant(steps, tf.int64), Wanted.of(["norm"]))
    return float(result.norm), dict(zip(stepper.value_names, result.values.numpy().tolist(), strict=True))


def weights_of(stepper):
    return [v.numpy() for v in stepper.state.model.trainable_variables]


@pytest.mark.parametrize("replicas", [1, 2])
def test_the_norm_of_all_gradients_is_clipped_after_they_are_summed(replicas, make_stepper, batch):
    free, clipped = make_stepper(replicas), make_stepper(replicas, clip_norm=0.01)
    begin = weights_of(free)
    norm, _ = train(free, batch, 1)
    assert train(clipped, batch, 1)[0] == pytest.approx(norm, rel=1e-6)  # as it was before
    moves = [[after - b for after, b in zip(weights_of(stepper), begin, strict=True)] for stepper in (free, clipped)]
    assert np.sqrt(sum(np.sum(m**2) for m in moves[0])) == pytest.approx(0.5 * norm, rel=1e-4)
    assert np.sqrt(sum(np.sum(m**2) for m in moves[1])) == pytest.approx(0.5 * 0.01, rel=1e-3)


@pytest.mark.parametrize("name", ["mirrored", "central_storage"])
@pytest.mark.parametrize("replicas", [1, 2])
def test_the_average_of_the_weights_has_the_classic_warm_up(replicas, name, make_stepper, batch):
    stepper = make_stepper(replicas, ema=0.25, name=name)
    expected = weights_of(stepper)
    for step in range(1, 5):  # decays 2/11, 3/12, then 0.25
        train(stepper, batch, 1)
        decay = min(0.25, (1 + step) / (10 + step))
        expected = [decay * e + (1 - decay) * w for e, w in zip(expected, weights_of(stepper), strict=True)]
    for average, value in zip(stepper.state.averages.values, expected, strict=True):
        np.testing.assert_allclose(average.numpy(), value, atol=1e-6)
    images, labels, weights = batch
    batches = stepper.strategy.experimental_distribute_dataset(tf.data.Dataset.from_tensors(batch))
    sums = stepper.evaluate(iter(batches), tf.constant(1, tf.int64))
    stepper.state.model.set_weights(expected)
    losses = tf.nn.sparse_softmax_cross_entropy_with_logits(labels, stepper.state.model(images)).numpy()
    assert float(sums["loss"]) == pytest.approx(np.sum(losses * weights), rel=1e-5)


@pytest.mark.parametrize("replicas", [1, 2])
@pytest.mark.parametrize("precision", ["bfloat16", "float16"])
def test_less_precision_comes_to_about_the_same(precision, replicas, make_stepper, batch):
    exact = make_stepper(replicas)
    train(exact, batch)
    rough = make_stepper(replicas, precision=precision)
    assert rough.state.model.layers[-1].compute_dtype == precision
    assert {v.dtype for v in rough.state.model.trainable_variables} == {"float32"}
    norm, values = train(rough, batch)
    assert np.isfinite(norm)
    assert np.isfinite(values["total_loss"])
    for one, other in zip(weights_of(exact), weights_of(rough), strict=True):
        np.testing.assert_allclose(one, other, atol=0.05)
    keras.config.set_dtype_policy("float32")


@pytest.mark.parametrize("replicas", [1, 2])
def test_an_update_whose_scaled_gradients_overflow_is_skipped_and_the_scale_halved(replicas, make_stepper, batch):
    stepper = make_stepper(replicas, precision="float16")
    before, scale = weights_of(stepper), stepper.state.optimizer.dynamic_scale
    scale.assign(2.0**127)
    train(stepper, batch, 1)
    assert float(scale.numpy()) == 2.0**126
    for one, other in zip(before, weights_of(stepper), strict=True):
        np.testing.assert_array_equal(one, other)
    scale.assign(1024.0)
    train(stepper, batch, 1)
    assert any(np.any(one != other) for one, other in zip(before, weights_of(stepper), strict=True))
    keras.config.set_dtype_policy("float32")


class InPython(keras.layers.Layer):
    """What XLA cannot compile."""

    def call(self, x):
        return tf.ensure_shape(tf.numpy_function(lambda values: values, [x], tf.float32), x.shape)


@pytest.mark.parametrize("compiled", [False, True])
def test_xla_compiles_the_step_where_that_is_asked_for(compiled, make_stepper, batch):
    def build():
        layers = [keras.layers.Flatten(), InPython(), keras.layers.Dense(5)]
        return keras.Sequential([keras.Input(batch[0].shape[1:]), *layers])

    stepper = make_stepper(build=build, jit_compile=compiled)
    if compiled:
        with pytest.raises(tf.errors.InvalidArgumentError, match=r"EagerPyFunc|XLA"):
            train(stepper, batch, 1)
    else:
        assert np.isfinite(train(stepper, batch, 1)[0])


@pytest.mark.parametrize("replicas", [1, 2])
@pytest.mark.parametrize("virtual", [None, 4])
def test_xla_computes_the_same(virtual, replicas, make_stepper, batch):
    rows = batch if virtual is None else [part.reshape(virtual, -1, *part.shape[1:]) for part in batch]
    found = []
    for compiled in (False, True):
        flags = {"virtual_replicas": virtual, "global_batch_size": 8 if virtual else None}
        stepper = make_stepper(replicas, jit_compile=compiled, **flags)
        train(stepper, tuple(rows))
        found.append(weights_of(stepper))
    for one, other in zip(*found, strict=True):
        np.testing.assert_allclose(one, other, atol=1e-5)
