import dataclasses
import errno
import gzip
import io
import itertools
import os
import re
import threading

import crc32c
import numpy as np
import pytest

from beam_jobs import drafts
from beam_jobs.shards import receipts, writer
from beam_jobs.shards.receipts import Reject
from pipeline import images
from pipeline.errors import DataError, UsageError
from pipeline.manifest import naming
from pipeline.read.sidecars import shard_members
from pipeline.records import framing, members
from tests.helpers.converting import write_shard
from tests.helpers.datasets import examples_in
from tests.helpers.made_source import Content
from tests.helpers.raised import said


def decoded(folder, name):
    return examples_in(folder / name)


def test_a_shard_holds_its_rows_in_their_order_and_its_receipt_tells_of_it(plan_of, pixels, tmp_path):
    stored = pixels(40)
    plan = plan_of({"train": Content(stored)}, num_shards="3", seed=2)
    for shard in range(3):
        receipt = write_shard(plan, "train", shard)
        rows, name = plan.rows("train", shard), plan.file_name("train", shard)
        examples = decoded(tmp_path / "out", name)
        assert [example["image"][0] for example in examples] == [stored[row].tobytes() for row in rows]
        assert [example["label"][0] for example in examples] == [row % 10 for row in rows]
        assert [example["key"][0] for example in examples] == [b"train.rows#%02d" % row for row in rows]
        data = (tmp_path / "out" / name).read_bytes()
        info = receipt.info
        assert (info.file, info.num_examples, info.num_bytes) == (name, len(rows), len(data))
        assert info.crc32c == f"{crc32c.crc32c(data):08x}"
        assert info.stride * info.num_examples == info.num_bytes
        crcs = np.fromfile(tmp_path / "out" / naming.crcs_name(info.file), np.uint8)
        assert info.crcs_crc32c == f"{crc32c.crc32c(crcs):08x}"
        assert np.array_equal(crcs.reshape(-1, 4), np.frombuffer(data, np.uint8).reshape(-1, info.stride)[:, -4:])
        assert receipt.label_histogram == tuple(np.bincount(rows % 10, minlength=10).tolist())
        assert receipt.formats == ("raw",)
        assert receipt.sizes == (((6, 5, 3), len(rows)),)
        assert receipt.sums.sums == stored[rows].reshape(-1, 3).sum(axis=0, dtype=int).tolist()
    assert len(list((tmp_path / "out").rglob("*"))) == 10


def test_offsets_lie_beside_a_shard_of_unequal_records(plan_of, pixels, tmp_path):
    files = [images.encoded(image, "png") for image in pixels(10, (20, 20, 3))]
    plan = plan_of({"train": Content([*files, images.encoded(np.zeros((2, 2, 3), np.uint8), "png")])})
    info = write_shard(plan, "train", 0).info
    name = plan.file_name("train", 0)
    data = (tmp_path / "out" / naming.offsets_name(name)).read_bytes()
    offsets = np.frombuffer(data, "<u8")
    assert info.stride is None
    assert info.offsets_crc32c == f"{crc32c.crc32c(data):08x}"
    assert len(offsets) == 12
    assert (offsets[0], offsets[-1]) == (0, info.num_bytes)
    whole = (tmp_path / "out" / name).read_bytes()
    lengths = [int.from_bytes(whole[offset : offset + 8], "little") for offset in offsets[:-1]]
    assert np.diff(offsets).tolist() == [length + 16 for length in lengths]


