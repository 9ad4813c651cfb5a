"""The compiled operations: crops of images, copies of records, sizes of JPEG files; and invalid arguments."""

import importlib.util
import io

import numpy as np
import PIL.Image
import pytest
import tensorflow as tf

from pipeline import operations
from pipeline.operations import is_compiled
from pipeline.records import tf_example
from tests.unit.pipeline.conftest import IMAGE, LABEL, UNPACKED, field


def reference(lanes, rows, top, left, height, width):
    """Returns the crops, of images in a frame of zeros that is wide enough for all of them."""
    frame = [(0, 0), *[(int(max(abs(at).max(), 0)) + size,) * 2 for at, size in ((top, height), (left, width))]]
    framed = np.pad(lanes, frame)
    y, x = top + frame[1][0], left + frame[2][0]
    return np.stack([framed[r, t : t + height, f : f + width] for r, t, f in zip(rows, y, x, strict=True)])


@pytest.mark.parametrize(
    ("shape", "size", "beyond"),
    [
        ((50, 32, 96), (24, 72), 0),
        ((7, 5, 9), (5, 9), 0),
        ((7, 5, 9), (1, 1), 0),
        ((9, 32, 96), (32, 96), 4),
        ((4, 6, 5), (6, 5), 40),
        ((4, 3, 4), (8, 11), 9),
    ],
    ids=["cifar10_tutorial", "all of it", "one byte", "over the border", "far outside", "larger than the image"],
)
def test_parts_are_those_of_numpy(compiled_operation, shape, size, beyond):
    random = np.random.default_rng(0)
    lanes, rows = random.integers(1, 256, shape, np.uint8), random.integers(0, shape[0], 300)
    top, left = (
        random.integers(-beyond, max(all_ - crop, 0) + beyond + 1, 300).astype(np.int32)
        for all_, crop in zip(shape[1:], size, strict=True)
    )
    found = operations.gather_crops(tf.constant(lanes), tf.constant(rows), top, left, *size)
    assert (found.dtype, found.shape) == (tf.uint8, (300, *size))
    assert np.array_equal(found, reference(lanes, rows, top, left, *size))


def test_no_parts_are_none(compiled_operation):
    none = tf.zeros([0], tf.int32)
    found = operations.gather_crops(tf.zeros([3, 4, 5], tf.uint8), tf.zeros([0], tf.int64), none, none, 2, 2)
    assert found.shape == (0, 2, 2)


@pytest.mark.parametrize(
    ("rows", "top", "left", "size", "what"),
    [
        ([0, 3], [0, 0], [0, 0], (2, 2), "rows must be those of images"),
        ([-1, 0], [0, 0], [0, 0], (2, 2), "rows must be those of images"),
        ([0, 1], [0], [0, 0], (2, 2), "equally long"),
        ([0, 1], [0, 0], [0, 0, 0], (2, 2), "equally long"),
        ([0, 1], [0, 0], [0, 0], (-1, 2), "size must not be negative"),
        ([0] * 4, [0] * 4, [0] * 4, (2**31 - 1, 2**31 - 1), "too large"),  # of which TensorFlow ends the process
        ([[0, 1]], [0, 0], [0, 0], (2, 2), "dimensions"),
    ],
)
def test_what_is_not_in_memory_is_refused(compiled_operation, rows, top, left, size, what):
    arguments = tf.constant(rows, tf.int64), tf.constant(top, tf.int32), tf.constant(left, tf.int32)
    with pytest.raises(tf.errors.InvalidArgumentError, match=what):
        operations.gather_crops(tf.zeros([3, 4, 5], tf.uint8), *arguments, *size)


@pytest.mark.parametrize("shape", [(200,), (8, 25), (0,), ()])
def test_records_are_the_bytes_between_their_bounds(compiled_operation, shape):
    """Short ones lie within a tensor, longer ones do not: of each length there are some, to the end of the memory."""
    random = np.random.default_rng(1)
    memory = random.integers(0, 256, (1, 3_000), np.uint8)
    sizes = random.choice([0, 1, 15, 21, 22, 23, 24, 31, 32, 1_000], shape)
    begins = np.minimum(random.integers(0, 3_001, shape), 3_000 - sizes)
    bounds = np.stack([begins, begins + sizes], axis=-1)
    found = operations.copy_records(tf.constant(memory), tf.constant(bounds))
    assert (found.dtype, found.shape) == (tf.string, shape)
    flat = [memory[0, begin:end].tobytes() for begin, end in bounds.reshape(-1, 2).tolist()]
    assert np.ravel(found.numpy()).tolist() == flat


