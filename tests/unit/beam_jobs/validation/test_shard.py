"""One shard at a time: real files with real damage; each is named with its record and byte offset."""

import dataclasses
import gzip
import itertools
import os
import re

import crc32c
import numpy as np
import pytest

from beam_jobs.validation.shard import check_shard
from pipeline import manifest as manifests
from pipeline.manifest import naming
from pipeline.read.sidecars import shard_members
from pipeline.records import framing, tf_example
from tests.helpers.datasets import Kind, edit_manifest, write_dataset
from tests.helpers.datasets import write_shard as members_of
from tests.helpers.validated import KINDS, edit, examples_of, png, rewrite_shard, write

FILES = {
    "raw": "train-00001-of-00003.tfrecord",
    "png": "train-00001-of-00003.tfrecord",
    "gzip": "train-00001-of-00003.tfrecord.gz",
}


@pytest.fixture(params=KINDS)
def kind(request):
    return request.param


@pytest.fixture
def folder(kind, tmp_path):
    write(tmp_path, kind)
    return tmp_path


def check(folder, number=2, deep=False):
    """Checks the second shard of `train`; returns the lines and the report."""
    report, _ = check_shard(folder, manifests.load(folder), number, deep)
    assert report.num_problems == len(report.problems)
    return [str(problem) for problem in report.problems], report


def bounds(folder, name):
    """Returns the byte offset of each record of a shard, and of its end."""
    starts, data = [0], (folder / name).read_bytes()
    while starts[-1] < len(data):
        starts.append(starts[-1] + 16 + int.from_bytes(data[starts[-1] : starts[-1] + 8], "little"))
    return starts


@pytest.mark.parametrize("deep", [False, True])
def test_a_shard_as_it_was_written_has_no_problem(folder, deep):
    for number, records in enumerate([4, 6, 5, 7]):
        lines, report = check(folder, number, deep)
        assert lines == []
        assert (report.records, report.is_whole, sum(report.labels.values())) == (records, True, records)
        info = manifests.load(folder).shards[number]
        assert report.num_bytes == info.num_bytes == (folder / info.file).stat().st_size


