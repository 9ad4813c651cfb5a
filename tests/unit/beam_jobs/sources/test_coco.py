"""Boxes of COCO's files: what becomes of them, and what is refused."""

import json

import numpy as np
import pytest

from pipeline import RandomAccess
from pipeline import manifest as manifests
from pipeline.manifest import Feature
from tests import annotated
from tests.annotated import CLASSES, size_of


@pytest.fixture
def coco(tmp_path):
    return annotated.coco(tmp_path / "coco", {"train2017": 12, "val2017": 5})


@pytest.fixture
def converted(coco, tmp_path, convert_without_beam):
    """A function that converts the data set with some flags and returns its folder and the outcome."""

    def run(*flags, source="annotations"):
        out = tmp_path / "out"
        given = ("--dataset=coco", f"--source={coco / source}", f"--data_dir={out}", "--overwrite", *flags)
        return out, convert_without_beam(*given)

    return run


def examples_of(folder, split="train"):
    """Returns the examples by number of their scene."""
    data = RandomAccess(folder, split)
    return {int(example["image_id"]) - 1000: example for example in (data[i] for i in range(len(data)))}


def relative(made):
    height, width = made.mask.shape
    boxes = np.array(made.boxes, float).reshape(-1, 4)[:, [1, 0, 3, 2]]
    return boxes / [height, width, height, width]


def changed(path, change):
    content = json.loads(path.read_text())
    change(content)
    path.write_text(json.dumps(content))


def test_images_have_their_boxes_classes_and_several_labels(converted):
    folder, outcome = converted()
    made = manifests.load(folder)
    assert {name: own for name, own in made.features.items() if own.convention} == {
        "boxes": Feature("float32", (3, 4), convention="xywh"),
        "box_labels": Feature("int64", (3,), class_names=CLASSES, convention="classes"),
    }
    assert made.class_names == CLASSES
    assert made.features["label"] == Feature("int64", (3,))
    assert made.format_version == 6
    assert manifests.parse(made.to_bytes().decode(), "") == made
    assert {name: split.num_examples for name, split in made.splits.items()} == {"train": 12, "validation": 5}
    found = examples_of(folder)
    for number, example in found.items():
        scene = annotated.scene(number, *size_of(number))
        np.testing.assert_allclose(example["boxes"], relative(scene), atol=1e-6)
        assert example["box_labels"].tolist() == scene.classes
        assert np.flatnonzero(example["label"]).tolist() == sorted(set(scene.classes))
        assert example["key"] == b"train2017/%06d.png" % number
    assert {len(found[number]["boxes"]) for number in (0, 4)} == {0}  # images without annotations are kept
    assert outcome.err.splitlines() == ["2 boxes of crowds left out (iscrowd)"]


def test_a_source_can_be_one_file_and_the_images_anywhere(converted, coco):
    (coco / "train2017").rename(coco / "photographs")
    folder, outcome = converted(source="annotations/instances_train2017.json")
    assert outcome.code == 1
    assert "none of 12 images has a file in" in outcome.err
    folder, outcome = converted(f"--image_dir={coco / 'photographs'}", source="annotations/instances_train2017.json")
    assert outcome.code == 0, outcome.err
    assert {example["key"] for example in examples_of(folder).values()} == {b"%06d.png" % n for n in range(12)}


@pytest.mark.parametrize("place", ["images/train2017", "", "images"])
def test_images_are_found_in_the_usual_folders(converted, coco, place):
    (coco / place).mkdir(exist_ok=True, parents=True)
    for image in (coco / "train2017").iterdir():
        image.rename(coco / place / image.name)
    folder, outcome = converted(source="annotations/instances_train2017.json")
    assert outcome.code == 0, outcome.err
    assert manifests.load(folder).splits["train"].num_examples == 12


def test_splits_are_those_of_the_names_of_files(converted):
    folder, _ = converted("--splits=val")
    assert [*manifests.load(folder).splits] == ["validation"]


