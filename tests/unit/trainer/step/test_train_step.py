import json
import time

import keras
import numpy as np
import pytest
import tensorflow as tf

from pipeline import distribution
from trainer.checkpoint.manager import EpochSums
from trainer.models import resnet
from trainer.models.layers import BatchNormalization
from trainer.step import summaries
from trainer.step.evaluation import EvaluationStep

RATE = 0.5  # of the steppers
MOMENTUM = 0.75  # of BatchNorm's moving statistics
LARGE = 2800  # rows and columns of a matrix of 31 MB


def endless(stepper, batch):
    return iter(stepper.strategy.experimental_distribute_dataset(tf.data.Dataset.from_tensors(batch).repeat()))


def train(stepper, iterator, steps, *summaries):
    """Returns the result of some updates, the last with summaries, and its values by name."""
    if summaries and steps > 1:
        stepper.run(iterator, steps - 1)
    result = stepper.run(iterator, 1 if summaries else steps, frozenset(summaries))
    return result, dict(zip(result.names, result.values.numpy().tolist(), strict=True))


def expected_update(state, images, labels):
    """Returns the weights after one plain gradient step on the given rows alone, and the loss before it."""
    with tf.GradientTape() as tape:
        losses = tf.nn.sparse_softmax_cross_entropy_with_logits(labels, state.model(images))
        data_loss = tf.reduce_mean(losses) if len(labels) else 0.0
        loss = data_loss + tf.add_n(state.model.losses)
    sources = [v.value for v in state.model.trainable_variables]
    gradients = tape.gradient(loss, sources, unconnected_gradients="zero")
    return [v.numpy() - RATE * g.numpy() for v, g in zip(sources, gradients, strict=True)], float(loss)


@pytest.mark.parametrize(("replicas", "real"), [pytest.param(1, 3, marks=pytest.mark.slow), (4, 3), (2, 0)])
@pytest.mark.quick(1)
def test_a_padded_batch_gives_the_gradient_of_its_real_rows(replicas, real, make_state, make_stepper, batch):
    """Without any, as when all are skipped corrupt records, that of the regularisation is left."""
    images, labels, weights = batch
    reference = make_state(tf.distribute.get_strategy())
    expected, loss = expected_update(reference, images[:real], labels[:real])
    correct = np.argmax(reference.model(images), -1) == labels
    weights = weights if real else 0 * weights
    stepper = make_stepper(replicas)
    result, values = train(stepper, endless(stepper, (images, labels, weights)), 1)
    assert (int(result.step), bool(result.finite)) == (1, True)
    assert values["total_loss"] == pytest.approx(loss, rel=1e-5)
    assert values["accuracy"] == pytest.approx(np.sum(correct * weights) / 3, rel=1e-6)
    for variable, value in zip(stepper.state.model.trainable_variables, expected, strict=True):
        np.testing.assert_allclose(variable.numpy(), value, atol=2e-6)


def with_batch_norm_alone():
    parts = [BatchNormalization(momentum=MOMENTUM), keras.layers.Flatten(), keras.layers.Dense(5)]
    return keras.Sequential([keras.Input((4, 3, 1)), *parts])


@pytest.mark.parametrize(("replicas", "virtual"), [(4, 0), (2, 4)])
@pytest.mark.quick(1)
def test_the_statistics_of_batch_norm_are_the_means_of_those_of_the_replicas(replicas, virtual, make_stepper, batch):
    """Each of the four, virtual or not, normalises over its own rows, padding among them."""
    flags = {"virtual_replicas": virtual, "global_batch_size": 8} if virtual else {}
    stepper = make_stepper(replicas, build=with_batch_norm_alone, **flags)
    images, *others = batch
    images = images + np.arange(8, dtype=np.float32).reshape(8, 1, 1, 1)
    rows = (images, *others)
    if virtual:
        rows = tuple(np.reshape(part, (4, 2, *part.shape[1:])) for part in rows)
    train(stepper, endless(stepper, rows), 1)
    mean, variance = (v.numpy().item() for v in stepper.state.model.layers[0].non_trainable_variables)
    assert mean == pytest.approx((1 - MOMENTUM) * np.mean(images), rel=1e-5)
    own = [np.var(part) for part in np.split(images, 4)]
    assert variance == pytest.approx(MOMENTUM + (1 - MOMENTUM) * np.mean(own), rel=1e-5)


