"""The photographs of `benchmarks.input_throughput`: how they are made, cropped and asked for, and the table's parts."""

import importlib
import io
import json
import pathlib

import numpy as np
import pytest
import tensorflow as tf
from PIL import Image, ImageOps

from benchmarks import input_throughput, sources
from benchmarks.feeding import Entry
from benchmarks.feeds import photographs
from benchmarks.feeds.photographs import tf_randaugment
from pipeline.errors import UsageError

FAKE = "tests.unit.benchmarks.fake_feed"


@pytest.fixture(scope="module")
def photograph():
    """uint8 (224, 224, 3), smooth but for a fine pattern, of values 20 to 236."""
    y, x = np.mgrid[0:224, 0:224]
    smooth = np.stack([20 + 180 / 223 * x, 40 + 150 / 223 * y, 28 + 200 / 223**2 * x * y], axis=-1)
    return (smooth + 8 * (x % 3 == y % 2)[..., None]).astype(np.uint8)


def test_photographs_are_jpegs_of_about_the_size_in_folders_of_classes(tmp_path):
    folder = sources.photographs(tmp_path / "made", 24, (64, 48))
    paths = sorted(folder.glob("*/*.jpg"))
    assert len(paths) == 24
    assert sorted({path.parent.name for path in paths}) == [f"{number}" for number in range(10)]
    for path in paths:
        image = Image.open(path)
        assert image.format == "JPEG"
        assert 58 <= image.width <= 70
        assert 43 <= image.height <= 53
    again = sources.photographs(tmp_path / "again", 24, (64, 48))
    assert [path.read_bytes() for path in sorted(again.glob("*/*.jpg"))] == [path.read_bytes() for path in paths]


def test_photographs_differ_in_quality_and_in_pixels(tmp_path):
    made = [path.read_bytes() for path in sources.photographs(tmp_path / "made", 40, (64, 48)).glob("*/*.jpg")]
    assert len(set(made)) == 40
    tables = {tuple(Image.open(io.BytesIO(one)).quantization[0]) for one in made}
    assert 5 < len(tables) <= 11  # qualities 85 to 95


def test_large_photographs_repeat(tmp_path, monkeypatch):
    monkeypatch.setattr(sources, "_DISTINCT_PIXELS", 5 * 64 * 48)
    made = [path.read_bytes() for path in sources.photographs(tmp_path / "made", 12, (64, 48)).glob("*/*.jpg")]
    assert len(set(made)) == 5


def test_random_boxes_are_of_the_areas_and_shapes_that_all_contestants_take():
    random, areas = np.random.default_rng(0), []
    for _ in range(2_000):
        top, left, tall, wide = photographs.random_box(random, 375, 500)
        assert 0 <= top <= 375 - tall
        assert 0 <= left <= 500 - wide
        areas.append(tall * wide / (375 * 500))
        if tall < 375 and wide < 500:
            assert 0.74 < wide / tall < 1.35
    assert 0.07 < min(areas) < 0.1
    assert 0.45 < np.mean(areas) < 0.55  # less than 0.54, since boxes are cut to the image


@pytest.mark.parametrize("shape", [(4, 224, 224, 3), (4, 3, 224, 224)])
def test_a_take_is_one_batch_of_crops(shape):
    assert photographs.touching(lambda: np.zeros(shape, np.float32), 4)() == (4, 0.0)
    for wrong in ((3, *shape[1:]), (4, 64, 48, 3)):
        with pytest.raises(AssertionError):
            photographs.touching(lambda wrong=wrong: np.zeros(wrong, np.uint8), 4)()


@pytest.mark.parametrize("name", sorted(input_throughput.PHOTOGRAPHS))
def test_a_contestant_loads_its_libraries_when_it_runs(name):
    feed = importlib.import_module(input_throughput.PHOTOGRAPHS[name].module)
    assert feed.PACKAGES
    assert feed.MODULES
    assert feed.AUGMENTS
    assert callable(feed.prepare)
    assert callable(feed.take)


