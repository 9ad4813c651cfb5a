"""COCO and PASCAL VOC from end to end: converted by real processes and after kills, fed by each recipe, trained on."""

import numpy as np
import pytest

from pipeline import RandomAccess, input_fn
from pipeline import manifest as manifests
from tests.helpers import annotated, forked
from tests.helpers.annotated import COLOURS
from tests.helpers.datasets import files_of
from tests.helpers.forked import ROOT
from tests.helpers.runs import checkpoint_bytes, kill, succeed, wait_for_step
from tests.integration.test_kill_convert import finished, kill_group, wait_for_shards

TWO_WORKERS = ("--direct_running_mode=multi_processing", "--direct_num_workers=2")
FLAGS = (
    "--dataset=coco",
    "--mask_column=segmentation",
    "--keep_columns=caption",
    "--num_shards=train:20,validation:2",
    "--resize=56x72",
    "--image_encoding=png",
)
MOVING = (
    "none",
    "flip",
    "shift(pixels=9)",
    "pad_crop_flip(pad=9, normalize=False)",
    "random_crop(size=40, normalize=False)",
    "random_resized_crop(size=48, min_area=0.5, normalize=False)",
    "resize(height=96, width=80)",
    "affine(rotate=0, scale=0.3, shear=0, shift=0.2)",
    "randaugment(n=1, m=4)",
    "flip | cutout(size=6)",
)


def convert(source, out, *flags, code=0):
    done = forked.run(["-m", "beam_jobs.convert", f"--source={source}", f"--data_dir={out}", *flags])
    assert done.returncode == code, done.stderr
    assert "Traceback" not in done.stderr
    return done


@pytest.fixture(scope="module")
def coco(tmp_path_factory):
    folder = annotated.coco(tmp_path_factory.mktemp("coco") / "coco", {"train2017": 60, "val2017": 12})
    annotated.caption_files(folder)
    return folder


@pytest.fixture(scope="module")
def data(coco, tmp_path_factory):
    """The data set as one worker converts it."""
    out = tmp_path_factory.mktemp("data") / "out"
    done = convert(coco / "annotations", out, *FLAGS, "--direct_num_workers=1")
    assert "  mask: mask, 4 classes, and pixels of no class (255)" in done.stdout
    assert "  boxes: boxes (xywh), 108, at most 3 in a record" in done.stdout
    assert "  box_labels: box_labels, 3 classes" in done.stdout
    assert "--task=MODULE:CLASS" in done.stdout
    return out


@pytest.mark.slow
def test_two_workers_killed_and_run_again_write_the_bytes_of_one(coco, data, tmp_path):
    flags = [*FLAGS, *TWO_WORKERS]
    out = tmp_path / "out"
    process = forked.Process(
        ["-m", "beam_jobs.convert", f"--source={coco / 'annotations'}", f"--data_dir={out}", *flags]
    )
    wait_for_shards(process, out, 2)
    kill_group(process)
    before = finished(out)
    assert not list(out.glob("[!.]*")), "something that reads as a data set"
    convert(coco / "annotations", out, *flags)
    assert files_of(out) == files_of(data)
    for name, (inode, written) in before.items():
        assert ((out / name).stat().st_ino, (out / name).stat().st_mtime_ns) == (inode, written)


@pytest.mark.slow
def test_two_passes_and_compression_keep_boxes_and_masks(tmp_path):
    voc = annotated.voc(tmp_path / "voc", {"train": 16, "val": 8})
    out, plain = tmp_path / "out", tmp_path / "plain"
    flags = ("--dataset=voc", "--image_set=Segmentation")
    convert(voc, plain, *flags)
    convert(voc, out, *flags, "--passes=2", "--compression=GZIP")
    one, other = ({x["key"]: x for x in map(RandomAccess(folder).__getitem__, range(8))} for folder in (plain, out))
    assert manifests.load(out).features == manifests.load(plain).features
    for key, example in one.items():
        for name in ("image", "mask", "boxes", "box_labels", "label", "difficult"):
            np.testing.assert_array_equal(example[name], other[key][name], name)
    printed = forked.output(["-m", "beam_jobs.validate", out, "--deep"])
    assert "the data set matches its manifest: 12 records" in printed