def test_the_exchange_is_timed_without_changing_a_bit(make_stepper, batch):
    plain, timed = (make_stepper(2, "momentum") for _ in range(2))
    timed.times_exchange = True
    began = time.perf_counter()
    (of_plain, _), (of_timed, _) = (train(one, endless(one, batch), 3) for one in (plain, timed))
    assert float(of_plain.exchanged) == 0.0 < float(of_timed.exchanged) < time.perf_counter() - began
    for one, other in zip(plain.state.model.variables, timed.state.model.variables, strict=True):
        np.testing.assert_array_equal(one.numpy(), other.numpy())


def test_evaluation_sums_over_batches(make_stepper, batch):
    images, labels, weights = batch
    stepper = make_stepper(2)
    losses = tf.nn.sparse_softmax_cross_entropy_with_logits(labels, stepper.state.model(images)).numpy()
    evaluation = EvaluationStep(stepper.strategy, stepper.state)
    sums = evaluation.evaluate(endless(stepper, batch), tf.constant(3, tf.int64))
    assert float(sums["weight"]) == 9.0
    assert float(sums["loss"]) == pytest.approx(3 * np.sum(losses * weights), rel=1e-5)
    assert stepper.state.step == 0


def test_loops_of_any_length_give_the_same_weights_with_one_trace(make_stepper, batch):
    results = []
    for lengths in ([6], [1, 2, 3]):
        stepper = make_stepper(2, "adam", rate=lambda step: 0.01 / tf.cast(1 + step, tf.float32))
        for n in lengths:
            train(stepper, endless(stepper, batch), n)
        assert stepper.train.experimental_get_tracing_count() == 1
        assert stepper.state.step == 6
        results.append([v.numpy() for v in stepper.state.model.variables])
    for one, other in zip(*results, strict=True):
        np.testing.assert_array_equal(one, other)


def test_loops_that_end_within_a_group_go_on_in_it(make_stepper, batch):
    images, labels, weights = batch
    parts = (np.stack([images * scale for scale in range(1, 9)]), np.stack([labels] * 8), np.stack([weights] * 8))
    batches, results = tf.data.Dataset.from_tensor_slices(parts), []
    for in_groups in (False, True):
        stepper = make_stepper(1, "adam")
        whole = stepper.strategy.experimental_distribute_dataset(batches)
        fed = distribution.in_groups(stepper.strategy, batches, 2) if in_groups else whole
        assert isinstance(fed, distribution.DeviceGroups) == in_groups
        iterator = iter(fed)
        for steps in (3, 2, 3):
            train(stepper, iterator, steps)
        results.append([v.numpy() for v in stepper.state.model.variables])
    for one, other in zip(*results, strict=True):
        np.testing.assert_array_equal(one, other)


def resnet8():
    """Returns `resnet20` with one block per stage instead of three, which show nothing else in three times the time."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(resnet, "_BLOCKS_20", 1)
        return resnet.resnet20((8, 8, 3), "float32", 5, 0.0)


RECIPES = {
    "momentum": {"optimizer": "momentum"},
    "adam, averaged, clipped": {"optimizer": "adam", "ema": 0.9, "clip_norm": 0.1},
    "bfloat16": {"precision": "bfloat16"},
    "float16, clipped": {"precision": "float16", "clip_norm": 0.1},
    "XLA": {"jit_compile": True},
    "resnet8": {"build": resnet8, "shape": (8, 8, 3), "optimizer": "momentum"},
    "virtual": {"virtual_replicas": 4, "global_batch_size": 8, "optimizer": "momentum", "clip_norm": 0.1},
}


def with_dropout_and_batch_norm():
    """Returns a model that has a state besides its weights."""
    layers = [
        keras.layers.Conv2D(4, 2, kernel_regularizer=keras.regularizers.L2(0.01)),
        BatchNormalization(),
        keras.layers.ReLU(),
        keras.layers.Flatten(),
        keras.layers.Dropout(0.4, seed=3),
        keras.layers.Dense(5, dtype="float32"),
    ]
    return keras.Sequential([keras.Input((4, 3, 1)), *layers])


def with_keys_and_records(rows):
    images, *others = rows
    shape = images.shape[: others[-1].ndim]
    return {"image": images, "key": np.full(shape, b"k")}, *others, np.arange(8).reshape(shape)


def check_rows(rows, loss):
    """Losses of rows are those whose weighted mean is the step's, dropout included; rows are in their order."""
    parts = (rows.weights, rows.records, rows.losses)
    weights, records, losses = (np.concatenate([one.numpy().reshape(-1) for one in part]) for part in parts)
    assert records.tolist() == list(range(8))
    assert np.sum(weights * losses) / np.sum(weights) == pytest.approx(loss, rel=2e-3)
    assert len(set(losses.tolist())) > 4


