"""What the command says of two data sets: what has drifted, by how much, and which images are in both."""

import io
import json

import numpy as np
import PIL.Image
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from beam_jobs import validate
from beam_jobs.conversion.command import convert
from beam_jobs.validation import drift
from pipeline import manifest
from pipeline.errors import DataError, UsageError
from tests.helpers.raised import said

OLD, NEW = ("a", "b"), ("a", "b", "b", "b", "b", "b", "b", "b", "b", "c")


def file_of(number, side=6, least=0):
    """Returns a PNG file of random grey values between `least` and `least` + 100."""
    pixels = np.random.default_rng(number).integers(least, least + 101, (side, side), np.uint8)
    stream = io.BytesIO()
    PIL.Image.fromarray(pixels).save(stream, "png")
    return stream.getvalue()


def findings_in(report, kind):
    return [one for one in json.loads(report.read_text())["findings"] if one["kind"] == kind]


def data_set(folder, counts, classes=OLD, first=0, ages=lambda n: float(n % 50), sites=lambda n: "xy"[n % 2], **looks):
    """Converts {split: images}, each with the number that it has over all splits, and returns the folder."""
    rows = [(split, n) for split, numbers in counts.items() for n in numbers]
    folder.mkdir()
    table = {
        "image": [file_of(first + n, **looks) for _, n in rows],
        "label": [classes[n % len(classes)] for _, n in rows],
        "split": [split for split, _ in rows],
        "age": pa.array([ages(n) for _, n in rows], pa.float32()),
        "site": [sites(n) for _, n in rows],
        "id": [n for _, n in rows],
    }
    pq.write_table(pa.table(table), folder / "t.parquet")
    flags = [f"--source={folder}/t.parquet", f"--data_dir={folder}/out", "--keep_columns=age,site,id"]
    convert("convert", ["--dataset=parquet", *flags, "--num_shards=2"])
    return folder / "out"


@pytest.fixture
def old(tmp_path):
    return data_set(tmp_path / "old", {"train": range(200), "test": range(200, 240)})


def test_psi_is_that_of_the_formula_and_chance_alone_stays_below_its_bound():
    found, _, bins = drift.psi({"a": 500, "b": 500}, {"a": 800, "b": 200})
    assert found == pytest.approx(0.3 * np.log(0.8 / 0.5) + 0.3 * np.log(0.5 / 0.2), abs=2e-3)
    assert bins == ["b", "a"]
    assert drift.psi({"a": 10}, {"a": 3})[0] == 0
    draw = np.random.default_rng(0)
    beyond = 0
    for _ in range(1000):
        one, two = (draw.multinomial(400, [0.02] * 50) for _ in range(2))
        found, chance, _ = drift.psi(dict(enumerate(one)), dict(enumerate(two)))
        beyond += found > chance
    assert beyond <= 5
    assert chance > drift.MOST_DRIFT  # of so many bins and so few records, which the rule of thumb would call drift


def test_what_has_drifted_is_said_with_figures_and_fails_the_command_if_asked(tmp_path, old, run):
    new = data_set(
        tmp_path / "new", {"train": range(300), "validation": range(300, 310)}, NEW, first=5000, side=12, least=60,
        ages=lambda n: 30.0 + n % 50 if n % 4 else float("nan"), sites=lambda n: "xy"[n % 2],
    )  # fmt: skip
    lines, error = run(new, f"--compare={old}", f"--report={tmp_path}/report.json")
    assert error == ""
    kinds = {}
    for line in lines:
        kind, _, text = line.partition(": ")
        kinds.setdefault(kind, []).append(text.replace(str(old), "OLD"))
    assert kinds["compared"] == [
        "1 split only in OLD: test",
        "1 split not in OLD: validation",
        "train: 300 records, 200 in OLD (+50.0%); PSI: classes 1.141, sizes of images 12.341, column age 4.274, "
        "column bytes 10.977, column site 0.000",
        "pixels: mean 109.9 (50.0 in OLD), standard deviation 29.2 (29.2 in OLD)",
    ]
    assert kinds["found"] == [
        "train has gained 1 class against OLD: c (30)",
        "classes of train drifted from OLD: PSI 1.14, over 0.25; most of it: a 10.0% (50.0%), c 10.0% (0.0%), b 80.0% "
        "(50.0%)",
        "sizes of images of train drifted from OLD: PSI 12.34, over 0.25; most of it: 6x6 0.0% (100.0%), 12x12 100.0% "
        "(0.0%)",
        "column age of train drifted from OLD: PSI 4.27, over 0.25; most of it: missing 25.0% (0.0%), above 44.1 53.0% "
        "(10.0%), 14.7 to 19.6 0.0% (10.0%)",
        "column bytes of train drifted from OLD: PSI 10.98, over 0.25; most of it: above 216 100.0% (0.0%), 214 to 215 "
        "0.0% (37.0%), up to 213 0.0% (27.0%)",
        "the brightness of images has drifted: mean of the pixels 109.9 (50.0 in OLD), by +2.05 standard deviations; "
        "over 0.25",
    ]
    found = [one["text"].replace(str(old), "OLD") for one in findings_in(tmp_path / "report.json", "drift")]
    assert found == kinds["found"]
    error = run(new, f"--compare={old}", "--fail_on=drift")[1]
    assert error.startswith(f"{new}: --fail_on=drift: train has gained 1 class")
    lines, _ = run(old, f"--compare={new}", "--most_drift=5")  # the other way round, and a larger bound
    found = [line.replace(str(new), "NEW") for line in lines if line.startswith("found: ")]
    assert found[0] == "found: train has lost 1 class against NEW: c (30)"
    assert [line.split(" of train")[0] for line in found[1:]] == ["found: sizes of images"]