@pytest.mark.parametrize(
    ("name", "of_pillow"),
    [
        ("_identity", lambda image: image),
        ("_equalize", ImageOps.equalize),
        ("_auto_contrast", ImageOps.autocontrast),
        ("_posterize", lambda image: ImageOps.posterize(image, 7)),
        ("_solarize", lambda image: ImageOps.solarize(image, 178)),
    ],
)
def test_the_operations_of_tf_data_that_draw_nothing_are_those_of_pillow(photograph, name, of_pillow):
    found = getattr(tf_randaugment, name)(tf, tf.constant(photograph)).numpy()
    assert np.abs(found.astype(int) - np.asarray(of_pillow(Image.fromarray(photograph)), int)).max() <= 1


@pytest.mark.parametrize("operation", tf_randaugment.DRAWN, ids=lambda one: one.__name__)
def test_the_operations_of_tf_data_change_an_image_but_keep_what_it_shows(photograph, operation):
    found = operation(tf, tf.constant(photograph)).numpy()
    assert (found.dtype, found.shape) == (np.uint8, photograph.shape)
    differs = np.abs(found.astype(int) - photograph).mean()
    assert (differs == 0) == (operation.__name__ == "_identity")
    assert np.corrcoef(found[60:160, 60:160].ravel(), photograph[60:160, 60:160].ravel())[0, 1] > 0.3 or (
        operation.__name__ == "_solarize"
    )


def test_the_flag_says_how_many_of_which_size():
    assert input_throughput.photograph_sizes("500x375:1000,64x48:8", 8) == {(500, 375): 1_000, (64, 48): 8}


@pytest.mark.parametrize(
    ("text", "fact"),
    [
        ("500x375", "'500x375' is not WIDTHxHEIGHT:NUMBER"),
        ("500x375:0", "'500x375:0' is not WIDTHxHEIGHT:NUMBER"),
        ("64x48:8,64x48:7", "7 are fewer than --photographs_batch=8"),
    ],
)
def test_a_wrong_size_is_named(text, fact):
    with pytest.raises(UsageError, match=fact):
        input_throughput.photograph_sizes(text, 8)


@pytest.mark.slow
def test_each_size_has_a_table_with_and_without_randaugment(tmp_path, monkeypatch, capsys):
    entries = {"ours": Entry(FAKE, {"sleep": 0.002}), "dali": Entry(FAKE, {"sleep": 0.001}), "torch": Entry(FAKE)}
    monkeypatch.setattr(input_throughput, "PHOTOGRAPHS", entries)
    flags = ["--only=photographs", "--photographs=64x48:24,32x32:16", "--photographs_batch=8", "--seconds=0.01"]
    input_throughput.main([*flags, "--rounds=2", "--contestants=ours,dali", f"--json={tmp_path}/found.json"])
    lines = capsys.readouterr().out.splitlines()
    assert [line.partition(":")[0] for line in lines if line.startswith("photographs of ")] == [
        text
        for size in ("64x48", "32x32")
        for text in (
            f"photographs of {size}",
            f"photographs of {size}, cropped, flipped, batch 8",
            f"photographs of {size}, cropped, flipped, RandAugment, normalised, batch 8",
        )
    ]
    assert sum("24 JPEGs of " in line for line in lines) == sum("16 JPEGs of " in line for line in lines) == 1
    assert sum(" per core " in line and "us of processor per img" in line for line in lines) == 8
    assert sum("; of ours: ratio " in line for line in lines) == 4
    results = json.loads(pathlib.Path(tmp_path, "found.json").read_text())["results"]
    assert [(one["name"], one["augmented"]) for one in results] == 2 * [
        *((name, False) for name in ("ours", "dali")),
        *((name, True) for name in ("ours", "dali")),
    ]
    assert {(one["part"], one["rows"], len(one["rounds"])) for one in results} == {
        ("photographs of 64x48", 8, 2),
        ("photographs of 32x32", 8, 2),
    }