@pytest.mark.parametrize(
    ("recipe", "replicas"),
    [
        ("adam, averaged, clipped", 2),
        *(pytest.param(one, 2, marks=pytest.mark.slow) for one in RECIPES if one != "adam, averaged, clipped"),
        *(pytest.param(one, 1, marks=pytest.mark.slow) for one in RECIPES),
    ],
)
def test_neither_summaries_nor_logs_of_rows_change_a_bit_of_the_state(recipe, replicas, make_stepper, batch):
    """Of seven updates: all in loops; the third and the last with summaries; one by one, with their keys and losses."""
    flags = {"rate": 0.1, "build": with_dropout_and_batch_norm, **RECIPES[recipe]}
    if shape := flags.get("shape"):
        batch = np.random.default_rng(1).normal(size=(8, *shape)).astype(np.float32), *batch[1:]
    rows = batch if "virtual_replicas" not in flags else [np.reshape(part, (4, 2, *part.shape[1:])) for part in batch]
    found, shown = [], []
    for mode in ("loops", "summaries", "logs"):
        stepper = make_stepper(replicas, **flags)
        iterator = endless(stepper, with_keys_and_records(rows) if mode == "logs" else tuple(rows))
        if mode == "logs":
            logged = [stepper.run_one(iterator, has_keys=True, has_records=True) for _ in range(7)]
            result = logged[-1][0]
            for each, of_rows in logged:
                check_rows(of_rows, dict(zip(each.names, each.values.numpy(), strict=True))["loss"])
        else:
            summaries = ("norm", "histograms", "activations", "images") if mode == "summaries" else ()
            result = [train(stepper, iterator, n, *summaries)[0] for n in (3, 4)][-1]
        state = stepper.state
        averages = state.averages.values if state.averages else []
        variables = [v.numpy().tobytes() for v in (*state.model.variables, *state.optimizer.variables, *averages)]
        found.append(variables)
        shown.append([*stepper.epoch.numpy(), *stepper.averages.numpy(), *result.values.numpy(), *result.means.numpy()])
    keras.config.set_dtype_policy("float32")
    assert found[0] == found[1] == found[2]
    assert len(found[0]) > 8
    for one in shown[1:]:  # what is only printed may be rounded otherwise
        assert one == pytest.approx(shown[0], rel=1e-6)


def with_a_large_layer_that_is_used_often():
    inputs = keras.Input((4, 3, 1))
    values = keras.layers.Dense(LARGE)(keras.layers.Flatten()(inputs))
    layer = keras.layers.Dense(LARGE, "tanh")
    branches = [layer(values * factor) for factor in range(1, 9)]
    return keras.Model(inputs, keras.layers.Dense(5)(keras.layers.Concatenate()(branches)))


@pytest.mark.slow
def test_the_gradient_of_a_layer_that_is_used_often_has_the_same_bits_each_time(make_stepper, batch):
    """Its eight summands take more memory than TensorFlow takes a CPU to have, which let each be added when it came."""
    stepper = make_stepper(build=with_a_large_layer_that_is_used_often)
    rows = tuple(map(tf.constant, batch))

    @tf.function(autograph=False)
    def gradients():
        return stepper.gradients.of(tf.constant(0, tf.int64), tf.constant(3.0), stepper.state.values(), rows).gradients

    first, *others = [[gradient.numpy().tobytes() for gradient in gradients()] for _ in range(4)]
    assert len(first[2]) == LARGE * LARGE * 4
    assert all(other == first for other in others)