@pytest.mark.parametrize(
    ("change", "texts"),
    [
        (
            lambda c: c["annotations"][0].update(image_id=7),
            ["instances_train2017.json: annotation 1: there is no image 7"],
        ),
        (lambda c: c["annotations"][0].update(category_id=4), ["annotation 1: there is no category 4"]),
        (lambda c: c["categories"].append({"id": 3, "name": "cow"}), ["two categories have the id 3"]),
        (lambda c: c["categories"].append({"id": 1, "name": "cat"}), ["two categories have the name 'cat'"]),
        (lambda c: c["categories"].append({"id": 1, "name": "cat "}), ["look alike"]),
        (lambda c: c["categories"].append({"id": 1, "name": "cow"}), ["categories differ"]),
        (lambda c: c["images"].append(c["images"][0]), ["two images have the id 1000"]),
        (lambda c: c["images"][0].update(file_name="../../x.png"), ["is not in the folder of the images"]),
        (lambda c: c["images"][0].pop("file_name"), ["images, number 0: has no 'file_name'"]),
        (lambda c: c.pop("categories"), ["has no list 'categories'"]),
    ],
)
def test_files_that_contradict_themselves_are_refused(converted, coco, change, texts):
    changed(coco / "annotations/instances_train2017.json", change)
    folder, outcome = converted()
    assert outcome.code == 1
    assert outcome.err.count("\n") == 1
    for text in texts:
        assert text in outcome.err
    assert not (folder / "manifest.json").exists()


@pytest.mark.parametrize(
    ("change", "text"),
    [
        (
            lambda c: c["annotations"][0].update(bbox=[3, 4, -5, 6]),
            "annotation 1: its bbox is [3, 4, -5, 6], of a negative",
        ),
        (
            lambda c: c["annotations"][0].update(bbox=[3, 4, 5, -6]),
            "annotation 1: its bbox is [3, 4, 5, -6], of a negative",
        ),
        (lambda c: c["annotations"][0].update(bbox=[3, 4, 5]), "annotation 1: its bbox is [3, 4, 5], not four numbers"),
        (lambda c: c["annotations"][0].pop("bbox"), "annotation 1: its bbox is None"),
        (lambda c: c["images"][1].update(width=50), "its annotations are of an image of 56x50, and the file has 56x72"),
        (lambda c: c["images"][1].update(file_name="gone.png"), "gone.png: no such file"),
    ],
)
def test_an_image_whose_boxes_cannot_be_is_an_invalid_row(converted, coco, change, text):
    changed(coco / "annotations/instances_train2017.json", change)
    folder, outcome = converted()
    assert outcome.code == 1
    assert "1 invalid row, over --max_rejects=0" in outcome.err
    folder, outcome = converted("--max_rejects=1")
    assert outcome.code == 0, outcome.err
    (line,) = (folder / "rejects.jsonl").read_text().splitlines()
    assert text in json.loads(line)["reason"]
    assert json.loads(line)["row"] == 1
    assert sorted(examples_of(folder)) == [0, *range(2, 12)]


def test_boxes_of_another_format_are_noticed(converted, coco):
    def as_corners(content):
        for item in content["annotations"]:
            left, top, width, height = item["bbox"]
            item["bbox"] = [left + 100, top + 100, width, height]

    for name in ("train", "val"):
        changed(coco / f"annotations/instances_{name}2017.json", as_corners)
    _, outcome = converted()
    assert outcome.code == 1
    assert "as xywh, " in outcome.err
    assert "boxes reach beyond the image" in outcome.err


def test_what_is_no_json_and_no_file_is_refused(converted, coco):
    (coco / "annotations/instances_train2017.json").write_text("{")
    assert "is not JSON in UTF-8" in converted()[1].err

    assert "no such file or folder" in converted(source="nowhere.json")[1].err
    assert "--image_dir=/nowhere: is not a folder" in converted("--image_dir=/nowhere")[1].err
    assert "--boxes_column: does not apply to --dataset=coco" in converted("--boxes_column=x")[1].err


@pytest.mark.parametrize("value", range(1, 9))
@pytest.mark.parametrize("flags", [(), ("--resize=40x60", "--image_encoding=png")])
def test_boxes_turn_and_shrink_with_their_images(tmp_path, convert_without_beam, value, flags):
    source = annotated.coco(tmp_path / "turned", {"train": 6}, exif=value)
    out = tmp_path / "out"
    outcome = convert_without_beam("--dataset=coco", f"--source={source / 'annotations'}", f"--data_dir={out}", *flags)
    assert outcome.code == 0, outcome.err
    for number, example in examples_of(out).items():
        scene, pixels = annotated.scene(number, *size_of(number)), example["image"].astype(int)
        assert len(example["boxes"]) == len(scene.boxes)
        height, width = pixels.shape[:2]
        for (top, left, bottom, right), label in zip(example["boxes"], example["box_labels"], strict=True):
            colour = annotated.COLOURS[label].astype(int)
            rows, columns = np.round([top * height, bottom * height]), np.round([left * width, right * width])
            (first, last), (begin, end) = rows.astype(int), columns.astype(int)
            inside = pixels[first + 1 : last - 1, begin + 1 : end - 1]
            assert np.abs(inside - colour).max() <= 2
            around = pixels[max(0, first - 2), begin:end]  # above it
            assert np.abs(around - colour).max(axis=1).min() > 100
