"""Equal and nearly equal images, rare classes and odd images, found by the command in data sets that have them."""

import base64
import io
import itertools
import json
import pathlib
import pickle
import random
import re
from collections import Counter

import numpy as np
import PIL.Image
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from beam_jobs import validate
from beam_jobs.conversion.command import convert as convert_command
from beam_jobs.validation import findings, near, twins
from pipeline import manifest
from pipeline.errors import UsageError
from pipeline.random_access import RandomAccess
from tests.helpers.raised import said
from tests.helpers.validated import pixels_of, png

SPLIT_OF_SHARD = np.array([0, 1, 1, 2])


def hashed(shard, images, labels=None):
    """Returns [(bucket, hashes)] of a shard of images, each one number."""
    found = twins.Hashed(shard)
    for record, image in enumerate(images):
        label = twins.NO_LABEL_CODE if labels is None else twins.label_code(labels[record])
        found.add(np.array([image, 7], np.uint8).reshape(1, 2, 1), record, label)
    return list(found.groups())


def all_twins(groups):
    buckets = {}
    for bucket, hashes in groups:
        buckets.setdefault(bucket, []).append(hashes)
    return sum((twins.twins(group, SPLIT_OF_SHARD) for group in buckets.values()), twins.Twins())


def by_hand(shards, labels):
    """Counts what `all_twins` does by comparing images one by one."""
    places = [(shard, record, image) for shard, images in enumerate(shards) for record, image in enumerate(images)]
    within, across, disputed = Counter(), Counter(), 0
    for image in {image for _, _, image in places}:
        here = [(shard, record) for shard, record, other in places if other == image]
        counts = Counter(int(SPLIT_OF_SHARD[shard]) for shard, _ in here)
        within.update({split: n - 1 for split, n in counts.items() if n > 1})
        for pair in itertools.combinations(sorted(counts), 2):
            across[pair, 0] += counts[pair[0]]
            across[pair, 1] += counts[pair[1]]
        disputed += len({labels[shard][record] for shard, record in here}) > 1
    pairs = {pair for pair, _ in across}
    return dict(within), {pair: (across[pair, 0], across[pair, 1]) for pair in pairs}, disputed


@pytest.mark.parametrize("seed", range(5))
def test_equal_images_are_counted_within_and_across_splits(seed):
    rng = random.Random(seed)
    shards = [[rng.randrange(40) for _ in range(rng.randrange(1, 30))] for _ in SPLIT_OF_SHARD]
    labels = [[rng.randrange(2) for _ in images] for images in shards]
    groups = [group for i, images in enumerate(shards) for group in hashed(i, images, labels[i])]
    found = all_twins(groups)
    assert (found.within, found.across, found.disputed) == by_hand(shards, labels)
    rng.shuffle(groups)
    assert all_twins([*groups, *groups[:20]]) == found  # in any order, and from a bundle that was retried
    assert pickle.loads(pickle.dumps(found)) == found
    for pair in found.pairs:
        (one, record), (other, second) = pair.first, pair.second
        assert shards[one][record] == shards[other][second]
        assert pair.first < pair.second
        assert pair.is_leak == (SPLIT_OF_SHARD[one] != SPLIT_OF_SHARD[other])
        assert pair.differ == (labels[one][record] != labels[other][second])


def test_images_of_one_content_and_two_shapes_differ():
    found = twins.Hashed(0)
    for record, shape in enumerate([(1, 2, 1), (2, 1, 1), (1, 2, 1)]):
        found.add(np.array([1, 2], np.uint8).reshape(shape), record, 1)
    (pair,) = all_twins(found.groups()).pairs
    assert (pair.first, pair.second) == ((0, 0), (0, 2))


def test_few_pairs_are_kept_of_many(monkeypatch):
    groups = [group for shard in range(4) for group in hashed(shard, [5] * 2000)]
    found = all_twins(groups)
    assert found.within == {0: 1999, 1: 3999, 2: 1999}
    assert found.across == {(0, 1): (2000, 4000), (0, 2): (2000, 2000), (1, 2): (4000, 2000)}
    assert len(found.pairs) == 102
    assert sum(len(hashes.packed) for _, hashes in groups) == 24 * 8000
    assert sum(pair.is_leak for pair in found.pairs) == 2
    assert [pair.second for pair in found.pairs[:3]] == [(0, 1), (0, 2), (0, 3)]


