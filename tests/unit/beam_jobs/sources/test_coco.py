"""Boxes of COCO's files: what becomes of them, and what is refused."""

import json

import numpy as np
import pytest

from beam_jobs.sources import segmentations
from pipeline import RandomAccess, input_fn
from pipeline import manifest as manifests
from pipeline.manifest import Feature
from tests.helpers import annotated
from tests.helpers.annotated import CLASSES, size_of


@pytest.fixture
def coco(tmp_path):
    return annotated.coco(tmp_path / "coco", {"train2017": 12, "val2017": 5})


@pytest.fixture
def converted(coco, converts):
    """A function that converts the data set with some flags, as `converts`."""
    return lambda *flags, source="annotations", code=0: converts(
        "--dataset=coco", f"--source={coco / source}", *flags, code=code
    )


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
    _, outcome = converted(source="annotations/instances_train2017.json", code=1)
    assert "none of 12 images has a file in" in outcome.err
    folder, _ = converted(f"--image_dir={coco / 'photographs'}", source="annotations/instances_train2017.json")
    assert {example["key"] for example in examples_of(folder).values()} == {b"%06d.png" % n for n in range(12)}


@pytest.mark.parametrize("place", ["images/train2017", "", "images"])
def test_images_are_found_in_the_usual_folders(converted, coco, place):
    (coco / place).mkdir(exist_ok=True, parents=True)
    for image in (coco / "train2017").iterdir():
        image.rename(coco / place / image.name)
    folder, _ = converted(source="annotations/instances_train2017.json")
    assert manifests.load(folder).splits["train"].num_examples == 12


def test_the_folder_of_the_images_is_found_though_the_first_are_missing(converted, coco):
    for number in (0, 1):
        (coco / "train2017" / f"{number:06d}.png").unlink()
    folder, _ = converted("--max_rejects=2", source="annotations/instances_train2017.json")
    assert sorted(examples_of(folder)) == [*range(2, 12)]


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
def test_files_that_contradict_themselves_are_refused(converted, coco, refused, change, texts):
    changed(coco / "annotations/instances_train2017.json", change)
    folder, outcome = converted(code=1)
    refused(outcome, 1, *texts, data_dir=folder)


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
        (lambda c: c["annotations"][0].update(bbox=[3, 4, 10**400, 5]), "not four numbers"),
        (lambda c: c["annotations"][0].pop("bbox"), "annotation 1: its bbox is None"),
        (lambda c: c["annotations"][0].update(iscrowd="0"), "annotation 1: its iscrowd is '0', not 0 or 1"),
        (lambda c: c["images"][1].update(width=50), "its annotations are of an image of 56x50, and the file has 56x72"),
        (lambda c: c["images"][1].update(file_name="gone.png"), "gone.png: no such file"),
    ],
)
def test_an_image_whose_boxes_cannot_be_is_an_invalid_row(converted, coco, only_reject, change, text):
    changed(coco / "annotations/instances_train2017.json", change)
    assert "1 invalid row, over --max_rejects=0" in converted(code=1)[1].err
    folder, _ = converted("--max_rejects=1")
    row, reason = only_reject(folder)
    assert text in reason
    assert row == 1
    assert sorted(examples_of(folder)) == [0, *range(2, 12)]


def test_boxes_of_another_format_are_noticed(converted, coco):
    def as_corners(content):
        for item in content["annotations"]:
            left, top, width, height = item["bbox"]
            item["bbox"] = [left + 100, top + 100, width, height]

    for name in ("train", "val"):
        changed(coco / f"annotations/instances_{name}2017.json", as_corners)
    _, outcome = converted(code=1)
    assert "as xywh, " in outcome.err
    assert "boxes reach beyond the image" in outcome.err


def test_what_is_no_json_and_no_file_is_refused(converted, coco):
    (coco / "annotations/instances_train2017.json").write_text("{")
    assert "is not JSON in UTF-8" in converted(code=1)[1].err

    assert "no such file or folder" in converted(source="nowhere.json", code=1)[1].err
    assert "--image_dir=/nowhere: is not a folder" in converted("--image_dir=/nowhere", code=2)[1].err
    assert "--boxes_column: does not apply to --dataset=coco" in converted("--boxes_column=x", code=2)[1].err