@pytest.mark.parametrize("virtual", [False, pytest.param(True, marks=pytest.mark.slow)])
def test_summaries_are_those_of_the_update(virtual, make_stepper, batch):
    rows, flags = batch, {}
    if virtual:
        rows = tuple(np.reshape(part, (4, 2, *part.shape[1:])) for part in batch)
        flags = {"virtual_replicas": 4, "global_batch_size": 8}
    stepper = make_stepper(2, **flags)
    before = [v.numpy() for v in stepper.state.model.trainable_variables]
    result, _ = train(stepper, endless(stepper, rows), 1, "norm", "histograms", "images")
    after = [v.numpy() for v in stepper.state.model.trainable_variables]
    gradients = [(b - a) / RATE for b, a in zip(before, after, strict=True)]
    assert float(result.norm) == pytest.approx(np.sqrt(sum(np.sum(g**2) for g in gradients)), rel=1e-4)
    of_weights, of_gradients = np.split(result.histograms.numpy(), 2)
    for row, values in [*zip(of_weights, after, strict=True), *zip(of_gradients, gradients, strict=True)]:
        expected = [values.min(), values.max(), values.sum(), np.sum(values**2)]
        np.testing.assert_allclose(row[:4], expected, rtol=1e-3, atol=1e-5)
        assert row[4:].sum() == values.size
        edges = np.linspace(*row[:2], 31)
        np.testing.assert_allclose(np.cumsum(row[4:])[:-1], (values.ravel() < edges[1:-1, None]).sum(1), atol=2)
    real = 2 if virtual else 3  # of the first virtual replica, or of the first replica's four rows
    np.testing.assert_array_equal(result.images.numpy(), batch[0][:real])
    plain, _ = train(stepper, endless(stepper, rows), 1)
    assert (plain.norm, plain.histograms, plain.activations, plain.images) == (None,) * 4


def test_the_learning_rate_follows_the_global_step(make_stepper, batch):
    stepper = make_stepper(rate=lambda step: tf.where(step < 8, 0.4, 0.2))
    stepper.state.global_step.assign(7)
    for rate in (0.4, 0.2):
        train(stepper, endless(stepper, batch), 1)
        assert float(stepper.state.optimizer.learning_rate.numpy()) == pytest.approx(rate)


def with_a_hidden_layer():
    """Returns a model whose ReLU gives 0 for NaN on every processor: of TensorFlow's, some kernels do."""
    images = keras.Input((4, 3, 1))
    hidden = keras.layers.Dense(6)(keras.layers.Flatten()(images))
    hidden = keras.layers.Lambda(lambda x: tf.where(x > 0, x, 0.0))(hidden)
    return keras.Model(images, keras.layers.Dense(5)(hidden))


@pytest.mark.parametrize(
    ("replicas", "value", "bad_loss"),
    [(1, np.nan, False), (2, np.inf, True), pytest.param(2, np.nan, False, marks=pytest.mark.slow)],
)
@pytest.mark.quick(1)
def test_the_first_bad_step_ends_the_loop(replicas, value, bad_loss, make_stepper, batch):
    images, labels, weights = batch
    bad = images.copy()
    bad[1, 0, 0, 0] = value  # 0 for NaN in the hidden layer: the loss stays finite, the gradient does not
    batches = tf.data.Dataset.from_tensor_slices(
        (np.stack([images, images, bad, *[images] * 4]), np.stack([labels] * 7), np.stack([weights] * 7))
    )
    stepper = make_stepper(replicas, build=with_a_hidden_layer)
    iterator = iter(stepper.strategy.experimental_distribute_dataset(batches))
    result, values = train(stepper, iterator, 7)
    assert len(list(iterator)) == 3  # one more update may run, which does not count
    assert (int(result.step), stepper.state.step, bool(result.finite)) == (3, 3, False)
    assert np.isfinite(values["total_loss"]) == (not bad_loss)


