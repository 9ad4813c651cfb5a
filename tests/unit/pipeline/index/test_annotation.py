"""Masks, boxes and points in the records of other writers: what the index says, what is fed, what is refused."""

import dataclasses
import io
import json
import re
import shutil

import keras
import numpy as np
import PIL.Image
import pytest
import tensorflow as tf

from beam_jobs import validate
from beam_jobs.sources import open_source
from beam_jobs.sources.base import SourceOptions
from pipeline import RandomAccess, Shard, input_fn
from pipeline import manifest as manifests
from pipeline.audit import __main__ as audit
from pipeline.errors import DataError, UsageError
from pipeline.index import __main__ as index
from pipeline.inspect import __main__ as inspect
from pipeline.manifest import Feature, splits
from pipeline.manifest.columns import Columns
from pipeline.records import columns as columns_of_records
from tests.helpers import foreign
from tests.helpers.raised import said

MAP = f"--feature_map=image:image,label:label,mask:mask,boxes:{foreign.BOXES},points:points"
TRAIN = {"global_batch_size": 8, "training": True, "seed": 2, "epochs": 2, "features": ("mask", "boxes", "points")}
STEP = 80  # grey per class
PROGRAM = "flip | pad_crop_flip(pad=5, normalize=False) | color_jitter(brightness=0, contrast=0, saturation=0, hue=0)"
SMALL = {**TRAIN, "features": ("mask", "boxes"), "augment": "affine", "shuffle_bytes": 20_000, "streams": 2}
CROP = "random_resized_crop(size=24, normalize=False) | affine"


def run(folder, *arguments):
    index.main([str(folder), "--overwrite", *arguments])
    return manifests.load(folder)


@pytest.fixture(scope="module")
def data(tmp_path_factory):
    folder = foreign.annotated(tmp_path_factory.mktemp("annotated"), {"train": 21, "validation": 6})
    run(folder, MAP, "--keep_columns=classes")
    return folder


@pytest.fixture(scope="module")
def several_sizes(tmp_path_factory):
    folder = foreign.annotated(tmp_path_factory.mktemp("several"), {"train": 21}, sizes=3)
    run(folder, MAP)
    return folder


def flattened(dataset):
    """Returns all rows of each component of a dataset's elements, by name."""
    rows = {}
    for x, labels, *weights in dataset:
        for name, values in {**x, "label": labels, **dict(zip(["weight"], weights, strict=True))}.items():
            rows.setdefault(name, []).append(np.asarray(values))
    return {name: np.concatenate(values) for name, values in rows.items()}


def check_equal(one, other):
    assert one.keys() == other.keys()
    for name, values in one.items():
        np.testing.assert_array_equal(values, other[name], name)


def test_the_manifest_says_what_lies_on_the_images(data):
    made = manifests.load(data)
    parts = tuple(f"{foreign.BOXES}/{name}" for name in ("ymin", "xmin", "ymax", "xmax"))
    names = ("0", "1", "2", "3")
    mask = {"encoding": "png", "class_names": names, "stored_as": "mask", "convention": "classes"}
    assert {name: own for name, own in made.features.items() if own.convention} == {
        "mask": Feature("uint8", (40, 32, 1), **mask),
        "boxes": Feature("float32", (3, 4), stored_as=foreign.BOXES, convention="rel_yxyx", parts=parts),
        "points": Feature("float32", (3, 2), stored_as="points", convention="rel_yx"),
    }
    assert made.format_version == 6
    assert made.class_names == ("0", "1", "2")  # of the labels
    assert manifests.parse(made.to_bytes().decode(), "") == made
    example = RandomAccess(data)[4]
    np.testing.assert_array_equal(example["mask"] * STEP, example["image"][..., :1])
    assert example["boxes"].shape == (2, 4)


