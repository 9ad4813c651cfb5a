import io

import numpy as np
import PIL.ExifTags
import PIL.Image
import PIL.ImageOps
import pytest

from beam_jobs.examples import images
from beam_jobs.examples.recode import ImageOptions, recode
from beam_jobs.sources.base import Block


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


def test_files_that_are_kept_keep_their_orientation_and_are_counted(pixels):
    files = [turned(image, value) for image, value in zip(pixels(4, (7, 9, 3)), (1, 6, 3, 6), strict=True)]
    made = recode(block_of(files), SOURCE)
    assert made.images == files
    assert made.sizes == {(7, 9, 3): 4}  # as decoders of TensorFlow see them
    assert made.turned == 3


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
