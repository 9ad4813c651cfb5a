"""Records to rows: the compiled code and NumPy's, on real Examples with real damage."""

import itertools
import pathlib
import subprocess
import sys

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from pipeline.read import frames
from pipeline.records import framing
from pipeline.records.tf_example import encode

ROOT = pathlib.Path(__file__).resolve().parents[4]
MIXED = [0, 127, 128, 999, 16_383, 16_384, 2**63 - 1]  # labels of one, two, three and nine bytes


def block_of(records):
    """Returns framed records, uint8 (bytes,), and where they begin, in a file where others come before them."""
    framed = [framing.frame(record) for record in records]
    begins = 1000 + np.cumsum([0, *map(len, framed)])
    return np.frombuffer(b"".join(framed), np.uint8).copy(), begins


def made(count, pixels, key_bytes=3, seed=0, labels=range(128)):
    """Returns images, labels, and the records of them."""
    rng = np.random.default_rng(seed)
    images, labels = rng.integers(0, 256, (count, pixels), np.uint8), [labels[i % len(labels)] for i in range(count)]
    records = [
        encode({"image": image.tobytes(), "label": label, "key": b"k" * key_bytes})
        for image, label in zip(images, labels, strict=True)
    ]
    return images, labels, records


def unpacked(block, begins, pixels, place, rows, offset=0):
    """Returns images, labels and facts about the frames; rows that nothing is written to are 7 everywhere."""
    memory = np.full(rows * pixels + 128, 7, np.uint8)
    images = memory[offset : offset + rows * pixels].reshape(rows, pixels)
    labels = np.full(rows, 7, np.int64)
    found = frames.unpack(block, begins, np.array(place, np.int64), images, labels)
    assert (memory[:offset] == 7).all()
    assert (memory[offset + rows * pixels :] == 7).all()
    return images, labels, found


def keys_of(block, found):
    return [block[begin:end].tobytes() for begin, end in found.keys.tolist()]


@pytest.mark.parametrize("pixels", [1, 15, 16, 63, 64, 65, 784, 3072])
@pytest.mark.parametrize("offset", [0, 5, 64])
@pytest.mark.parametrize("kinds", [range(128), MIXED], ids=["one byte", "mixed"])
def test_images_labels_and_keys_of_records_go_to_their_rows(engine, pixels, offset, kinds):
    for count in (1, 3, 4, 5, 11):
        images, labels, records = made(count, pixels, labels=kinds)
        block, begins = block_of(records)
        place = np.random.default_rng(1).permutation(count + 4)[:count]
        found = unpacked(block, begins, pixels, place, count + 4, offset)
        assert np.array_equal(found[0][place], images)
        assert found[1][place].tolist() == labels
        assert (np.delete(found[0], place, axis=0) == 7).all()
        assert found[2].problems.tolist() == [0] * count
        assert found[2].crcs.tolist() == [framing.masked_crc32c(record) for record in records]
        assert keys_of(block, found[2]) == [b"kkk"] * count


@pytest.mark.parametrize("lengths", [(0, 1, 2), (100, 130, 127, 128), (40_000, 0), (5,)])
def test_records_of_any_length_are_read_together(engine, lengths):
    rng = np.random.default_rng(0)
    features = [
        {"image": rng.bytes(300), "label": MIXED[i % len(MIXED)], "key": rng.bytes(size)}
        for i, size in enumerate(lengths * 5)
    ]
    block, begins = block_of(encode(each) for each in features)
    images, labels, found = unpacked(block, begins, 300, range(len(features)), len(features))
    assert not found.problems.any()
    assert [image.tobytes() for image in images] == [each["image"] for each in features]
    assert labels.tolist() == [each["label"] for each in features]
    assert keys_of(block, found) == [each["key"] for each in features]


