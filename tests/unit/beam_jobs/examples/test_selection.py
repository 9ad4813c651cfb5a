import io

import numpy as np
import PIL.ExifTags
import PIL.Image
import pytest

from beam_jobs.examples import images
from beam_jobs.examples.recode import ImageOptions
from beam_jobs.examples.selection import joined, select
from beam_jobs.sources.base import Block

RAW = ImageOptions("raw", 3, None, (6, 5, 3))


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
