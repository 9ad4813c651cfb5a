"""The graphs that workers run, with their schedulers, in this process: the same steps as without parameter servers."""

import re
import types
from fractions import Fraction

import numpy as np
import pytest
import tensorflow as tf

from pipeline.batch.compose import make_dataset
from pipeline.index.__main__ import main as index
from pipeline.request import Request
from pipeline.resolved import resolve_all
from tests.helpers import foreign
from tests.helpers.datasets import Kind, write_dataset
from trainer import plan
from trainer.callbacks import tensorboard
from trainer.cluster.tf_config import Cluster
from trainer.config.steps import Period
from trainer.parameter_server.asynchronous import Asynchronous, AsyncScheduler
from trainer.parameter_server.compute import Compute, TurnBatches
from trainer.parameter_server.coordinator import Coordinator
from trainer.parameter_server.ledger import Ledger, Rows, Tally
from trainer.parameter_server.scheduling import Closures, WorkerLines
from trainer.parameter_server.synchronous import Synchronous, SyncScheduler

STEPS, EPOCH = 5, 3  # of 11 examples, the last one of an epoch has a row of padding
NEVER = Period()
FLAGS = {"optimizer": "adam", "rate": 0.01}


class Here:
    """Stands in for TensorFlow's coordinator: it runs functions immediately, in this process."""

    def schedule(self, function, args):
        result = function(*args)
        return types.SimpleNamespace(fetch=lambda: result)


@pytest.fixture
def config(tmp_path, config_of):
    write_dataset(tmp_path / "data", (5, 0, 4, 2), (4, 3, 1), (2,), 5)
    return config_of(data_dir=tmp_path / "data", model_dir=tmp_path / "run", global_batch_size=4, augment="none")


@pytest.fixture
def job(config, make_strategy, make_state, monkeypatch):
    """Returns a function that makes a job: asynchronous, or synchronous with a number of shares per step."""
    monkeypatch.setattr(
        tf.distribute.coordinator, "experimental_get_current_worker_index", lambda: tf.constant(0, tf.int64)
    )

    def make(shares=0, shown=NEVER):
        strategy = make_strategy(1, "one_device")
        state = make_state(strategy, **FLAGS)
        training = plan.make(config).training
        batches = TurnBatches(training, shares or 1)
        with strategy.scope():
            ledger = Ledger()
        columns, rows = iter(batches.dataset()), Rows(state.measure)
        skips, closures = training.spec.skip_steps, Closures(Here(), lambda: None)
        compute = Compute(strategy, state, config, None, shown, skips)
        roles, said = Cluster(("localhost:1",), 0, ("localhost:2",)), []
        coordinator = Coordinator(roles, None, None, 1.0, 1.0, 1, None, said.append, None)
        lines = WorkerLines(coordinator, Period(2))
        if shares:
            steps = Synchronous(strategy, state, batches, compute, ledger, rows, shares)
            scheduler = SyncScheduler(steps, closures, columns, shares, shares, 0, lines)
        else:
            steps = Asynchronous(state, batches, compute, ledger, rows)
            scheduler = AsyncScheduler(steps, closures, columns, 1, 2, lines)
        parts = {"state": state, "ledger": ledger, "rows": rows, "scheduler": scheduler, "said": said}
        return types.SimpleNamespace(**parts, compute=compute)

    return make


def batch_of(batches, columns, step, share=0):
    number = tf.constant(step, tf.int64)
    return batches.of_steps(columns, batches.rows_of(step, step + 1, share), number)(number)


def run(job, first=0, last=STEPS):
    return list(job.scheduler.run(first, last, lambda step: step + 100, lambda: False))


def weights(state):
    return [variable.numpy() for variable in state.model.trainable_variables]


@pytest.fixture
def plain(config, make_stepper):
    """The weights after the steps of one process without parameter servers, loss and histograms of each step."""
    stepper = make_stepper(1, name="one_device", **FLAGS)
    batches = iter(stepper.strategy.experimental_distribute_dataset(make_dataset(plan.make(config).training.request)))
    losses, histograms = [], []
    for _ in range(STEPS):
        result = stepper.run(batches, 1, frozenset({"histograms"}))
        histograms.append(np.split(result.histograms.numpy(), 2))
        losses.append(dict(zip(result.names, result.values.numpy().tolist(), strict=True))["loss"])
    return weights(stepper.state), losses, histograms