@pytest.mark.parametrize("kind", ["raw", "png"], indirect=True)
@pytest.mark.quick(1)
def test_every_flipped_bit_is_found_and_its_record_named(folder, kind):
    path, starts = folder / FILES[kind], bounds(folder, FILES[kind])
    whole = path.read_bytes()
    for bit in np.random.default_rng(0).integers(0, len(whole) * 8, 400).tolist():
        damaged = bytearray(whole)
        damaged[bit // 8] ^= 1 << bit % 8
        path.write_bytes(damaged)
        record = max(number for number, start in enumerate(starts) if start <= bit // 8)
        in_length = bit // 8 - starts[record] < framing.HEADER
        lines, report = check(folder, deep=True)
        [line] = lines
        assert line.startswith(f"{path.name}, record {record}, byte offset {starts[record]}: ")
        assert ("length" in line) == in_length
        assert report.records == 5
        assert report.is_whole == in_length  # the stride or the offsets tell how long the record is


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["gzip"], indirect=True)
def test_every_flipped_bit_of_a_compressed_shard_is_found(folder, kind):
    path = folder / FILES[kind]
    whole = path.read_bytes()
    for bit in np.random.default_rng(0).integers(0, len(whole) * 8, 300).tolist():
        damaged = bytearray(whole)
        damaged[bit // 8] ^= 1 << bit % 8
        path.write_bytes(damaged)
        lines, report = check(folder, deep=True)
        assert len(lines) >= 1
        assert all(line.startswith(f"{path.name}") for line in lines)
        assert report.num_bytes == len(whole)


@pytest.mark.parametrize("kind", ["gzip"], indirect=True)
def test_a_cut_gzip_stream_names_the_record_and_its_offset_in_the_decompressed_stream(folder, kind):
    path = folder / FILES[kind]
    data = path.read_bytes()
    path.write_bytes(data[: len(data) // 2])
    lines, report = check(folder)
    assert re.fullmatch(rf"{path.name}: .*{len(data) // 2}.*{len(data)}.*", lines[-1])
    assert re.match(rf"{path.name}, record {report.records}, byte offset \d+ of the decompressed", lines[-2])
    assert not report.is_whole
    path.write_bytes(b"no gzip at all" * 9)
    assert "record 0, byte offset 0 of the decompressed" in check(folder)[0][0]


MEMBERS = Kind("png", varied=True, compression="GZIP", members=3)  # records 0 to 2, 3 to 5, ... of 11


@pytest.fixture
def packed(tmp_path):
    """A data set whose first shard of `train` has four members: its shard's path, its number, the members' offsets."""
    write_dataset(tmp_path, (11, 5), test_counts=(4,), kind=MEMBERS)
    made = manifests.load(tmp_path)
    number = next(i for i, shard in enumerate(made.shards) if shard.num_examples == 11)
    return tmp_path / made.shards[number].file, number, shard_members(str(tmp_path), made.shards[number]).offsets


def test_corrupt_members_are_named_and_the_others_are_checked(packed):
    path, number, offsets = packed
    lines, report = check(path.parent, number, deep=True)
    assert (lines, report.records, report.is_whole) == ([], 11, True)
    data = bytearray(path.read_bytes())
    for member in (1, 3):
        data[int(offsets[member]) + 30] ^= 1
    path.write_bytes(data)
    lines, report = check(path.parent, number)
    one, other = (rf"{path.name}, GZIP member at byte offset {offsets[member]}, records " for member in (1, 3))
    assert re.match(f"{one}3 to 5: ", lines[0])
    assert re.match(f"{other}9 to 10: ", lines[1])
    assert len(lines) == 2
    assert (report.records, report.is_whole, sum(report.labels.values())) == (11, False, 6)


def test_a_cut_shard_of_members_loses_those_behind_the_cut(packed):
    path, number, offsets = packed
    path.write_bytes(path.read_bytes()[: int(offsets[2]) + 7])
    lines, report = check(path.parent, number)
    assert [line.partition(": ")[0].rpartition("records ")[2] for line in lines[:2]] == ["6 to 8", "9 to 10"]
    assert lines[2] == f"{path.name}: has {int(offsets[2]) + 7:,} bytes, the manifest says {int(offsets[4]):,}"
    assert sum(report.labels.values()) == 6


def test_a_fault_inside_a_member_is_its_records(tmp_path, packed):
    path, number, _ = packed
    begins = shard_members(str(tmp_path), manifests.load(tmp_path).shards[number]).begins_of(0, 11).tolist()
    whole = gzip.decompress(path.read_bytes())
    frames = [whole[begin:end] for begin, end in itertools.pairwise(begins)]
    frames[4] = frames[4][:60] + bytes([frames[4][60] ^ 1]) + frames[4][61:]
    frames[7] = bytes([frames[7][0] ^ 1]) + frames[7][1:]  # its length
    new = dataclasses.asdict(members_of(tmp_path, path.name, frames, 3))
    edit_manifest(tmp_path, lambda content: content["splits"]["train"]["shards"][0].update(new))
    lines, report = check(tmp_path, number)
    where = [f"{path.name}, record {n}, byte offset {begins[n]} of the decompressed bytes" for n in (4, 7)]
    assert [line.partition(": ")[0] for line in lines] == where
    assert report.records == 11


def test_a_table_of_members_that_does_not_fit_is_named(packed):
    path, number, _ = packed
    beside = path.parent / naming.offsets_name(path.name)
    data = bytearray(beside.read_bytes())
    data[-16] ^= 1
    beside.write_bytes(data)
    [line] = check(path.parent, number)[0]
    assert line.startswith(f"sidecars/{beside.name}: its CRC32C is ")
    beside.unlink()
    [line] = check(path.parent, number)[0]
    assert line.startswith(f"sidecars/{beside.name}: cannot be read: No such file")


@pytest.mark.parametrize("kind", ["gzip"], indirect=True)
def test_what_lies_behind_a_gzip_stream_is_found(folder, kind):
    path = folder / FILES[kind]
    data = path.read_bytes()
    path.write_bytes(data + b"more")
    assert check(folder)[0][-1] == f"{path.name}: has {len(data) + 4:,} bytes, the manifest says {len(data):,}"


@pytest.mark.parametrize("kind", ["raw", "png"], indirect=True)
@pytest.mark.parametrize("cut", [1, 4, 20, 100])
def test_a_cut_shard_says_where_it_ends(folder, kind, cut):
    path, starts = folder / FILES[kind], bounds(folder, FILES[kind])
    size = starts[-1]
    os.truncate(path, size - cut)
    lines, report = check(folder)
    has, needs = size - cut - starts[4], size - starts[4]
    assert re.match(rf"{path.name}, record 4, byte offset {starts[4]}: .*{has} of {needs} bytes", lines[0])
    assert re.match(rf"{path.name}: .*{size - cut:,} bytes.*{size:,}", lines[1])
    assert len(lines) == 2
    assert not report.is_whole
    os.truncate(path, starts[3] + 5)
    assert re.search(rf"byte offset {starts[3]}: .*5 of 12 bytes", check(folder)[0][0])
    os.truncate(path, starts[3])
    assert check(folder)[0] == [
        f"{path.name}: has {starts[3]:,} bytes, the manifest says {size:,}",
        f"{path.name}: has 3 records, the manifest says 5",
    ]


def test_a_shard_that_is_not_there_or_no_file_is_one_problem(folder, kind):
    path = folder / FILES[kind]
    path.unlink()
    assert check(folder)[0] == [f"{path.name}: cannot be read: No such file or directory"]
    path.mkdir()
    assert check(folder)[0] == [f"{path.name}: cannot be read: Is a directory"]


@pytest.mark.parametrize("kind", ["raw"], indirect=True)
def test_swapped_shards_of_one_size_are_found_by_the_crc_of_the_whole_file(tmp_path, kind):
    write(tmp_path, kind, (5, 5))
    one, other = (tmp_path / f"train-0000{i}-of-00002.tfrecord" for i in range(2))
    one.rename(tmp_path / "kept")
    other.rename(one)
    (tmp_path / "kept").rename(other)
    for number, (name, swapped) in {1: (one.name, other.name), 2: (other.name, one.name)}.items():
        lines, _ = check(tmp_path, number)
        assert re.fullmatch(
            rf"{name}: every record is whole, but the file's CRC32C is \w{{8}}, the manifest says \w{{8}}; "
            rf"that is the CRC32C of {swapped}",
            lines[0],
        )


@pytest.mark.parametrize("kind", ["png"], indirect=True)
def test_an_offsets_file_is_checked_byte_by_byte_and_against_the_records(folder, kind):
    path = folder / naming.offsets_name(FILES[kind])
    whole = path.read_bytes()
    for position in range(len(whole)):
        damaged = bytearray(whole)
        damaged[position] ^= 1
        path.write_bytes(damaged)
        assert re.fullmatch(rf"sidecars/{path.name}: .*CRC32C.* [0-9a-f]{{8}}.* [0-9a-f]{{8}}", check(folder)[0][0])
    path.write_bytes(whole[:-1])
    assert re.fullmatch(rf"sidecars/{path.name}: .*{len(whole) - 1:,} bytes.*5 records.*48", "".join(check(folder)[0]))
    path.unlink()
    assert check(folder)[0] == [f"sidecars/{path.name}: cannot be read: No such file or directory"]


@pytest.mark.parametrize("kind", ["png"], indirect=True)
def test_offsets_with_a_right_crc_but_wrong_content_are_found(folder, kind):
    name, starts = FILES[kind], bounds(folder, FILES[kind])
    table = np.array(starts, "<u8")
    table[2:] += 1
    path = folder / naming.offsets_name(name)
    path.write_bytes(table.tobytes())
    crc = f"{crc32c.crc32c(table.tobytes()):08x}"
    edit(folder, lambda content: content["splits"]["train"]["shards"][1].update(offsets_crc32c=crc))
    assert check(folder)[0] == [
        f"sidecars/{path.name}: says that record 2 begins at byte offset {starts[2] + 1}; it is {starts[2]} "
        "(4 entries are wrong)"
    ]


@pytest.mark.parametrize("kind", ["raw"], indirect=True)
def test_records_that_do_not_keep_the_stride_are_found(folder, kind):
    name = FILES[kind]
    examples = examples_of(folder, name)
    examples[1] |= {"key": examples[1]["key"] + b"+"}
    examples[3] |= {"key": examples[3]["key"][:-1]}
    stride = manifests.load(folder).shards[2].stride
    rewrite_shard(folder, name, examples)
    edit(folder, lambda c: c["splits"]["train"]["shards"][1].update(stride=stride, offsets_crc32c=None))
    [line] = check(folder)[0]
    assert re.match(rf"{name}, record 1, byte offset {stride}: .*{stride + 1} bytes.*{stride}", line)


@pytest.mark.parametrize("kind", ["png"], indirect=True)
def test_without_a_stride_or_offsets_a_bad_length_ends_the_walk(folder, kind):
    path, starts = folder / FILES[kind], bounds(folder, FILES[kind])
    edit(folder, lambda content: content["splits"]["train"]["shards"][1].update(offsets_crc32c=None))
    assert check(folder)[0] == []
    data = bytearray(path.read_bytes())
    data[starts[1]] ^= 1
    path.write_bytes(data)
    lines, report = check(folder)
    where = f"{path.name}, record 1, byte offset {starts[1]}"
    assert lines == [f"{where}: the CRC of its length is wrong; the 3 records after it cannot be found"]
    assert report.num_bytes == len(data)


def changed(**features):
    return lambda example: example | features


def without(name):
    return lambda example: {key: value for key, value in example.items() if key != name}


@pytest.mark.parametrize(
    ("change", "text"),
    [
        (changed(label=4), r"label 4 .*0\.\.3"),
        (changed(label=-1), r"label -1 .*0\.\.3"),
        (changed(coarse=2), r"coarse 2 .*0\.\.1"),
        (changed(label=np.array([1, 1])), "'label'.* 2 .* 1"),
        (changed(label=b"1"), "'label'.* bytes.* int64"),
        (changed(label=np.array([1.0], np.float32)), "'label'.* float32.* int64"),
        (changed(box=np.array([1, 2])), "'box'.* int64.* float32"),
        (changed(image=np.array([1, 2])), "'image'.* int64.* uint8"),
        (changed(image=[b"a", b"b"]), "'image'.* 2 .* 1"),
        (changed(key=b""), "key.* empty"),
        (changed(more=1), "'more'.*not in the manifest"),
        (without("image"), "'image'.*missing"),
        (without("label"), "'label'.*missing"),
        (without("key"), "'key'.*missing"),
        (without("coarse"), "'coarse'.*missing"),
        (lambda example: b"\xff" * 30, "30 bytes"),
    ],
)
@pytest.mark.quick(6)
def test_an_example_with_right_crcs_that_is_not_as_the_manifest_says_is_named(folder, kind, change, text):
    name = FILES[kind]
    examples = examples_of(folder, name)
    examples[3] = change(examples[3])
    sizes = [16 + len(one if isinstance(one, bytes) else tf_example.encode(one)) for one in examples]
    rewrite_shard(folder, name, examples)
    [line], report = check(folder)
    assert re.match(rf"{name}, record 3, byte offset {sum(sizes[:3])}\b.*: .*{text}", line)
    assert not report.is_whole


@pytest.mark.parametrize("kind", ["raw"], indirect=True)
def test_raw_images_must_have_their_size(folder, kind):
    examples = examples_of(folder, FILES[kind])
    examples[0] |= {"image": bytes(59)}
    rewrite_shard(folder, FILES[kind], examples)
    [line], _ = check(folder)
    assert re.match(rf"{FILES[kind]}, record 0, byte offset 0: .*59 bytes.* 60 .*4x5x3", line)


@pytest.mark.parametrize("kind", ["png", "gzip"], indirect=True)
@pytest.mark.parametrize(
    ("image", "text"),
    [
        (
            lambda file: b"\x89PNG" + file[4:50],
            "the image's header is corrupt|the image cannot be decoded|the PNG file is cut short",
        ),
        (lambda file: b"hello", "no image of a known format: it begins with 0x68656c6c"),
        (lambda file: png(np.zeros((4, 6, 3), np.uint8)), "its image is 4x6x3, not [?]x5x3"),
        (lambda file: png(np.zeros((4, 5), np.uint8)), "its image is 4x5x1, not [?]x5x3"),
    ],
)
def test_images_are_decoded_by_deep_only(folder, kind, image, text):
    name = FILES[kind]
    examples = examples_of(folder, name)
    examples[2] |= {"image": image(examples[2]["image"])}
    rewrite_shard(folder, name, examples)
    assert check(folder)[0] == []
    lines, _ = check(folder, deep=True)
    assert len(lines) == 1
    assert re.match(rf"{name}, record 2, byte offset \d+[a-z ]*: ({text})", lines[0])


@pytest.mark.parametrize("kind", ["png"], indirect=True)
def test_an_image_of_another_format_is_found_by_deep(folder, kind):
    edit(folder, lambda content: content["features"]["image"].update(encoding="jpeg"))
    lines, _ = check(folder, deep=True)
    assert len(lines) == 5
    assert lines[0].endswith("record 0, byte offset 0: its image is of format PNG, the manifest says jpeg")


def test_the_entropy_of_labels_is_checked(folder, kind):
    edit(folder, lambda content: content["splits"]["train"]["shards"][1].update(label_entropy=0.5))
    assert check(folder)[0] == [f"{FILES[kind]}: the entropy of its labels is 1.9219 bits, the manifest says 0.5"]


@pytest.mark.parametrize("kind", ["raw"], indirect=True)
def test_an_empty_shard_is_fine(tmp_path, kind):
    write(tmp_path, kind, (0, 3))
    assert (tmp_path / "train-00000-of-00002.tfrecord").read_bytes() == b""
    lines, report = check(tmp_path, 1, deep=True)
    assert lines == []
    assert (report.is_whole, report.records) == (True, 0)
