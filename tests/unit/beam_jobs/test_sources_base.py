import numpy as np
import pytest

from beam_jobs.sources import base, check_name, names
from pipeline.errors import UsageError


@pytest.mark.parametrize(("count", "digits"), [(0, 1), (1, 1), (10, 1), (11, 2), (10_000, 4), (10_001, 5), (60_000, 5)])
def test_digits_are_those_of_the_highest_row(count, digits):
    assert base.row_digits(count) == digits


def test_keys_are_as_formatted_by_python():
    rows = np.array([0, 9, 10, 99, 12345, 59_999])
    assert base.row_keys("a.bin", rows, 5).tolist() == [b"a.bin#%05d" % row for row in rows.tolist()]


def test_no_rows_have_no_keys():
    keys = base.row_keys("a.bin", np.array([], np.int64), 5)
    assert keys.shape == (0,)
    assert keys.itemsize == 11


def test_the_nearest_data_set_is_suggested():
    with pytest.raises(UsageError, match="unknown 'cifar-10'; did you mean 'cifar10'"):
        check_name("cifar-10")
    for name in names():
        check_name(name)
