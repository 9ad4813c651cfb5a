import numpy as np
import pytest
import tensorflow as tf

from pipeline.audit import content
from pipeline.audit.proof import Fault
from pipeline.audit.reading import Topology


class Order:
    """Of a batch of records 5 and 6, the second of them padding."""

    def batch(self, step):
        del step
        return [5, 6], [True, False]


def fed(records, weights):
    element = (tf.zeros([2, 1]), tf.zeros([2]), tf.constant(weights), tf.constant(records))
    return list(content._of_element(element, Order(), 7, 0, Topology(1, 2, 2)))


def test_each_row_is_the_record_of_the_order_and_padding_is_padding():
    assert [row.record for row in fed([5, 6], [1.0, 0.0])] == [5, 6]
    for records, weights, facts in (
        ([5, 4], [1.0, 0.0], r"row 1 .*record 4 \(padding\).* 6 \(padding\)"),
        ([6, 5], [1.0, 0.0], r"row 0 .*record 6 \(real\).* 5 \(real\)"),
        ([5, 6], [1.0, 1.0], r"row 1 .*record 6 \(real\).* 6 \(padding\)"),
    ):
        with pytest.raises(Fault, match=f"^step 7, {facts}$"):
            fed(records, weights)


def test_values_are_equal_in_shape_too_and_nan_is_nan():
    row = content._Fed("here", 5, {"box": np.float32([1, np.nan])})
    content._compare(row, "there", {"box": np.float32([1, np.nan])})
    for stored, facts in (
        (np.float32([1, 2]), "box at 1 .*nan.* 2.0"),
        (np.float32([1]), r"box .*\(2,\).*\(1,\)"),
    ):
        with pytest.raises(Fault, match=rf"^there: {facts} \(here\)$"):
            content._compare(row, "there", {"box": stored})
