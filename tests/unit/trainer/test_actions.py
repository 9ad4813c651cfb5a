import numpy as np
import pytest
import tensorflow as tf

from pipeline.errors import PipelineError
from trainer import actions, optimizers
from trainer.actions import Evaluate, Report
from trainer.loop import Progress
from trainer.step import Stepper
from trainer.summaries import Scalars


def events(folder):
    """Returns {(tag, step): value} of the scalars in a folder."""
    found = {}
    for path in folder.glob("events.*"):
        for record in tf.data.TFRecordDataset(str(path)).as_numpy_iterator():
            event = tf.compat.v1.Event.FromString(record)
            for value in event.summary.value:
                assert value.metadata.plugin_data.plugin_name == "scalars"
                found[value.tag, event.step] = float(tf.make_ndarray(value.tensor))
    return found


def test_the_tutorials_log_line():
    line = actions.log_line(1260, 2.1749, 5151.36, 0.02485)
    assert line == "step 1260, loss = 2.17 (5151.4 examples/sec; 0.025 sec/batch)"


def test_speed_is_since_the_last_report(tmp_path, said):
    schedule = optimizers.StaircaseDecay(0.5, 0.1, 20)
    report = Report(10, 100, schedule, Scalars(tmp_path), said.append)
    report(Progress(step=30, loss=1.0, accuracy=0.5, steps=10, seconds=2.0))
    report(Progress(step=50, loss=0.5, accuracy=0.75, steps=30, seconds=3.0))
    assert said == [
        "step 30, loss = 1.00 (500.0 examples/sec; 0.200 sec/batch)",
        "step 50, loss = 0.50 (2000.0 examples/sec; 0.050 sec/batch)",
    ]
    scalars = events(tmp_path)
    assert scalars["train/loss", 50] == 0.5
    assert scalars["train/accuracy", 50] == 0.75
    assert scalars["train/examples_per_second", 50] == 2000.0
    assert scalars["train/learning_rate", 30] == pytest.approx(0.05)  # of the update from step 29
    assert scalars["train/learning_rate", 50] == pytest.approx(0.005)


@pytest.fixture
def evaluation(make_state, batch, said, tmp_path):
    """Returns a function that makes an Evaluate of 3 batches, of which 9 rows are real or not skipped."""
    strategy = tf.distribute.OneDeviceStrategy("/cpu:0")
    state = make_state(strategy)
    stepper = Stepper(strategy, state, optimizers.StaircaseDecay(0.1, 1.0, 1))
    batches = strategy.experimental_distribute_dataset(tf.data.Dataset.from_tensors(batch).repeat(3))

    def make(num_examples=9, stop=lambda: False, may_skip=0):
        scalars = Scalars(tmp_path)
        return Evaluate(5, 100, stepper, batches, 3, "test", num_examples, may_skip, 2, stop, scalars, said.append)

    return make


def test_evaluation_is_over_the_whole_split(evaluation, batch, said, tmp_path):
    images, labels, weights = batch
    evaluate = evaluation()
    evaluate(Progress(15, 0.0, 0.0, 15, 1.0))
    logits = evaluate.stepper.state.model(images)
    accuracy = np.sum((np.argmax(logits, -1) == labels) * weights) / 3
    losses = tf.nn.sparse_softmax_cross_entropy_with_logits(labels, logits).numpy()
    assert said == [f"step 15, test accuracy = {accuracy:.4f} (9 examples)"]
    scalars = events(tmp_path)
    assert scalars["eval/accuracy", 15] == pytest.approx(accuracy)
    assert scalars["eval/loss", 15] == pytest.approx(np.sum(losses * weights) / 3, rel=1e-5)


def test_it_can_be_repeated(evaluation):
    evaluate = evaluation()
    assert evaluate.evaluate(1) == evaluate.evaluate(2)


def test_a_missing_example_is_an_error(evaluation):
    with pytest.raises(PipelineError, match=r"evaluation saw 9.0 examples of 'test', which has 10"):
        evaluation(num_examples=10).evaluate(1)


def test_skipped_examples_are_said_and_their_number_is_bounded(evaluation):
    result = evaluation(num_examples=11, may_skip=2).evaluate(1)
    assert (result.num_examples, result.num_skipped) == (9, 2)
    assert str(result).endswith("(9 examples; 2 corrupt left out)")
    whole = evaluation(num_examples=9, may_skip=2).evaluate(1)
    assert (whole.accuracy, whole.loss) == (result.accuracy, result.loss)
    for bounds in ({"num_examples": 12, "may_skip": 2}, {"num_examples": 8, "may_skip": 2}):
        with pytest.raises(PipelineError, match=r"evaluation saw 9.0 examples of 'test', which has"):
            evaluation(**bounds).evaluate(1)


def test_stopped_between_chunks_it_has_no_result(evaluation, said):
    answers = iter([False, True])
    assert evaluation(stop=lambda: next(answers)).evaluate(1) is None
    assert said == []


def test_at_the_last_step_the_run_evaluates_itself(evaluation, said):
    evaluation()(Progress(100, 0.0, 0.0, 100, 1.0))
    assert said == []
