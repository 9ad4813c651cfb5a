import collections
import dataclasses
import json
import math
from types import SimpleNamespace

import numpy as np
import pytest
import tensorflow as tf

from tests.helpers.runs import scalars
from trainer.callbacks import tensorboard
from trainer.callbacks.tensorboard import EventFile, TrainScalars
from trainer.config.model import OptimizerFlags
from trainer.config.steps import Period
from trainer.loop import Progress, Spent
from trainer.step import state


def write_runs(folder):
    """Writes 100 to 500 at every 100th step, as killed at 550; then, resumed from 300, from 350 on."""
    first = EventFile(folder, 0)
    for step in range(100, 600, 100):
        first.scalars(step, {"train/loss": 1.0})
    first.scalars(500, {"eval/test/accuracy": 0.5})
    resumed = EventFile(folder, 300)
    for step in range(350, 600, 50):
        resumed.scalars(step, {"train/loss": 2.0})


EXPECTED = {100: 1.0, 200: 1.0, 300: 1.0, 350: 2.0, 400: 2.0, 450: 2.0, 500: 2.0, 550: 2.0}


def test_after_a_resume_every_step_is_shown_once(tmp_path):
    write_runs(tmp_path)
    assert len(list(tmp_path.iterdir())) == 2
    assert scalars(tmp_path) == {("train/loss", step): value for step, value in EXPECTED.items()}


def accumulators():
    package = "tensorboard.backend.event_processing"
    public, own = (
        pytest.importorskip(f"{package}.{name}", reason="needs tensorboard: pip install tensorboard")
        for name in ("event_accumulator", "plugin_event_accumulator")
    )
    return public.EventAccumulator, own.EventAccumulator


def test_tensorboard_shows_that(tmp_path):
    public, own = accumulators()
    write_runs(tmp_path)
    read = public(str(tmp_path)).Reload()
    assert [(event.step, event.value) for event in read.Scalars("train/loss")] == list(EXPECTED.items())
    shown = own(str(tmp_path)).Reload()
    found = [(event.step, event.tensor_proto.float_val[0]) for event in shown.Tensors("train/loss")]
    assert found == list(EXPECTED.items())
    assert not shown.Tensors("eval/test/accuracy")


def test_tensorboard_shows_a_text_as_code(tmp_path):
    _, own = accumulators()
    EventFile(tmp_path, 0).text(1, "flags", json.dumps({"a": {"b": 1}}, indent=1))
    shown = own(str(tmp_path)).Reload()
    (event,) = shown.Tensors("flags")
    text = event.tensor_proto.string_val[0].decode()
    assert (event.step, json.loads(text)) == (1, {"a": {"b": 1}})
    assert all(line.startswith("    ") for line in text.splitlines())
    assert shown.SummaryMetadata("flags").plugin_data.plugin_name == "text"


def test_without_scalars_there_is_no_file(tmp_path):
    EventFile(tmp_path / "logs", 0)
    EventFile(tmp_path / "logs", 0, writes=False).scalars(1, {"loss": 1.0})
    assert not (tmp_path / "logs").exists()


def test_scalars_can_be_read_as_soon_as_they_are_written(tmp_path):
    writer = EventFile(tmp_path / "runs" / "logs", 0)
    for step in (1, 2):
        writer.scalars(step, {"loss": 0.5})
        assert list(scalars(tmp_path / "runs" / "logs")) == [("loss", one) for one in range(1, step + 1)]


def test_tensorboard_shows_histograms_images_and_the_graph(tmp_path):
    public, _ = accumulators()
    file = EventFile(tmp_path, 0)
    row = [-1.0, 2.0, 3.5, 5.25, 1.0, *[0.0] * 28, 2.0]
    with tf.Graph().as_default() as graph:
        tf.constant(1.0, name="one")
    file.graph(graph.as_graph_def())
    for step in (10, 20):
        file.histograms(step, {"weights/w": row})
        file.images(step, {"images/0": np.full((4, 3, 3), step, np.uint8)})
    EventFile(tmp_path, 10).scalars(11, {"train/loss": 1.0})  # resumed: step 20 is forgotten
    shown = public(str(tmp_path), size_guidance={"histograms": 0, "images": 0}).Reload()
    assert [event.step for event in shown.Histograms("weights/w")] == [10]
    found = shown.Histograms("weights/w")[0].histogram_value
    assert (found.min, found.max, found.num, found.sum, found.sum_squares) == (-1.0, 2.0, 3.0, 3.5, 5.25)
    assert [(event.step, event.width, event.height) for event in shown.Images("images/0")] == [(10, 3, 4)]
    assert [node.name for node in shown.Graph().node] == ["one"]


