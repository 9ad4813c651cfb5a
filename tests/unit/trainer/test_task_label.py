"""A task whose labels lie on the images: masks, boxes or points of the data set."""

import pytest
import tensorflow as tf

from pipeline.errors import UsageError
from pipeline.index import __main__ as index
from tests.helpers import foreign
from tests.helpers.raised import said
from trainer import Task, plan
from trainer.task import data_spec_of


class Masks(Task):
    label = "mask"


class Boxes(Task):
    label = "boxes"


@pytest.fixture(scope="module")
def data(tmp_path_factory):
    folder = foreign.annotated(tmp_path_factory.mktemp("annotated"), {"train": 9, "validation": 5}, is_labelled=False)
    index.main([str(folder), "--feature_map=image:image,mask:mask,boxes:boxes"])
    return folder


def config(config_of, folder, **flags):
    return config_of(data_dir=str(folder), global_batch_size=4, augment="resize(height=20, width=24)", **flags)


def test_the_labels_are_those_that_the_task_names(data, config_of):
    made = {task: plan.make(config(config_of, data), task=task) for task in (Masks, Boxes)}
    specs = {task: data_spec_of(own.training.first) for task, own in made.items()}
    assert specs[Masks].features == tf.TensorSpec([None, 20, 24, 3], tf.uint8)
    assert specs[Masks].labels == tf.TensorSpec([None, 20, 24, 1], tf.uint8)
    assert (specs[Masks].class_names, specs[Masks].num_outputs) == (("0", "1", "2", "3"), 4)
    assert specs[Boxes].labels == {
        "boxes": tf.TensorSpec([None, 3, 4], tf.float32),
        "boxes_weight": tf.TensorSpec([None, 3], tf.float32),
    }
    assert made[Masks].evaluation.keys() == {"validation"}


def test_without_such_a_task_there_is_nothing_to_learn(data, config_of):
    with pytest.raises(UsageError, check=said("'train' has no labels", "label='boxes' of input_fn, or of a Task")):
        plan.make(config(config_of, data))


def test_class_weights_need_classes_of_images(data, config_of):
    with pytest.raises(UsageError, check=said("--class_weight", "the labels are mask")):
        plan.make(config(config_of, data, class_weight="0:2"), task=Masks)


def test_the_loss_of_classes_is_not_that_of_boxes(data, config_of):
    own = config(config_of, data)
    task = Boxes(own, data_spec_of(plan.make(own, task=Boxes).training.first))
    with pytest.raises(UsageError, check=said("the labels are boxes and boxes_weight", "a Task with loss")):
        task.loss(None, None)
