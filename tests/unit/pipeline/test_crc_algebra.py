"""CRCs of concatenations against CRCs that were computed over all the bytes."""

import crc32c
import numpy as np
import pytest

from pipeline import crc_algebra, framing


@pytest.mark.parametrize("count", [1, 2, 3, 7, 100, 1024, 1025, 5000])
@pytest.mark.parametrize("size", [0, 1, 13, 3115])
def test_the_crc_of_frames_follows_from_those_they_store(count, size):
    random = np.random.default_rng(count)
    data = b"".join(framing.frame(random.bytes(size)) for _ in range(count))
    stored = np.ascontiguousarray(np.frombuffer(data, np.uint8).reshape(count, -1)[:, -4:]).view("<u4")[:, 0]
    assert crc_algebra.crc_of_frames(stored, size + 16) == crc32c.crc32c(data)


@pytest.mark.parametrize("bit", [0, 5, 95, 100, 8 * 29 - 1, 8 * 200, 8 * 435 - 1])
def test_any_flipped_bit_gives_another(bit):
    data = bytearray(b"".join(framing.frame(bytes([i] * 13)) for i in range(15)))
    data[bit // 8] ^= 1 << bit % 8
    stored = np.ascontiguousarray(np.frombuffer(data, np.uint8).reshape(15, -1)[:, -4:]).view("<u4")[:, 0]
    assert crc_algebra.crc_of_frames(stored, 29) != crc32c.crc32c(bytes(data))


@pytest.mark.parametrize("num_bytes", [1, 2, 3, 1000, 12345])
def test_a_shift_is_what_zeros_do(num_bytes):
    one, other = np.random.default_rng(0).bytes(9), np.random.default_rng(1).bytes(num_bytes)
    shifted = crc_algebra.shift(num_bytes)(np.array([crc32c.crc32c(one)], np.uint32))[0]
    assert shifted ^ crc32c.crc32c(other) == crc32c.crc32c(one + other)


def test_crcs_are_unmasked_as_they_were_masked():
    crcs = np.random.default_rng(0).integers(0, 2**32, 1000, dtype=np.uint32)
    assert np.array_equal(framing.unmask_all(framing.mask(crcs)), crcs)
