import io

import numpy as np
import PIL.ExifTags
import PIL.Image
import PIL.ImageOps
import pytest

from beam_jobs.examples.selection import ImageOptions, joined, recode, select
from beam_jobs.sources.base import Block
from pipeline import images

RAW = ImageOptions("raw", 3, None, (6, 5, 3))


def file_of(array, kind, **options):
    stream = io.BytesIO()
    PIL.Image.fromarray(array[..., 0] if array.shape[2] == 1 else array).save(stream, kind, **options)
    return stream.getvalue()


def block_of(stored):
    return Block(stored, np.zeros(len(stored), np.int64), [b"%d" % i for i in range(len(stored))])


def decoded(files, channels=0):
    return [images.pixels(images.open_file(file), channels) for file in files]


SOURCE = ImageOptions("source", 3)


def test_source_keeps_the_bytes_of_png_and_jpeg(pixels):
    first, second = pixels(2, (16, 12, 3))
    files = [file_of(first, "PNG", compress_level=0), file_of(second, "JPEG", quality=40, comment=b"mine")]
    made = recode(block_of(files), SOURCE)
    assert made.images == files
    assert made.formats == {"png", "jpeg"}
    assert made.sizes == {(16, 12, 3): 2}
    assert made.bad == {}
    shown = np.concatenate([image.reshape(-1, 3) for image in decoded(files)]).astype(object)
    assert made.sums.sums == shown.sum(axis=0).tolist()
    assert made.sums.squares == (shown**2).sum(axis=0).tolist()


def turned(array, value, kind="PNG"):
    exif = PIL.Image.Exif()
    exif[PIL.ExifTags.Base.Orientation] = value
    return file_of(array, kind, exif=exif)