def test_a_folder_has_one_graph(tmp_path):
    assert EventFile(tmp_path, 0).is_first
    EventFile(tmp_path, 0).scalars(1, {"loss": 1.0})
    assert not EventFile(tmp_path, 0).is_first


def progress(step, loss, accuracy, steps, seconds, start_up, waited):
    values = {"total_loss": loss, "accuracy": accuracy}
    result = SimpleNamespace(norm=2.5, averages=tf.constant([0.25, 0.5, 0.125]), means=tf.constant([2.0, 0.25]))
    return Progress(step, values, Spent(steps, seconds, waited), Spent(1, start_up, 3.0), result)


def test_the_scalars_of_training_with_the_speed_since_the_last_ones(tmp_path):
    rate = state.schedule(OptimizerFlags(learning_rate=0.5, decay_factor=0.1), 20, 60)
    scalars_of = TrainScalars(Period(100), 100, rate, EventFile(tmp_path, 0).scalars)
    scalars_of.write(progress(30, 1.0, 0.5, 11, 7.0, 5.0, 3.5))
    scalars_of.write(progress(50, 0.5, 0.75, 31, 8.0, 5.0, 3.75))
    found = scalars(tmp_path)
    assert found["train/total_loss", 50] == 0.5
    assert found["train/accuracy", 50] == 0.75
    assert found["train/examples_per_second", 30] == 500.0
    assert found["train/examples_per_second", 50] == 2000.0
    assert found["train/learning_rate", 30] == pytest.approx(0.05)  # of the update from step 29
    assert found["train/learning_rate", 50] == pytest.approx(0.005)
    assert found["train/gradient_norm", 50] == 2.5
    assert found["train/input_wait", 30] == 0.25  # half a second of two: that of the first step does not count
    assert found["train/input_wait", 50] == 0.25
    assert found["train/loss_average", 50] == 0.5
    assert (found["train/epoch_total_loss", 50], found["train/epoch_accuracy", 50]) == (2.0, 0.25)
    assert len(found) == 22


@pytest.mark.parametrize(
    ("period", "more", "written"),
    [
        (Period(100), {"ledger/once": 7.0}, [(7, {"ledger/once": 7.0})]),
        (Period(0, 60.0), {"ledger/once": 7.0}, [(7, {"ledger/once": 7.0})]),
        (Period(0), {"ledger/once": 7.0}, []),
        (Period(100), {}, []),
    ],
)
def test_further_numbers_are_written_at_the_end_too(period, more, written):
    found = []
    TrainScalars(period, 100, None, lambda step, values: found.append((step, values)), lambda: more).on_end(7)
    assert found == written


def test_a_skipped_step_has_neither_a_loss_nor_a_gradient(tmp_path):
    rate = state.schedule(OptimizerFlags(learning_rate=0.5), 20, 60)
    scalars_of = TrainScalars(Period(100), 100, rate, EventFile(tmp_path, 0).scalars, skips=((29, 30),))
    nothing = progress(30, 0.0, 0.0, 11, 7.0, 5.0, 3.5)
    result = SimpleNamespace(norm=0.0, averages=tf.fill([3], math.nan), means=tf.fill([2], math.nan))
    scalars_of.write(dataclasses.replace(nothing, result=result))
    scalars_of.write(progress(31, 1.0, 0.5, 12, 7.5, 5.0, 3.5))
    found = scalars(tmp_path)
    assert {tag for tag, step in found if step == 30} == {
        "train/learning_rate",
        "train/examples_per_second",
        "train/input_wait",
    }
    assert found["train/total_loss", 31] == 1.0


def test_a_kind_of_run_adds_its_own_scalars(tmp_path):
    rate = state.schedule(OptimizerFlags(), 20, 60)
    scalars_of = TrainScalars(Period(100), 100, rate, EventFile(tmp_path, 0).scalars, lambda: {"worker/0/steps": 7.0})
    scalars_of.write(progress(30, 1.0, 0.5, 11, 7.0, 5.0, 3.5))
    assert scalars(tmp_path)["worker/0/steps", 30] == 7.0


