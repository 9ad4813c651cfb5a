import dataclasses

import pytest

from beam_jobs.report.summary import summary
from pipeline.manifest import Feature, Manifest, ShardInfo, SplitInfo


def split(name, examples, rejects=0, sizes=None):
    shard = ShardInfo(f"{name}-00000-of-00001.tfrecord", examples, examples * 2048, "00000000", 2048)
    return SplitInfo((shard,), (examples,), sizes or {"28x28": examples}, rejects)


def made(shape=(28, 28, 1), encoding="raw", compression="", **splits):
    splits = splits or {"test": split("test", 512), "train": split("train", 1536)}
    image = Feature("uint8", shape, encoding)
    return Manifest("mine", ("a",), {"image": image}, splits, (0.0,), (1.0,), (), {}, compression)


def training(manifest, data_dir="out"):
    return summary(manifest, data_dir, 1.0, 1.0).splitlines()[-1]


def test_it_says_what_where_how_fast_and_what_next():
    assert summary(made(), "my data", 0.5, 3.0, has_card=True).splitlines() == [
        "mine is in my data:",
        "  train: 1,536 examples, 1 shard, 3.0 MiB",
        "  test: 512 examples, 1 shard, 1.0 MiB",
        "  raw images of 28x28x1",
        "  0.5 s, 4,096 examples/s (3.0 s with start-up and checks)",
        "look at it:  my data/card.html",
        "or:          python -m pipeline.inspect 'my data'",
        "train on it: python -m trainer.run --data_dir='my data' --model_dir='my data-run' --model=lenet "
        "--strategy=mirrored",
    ]


def test_without_a_card_the_first_thing_to_look_with_is_inspect():
    lines = summary(made(), "out", 0.5, 3.0).splitlines()
    assert lines[-2] == "look at it:  python -m pipeline.inspect out"
    assert "card" not in "".join(lines)


def test_the_rate_is_of_the_work_of_this_run():
    text = summary(made(), "out", 0.5, 3.0, resumed=0.75)
    assert "  0.5 s, 1,024 examples/s (3.0 s with start-up and checks); 75% was done by an earlier run" in text


@pytest.mark.parametrize(
    ("rejects", "line"),
    [
        (1, "  1 row of the source is no example and was left out: out/rejects.jsonl"),
        (1200, "  1,200 rows of the source are no examples and were left out: out/rejects.jsonl"),
    ],
)
def test_rows_that_were_left_out_are_counted(rejects, line):
    assert line in summary(made(train=split("train", 10, rejects)), "out/", 1.0, 1.0).splitlines()
    assert "left out" not in summary(made(train=split("train", 10)), "out", 1.0, 1.0)


@pytest.mark.parametrize(
    ("shape", "model"),
    [((32, 32, 3), "cifar10_cnn"), ((28, 28, 1), "lenet"), ((16, 16, 3), "lenet"), ((8, 8, 1), "mlp")],
)
def test_the_model_fits_the_images(shape, model):
    assert f" --model={model} " in training(made(shape))


@pytest.mark.parametrize(
    ("names", "flags"),
    [
        (["train", "test"], ""),
        (["train", "validation", "test"], ""),
        (["train", "test2", "validation"], " --eval_split=validation"),
        (["train"], " --eval_split=none"),
        (["all"], " --train_split=all --eval_split=none"),
        (["test"], " --train_split=test --eval_split=none"),
        (["letters", "digits"], " --train_split=letters --eval_split=digits"),
    ],
)
def test_the_splits_are_those_that_there_are(names, flags):
    splits = {name: split(name, 100 - place) for place, name in enumerate(names)}
    assert training(made(**splits)).endswith(f" --strategy=mirrored{flags}")


@pytest.mark.parametrize(
    ("shape", "encoding", "compression", "flags"),
    [
        ((28, 28, 1), "raw", "GZIP", "no --compression"),
        ((28, 28, 1), "png", "", "--image_encoding=raw"),
        ((None, 500, 3), "jpeg", "", "--image_encoding=raw and --resize=HxW"),
        ((None, None, None), "any", "GZIP", "--image_encoding=raw, --resize=HxW, --channels=3 and no --compression"),
    ],
)
def test_of_data_that_the_trainer_cannot_read_it_says_how_to_convert_it(shape, encoding, compression, flags):
    line = training(made(shape, encoding, compression))
    assert line == f"train on it: the trainer reads raw images of one size, not compressed: convert with {flags}"


def test_images_that_differ_are_described_by_their_most_common_sizes():
    sizes = {"100x80": 3, "80x100": 5, "9x10": 1, "10x10": 1}
    manifest = made((None, None, 3), "any", "GZIP", train=split("train", 10, sizes=sizes))
    assert summary(manifest, "out", 1.0, 1.0).splitlines()[2] == (
        "  png and jpeg images, colour, of 4 sizes: 80x100, 100x80, 9x10 and 1 more, shards compressed with GZIP"
    )


def test_classes_that_are_not_mixed_are_a_warning():
    shards = tuple(ShardInfo(f"{i}", 100, 9, "00000000", None, None, 0.0) for i in range(2))
    sorted_by_class = dataclasses.replace(made(), splits={"train": SplitInfo(shards, (100, 100))})
    lines = summary(sorted_by_class, "out", 1.0, 1.0).splitlines()
    assert [line for line in lines if line.startswith("warning: ")] == [
        "warning: the classes are badly mixed over the shards of train (0.00 bits of label entropy a shard, 0.99 if "
        "well mixed): a trainer whose shuffle does not hold the whole split gets batches of few classes; --passes=2 "
        "mixes them row by row"
    ]


def test_of_a_data_set_on_an_object_store_no_command_is_shown_that_cannot_read_it():
    lines = summary(made(), "s3://bucket/digits", 1.0, 1.0, has_card=True).splitlines()
    assert lines[-2:] == [
        "look at it:  s3://bucket/digits/card.html",
        "the other commands read local or mounted folders",
    ]
