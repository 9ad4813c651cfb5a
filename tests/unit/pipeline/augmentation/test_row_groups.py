"""Functions that are computed for the rows of their group only, block by block."""

import numpy as np
import pytest
import tensorflow as tf

from pipeline.augmentation.randaugment import by_group

IMAGES = np.arange(45 * 4, dtype=np.float32).reshape(45, 2, 2, 1)
FUNCTIONS = [
    lambda images, by: images * 2 + by[:, None, None, None],
    lambda images, by: -images,
    lambda images, by: 0 * images,
]
RESULTS = [lambda image, by: image * 2 + by, lambda image, by: -image, lambda image, by: 0 * image]


@pytest.fixture(scope="module")
def compiled():
    return tf.function(
        lambda images, group, by: by_group(images, group, FUNCTIONS, by), jit_compile=True, autograph=False
    )


@pytest.mark.parametrize("case", ["drawn", "all of the last", "none", "one row at the end"])
def test_each_row_is_what_the_function_of_its_group_gives(compiled, case):
    """45 rows are two blocks of 16 and a part of one; groups begin anywhere, and rows of group 3 stay as they are."""
    group = np.random.default_rng(0).integers(0, 4, 45)
    group = {
        "drawn": group,
        "all of the last": 0 * group + 2,
        "none": 0 * group + 3,
        "one row at the end": 2 * (np.arange(45) == 44),
    }[case]
    by = np.arange(45, dtype=np.float32)
    found = compiled(IMAGES, group.astype(np.int32), by).numpy()
    for row, number in enumerate(group):
        expected = RESULTS[number](IMAGES[row], by[row]) if number < 3 else IMAGES[row]
        np.testing.assert_array_equal(found[row], expected)