@pytest.mark.parametrize("value", range(1, 9))
@pytest.mark.parametrize("flags", [(), ("--resize=40x60", "--image_encoding=png")])
@pytest.mark.quick(3)
def test_boxes_turn_and_shrink_with_their_images(tmp_path, converts, value, flags):
    source = annotated.coco(tmp_path / "turned", {"train": 6}, exif=value)
    out, _ = converts("--dataset=coco", f"--source={source / 'annotations'}", *flags)
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


MASKS = "--mask_column=segmentation"


def mask_of(number, size=None):
    """Returns the mask of a scene, resized by the nearest pixel; of the first scenes also the crowd."""
    made = annotated.scene(number, *size_of(number)).mask
    if number in (0, 12):
        made[: annotated.CROWD, : annotated.CROWD] = 255
    if size:
        rows, columns = (((np.arange(n) + 0.5) * old / n).astype(int) for n, old in zip(size, made.shape, strict=True))
        made = made[rows][:, columns]
    return made


@pytest.mark.parametrize("size", [None, (96, 128)])
def test_masks_are_drawn_of_the_segmentations(converted, size):
    flags = ("--resize=96x128", "--image_encoding=png") if size else ()
    folder, _ = converted(MASKS, "--mask_fill=255", *flags)
    feature = manifests.load(folder).features["mask"]
    assert (feature.class_names, feature.fill, feature.encoding) == (("background", *CLASSES), 255, "png")
    found = examples_of(folder) | examples_of(folder, "validation")
    assert len(found) == 17
    for number, example in found.items():
        np.testing.assert_array_equal(example["mask"][..., 0], mask_of(number, size))


def test_polygons_are_kept_for_masks_alone(converted, monkeypatch):
    monkeypatch.setattr(segmentations, "compact", None)  # the function that keeps them
    folder, _ = converted()
    assert "mask" not in manifests.load(folder).features


@pytest.mark.parametrize("value", [3, 6])
def test_masks_turn_with_their_images(tmp_path, converts, value):
    source = annotated.coco(tmp_path / "turned", {"train": 4}, exif=value)
    out, _ = converts("--dataset=coco", f"--source={source / 'annotations'}", MASKS)
    for number, example in examples_of(out).items():
        np.testing.assert_array_equal(example["mask"][..., 0], np.rot90(mask_of(number), 2 if value == 3 else 3))


def test_small_objects_lie_on_large_ones_and_all_of_them_on_crowds(converted, coco):
    """A rectangle of 20x30, one of 10x10 on it, a triangle, objects of equal areas, and a crowd of 56x5."""
    crowd = {"size": [56, 72], "counts": [0, 56 * 5, 56 * 67]}  # its five first columns
    shapes = [  # id, category, segmentation
        (7, 8, [[0, 0, 10, 0, 10, 10, 0, 10]]),
        (5, 3, [[0, 0, 30, 0, 30, 20, 0, 20]]),
        (6, 13, [[40, 10, 60, 10, 40, 30]]),
        (9, 3, [[50, 40, 54, 40, 54, 44, 50, 44], [60, 40, 64, 40, 64, 44, 60, 44]]),  # of two parts
        (8, 8, [[50, 40, 58, 40, 58, 44, 50, 44]]),  # as many pixels, and a lower id
        (4, 3, crowd),
    ]

    def change(content):
        content["annotations"] = [
            {"id": number, "image_id": 1001, "category_id": of, "bbox": [1, 1, 2, 2], "segmentation": shape}
            | {"iscrowd": int(shape is crowd)}
            for number, of, shape in shapes
        ]

    changed(coco / "annotations/instances_train2017.json", change)
    folder, _ = converted(MASKS)
    mask = examples_of(folder)[1]["mask"][..., 0]
    expected = np.zeros((56, 72), np.uint8)
    expected[:, :5] = 255
    expected[:20, :30] = 1
    expected[:10, :10] = 2
    expected[40:44, 50:58] = 2
    expected[40:44, 50:54] = expected[40:44, 60:64] = 1
    for row in range(19):  # pixels whose centres lie inside: not those on the long side
        expected[10 + row, 40 : 59 - row] = 3
    np.testing.assert_array_equal(mask, expected)