def test_how_many_boxes_and_points_a_record_has_are_columns(data, tmp_path, capsys):
    made, examples = manifests.load(data), [*RandomAccess(data)]
    columns = Columns(data, made, splits.select(made, "train"))
    for name in ("boxes", "points"):
        assert columns[name].tolist() == [len(example[name]) for example in examples], name
    fed = flattened(input_fn(data, **{**TRAIN, "epochs": 1, "remainder": "pad"}, where="boxes == 2"))
    real = fed["weight"] > 0
    assert real.sum() == sum(len(example["boxes"]) == 2 for example in examples) > 3
    assert (fed["boxes_weight"][real].sum(axis=1) == 2).all()
    copy = shutil.copytree(data, tmp_path / "copy")
    bare = dataclasses.replace(made, columns={})
    (copy / "manifest.json").write_bytes(bare.to_bytes())
    for more in ("", ":points,boxes"):
        index.main([str(copy), f"--add_columns=records{more}"])
        found = manifests.load(copy).columns
        assert {name: found[name] for name in ("boxes", "points")} == {n: made.columns[n] for n in ("boxes", "points")}
    capsys.readouterr()
    inspect.main([str(data)])
    counts = np.array([len(example["boxes"]) for example in examples])
    figures = f"{counts.sum()} +{(counts == 0).sum()} +{counts.min()} +{counts.mean():,.6g} +3"
    shown = capsys.readouterr().out
    assert re.search(rf"boxes +records without +least +mean +most .*\ntrain +{figures} ", shown), shown
    columns_of_records.write(str(copy), made, {"boxes": {split: np.zeros(n, int) for split, n in (("train", 21),)}})
    with pytest.raises(DataError, check=said("problem")):
        validate.main([str(copy), "--deep"])
    assert re.search(r"boxes.*npy: has 0 for record \d+ of train.*, which has \d", capsys.readouterr().out)


@pytest.mark.parametrize("options", [{}, {"shuffle_bytes": 40_000}])
@pytest.mark.quick(1)
def test_masks_are_those_of_their_images_pixel_for_pixel(data, options):
    rows = flattened(input_fn(data, **TRAIN, augment=PROGRAM, **options))
    assert rows["mask"].dtype == np.uint8
    np.testing.assert_array_equal(rows["mask"] * STEP, rows["image"][..., :1])
    assert len({values.tobytes() for values in rows["mask"]}) > 30  # two epochs of 21, which draw differently
    assert rows["boxes"].shape == (48, 3, 4)
    assert rows["points_weight"].dtype == rows["boxes_weight"].dtype == np.float32


@pytest.fixture(scope="module")
def windows(data):
    return flattened(input_fn(data, **SMALL))


@pytest.mark.slow
def test_two_workers_feed_the_bits_of_one(data, windows):
    workers = [iter(input_fn(data, **SMALL, shard=Shard(worker, 2))) for worker in range(2)]
    joined = {}
    for parts in zip(*workers, strict=True):
        for name, values in flattened(parts).items():
            joined.setdefault(name, []).append(values)
    check_equal(windows, {name: np.concatenate(values) for name, values in joined.items()})


@pytest.mark.slow
@pytest.mark.parametrize("options", [{"start_step": 4}, {"portable": True}])
def test_a_resume_and_another_process_feed_the_same_bits(data, windows, options):
    first = 8 * options.get("start_step", 0)
    check_equal(
        {name: values[first:] for name, values in windows.items()}, flattened(input_fn(data, **SMALL, **options))
    )


@pytest.mark.slow
def test_a_split_in_memory_feeds_the_same_masks_in_another_order(data, windows):
    whole = flattened(input_fn(data, **{**SMALL, "shuffle_bytes": 1 << 20, "streams": 1}))
    assert {row.tobytes() for row in whole["mask"]} == {row.tobytes() for row in windows["mask"]}


@pytest.mark.slow
@pytest.mark.parametrize("place", ["device", "both"])
def test_where_images_are_augmented_masks_do_not_depend_on(data, place):
    options = {**TRAIN, "augment": "flip | pad_crop_flip"}
    host, device = (flattened(input_fn(data, **options, augment_on=on)) for on in ("host", place))
    for name in ("mask", "boxes", "boxes_weight", "points", "points_weight"):
        np.testing.assert_array_equal(host[name], device[name], name)


@pytest.mark.slow
@pytest.mark.parametrize("options", [{}, {"portable": True}])
def test_masks_are_cropped_and_resized_with_their_images(several_sizes, options):
    """Where an image is flat all around a pixel, its mask has the class of that grey."""
    rows = flattened(input_fn(several_sizes, **TRAIN, augment=CROP, **options))
    image, mask = rows["image"][..., :1].astype(int), rows["mask"]
    around = [np.roll(image, (y, x), (1, 2)) for y in range(-2, 3) for x in range(-2, 3)]
    flat = (np.ptp(around, axis=0) == 0) & (image % STEP == 0)
    flat[:, :2], flat[:, -2:], flat[:, :, :2], flat[:, :, -2:] = (False,) * 4
    assert flat.sum() > 1000
    np.testing.assert_array_equal((mask * STEP)[flat], image[flat])