def test_records_outlive_the_memory_and_can_be_changed_like_any_strings(compiled_operation):
    memory = np.frombuffer(bytes(range(256)) * 400, np.uint8).copy()
    bounds = np.array([[0, 100_000], [5, 9], [7, 60], [3, 3]])
    found = operations.copy_records(tf.constant(memory), tf.constant(bounds))
    expected = [memory[begin:end].tobytes() for begin, end in bounds.tolist()]
    del memory
    twice = tf.strings.join([found, found]).numpy().tolist()
    both = tf.concat([found, tf.gather(found, [0, 1])], 0).numpy().tolist()
    assert twice == [one + one for one in expected]
    assert both == [*expected, *expected[:2]]


@pytest.mark.parametrize("bounds", [[[0, 11]], [[-1, 3]], [[0, 1], [5, 4]], [[0, 1, 2]], [0], [[2**62, 2**62 + 1]]])
def test_what_does_not_lie_in_the_memory_is_no_record(compiled_operation, bounds):
    with pytest.raises(tf.errors.InvalidArgumentError, match="bounds must"):
        operations.copy_records(tf.zeros([2, 5], tf.uint8), tf.constant(bounds, tf.int64))


def jpeg(height, width, mode="RGB", **options):
    stream = io.BytesIO()
    PIL.Image.fromarray(np.zeros((height, width, 3), np.uint8)).convert(mode).save(stream, "JPEG", **options)
    return stream.getvalue()


def test_sizes_of_jpegs_are_those_that_tensorflow_finds(compiled_operation):
    exif = PIL.Image.Exif()
    exif[270] = "a description"
    files = [jpeg(h, w) for h, w in ((1, 1), (3, 2000), (65_500, 1), (300, 257))]
    files += [jpeg(40, 30, "L"), jpeg(41, 30, "CMYK"), jpeg(42, 30, progressive=True, quality=30)]
    files += [jpeg(43, 30, exif=exif), jpeg(44, 30, comment=jpeg(9, 8)), jpeg(45, 30, restart_marker_blocks=1)]
    files += [files[3][:2] + b"\xff\xff" + files[3][2:], files[3][:2] + b"none" + files[3][2:]]  # may stand between
    found = operations.jpeg_sizes(*surrounded(files))
    assert (found.dtype, found.shape) == (tf.int32, (len(files), 2))
    assert found.numpy().tolist() == [tf.io.extract_jpeg_shape(file)[:2].numpy().tolist() for file in files]


@pytest.mark.parametrize("channels", [1, 3, 4])
def test_a_part_is_turned_upright(compiled_operation, channels):
    image = np.random.default_rng(0).integers(0, 256, (37, 50, channels), np.uint8)
    for part in ((0, 0, 37, 50), (3, 7, 30, 17), (36, 49, 1, 1), (5, 0, 0, 9)):
        top, left, height, width = part
        for orientation in range(1, 9):
            expected = image[top : top + height, left : left + width]
            expected = expected.transpose(1, 0, 2) if orientation >= 5 else expected
            expected = expected[::-1] if orientation in (3, 4, 7, 8) else expected
            expected = expected[:, ::-1] if orientation in (2, 3, 6, 7) else expected
            found = operations.turned(tf.constant(image), tf.constant(part), tf.constant(orientation))
            assert np.array_equal(found, expected), (part, orientation)


@pytest.mark.parametrize(
    ("part", "orientation", "what"),
    [
        ((0, 0, 38, 1), 1, "a part must lie in its image"),
        ((-1, 0, 1, 1), 1, "a part must lie in its image"),
        ((2**31 - 1, 0, 2**31 - 1, 1), 1, "a part must lie in its image"),
        ((0, 0, 1, 1), 0, "an orientation must be 1 to 8"),
        ((0, 0, 1, 1), 9, "an orientation must be 1 to 8"),
    ],
)
def test_what_cannot_be_turned_is_refused(compiled_operation, part, orientation, what):
    with pytest.raises(tf.errors.InvalidArgumentError, match=what):
        operations.turned(tf.zeros([37, 50, 3], tf.uint8), tf.constant(part), tf.constant(orientation))


def test_what_is_no_jpeg_has_no_size(compiled_operation):
    whole = jpeg(40, 30)
    frame = whole.index(b"\xff\xc0")
    files = [b"", b"\xff", b"GIF89a", whole[:1], whole[:2], whole[2:], *(whole[: frame + i] for i in range(9))]
    assert not operations.jpeg_sizes(*surrounded(files)).numpy().any()
    assert operations.jpeg_sizes(*surrounded([whole[: frame + 9]])).numpy().tolist() == [[40, 30]]
    assert operations.jpeg_sizes(tf.zeros([0], tf.string), tf.zeros([0, 2], tf.int64)).shape == (0, 2)


def surrounded(files):
    """Returns strings that have files in their middle, and where these begin and end."""
    bounds = tf.constant([[6, 6 + len(file)] for file in files], tf.int64)
    return tf.constant([b"before" + file + b"after" for file in files]), bounds


@pytest.mark.parametrize("size", [0, 1, 22, 23, 5_000])
def test_a_part_of_a_string_is_copied(size, compiled_operation):
    files = [bytes(size), b"a" * size]
    strings, bounds = surrounded(files)
    assert [operations.part(strings, bounds, tf.constant(row, tf.int64)).numpy() for row in (0, 1)] == files