def test_packed_counts_are_those_of_pycocotools(converted, coco):
    from pycocotools import mask as tools

    drawn = np.random.default_rng(2).integers(0, 2, (56, 72)).astype(np.uint8)
    drawn[:, 30:50] = 1
    packed = tools.encode(np.asfortranarray(drawn))
    shape = {"size": packed["size"], "counts": packed["counts"].decode()}
    path = coco / "annotations/instances_train2017.json"
    changed(path, lambda content: content["annotations"][0].update(segmentation=shape, category_id=3))
    folder, _ = converted(MASKS)
    np.testing.assert_array_equal(examples_of(folder)[1]["mask"][..., 0], drawn)


@pytest.mark.parametrize(
    ("shape", "text"),
    [
        (None, "its segmentation is None, neither polygons nor a run-length encoding"),
        ([], "its segmentation is [], neither"),
        ([[1, 2, 3, 4, 5, 6], [1, 2, 3, 4, 5, 6, 7]], "polygon 1 of its segmentation has 7 numbers, not x and y of 3"),
        ([[1, 2, 3, 4]], "polygon 0 of its segmentation has 4 numbers, not x and y of 3 or more points"),
        ([[1, 2, "3", 4, 5, 6]], "polygon 0 of its segmentation is [1, 2, '3', 4, 5, 6], not a list of numbers"),
        ([[1, 2, True, 4, 5, 6]], "is [1, 2, True, 4, 5, 6], not a list of numbers"),
        ([[1, 2, 10**400, 4, 5, 6]], "not a list of numbers"),
        ([[1, 2, float("nan"), 4, 5, 6]], "has the point (nan, 4.0), far outside of the image of 56x72"),
        ([[1, 2, 3, 4, 5, 1e9]], "has the point (5.0, 1000000000.0), far outside of the image of 56x72"),
        ([[0, 0, 72, 56] * 40_000], "polygon 0 of its segmentation is more than 4194304 pixels long"),
        ({"size": [72, 56], "counts": [56 * 72]}, "has the size [72, 56], and its image [56, 72]"),
        ({"size": [56, 72], "counts": [5, 6]}, "the counts of its segmentation are 11 pixels, and its image has 4,032"),
        ({"size": [56, 72], "counts": [5, -6]}, "has the counts [5, -6], not lengths of runs"),
        ({"size": [56, 72], "counts": "5"}, "the counts of its segmentation are 5 pixels, and its image has 4,032"),
        ({"size": [56, 72], "counts": "é"}, "has the counts é, not lengths of runs"),
        ({"size": [56, 72], "counts": "oooooooooooo1"}, "has the counts oooooooooooo1, not lengths of runs"),
        ({"size": [56, 72], "counts": "o"}, "has the counts o, not lengths of runs"),
        ({"size": [56, 72]}, "has the counts None, not lengths of runs"),
    ],
)
@pytest.mark.quick(12)
def test_a_segmentation_that_cannot_be_is_an_invalid_row(converted, coco, only_reject, shape, text):
    path = coco / "annotations/instances_train2017.json"
    changed(path, lambda content: content["annotations"][0].update(segmentation=shape))
    row, reason = only_reject(converted(MASKS, "--max_rejects=1")[0])
    assert "its mask: annotation 1: " in reason
    assert text in reason
    assert row == 1
    converted()  # without masks, nobody needs it


