import dataclasses
import random

import numpy as np
import pytest

from beam_jobs import jobs, plan, receipts, sources
from beam_jobs.shards import Statistics
from pipeline.errors import DataError


@pytest.fixture
def converted(mnist_folder, tmp_path):
    (tmp_path / "out").mkdir()
    made = plan.make_plan(sources.open_source("mnist", str(mnist_folder())), str(tmp_path / "out"), 0, 3)
    return made, [jobs.write_shard(made, *element) for element in made.elements]


def test_the_manifest_does_not_depend_on_the_order_of_receipts_or_on_doubles(converted):
    made, all_receipts = converted
    expected = receipts.make_manifest(made, all_receipts).to_bytes()
    for seed in range(5):
        mixed = all_receipts + all_receipts[:2]
        random.Random(seed).shuffle(mixed)
        assert receipts.make_manifest(made, mixed).to_bytes() == expected


def test_a_missing_receipt_is_an_error(converted):
    made, all_receipts = converted
    with pytest.raises(
        DataError, match=r"train-00001-of-00003.tfrecord: no worker reported it as written \(1 missing\)"
    ):
        receipts.make_manifest(made, all_receipts[:1] + all_receipts[2:])


def test_two_different_receipts_of_one_shard_are_an_error(converted):
    made, all_receipts = converted
    other = dataclasses.replace(all_receipts[0], info=dataclasses.replace(all_receipts[0].info, crc32c="00000000"))
    with pytest.raises(DataError, match=r"train-00000-of-00003.tfrecord: written twice with different content"):
        receipts.make_manifest(made, [*all_receipts, other])


def test_moments_are_those_of_all_pixels_however_they_are_divided():
    pixels = np.random.default_rng(0).integers(0, 256, (1000, 3))

    def part(rows):
        squares = (rows.astype(object) ** 2).sum(axis=0)
        return Statistics((), len(rows), tuple(rows.sum(axis=0).tolist()), tuple(squares.tolist()))

    whole = receipts.moments([part(pixels)])
    np.testing.assert_allclose(whole[0], pixels.mean(axis=0), rtol=1e-14)
    np.testing.assert_allclose(whole[1], pixels.std(axis=0), rtol=1e-14)
    assert receipts.moments([part(pixels[:17]), part(pixels[17:600]), part(pixels[600:])]) == whole


def test_moments_of_one_colour_have_no_rounding():
    colour = Statistics((), 10**9, (255 * 10**9,), (255 * 255 * 10**9,))
    assert receipts.moments([colour, colour]) == ((255.0,), (0.0,))
