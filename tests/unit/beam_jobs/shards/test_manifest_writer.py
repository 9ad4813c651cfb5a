import dataclasses
import random
from collections import Counter

import numpy as np
import pytest

from beam_jobs.examples import images
from beam_jobs.plan import Origin
from beam_jobs.shards import manifest_writer, writer
from pipeline import manifest
from pipeline.errors import DataError
from pipeline.manifest import Feature, SourceFile
from tests.made_source import Content


def receipts_of(plan):
    return list(writer.write_shards(plan, plan.elements))


@pytest.fixture
def converted(plan_of, pixels):
    content = {"train": Content(pixels(50)), "test": Content(pixels(20, seed=1))}
    plan = plan_of(content, num_shards="3")
    return plan, receipts_of(plan)


def test_the_manifest_does_not_depend_on_the_order_of_receipts_or_on_doubles(converted):
    plan, receipts = converted
    expected = manifest_writer.write_manifest(plan, receipts).read_bytes()
    for seed in range(5):
        mixed = receipts + receipts[:2]
        random.Random(seed).shuffle(mixed)
        assert manifest_writer.write_manifest(plan, iter(mixed)).read_bytes() == expected


def test_a_missing_receipt_is_an_error(converted, tmp_path):
    plan, receipts = converted
    message = r"train-00001-of-00003.tfrecord: no worker reported it as written \(1 missing\)"
    with pytest.raises(DataError, match=message):
        manifest_writer.write_manifest(plan, receipts[:1] + receipts[2:])
    assert not (tmp_path / "out" / "manifest.json").exists()


def test_two_different_receipts_of_one_shard_are_an_error(converted, tmp_path):
    plan, receipts = converted
    other = dataclasses.replace(receipts[0], info=dataclasses.replace(receipts[0].info, crc32c="00000000"))
    with pytest.raises(DataError, match=r"train-00000-of-00003.tfrecord: written twice with different bytes"):
        manifest_writer.write_manifest(plan, [*receipts, other])
    assert not (tmp_path / "out" / "manifest.json").exists()


def test_the_manifest_of_a_second_pass_says_at_once_where_its_rows_came_from(converted, tmp_path):
    plan, receipts = converted
    (tmp_path / "out" / "rejects.jsonl").write_bytes(b"of the first pass")
    origin = Origin((SourceFile("a.parquet", 7, "0" * 64),), {"train": 2})
    made = manifest.load(manifest_writer.write_manifest(dataclasses.replace(plan, origin=origin), receipts).parent)
    assert made.source == origin.files
    assert {name: split.num_rejects for name, split in made.splits.items()} == {"train": 2, "test": 0}
    assert (tmp_path / "out" / "rejects.jsonl").read_bytes() == b"of the first pass"


def test_the_manifest_is_true_of_the_rows(converted, pixels):
    plan, receipts = converted
    made = manifest.load(manifest_writer.write_manifest(plan, receipts).parent)
    assert made.dataset == "made"
    assert made.features["image"] == Feature("uint8", (6, 5, 3), "raw")
    assert {name: split.num_examples for name, split in made.splits.items()} == {"train": 50, "test": 20}
    assert made.splits["test"].label_histogram == (2,) * 10
    assert made.splits["test"].image_sizes == {"6x5": 20}
    values = pixels(50).reshape(-1, 3).astype(np.float64)  # of the training images alone
    np.testing.assert_allclose(made.image_mean, values.mean(axis=0), rtol=1e-12)
    np.testing.assert_allclose(made.image_std, values.std(axis=0), rtol=1e-12)
    assert made.source == plan.source.files
    assert made.options == {"num_shards": {"train": 3, "test": 3}, "seed": 0}


def test_without_a_training_split_statistics_are_of_all(plan_of, pixels):
    content = {"a": Content(pixels(5)), "b": Content(pixels(8, seed=1))}
    plan = plan_of(content)
    made = manifest_writer.make_manifest(plan, receipts_of(plan))
    values = np.concatenate([pixels(5), pixels(8, seed=1)]).reshape(-1, 3).astype(np.float64)
    np.testing.assert_allclose(made.image_mean, values.mean(axis=0), rtol=1e-12)


def encoded(pixels, *sizes_and_kinds):
    return [images.encoded(pixels(1, size, seed=i)[0], kind) for i, (size, kind) in enumerate(sizes_and_kinds)]


@pytest.mark.parametrize(
    ("stored", "feature"),
    [
        ([((8, 6, 3), "png")] * 2, Feature("uint8", (8, 6, 3), "png")),
        ([((8, 6, 3), "png"), ((8, 6, 3), "jpeg")], Feature("uint8", (8, 6, 3), "any")),
        ([((8, 6, 3), "jpeg"), ((8, 7, 3), "jpeg")], Feature("uint8", (8, None, 3), "jpeg")),
        ([((8, 6, 3), "png"), ((9, 7, 1), "png")], Feature("uint8", (None, None, None), "png")),
    ],
)
def test_the_images_are_described_as_they_are(stored, feature, plan_of, pixels):
    plan = plan_of({"train": Content(encoded(pixels, *stored))})
    made = manifest_writer.make_manifest(plan, receipts_of(plan))
    assert made.features["image"] == feature
    assert manifest.load(manifest_writer.write_manifest(plan, receipts_of(plan)).parent) == made


def test_image_sizes_are_counted_and_of_very_many_rounded_up():
    exact = Counter({(i, 10): i for i in range(1, 101)})
    assert manifest_writer.size_histogram(exact) == {f"{i}x10": i for i in range(1, 101)}
    many = Counter({(i, 65): 2 for i in range(1, 129)})
    assert manifest_writer.size_histogram(many) == {"64x128": 128, "128x128": 128}


def test_a_split_of_rejects_only_is_an_error(converted, tmp_path):
    plan, receipts = converted
    emptied = [
        dataclasses.replace(each, info=dataclasses.replace(each.info, num_examples=0)) if each.split == "test" else each
        for each in receipts
    ]
    with pytest.raises(DataError, match=r"'test': .*rejects.jsonl"):
        manifest_writer.write_manifest(plan, emptied)
    assert not (tmp_path / "out" / "manifest.json").exists()