@pytest.mark.parametrize(
    ("change", "flags", "text"),
    [
        (lambda c: None, ["--mask_column=mask"], "--mask_column"),
        (lambda c: None, ["--mask_fill=255"], "--mask_fill=255: needs --mask_column=NAME"),
        (lambda c: c["annotations"][0].update(id="a"), [MASKS], "annotation 'a': the id is not a whole number"),
        (lambda c: c["categories"][0].update(name="background"), [MASKS], "a category is named 'background'"),
        (
            lambda c: c["categories"].extend({"id": n, "name": str(n)} for n in range(100, 352)),
            [MASKS],
            "has 255 categories; masks can have 254 at most",
        ),
    ],
)
def test_masks_that_cannot_be_are_refused(converted, coco, refused, change, flags, text):
    for name in ("train", "val"):
        changed(coco / f"annotations/instances_{name}2017.json", change)
    code = 1 if flags == [MASKS] else 2
    folder, outcome = converted(*flags, code=code)
    refused(outcome, code, text, data_dir=folder)


def test_masks_need_the_size_of_their_image(converted, coco, only_reject):
    changed(coco / "annotations/instances_train2017.json", lambda c: c["images"][1].pop("height"))
    _, reason = only_reject(converted(MASKS, "--max_rejects=1")[0])
    assert "do not name the height and width" in reason


POINTS = "--points_column=keypoints"


def with_keypoints(coco, points, *, of=3):
    """Writes person_keypoints_train2017.json: the first two annotations of image 1002 have these, others none."""
    content = json.loads((coco / "annotations/instances_train2017.json").read_text())
    for category in content["categories"]:
        category["keypoints"] = [f"part {number}" for number in range(of)]
    own = [each for each in content["annotations"] if each["image_id"] == 1002]
    for annotation, given in zip(own, points, strict=True):
        annotation["keypoints"] = given
    (coco / "annotations/person_keypoints_train2017.json").write_text(json.dumps(content))
    return own[0]["id"]


@pytest.mark.parametrize("size", [None, (32, 128)])
def test_labelled_keypoints_are_points(converted, coco, size):
    with_keypoints(coco, [[10, 20, 2, 0, 0, 0, 30.5, 8, 1], [0, 0, 0, 16, 32, 2, 0, 0, 0]])
    flags = ("--resize=32x128", "--image_encoding=png") if size else ()
    folder, _ = converted(POINTS, *flags, source="annotations/person_keypoints_train2017.json")
    assert manifests.load(folder).features["points"] == Feature("float32", (3, 2), convention="xy")
    found = examples_of(folder)
    np.testing.assert_allclose(found[2]["points"] * [64, 64], [[20, 10], [8, 30.5], [32, 16]])
    assert found[2]["keypoint"].tolist() == [0, 2, 1]
    assert found[2]["keypoint_box"].tolist() == [0, 0, 1]
    assert found[2]["keypoint_visibility"].tolist() == [2, 1, 2]
    assert len(found[2]["boxes"]) == 2
    assert len(found[3]["points"]) == 0
    assert "keypoint" not in manifests.load(converted()[0]).features


@pytest.mark.parametrize(
    ("given", "text"),
    [
        ([1, 2, 2], "its keypoints are 3 numbers, not three of each of 3 keypoints"),
        ([1, 2, 2, 4, 5], "its keypoints are 5 numbers, not three of each of 3 keypoints"),
        ([1, 10**400, 2], "not a list of numbers"),
        ([1, 2, "2"], "its keypoints are [1, 2, '2'], not a list of numbers"),
        (None, "its keypoints are None, not a list of numbers"),
        ([1, 2, 2, 3, 4, 2, 5, 6, 3], "keypoint 2 has the visibility 3, not 0, 1 or 2"),
        ([1, 2, 2, 3, float("nan"), 2, 5, 6, 2], "its points are not all finite numbers"),
    ],
)
def test_keypoints_that_cannot_be_are_invalid_rows(converted, coco, only_reject, given, text):
    number = with_keypoints(coco, [given, []])
    folder, _ = converted(POINTS, "--max_rejects=1", source="annotations/person_keypoints_train2017.json")
    row, reason = only_reject(folder)
    assert text in reason
    assert "finite" in text or f"annotation {number}: " in reason
    assert row == 2


NAMES = ["nose", "left_eye", "right_eye", "LeftHip", "RightHip", "left_over"]
RIGHT_TO_LEFT = [0, 2, 1, 4, 3, 5]