@pytest.mark.parametrize("shares", [0, 2], ids=["asynchronous, one worker", "synchronous, two"])
@pytest.mark.quick(1)
def test_the_same_steps_as_without_parameter_servers(job, plain, shares):
    made = job(shares)
    reports = run(made)
    for mine, theirs in zip(weights(made.state), plain[0], strict=True):
        np.testing.assert_allclose(mine, theirs, rtol=1e-4, atol=1e-6)
    rows = {step: row for report in reports for step, row in report.rows.items()}
    assert sorted(rows) == list(range(STEPS))
    assert [made.rows.loss(rows[step]) for step in range(STEPS)] == pytest.approx(plain[1], rel=1e-4)
    assert [made.rows.weight(rows[step]) for step in range(STEPS)] == [4, 4, 3, 4, 4]
    assert all(report.finite for report in reports)
    assert (made.scheduler.reached, int(made.state.global_step.numpy())) == (STEPS, STEPS)
    assert made.ledger.read(0, STEPS) == Tally(once=STEPS)
    assert made.scheduler.tally() == Tally()
    assert [report.updates for report in reports] == [report.stop for report in reports]  # one worker: in their order
    if shares:
        assert [report.stop for report in reports] == [1, 2, 3, 4, 5]
    else:  # blocks of two steps, of one epoch each
        assert [report.stop for report in reports] == [2, 3, 5]
        counts = [line.partition(" training steps")[0] for line in made.said]
        assert counts == ["After 2", "After 4"]
        said = [float(re.search(r"loss on training batch is (\S+)\. ", line)[1]) for line in made.said]
        expected = [made.rows.values(rows[step]) for step in (1, 3)]
        assert said == pytest.approx([values["total_loss"] for values in expected], rel=3e-6)  # six digits are shown
        assert said != pytest.approx([values["loss"] for values in expected], rel=3e-6)


@pytest.mark.slow
@pytest.mark.parametrize("shares", [0, 2])
def test_histograms_are_of_the_weights_now_and_of_the_gradient_of_the_last_shown_step(shares, job, plain):
    made = job(shares, Period(Fraction(5, 2)))  # steps 1, 3 and 5
    for last, shown in ((1, 1), (2, 1), (4, 3), (5, 5)):
        run(made, made.scheduler.reached, last)
        of_weights, of_gradients = np.split(made.compute.histograms().numpy(), 2)
        for mine, theirs in ((of_weights, plain[2][last - 1][0]), (of_gradients, plain[2][shown - 1][1])):
            # Least, greatest and the sum of squares; the plain sum of a gradient is a rest of what cancels.
            np.testing.assert_allclose(mine[:, [0, 1, 3]], theirs[:, [0, 1, 3]], rtol=1e-3, atol=1e-5)
            assert mine[:, 4:].sum(axis=1).tolist() == theirs[:, 4:].sum(axis=1).tolist()
    model = made.state.model
    found = tensorboard.readable_graph(*made.compute.graphs["step"], {layer.name for layer in model._flatten_layers()})
    parts = [node.name.split("/") for node in found.node]
    for layer in (layer.name for layer in model.layers if layer.weights):
        assert any(layer in name[1:-1] for name in parts if name[0] == "worker" and "gradients" not in name)
        assert any(layer in name[2:-1] for name in parts if name[:2] == ["worker", "gradients"])
    boxes = {name[0] for name in parts if len(name) > 1}
    of_a_loop = {"add", "while", "boolean_mask"}  # TensorFlow's own
    of_block = {"ledger", "loop", "optimizer"}
    assert boxes - of_a_loop == {"input", "weights", "worker", "send", "metrics"} | (set() if shares else of_block)
    assert sum(len(name) == 1 for name in parts) < 25  # what a function gets and returns; there were 60 and more
    assert {node.device for node in found.node if node.op == "MatMul"} == {"/job:worker"}
    assert all(node.device for node in found.node)
    if shares:
        update = tensorboard.readable_graph(*made.compute.graphs["update"])
        assert {node.name.split("/")[0] for node in update.node} == {"update"}
        inside = {name[1] for node in update.node if len(name := node.name.split("/")) > 2}
        assert inside == {"mean", "ledger", "optimizer", "global_step"}


@pytest.fixture
def of_view(config, config_of, make_strategy):
    """Returns a function that makes the `TurnBatches` of flags, and the dataset of one process with these flags."""
    index([config.data.data_dir, "--add_columns=records"])

    def make(shares, **flags):
        given = {
            "data_dir": config.data.data_dir,
            "model_dir": "M",
            "global_batch_size": 4,
            "augment": "shift",
            **flags,
        }
        training = plan.make(config_of(**given)).training
        return TurnBatches(training, shares), make_dataset(training.request)

    return make