def test_what_chance_makes_of_few_records_and_many_classes_is_no_drift():
    def of(counts):
        shard = manifest.ShardInfo("train-00000-of-00001.tfrecord", sum(counts), 1, "00000000", None)
        split = manifest.SplitInfo((shard,), tuple(counts))
        return manifest.Manifest("x", (), {}, {"train": split}, (), (), (), {})

    def found(one, two):
        return list(drift.of_data(None, of(one), drift.Other(None, of(two), "OLD")))

    draw = np.random.default_rng(1)
    one, two = ([int(n) for n in draw.multinomial(200, [0.02] * 50)] for _ in range(2))
    (alike,) = found(one, two)
    assert float(alike.text.rpartition(" ")[2]) > drift.MOST_DRIFT
    drifted, _ = found([1] * 50 + [100, 0], [1] * 50 + [0, 100])[2:]
    assert drifted.text.startswith("classes of train drifted from OLD: PSI ")


def test_contrast_and_channels():
    def texts(ours, theirs):
        found = drift._of_pixels(of(*ours), drift.Other(None, of(*theirs), "OLD"))
        return [one.text for one in found if one.kind == "drift"]

    def of(mean, std):
        return manifest.Manifest("x", (), {}, {}, mean, std, (), {})

    assert texts(((100.0, 50.0), (40.0, 40.0)), ((105.0, 50.0), (30.0, 40.0))) == []
    assert texts(((100.0,), (60.0,)), ((100.0,), (40.0,))) == [
        "the contrast of images has drifted: standard deviation of the pixels 60.0 (40.0 in OLD); variances are more "
        "than 2 times apart"
    ]
    assert texts(((1.0,), (1.0,)), ((1.0, 1.0, 1.0), (1.0, 1.0, 1.0))) == ["images have 1 channel, 3 in OLD"]
    assert texts(((1.0,), (0.0,)), ((1.0,), (0.0,))) == []


def test_many_sizes_are_compared_by_area():
    def of(sizes):
        return manifest.SplitInfo((), (), {f"{side}x{side + 1}": 10 for side in sizes})

    one, two = drift._sizes(of(range(100, 140)), of(range(400, 440)))
    assert one == {"about 128 pixels": 280, "about 181 pixels": 120}  # sides are rounded up to 128 and 192
    assert two == {"about 512 pixels": 400}


@pytest.mark.parametrize("version", ["", "@1"])
@pytest.mark.quick(1)
def test_images_of_both_are_found_by_their_pixels(tmp_path, old, run, version):
    new = data_set(tmp_path / "new", {"train": range(300, 400), "validation": [*range(5), 230, 500]})
    lines, error = run(
        "--deep", new, f"--compare={old}{version}", "--fail_on=leaks", f"--report={tmp_path}/report.json"
    )
    found = [line.replace(f"{old}{version}", "OLD") for line in lines if "share images" in line]
    assert found == [
        "found: validation and test of OLD share images, by their pixels: 1 of validation (14.29%) and 1 of test of "
        "OLD (2.50%)",
        "found: validation and train of OLD share images, by their pixels: 5 of validation (71.43%) and 5 of train of "
        "OLD (2.50%)",
    ]
    assert "--fail_on=leaks: validation and test" in error
    assert "checking 107 records in 4 shards" in lines[0]
    places = findings_in(tmp_path / "report.json", "leaks")[1]["places"]
    assert sorted(place[0]["key"] for place in places) == [f"t.parquet#{100 + n}" for n in range(5)]
    assert sorted(place[1]["key"] for place in places) == [f"t.parquet#{n:03d}" for n in range(5)]
    assert all(place[1]["file"].startswith(f"{old}{version}/train-") for place in places)
    assert run("--deep", "--card", new, f"--compare={old}")[1] == ""


def test_a_data_set_has_not_drifted_from_itself(old, run):
    lines, error = run("--deep", old, f"--compare={old}", "--fail_on=drift,leaks")
    assert error == ""
    shared = [line for line in lines if line.startswith("found: ")]
    assert [line.replace(str(old), "OLD").partition(": ")[2] for line in shared] == [
        f"{split} and {split} of OLD share images, by their pixels: {n} of {split} (100.00%) and {n} of {split} of OLD "
        "(100.00%)"
        for split, n in (("test", 40), ("train", 200))
    ]


@pytest.mark.slow
def test_what_cannot_be_read_of_the_other_is_said(tmp_path, old, run):
    new = data_set(tmp_path / "new", {"train": range(300, 310)})
    shard = old / manifest.load(old).splits["test"].shards[0].file
    shard.write_bytes(shard.read_bytes()[:-20])
    lines, error = run("--deep", new, f"--compare={old}")
    assert error == f"{new}: 1 problem in the other files"
    assert any(line.startswith(f"{old}/{shard.name}: ") and "compared in part" in line for line in lines)
    assert run(new, f"--compare={old}")[1] == ""  # its manifest says all


@pytest.mark.parametrize(
    ("flags", "facts"),
    [
        (["--fail_on=drift"], ("--fail_on=drift", "--compare=DIR")),
        (["--most_drift=0.5"], ("--most_drift=0.5", "--compare")),
        (["--compare=x", "--most_drift=0"], ("--most_drift=0", "above 0")),
        (["--compare=x", "--fail_on=leaks"], ("--fail_on=leaks", "--deep")),
    ],
)
def test_flags_that_need_others_are_refused(tmp_path, flags, facts):
    with pytest.raises(UsageError, check=said(*facts)):
        validate.main([*flags, str(tmp_path)])


def test_another_that_is_no_data_set_is_refused(tmp_path, old):
    with pytest.raises(DataError, match="nowhere"):
        validate.main([str(old), f"--compare={tmp_path}/nowhere"])