@pytest.mark.quick(1)
def test_every_flipped_bit_is_found_in_its_record(engine):
    _, _, records = made(7, 40, labels=MIXED)
    block, begins = block_of(records)
    places = begins - begins[0]
    for bit in range(len(block) * 8):
        record = int(np.searchsorted(places, bit // 8, "right")) - 1
        damaged = block.copy()
        damaged[bit // 8] ^= 1 << bit % 8
        problems = unpacked(damaged, begins, 40, range(7), 7)[2].problems
        in_header = bit // 8 - places[record] < framing.HEADER
        expected = frames.BAD_LENGTH if in_header else frames.BAD_RECORD
        assert problems[record] & (frames.BAD_LENGTH | frames.BAD_RECORD) == expected, bit
        assert not np.delete(problems, record).any()


IMAGE = b"i" * 40
GOOD = encode({"image": IMAGE, "label": 300, "key": b"kk"})


def changed(old, new):
    assert GOOD.count(old) == 1
    return GOOD.replace(old, new)


@pytest.mark.parametrize(
    "record",
    [
        b"",
        b"\n",
        b"\xff" * 60,
        GOOD[:-1],
        GOOD + b"\x00",
        encode({"image": IMAGE + b"i", "label": 3, "key": b"kk"}),
        encode({"image": IMAGE[:-1], "label": 3, "key": b"kk"}),
        encode({"image": IMAGE, "label": -1, "key": b"kk"}),
        encode({"image": IMAGE, "label": np.array([1, 2]), "key": b"kk"}),
        encode({"image": IMAGE, "label": np.array([], np.int64), "key": b"kk"}),
        encode({"image": IMAGE, "label": 3, "key": [b"k", b"k"]}),
        encode({"image": IMAGE, "label": 3, "kez": b"kk"}),
        encode({"image": IMAGE, "label": 3, "key": b"kk", "more": 1}),
        encode({"image": IMAGE, "label": 3, "kez": b"kk", "key": b"kk"}),
        encode({"image": IMAGE, "label": 3}),
        encode({"image": IMAGE, "label": 3.0, "key": b"kk"}),
        changed(b"\xac\x02", b"\xac\x82"),  # the label's last byte says that another one follows
        changed(b"\xac\x02", b"\x2c\x02"),  # two labels of one byte
        changed(b"\n\x02\xac", b"\n\x03\xac"),  # lengths that are wrong
        changed(b"\x12\x06\x1a", b"\x12\x05\x1a"),
        changed(b"\x28" + IMAGE, b"\x27" + IMAGE),
        changed(b"\x28" + IMAGE, b"\xa8\x00" + IMAGE[1:]),  # two bytes where one is enough
        changed(b"\x28" + IMAGE, b"\xff" * 9 + b"\x01" + IMAGE[9:]),
        b"\n" + b"\xff" * 9 + b"\x01" + GOOD[11:],
    ],
)
def test_whole_records_of_another_layout_are_named_and_leave_their_rows(engine, record):
    _, _, records = made(5, 40, labels=MIXED)
    records[3] = record
    block, begins = block_of(records)
    images, labels, found = unpacked(block, begins, 40, range(5), 5)
    assert found.problems.tolist() == [0, 0, 0, frames.OTHER_LAYOUT, 0]
    assert (set(images[3].tolist()), labels[3], found.keys[3].tolist()) == ({7}, 7, [0, 0])


def test_frames_that_are_too_short_are_named(engine):
    _, _, records = made(2, 40)
    block, begins = block_of(records)
    short = np.sort(np.concatenate([begins, begins[1] + [0, 1, 15]]))
    found = unpacked(block, short, 40, range(5), 5)[2]
    assert found.problems.tolist()[:4] == [0, frames.BAD_LENGTH, frames.BAD_LENGTH, frames.BAD_LENGTH]
    assert found.problems[4] & frames.BAD_LENGTH
    assert found.crcs[1:4].tolist() == [0, 0, 0]
    assert frames.check(block, short)[0].tolist() == (found.problems & 3).tolist()


@given(st.data())
def test_both_do_the_same(compiled, data):
    count, pixels = data.draw(st.integers(0, 20)), data.draw(st.integers(1, 200))
    labels = data.draw(st.lists(st.sampled_from(MIXED), min_size=1, max_size=5))
    lengths = data.draw(st.lists(st.integers(0, 140), min_size=1, max_size=3))
    records = [made(i + 1, pixels, lengths[i % len(lengths)], 0, labels)[2][i] for i in range(count)]
    block, begins = block_of(records)
    for at in data.draw(st.lists(st.integers(0, max(0, block.size - 1)), max_size=5)) if count else []:
        block[at] ^= data.draw(st.integers(1, 255))
    for at in data.draw(st.lists(st.integers(0, count), max_size=2)):
        low, high = begins[max(0, at - 1)], begins[min(count, at + 1)]
        begins[at] = data.draw(st.integers(int(low), int(high)))
    rows = count + data.draw(st.integers(1, 5))
    place = data.draw(st.permutations(range(rows)))[:count]

    def everything():
        images, labels, found = unpacked(block, begins, pixels, place, rows)
        arrays = images, labels, found.problems, found.crcs, *frames.check(block, begins)
        return [array.tolist() for array in arrays], keys_of(block, found)

    one = everything()
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(frames, "_unpack", None)
        assert everything() == one


def zeros(*shape):
    return np.zeros(shape, np.uint8)


@pytest.mark.parametrize(
    ("what", "place", "images", "shift"),
    [
        ("row_of: ", [0, 1, 5], zeros(5, 40), [0, 0, 0, 0]),
        ("row_of: ", [0, -1, 2], zeros(5, 40), [0, 0, 0, 0]),
        ("row_of: ", [0, 1], zeros(5, 40), [0, 0, 0, 0]),
        ("begins: ", [0, 1, 2], zeros(5, 40), [0, 0, 0, 1]),
        ("begins: ", [0, 1, 2], zeros(5, 40), [0, 500, 0, 0]),
        ("begins: ", [0, 1, 2], zeros(5, 40), [-2000, -2000, -2000, -2000]),
        ("begins: ", [0, 1, 2], zeros(5, 40), [-(2**63) + 1, 0, 0, 2**62]),
    ],
)
def test_what_does_not_fit_is_refused_before_anything_is_written(engine, what, place, images, shift):
    block, begins = block_of(made(3, 40)[2])
    with pytest.raises(ValueError, match=what):
        frames.unpack(block, begins + shift, np.array(place), images, np.zeros(5, np.int64))
    assert not images.any()


def test_arrays_that_overlap_or_are_not_aligned_are_refused(compiled):
    block, begins = block_of(made(3, 40)[2])
    images, labels, place = zeros(5, 40), np.zeros(5, np.int64), np.arange(3)
    with pytest.raises(ValueError, match="overlap"):
        frames.unpack(block, begins, labels[:3], images, labels)
    with pytest.raises(ValueError, match="overlap"):
        frames.unpack(block, begins, place, block[: 5 * 40].reshape(5, 40), labels)
    with pytest.raises(ValueError, match="aligned"):
        frames.unpack(block, begins, place, images, zeros(41)[1:].view(np.int64))
    crooked = zeros(begins.nbytes + 1)[1:].view(np.int64)
    crooked[:] = begins
    with pytest.raises(ValueError, match="aligned"):
        frames.check(block, crooked)


@pytest.mark.parametrize("begins", [[-1, 100], [0, 100], [2**63 - 1, 0]])
def test_a_read_of_places_that_do_not_fit_is_refused(compiled, tmp_path, begins):
    block, _ = block_of(made(2, 40)[2])
    (tmp_path / "shard").write_bytes(block.tobytes())
    memory, problems, crcs = zeros(len(block)), zeros(2), np.zeros(2, np.uint32)
    for places in itertools.permutations([0, 50, len(block) + 1]):
        with (tmp_path / "shard").open("rb") as file, pytest.raises(ValueError, match="places|begins"):
            frames._unpack.read(file.fileno(), np.array(begins), np.array(places), memory, problems, crcs)


def test_without_the_compiled_module_numpy_is_used():
    hidden = "import sys; sys.modules['pipeline.read._unpack'] = None"
    code = f"{hidden}\nfrom pipeline.read import frames; print(frames.is_compiled())"
    found = subprocess.run(
        [sys.executable, "-c", code],
        check=True,
        capture_output=True,
        text=True,
    )
    assert (found.stdout.strip(), found.stderr) == ("False", "")
