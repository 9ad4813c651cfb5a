import dataclasses
import hashlib
import itertools
import pickle
import re
import time

import numpy as np
import pytest

from beam_jobs import plan
from beam_jobs import plan as shards
from beam_jobs.config import ConvertConfig
from beam_jobs.examples.records import make_records
from beam_jobs.examples.selection import ImageOptions
from beam_jobs.sources.base import Block
from pipeline import images
from pipeline.errors import DataError, UsageError
from pipeline.order import hashing
from pipeline.records.tf_example import encode
from tests.helpers.made_source import Content, write_source

MIB = 1 << 20


@pytest.mark.parametrize(
    ("examples", "num_bytes", "most", "shards"),
    [
        (10, 0, 256 * MIB, 1),
        (10, 1, 256 * MIB, 1),
        (60_000, 16 * MIB, 256 * MIB, 1),
        (60_000, 16 * MIB + 1, 256 * MIB, 2),
        (60_000, 52_800_000, 256 * MIB, 4),
        (60_000, 64 * 16 * MIB, 256 * MIB, 64),
        (60_000, 64 * 16 * MIB + 1, 256 * MIB, 64),
        (10**6, 51 * 256 * MIB, 256 * MIB, 64),
        (10**6, 64 * 256 * MIB, 256 * MIB, 80),  # a quarter more, as records may differ in length
        (10**9, 1000 * 256 * MIB, 256 * MIB, 1250),
        (3, 1000 * MIB, 256 * MIB, 3),
        (10**6, 10 * MIB, MIB, 10),
        (10**6, 64 * MIB, MIB, 64),
        (10**6, 65 * MIB, MIB, 82),
        (10**9, 10**9 * MIB, MIB, 99_999),
    ],
)
def test_default_number_of_shards(examples, num_bytes, most, shards):
    assert plan.default_num_shards(examples, num_bytes, most) == shards


@pytest.fixture
def two(pixels):
    return {"train": Content(pixels(50, (28, 28, 1))), "test": Content(pixels(20, (28, 28, 1), 1))}


def test_a_plan_lists_its_files_and_their_bytes(two, plan_of):
    made = plan_of(two, num_shards="train:3", seed=5)
    assert made.num_shards == {"train": 3, "test": 1}
    assert made.elements == [("train", 0), ("train", 1), ("train", 2), ("test", 0)]
    assert made.file_names[1] == "train-00001-of-00003.tfrecord"
    assert made.options == {"num_shards": {"train": 3, "test": 1}, "seed": 5}
    lengths = [
        16 + len(encode({"image": bytes(784), "label": 0, "key": key})) for key in (b"train.rows#00", b"test.rows#00")
    ]
    assert made.num_bytes == 50 * lengths[0] + 20 * lengths[1]


def test_a_plan_is_cheap_to_ship(two, plan_of):
    made = plan_of(two)
    made.source.read("train", np.arange(50))
    assert len(pickle.dumps(made)) < 2500
    assert pickle.loads(pickle.dumps(made)) == made


@pytest.mark.parametrize(
    ("flags", "message"),
    [
        ({"num_shards": "test:21"}, "--num_shards: 21 shards for 20 examples of split 'test'; at most 20"),
        ({"num_shards": "51"}, "--num_shards: 51 shards for 50 examples of split 'train'; at most 50"),
        ({"num_shards": "trian:2"}, "--num_shards: split: unknown 'trian'; did you mean 'train'"),
        ({"split": "a:0.5,b:0.5", "num_shards": "train:2"}, "--num_shards: split: unknown 'train'"),
    ],
)
def test_numbers_of_shards_that_cannot_be(flags, message, two, plan_of):
    with pytest.raises(UsageError, match=re.escape(message)):
        plan_of(two, **flags)


def test_shards_that_would_be_too_large_are_an_error_with_the_number_that_is_enough(plan_of, pixels):
    content = {"train": Content(pixels(20, (400, 400, 3)))}  # 9.6 MB
    assert plan_of(content, max_shard_bytes=MIB).num_shards == {"train": 10}
    with pytest.raises(UsageError) as error:
        plan_of(content, max_shard_bytes=MIB, num_shards="9")
    assert re.search(
        r"--num_shards: 9 shards of split 'train' would have about 10668\d\d bytes each, "
        r"over --max_shard_bytes=1048576; give 10 or more",
        str(error.value),
    )
    assert plan_of(content, max_shard_bytes=MIB, num_shards="10").num_shards == {"train": 10}