@pytest.mark.parametrize(
    "flags",
    [
        {"where": "label in (1, 3)"},
        {"balance": "sqrt(label)", "where": "bytes > 0"},
        {"weigh": "label", "skip_steps": "1:2,4:6"},
        {"limit": 5},
    ],
    ids=str,
)
@pytest.mark.parametrize("shares", [1, 2])
@pytest.mark.quick(1)
def test_the_batches_of_a_view_are_those_of_one_process(of_view, flags, shares, monkeypatch):
    monkeypatch.setattr(
        tf.distribute.coordinator, "experimental_get_current_worker_index", lambda: tf.constant(0, tf.int64)
    )
    batches, dataset = of_view(shares, **flags)
    content, _ = next(iter(batches.dataset()))
    wanted = iter(dataset)
    for step in range(2 * batches.epoch_end(0)):
        parts = [batch_of(batches, content, step, share) for share in range(shares)]
        for mine, theirs in zip(zip(*parts, strict=True), next(wanted), strict=True):
            np.testing.assert_array_equal(np.concatenate(mine), theirs)


@pytest.mark.parametrize("shares", [1, 2])
@pytest.mark.quick(1)
def test_data_sets_take_turns_as_in_one_process(shares, tmp_path, config_of, monkeypatch):
    index_of_worker = "experimental_get_current_worker_index"
    monkeypatch.setattr(tf.distribute.coordinator, index_of_worker, lambda: tf.constant(0, tf.int64))
    one, other = (tmp_path / name for name in "ab")
    write_dataset(one, (5, 4, 2), (4, 3, 1), (2,), 5)
    write_dataset(other, (5, 4, 2, 8), (4, 3, 1), (2,), 5)
    turns = f"0:{one}=1,{other}=0;6:{one}=0,{other}=1;13:{one}=1,{other}=0"  # 3 and 5 steps per epoch
    flags = {"data_dir": f"{one}=1,{other}=1", "mixture_schedule": turns, "skip_steps": "7:8"}
    training = plan.make(config_of(**flags, model_dir="M", global_batch_size=4, augment="shift")).training
    batches = TurnBatches(training, shares)
    assert [batches.epoch_end(step) for step in (0, 5, 6, 11, 12, 13, 17)] == [3, 6, 11, 13, 13, 16, 19]
    content, _ = next(iter(batches.dataset()))
    for step, wanted in enumerate(make_dataset(training.request).take(18)):
        parts = [batch_of(batches, content, step, share) for share in range(shares)]
        for mine, theirs in zip(zip(*parts, strict=True), wanted, strict=True):
            np.testing.assert_array_equal(np.concatenate(mine), theirs)


CROP = {"augment": "random_crop(size=16, normalize=False)", "weigh": "exif_orientation"}


@pytest.mark.slow
@pytest.mark.parametrize("options", [{}, {"where": "label > 0"}, CROP])
def test_images_that_exif_data_turn_are_upright_on_every_worker(options, tmp_path, monkeypatch):
    index_of_worker = "experimental_get_current_worker_index"
    monkeypatch.setattr(tf.distribute.coordinator, index_of_worker, lambda: tf.constant(0, tf.int64))
    sizes = [(21, 30), (30, 21)]
    files = [foreign.jpeg(turn, sizes[turn > 4], turn) for turn in range(1, 9)]
    foreign.write(tmp_path / "train", [{"image": file, "label": n % 3} for n, file in enumerate(files)])
    index([str(tmp_path), "--split=train:train", "--feature_map=image:image,label:label", "--orientation=upright"])
    request = Request(tmp_path, global_batch_size=4, training=True, seed=1, epochs=1, **options)
    batches = TurnBatches(resolve_all(request))
    content, _ = next(iter(batches.dataset()))
    for step, (images, labels, _) in enumerate(make_dataset(request)):
        mine = batch_of(batches, content, step)
        np.testing.assert_array_equal(mine[0], images)
        np.testing.assert_array_equal(mine[1], labels)