def test_all_topologies_compute_the_same(make_stepper, batch):
    images, labels, _ = batch
    losses = []
    for replicas, name in ((1, "mirrored"), (4, "mirrored"), (2, "central_storage")):
        stepper = make_stepper(replicas, name=name)
        iterator = endless(stepper, (images, labels, np.ones(8, np.float32)))
        losses.append([train(stepper, iterator, 10)[1]["total_loss"] for _ in range(5)])
    for other in losses[1:]:
        np.testing.assert_allclose(losses[0], other, rtol=1e-4)


def of_batches(stepper, batches):
    """Returns an iterator over batches, again and again."""
    parts = tuple(np.stack(part) for part in zip(*batches, strict=True))
    dataset = tf.data.Dataset.from_tensor_slices(parts).repeat()
    return iter(stepper.strategy.experimental_distribute_dataset(dataset))


def means(stepper, result):
    return dict(zip(stepper.value_names, result.means.numpy().tolist(), strict=True))


@pytest.mark.parametrize("replicas", [pytest.param(1, marks=pytest.mark.slow), 2])
def test_the_means_of_an_epoch_are_those_of_its_real_rows(replicas, make_stepper, batch):
    """Epochs of 3 steps, the last of 1 real row: the mean of all rows is not that of the steps."""
    images, labels, weights = batch
    ones, one = np.ones(8, np.float32), np.eye(8, dtype=np.float32)[0]
    epoch = [(images, labels, ones), (-images, labels, weights), (images, labels, one)]
    stepper = make_stepper(replicas)
    stepper.steps_per_epoch = 3
    iterator, rows, found = of_batches(stepper, epoch), [8, 3, 1, 8, 3, 1, 8], []
    for steps in (1, 1, 1, 1, 2, 1):  # the second epoch ends inside a loop
        result, values = train(stepper, iterator, steps)
        found.append((int(result.step), values, means(stepper, result)))
    by_step = {step: (values, means) for step, values, means in found}
    for name in ("accuracy", "loss", "total_loss", "regularization"):
        expected = [by_step[step][0][name] * rows[step - 1] for step in (1, 2, 3)]
        assert by_step[1][1][name] == pytest.approx(by_step[1][0][name])
        assert by_step[2][1][name] == pytest.approx(sum(expected[:2]) / 11)
        assert by_step[3][1][name] == pytest.approx(sum(expected) / 12)
        assert by_step[4][1][name] == pytest.approx(by_step[4][0][name])
        assert by_step[7][1][name] == pytest.approx(by_step[7][0][name])
    assert by_step[3][1]["loss"] != pytest.approx(by_step[3][0]["loss"])


def test_the_means_of_an_epoch_go_on_after_a_resume_to_the_bit(make_stepper, batch):
    images, labels, weights = batch
    batches = [(images, labels, weights), (-images, labels, weights)]
    undisturbed, resumed = make_stepper(2), make_stepper(2)
    for stepper in (undisturbed, resumed):
        stepper.steps_per_epoch = 4
    iterator = of_batches(undisturbed, batches)
    train(undisturbed, iterator, 2)
    stored = json.loads(json.dumps(EpochSums(undisturbed.epoch, undisturbed.steps_per_epoch).state_dict()))
    for mine, theirs in zip(resumed.state.model.variables, undisturbed.state.model.variables, strict=True):
        mine.assign(theirs)
    expected = means(undisturbed, train(undisturbed, iterator, 1)[0])
    resumed.state.global_step.assign(2)
    sums = EpochSums(resumed.epoch, resumed.steps_per_epoch)
    sums.load_state_dict(stored)
    assert sums.steps == 2
    result, _ = train(resumed, of_batches(resumed, batches), 1)
    assert means(resumed, result) == expected
    sums.load_state_dict({**stored, "steps_per_epoch": 5})  # of another order
    assert sums.steps == 3
    resumed.epoch.assign([1.0, 2.0])  # of other metrics: they begin again
    result, values = train(resumed, of_batches(resumed, batches), 1)
    assert means(resumed, result) == pytest.approx(values)


