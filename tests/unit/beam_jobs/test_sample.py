import time

import numpy as np
import pytest

from beam_jobs import sample
from beam_jobs.examples import images
from beam_jobs.examples.recode import ImageOptions
from beam_jobs.examples.records import make_records
from beam_jobs.sources.base import Block
from pipeline.errors import DataError, UsageError
from tests.made_source import Content, write_source


@pytest.fixture
def source(tmp_path):
    return lambda splits, **options: write_source(tmp_path / "rows.pickle", splits, **options)


def pngs(pixels, *sizes):
    return [images.encoded(pixels(1, size, seed=i)[0], "png") for i, size in enumerate(sizes)]


def test_pixels_are_stored_raw_by_default(source, pixels):
    made = source({"train": Content(pixels(50, (28, 28, 1))), "test": Content(pixels(5, (28, 28, 1)))})
    looked = sample.take(made, "source", None, 0)
    assert looked.images == ImageOptions("raw", 1, None, (28, 28, 1))
    for split, count in made.splits.items():
        block = made.read(split, np.arange(count))
        records = make_records(Block(block.images, block.labels, block.keys, {}))
        assert looked.record_bytes[split] == len(records.data) / count
    assert 0 < looked.seconds < 1


def test_files_are_kept_by_default_whatever_their_sizes(source, pixels):
    made = source({"train": Content(pngs(pixels, (8, 8, 1), (9, 30, 3), (40, 4, 3)))})
    looked = sample.take(made, "source", None, 0)
    assert looked.images == ImageOptions("source", 3)
    lengths = [len(file) for file in made.read("train", np.arange(3)).images]
    assert abs(looked.record_bytes["train"] - np.mean(lengths)) < 100


def test_grey_files_alone_are_of_one_channel(source, pixels):
    made = source({"train": Content(pngs(pixels, (8, 8, 1), (9, 9, 1)))})
    assert sample.take(made, "source", None, 0).images.channels == 1
    assert sample.take(made, "png", None, 0).images == ImageOptions("png", 1)
    assert sample.take(made, "png", None, 3).images == ImageOptions("png", 3)


@pytest.mark.parametrize(
    ("encoding", "size", "channels", "options"),
    [
        ("raw", None, 0, ImageOptions("raw", 3, None, (8, 6, 3))),
        ("raw", (4, 5), 0, ImageOptions("raw", 3, (4, 5), (4, 5, 3))),
        ("raw", (4, 5), 1, ImageOptions("raw", 1, (4, 5), (4, 5, 1))),
        ("png", None, 1, ImageOptions("png", 1)),
        ("jpeg", (4, 5), 0, ImageOptions("jpeg", 3, (4, 5))),
    ],
)
def test_flags_shape_the_images(encoding, size, channels, options, source, pixels):
    files = source({"train": Content(pngs(pixels, (8, 6, 3), (8, 6, 3)))})
    assert sample.take(files, encoding, size, channels).images == options
    arrays = source({"train": Content(pixels(3, (8, 6, 3)))})
    assert sample.take(arrays, encoding, size, channels).images == options
    if encoding == "raw":
        assert sample.take(arrays, "source", size, channels).images == options


@pytest.mark.parametrize(
    ("encoding", "size", "channels", "message"),
    [
        ("source", (4, 5), 0, "--resize: .*--image_encoding=raw, png or jpeg"),
        ("source", None, 3, "--channels: .*--image_encoding=raw, png or jpeg"),
    ],
)
def test_flags_that_cannot_be_followed(encoding, size, channels, message, source, pixels):
    made = source({"train": Content(pngs(pixels, (8, 6, 3), (40, 4, 3)))})
    with pytest.raises(UsageError, match=message):
        sample.take(made, encoding, size, channels)


@pytest.mark.parametrize(
    ("own", "encoding", "size", "channels", "message"),
    [
        (4, "png", None, 0, "--image_encoding=png: .*4 channels"),
        (5, "jpeg", None, 0, "--image_encoding=jpeg: .*5 channels"),
        (5, "raw", (3, 3), 0, "--resize: .*5 channels"),
        (4, "raw", (3, 3), 0, "--resize: .*4 channels"),  # Pillow would weigh colours by the fourth
        (5, "raw", None, 3, "--channels=3: .*5 channels"),
    ],
)
def test_pixels_of_other_channels(own, encoding, size, channels, message, source, pixels):
    made = source({"train": Content(pixels(4, (6, 6, own)))})
    with pytest.raises(UsageError, match=message):
        sample.take(made, encoding, size, channels)
    assert sample.take(made, "raw", None, 0).images == ImageOptions("raw", own, None, (6, 6, own))