def named_keypoints(converted, coco, *, other_names=()):
    """Converts images 0 to 11, each with a point of every name in its first box, at x = 5 * number + 1."""
    path = coco / "annotations/person_keypoints_train2017.json"
    content = json.loads((coco / "annotations/instances_train2017.json").read_text())
    for number, category in enumerate(content["categories"]):
        category["keypoints"] = [*other_names] if number and other_names else NAMES
    first = {each["image_id"]: each for each in content["annotations"][::-1]}
    for each in first.values():
        each["keypoints"] = [v for n in range(len(NAMES)) for v in (5 * n + 1, 7, 1 + n % 2)]
    path.write_text(json.dumps(content))
    flags = (POINTS, "--resize=48x64", "--image_encoding=raw")
    folder, _ = converted(*flags, source="annotations/person_keypoints_train2017.json")
    return folder


def fed_points(folder, augment, **options):
    """Returns {key: (x of the points, their names' numbers, their visibility)} as they are fed."""
    features = ("points", "keypoint", "keypoint_visibility", "key")
    options = {"global_batch_size": 12, "epochs": 1, "features": features, "training": True, "seed": 5} | options
    x, *_ = next(iter(input_fn(folder, "train", augment=augment, **options)))
    of_row = zip(x["points"].numpy()[..., 1], x["points_weight"].numpy() > 0, strict=True)
    found = ([across[shown].tolist() for across, shown in of_row], x["keypoint"].to_list())
    return dict(zip(x["key"].numpy(), zip(*found, x["keypoint_visibility"].to_list(), strict=True), strict=True))


def test_a_mirrored_left_eye_is_a_right_eye(converted, coco):
    folder = named_keypoints(converted, coco)
    assert manifests.load(folder).features["keypoint"] == Feature("int64", (None,), class_names=tuple(NAMES))
    plain, mirrored = fed_points(folder, None), fed_points(folder, "flip(prob=1)")
    some, again = fed_points(folder, "flip"), fed_points(folder, "flip", portable=True)
    assert some == again
    assert {tuple(numbers) for _, numbers, _ in plain.values()} == {(), (0, 1, 2, 3, 4, 5)}
    assert sum(some[key] == plain[key] != mirrored[key] for key in some) > 0
    assert sum(some[key] == mirrored[key] != plain[key] for key in some) > 0
    for key, (across, numbers, visibility) in plain.items():
        assert mirrored[key][1] == [RIGHT_TO_LEFT[number] for number in numbers]
        assert mirrored[key][2] == visibility  # of the same points
        np.testing.assert_allclose(mirrored[key][0], 1 - np.array(across), atol=1e-6)
        assert some[key] in (plain[key], mirrored[key])
    turned = fed_points(folder, "flip(prob=1) | affine(rotate=9, shear=5, scale=0.1, shift=0) | flip(prob=1)")
    assert {key: numbers for key, (_, numbers, _) in turned.items()} == {key: plain[key][1] for key in plain}
    assert fed_points(folder, "flip(prob=1)", training=False) == plain


def test_points_without_common_names_are_not_renamed(converted, coco):
    folder = named_keypoints(converted, coco, other_names=["tail", *NAMES[1:]])
    assert manifests.load(folder).features["keypoint"] == Feature("int64", (None,))
    numbers = {tuple(numbers) for _, numbers, _ in fed_points(folder, "flip(prob=1)").values()}
    assert numbers == {(), (0, 1, 2, 3, 4, 5)}


def test_files_without_keypoints_are_refused(converted):
    _, outcome = converted(POINTS, code=1)
    assert "none of its annotations has keypoints; they are in files like person_keypoints_" in outcome.err
    assert "--points_column" in converted("--points_column=joints", code=2)[1].err


CAPTIONS = "--keep_columns=caption"


def fed(folder, split="train"):
    """Returns what `input_fn` feeds: {key: captions as texts}, labels and names of features."""
    fed = input_fn(folder, split, global_batch_size=12, training=True, epochs=1, features=("caption", "key"))
    x, labels, _ = next(iter(fed))
    texts = [[text.decode() for text in row] for row in x["caption"].to_list()]
    return dict(zip(x["key"].numpy().tolist(), texts, strict=True)), labels.numpy(), {*x}