@pytest.mark.parametrize(("kind", "off"), [("PNG", 0), ("JPEG", 20)])
def test_files_are_written_again_if_they_are_not_upright_and_kept_if_they_are(kind, off, pixels):
    stored = np.repeat(np.repeat(pixels(4, (2, 4, 1)) // 2 + 64, 16, axis=1), 16, axis=2)
    stored = np.concatenate([stored, 255 - stored, stored // 2], axis=3)
    files = [turned(image, value, kind) for image, value in zip(stored, (1, 6, 3, 6), strict=True)]
    made = recode(block_of(files), SOURCE)
    assert [one == other for one, other in zip(made.images, files, strict=True)] == [True, False, False, False]
    assert made.sizes == {(32, 64, 3): 2, (64, 32, 3): 2}
    assert made.turned == 3
    for before, after, turns in zip(*map(decoded, (files, made.images)), (0, -1, 2, -1), strict=True):
        assert np.abs(after.astype(int) - np.rot90(before, turns)).max() <= off
    shown = np.concatenate([image.reshape(-1, 3) for image in decoded(made.images)]).astype(object)
    assert made.sums.sums == shown.sum(axis=0).tolist()


@pytest.mark.parametrize(
    ("options", "kind"),
    [
        (ImageOptions("raw", 3, shape=(9, 7, 3)), "PNG"),
        (ImageOptions("png", 3), "PNG"),
        (SOURCE, "WEBP"),
        (ImageOptions("raw", 3, (18, 14), (18, 14, 3)), "PNG"),
    ],
    ids=["raw", "png", "source", "resize"],
)
def test_images_that_are_decoded_are_stored_upright(options, kind, pixels):
    image = np.repeat(pixels(1, (7, 9, 1))[0] // 255, 3, axis=2)
    image[:3, :4] = 255  # the upper left corner
    data = turned(image, 6, kind)
    made = recode(block_of([data]), options)
    (found,) = made.images if options.encoding == "raw" else decoded(made.images)
    size = options.size or (9, 7)
    expected = PIL.ImageOps.exif_transpose(PIL.Image.open(io.BytesIO(data))).resize(
        size[::-1], PIL.Image.Resampling.BILINEAR
    )
    assert (found == np.asarray(expected)).all()
    assert made.sizes == {(*size, 3): 1}
    assert made.turned == 0


@pytest.mark.parametrize(("kind", "options"), [("BMP", {}), ("WEBP", {"lossless": True})])
def test_source_stores_other_formats_as_png(kind, options, pixels):
    stored = pixels(3, (7, 9, 3))
    made = recode(block_of([file_of(image, kind, **options) for image in stored]), SOURCE)
    assert made.formats == {"png"}
    assert all(file.startswith(b"\x89PNG") for file in made.images)
    assert (np.stack(decoded(made.images)) == stored).all()


def test_statistics_of_grey_files_among_others_are_of_the_data_sets_channels(pixels):
    grey = pixels(2, (7, 9, 1))
    made = recode(block_of([file_of(image, "PNG") for image in grey]), SOURCE)
    assert made.sizes == {(7, 9, 1): 2}
    assert made.sums.sums == [int(grey.sum())] * 3


@pytest.mark.parametrize("skip", [{0}, {3, 9}, set(range(10))])
@pytest.mark.parametrize("encoding", ["raw", "png"])
def test_rows_that_are_bad_already_are_left_out(skip, encoding, pixels):
    stored = pixels(10, (6, 5, 3))
    shape = (6, 5, 3) if encoding == "raw" else None
    made = recode(block_of(stored), ImageOptions(encoding, 3, None, shape), frozenset(skip))
    kept = np.delete(stored, sorted(skip), axis=0)
    found = made.images if encoding == "raw" else decoded(made.images)
    assert len(found) == len(kept)
    assert all((one == other).all() for one, other in zip(found, kept, strict=True))
    assert made.sums.sums == kept.reshape(-1, 3).sum(axis=0, dtype=int).tolist()
    assert made.formats == ({encoding} if len(kept) else set())
    assert made.sizes == ({(6, 5, 3): len(kept)} if len(kept) else {})


def test_raw_rejects_other_shapes_and_says_both(pixels):
    files = [file_of(pixels(1, (h, w, 3))[0], "PNG") for h, w in [(8, 6), (6, 8), (8, 6), (1, 1)]]
    made = recode(block_of(files), ImageOptions("raw", 3, None, (8, 6, 3)))
    assert made.images.shape == (2, 8, 6, 3)
    assert made.bad == {
        1: "the image is 6x8x3, all others are 8x6x3",
        3: "the image is 1x1x3, all others are 8x6x3",
    }


def test_bad_files_are_named_by_their_rows_and_the_others_are_stored(pixels):
    good = [file_of(image, "PNG") for image in pixels(3, (5, 5, 3))]
    files = [good[0], b"", good[1], good[1][:40], good[2]]
    for options in (SOURCE, ImageOptions("png", 3), ImageOptions("raw", 3, None, (5, 5, 3))):
        made = recode(block_of(files), options)
        assert sorted(made.bad) == [1, 3]
        assert "it is empty" in made.bad[1]
        assert len(made.images) == 3


@pytest.mark.parametrize("encoding", ["raw", "png"])
@pytest.mark.parametrize("channels", [1, 3])
@pytest.mark.parametrize("has", [1, 3])
def test_channels_and_size_are_as_asked(has, channels, encoding, pixels):
    stored = pixels(4, (12, 10, has))
    shape = (6, 20, channels) if encoding == "raw" else None
    made = recode(block_of(stored), ImageOptions(encoding, channels, (6, 20), shape))
    found = made.images if encoding == "raw" else decoded(made.images)
    for image, original in zip(found, stored, strict=True):
        assert (image == images.resized(images.with_channels(original, channels), (6, 20))).all()
    assert made.sizes == {(6, 20, channels): 4}
    assert len(made.sums.sums) == channels


def test_files_of_any_size_are_made_equal(pixels):
    sizes = [(9, 4, 3), (30, 40, 1), (12, 12, 3)]
    files = [file_of(pixels(1, size)[0], "PNG") for size in sizes]
    made = recode(block_of(files), ImageOptions("raw", 1, (10, 10), (10, 10, 1)))
    assert made.images.shape == (3, 10, 10, 1)
    assert made.bad == {}


@pytest.mark.parametrize("options", [SOURCE, ImageOptions("png", 1), ImageOptions("raw", 1, None, (2, 2, 1))])
def test_an_empty_block_is_no_images(options):
    made = recode(block_of([]), options)
    assert len(made.images) == 0
    assert (made.formats, made.sizes, made.bad, made.sums.pixels) == (set(), {}, {}, 0)


def block(images, labels, bad=None):
    count = len(images)
    keys = np.array([b"k%d" % i for i in range(count)])
    extra = {"a": np.arange(count) * 10, "b": [b"%d" % i for i in range(count)]}
    return Block(images, np.array(labels), keys, extra, bad or {})


@pytest.mark.parametrize("as_files", [False, True])
def test_bad_rows_are_left_out_of_every_column(as_files, pixels):
    stored = pixels(7)
    given_images = [images.encoded(image, "png") for image in stored] if as_files else stored
    if as_files:
        given_images[6] = b"no image"
    given = block(given_images, [0, -1, 2, 10, 300, 4, 6], {5: "no label", 1: "no image there"})
    chosen = select(given, 10, RAW)
    reasons = {
        1: "no image there",  # what the source says comes before the label
        3: "label 10 is not in 0..9",
        4: "label 300 is not in 0..9",
        5: "no label",
    }
    kept = [0, 2] if as_files else [0, 2, 6]
    if as_files:
        assert chosen.bad.pop(6).startswith("no image of a known format")
    assert chosen.bad == reasons
    assert (chosen.rows.images == stored[kept]).all()
    assert chosen.rows.labels.tolist() == given.labels[kept].tolist()
    assert [bytes(key) for key in chosen.rows.keys] == [b"k%d" % row for row in kept]
    assert list(chosen.rows.extra["a"]) == [10 * row for row in kept]
    assert chosen.rows.extra["b"] == [b"%d" % row for row in kept]
    assert chosen.recoded.sizes.total() == len(kept)


@pytest.mark.parametrize("as_files", [False, True])
@pytest.mark.parametrize("step", [1, 3, 7, 20])
def test_parts_in_any_order_join_to_the_whole(step, as_files, pixels):
    stored = pixels(20)
    given = block(
        [images.encoded(image, "png") for image in stored] if as_files else stored, [*range(10), -1, *[3] * 9]
    )
    whole = select(given, 10, RAW)
    order = np.random.default_rng(step).permutation(20)
    parts = []
    for start in range(0, 20, step):
        rows = order[start : start + step]
        extra = {"a": given.extra["a"][rows], "b": [given.extra["b"][row] for row in rows]}
        taken = [given.images[row] for row in rows] if as_files else given.images[rows]
        parts.append((rows, select(Block(taken, given.labels[rows], given.keys[rows], extra), 10, RAW)))
    made = joined(parts)
    assert made.bad == whole.bad == {10: "label -1 is not in 0..9"}
    assert (made.rows.images == whole.rows.images).all()
    assert made.rows.labels.tolist() == whole.rows.labels.tolist()
    assert [bytes(key) for key in made.rows.keys] == [bytes(key) for key in whole.rows.keys]
    assert made.rows.extra["a"].tolist() == whole.rows.extra["a"].tolist()
    assert made.rows.extra["b"] == whole.rows.extra["b"]
    assert made.recoded.sums == whole.recoded.sums
    assert (made.recoded.sizes, made.recoded.formats) == (whole.recoded.sizes, whole.recoded.formats)


def test_images_with_an_orientation_are_counted_over_the_parts(pixels):
    exif = PIL.Image.Exif()
    exif[PIL.ExifTags.Base.Orientation] = 3
    stream = io.BytesIO()
    PIL.Image.fromarray(pixels(1)[0]).save(stream, "PNG", exif=exif)
    part = select(block([stream.getvalue()], [0]), 10, ImageOptions("source", 3))
    assert joined([(np.array([row]), part) for row in (1, 0)]).recoded.turned == 2


def test_the_sides_of_each_image_are_in_the_order_of_the_rows(pixels):
    shapes = [(4 + row % 3, 5 + row % 2, 3) for row in range(12)]
    given = block([images.encoded(pixels(1, shape, seed=row)[0], "png") for row, shape in enumerate(shapes)], [0] * 12)
    options, order = ImageOptions("source", 3), np.random.default_rng(1).permutation(12)
    whole = select(given, 10, options)
    assert whole.recoded.sides(12).tolist() == [list(shape[:2]) for shape in shapes]
    parts = []
    for rows in (order[:1], order[1:7], order[7:]):
        taken = [given.images[row] for row in rows]
        extra = {"a": given.extra["a"][rows], "b": [given.extra["b"][row] for row in rows]}
        parts.append((rows, select(Block(taken, given.labels[rows], given.keys[rows], extra), 10, options)))
    assert joined(parts).recoded.sides(12).tolist() == whole.recoded.sides(12).tolist()
    assert parts[0][1].recoded.sides(1).tolist() == [list(shapes[order[0]][:2])]  # of one size
