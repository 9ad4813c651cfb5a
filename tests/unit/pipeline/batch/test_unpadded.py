"""An evaluation without weights: batches without padding, none so small that a replica would get no rows."""

import numpy as np
import pytest

from pipeline import input_fn
from pipeline.batch.dataset import unpadded_rows
from pipeline.order.order import Order


def rows_of(records, size):
    return unpadded_rows(Order((records,), size, 1, 1, "pad", 0, False))


@pytest.mark.parametrize(
    ("records", "size", "rows"),
    [
        (16, 8, [8, 8]),
        (21, 8, [8, 8, 5]),
        (20, 8, [8, 8, 4]),  # half a batch is enough
        (19, 8, [8, 6, 5]),
        (17, 8, [8, 6, 3]),
        (12, 5, [5, 4, 3]),  # 2 rows are less than half of 5
        (13, 5, [5, 5, 3]),
        (13, 64, [8, 5]),
        (100, 64, [64, 36]),
        (65, 64, [48, 17]),
        (1, 64, [1]),
        (3, 6, [2, 1]),
        (2, 1, [1, 1]),
    ],
)
def test_a_small_rest_is_filled_up_from_the_batch_before(records, size, rows):
    assert rows_of(records, size) == rows


def test_every_replica_gets_rows_of_every_batch_and_equal_parts_of_all_but_the_last():
    for size in range(1, 33):
        for records in range(1, 4 * size):
            *before, last = rows = rows_of(records, size)
            assert sum(rows) == records
            assert all(0 < count <= size for count in rows)
            assert set(before[:-1]) <= {size}
            for replicas in (2, 4, 8):
                if size % replicas == 0 and 4 * replicas <= min(records, size):
                    assert all(count % replicas == 0 for count in before)
                    assert last >= replicas


def test_each_record_is_in_one_batch_and_the_length_is_known(folder):
    given = {"global_batch_size": 12, "training": False, "weights": "none", "record_ids": True}
    dataset = input_fn(folder, epochs=2, **given)
    batches = list(dataset)
    assert len(dataset) == 6
    assert [images.shape[0] for images, *_ in batches] == [12, 12, 7] * 2
    assert np.concatenate([ids for *_, ids in batches]).tolist() == [*range(31)] * 2
    assert len(input_fn(folder, **given)) == 3  # one epoch, if their number is not given