@pytest.mark.parametrize(
    "convention",
    [c if c in ("rel_yxyx", "xywh") else pytest.param(c, marks=pytest.mark.slow) for c in foreign.CONVENTIONS],
)
@pytest.mark.quick(1)
def test_boxes_of_each_convention_are_the_same(convention, tmp_path, data):
    folder = foreign.annotated(tmp_path, {"train": 6}, convention, sizes=3)
    run(folder, "--feature_map=boxes:boxes", f"--box_format={convention}")
    own = flattened(input_fn(folder, global_batch_size=6, training=False, features=("boxes",), resize="40x32"))
    run(folder, f"--feature_map=boxes:{foreign.BOXES}")
    slim = flattened(input_fn(folder, global_batch_size=6, training=False, features=("boxes",), resize="40x32"))
    np.testing.assert_allclose(own["boxes"], slim["boxes"], atol=1e-6)
    np.testing.assert_array_equal(own["boxes_weight"], [[1, 0, 0], [1, 1, 0], [1, 1, 1]] * 2)
    for row, example in enumerate(RandomAccess(folder)):
        np.testing.assert_allclose(example["boxes"], slim["boxes"][row, : len(example["boxes"])], atol=1e-6)


def written(folder, records):
    foreign.write(folder / "train.tfrecord", records)
    return folder


def plain(size=(10, 20), **features):
    return {"image": foreign.png(np.zeros((*size, 3), np.uint8)), "label": 0, **features}


def test_what_leaves_the_picture_has_no_weight(tmp_path):
    """The middle 10x10 pixels are cropped: a box on the left is gone, one over the edge is cut, rows stay."""
    boxes = [[0, 0, 1, 0.2], [0.2, 0, 0.6, 0.5], [0.5, 0.5, 0.5, 0.6], [-0.1, 0.5, 1.05, 0.7]]
    points, none = [[0.5, 0.1], [0.5, 0.5], [0.0, 0.75]], np.zeros(0, np.float32)
    folder = written(
        tmp_path,
        [plain(boxes=np.float32(boxes).ravel(), points=np.float32(points).ravel()), plain(boxes=none, points=none)],
    )
    run(folder, "--feature_map=image:image,label:label,boxes:boxes,points:points")
    options = {"training": False, "features": ("boxes", "points"), "augment": "random_crop(size=10, normalize=False)"}
    x, *_ = next(iter(input_fn(folder, global_batch_size=2, **options)))
    np.testing.assert_array_equal(x["boxes_weight"], [[0, 1, 0, 1], [0] * 4])
    np.testing.assert_allclose(x["boxes"][0], [[0] * 4, [0.2, 0, 0.6, 0.5], [0] * 4, [0, 0.5, 1, 0.9]], atol=1e-6)
    np.testing.assert_array_equal(x["points_weight"], [[0, 1, 1], [0] * 3])
    np.testing.assert_allclose(x["points"][0], [[0, 0], [0.5, 0.5], [0, 1]], atol=1e-6)


def test_numbers_in_pixels_of_any_form(tmp_path):
    """Whole numbers, four features, corners as COCO has them; points as (x, y) in pixels."""
    numbers = {f"b/{name}": np.int64([own]) for name, own in {"x": 2, "y": 1, "width": 5, "height": 4}.items()}
    nothing = dict.fromkeys(("points", *numbers), np.zeros(0, np.int64))
    folder = written(tmp_path, [plain(points=np.int64([15, 5]), **numbers), plain(**nothing)])
    run(folder, "--feature_map=boxes:b,points:points", "--box_format=xywh", "--point_format=xy")
    x, *_ = next(iter(input_fn(folder, global_batch_size=2, training=False, features=("boxes", "points"))))
    np.testing.assert_allclose(x["boxes"], [[[0.1, 0.1, 0.5, 0.35]], [[0] * 4]], atol=1e-6)
    np.testing.assert_allclose(x["points"], [[[0.5, 0.75]], [[0, 0]]], atol=1e-6)
    for name in ("boxes", "points"):
        np.testing.assert_array_equal(x[f"{name}_weight"], [[1], [0]])