@pytest.mark.parametrize(("own", "channels"), [(4, 3), (4, 1), (2, 1), (3, 1), (1, 3)])
def test_transparency_can_be_dropped(own, channels, source, pixels):
    made = source({"train": Content(pixels(4, (6, 6, own)))})
    assert sample.take(made, "raw", (3, 3), channels).images == ImageOptions("raw", channels, (3, 3), (3, 3, channels))


def test_rows_are_taken_from_the_whole_split_or_from_three_chunks(source, pixels):
    made = source({"train": Content(pixels(10_000, (1, 1, 1)))})
    rows = sample._some_rows(made, "train")
    assert (len(rows), rows[0], rows[-1]) == (16, 0, 9999)
    made = source({"train": Content(pixels(1000, (1, 1, 1)), chunks=[0, 100, 0, 2, 398, 0, 500])})
    assert sample._some_rows(made, "train").tolist() == [*range(5), 100, 101, *range(500, 505)]
    made = source({"train": Content(pixels(1, (1, 1, 1)), chunks=[0, 1])})
    assert sample._some_rows(made, "train").tolist() == [0]


def test_bad_rows_in_the_sample_are_passed_over(source, pixels):
    stored = pngs(pixels, *[(6, 6, 3)] * 4)
    stored[1] = b"no image"
    made = source({"train": Content(stored, labels=[0, 1, 99, 3])})
    looked = sample.take(made, "raw", None, 0)
    assert looked.images.shape == (6, 6, 3)
    assert 16 + 108 < looked.record_bytes["train"] < 250


def test_raw_images_of_other_sizes_are_bad_data_wherever_they_lie(source, pixels):
    few = source({"train": Content(pngs(pixels, (8, 6, 3), *[(40, 4, 3)] * 2))})
    with pytest.raises(DataError, match="--image_encoding=raw: .*40x4, 8x6.*--resize=HxW") as caught:
        sample.take(few, "raw", None, 0)
    assert caught.value.exit_code == 1
    assert sample.take(few, "raw", None, 0, max_rejects=1).images.shape == (40, 4, 3)
    half = source({"train": Content(pngs(pixels, *[(8, 6, 3), (40, 4, 3)] * 3))})
    with pytest.raises(DataError, match="--image_encoding=raw"):
        sample.take(half, "raw", None, 0, max_rejects=2)


def test_a_sample_without_an_example_is_an_error_with_its_first_row(source, pixels):
    stored = pngs(pixels, (6, 6, 3), (6, 6, 3), (6, 6, 3))
    stored[0] = b""
    made = source({"train": Content(stored, labels=[1, 77, 99])})
    with pytest.raises(DataError, match="train.rows, row 0: .*empty.* sampled 3 rows"):
        sample.take(made, "source", None, 0)


def test_files_that_are_no_images_at_all_are_one_error(source):
    made = source({"train": Content([b"x", b"y"])})
    for encoding, size in (("source", None), ("raw", None), ("raw", (3, 3)), ("png", None)):
        with pytest.raises(DataError, match="train.rows, row 0: "):
            sample.take(made, encoding, size, 0)


def test_what_the_first_run_loads_and_what_other_programs_take_are_not_counted_as_work(source, pixels, monkeypatch):
    made = source({"train": Content(pixels(50_000, (2, 2, 1)))})
    runs = []

    def slow(rows):
        runs.append(rows)
        if len(runs) == 1:
            while time.thread_time() < began + 0.03:
                pass
        time.sleep(0.03)  # as if another program had the core
        return make_records(rows)

    monkeypatch.setattr(sample, "make_records", slow)
    began = time.thread_time()
    assert sample.take(made, "source", None, 0).seconds < 0.03 / 16 * 50_000 / 4
    assert len(runs) > 1
