"""Boxes and masks of PASCAL VOC: what becomes of them, and what is refused."""

import json

import numpy as np
import pytest

from pipeline import RandomAccess
from pipeline import manifest as manifests
from pipeline.manifest import Feature
from tests.helpers import annotated
from tests.helpers.annotated import CLASSES, VOC_CLASSES, size_of

NAMES = (  # noqa: SIM905
    "aeroplane bicycle bird boat bottle bus car cat chair cow diningtable dog horse motorbike person pottedplant sheep "
    "sofa train tvmonitor"
).split()


@pytest.fixture
def voc(tmp_path):
    return annotated.voc(tmp_path / "VOC2012", {"train": 12, "val": 6})


@pytest.fixture
def converted(voc, converts):
    """A function that converts the data set with some flags, as `converts`."""
    return lambda *flags, code=0: converts("--dataset=voc", f"--source={voc}", *flags, code=code)


def examples_of(folder, split="train"):
    """Returns the examples by number of their scene."""
    data = RandomAccess(folder, split)
    return {int(bytes(example["key"])[-10:-4]): example for example in (data[i] for i in range(len(data)))}


def test_boxes_begin_at_0_and_have_the_names_of_voc(converted):
    folder, _ = converted()
    made = manifests.load(folder)
    assert made.class_names == tuple(NAMES)
    assert {name: split.num_examples for name, split in made.splits.items()} == {"train": 12, "validation": 6}
    assert "mask" not in made.features
    assert made.features["boxes"] == Feature("float32", (3, 4), convention="xyxy")
    for number, example in examples_of(folder).items():
        scene = annotated.scene(number, *size_of(number))
        height, width = scene.mask.shape
        corners = np.array(scene.boxes, float).reshape(-1, 4)[:, [1, 0, 3, 2]] / [height, width, height, width]
        np.testing.assert_allclose(example["boxes"], corners, atol=1e-6)
        assert [NAMES[label] for label in example["box_labels"]] == [CLASSES[label] for label in scene.classes]
        assert {NAMES[label] for label in np.flatnonzero(example["label"])} == {CLASSES[n] for n in scene.classes}
        assert example["difficult"].tolist() == [int(at == 1) for at in range(len(scene.boxes))]


@pytest.mark.parametrize("flags", [(), ("--resize=96x128", "--image_encoding=png")])
def test_masks_are_the_indices_of_their_palettes(converted, flags):
    folder, _ = converted("--image_set=Segmentation", "--mask_fill=255", *flags)
    made = manifests.load(folder)
    mask = made.features["mask"]
    assert (mask.class_names, mask.fill, mask.encoding) == (("background", *NAMES), 255, "png")
    found = examples_of(folder)
    assert sorted(found) == [1, 3, 5, 7, 9, 11]
    for number, example in found.items():
        expected = VOC_CLASSES[annotated.scene(number, *size_of(number)).mask]
        if flags:
            rows, columns = (
                ((np.arange(n) + 0.5) * old / n).astype(int) for n, old in zip((96, 128), expected.shape, strict=True)
            )
            expected = expected[rows][:, columns]
        np.testing.assert_array_equal(example["mask"][..., 0], expected)


def test_other_names_are_their_own_classes(converted, voc):
    for path in (voc / "Annotations").iterdir():
        path.write_text(path.read_text().replace("cat", "lynx"))
    folder, _ = converted("--image_set=Segmentation")
    made = manifests.load(folder)
    assert made.class_names == ("bird", "dog", "lynx")
    assert made.features["mask"].class_names == tuple(map(str, range(13)))


def test_both_together_are_the_training_images_if_there_is_no_other_list(converted, voc):
    (voc / "ImageSets/Main/val.txt").unlink()
    (voc / "ImageSets/Main/train.txt").rename(voc / "ImageSets/Main/trainval.txt")
    folder, _ = converted()
    assert {name: split.num_examples for name, split in manifests.load(folder).splits.items()} == {"train": 12}


def annotation(voc, change, number=1):
    path = voc / f"Annotations/2007_{number:06d}.xml"
    path.write_text(change(path.read_text()))


@pytest.mark.parametrize(
    ("change", "text"),
    [
        (lambda t: t.replace("<xmin>", "<xmin>left"), "object 0: its bndbox is ["),
        (lambda t: t.replace("<name>", "<nom>").replace("</name>", "</nom>"), "object 0: has no name"),
        (lambda t: '<!DOCTYPE a [<!ENTITY b "c">]>' + t, "it has a document type, which VOC's files do not need"),
        (lambda t: '<!DOCTYPE a SYSTEM "b.dtd">' + t, "it has a document type, which VOC's files do not need"),
        (lambda t: t[:-5], "is not a VOC annotation in UTF-8: unclosed token"),
    ],
)
def test_annotations_that_cannot_be_read_are_refused(converted, voc, refused, change, text):
    annotation(voc, change)
    folder, outcome = converted(code=1)
    refused(outcome, 1, "2007_000001.xml", text, data_dir=folder)


def test_images_that_do_not_fit_their_annotations_are_invalid_rows(converted, voc):
    annotation(voc, lambda t: t.replace("<xmax>", "<xmax>-"))
    (voc / "SegmentationClass/2007_000003.png").write_bytes(annotated.file_of(np.zeros((9, 8), np.uint8), palette=True))
    (voc / "SegmentationClass/2007_000005.png").unlink()
    colour = annotated.file_of(annotated.scene(7).pixels)
    (voc / "SegmentationClass/2007_000007.png").write_bytes(colour)
    folder, _ = converted("--image_set=Segmentation", "--max_rejects=9")
    reasons = [json.loads(line)["reason"] for line in (folder / "rejects.jsonl").read_text().splitlines()]
    for reason, text in zip(
        reasons,
        (
            "2007_000001.xml, object 0: its bndbox",
            "its mask has 9x8, and its image 48x72; a mask must have its image's size",
            "its mask: SegmentationClass/2007_000005.png: no such file",
            "its mask: is RGB, PNG; a mask must be a PNG file that is grey, of 8 bits or one, or has a palette",
        ),
        strict=True,
    ):
        assert text in reason


def test_what_is_no_voc_is_refused(converted, voc):
    assert "--image_set: unknown 'Layout'; known: Main, Segmentation" in converted("--image_set=Layout", code=2)[
        1
    ].err.replace("--image_set='Layout': must be one of", "--image_set: unknown 'Layout'; known:")
    (voc / "ImageSets/Main/train.txt").write_text("\n")
    assert "train.txt: names no image" in converted(code=1)[1].err
    (voc / "Annotations").rename(voc / "Notes")
    assert "has no folder Annotations" in converted(code=1)[1].err