@pytest.mark.parametrize(("size", "columns"), [("10x10", range(1, 20, 2)), ("10x40", np.repeat(range(20), 2))])
def test_a_mask_that_is_stretched_has_the_nearest_pixels(size, columns, tmp_path):
    mask = np.tile(np.arange(20, dtype=np.uint8), (10, 1))
    run(written(tmp_path, [plain(mask=foreign.png(mask))]), "--feature_map=mask:mask")
    _, masks, _ = next(iter(input_fn(tmp_path, global_batch_size=1, training=False, resize=size, label="mask")))
    np.testing.assert_array_equal(masks[0, :, :, 0], np.tile(columns, (10, 1)))


@pytest.mark.slow
def test_the_fill_of_a_mask_is_that_of_the_flag(tmp_path):
    mask = np.ones((10, 20), np.uint8)
    folder = written(tmp_path, [plain(mask=foreign.png(mask)), plain(mask=foreign.png(mask))])
    for flags, fill in (((), 0), (("--mask_fill=255",), 255)):
        run(folder, "--feature_map=mask:mask", *flags)
        x, *_ = next(
            iter(
                input_fn(
                    folder,
                    global_batch_size=2,
                    training=True,
                    augment="shift(pixels=9)",
                    label="mask",
                    features=("mask",),
                )
            )
        )
        assert set(np.unique(x["mask"])) == {1, fill}


def test_a_mask_may_take_the_place_of_labels(tmp_path):
    """Records without labels: the mask is what Keras fits, with a weight per row for its loss of each pixel."""
    folder = foreign.annotated(tmp_path, {"train": 8}, is_labelled=False)
    run(folder, "--feature_map=image:image,mask:raw_mask,boxes:boxes")
    made = manifests.load(folder)
    assert made.features["mask"].encoding == "raw"
    assert made.class_names == ("0", "1", "2", "3")
    images, masks, weights = next(iter(input_fn(folder, global_batch_size=4, training=True, label="mask")))
    np.testing.assert_array_equal(masks * STEP, images[..., :1])
    assert (masks.dtype, weights.shape) == (tf.uint8, (4, 1, 1, 1))
    _, boxes, _ = next(iter(input_fn(folder, global_batch_size=4, training=True, label="boxes", features=("mask",))))
    assert boxes.keys() == {"boxes", "boxes_weight"}


def test_boxes_are_labels_with_their_classes_and_validate_checks_them(tmp_path, capsys):
    folder = foreign.annotated(tmp_path, {"train": 8}, is_labelled=False)
    run(folder, f"--feature_map=image:image,mask:mask,boxes:{foreign.BOXES},box_labels:classes,points:points")
    assert manifests.load(folder).features["box_labels"].class_names == ("0", "1", "2")
    _, labels, _ = next(iter(input_fn(folder, global_batch_size=8, training=True, label="boxes", augment="flip")))
    assert labels.keys() == {"boxes", "boxes_weight", "box_labels"}
    classes, there = labels["box_labels"].numpy(), labels["boxes_weight"].numpy() > 0
    assert classes.dtype == np.int64
    for row, own in zip(classes, there, strict=True):
        assert row.tolist() == [*range(own.sum()), *[-1] * (3 - own.sum())]
    alone = input_fn(folder, global_batch_size=8, training=True, features=("box_labels",))
    np.testing.assert_array_equal(np.sort(next(iter(alone))[0]["box_labels"], axis=0), np.sort(classes, axis=0))
    validate.main([str(folder), "--deep"])
    assert "the data set matches its manifest: 8 records" in capsys.readouterr().out


def test_classes_of_boxes_need_boxes(tmp_path):
    folder = foreign.annotated(tmp_path, {"train": 2})
    with pytest.raises(UsageError, check=said("--feature_map=box_labels:classes", "needs boxes:FEATURE")):
        run(folder, "--feature_map=box_labels:classes")
    with pytest.raises(UsageError, check=said("box_labels:boxes", "holds float", "must be int64")):
        run(folder, "--feature_map=boxes:boxes,box_labels:boxes")
    with pytest.raises(UsageError, check=said("label", "box_labels", "boxes")):
        input_fn(folder, global_batch_size=2, training=True, label="box_labels")