SHAPING = [
    {"num_shards": "2"},
    {"num_shards": "train:2"},
    {"seed": 1},
    {"image_encoding": "png"},
    {"image_encoding": "jpeg"},
    {"image_encoding": "raw"},  # the same bytes, but the manifest says what was asked for
    {"image_encoding": "raw", "resize": "14x14"},
    {"image_encoding": "raw", "resize": "14x15"},
    {"image_encoding": "raw", "channels": 3},
    {"image_encoding": "png", "channels": 3},
    {"compression": "GZIP"},
    {"split": "train:0.5,test:0.5"},
    {"split": "train:0.6,test:0.4"},
    {"passes": 2},
]
OTHERS = [{"max_shard_bytes": 1 << 21}, {"max_rejects": 10}, {"overwrite": True}, {"num_shards": "1"}, {"seed": 0}]


def test_every_flag_that_shapes_the_bytes_gives_another_digest(two, plan_of):
    digests = [plan_of(two, **flags).digest for flags in ({}, *SHAPING)]
    assert len(set(digests)) == len(SHAPING) + 1


@pytest.mark.parametrize("flags", OTHERS, ids=str)
def test_no_other_flag_changes_the_digest(flags, two, plan_of):
    assert plan_of(two, **flags).digest == plan_of(two).digest


def test_the_place_and_the_name_of_the_source_do_not_change_the_digest(two, plan_of, made, tmp_path):
    first = plan_of(two)
    config = ConvertConfig(dataset="made", data_dir="/elsewhere", source=str(made(two, "moved.pickle")))
    assert plan.make_plan(config, tmp_path / "elsewhere").digest == first.digest


def test_the_content_of_the_source_changes_the_digest(two, plan_of, pixels):
    first = plan_of(two).digest
    changed = pixels(50, (28, 28, 1))
    changed[49, 27, 27, 0] ^= 1
    assert plan_of(two | {"train": Content(changed)}).digest != first


def test_what_the_first_images_say_changes_the_digest(plan_of, pixels):
    """A source is described by its files; how they are stored by a look at some rows."""
    grey = Content([images.encoded(image, "png") for image in pixels(3, (6, 6, 1))])
    colour = Content([images.encoded(image, "png") for image in pixels(3, (6, 6, 3))])
    plans = [plan_of({"train": content}) for content in (grey, colour)]
    assert [made.sample.images.channels for made in plans] == [1, 3]
    same_files = dataclasses.replace(plans[0], sample=plans[1].sample)
    assert same_files.digest != plans[0].digest


def all_rows(rows, count, chunks=None, seed=3, split="train"):
    chunks = None if chunks is None else np.array(chunks, np.int64)
    return [shards.shard_rows(seed, split, rows, chunks, shard, count) for shard in range(count)]


@pytest.mark.parametrize(("rows", "count"), [(1, 1), (10, 3), (7, 7), (1000, 1), (1000, 64), (999, 10)])
def test_shards_hold_each_row_once_and_differ_by_one_at_most(rows, count):
    parts = all_rows(rows, count)
    assert sorted(np.concatenate(parts).tolist()) == list(range(rows))
    sizes = {len(part) for part in parts}
    assert max(sizes) - min(sizes) <= 1


def test_rows_do_not_depend_on_the_number_of_shards():
    whole = all_rows(1000, 1)[0]
    assert (np.concatenate(all_rows(1000, 7)) == whole).all()


@pytest.mark.parametrize("chunks", [None, [100] * 5])
def test_seed_and_split_each_change_the_rows(chunks):
    rows = {all_rows(500, 1, chunks, seed, split)[0].tobytes() for seed in (0, 1) for split in ("train", "test")}
    assert len(rows) == 4


def test_the_permutation_is_pinned():
    rows = shards.shard_rows(0, "train", 60_000, None, 0, 1)
    assert rows[:5].tolist() == [50716, 9180, 35014, 7303, 12520]
    assert hashlib.sha256(rows.astype("<i8").tobytes()).hexdigest()[:16] == "216121159b235849"


def test_the_order_of_chunks_is_pinned():
    rows = shards.shard_rows(0, "train", 60_000, np.full(60, 1000), 3, 7)
    assert rows[:5].tolist() == [5425, 25636, 12967, 12589, 5346]
    assert hashlib.sha256(rows.astype("<i8").tobytes()).hexdigest()[:16] == "24af8c7a415a7f84"


