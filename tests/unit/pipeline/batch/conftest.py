"""A data set that the tests of batches read."""

import pytest

from tests.helpers.datasets import write_dataset

SHAPE = (8, 6, 3)


@pytest.fixture(scope="session")
def folder(tmp_path_factory):
    """The folder of 31 raw images of this shape, in four shards of which one is empty."""
    path = tmp_path_factory.mktemp("made")
    write_dataset(path, (11, 0, 12, 8), SHAPE)
    return path