@pytest.mark.slow
def test_keras_fits_and_evaluates_a_small_unet(data):
    """The class of a pixel follows from its grey: masks that did not move with their images could not be learnt."""
    keras.utils.set_random_seed(0)
    images = keras.Input((40, 32, 3), dtype="uint8")
    fine = keras.layers.Conv2D(8, 3, padding="same", activation="relu")(keras.layers.Rescaling(1 / 255)(images))
    coarse = keras.layers.Conv2D(8, 3, strides=2, padding="same", activation="relu")(fine)
    both = keras.layers.Concatenate()([fine, keras.layers.UpSampling2D()(coarse)])
    model = keras.Model(images, keras.layers.Conv2D(4, 1)(both))
    loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
    model.compile(keras.optimizers.Adam(0.02), loss, weighted_metrics=["accuracy"])
    options = {"global_batch_size": 8, "label": "mask", "weights": "mean", "augment": PROGRAM}
    train = input_fn(data, training=True, epochs=40, **options)
    model.fit(train, epochs=1, verbose=0)
    evaluated = input_fn(data, "validation", training=False, **{**options, "weights": "none"})
    assert model.evaluate(evaluated, verbose=0, return_dict=True)["accuracy"] > 0.95


def palette():
    stream, image = io.BytesIO(), PIL.Image.new("P", (20, 10))
    image.putpalette([0, 0, 0, 128, 0, 0])
    image.save(stream, "PNG")
    return stream.getvalue()


BOX = np.float32([0.1, 0.1, 0.5, 0.5])
MASK = foreign.png(np.ones((10, 20), np.uint8))


@pytest.mark.parametrize(
    ("records", "flags", "facts"),
    [
        (
            [{"mask": MASK}, {"mask": foreign.png(np.ones((10, 19), np.uint8))}],
            "mask:mask",
            ["record 1", "10x19", "10x20"],
        ),
        ([{"mask": MASK}, {"mask": b"\0" * 5}], "mask:mask", ["record 1", "'mask', the mask: no image"]),
        ([{"mask": b"\1" * 200}, {"mask": b"\1" * 190}], "mask:mask", ["record 1", "190 bytes", "10x20"]),
        ([{"mask": palette()}], "mask:mask", ["record 0", "palette", "grey PNG"]),
        ([{"mask": foreign.jpeg(1, (10, 20), mode="L")}], "mask:mask", ["record 0", "JPEG", "grey PNG"]),
        ([{"mask": MASK}, {}], "mask:mask", ["record 1", "no feature 'mask'"]),
        ([{"mask": 3}], "mask:mask", ["--feature_map=mask:mask", "one value of bytes"]),
        ([{"mask": 3}], "mask:maske", ["--feature_map=mask:maske", "unknown 'maske'; did you mean 'mask'?"]),
        ([{"boxes": BOX}, {}], "boxes:boxes", ["record 1", "no feature 'boxes'"]),
        ([{"boxes": BOX}, {"boxes": BOX[:3]}], "boxes:boxes", ["record 1", "3 values", "4 for each"]),
        ([{"boxes": BOX}, {"boxes": BOX[::-1]}], "boxes:boxes", ["record 1", "box 0 is flipped", "--box_format"]),
        ([{"boxes": BOX * np.nan}], "boxes:boxes", ["record 0", "finite"]),
        ([{"boxes": BOX * 20}] * 3, "boxes:boxes", ["3 of 3 boxes reach beyond 1", "--box_format=xywh, xyxy"]),
        ([{"boxes": BOX}] * 3, "boxes:boxes --box_format=xyxy", ["3 of 3 boxes lie in the first pixel", "rel_yxyx"]),
        ([{"boxes": BOX * 40}] * 3, "boxes:boxes --box_format=xywh", ["3 of 3 boxes reach beyond the image", "xyxy"]),
        ([{"boxes": BOX}], "boxes:image/bbox", ["no feature 'image/bbox'", "image/bbox/ymin"]),
        ([{"boxes": BOX}, {"boxes": np.int64([0, 0, 1, 1])}], "boxes:boxes", ["record 1", "int64", "float32"]),
        (
            [{f"b/{name}": BOX[: 2 - (name == "xmax")] for name in ("ymin", "xmin", "ymax", "xmax")}],
            "boxes:b",
            ["b/xmax 1"],
        ),
        ([{"points": BOX[2:] * 9}] * 2, "points:points", ["2 of 2 points reach beyond 1", "--point_format=xy"]),
        ([{"boxes": BOX}], "masks:boxes", ["--feature_map", "masks", "mask"]),
        ([{"mask": MASK}], "mask:mask --box_format=xyxy", ["--box_format=xyxy", "--feature_map=boxes:FEATURE"]),
        ([{"mask": MASK}], "mask:mask --mask_fill=256", ["--mask_fill=256", "0 to 255"]),
        ([{"boxes": BOX}], "boxes:boxes --box_format=yolo", ["--box_format", "yolo", "rel_yxyx"]),
    ],
)
def test_annotations_that_cannot_be_used_are_refused(records, flags, facts, tmp_path):
    folder = written(tmp_path, [plain(**record) for record in records])
    mapped, *others = flags.split()
    with pytest.raises((DataError, UsageError), check=said(*facts)):
        run(folder, f"--feature_map={mapped}", *others)