def nodes_of(found):
    return {node.name: node for node in found.node}


def check_inputs(found):
    """Every input is a node of the graph."""
    names = {node.name for node in found.node}
    assert len(names) == len(found.node)
    for node in found.node:
        assert {one.lstrip("^").partition(":")[0] for one in node.input} <= names, node.name


def test_a_function_stands_in_place_of_its_calls():
    @tf.function(autograph=False)
    def inner(x, y):
        return tf.add(x, y, name="sum"), tf.multiply(x, y, name="product")

    @tf.function(autograph=False)
    def outer(x):
        with tf.name_scope("twice"), tf.device("CPU:1"):
            total, product = inner(x, tf.constant(2.0))
        return tf.while_loop(lambda i: i < total, lambda i: tf.add(i, product, name="more"), [tf.constant(0.0)])

    found = tensorboard.readable_graph(outer.get_concrete_function(tf.TensorSpec([])).graph)
    nodes = nodes_of(found)
    check_inputs(found)
    assert not [node for node in found.node if node.op.endswith("PartitionedCall") or node.op.endswith("While")]
    (total,) = [node for name, node in nodes.items() if name.endswith("/sum")]
    assert total.name.startswith("twice/")
    assert total.device.endswith("CPU:1")
    assert total.input[0] == "x"
    assert nodes["more"].input[1].startswith("twice/")


def test_what_gets_a_function_otherwise_stays():
    @tf.function(autograph=False)
    def outer(x):
        total = tf.data.Dataset.range(3).map(lambda i: tf.cast(i, tf.float32) * x).reduce(0.0, tf.add)
        return tf.cond(x > 0, lambda: total, lambda: tf.negative(total, name="other"))

    found = tensorboard.readable_graph(outer.get_concrete_function(tf.TensorSpec([])).graph)
    check_inputs(found)
    kinds = {node.op for node in found.node}
    assert {"MapDataset", "ReduceDataset"} <= kinds
    assert not any("If" in kind for kind in kinds)


@pytest.mark.parametrize(("replicas", "virtual"), [(1, None), (2, None), (2, 4)])
@pytest.mark.quick(1)
def test_replicas_and_layers_are_scopes(replicas, virtual, make_stepper, batch):
    flags = {"virtual_replicas": virtual, "global_batch_size": 8} if virtual else {}
    rows = [np.reshape(part, (virtual, -1, *part.shape[1:])) for part in batch] if virtual else batch
    stepper = make_stepper(replicas, **flags)
    data = stepper.strategy.experimental_distribute_dataset(tf.data.Dataset.from_tensors(tuple(rows)).repeat())
    stepper.run(iter(data), 2)
    model = stepper.state.model
    found = tensorboard.readable_graph(*stepper.graphs["step"], {layer.name for layer in model._flatten_layers()})
    check_inputs(found)
    scopes, devices = collections.defaultdict(set), collections.defaultdict(set)
    weighted = {layer.name for layer in model.layers if layer.weights}
    assert len(weighted) > 1
    for name, node in nodes_of(found).items():
        replica, *parts = name.split("/")
        scopes[replica] |= {(layer, "gradients" in parts) for layer in weighted.intersection(parts[:-1])}
        if node.op == "MatMul":
            devices[replica].add(node.device[-5:])
    replicas_shown = {f"replica_{index}" for index in range(replicas)}
    assert {scope for scope, layers in scopes.items() if layers} == replicas_shown
    for scope in replicas_shown:
        assert scopes[scope] == {(layer, is_gradient) for layer in weighted for is_gradient in (False, True)}
    assert devices == {f"replica_{index}": {f"CPU:{index}"} for index in range(replicas)}
    assert not [name for name in nodes_of(found) if name.startswith("while/") or "gradient_tape" in name]
    # What computes lies in one of these boxes. Beside them is only what is counted, and handed on to the next step.
    boxes = {"input", *replicas_shown, "optimizer", "global_step", "is_finite", "metrics"}
    assert boxes <= {name.partition("/")[0] for name in nodes_of(found) if "/" in name}
    beside = {node.op for name, node in nodes_of(found).items() if name.partition("/")[0] not in boxes}
    handed_on = {"Placeholder", "Identity", "ReadVariableOp", "AssignVariableOp"}
    assert beside <= {*handed_on, "Const", "AddV2", "Mul", "Cast", "NoOp"}
