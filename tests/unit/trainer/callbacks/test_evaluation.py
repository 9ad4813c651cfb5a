from types import SimpleNamespace

import numpy as np
import pytest
import tensorflow as tf

from pipeline.errors import PipelineError
from pipeline.request import Request
from trainer.callbacks.base import Callback
from trainer.callbacks.evaluation import Evaluations, Evaluator
from trainer.callbacks.terminal import Output
from trainer.config.steps import Period
from trainer.step.evaluation import EvaluationStep


@pytest.fixture
def make_evaluator(make_stepper, batch):
    """Returns a function that makes an Evaluator of 3 batches, of which 9 rows are real and not skipped."""
    trained = make_stepper()
    stepper = EvaluationStep(trained.strategy, trained.state)
    stepper.state.global_step.assign(15)
    batches = stepper.strategy.experimental_distribute_dataset(tf.data.Dataset.from_tensors(batch).repeat(3))

    def make(num_examples=9, may_skip=0, stop=lambda: False):
        request = Request("data", "test", global_batch_size=8, training=False)
        split = SimpleNamespace(request=request, order=SimpleNamespace(num_records=num_examples, steps_per_epoch=3))
        named = {"test": batches}, {"test": split}
        return Evaluator(stepper, *named, may_skip, 2, stop)

    return make


def test_evaluation_is_over_the_whole_split(make_evaluator, batch):
    images, labels, weights = batch
    evaluator = make_evaluator()
    result = evaluator.evaluate()
    logits = evaluator.stepper.state.model(images)
    losses = tf.nn.sparse_softmax_cross_entropy_with_logits(labels, logits).numpy()
    assert (result.num_examples, result.num_skipped) == (9, 0)
    assert result.accuracy == pytest.approx(np.sum((np.argmax(logits, -1) == labels) * weights) / 3)
    assert result.loss == pytest.approx(np.sum(losses * weights) / 3, rel=1e-5)
    assert str(result) == f"test accuracy = {result.accuracy:.4f}, loss = {result.loss:.4f} (9 examples)"
    assert evaluator.evaluate() == result


def test_the_names_are_those_that_an_evaluation_has(make_evaluator):
    evaluator = make_evaluator()
    assert evaluator.names() == ["loss", *evaluator.evaluate().metrics] == ["loss", "accuracy"]


def test_skipped_examples_are_counted_and_their_number_is_bounded(make_evaluator):
    result = make_evaluator(num_examples=11, may_skip=2).evaluate()
    assert (result.num_examples, result.num_skipped) == (9, 2)
    assert "2 corrupt" in str(result)
    whole = make_evaluator().evaluate()
    assert (whole.accuracy, whole.loss) == (result.accuracy, result.loss)
    for num_examples, may_skip in ((10, 0), (12, 2), (8, 2)):
        with pytest.raises(PipelineError, match=rf"9.0 examples of 'test', which has {num_examples}"):
            make_evaluator(num_examples, may_skip).evaluate()


def test_stopped_between_loops_it_has_no_result(make_evaluator):
    answers = iter([False, True])
    assert make_evaluator(stop=lambda: next(answers)).evaluate() is None


class Told(Callback):
    def __init__(self):
        self.phases, self.metrics = [], []

    def on_phase(self, phase):
        self.phases.append(phase.name)

    def on_metrics(self, step, values):
        self.metrics.append((step, values))


def test_callbacks_are_told_of_an_evaluation_and_the_last_one_is_made_once(make_evaluator, capsys):
    told = Told()
    evaluations = Evaluations(make_evaluator(), None, Output(), period=Period(5), last_step=20, tell=told)
    (action,) = evaluations.actions()
    action.do(SimpleNamespace(step=20))  # the last step's is left to the end
    assert told.phases == []
    action.do(SimpleNamespace(step=15))
    result = evaluations.at_end(15)  # ended early
    assert told.phases == ["evaluating"]
    assert told.metrics == [(15, {"eval/test/loss": result.loss, "eval/test/accuracy": result.accuracy})]
    assert capsys.readouterr().out.splitlines() == [f"step 15, {result}", str(result)]
