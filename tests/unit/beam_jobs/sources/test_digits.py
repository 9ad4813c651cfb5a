import hashlib

import numpy as np
import pytest

from beam_jobs import sources
from beam_jobs.sources import digits
from beam_jobs.sources.base import SourceOptions
from pipeline.errors import UsageError
from tests.helpers.raised import said
from tests.helpers.round_trips import everything

sklearn_datasets = pytest.importorskip("sklearn.datasets")


@pytest.fixture(scope="module")
def source():
    return sources.open_source(SourceOptions("digits"))


def test_the_split_is_by_the_hash_of_the_key_about_80_to_20(source):
    assert source.splits == {"train": 1429, "test": 368}
    for split in source.splits:
        for key in everything(source, split).keys.tolist():
            draw = int.from_bytes(hashlib.sha256(key).digest()[:8], "big") % 100
            assert (draw < 80) == (split == "train")


def test_every_digit_is_in_one_split_with_its_label(source):
    labels = sklearn_datasets.load_digits().target
    seen = {}
    for split in source.splits:
        block = everything(source, split)
        seen |= dict(zip(block.keys.tolist(), block.labels.tolist(), strict=True))
    assert seen == {b"digits#%04d" % row: label for row, label in enumerate(labels.tolist())}


def test_images_are_28x28_and_span_0_to_255(source):
    block = everything(source)
    assert block.images.shape == (1429, 28, 28, 1)
    assert block.images.dtype == np.uint8
    assert (block.images.min(), block.images.max()) == (0, 255)
    assert hashlib.sha256(block.images.tobytes()).hexdigest()[:16] == "539d27b7fb45d4fb"


def test_upscaling_is_bilinear_with_aligned_centres():
    small = np.random.default_rng(0).integers(0, 17, (5, 8, 8)).astype(np.uint8)
    position = np.clip((np.arange(28) + 0.5) * 8 / 28 - 0.5, 0, 7)
    rows = np.stack([[np.interp(position, np.arange(8), line) for line in image] for image in small.astype(float)])
    expected = np.stack([[np.interp(position, np.arange(8), line) for line in image.T] for image in rows])
    exact = expected.transpose(0, 2, 1) * 255 / 16
    assert np.abs(digits.upscale(small) - exact).max() <= 0.5 + 1e-9


def test_a_source_is_refused():
    with pytest.raises(UsageError, check=said("--source=/data:", "digits")):
        sources.open_source(SourceOptions("digits", "/data"))


def test_places_and_hashes_are_those_of_the_keys(source):
    hashes = {}
    for split, count in source.splits.items():
        keys = everything(source, split).keys.tolist()
        file, row = source.where(split, 5)
        assert b"%s#%04d" % (file.encode(), row) == keys[5]
        values = source.hashes(split, 0, count)
        assert values.dtype == np.uint64
        assert source.hashes(split, 3, 7).tolist() == values[3:7].tolist()
        hashes |= dict(zip(values.tolist(), keys, strict=True))
    assert len(hashes) == 1797
