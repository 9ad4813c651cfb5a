"""The dataset as stored, restored and served by tf.data itself, in other processes: by windows and in memory."""

import json

import numpy as np
import pytest
import tensorflow as tf

from pipeline import input_fn
from pipeline.errors import UsageError
from pipeline.index.__main__ import main as index
from tests.helpers import forked
from tests.helpers.datasets import Kind, write_dataset

ARGUMENTS = {"global_batch_size": 4, "training": True, "streams": 2, "seed": 3, "epochs": 2, "record_ids": True}
STEPS = 2 * 9
SIZES = pytest.mark.parametrize("shuffle_bytes", [1 << 30, 16 * 144], ids=["in memory", "by windows"])

RESUME = """
import json, sys
import tensorflow as tf
from pipeline import input_fn
folder, checkpoint, arguments = sys.argv[1], sys.argv[2], json.loads(sys.argv[3])
iterator = iter(input_fn(folder, **arguments))
tf.train.Checkpoint(iterator=iterator).read(checkpoint).assert_consumed()
print(json.dumps([element[-1].numpy().tolist() for element in iterator]))
"""

SERVE = """
import sys
import tensorflow as tf
from tensorflow.data.experimental import service
dispatcher = service.DispatchServer(service.DispatcherConfig(port=0))
worker = service.WorkerServer(service.WorkerConfig(dispatcher_address=dispatcher.target.split("://")[1]))
print(dispatcher.target, flush=True)
dispatcher.join()
"""


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    path = tmp_path_factory.mktemp("made")
    write_dataset(path, (12, 12, 11), (8, 6, 3), kind=Kind(unequal_keys=True))
    return path


def records(dataset):
    return [element[-1].numpy().tolist() for element in dataset]


@pytest.mark.parametrize("portable", [pytest.param(False, marks=pytest.mark.slow), True])
@SIZES
@pytest.mark.quick(1)
def test_a_checkpoint_of_the_iterator_continues_in_another_process(folder, tmp_path, shuffle_bytes, portable):
    arguments = ARGUMENTS | {"shuffle_bytes": shuffle_bytes, "portable": portable}
    iterator = iter(input_fn(folder, **arguments))
    for _ in range(7):
        next(iterator)
    checkpoint = tf.train.Checkpoint(iterator=iterator).write(str(tmp_path / "checkpoint"))
    out = forked.output(["-c", RESUME, folder, checkpoint, json.dumps(arguments)])
    assert json.loads(out) == records(input_fn(folder, start_step=7, **arguments))


@SIZES
def test_a_saved_dataset_has_the_same_elements(folder, tmp_path, shuffle_bytes):
    dataset = input_fn(folder, shuffle_bytes=shuffle_bytes, **ARGUMENTS)
    dataset.save(str(tmp_path / "saved"))
    assert records(tf.data.Dataset.load(str(tmp_path / "saved"))) == records(dataset)


@pytest.mark.slow
def test_a_service_in_another_process_feeds_the_same_batches(folder):
    server = forked.Process(["-c", SERVE])
    served = tf.data.experimental.service.distribute(
        processing_mode=tf.data.experimental.service.ShardingPolicy.OFF, service=server.stdout.readline().strip()
    )
    index([str(folder), "--add_columns=records"])
    for shuffle_bytes, view in ((1 << 30, {}), (16 * 144, {}), (16 * 144, {"weigh": "label", "limit": 24})):
        arguments = ARGUMENTS | {"shuffle_bytes": shuffle_bytes, "augment": "shift", **view}
        expected = list(input_fn(folder, **arguments))
        found = list(input_fn(folder, portable=True, **arguments).apply(served))
        assert len(found) == len(expected)
        assert view or len(found) == STEPS
        for one, other in zip(found, expected, strict=True):
            assert all(np.array_equal(a, b) for a, b in zip(one, other, strict=True))
    server.kill()


def test_corrupt_records_cannot_be_skipped(folder):
    with pytest.raises(UsageError, match="^on_corrupt='skip' with portable=True"):
        input_fn(folder, on_corrupt="skip", portable=True, **ARGUMENTS)