@pytest.mark.parametrize("recipe", MOVING)
@pytest.mark.quick(4)
def test_boxes_lie_on_their_objects_by_each_recipe(data, recipe):
    """Most of a visible box has the colour of its class, and that colour is in no pixel outside of such boxes."""
    options = {"global_batch_size": 20, "training": True, "seed": 4, "epochs": 1, "augment": recipe, "label": "boxes"}
    seen = 0
    for images, labels, weights in input_fn(data, **options).as_numpy_iterator():
        height, width = images.shape[1:3]
        for image, boxes, there, classes, real in zip(
            images * (255 if recipe.startswith("shift") else 1),  # which makes parts of white
            *(labels[name] for name in ("boxes", "boxes_weight", "box_labels")),
            weights["boxes_weight"],
            strict=True,
        ):
            if not real:
                continue
            distance = np.abs(image.astype(int)[..., None, :] - COLOURS.astype(int)).max(axis=3)  # to each class
            unclaimed = np.ones((height, width, len(COLOURS)), bool)
            for box, label in zip(boxes[there > 0], classes[there > 0], strict=True):
                (top, left), (bottom, right) = (
                    np.round(box[:2] * [height, width]).astype(int),
                    np.round(box[2:] * [height, width]).astype(int),
                )
                unclaimed[max(0, top - 1) : bottom + 1, max(0, left - 1) : right + 1, label] = False
                if min(bottom - top, right - left) < 4:
                    continue
                inside = distance[top + 1 : bottom - 1, left + 1 : right - 1, label]
                if "randaugment" not in recipe:  # which changes colours
                    assert np.mean(inside < 60) > (0.5 if "cutout" in recipe else 0.95), (recipe, box, label)
                seen += 1
            if "randaugment" not in recipe:
                assert not ((distance < 60) & unclaimed).any()
            assert (labels["box_labels"][labels["boxes_weight"] > 0] >= 0).all()
    assert seen > 40


@pytest.mark.slow
@pytest.mark.parametrize("recipe", ["flip | affine", "random_resized_crop(size=40, normalize=False)"])
def test_masks_of_voc_lie_on_their_objects(tmp_path, recipe):
    source = annotated.voc(tmp_path / "voc", {"train": 24})
    convert(
        source, tmp_path / "out", "--dataset=voc", "--image_set=Segmentation", "--resize=64x64", "--image_encoding=png"
    )
    size = {} if "crop" in recipe else {"resize": None}
    options = {"global_batch_size": 12, "training": True, "epochs": 2, "label": "mask", "augment": recipe, **size}
    agree = total = 0
    for images, masks, _ in input_fn(tmp_path / "out", **options).as_numpy_iterator():
        for number, label in zip(annotated.VOC_CLASSES[1:], range(len(COLOURS)), strict=True):
            is_class = masks[..., 0] == number
            near = np.abs(images.astype(int) - COLOURS[label].astype(int)).max(axis=3) < 90
            agree += (near & is_class).sum()
            total += (near | is_class).sum()
    assert agree > 0.85 * total > 1000


def train(data, folder, *flags):
    arguments = [
        f"--data_dir={data}",
        f"--model_dir={folder}",
        "--task=detector_task:Detector",
        "--global_batch_size=20",
    ]
    arguments += ["--augment=flip | affine(rotate=0, shear=0)", "--optimizer=adamw", "--learning_rate=0.003", *flags]
    place = ROOT / "examples/detection"
    return forked.Process(["-m", "trainer.run", *arguments], {"PYTHONUNBUFFERED": "1"}, place)


@pytest.mark.slow
def test_a_detector_learns_and_resumes_with_the_same_bits(data, tmp_path):
    flags = ["--train_steps=240", "--checkpoint_every=20", "--log_every=20"]
    [out] = succeed(train(data, tmp_path / "whole", *flags))
    killed = train(data, tmp_path / "killed", *flags)
    wait_for_step(killed, 60)
    kill(killed)
    [resumed] = succeed(train(data, tmp_path / "killed", *flags))
    assert "resumed from" in resumed
    assert checkpoint_bytes(tmp_path / "killed", 240) == checkpoint_bytes(tmp_path / "whole", 240)
    print(out[-1500:])
