import dataclasses
import json

import pytest

from beam_jobs.shards import receipts
from beam_jobs.shards.receipts import Reject
from pipeline import images
from pipeline.manifest import naming
from tests.helpers.converting import write_shard
from tests.helpers.made_source import Content


@pytest.fixture
def written(plan_of, pixels, tmp_path):
    """A shard of files of several sizes, with two rejects: its folder, name and receipt."""
    sizes = [(6, 5, 3), (9, 9, 1), (30, 4, 3)] * 4
    files = [images.encoded(pixels(1, size, seed=i)[0], "png") for i, size in enumerate(sizes)]
    files[7], files[10] = b"no image", b""
    plan = plan_of({"train": Content(files)}, max_rejects=2)
    return tmp_path / "out", plan.file_name("train", 0), write_shard(plan, "train", 0)


def test_a_receipt_comes_back_as_it_was(written):
    folder, name, receipt = written
    stored = receipts.load(folder / receipts.name_of(name))
    assert stored.without_columns() == receipt
    assert stored.columns.keys() == {"bytes", "height", "label", "width"}
    assert receipts.load_checked(folder, name, folder) == stored
    assert type(receipts.load(folder / receipts.name_of(name)).sums) is type(receipt.sums)
    assert receipt.num_rejects == 2
    assert {reject.row for reject in receipt.rejects} == {7, 10}
    assert Reject("train.rows", 10, "no image of a known format: it is empty") in receipt.rejects
    assert dict(receipt.sizes) == {(6, 5, 3): 4, (9, 9, 1): 2, (30, 4, 3): 4}


def test_names_of_receipts():
    name = receipts.name_of("train-00000-of-00001.tfrecord")
    assert receipts.is_receipt(name)
    assert receipts.is_receipt(receipts.name_of("train-00000-of-00001.tfrecord.gz"))
    for other in ("train.receipt.json", "notes.receipt.json", name + ".x", "train-00000-of-00001.tfrecord"):
        assert not receipts.is_receipt(other)


def test_one_changed_byte_of_the_shard_or_its_offsets_is_seen(written):
    folder, name, receipt = written
    assert receipt.info.offsets_crc32c is not None
    for file in (name, *naming.sidecar_names(name)):
        whole = (folder / file).read_bytes()
        for place in (0, len(whole) // 2, len(whole) - 1):
            changed = bytearray(whole)
            changed[place] ^= 1
            (folder / file).write_bytes(changed)
            assert receipts.load_checked(folder, name, folder) is None
        for shorter_or_longer in (whole[:-1], whole + b"\0", b""):
            (folder / file).write_bytes(shorter_or_longer)
            assert receipts.load_checked(folder, name, folder) is None
        (folder / file).unlink()
        assert receipts.load_checked(folder, name, folder) is None
        (folder / file).write_bytes(whole)
    assert receipts.load_checked(folder, name, folder).without_columns() == receipt


def test_a_receipt_that_is_cut_or_of_other_content_is_none(written):
    folder, name, _ = written
    path = folder / receipts.name_of(name)
    whole = path.read_bytes()
    others = [b"[]", b"{}", b"null", b"3", b'"x"', b"\xff", b'{"split": 1}']
    for content in [*(whole[:length] for length in range(0, len(whole), 11)), *others]:
        path.write_bytes(content)
        assert receipts.load(path) is None
    path.unlink()
    assert receipts.load(path) is None


@pytest.mark.parametrize("field", ["info", "sums", "sizes", "rejects", "label_histogram", "formats"])
def test_a_field_of_another_kind_is_no_receipt_or_harmless(field, written):
    folder, name, _ = written
    path = folder / receipts.name_of(name)
    content = json.loads(path.read_text())
    for value in (None, 3, "text", [1], {"a": 1}, [[1, 2], 3]):
        path.write_text(json.dumps(content | {field: value}))
        receipts.load_checked(folder, name, folder)  # does not raise


def test_the_receipt_of_another_shard_is_not_believed(written):
    folder, name, receipt = written
    other = "train-00000-of-00002.tfrecord"
    (folder / other).write_bytes((folder / name).read_bytes())
    (folder / receipts.name_of(other)).write_bytes((folder / receipts.name_of(name)).read_bytes())
    assert receipts.load_checked(folder, other, folder) is None
    renamed = dataclasses.replace(receipt, info=dataclasses.replace(receipt.info, file=other))
    receipts.save(folder, renamed)
    for new, old in zip(naming.sidecar_names(other), naming.sidecar_names(name), strict=True):
        (folder / new).write_bytes((folder / old).read_bytes())
    assert receipts.load_checked(folder, other, folder) == renamed
