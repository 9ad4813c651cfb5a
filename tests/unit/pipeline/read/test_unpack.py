"""Records to rows: the compiled code and NumPy's, on real Examples with real damage."""

import dataclasses
import os
import pathlib
import subprocess
import sys

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from pipeline.read import frames
from pipeline.records import framing
from pipeline.records.tf_example import Layout, encode

ROOT = pathlib.Path(__file__).resolve().parents[4]


def framed(count, pixels, key_bytes=3, seed=0):
    """Returns images, labels and the framed records of them, uint8 (count, stride)."""
    rng = np.random.default_rng(seed)
    images, labels = rng.integers(0, 256, (count, pixels), np.uint8), rng.integers(0, 128, count)
    records = [
        framing.frame(encode({"image": image.tobytes(), "label": int(label), "key": b"k" * key_bytes}))
        for image, label in zip(images, labels, strict=True)
    ]
    return images, labels, np.frombuffer(b"".join(records), np.uint8).reshape(count, -1).copy()


def unpacked(block, pixels, place, rows, offset=0):
    """Returns images, labels and problems; rows that nothing is put into are 7 everywhere."""
    layout = Layout.fit(block.shape[1] - framing.HEADER - framing.FOOTER, pixels)
    memory = np.full(rows * pixels + 128, 7, np.uint8)
    images = memory[offset : offset + rows * pixels].reshape(rows, pixels)
    labels = np.full(rows, 7, np.int64)
    problems = frames.unpack(block, layout, place, images, labels)
    assert (memory[:offset] == 7).all()
    assert (memory[offset + rows * pixels :] == 7).all()
    return images, labels, problems


@pytest.mark.parametrize("pixels", [1, 15, 16, 63, 64, 65, 784, 3072])
@pytest.mark.parametrize("offset", [0, 5, 64])
def test_images_and_labels_go_to_their_rows(engine, pixels, offset):
    for count in (1, 3, 4, 5, 11):
        images, labels, block = framed(count, pixels)
        place = np.random.default_rng(1).permutation(count + 4)[:count]
        found = unpacked(block, pixels, place, count + 4, offset)
        assert np.array_equal(found[0][place], images)
        assert np.array_equal(found[1][place], labels)
        assert (np.delete(found[0], place, axis=0) == 7).all()
        assert (found[2].dtype, found[2].tolist()) == (np.uint8, [0] * count)


def test_every_flipped_bit_is_found_in_its_record(engine):
    _, _, block = framed(6, 40)
    stride = block.shape[1]
    for bit in range(stride * 8):
        record = bit % 6
        damaged = block.copy()
        damaged[record, bit // 8] ^= 1 << bit % 8
        problems = unpacked(damaged, 40, np.arange(6), 6)[2]
        expected = frames.BAD_LENGTH if bit // 8 < framing.HEADER else frames.BAD_RECORD
        assert problems[record] & (frames.BAD_LENGTH | frames.BAD_RECORD) == expected, bit
        assert not np.delete(problems, record).any()


def test_whole_records_of_another_layout_are_named(engine):
    _, _, block = framed(5, 40, key_bytes=3)
    long_label = framing.frame(
        encode({"image": b"i" * 40, "label": 200, "key": b"kk"})
    )  # a byte more of label, a byte less of key
    block[3] = np.frombuffer(long_label, np.uint8)
    problems = unpacked(block, 40, np.arange(5), 5)[2]
    assert problems.tolist() == [0, 0, 0, frames.OTHER_LAYOUT, 0]


@given(st.data())
def test_both_do_the_same(compiled, data):
    count, pixels, key_bytes = (data.draw(st.integers(*bounds)) for bounds in ((0, 20), (1, 200), (0, 140)))
    _, _, block = framed(count + 1, pixels, key_bytes, data.draw(st.integers(0, 99)))
    block = block[:count]
    for at in data.draw(st.lists(st.integers(0, max(0, block.size - 1)), max_size=5)) if count else []:
        block.reshape(-1)[at] ^= data.draw(st.integers(1, 255))
    rows = count + data.draw(st.integers(1, 5))
    place = np.array(data.draw(st.permutations(range(rows))), np.int64)[:count]
    compiled = unpacked(block, pixels, place, rows)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(frames, "_unpack", None)
        for one, other in zip(compiled, unpacked(block, pixels, place, rows), strict=True):
            assert np.array_equal(one, other)


def zeros(*shape):
    return np.zeros(shape, np.uint8)


@pytest.mark.parametrize(
    ("what", "place", "images", "image"),
    [
        ("row_of: ", [0, 1, 5], zeros(5, 40), 0),
        ("row_of: ", [0, -1, 2], zeros(5, 40), 0),
        ("block: ", [0, 1], zeros(5, 40), 0),
        ("images: ", [0, 1, 2], zeros(5, 39), 0),
        ("images: ", [0, 1, 2], zeros(5, 43), 0),
        ("images: ", [0, 1, 2], zeros(6, 40), 0),
        ("image: ", [0, 1, 2], zeros(5, 40), 100),
    ],
)
def test_what_does_not_fit_is_refused_before_anything_is_written(compiled, what, place, images, image):
    _, _, block = framed(3, 40)
    layout = Layout.fit(block.shape[1] - framing.HEADER - framing.FOOTER, 40)
    layout = dataclasses.replace(layout, image=slice(first := image or layout.image.start, first + 40))
    with pytest.raises(ValueError, match=what):
        frames.unpack(block, layout, np.array(place), images, np.zeros(5, np.int64))
    assert not images.any()


def test_without_the_compiled_module_numpy_is_used():
    hidden = "import sys; sys.modules['pipeline.read._unpack'] = None"
    code = f"{hidden}\nfrom pipeline.read import frames; print(frames.is_compiled())"
    found = subprocess.run(
        [sys.executable, "-c", code],
        check=True,
        env={**os.environ, "PYTHONPATH": str(ROOT)},
        capture_output=True,
        text=True,
    )
    assert (found.stdout.strip(), found.stderr) == ("False", "")