@pytest.mark.parametrize(
    ("key", "rows"),
    [*((key, rows) for key in (0, 2**64 - 1, 12345) for rows in (1, 2, 1000, 65_537)), (7, (1 << 20) + 3)],
)
def test_a_slice_in_little_memory_is_that_of_the_whole_permutation(rows, key):
    whole = hashing.permutation(np.uint64(key), rows)
    cuts = sorted({0, 1, rows // 3, rows // 2, rows // 2 + 1, rows - 1, rows})
    for start, stop in itertools.pairwise(cuts):
        assert (shards._slice_of_permutation(key, rows, start, stop) == whole[start:stop]).all()
    assert len(shards._slice_of_permutation(key, rows, rows // 2, rows // 2)) == 0
    assert (shards._slice_of_permutation(key, rows, 0, rows) == whole).all()


def test_a_split_too_large_to_be_kept_is_cut_like_any_other():
    shards._permutation.cache_clear()
    rows = shards._KEPT_ROWS + 1
    whole = hashing.permutation(np.uint64(shards._key(3, "train")), rows)
    parts = [shards.shard_rows(3, "train", rows, None, shard, 50) for shard in (0, 49)]
    assert (parts[0] == whole[: rows // 50]).all()
    assert (parts[1] == whole[49 * rows // 50 :]).all()
    assert not shards._permutation.cache_info().currsize  # it was never whole in memory


def random_chunks(seed, count, most):
    return np.random.default_rng(seed).integers(0, most + 1, count).tolist()


GRIDS = [
    [5],
    [1, 1, 1],
    [0, 5],
    [5, 0],
    [0, 0, 7, 0, 0, 3, 0],
    [1, 100, 1],
    [10] * 10,
    [3, 3, 3, 1],
    [0] * 20 + [40] + [0] * 20,
    random_chunks(0, 30, 9),
    random_chunks(1, 100, 3),
]


@pytest.mark.parametrize("chunks", GRIDS, ids=str)
def test_every_row_of_every_chunk_comes_once_for_any_number_of_shards(chunks):
    rows = sum(chunks)
    for count in sorted({1, 2, 3, 7, rows // 2, rows - 1, rows}):
        if not 1 <= count <= rows:
            continue
        parts = all_rows(rows, count, chunks)
        assert sorted(np.concatenate(parts).tolist()) == list(range(rows)), count
        assert [len(part) for part in parts] == [(s + 1) * rows // count - s * rows // count for s in range(count)]
        assert all(part.dtype == np.int64 for part in parts)


def test_a_shard_reads_few_chunks_and_the_one_at_a_boundary_is_read_by_both():
    chunks, bounds = [10] * 100, np.arange(0, 1001, 10)
    parts = all_rows(1000, 8, chunks)  # 125 rows each: 12.5 chunks
    read = [set((np.searchsorted(bounds, part, side="right") - 1).tolist()) for part in parts]
    assert all(13 <= len(chunk) <= 14 for chunk in read)
    shared = [read[i] & read[i + 1] for i in range(7)]
    assert [len(chunk) for chunk in shared] == [1, 0, 1, 0, 1, 0, 1]
    assert sum(len(chunk) for chunk in read) == 104


def test_chunks_come_in_another_order_and_their_rows_too():
    chunks = [50] * 40
    parts = all_rows(2000, 4, chunks)
    order = np.concatenate(parts)
    assert (order != np.arange(2000)).mean() > 0.99
    assert abs(np.corrcoef(order, np.arange(2000))[0, 1]) < 0.3
    for part in parts:
        neighbours = np.abs(np.diff(part)) == 1
        assert neighbours.mean() < 0.05  # the rows of a chunk lie apart
        assert len({row // 50 for row in part[:50].tolist()}) >= 6  # and those of all its chunks are mixed


@pytest.fixture
def source(tmp_path):
    return lambda splits, **options: write_source(tmp_path / "rows.pickle", splits, **options)


def pngs(pixels, *sizes):
    return [images.encoded(pixels(1, size, seed=i)[0], "png") for i, size in enumerate(sizes)]


def test_pixels_are_stored_raw_by_default(source, pixels):
    made = source({"train": Content(pixels(50, (28, 28, 1))), "test": Content(pixels(5, (28, 28, 1)))})
    looked = plan.take_sample(made, "source", None, 0)
    assert looked.images == ImageOptions("raw", 1, None, (28, 28, 1))
    for split, count in made.splits.items():
        block = made.read(split, np.arange(count))
        records = make_records(Block(block.images, block.labels, block.keys, {}))
        assert looked.record_bytes[split] == len(records.data) / count
    assert 0 < looked.seconds < 1


def test_files_are_kept_by_default_whatever_their_sizes(source, pixels):
    made = source({"train": Content(pngs(pixels, (8, 8, 1), (9, 30, 3), (40, 4, 3)))})
    looked = plan.take_sample(made, "source", None, 0)
    assert looked.images == ImageOptions("source", 3)
    lengths = [len(file) for file in made.read("train", np.arange(3)).images]
    assert abs(looked.record_bytes["train"] - np.mean(lengths)) < 100


def test_grey_files_alone_are_of_one_channel(source, pixels):
    made = source({"train": Content(pngs(pixels, (8, 8, 1), (9, 9, 1)))})
    assert plan.take_sample(made, "source", None, 0).images.channels == 1
    assert plan.take_sample(made, "png", None, 0).images == ImageOptions("png", 1)
    assert plan.take_sample(made, "png", None, 3).images == ImageOptions("png", 3)


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
    assert plan.take_sample(files, encoding, size, channels).images == options
    arrays = source({"train": Content(pixels(3, (8, 6, 3)))})
    assert plan.take_sample(arrays, encoding, size, channels).images == options
    if encoding == "raw":
        assert plan.take_sample(arrays, "source", size, channels).images == options


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
        plan.take_sample(made, encoding, size, channels)


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
        plan.take_sample(made, encoding, size, channels)
    assert plan.take_sample(made, "raw", None, 0).images == ImageOptions("raw", own, None, (6, 6, own))


@pytest.mark.parametrize(("own", "channels"), [(4, 3), (4, 1), (2, 1), (3, 1), (1, 3)])
def test_transparency_can_be_dropped(own, channels, source, pixels):
    made = source({"train": Content(pixels(4, (6, 6, own)))})
    assert plan.take_sample(made, "raw", (3, 3), channels).images == ImageOptions(
        "raw", channels, (3, 3), (3, 3, channels)
    )


def test_rows_are_taken_from_the_whole_split_or_from_three_chunks(source, pixels):
    made = source({"train": Content(pixels(10_000, (1, 1, 1)))})
    rows = plan._some_rows(made, "train")
    assert (len(rows), rows[0], rows[-1]) == (16, 0, 9999)
    made = source({"train": Content(pixels(1000, (1, 1, 1)), chunks=[0, 100, 0, 2, 398, 0, 500])})
    assert plan._some_rows(made, "train").tolist() == [*range(5), 100, 101, *range(500, 505)]
    made = source({"train": Content(pixels(1, (1, 1, 1)), chunks=[0, 1])})
    assert plan._some_rows(made, "train").tolist() == [0]


def test_bad_rows_in_the_sample_are_passed_over(source, pixels):
    stored = pngs(pixels, *[(6, 6, 3)] * 4)
    stored[1] = b"no image"
    made = source({"train": Content(stored, labels=[0, 1, 99, 3])})
    looked = plan.take_sample(made, "raw", None, 0)
    assert looked.images.shape == (6, 6, 3)
    assert 16 + 108 < looked.record_bytes["train"] < 250


def test_raw_images_of_other_sizes_are_bad_data_wherever_they_lie(source, pixels):
    few = source({"train": Content(pngs(pixels, (8, 6, 3), *[(40, 4, 3)] * 2))})
    with pytest.raises(DataError, match="--image_encoding=raw: .*40x4, 8x6.*--resize=HxW") as caught:
        plan.take_sample(few, "raw", None, 0)
    assert caught.value.exit_code == 1
    assert plan.take_sample(few, "raw", None, 0, max_rejects=1).images.shape == (40, 4, 3)
    half = source({"train": Content(pngs(pixels, *[(8, 6, 3), (40, 4, 3)] * 3))})
    with pytest.raises(DataError, match="--image_encoding=raw"):
        plan.take_sample(half, "raw", None, 0, max_rejects=2)


def test_a_sample_without_an_example_is_an_error_with_its_first_row(source, pixels):
    stored = pngs(pixels, (6, 6, 3), (6, 6, 3), (6, 6, 3))
    stored[0] = b""
    made = source({"train": Content(stored, labels=[1, 77, 99])})
    with pytest.raises(DataError, match="train.rows, row 0: .*empty.* sampled 3 rows"):
        plan.take_sample(made, "source", None, 0)


def test_files_that_are_no_images_at_all_are_one_error(source):
    made = source({"train": Content([b"x", b"y"])})
    for encoding, size in (("source", None), ("raw", None), ("raw", (3, 3)), ("png", None)):
        with pytest.raises(DataError, match="train.rows, row 0: "):
            plan.take_sample(made, encoding, size, 0)


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

    monkeypatch.setattr(plan, "make_records", slow)
    began = time.thread_time()
    assert plan.take_sample(made, "source", None, 0).seconds < 0.03 / 16 * 50_000 / 4
    assert len(runs) > 1