@pytest.mark.slow
def test_virtual_replicas_have_the_same_means_to_the_bit(make_stepper, batch):
    images, labels, _ = batch
    found = []
    for replicas in (1, 2, 4):
        stepper = make_stepper(replicas, virtual_replicas=4, global_batch_size=8)
        rows = [np.reshape(part, (4, 2, *part.shape[1:])) for part in (images, labels, np.ones(8, np.float32))]
        iterator = endless(stepper, tuple(rows))
        result, _ = train(stepper, iterator, 3)
        assert result.epoch[0] == 3
        found.append(result.means.numpy().tolist())
    assert found[0] == found[1] == found[2]


def test_an_update_by_itself_has_the_same_means(make_stepper, batch):
    """As with --log_keys, from a state that has no sums yet."""
    images, labels, weights = batch
    features = {"image": images, "key": np.array([b"k"] * 8, object)}
    one, other = make_stepper(), make_stepper()
    iterator, found = iter(tf.data.Dataset.from_tensors((features, labels, weights)).repeat()), []
    for _ in range(3):
        result, _ = one.run_one(iterator, has_keys=True)
        found.append(means(one, result))
    expected = [means(other, train(other, endless(other, batch), 1)[0]) for _ in range(3)]
    assert found == expected


def norm_after(stepper, batch, steps=3):
    """Returns the norm of the gradient of the last of some updates, and the values of that update by name."""
    result, values = train(stepper, endless(stepper, batch), steps, "norm")
    return float(result.norm), values


def weights_of(stepper):
    return [v.numpy() for v in stepper.state.model.trainable_variables]


@pytest.mark.parametrize("replicas", [2])
def test_the_norm_of_all_gradients_is_clipped_after_they_are_summed(replicas, make_stepper, batch):
    free, clipped = make_stepper(replicas), make_stepper(replicas, clip_norm=0.01)
    begin = weights_of(free)
    norm, _ = norm_after(free, batch, 1)
    assert norm_after(clipped, batch, 1)[0] == pytest.approx(norm, rel=1e-6)  # as it was before
    moves = [[after - b for after, b in zip(weights_of(stepper), begin, strict=True)] for stepper in (free, clipped)]
    assert np.sqrt(sum(np.sum(m**2) for m in moves[0])) == pytest.approx(0.5 * norm, rel=1e-4)
    assert np.sqrt(sum(np.sum(m**2) for m in moves[1])) == pytest.approx(0.5 * 0.01, rel=1e-3)


@pytest.mark.slow
@pytest.mark.parametrize(("name", "replicas"), [("mirrored", 2), ("central_storage", 1)])
def test_the_average_of_the_weights_has_the_classic_warm_up(replicas, name, make_stepper, batch):
    stepper = make_stepper(replicas, ema=0.25, name=name)
    expected = weights_of(stepper)
    for step in range(1, 5):  # decays 2/11, 3/12, then 0.25
        norm_after(stepper, batch, 1)
        decay = min(0.25, (1 + step) / (10 + step))
        expected = [decay * e + (1 - decay) * w for e, w in zip(expected, weights_of(stepper), strict=True)]
    for average, value in zip(stepper.state.averages.values, expected, strict=True):
        np.testing.assert_allclose(average.numpy(), value, atol=1e-6)
    images, labels, weights = batch
    batches = stepper.strategy.experimental_distribute_dataset(tf.data.Dataset.from_tensors(batch))
    evaluation = EvaluationStep(stepper.strategy, stepper.state)
    sums = evaluation.evaluate(iter(batches), tf.constant(1, tf.int64))
    stepper.state.model.set_weights(expected)
    losses = tf.nn.sparse_softmax_cross_entropy_with_logits(labels, stepper.state.model(images)).numpy()
    assert float(sums["loss"]) == pytest.approx(np.sum(losses * weights), rel=1e-5)


