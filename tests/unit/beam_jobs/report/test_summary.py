import dataclasses
import math
import re
import shlex
from collections import Counter

import numpy as np
import pytest

from beam_jobs.report.summary import ImageFacts, expected_entropy, judge, mixing_warning, summary
from pipeline.commands import commandline
from pipeline.inspect.__main__ import InspectConfig
from pipeline.manifest import Feature, Manifest, ShardInfo, SplitInfo
from pipeline.read.statistics import entropy, label_histogram

NAMES = tuple(map(str, range(31)))


def split(name, examples, rejects=0, sizes=None):
    shard = ShardInfo(f"{name}-00000-of-00001.tfrecord", examples, examples * 2048, "00000000", 2048)
    return SplitInfo((shard,), (examples,), sizes or {"28x28": examples}, rejects)


def made(shape=(28, 28, 1), encoding="raw", compression="", **splits):
    splits = splits or {"test": split("test", 512), "train": split("train", 1536)}
    features = {"image": Feature("uint8", shape, encoding), "label": Feature("int64")}
    return Manifest("mine", ("a",), features, splits, (0.0,), (1.0,), (), {}, compression)


def test_it_says_what_where_how_fast_and_what_next():
    lines = summary(made(), "my data", 0.5, 3.0, has_card=True).splitlines()
    assert len(lines) == 8
    for line, facts in zip(
        lines,
        [
            ("mine", "my data"),
            ("train", "1,536", "1 shard", "3.0 MiB"),
            ("test", "512", "1.0 MiB"),
            ("raw", "28x28x1"),
            ("0.5 s", "4,096 examples/s", "3.0 s"),
            ("my data/card.html",),
            ("python -m pipeline.inspect 'my data'",),
            ("python -m trainer.run 'my data'",),
        ],
        strict=True,
    ):
        assert all(fact in line for fact in facts), line
    assert "card" not in summary(made(), "out", 0.5, 3.0)


def test_the_rate_is_of_the_work_of_this_run():
    assert re.search(r"0\.5 s, 1,024 examples/s \(3\.0 s.*75%", summary(made(), "out", 0.5, 3.0, resumed=0.75))
    assert re.search(r"0\.5 s \(3\.0 s.*100%", summary(made(), "out", 0.5, 3.0, resumed=1.0))


def test_the_next_command_trains_on_all_folds_but_the_last():
    of_folds = dataclasses.replace(made(**{f"fold{n}": split(f"fold{n}", 9) for n in range(3)}), options={"folds": 3})
    last = summary(of_folds, "out", 1.0, 1.0).splitlines()[-1]
    assert last.endswith("trainer.run out --train_split=fold0+fold1 --eval_split=fold2")


@pytest.mark.parametrize("label", [Feature("float32"), Feature("int64", (1,))])
def test_labels_that_are_no_classes_need_a_task(label):
    of_classes = made()
    others = dataclasses.replace(of_classes, features=of_classes.features | {"label": label})
    lines = [summary(manifest, "out", 1.0, 1.0).splitlines()[-1] for manifest in (of_classes, others)]
    assert lines[1] == f"{lines[0]} --task=MODULE:CLASS"
    unevaluated = dataclasses.replace(others, splits={"train": others.splits["train"]})
    assert summary(unevaluated, "out", 1.0, 1.0).splitlines()[-1] == f"{lines[1]} --eval_split=none"


def test_invalid_rows_are_counted():
    text = summary(made(train=split("train", 10, rejects=1200)), "out/", 1.0, 1.0)
    assert re.search(r"1,200 .*out/rejects\.jsonl", text)
    assert "rejects" not in summary(made(), "out", 1.0, 1.0)


def test_images_that_differ_are_described_by_their_most_common_sizes():
    sizes = {"100x80": 3, "80x100": 5, "9x10": 1, "10x10": 1}
    manifest = made((None, None, 3), "any", "GZIP", train=split("train", 10, sizes=sizes))
    line = summary(manifest, "out", 1.0, 1.0).splitlines()[2]
    assert re.search(r"png and jpeg .*4 sizes: 80x100, 100x80, 9x10 and 1 more, the largest 100x80.*GZIP", line)


def test_of_very_many_sizes_it_says_how_many_and_the_largest():
    images = ImageFacts(Counter({(i, 9): 1 for i in range(1, 200)} | {(480, 640): 7}))
    manifest = made((None, None, 3), "jpeg", train=split("train", 206, sizes={"64x64": 199, "512x640": 7}))
    line = summary(manifest, "out", 1.0, 1.0, images=images).splitlines()[2]
    assert line == "  jpeg images, colour, of 200 sizes: 480x640, 1x9, 2x9 and 197 more, the largest 480x640"


