"""Cases for the compiled code, drawn at random: arguments that fit together, and such that almost do.

A new operation needs a line in `OPERATIONS`: a function that draws inputs which it accepts, most of the time.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import numpy as np

from pipeline.augmentation.passes import Pass
from pipeline.records import framing, tf_example
from tests.kernels.calls import DTYPES, Alias, Array, Buffer, Case, OpenedFile, Tensor

Random = np.random.Generator
EXTREMES = (0, 1, -1, 2, 63, 64, 65, 2**31 - 1, -(2**31), 2**32, 2**62, 2**63 - 1, -(2**63))
LABELS = (0, 1, 127, 128, 999, 16_383, 16_384, 2**63 - 1, -1)


def pick(rng: Random, values: Any) -> Any:
    return values[int(rng.integers(len(values)))]


def is_rare(rng: Random, one_of: int = 4) -> bool:
    return int(rng.integers(one_of)) == 0


# ---- records ----


def _records(rng: Random, pixels: int) -> list[bytes]:
    """Returns records, most of them Examples with images of the given numbers of bytes."""
    found = []
    for _ in range(int(rng.integers(0, 12))):
        size = pixels + int(pick(rng, (-1, 1))) if is_rare(rng, 10) else pixels
        features: dict[str, Any] = {"image": rng.bytes(max(0, size)), "label": int(pick(rng, LABELS))}
        features["key"] = rng.bytes(int(pick(rng, (0, 1, 5, 5, 5, 127, 128, 300))))
        if is_rare(rng, 12):
            features[str(pick(rng, ("a", "z", "image")))] = pick(rng, (1, b"more", [b"a", b"b"]))
        record = tf_example.encode(features)
        if is_rare(rng, 8):
            record = (
                rng.bytes(int(rng.integers(0, 40))) if is_rare(rng) else record[: int(rng.integers(len(record) + 1))]
            )
        elif is_rare(rng, 6):  # with the right CRC
            at = int(rng.integers(min(60, len(record)))) if is_rare(rng, 2) else -1 - int(rng.integers(30))
            at %= len(record)
            record = record[:at] + bytes([int(pick(rng, (0, 1, 9, 10, 127, 128, 255)))]) + record[at + 1 :]
        elif is_rare(rng, 8):
            record = _ended_early(record, int(rng.integers(len(record))))
        found.append(record)
    return found


def _ended_early(record: bytes, size: int) -> bytes:
    """Returns an Example whose features are cut to `size` bytes, with unchanged lengths inside; else the record."""
    start = 1 + next((i for i, byte in enumerate(record[1:], 1) if byte < 128), 0)
    features, length = record[start : start + size], size
    head = b"\n"
    while length > 127:
        head, length = head + bytes([length & 127 | 128]), length >> 7
    return head + bytes([length]) + features if len(features) == size else record


def _frames(rng: Random, pixels: int) -> tuple[Array, Array]:
    """Returns contiguous frames, and the start of each; some are damaged."""
    framed = [framing.frame(record) for record in _records(rng, pixels)]
    block, begins = np.frombuffer(b"".join(framed), np.uint8).copy(), np.cumsum([0, *map(len, framed)])
    for _ in range(int(rng.integers(4)) if len(block) and is_rare(rng, 2) else 0):
        block[int(rng.integers(len(block)))] ^= 1 << int(rng.integers(8))
    if is_rare(rng, 3):
        begins = np.sort(rng.integers(0, len(block) + 1, len(begins))) if is_rare(rng) else _moved(rng, begins)
    return block, begins.astype(np.int64)


def _moved(rng: Random, begins: Array) -> Array:
    at = int(rng.integers(len(begins)))
    low, high = begins[max(0, at - 1)], begins[min(len(begins) - 1, at + 1)]
    begins[at] = int(rng.integers(low, high + 1))
    return begins


def _unpack(rng: Random) -> list[Array]:
    pixels = int(pick(rng, (1, 15, 16, 63, 64, 65, 200, 784)))
    block, begins = _frames(rng, pixels)
    count = len(begins) - 1
    rows = count + int(rng.integers(1, 4))
    results = [np.full((rows, pixels), 7, np.uint8), np.full(rows, 7, np.int64), np.zeros((count, 2), np.int64)]
    results += [np.zeros(count, np.uint8), np.zeros(count, np.uint32)]
    first = int(pick(rng, (0, 0, 5, 2**40)))
    return [block[: int(begins[-1] - begins[0])], begins + first, rng.permutation(rows)[:count], *results]


def _check(rng: Random) -> list[Array]:
    block, begins = _frames(rng, int(pick(rng, (1, 64, 800, 13_000))))
    count = len(begins) - 1
    return [block, begins, np.zeros(count, np.uint8), np.zeros(count, np.uint32)]


def check_of(rng: Random, size: int) -> Case:
    """Returns a call of `check` with whole records of about the given number of bytes."""
    framed = [framing.frame(rng.bytes(size + i)) for i in range(9)]
    begins = np.cumsum([0, *map(len, framed)])
    arguments = (Buffer(b"".join(framed)), Buffer.of(begins), Buffer(bytes(9)), Buffer(bytes(36)))
    return Case("check", arguments)


def _read(rng: Random) -> list[Array]:
    """The first array is the content of the file."""
    block, begins = _frames(rng, int(pick(rng, (1, 64, 800))))
    count, chosen = len(begins) - 1, np.arange(len(begins) - 1)
    if is_rare(rng, 2):
        chosen = rng.permutation(count)
    sizes = np.diff(begins)[chosen]
    places = np.concatenate([np.zeros(1, np.int64), np.cumsum(sizes)])
    if is_rare(rng, 5):
        block = block[: int(rng.integers(len(block) + 1))]
    memory = np.zeros(int(places[-1]), np.uint8)
    return [block, begins[:-1][chosen], places, memory, np.zeros(count, np.uint8), np.zeros(count, np.uint32)]


def _interleave(rng: Random) -> list[Array]:
    shape = [int(pick(rng, sizes)) for sizes in ((0, 1, 2, 5), (0, 1, 2, 7), (0, 1, 15, 16, 17, 40, 64, 100))]
    count, before, plane = shape
    planes = rng.integers(0, 256, (count, before + 3 * plane)).astype(np.uint8)
    return [np.array(shape), planes, np.full((count, 3 * plane), 7, np.uint8)]


def _sum(rng: Random) -> list[Array]:
    size = int(pick(rng, (0, 1, 47, 48, 49, 257 * 48 - 1, 257 * 48, 258 * 48 + 5, 40_000)))
    values = rng.integers(int(pick(rng, (0, 255))), 256, size).astype(np.uint8)
    return [values, np.full((2, 48), 7)]


FUNCTIONS: dict[str, Callable[[Random], list[Array]]] = {
    "unpack": _unpack,
    "check": _check,
    "read": _read,
    "interleave": _interleave,
    "sum": _sum,
}


def call(rng: Random, name: str) -> Case:
    """Returns a call of a function of `_unpack`, whose arguments often do not fit."""
    arrays = FUNCTIONS[name](rng)
    arguments: list[Any] = [Buffer.of(array, _offset(rng, array)) for array in arrays]
    for _ in range(int(rng.integers(1, 3)) if is_rare(rng, 2) else 0):
        i = int(rng.integers(len(arrays)))
        arguments[i] = _spoiled(rng, arrays, i, 1 if name == "read" else 0)
    if name == "read":
        arguments[0] = OpenedFile(arrays[0].tobytes())
    return Case(name, tuple(arguments))


def _offset(rng: Random, array: Array) -> int:
    return int(rng.integers(64)) if array.itemsize == 1 else array.itemsize * int(rng.integers(64 // array.itemsize))


def _spoiled(rng: Random, arrays: list[Array], i: int, first: int) -> Buffer | Alias:
    """Returns an argument to replace a valid one; arguments from `first` on are buffers."""
    array, way, sizes = arrays[i].copy(), int(rng.integers(5)), [each.nbytes for each in arrays]
    if way == 0 and i > first:  # a part of the memory of an argument before it
        of = int(rng.integers(first, i))
        size = min(sizes[i], sizes[of])
        return Alias(of, int(rng.integers(sizes[of] - size + 1)), size)
    if way == 1:  # not aligned
        return Buffer.of(array, int(rng.integers(1, 64)))
    if way == 2:  # longer or shorter
        change = int(pick(rng, (-array.itemsize, array.itemsize, -1, 1, -sizes[i], 8, -8)))
        return Buffer((array.tobytes() + rng.bytes(8))[: max(0, sizes[i] + change)], _offset(rng, array))
    if array.size and array.dtype == np.int64:  # other numbers
        near = (int(array.max()) + 1, int(array.max()), int(array.min()) - 1, sizes[0] + 1, *(a.size for a in arrays))
        for _ in range(int(rng.integers(1, 3))):
            array.reshape(-1)[int(rng.integers(array.size))] = _wrapped(int(pick(rng, EXTREMES + near)))
    return Buffer.of(array, _offset(rng, array))


def _wrapped(number: int) -> int:
    return (number + 2**63) % 2**64 - 2**63


# ---- operations ----


def _crops(rng: Random) -> list[Array]:
    count, height, width = (int(rng.integers(0, 7)) for _ in range(3))
    width *= int(pick(rng, (1, 3, 40)))
    crops = int(rng.integers(0, 7)) if count else 0
    size = np.array([int(rng.integers(0, 9)), int(rng.integers(0, 2 * width + 3))])
    if is_rare(rng, 10):
        size[int(rng.integers(2))] = int(pick(rng, (0, 2**31 - 1)))
    places = [
        np.array([pick(rng, EXTREMES) if is_rare(rng, 8) else rng.integers(-3, most + 3) for _ in range(crops)], object)
        for most in (height, width)
    ]
    images = rng.integers(0, 256, (count, height, width))
    return [images, rng.integers(0, max(1, count), crops), *(_fitting(place, np.int32) for place in places), size]


def _fitting(numbers: Array, dtype: Any) -> Array:
    """Returns numbers as a type has them, of others the closest."""
    limits = np.iinfo(dtype)
    return np.array([min(max(int(number), limits.min), limits.max) for number in numbers], dtype)


def _copies(rng: Random) -> list[Array]:
    memory = rng.integers(0, 256, pick(rng, ((0,), (1,), (100,), (3, 40), (2, 0, 5), ())))
    shape = pick(rng, ((0,), (1,), (5,), (2, 3), (), (3, 0), (1, 1, 1, 1, 1, 1, 1, 2)))
    return [memory, np.sort(rng.integers(0, memory.size + 1, (*shape, 2)), axis=-1)]


_OF_BYTES = ("crop", "flip", "move", "recolour", "resize", "cover", "noise", "augment")
_OF_FLOATS, _COLOURED = ("flip", "cover"), ("recolour", "augment")


def _pass(rng: Random, kind: str, rows: int, size: list[int]) -> tuple[list[int], list[Array]]:
    """Returns the numbers and the parameters of a pass that fits images of this (height, width, channels).

    `size` becomes that of the result.
    """
    height, width, channels = size
    drawn = lambda low, high, *shape: rng.integers(low, high, shape or None)  # noqa: E731
    if kind == "crop":
        padding = int(drawn(0, 4))
        size[:2] = (int(drawn(1, n + 2 * padding + 1)) for n in (height, width))
        corners = [drawn(0, n + 2 * padding - crop + 1, rows) for n, crop in zip((height, width), size, strict=False)]
        return [padding, *size[:2]], corners
    if kind == "move":
        return [int(drawn(0, 256))], [drawn(-(2**31), 2**31, rows, 2 * (height + width)) >> int(drawn(0, 20))]
    if kind == "recolour":
        return [], [drawn(-(2**18), 2**18, rows, channels**2), _halves(rng.uniform(-2, 2, rows)).reshape(rows, 2)]
    if kind == "resize":
        size[:2] = (int(drawn(1, 10)) for _ in range(2))
        tables = [_weights(rng, *pair) for pair in zip((height, width), size, strict=False)]
        return [*size[:2], *(len(table[0]) - 1 for table in tables), *(n for table in tables for n in table.flat)], []
    if kind == "cover":
        return [*drawn(0, 12, 2), *drawn(0, 256, channels)], [drawn(-20, 20, rows, 2)]
    if kind == "noise":
        ends = [np.sort(drawn(0, n + 1, rows, 2), axis=1) for n in (height, width)]
        places = [ends[0][:, 0], ends[1][:, 0], *(np.diff(each)[:, 0] for each in ends)]
        return [], [*places, drawn(-(2**31), 2**31, rows, 2)]
    if kind == "augment":
        ways = [[*drawn(0, 2**17, 1), *_halves(rng.uniform(-1, 1, 1)), *drawn(-9999, 9999, 10)] for _ in range(2)]
        places = drawn(-(2**31), 2**31, 20 * (height + width)) >> int(drawn(0, 20))
        return [*drawn(0, 256, 3), *(n for way in ways for n in way), *places], [drawn(0, 28, rows)]
    if kind == "normalise":
        return rng.uniform(-2, 2, 2 * channels).astype(np.float32).view(np.int32).tolist(), []
    if kind == "mix":
        shares = rng.uniform(0, 1, rows).astype(np.float32) * drawn(0, 2, rows)
        return [], [
            drawn(-20, 20, rows, 4),
            np.rint(shares * 2**16).astype(np.int64),
            _halves(shares.astype(np.float32)),
        ]
    return [], [drawn(0, 2, rows)]  # flip


def _halves(numbers: Array) -> Array:
    return numbers.view(np.int32)


def _weights(rng: Random, before: int, after: int) -> Array:
    taps = int(rng.integers(1, before + 1))
    weights = rng.integers(0, (1 << 12) // taps + 1, (after, taps))
    return np.column_stack([np.sort(rng.integers(0, before - taps + 1, after)), weights])


def _augmented(rng: Random, floats: bool) -> list[Array]:
    rows, size = int(rng.integers(0, 5)), [*rng.integers(1, 12, 2).tolist(), int(pick(rng, (1, 3, 3, 4)))]
    images = rng.integers(0, 256, (rows, *size)) >> int(rng.integers(0, 8))
    kinds = [str(pick(rng, _OF_BYTES)) for _ in range(int(rng.integers(0, 5)))]
    if floats:
        kinds += ["normalise", *(str(pick(rng, _OF_FLOATS)) for _ in range(int(rng.integers(0, 3))))]
    if is_rare(rng, 2):
        kinds.append("mix")
        images = images[: rows - rows % 2] if not is_rare(rng, 10) else images
        rows = len(images)
    program, columns = [], [np.zeros((rows, 0), np.int64)]
    for kind in kinds:
        if kind not in _COLOURED or size[2] in (1, 3):
            numbers, parameters = _pass(rng, kind, rows, size)
            program += Pass(kind, numbers).coded()
            columns += [column if column.ndim == 2 else column[:, None] for column in parameters]
    return [images, np.array(program, np.int64), np.concatenate(columns, axis=1)]


def _resized(rng: Random) -> list[Array]:
    shape = [int(pick(rng, (1, 2, 3, 7, 40))) for _ in range(2)]
    corner = rng.integers(0, shape)
    sides = np.array(shape) - corner
    part = np.concatenate([corner, sides if is_rare(rng, 2) else rng.integers(1, sides + 1)])
    image = rng.integers(0, 256, (*shape, int(pick(rng, (1, 2, 3, 3)))))
    return [image, part, rng.integers(1, 60, 2), np.array(is_rare(rng, 2))]


def _turned(rng: Random) -> list[Array]:
    image, part, *_ = _resized(rng)
    return [image, part, np.array(int(rng.integers(0, 10)) if is_rare(rng, 4) else int(rng.integers(1, 9)))]


def _examples(rng: Random) -> list[Array]:
    """Returns serialized Examples, such as are cut or changed, too."""
    records = np.empty(int(rng.integers(0, 5)), object)
    for i in range(len(records)):
        entries = [_entry(rng, str(pick(rng, ("image", "label", "key", "")))) for _ in range(3)]
        record = _field(1, b"".join([_entry(rng, "image"), _entry(rng, "label"), *entries[: int(rng.integers(0, 4))]]))
        if is_rare(rng, 3):
            place = int(rng.integers(len(record)))
            record = record[:place] + (
                bytes([int(rng.integers(256))]) + record[place + 1 :] if is_rare(rng, 2) else b""
            )
        records[i] = record
    names = np.empty(2, object)  # of the image and the label; such as are in no record, too
    names[:] = [name.encode() for name in pick(rng, (("image", "label"), ("key", "label"), ("", "label"), ("a", "b")))]
    return [records, names]


def _entry(rng: Random, name: str) -> bytes:
    if name == "label":
        digits = [int(n) | 128 for n in rng.integers(0, 128, int(pick(rng, (0, 0, 1, 9, 10))))]
        return _field(1, _field(1, name.encode()) + _field(2, _field(3, _field(1, bytes([*digits, 1])))))
    return _field(1, _field(1, name.encode()) + _field(2, _field(1, _field(1, rng.bytes(int(rng.integers(0, 40)))))))


def _field(number: int, content: bytes) -> bytes:
    size = len(content)
    return bytes([number << 3 | 2, *([size & 127 | 128, size >> 7] if size > 127 else [size])]) + content


def _parts(rng: Random) -> list[Array]:
    strings, bounds = _bounded([rng.bytes(int(rng.integers(0, 60))) for _ in range(int(rng.integers(1, 5)))], rng)
    row = int(rng.integers(len(strings)))
    if is_rare(rng, 8):  # the last part that lies in the string, or the first that does not
        bounds[row, 1] = len(strings[row]) + int(rng.integers(2))
    return [strings, bounds, np.array(row)]


def _bounded(files: list[bytes], rng: Random) -> list[Array]:
    """Returns strings that have files in their middle, and where these are."""
    before, after = ([rng.bytes(int(n)) for n in rng.integers(0, 20, len(files))] for _ in range(2))
    strings = np.empty(len(files), object)
    strings[:] = [b"".join(parts) for parts in zip(before, files, after, strict=True)]
    begins = np.array([len(part) for part in before], np.int64)
    return [strings, np.stack([begins, begins + [len(file) for file in files]], axis=1).reshape(-1, 2)]


def _jpegs(rng: Random) -> list[Array]:
    """Returns headers of JPEG files, such as end too early, too."""
    files = np.empty(int(rng.integers(0, 5)), object)
    for i in range(len(files)):
        markers = [int(pick(rng, (0xC0, 0xC2, 0xC4, 0xD0, 0xDA, 0xE0, 0xE1, 0xFE, 1, 0))) for _ in range(4)]
        parts = [b"\xff" * int(rng.integers(1, 3)) + bytes([marker]) + _segment(rng) for marker in markers]
        whole = b"\xff\xd8" + b"".join(parts)
        files[i] = whole[: int(rng.integers(len(whole) + 1))] if is_rare(rng, 2) else whole
    return _bounded(list(files), rng)


def _segment(rng: Random) -> bytes:
    size = int(pick(rng, (0, 1, 5, 6, 7, 20, 200)))
    length = int(pick(rng, (0, 1, 65_535))) if is_rare(rng, 8) else size + 2
    return length.to_bytes(2, "big") + rng.bytes(size)


OPERATIONS: dict[str, tuple[Callable[[Random], list[Array]], str]] = {
    "StepfeedResize": (_resized, "uint8"),
    "StepfeedTurn": (_turned, "uint8"),
    "StepfeedJpegSizes": (_jpegs, "int32"),
    "StepfeedFindFeatures": (_examples, "int64"),
    "StepfeedPart": (_parts, "string"),
    "StepfeedDistort": (functools.partial(_augmented, floats=False), "uint8"),
    "StepfeedDistortToFloats": (functools.partial(_augmented, floats=True), "float"),
    "StepfeedGatherCrops": (_crops, "uint8"),
    "StepfeedCopyRecords": (_copies, "string"),
}


def computation(rng: Random, name: str, specs: list[str]) -> Case:
    """Returns a call of an operation, whose inputs sometimes do not fit; `specs` has them as `images: uint8`."""
    draw, output = OPERATIONS[name]
    kinds = [spec.split(": ")[1] for spec in specs]
    arrays = draw(rng)
    for _ in range(int(rng.integers(1, 3)) if is_rare(rng, 3) else 0):
        i = int(rng.integers(len(arrays)))
        arrays[i] = _changed(rng, np.asarray(arrays[i]), DTYPES[kinds[i]])
    return Case(name, tuple(Tensor(kind, np.asarray(a)) for kind, a in zip(kinds, arrays, strict=True)), output)


def _changed(rng: Random, array: Array, dtype: Any) -> Array:
    """Returns an input of another shape or with other numbers."""
    way = int(rng.integers(3))
    if way == 0 and array.size and np.issubdtype(dtype, np.integer):
        numbers = array.copy().astype(object).reshape(-1)
        near = (int(numbers.max()) + 1, int(numbers.min()) - 1)
        numbers[int(rng.integers(len(numbers)))] = pick(rng, EXTREMES + near)
        return _fitting(numbers, dtype).reshape(array.shape)
    if way == 1:
        return array[..., None] if is_rare(rng, 2) else array.reshape(-1)
    shape = tuple(int(rng.integers(0, 4)) for _ in range(int(rng.integers(0, 6))))
    return np.full(shape, b"a", object) if dtype is np.object_ else rng.integers(0, 100, shape).astype(dtype)