def test_captions_lie_beside_boxes(converted, coco):
    annotated.caption_files(coco)
    folder, _ = converted(CAPTIONS, "--resize=32", "--image_encoding=raw")
    assert manifests.load(folder).features["caption"] == Feature("string", (None,))
    files = [file["file"] for file in json.loads((folder / "manifest.json").read_text())["source"]]
    assert {"instances_val2017.json", "captions_val2017.json"} < {*files}
    texts, labels, _ = fed(folder)
    assert texts == {b"train2017/%06d.png" % n: annotated.captions_of(n) for n in range(12)}
    assert labels.shape == (12, 3)
    assert len(examples_of(folder)[3]["boxes"]) == 3
    assert "caption" not in manifests.load(converted()[0]).features


def test_captions_need_no_boxes_and_no_labels(converted, coco, tmp_path, convert_without_beam):
    annotated.caption_files(coco)
    for path in (coco / "annotations").glob("instances_*"):
        path.unlink()
    folder, _ = converted("--resize=32", "--image_encoding=raw")
    made = manifests.load(folder)
    assert (made.class_names, made.format_version, [*made.features]) == (
        (),
        6,
        ["caption", "image", "image_id", "key", "label"],
    )
    texts, labels, names = fed(folder)
    assert texts == {b"train2017/%06d.png" % n: annotated.captions_of(n) for n in range(12)}
    assert (set(labels.tolist()), names) == ({-1}, {"image", "caption", "key"})
    again = tmp_path / "again"
    outcome = convert_without_beam("--dataset=tfrecord", f"--source={folder}", f"--data_dir={again}")
    assert outcome.code == 0, outcome
    assert fed(again)[0] == texts
    assert "has no list 'categories'" in converted(POINTS, code=1)[1].err


@pytest.mark.parametrize(
    ("change", "text"),
    [
        (
            lambda c: c["annotations"][0].update(image_id=7),
            "captions_train2017.json: annotation 0: there is no image 7",
        ),
        (lambda c: c["annotations"][0].update(image_id=[7]), "annotation 0: there is no image [7]"),
        (
            lambda c: c["images"][0].update(file_name="x.png"),
            "image 1011 is 'x.png' here, and 'train2017/000011.png' in",
        ),
        (lambda c: c.update(annotations=[]), "none of its annotations has a caption"),
        (lambda c: c.pop("images"), "captions_train2017.json: has no list 'images'"),
    ],
)
def test_captions_of_other_images_are_refused(converted, coco, refused, change, text):
    annotated.caption_files(coco)
    changed(coco / "annotations/captions_train2017.json", change)
    folder, outcome = converted(CAPTIONS, code=1)
    refused(outcome, 1, text, data_dir=folder)


@pytest.mark.parametrize("caption", [3, None, ["a"], "\ud800"])
def test_an_image_whose_caption_is_no_text_is_an_invalid_row(converted, coco, only_reject, caption):
    annotated.caption_files(coco)
    changed(coco / "annotations/captions_train2017.json", lambda c: c["annotations"][0].update(caption=caption))
    _, reason = only_reject(converted(CAPTIONS, "--max_rejects=1")[0])
    assert f"annotation 0: its caption is {caption!a}, not a text" in reason


def test_captions_of_images_without_boxes_are_left_out(converted, coco):
    assert "captions_train2017.json: no such file; --keep_columns=caption takes" in converted(CAPTIONS, code=1)[1].err
    assert "--keep_columns: unknown 'x'" in converted("--keep_columns=x", code=2)[1].err
    annotated.caption_files(coco)

    def change(content):
        content["images"] = content["images"][:6]
        content["annotations"] = [each for each in content["annotations"] if each["image_id"] < 1006]

    changed(coco / "annotations/instances_train2017.json", change)
    folder, outcome = converted(CAPTIONS)
    left_out = sum(len(annotated.captions_of(number)) for number in range(6, 12))
    assert f"{left_out} captions of images that are not among those with boxes left out" in outcome.err
    assert len(examples_of(folder)) == 6