def test_labels_with_gaps_are_a_warning():
    def warnings(*histograms, names="abcdef"):
        splits = {f"s{i}": dataclasses.replace(split("s", 1), label_histogram=h) for i, h in enumerate(histograms)}
        manifest = dataclasses.replace(made(**splits), class_names=tuple(names))
        return [line for line in summary(manifest, "out", 1.0, 1.0).splitlines() if line.startswith("warning: no ")]

    (line,) = warnings((5, 5, 0, 0, 0, 5), names="012345")
    assert line.startswith("warning: no example has label 2, 3, 4, although labels go up to 5: ")
    (line,) = warnings((0, 5, 0), (0, 0, 1))
    assert line.startswith("warning: no example has label 0 (a), although labels go up to 2 (c): ")
    assert warnings((1, 0), (0, 1)) == []
    assert warnings((1, 1, 0)) == []  # a class without examples after the last is not a gap
    (line,) = warnings((0,) * 30 + (1,), names=NAMES)
    assert " 9 and 20 more, although labels go up to 30: " in line


def test_images_that_were_turned_are_counted():
    images = ImageFacts(Counter({(8, 6): 3}), turned=1)
    text = summary(made((8, 6, 3), "jpeg"), "out", 1.0, 1.0, images=images)
    assert re.search("^  1 image file turned upright, as the EXIF orientation says: encoded again ", text, re.M)
    assert "warning" not in text
    assert "without loss" in summary(made((8, 6, 3), "png"), "out", 1.0, 1.0, images=images)
    assert "turned" not in summary(made((8, 6, 3), "png"), "out", 1.0, 1.0, images=ImageFacts(Counter({(8, 6): 3})))


@pytest.mark.parametrize(
    ("facts", "done"),
    [({"are_resized": True}, "resized"), ({"turned": 2}, "turned upright"), ({}, None)],
)
def test_masks_beside_images_that_were_changed_are_a_warning(facts, done):
    images = ImageFacts(Counter({(8, 6): 3}), beside=("mask", "bbox"), **facts)
    text = summary(made((8, 6, 3), "jpeg"), "out", 1.0, 1.0, images=images)
    assert (f"warning: only the images were {done}: the kept features mask, bbox may refer" in text) == bool(done)


def test_classes_that_are_not_mixed_are_a_warning():
    shards = tuple(ShardInfo(f"{i}", 100, 9, "00000000", None, None, 0.0) for i in range(2))
    sorted_by_class = dataclasses.replace(made(), splits={"train": SplitInfo(shards, (100, 100))})
    lines = summary(sorted_by_class, "out", 1.0, 1.0).splitlines()
    (warning,) = (line for line in lines if line.startswith("warning: "))
    assert re.search(r"train \(0\.00 bits .*0\.99 .*--passes=2", warning)


def test_the_next_commands_name_a_data_set_on_an_object_store():
    lines = summary(made(), "s3://bucket/digits", 1.0, 1.0, has_card=True).splitlines()
    assert lines[-3].endswith(" s3://bucket/digits/card.html")
    assert lines[-2].endswith(" python -m pipeline.inspect s3://bucket/digits")
    assert lines[-1].endswith(" python -m trainer.run s3://bucket/digits")


def test_the_next_commands_have_the_stores_options_and_no_secret():
    url = "s3://key:s3cret@bucket/my data?endpoint_override=127.0.0.1:9000&scheme=http&session_token=x"
    lines = summary(made(), "s3://bucket/my data", 1.0, 1.0, url=url).splitlines()
    place = "'s3://bucket/my data?endpoint_override=127.0.0.1:9000&scheme=http'"
    assert f"python -m pipeline.inspect {place}" in lines[-3]
    assert lines[-2].endswith(f"python -m trainer.run {place}")
    assert "AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY" in lines[-1]
    assert not any(secret in line for line in lines for secret in ("s3cret", "key:", "session_token"))
    without = summary(made(), "s3://bucket", 1.0, 1.0, url="s3://bucket?region=eu").splitlines()
    assert without[-1] == "train on it: python -m trainer.run 's3://bucket?region=eu'"


@pytest.mark.parametrize("name", ["it's $x & [b]", "-dash", "a,b", "w=0.5", "\u00fcber `n`", "x\\y", "#x"])
def test_the_next_commands_take_any_name(name):
    inspect, training = (line.partition("python -m ")[2] for line in summary(made(), name, 1.0, 1.0).splitlines()[-2:])
    inspected = InspectConfig(name if name[0] != "-" else f"./{name}")
    assert commandline.parse("a", "", InspectConfig, shlex.split(inspect)[1:]) == inspected
    assert shlex.split(training)[1:] == [inspected.data_dir]