def test_boxes_without_a_part_in_their_image_are_told(tmp_path, capsys):
    records = [
        plain(boxes=np.float32([*BOX, *BOX, 0.5, 0.5, 0.5, 0.7])),
        plain(boxes=np.float32([*BOX, 0, -0.3, 0.1, 0])),
    ]
    run(written(tmp_path, records), "--feature_map=boxes:boxes")
    out = capsys.readouterr().out
    assert "boxes: boxes (rel_yxyx), 5, at most 3 in a record" in out
    assert "2 of 5 boxes have no part in their image, and get the weight 0" in out


@pytest.mark.parametrize(
    ("options", "facts"),
    [
        ({"augment": "mixup"}, ["'mixup'", "mask"]),
        ({"augment": "flip | cutmix"}, ["'cutmix'", "mask"]),
        ({"augment": lambda images, keys: images}, ["function of images alone", "mask"]),
        ({"augment": "flip", "copies": 2}, ["copies=2", "mask"]),
        ({"label": "bodies"}, ["label", "bodies", "boxes"]),
        ({"label": "boxes", "class_weight": {0: 2.0}}, ["label='boxes'", "class_weight"]),
        ({"label": "mask", "classes": ["0"]}, ["label='mask'", "classes"]),
        ({"label": "mask", "features": (), "parse": lambda records: records}, ["label='mask'", "parse"]),
    ],
)
def test_what_cannot_be_fed_with_masks_is_refused(options, facts, data):
    with pytest.raises(UsageError, check=said(*facts)):
        input_fn(data, **{**TRAIN, "features": ("mask",), **options})


def test_a_label_that_the_data_lacks_is_refused(tmp_path):
    run(written(tmp_path, [plain(boxes=BOX)]), "--feature_map=boxes:boxes")
    with pytest.raises(UsageError, check=said("label='mask'", "no mask", "boxes")):
        input_fn(tmp_path, global_batch_size=1, training=True, label="mask")


def test_the_audit_passes_and_a_conversion_refuses(data, capsys):
    audit.main([str(data), "--global_batch_size=7", "--content"])
    assert "21 rows compared, of 39.3 KiB of shards: classes, image, label" in capsys.readouterr().out
    with pytest.raises(UsageError, check=said("boxes, mask, points", "where they are")):
        open_source(SourceOptions(dataset="tfrecord", source=str(data)))


@pytest.mark.parametrize(
    ("name", "change", "facts"),
    [
        ("mask", {"shape": [40, 32, 3]}, ["'mask'", "(40, 32, 3)"]),
        ("mask", {"convention": "rel_yxyx"}, ["'mask'", "rel_yxyx"]),
        ("mask", {"encoding": "jpeg"}, ["'mask'", "jpeg"]),
        ("mask", {"fill": 300}, ["'mask'", "300"]),
        ("boxes", {"shape": [3, 5]}, ["'boxes'", "(3, 5)"]),
        ("boxes", {"parts": ["a"]}, ["'boxes'", "1 parts"]),
        ("boxes", {"convention": ""}, ["'boxes'", "parts"]),
        (None, {"format_version": 5}, ["version 5 does not know"]),
    ],
)
def test_a_manifest_with_annotations_that_cannot_be_is_refused(name, change, facts, data):
    content = json.loads(manifests.load(data).to_bytes())
    del content["content_sha256"]
    (content if name is None else content["features"][name]).update(change)
    with pytest.raises(DataError, check=said(*facts)):
        manifests.parse(json.dumps(content), "manifest.json")