@pytest.mark.parametrize(
    ("precision", "replicas"), [("bfloat16", 1), pytest.param("float16", 2, marks=pytest.mark.slow)]
)
def test_less_precision_comes_to_about_the_same(precision, replicas, make_stepper, batch):
    exact = make_stepper(replicas)
    norm_after(exact, batch)
    rough = make_stepper(replicas, precision=precision)
    assert rough.state.model.layers[-1].compute_dtype == precision
    assert {v.dtype for v in rough.state.model.trainable_variables} == {"float32"}
    norm, values = norm_after(rough, batch)
    assert np.isfinite(norm)
    assert np.isfinite(values["total_loss"])
    for one, other in zip(weights_of(exact), weights_of(rough), strict=True):
        np.testing.assert_allclose(one, other, atol=0.05)
    keras.config.set_dtype_policy("float32")


@pytest.mark.parametrize("replicas", [pytest.param(1, marks=pytest.mark.slow), 2])
def test_an_update_whose_scaled_gradients_overflow_is_skipped_and_the_scale_halved(replicas, make_stepper, batch):
    stepper = make_stepper(replicas, precision="float16")
    before, scale = weights_of(stepper), stepper.state.optimizer.dynamic_scale
    scale.assign(2.0**127)
    norm_after(stepper, batch, 1)
    assert float(scale.numpy()) == 2.0**126
    for one, other in zip(before, weights_of(stepper), strict=True):
        np.testing.assert_array_equal(one, other)
    scale.assign(1024.0)
    norm_after(stepper, batch, 1)
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
            norm_after(stepper, batch, 1)
    else:
        assert np.isfinite(norm_after(stepper, batch, 1)[0])


@pytest.mark.slow
@pytest.mark.parametrize(("virtual", "replicas"), [(None, 1), (4, 2)])
def test_xla_computes_the_same(virtual, replicas, make_stepper, batch):
    rows = batch if virtual is None else [part.reshape(virtual, -1, *part.shape[1:]) for part in batch]
    found = []
    for compiled in (False, True):
        flags = {"virtual_replicas": virtual, "global_batch_size": 8 if virtual else None}
        stepper = make_stepper(replicas, jit_compile=compiled, **flags)
        norm_after(stepper, tuple(rows))
        found.append(weights_of(stepper))
    for one, other in zip(*found, strict=True):
        np.testing.assert_allclose(one, other, atol=1e-5)


@pytest.mark.parametrize("replicas", [1, 2])
@pytest.mark.quick(1)
def test_activations_and_images_are_those_of_real_rows(replicas, make_stepper, batch):
    """Rows 3 to 7 of the batch are padding."""
    images = batch[0]
    layers = [keras.Input((4, 3, 1)), keras.layers.Flatten(name="flat"), keras.layers.Dense(5, "relu", name="last")]
    stepper = make_stepper(replicas, build=lambda: keras.Sequential(layers), rate=0.1)
    result, _ = train(stepper, endless(stepper, batch), 1, "activations", "images")
    np.testing.assert_array_equal(result.images, images[:3])
    kernel, bias = (variable.numpy() for variable in stepper.state.model.trainable_variables)
    flat = images[:3].reshape(3, -1)
    outputs = {"flat": flat, "last": np.maximum(flat @ kernel + bias, 0)}
    assert list(summaries.outputs_of_layers(stepper.state.model)) == list(outputs)
    for row, share, expected in zip(*result.activations, outputs.values(), strict=True):
        least, greatest, total, squares, *counts = row.numpy()
        assert sum(counts) == expected.size
        assert [least, greatest] == pytest.approx([expected.min(), expected.max()], rel=1e-5)
        assert [total, squares] == pytest.approx([expected.sum(), np.sum(expected**2)], rel=1e-4)
        assert float(share) == pytest.approx(np.mean(expected == 0))
    assert 0 < float(result.activations[1][1]) < 1


@pytest.mark.parametrize(
    ("shape", "shown"),
    [
        ((None, 4, 3, 1), True),
        ((8, 4, 3, 3), True),
        ((None, 4, 3, 4), True),
        ((None, 4, 3, 2), False),
        ((None, 4, 3), False),
        ((None, 2, 4, 3, 3), False),
    ],
)
def test_what_has_height_width_and_grey_or_colour_is_an_image(shape, shown):
    assert summaries.are_images(tf.TensorSpec(shape)) == shown
    assert not summaries.are_images({"image": tf.TensorSpec(shape)})