def split_of(pieces, classes):
    shards = tuple(
        ShardInfo("x", len(piece), 0, "00000000", None, None, entropy(label_histogram(piece, classes)))
        for piece in pieces
    )
    return SplitInfo(shards, label_histogram(np.concatenate(pieces), classes))


def judged(pieces, classes):
    return judge("train", split_of(pieces, classes))


def drawn(draw, records, classes, kind):
    weights = np.ones(classes) if kind == "even" else 1.0 / np.arange(1, classes + 1) ** 1.5
    if kind == "rare":
        weights = np.array([1.0] + [0.01 / (classes - 1)] * (classes - 1))
    return draw.choice(classes, records, p=weights / weights.sum())


@pytest.mark.parametrize("kind", ["even", "uneven", "rare"])
@pytest.mark.parametrize("classes", [2, 10, 100, 1000])
@pytest.mark.parametrize("shards", [2, 4, 16, 100])
@pytest.mark.parametrize("records", [5, 50, 500, 5000])
@pytest.mark.quick(6)
def test_shards_that_are_dealt_at_random_never_warn(records, shards, classes, kind):
    draw = np.random.default_rng([records, shards, classes, len(kind)])
    for _ in range(3 if records * shards < 10**5 else 1):
        found = judged(np.array_split(drawn(draw, records * shards, classes, kind), shards), classes)
        assert found is None or not found.is_bad, found


@pytest.mark.parametrize(("classes", "records"), [(2, 50), (10, 50), (10, 5000), (100, 500), (1000, 5000)])
@pytest.mark.parametrize("shards", [2, 4, 16, 100])
def test_shards_of_a_source_that_is_sorted_by_class_always_warn(shards, classes, records):
    labels = np.sort(drawn(np.random.default_rng(classes), records * shards, classes, "even"))
    found = judged(np.array_split(labels, shards), classes)
    assert found.is_bad, found


@pytest.mark.parametrize("shards", [4, 16])
@pytest.mark.parametrize("classes", [10, 100])
def test_chunks_of_one_class_each_that_are_dealt_to_shards_warn(classes, shards):
    draw = np.random.default_rng(0)
    chunks = np.array_split(np.sort(drawn(draw, 1000 * shards, classes, "even")), 4 * shards)
    dealt = np.concatenate([chunks[i] for i in draw.permutation(len(chunks))])
    assert judged(np.array_split(dealt, shards), classes).is_bad


def test_one_shard_one_class_or_no_record_is_nothing_to_mix():
    assert judged([np.array([0, 0, 1, 1])], 2) is None
    assert judged([np.array([0, 0]), np.array([], np.int64), np.array([0])], 2) is None
    assert judged([np.array([0, 1]), np.array([], np.int64)], 2) is None
    assert judge("train", SplitInfo((), ())) is None


@pytest.mark.parametrize("records", [5, 50, 500, 5000])
@pytest.mark.parametrize("classes", [2, 10, 100, 1000])
def test_the_expected_entropy_is_that_of_random_samples_or_somewhat_less(classes, records):
    draw = np.random.default_rng(1)
    samples = draw.multinomial(records, np.ones(classes) / classes, 200)
    found = float(np.mean([entropy(sample.tolist()) for sample in samples]))
    expected = expected_entropy(math.log2(classes), classes, 1 / classes, records)
    assert 0.85 * found < expected < found + 0.1


def manifest(passes=None, **splits):
    options = {"seed": 0} | ({"passes": passes} if passes else {})
    return Manifest("mine", (), {}, splits, (), (), (), options)


def test_the_warning_names_the_splits_and_the_remedy_once():
    bad = split_of([np.zeros(100, int), np.ones(100, int)], 2)
    good = split_of([np.arange(100) % 2, np.arange(100) % 2], 2)
    text = mixing_warning(manifest(train=bad, validation=good, test=bad))
    assert re.search(r"train \(0\.00 .*0\.99 .*test \(0\.00 ", text)
    assert "validation" not in text
    assert text.count("--passes=2") == 1
    assert "\n" not in text
    assert mixing_warning(manifest(train=good)) is None


def test_two_passes_are_no_remedy_after_two_passes():
    bad = split_of([np.zeros(100, int), np.ones(100, int)], 2)
    assert "--passes" not in mixing_warning(manifest(2, train=bad))


def test_a_version_is_mixed_in_another_folder():
    bad = split_of([np.zeros(100, int), np.ones(100, int)], 2)
    version = dataclasses.replace(manifest(train=bad), parent="0" * 64, version=2)
    assert "converted into another folder with --passes=2" in mixing_warning(version)
