"""What calls of the compiled code must give, by NumPy; and that a call which is refused writes nothing."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest

from pipeline.read import frames
from pipeline.records import framing
from tests.kernels.calls import Array, Buffer, Case, OpenedFile, Result, Tensor


def check(case: Case, result: Result) -> None:
    """Asserts that a result is right, as far as the right one is known."""
    if case.output:
        expected = _OPERATIONS.get(case.name)
        if expected and not result.value:
            values = expected(*(argument.array for argument in case.arguments if isinstance(argument, Tensor)))
            assert (result.shape, result.output) == values
        return
    given = [argument for argument in case.arguments if isinstance(argument, Buffer)]
    if result.problem:
        assert [buffer.content for buffer in given] == list(result.buffers)
    elif len(given) + any(isinstance(each, OpenedFile) for each in case.arguments) == len(case.arguments):
        _FUNCTIONS[case.name](case, [buffer.content for buffer in given], list(result.buffers), result.value)


def _check_unpack(case: Case, given: list[bytes], found: list[bytes], value: int) -> None:
    del case, value
    block, begins, row_of, images, labels, *_ = map(_array, given, "BqqBqqBI")
    if len({*row_of.tolist()}) < len(row_of):  # which of two records a row has last is not said
        return
    images = images.reshape(len(labels), -1)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(frames, "_unpack", None)
        unpacked = frames.unpack(block, begins, row_of, images, labels)
    _, _, _, found_images, found_labels, found_keys, problems, crcs = map(_array, found, "BqqBqqBI")
    assert found_labels.tolist() == labels.tolist()
    assert np.array_equal(found_images.reshape(images.shape), images)
    assert problems.tolist() == unpacked.problems.tolist()
    assert crcs.tolist() == unpacked.crcs.tolist()
    has_key = unpacked.keys.any(axis=1)
    for (begin, end), (a, b) in zip(found_keys.reshape(-1, 2)[has_key], unpacked.keys[has_key], strict=True):
        assert block[begin:end].tobytes() == block[a:b].tobytes()


def _check_check(case: Case, given: list[bytes], found: list[bytes], value: int) -> None:
    del case, value
    block, begins, _, stale = map(_array, given, "BqBI")
    _compare(block, begins - begins[0], *map(_array, found[2:], "BI"), stale)


def _check_read(case: Case, given: list[bytes], found: list[bytes], done: int) -> None:
    content = next(each.content for each in case.arguments if isinstance(each, OpenedFile))
    begins, places, *_ = map(_array, given, "qq")
    stale = _array(given[-1], "I")
    memory, problems, crcs = map(_array, found[2:], "BBI")
    sizes = np.diff(places)
    assert 0 <= done <= len(problems)
    for i in range(done):
        assert memory[places[i] : places[i + 1]].tobytes() == content[begins[i] : begins[i] + sizes[i]]
    _compare(memory, places[: done + 1], problems[:done], crcs[:done], stale)
    if done < len(problems):  # the next one, or one that is read together with it, lies beyond the file's end
        assert (begins > len(content) - sizes)[done:].any()


def _check_interleave(case: Case, given: list[bytes], found: list[bytes], value: int) -> None:
    del case, value
    count, before, plane = np.frombuffer(given[0], "q").tolist()
    planes = _array(given[1], "B").reshape(count, before + 3 * plane)[:, before:].reshape(count, 3, plane)
    assert found[2] == planes.transpose(0, 2, 1).tobytes()


def _check_sum(case: Case, given: list[bytes], found: list[bytes], value: int) -> None:
    del case, value
    values = _array(given[0], "B").astype(np.int64)
    padded = np.append(values, np.zeros(-len(values) % 48, np.int64)).reshape(-1, 48)
    assert found[1] == np.stack([padded.sum(axis=0), (padded**2).sum(axis=0)]).tobytes()


def _compare(memory: Array, places: Array, problems: Array, crcs: Array, stale: Array) -> None:
    for i, problem in enumerate(problems.tolist()):
        frame = memory[places[i] : places[i + 1]].tobytes()
        fault = framing.check(frame)
        assert bool(problem) == (fault is not None)
        if fault:
            assert problem & (frames.BAD_RECORD if fault.kind is framing.Kind.RECORD_CRC else frames.BAD_LENGTH)
        is_short = len(frame) < framing.OVERHEAD
        assert crcs[i] == (stale[i] if is_short else int.from_bytes(frame[-framing.FOOTER :], "little"))


def _array(content: bytes, code: str) -> Array:
    return np.frombuffer(content, code).copy()


def _crops(images: Array, rows: Array, top: Array, left: Array, size: Array) -> tuple[tuple[int, ...], bytes]:
    height, width = size.tolist()
    crops = np.zeros((len(rows), height, width), np.uint8)
    if not crops.size:  # of no line there may be 2^31 - 1 columns
        return crops.shape, b""
    for crop, row, y, x in zip(crops, rows.tolist(), top.tolist(), left.tolist(), strict=True):
        lines, lanes = np.arange(height) + y, np.arange(width) + x
        inside = (lines >= 0) & (lines < images.shape[1]), (lanes >= 0) & (lanes < images.shape[2])
        crop[np.ix_(*inside)] = images[row][np.ix_(lines[inside[0]], lanes[inside[1]])]
    return crops.shape, crops.tobytes()


def _copies(memory: Array, bounds: Array) -> tuple[tuple[int, ...], list[bytes]]:
    data = memory.astype(np.uint8).tobytes()
    return bounds.shape[:-1], [data[begin:end] for begin, end in bounds.reshape(-1, 2).tolist()]


def _part(strings: Array, bounds: Array, row: Array) -> tuple[tuple[int, ...], list[bytes]]:
    begin, end = bounds[int(row)].tolist()
    return (), [strings[int(row)][begin:end]]


def _turned(image: Array, part: Array, orientation: Array) -> tuple[tuple[int, ...], bytes]:
    top, left, height, width = part.tolist()
    found = image[top : top + height, left : left + width]
    found = found.transpose(1, 0, 2) if orientation >= 5 else found
    found = found[::-1] if orientation in (3, 4, 7, 8) else found
    found = found[:, ::-1] if orientation in (2, 3, 6, 7) else found
    return found.shape, found.astype(np.uint8).tobytes()


_FUNCTIONS = {
    "unpack": _check_unpack,
    "check": _check_check,
    "read": _check_read,
    "interleave": _check_interleave,
    "sum": _check_sum,
}
_OPERATIONS: dict[str, Callable[..., tuple[tuple[int, ...], bytes | list[bytes]]]] = {
    "StepfeedGatherCrops": _crops,
    "StepfeedCopyRecords": _copies,
    "StepfeedPart": _part,
    "StepfeedTurn": _turned,
}