def test_records_without_a_label_dispute_nothing():
    one = hashed(0, [1, 2])
    for labels in ([3, 3], None):
        found = all_twins([*one, *hashed(1, [1, 2], labels)])
        assert found.disputed == 0
        assert [pair.differ for pair in found.pairs] == [False, False]
    assert twins.label_code(0) != twins.label_code(1)
    assert twins.label_code(np.float32([0.5])) != twins.label_code(np.float32([0.25]))
    assert twins.label_code(np.float32([0.0])) != twins.NO_LABEL_CODE


def test_near_hashes_are_all_those_of_few_bits_apart(monkeypatch):
    rng = np.random.default_rng(0)
    hashes = rng.integers(0, 2**63, 400, np.uint64)
    for row in range(0, 400, 2):  # every second one lies 0 to 7 bits from the one before
        bits = rng.choice(64, row // 2 % 8, replace=False)
        hashes[row + 1] = hashes[row] ^ np.bitwise_or.reduce(np.uint64(1) << bits.astype(np.uint64), initial=0)
    first, second, is_cut = near._near_pairs(hashes)
    wanted = [
        (a, b) for a, b in itertools.combinations(range(400), 2) if (int(hashes[a]) ^ int(hashes[b])).bit_count() <= 3
    ]
    assert len(wanted) == 100
    assert list(zip(first.tolist(), second.tolist(), strict=True)) == wanted
    assert not is_cut
    monkeypatch.setattr(near, "_MOST_BEHIND", 3)
    first, _, is_cut = near._near_pairs(np.zeros(100, np.uint64))
    assert is_cut
    assert len(first) == 99 + 98 + 97
    assert near._near_pairs(np.zeros(0, np.uint64))[2] is False


def test_the_nearest_pairs_are_those_that_are_listed(monkeypatch):
    monkeypatch.setattr(near, "MOST_PAIRS", 1)
    packed = np.array([(0b111, 1, 0), (0, 2, 1), (0b1, 3, 2)], near._HASHED)  # 3, 2 and 1 bits apart
    found = near.near_twins([near.NearHashes(0, packed.tobytes())], SPLIT_OF_SHARD)
    assert found.counts == {(0, 0): 3}
    assert [(pair.first, pair.second) for pair in found.pairs] == [((0, 1), (0, 2))]


def image_of(number):
    return png(pixels_of(number, "png"))


def made_of(folder, planted, *flags):
    """Converts 120 training and 4 test images that all differ, but for {row: (image, label)}; returns the folder."""
    images, labels = [image_of(row) for row in range(124)], [f"class {row % 4}" for row in range(124)]
    for row, (image, label) in planted.items():
        images[row], labels[row] = image or images[row], label or labels[row]
    folder.mkdir()
    table = pa.table({"image": images, "label": labels, "split": ["train"] * 120 + ["test"] * 4})
    pq.write_table(table, folder / "t.parquet")
    given = ["--dataset=parquet", f"--source={folder}/t.parquet", f"--data_dir={folder}/out", "--num_shards=2", *flags]
    convert_command("convert", given)
    return folder / "out"


def findings_in(path):
    return {finding["kind"]: finding for finding in json.loads(path.read_text())["findings"]}


def keys_of(finding):
    return sorted(sorted(int(place["key"].split("#")[1]) for place in places) for places in finding["places"])


KINDS = {"raw": ["--image_encoding=raw", "--resize=5x5"], "png": [], "gzip": ["--compression=GZIP"]}


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.quick(1)
def test_planted_leaks_are_found_named_and_fail_the_command_if_asked(tmp_path, run, kind):
    made = made_of(
        tmp_path / "x", {122: (image_of(41), ""), 41: ("", "class 2"), 85: (image_of(3), "class 0")}, *KINDS[kind]
    )
    lines, error = run("--deep", made, f"--report={tmp_path}/report.json")
    assert error == ""
    found = [line for line in lines if line.startswith("found: ")]
    assert "test and train share images, by their pixels: 1 of train (0.83%) and 1 of test (25.00%)" in found[0]
    assert "1 record of train (0.83%) repeats the image of an earlier one" in found[1]
    assert "1 image with conflicting labels" in found[2]
    assert len(found) == 3
    kinds = findings_in(tmp_path / "report.json")
    assert [keys_of(kinds[name]) for name in ("leaks", "duplicates", "labels")] == [[[41, 122]], [[3, 85]], [[3, 85]]]
    ((one, other),) = kinds["leaks"]["places"]
    assert (one["file"].split("-")[0], other["file"].split("-")[0]) == ("test", "train")
    record = RandomAccess(made, "test")[sum(first_of(made, one["file"])) + one["record"]]
    assert record["key"].decode() == one["key"]
    assert {place["label"] for place in kinds["labels"]["places"][0]} == {"class 0", "class 3"}
    for flag in ("leaks", "duplicates", "labels", "leaks,labels"):
        lines, error = run("--deep", made, f"--fail_on={flag}")
        assert f"--fail_on={flag}" in error
        assert ("share images" in error) == ("leaks" in flag)
    runner = "apache_beam.runners.direct.direct_runner.BundleBasedDirectRunner"
    for how in (["--direct_running_mode=multi_threading", "--direct_num_workers=2"], [f"--runner={runner}"]):
        again, _ = run("--deep", made, *how)
        assert [line for line in again if line.startswith("found: ")] == found
    assert not [line for line in run(made)[0] if line.startswith("found: ")]  # pixels are not looked at


def first_of(made, file):
    """Returns the numbers of records of the shards before one of its split."""
    shards = manifest.load(made).splits[file.split("-")[0]].shards
    return [shard.num_examples for shard in itertools.takewhile(lambda shard: shard.file != file, shards)]


def test_images_that_a_retried_bundle_counts_again_count_once(tmp_path):
    content = manifest.load(made_of(tmp_path / "x", {}))
    part = twins.Twins(3, {0: 2}, disputed=1)
    found = findings.of_twins([part, twins.Twins(4, {0: 1}), part], content)
    assert [(finding.kind, finding.count) for finding, _ in found] == [("duplicates", 3), ("labels", 1)]


def test_a_data_set_without_findings_does_not_fail(tmp_path, run):
    lines, error = run("--deep", made_of(tmp_path / "x", {}), "--fail_on=leaks,duplicates,labels")
    assert error == ""
    assert not [line for line in lines if line.startswith("found")]


@pytest.mark.parametrize(
    ("flags", "facts"),
    [
        (["--fail_on=leaks"], ("--fail_on=leaks", "--deep")),
        (["--deep", "--fail_on=leeks"], ("--fail_on", "'leeks'", "leaks")),
        (["--near"], ("--near", "--deep")),
        (["--deep", "--fail_on=near"], ("--fail_on=near", "--near")),
        (["--fail_on=drift"], ("--fail_on=drift", "--compare=DIR")),
        (["--most_drift=0.5"], ("--most_drift=0.5", "--compare")),
        (["--compare=x", "--most_drift=0"], ("--most_drift=0", "above 0")),
        (["--compare=x", "--fail_on=leaks"], ("--fail_on=leaks", "--deep")),
    ],
)
def test_flags_that_need_others_are_refused(tmp_path, flags, facts):
    with pytest.raises(UsageError, check=said(*facts)):
        validate.main([*flags, str(tmp_path)])


@pytest.mark.slow
def test_all_pairs_are_listed_where_they_make_the_command_fail(tmp_path, run):
    made = made_of(tmp_path / "x", {80 + row: (image_of(row), "") for row in range(10)})
    lines, error = run("--deep", made)
    assert error == ""
    assert len([line for line in lines if line.startswith("  train")]) == 3
    assert "  and more; --report=FILE lists 10" in lines
    lines, error = run("--deep", made, "--fail_on=duplicates", "--card")
    assert "repeat the image of an earlier one" in (pathlib.Path(made) / "card.html").read_text()
    pairs = [line for line in lines if line.startswith("  train")]
    assert len(pairs) == 10
    place = r"train-0000\d-of-00002\.tfrecord, record \d+ \(key 't.parquet#\d+', label class \d\)"
    assert all(re.fullmatch(f"  {place} = {place}", line) for line in pairs)
    assert "10 records of train (8.33%) repeat the image of an earlier one" in error


def test_odd_images_and_rare_classes_are_found(tmp_path, run):
    big = png(np.random.default_rng(0).integers(0, 256, (60, 5, 3), np.uint8).repeat(30, axis=0))
    white = png(np.full((4, 5, 3), 255, np.uint8))
    lines, _ = run("--deep", made_of(tmp_path / "odd", {7: (white, ""), 49: (big, "")}))
    text = "\n".join(lines)
    assert "found: 1 image far darker or brighter than most" in text
    assert "(key 't.parquet#007', label class 3)" in text
    assert "found: 1 image more than 4 times smaller or larger than most, a square of whose area has sides of 5" in text
    assert "(key 't.parquet#049', label class 1)" in text
    rare = {row: ("", f"class {row % 2}") for row in range(119)} | dict.fromkeys(range(120, 124), ("", "class 1"))
    lines, _ = run("--deep", made_of(tmp_path / "rare", {119: ("", "class 7"), **rare}))
    assert "found: 1 class of train with fewer than 10 records: class 7 (1)" in lines
    assert "found: 2 classes of test with no record: class 0, class 7" in lines


def test_boxes_without_an_area_in_their_image_and_points_outside_of_it_are_found(tmp_path, run):
    boxes = [[[0.1, 0.1, 0.5, 0.5]] for _ in range(8)]
    boxes[2] += [[0.2, 0.2, 0.2, 0.9], [0.2, 0.2, 0.9, 0.2]]
    boxes[5] = [[1.5, 0.1, 1.8, 0.3]]
    points = [[[0.5, 0.5]] for _ in range(8)]
    points[3] = [[0.5, 1.2], [0.5, 0.4]]
    table = pa.table({"image": [*map(image_of, range(8))], "label": ["x"] * 8, "boxes": boxes, "points": points})
    pq.write_table(table, tmp_path / "t.parquet")
    given = ["--dataset=parquet", f"--source={tmp_path}/t.parquet", f"--data_dir={tmp_path}/out", "--num_shards=2"]
    convert_command("convert", [*given, "--boxes_column=boxes", "--points_column=points"])
    run("--deep", tmp_path / "out", f"--report={tmp_path}/report.json")
    found = findings_in(tmp_path / "report.json")
    assert found["boxes"]["text"] == "3 of 10 boxes have no area in their image, and are fed with the weight 0"
    assert (found["boxes"]["count"], keys_of(found["boxes"])) == (3, [[2], [5]])
    assert found["points"]["text"] == "1 of 9 points lie outside of their image, and are fed with the weight 0"
    assert keys_of(found["points"]) == [[3]]


def test_images_that_are_nearly_all_alike_are_not_odd():
    for level, count in ((120, 0), (130, 1)):
        found = findings.of_brightness(Counter({100: 199, level: 1}), findings.Extremes())
        assert [finding.count for finding, _ in found] == [1] * count


def test_the_outermost_records_are_the_examples_of_odd_images():
    extremes = findings.Extremes()
    for record in range(100):
        extremes.add(float(record * 37 % 100), 0, record)
    assert [value for value, _, _ in extremes.outside(5, 90)] == [0, 1, 2, 99, 98, 97]
    few = findings.Extremes([(float(value), 0, value) for value in range(10)])
    assert [value for value, _, _ in few.outside(1.5, 4.5)] == [0, 1, 9, 8, 7]


def test_nearly_equal_images_are_found_and_equal_ones_are_no_such_pair(tmp_path, run):
    pytest.importorskip("imagehash")
    picture = np.random.default_rng(1).integers(0, 200, (8, 8, 3), np.uint8).repeat(8, axis=0).repeat(8, axis=1)
    planted = {121: (png(picture), ""), 4: (png(picture + np.uint8(9)), ""), 46: (png(picture), "")}
    made = made_of(tmp_path / "x", planted)
    _, error = run("--deep", "--near", made, "--fail_on=near", f"--report={tmp_path}/report.json")
    assert "1 pair of nearly equal images, one in test, one in train" in error
    kinds = findings_in(tmp_path / "report.json")
    assert (keys_of(kinds["near"]), keys_of(kinds["near_duplicates"])) == ([[4, 121]], [[4, 46]])
    assert keys_of(kinds["leaks"]) == [[46, 121]]
    assert not [line for line in run("--deep", made)[0] if "of nearly" in line]


@pytest.mark.slow
def test_the_card_shows_what_was_found_if_pixels_are_looked_at(tmp_path, run):
    made = made_of(tmp_path / "x", {122: (image_of(41), ""), 85: (image_of(3), "class 0")})
    assert run("--card", made)[1] == ""
    assert "What may be wrong" not in (made / "card.html").read_text()
    assert run("--deep", "--card", made)[1] == ""
    page = (made / "card.html").read_text()
    section = page[page.index("What may be wrong") : page.index("<h2>Splits")]
    assert "Test and train share images" in section
    assert "repeats the image of an earlier one" in section
    pictures = re.findall(r'<img src="data:image/png;base64,([^"]*)" alt="([^"]*)"', section)
    shared = {
        caption.split("#")[1]: base64.b64decode(data) for data, caption in pictures if caption.endswith(("122", "041"))
    }
    one, other = (np.asarray(PIL.Image.open(io.BytesIO(shared[key]))) for key in ("041", "122"))
    assert np.array_equal(one, pixels_of(41, "png"))
    assert np.array_equal(one, other)
    assert any(caption.startswith("test, class 2, t.parquet#122") for _, caption in pictures)
    assert run("--deep", made)[1] == ""  # the card is this data set's, and unaltered
    fine = made_of(tmp_path / "fine", {})
    assert run("--deep", "--card", fine)[1] == ""
    assert "No two images are equal, and no class and no image stands out." in (fine / "card.html").read_text()
