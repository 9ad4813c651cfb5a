"""COCO's annotations: boxes and masks of two objects per image, checked and drawn after each recipe that moves them.

The picture is recipes.png: a row per recipe; the first row shows the images as stored.
"""

import json
import pathlib
import subprocess

import numpy as np
import PIL.Image
import PIL.ImageDraw

from stepfeed import input_fn

COLOURS = {"square": (230, 40, 40), "slope": (40, 80, 230)}  # of all pixels of an object, and of no others
UPRIGHT = (
    "none",
    "flip",
    "shift(pixels=16)",
    "pad_crop_flip(pad=16, normalize=False)",
    "random_crop(size=80, normalize=False)",
    "random_resized_crop(size=80, min_area=0.5, normalize=False)",
    "resize(height=64, width=120)",
    "flip | cutout(size=6)",
)
TURNED = ("affine(rotate=25, scale=0.2, shear=10)", "affine(rotate=180, shift=0.2)", "randaugment(n=1, m=6)")

draw = np.random.default_rng(0)
images, annotations = [], []
pathlib.Path("coco/annotations").mkdir(parents=True)
pathlib.Path("coco/train2017").mkdir()
for number in range(40):
    pixels = np.full((96, 120, 3), 200, np.uint8)
    for category, (left, top) in enumerate([(draw.integers(4, 30), draw.integers(4, 40)), (70, 30)], start=1):
        wide, tall = draw.integers(24, 36, 2)
        right, bottom = left + wide, top + tall
        polygon = [left, top, right, top, right, bottom, left, bottom]
        inside = np.ones((tall, wide), bool)
        if category == 2:  # the lower left half of its box
            polygon = [left, top, right, bottom, left, bottom]
            inside = (np.arange(tall)[:, None] + 0.5) * wide > (np.arange(wide) + 0.5) * tall
        pixels[top:bottom, left:right][inside] = list(COLOURS.values())[category - 1]
        about = {"id": len(annotations), "image_id": number, "category_id": category, "area": int(inside.sum())}
        placed = {"bbox": [left, top, wide, tall], "segmentation": [polygon], "iscrowd": 0}
        annotations.append(about | {name: np.array(value).tolist() for name, value in placed.items()})
    PIL.Image.fromarray(pixels).save(f"coco/train2017/{number:012}.png")
    images.append({"id": number, "file_name": f"{number:012}.png", "height": 96, "width": 120})
categories = [{"id": number, "name": name} for number, name in enumerate(COLOURS, start=1)]
written = {"images": images, "annotations": annotations, "categories": categories}
pathlib.Path("coco/annotations/instances_train2017.json").write_text(json.dumps(written))

convert = "stepfeed convert --dataset=coco --source=coco/annotations --data_dir=data --mask_column=segmentation"
subprocess.run(convert.split(), check=True)

sheet = PIL.Image.new("RGB", (8 * 124, 124 * len(UPRIGHT + TURNED)), "white")
for line, recipe in enumerate(UPRIGHT + TURNED):
    options = {"global_batch_size": 40, "training": True, "augment": recipe, "seed": 1}
    batch, _, _ = next(input_fn("data", features=("mask", "boxes", "box_labels"), **options).as_numpy_iterator())
    colours = batch["image"] * (255 if recipe.startswith("shift") else 1)  # its images are floats up to 1
    same = either = boxes = 0
    for row, (image, mask) in enumerate(zip(colours.astype(int), batch["mask"][..., 0], strict=True)):
        tile = PIL.Image.fromarray(np.clip(image, 0, 255).astype(np.uint8))
        pen = PIL.ImageDraw.Draw(tile)
        for box, there, kind in zip(
            batch["boxes"][row], batch["boxes_weight"][row], batch["box_labels"][row], strict=True
        ):
            is_object = mask == kind + 1  # 0 is the background
            is_colour = np.abs(image - list(COLOURS.values())[kind]).max(axis=2) < 90
            same, either = same + (is_object & is_colour).sum(), either + (is_object | is_colour).sum()
            edges = box * (mask.shape * 2)  # in pixels: top, left, bottom, right
            if there and is_object.any():
                (down, across), boxes = is_object.nonzero(), boxes + 1
                ends = np.array([down.min(), across.min(), down.max() + 1, across.max() + 1])
                assert (ends[:2] > edges[:2] - 1.5).all(), recipe
                assert (ends[2:] < edges[2:] + 1.5).all(), recipe
                if recipe in UPRIGHT and kind == 0:
                    assert np.abs(ends - edges).max() < 1.5, recipe
            if there:
                top, left, bottom, right = edges
                pen.rectangle((left, top, max(left, right - 1), max(top, bottom - 1)), outline=(0, 160, 0))
        if row < 8:
            tint = PIL.Image.new("RGB", tile.size, (255, 220, 0))
            tile.paste(tint, mask=PIL.Image.fromarray((mask > 0) * np.uint8(90)))
            sheet.paste(tile, (124 * row, 124 * line))
    print(f"{recipe}: {boxes} boxes fit; {same / either:.1%} of the pixels of masks and objects are both")
    assert boxes > 70
    assert same > 0.9 * either or recipe == "randaugment(n=1, m=6)"  # which changes colours
sheet.save("recipes.png")