@pytest.mark.slow
@pytest.mark.parametrize("text", ["random_crop(size=3)", "random_crop(size=3) | cutout(size=2)"])
def test_parts_of_images_are_those_of_one_process(text, tmp_path, config_of, monkeypatch):
    index_of_worker = "experimental_get_current_worker_index"
    monkeypatch.setattr(tf.distribute.coordinator, index_of_worker, lambda: tf.constant(0, tf.int64))
    write_dataset(tmp_path / "data", (9,), (8, 6, 3), (1,), 5, Kind("png", varied=True))
    flags = {"data_dir": tmp_path / "data", "model_dir": "M", "global_batch_size": 4, "augment": text}
    training = plan.make(config_of(**flags)).training
    batches = TurnBatches(training)
    content, _ = next(iter(batches.dataset()))
    for step, wanted in enumerate(make_dataset(training.request).take(4)):
        made = batch_of(batches, content, step)
        for mine, theirs in zip(made, wanted, strict=True):
            np.testing.assert_array_equal(mine, theirs)


def test_a_workers_graphs_have_few_bytes_of_a_view_and_nothing_of_its_order(tmp_path, config_of, monkeypatch):
    index_of_worker = "experimental_get_current_worker_index"
    monkeypatch.setattr(tf.distribute.coordinator, index_of_worker, lambda: tf.constant(0, tf.int64))
    write_dataset(tmp_path / "data", (2000,), (1, 2, 3), (1,), 5)
    index([str(tmp_path / "data"), "--add_columns=records"])
    reading, training = [], []
    for where, count in (("label == 1", 400), ("label in (1, 3)", 800)):  # of 5 labels in turns: each apart
        flags = {"data_dir": tmp_path / "data", "model_dir": "M", "global_batch_size": 4, "where": where}
        resolved = plan.make(config_of(**flags)).training
        assert resolved.first.order.times.num_chosen == count
        batches = TurnBatches(resolved)
        content, _ = next(iter(batches.dataset()))

        def step(number, rows, batches=batches, content=content):
            return batches.of_steps(content, rows, number)(number)

        given = tf.TensorSpec([], tf.int64), tf.TensorSpec([], tf.string)
        for sizes, made in (
            (reading, tf.function(batches.dataset, autograph=False).get_concrete_function()),
            (training, tf.function(step, autograph=False).get_concrete_function(*given)),
        ):
            sizes.append(made.graph.as_graph_def().ByteSize())
    assert (reading[1] - reading[0]) / 400 < 6
    assert abs(training[1] - training[0]) < 10
    assert len(batches.rows_of(0, 3).numpy()) == 3 * 4 * 24  # bytes: id, row and mask of each row of 3 steps


@pytest.mark.parametrize("shares", [0, 2])
@pytest.mark.quick(1)
def test_a_skipped_step_changes_nothing(shares, config, config_of, job, monkeypatch):
    plain = job(shares)
    run(plain, 0, 2)
    flags = {"data_dir": config.data.data_dir, "model_dir": "M", "global_batch_size": 4, "augment": "none"}
    training = plan.make(config_of(**flags, skip_steps="2:4")).training
    monkeypatch.setattr(plan, "make", lambda *_: types.SimpleNamespace(training=training))
    made = job(shares)
    rows = {step: row for report in run(made, 0, 4) for step, row in report.rows.items()}
    for mine, theirs in zip(weights(made.state), weights(plain.state), strict=True):
        np.testing.assert_array_equal(mine, theirs)  # Adam would move them by a gradient of 0
    assert [(made.rows.loss(rows[step]), rows[step].penalty, rows[step].norm) for step in (2, 3)] == [(0, 0, 0)] * 2
    assert int(made.state.global_step.numpy()) == 4
    assert made.ledger.read(0, 4) == Tally(once=4)


def test_steps_that_are_applied_already_are_left_out(job):
    made = job()
    made.ledger.begin(tf.constant(1, tf.int64))
    made.ledger.applied(tf.constant(1, tf.int64))
    assert [sorted(report.rows) for report in run(made)] == [[0], [2], [3, 4]]
    assert int(made.state.global_step.numpy()) == STEPS - 1  # the chief sets it
    assert made.ledger.read(0, STEPS) == Tally(once=STEPS)


@pytest.mark.parametrize("shares", [0, 2])
def test_a_step_that_is_not_finite_is_told(job, shares):
    made = job(shares)
    variable = made.state.model.trainable_variables[0]
    variable.assign(np.full(variable.shape, np.nan))
    first = run(made, 0, 2)[0]
    assert (first.finite, sorted(first.rows)) == (False, [0])  # a block ends with it