def test_a_compressed_shard_is_the_same_records(plan_of, pixels, tmp_path):
    content = {"train": Content(pixels(20) // 100)}
    plain, packed = plan_of(content, out="plain"), plan_of(content, out="packed", compression="GZIP")
    write_shard(plain, "train", 0)
    info = write_shard(packed, "train", 0).info
    data = (tmp_path / "packed" / "train-00000-of-00001.tfrecord.gz").read_bytes()
    assert gzip.decompress(data) == (tmp_path / "plain" / "train-00000-of-00001.tfrecord").read_bytes()
    assert (info.num_bytes, info.stride) == (len(data), 166)
    beside = [naming.crcs_name(info.file), naming.offsets_name(info.file)]
    found = sorted(str(path.relative_to(tmp_path / "packed")) for path in (tmp_path / "packed").rglob("*.*"))
    assert found == [*beside, info.file, receipts.name_of(info.file)]


@pytest.mark.parametrize("is_even", [True, False])
def test_members_end_at_records_and_hold_as_many_as_fit(plan_of, pixels, tmp_path, monkeypatch, is_even):
    monkeypatch.setattr(members, "MEMBER_BYTES", 1000)
    images_of = pixels(40, (6, 5, 3)) // 100
    content = {"train": Content(images_of if is_even else [images.encoded(image, "png") for image in images_of])}
    packed = [plan_of(content, out=name, compression="GZIP") for name in ("one", "two")]
    info = write_shard(packed[0], "train", 0).info
    assert info == write_shard(packed[1], "train", 0).info  # the same bytes
    path = tmp_path / "one" / info.file
    table, data = shard_members(str(tmp_path / "one"), info), path.read_bytes()
    whole = gzip.decompress(data)
    assert (table.begins is None) == is_even
    begins = table.begins_of(0, 40).tolist()
    walked = [(frame.offset, frame.end) for frame in framing.walk(io.BytesIO(whole).read)]
    assert list(itertools.pairwise(begins)) == walked
    assert len(table.firsts) > 4
    for member, (first, stop) in enumerate(itertools.pairwise(table.firsts.tolist())):
        alone = data[table.offsets[member] : table.offsets[member + 1]]
        assert gzip.decompress(alone) == whole[begins[first] : begins[stop]]
        assert alone[:8] == b"\x1f\x8b\x08\x00" + bytes(4)  # no name, no time
        size = begins[stop] - begins[first]
        assert size <= 1000 or stop == first + 1
        assert stop == 40 or begins[stop + 1] - begins[first] > 1000


def test_rejects_are_told_with_their_place_and_the_rest_is_written(plan_of, pixels, tmp_path):
    content = Content(
        pixels(30), labels=[50 if row == 3 else 1 for row in range(30)], bad={17: "no label"}, files={"a": 10, "b": 20}
    )
    plan = plan_of({"train": content}, max_rejects=1)
    receipt = write_shard(plan, "train", 0)
    assert receipt.num_rejects == 2
    assert receipt.rejects == (Reject("a", 3, "label 50 is not in 0..9"), Reject("b", 7, "no label"))
    keys = {example["key"][0] for example in decoded(tmp_path / "out", plan.file_name("train", 0))}
    assert len(keys) == receipt.info.num_examples == 28
    assert b"a#03" not in keys
    assert b"b#07" not in keys


def test_of_very_many_rejects_the_first_in_the_source_are_listed(plan_of, pixels, monkeypatch):
    monkeypatch.setattr(writer, "_MORE_REJECTS", 3)
    plan = plan_of({"train": Content(pixels(40), bad=dict.fromkeys(range(1, 40), "bad"))})
    assert [reject.row for reject in write_shard(plan, "train", 0).rejects] == [1, 2, 3]


def test_a_shard_of_rejects_only_is_an_empty_file(plan_of, pixels, tmp_path):
    plan = plan_of({"train": Content(pixels(40), bad=dict.fromkeys(range(1, 40), "bad"))}, num_shards="40")
    found = [write_shard(plan, "train", shard) for shard in range(40)]
    assert [receipt.num_rejects for receipt in found].count(1) == 39
    empty = next(receipt for receipt in found if receipt.num_rejects)
    assert (empty.info.num_examples, empty.info.num_bytes, empty.info.label_entropy) == (0, 0, None)
    assert (tmp_path / "out" / empty.info.file).read_bytes() == b""
    assert (empty.formats, empty.sizes, empty.sums.pixels) == ((), (), 0)


def test_a_kept_shard_whose_list_is_too_short_for_a_larger_bound_is_made_again(plan_of, pixels):
    content = {"train": Content(pixels(1600, (1, 1, 1)), bad=dict.fromkeys(range(10, 1600), "bad"))}
    first = write_shard(plan_of(content, max_rejects=5), "train", 0)
    assert (first.num_rejects, len(first.rejects)) == (1590, 1005)
    again = write_shard(plan_of(content, max_rejects=1590), "train", 0)
    assert len(again.rejects) == again.num_rejects == 1590


def test_a_finished_shard_is_believed_and_not_written_again(plan_of, pixels, tmp_path):
    plan = plan_of({"train": Content(pixels(20))})
    first = write_shard(plan, "train", 0)
    path = tmp_path / "out" / plan.file_name("train", 0)
    before = path.stat()
    assert write_shard(plan, "train", 0) == first
    assert (path.stat().st_mtime_ns, path.stat().st_ino) == (before.st_mtime_ns, before.st_ino)


@pytest.mark.parametrize("damage", ["shard", "receipt", "no shard", "no receipt"])
def test_a_damaged_shard_is_made_again(damage, plan_of, pixels, tmp_path):
    plan = plan_of({"train": Content(pixels(20))})
    first = write_shard(plan, "train", 0)
    path = tmp_path / "out" / plan.file_name("train", 0)
    whole, victim = path.read_bytes(), path
    if "receipt" in damage:
        victim = path.with_name(receipts.name_of(path.name))
    if damage.startswith("no"):
        victim.unlink()
    else:
        victim.write_bytes(victim.read_bytes()[:-1])
    assert write_shard(plan, "train", 0) == first
    assert path.read_bytes() == whole
    assert receipts.load_checked(tmp_path / "out", path.name, tmp_path / "out").without_columns() == first


def test_a_shard_over_the_bound_is_an_error_that_says_what_would_do(plan_of, pixels):
    draw = np.random.default_rng(0)
    small, large = (images.encoded(draw.integers(0, 256, (n, n, 3), np.uint8), "png") for n in (4, 500))
    # The sample looks at rows spread over the split, and so at none of the large ones.
    rows = set(range(100)) - set(np.linspace(0, 99, 16).astype(int).tolist())
    files = [large if row in sorted(rows)[:8] else small for row in range(100)]
    plan = plan_of({"train": Content(files)}, max_shard_bytes=2 << 20)
    with pytest.raises(UsageError) as error:  # as where the plan sees it
        write_shard(plan, "train", 0)
    found = re.fullmatch(
        r"train-00000-of-00001.tfrecord: would have ([\d,]+) bytes, over --max_shard_bytes=2097152; "
        r"give a larger one, or more --num_shards \((\d+)\)",
        str(error.value),
    )
    assert int(found[1].replace(",", "")) > 8 * 750_000
    assert int(found[2]) == 3


def test_no_sync_delays_the_next_shard(plan_of, pixels, monkeypatch):
    waiting = []
    monkeypatch.setattr(os, "fsync", lambda _: waiting.append(threading.current_thread()))
    plan = plan_of({"train": Content(pixels(20))}, num_shards="2")
    assert len(list(writer.write_shards(plan, plan.elements))) == 2
    assert len(waiting) == 4  # shards, and the CRCs of their records
    assert threading.current_thread() not in waiting


@pytest.mark.parametrize("number", [1, 2])
def test_a_shard_whose_other_file_cannot_be_written_leaves_nothing(number, plan_of, pixels, tmp_path, monkeypatch):
    calls, real = itertools.count(1), os.fsync

    def fail(descriptor):
        if next(calls) == number:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        real(descriptor)

    monkeypatch.setattr(os, "fsync", fail)
    plan = plan_of({"train": Content(pixels(20))})
    with pytest.raises(DataError, check=said("No space left on device")):
        write_shard(plan, "train", 0)
    assert not any(drafts.is_temporary(name) for name in os.listdir(tmp_path / "out"))


def test_a_source_that_fails_leaves_the_shards_before_whole(made, plan_of, pixels, tmp_path):
    plan = plan_of({"train": Content(pixels(30))}, num_shards="5")
    making_shards = writer.write_shards(dataclasses.replace(plan, source=Failing(plan.source)), plan.elements)
    assert next(making_shards).shard == 0
    with pytest.raises(RuntimeError, match="the disk is gone"):
        next(making_shards)
    assert [
        receipts.load_checked(tmp_path / "out", name, tmp_path / "out") is not None for name in plan.file_names
    ] == [
        *(True, True),  # the second one was being written when the third could not be read
        *(False, False, False),
    ]


class Failing:
    """A source that can be read twice."""

    def __init__(self, source):
        self._source, self._reads = source, 0

    def __getattr__(self, name):
        return getattr(self._source, name)

    def read(self, split, rows):
        self._reads += 1
        if self._reads > 2:
            raise RuntimeError("the disk is gone")
        return self._source.read(split, rows)