@pytest.mark.parametrize(
    ("bounds", "row", "text"),
    [
        ([[0, 4], [0, 1]], 0, "bounds must lie"), ([[-1, 2], [0, 1]], 0, "bounds must lie"),
        ([[2, 1], [0, 1]], 0, "bounds must lie"), ([[0, 3]], 0, "as many as"), ([0, 3], 0, "two columns"),
        ([[0, 3], [0, 1]], 2, "a row"), ([[0, 3], [0, 1]], -1, "a row"), ([[0, 3], [0, 1]], [0], "a row"),
    ],
)  # fmt: skip
def test_what_does_not_lie_in_the_strings_is_no_part(bounds, row, text, compiled_operation):
    with pytest.raises(tf.errors.InvalidArgumentError, match=text):
        operations.part(tf.constant([b"abc", b"d"]), tf.constant(bounds, tf.int64), tf.constant(row, tf.int64))
    if text == "bounds must lie":
        with pytest.raises(tf.errors.InvalidArgumentError, match=text):
            operations.jpeg_sizes(tf.constant([b"abc", b"d"]), tf.constant(bounds, tf.int64))


def example_of(**features):
    return tf_example.encode(features)


@pytest.mark.parametrize("label", [0, 127, 128, 2**63 - 1, -1, -(2**63)])
@pytest.mark.parametrize("others", [{}, {"key": b"k" * 200, "a": 1.5, "z": np.arange(300)}])
def test_images_and_labels_are_found_in_records(label, others, compiled_operation):
    files = [b"", b"image", b"x" * 70_000]
    records = [example_of(image=file, label=label, **others) for file in files]
    found = operations.find_images(tf.constant(records)).numpy().tolist()
    for file, record, (begin, end, read) in zip(files, records, found, strict=True):
        assert (record[begin:end], read) == (file, label)


@pytest.mark.parametrize("names", [("image/encoded", "image/class/label"), ("b", "image"), ("image", "image2")])
def test_images_and_labels_are_found_by_the_names_of_their_features(names, compiled_operation):
    image, label = names
    record = example_of(**{"other": b"o", "image": b"x", "label": 9, "a": 1.0, image: b"the image", label: 7})
    [[begin, end, found]] = operations.find_images(tf.constant([record]), image, label).numpy().tolist()
    assert (record[begin:end], found) == (b"the image", 7)
    [[begin, _, _]] = operations.find_images(tf.constant([record]), image[:-1], label).numpy().tolist()
    assert begin == -1
    with pytest.raises(tf.errors.InvalidArgumentError, match="names must be two"):
        operations._operations().stepfeed_find_features(tf.constant([record]), tf.constant([image]))


def test_what_is_not_as_usual_is_not_found(compiled_operation):
    usual = example_of(image=b"image", label=5, key=b"k")
    others = [
        example_of(image=b"image"), example_of(label=5), example_of(image=5, label=5),
        example_of(image=b"i", label=5.0), example_of(image=[b"a", b"b"], label=5),
        example_of(image=b"i", label=np.arange(2)), example_of(image=np.zeros(0, np.int64), label=5),
        *(field(1, one * IMAGE + two * LABEL) for one, two in ((0, 1), (2, 1), (1, 0), (1, 2))),
        field(1, IMAGE + LABEL + field(2, b"")), field(1, IMAGE + field(1, LABEL[2:] + field(3, b""))),
        field(1, IMAGE + field(1, field(1, b"label")) + LABEL),
        b"\x8a\x00" + field(1, LABEL + IMAGE)[1:], field(1, IMAGE + b"\x8a\x00" + LABEL[1:]),  # tags of two bytes
        UNPACKED, b"", usual + usual, usual + b"\x0a", *(usual[:n] for n in range(len(usual))),
    ]  # fmt: skip
    found = operations.find_images(tf.constant([*others, usual])).numpy()
    assert found[:-1].tolist() == [[-1, -1, 0]] * len(others)
    assert found[-1, 2] == 5
    [[begin, end, label]] = operations.find_images(tf.constant([field(1, LABEL + IMAGE)])).numpy()
    assert (field(1, LABEL + IMAGE)[begin:end], label) == (b"i", 5)
    assert operations.find_images(tf.zeros([0], tf.string)).shape == (0, 3)


@pytest.mark.parametrize("origin", [None, "text.so"])
def test_without_a_compiler_or_of_another_system_there_is_no_operation(monkeypatch, tmp_path, origin):
    if origin:
        (tmp_path / origin).write_text("not a library")
    spec = origin and importlib.util.spec_from_loader("it", None, origin=str(tmp_path / origin))
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: spec)
    operations._operations.cache_clear()
    try:
        assert not is_compiled()
    finally:
        monkeypatch.undo()
        operations._operations.cache_clear()
