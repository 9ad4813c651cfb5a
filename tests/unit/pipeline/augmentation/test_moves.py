"""Masks, boxes and points go where the image goes: random programs of recipes, and each operation that moves."""

import numpy as np
import pytest
import tensorflow as tf
from hypothesis import given, settings
from hypothesis import strategies as st

from pipeline import operations
from pipeline.augmentation import kernels, moves
from pipeline.augmentation.base import ImageStatistics
from pipeline.augmentation.composed import augmented_by_passes, moves_of
from pipeline.augmentation.randaugment import OPERATIONS, RandAugment, _drawn
from pipeline.augmentation.recipes import make_recipe
from pipeline.errors import UsageError
from pipeline.order.hashing import Domain, derive_key

ROWS, CELL, SIZE = 6, 12, (60, 48)
STEP = 80  # between the values of neighbouring classes
KEYS = derive_key(Domain.AUGMENT, 3, 0, np.arange(ROWS))
PLAIN = ImageStatistics((0.0,), (1.0,))
EXACT = ("flip", "pad_crop_flip(pad=7, normalize=False)", "pad_crop_flip(pad=12, flip=False, normalize=False)")
CROP = "cifar10_tutorial(crop=40, contrast_low=1, contrast_high=1, brightness=0, standardize=False)"
RESAMPLING = ("affine", "affine(rotate=90, shear=20, shift=0.3)", "resize(height=45, width=70)", "resize(height=90)")


def augmented(text, images):
    """Returns what a recipe makes of images of one channel."""
    recipe = make_recipe(text)
    made = augmented_by_passes(recipe, tf.constant(images), tf.constant(KEYS), PLAIN, True).numpy()
    return np.rint(made).astype(int)


def moves_by(text):
    return moves_of(make_recipe(text), SIZE, True, "mask")


def cells(seed=0):
    """Returns images of flat cells of four values, (ROWS, *SIZE, 1)."""
    coarse = np.random.default_rng(seed).integers(0, 4, (ROWS, SIZE[0] // CELL, SIZE[1] // CELL, 1))
    return (np.kron(coarse, np.ones((1, CELL, CELL, 1))) * STEP).astype(np.uint8)


def flat(images, radius):
    """Returns which pixels have one class all around them up to a distance, whose value interpolation has kept."""
    around = [
        np.roll(images, (down, across), (1, 2))
        for down in range(-radius, radius + 1)
        for across in range(-radius, radius + 1)
    ]
    inside = np.zeros(images.shape, bool)
    inside[:, radius:-radius, radius:-radius] = True
    return inside & (images % STEP == 0) & (np.ptp(around, axis=0) == 0)


def check_masks(text, seed):
    images = cells(seed)
    made = augmented(text, images)
    moved = moves.masks_moved(tf.constant(images), KEYS, moves_by(text), 0).numpy()
    assert moved.shape == made.shape
    if operations.is_compiled():
        for fill in (0, 255):
            given = tf.constant(images), KEYS, moves_by(text), fill
            by_passes, by_maps = (moves.masks_moved(*given, by_passes=way).numpy() for way in (True, False))
            np.testing.assert_array_equal(by_passes, by_maps, text)
    resampled = sum(text.count(name) for name in ("affine", "resize"))
    if not resampled:
        np.testing.assert_array_equal(moved, made)
        return
    sure = flat(made, resampled)  # each interpolation may move an edge by half a pixel
    assert sure.mean() > 0.05, text
    np.testing.assert_array_equal(moved[sure], made[sure], text)


def check_boxes(text, seed):
    """A rectangle in the image lies in its moved box; without rotation, they have the same edges within a pixel."""
    draw = np.random.default_rng(seed)
    ymin, ymax = np.sort(draw.integers(0, SIZE[0] + 1, (2, ROWS)), axis=0)
    xmin, xmax = np.sort(draw.integers(0, SIZE[1] + 1, (2, ROWS)), axis=0)
    images = np.zeros((ROWS, *SIZE, 1), np.uint8)
    for row in range(ROWS):
        images[row, ymin[row] : ymax[row], xmin[row] : xmax[row]] = 255
    boxes = tf.constant(np.stack([ymin, xmin, ymax, xmax], axis=-1)[:, None], tf.float64)
    visible = tf.constant((images > 0).any(axis=(1, 2)))
    steps = moves_by(text)
    for move, maps in zip(steps, moves.maps_of(KEYS, steps), strict=True):
        boxes, visible = moves.boxes_moved(boxes, visible, maps, move.size)
    made = augmented(text, images)[..., 0] > 127
    for row in range(ROWS):
        if not made[row].any():
            continue
        top, left, bottom, right = boxes[row, 0].numpy()
        down, across = made[row].nonzero()
        drawn = np.array([down.min(), across.min(), down.max() + 1, across.max() + 1])
        outside = np.array([top, left, -bottom, -right]) - drawn * [1, 1, -1, -1]
        assert visible[row, 0], text
        assert outside.max() <= 1, (text, row)
        if "affine" not in text:
            assert abs(outside).max() <= 1, (text, row)


@st.composite
def programs(draw):
    parts = draw(st.lists(st.sampled_from((*EXACT, "affine(rotate=30, scale=0.2)", "flip(prob=1.0)")), max_size=3))
    if draw(st.booleans()):
        parts.insert(draw(st.integers(0, len(parts))), draw(st.sampled_from(RESAMPLING)))
    return " | ".join(parts or [CROP])


@pytest.mark.parametrize("text", [" | ".join(EXACT), CROP, *RESAMPLING[1:3]])
@pytest.mark.quick(2)
def test_a_mask_and_a_box_follow_each_recipe(text):
    check_masks(text, 0)
    check_boxes(text, 0)


@pytest.mark.slow
@settings(max_examples=20, derandomize=True)
@given(text=programs(), seed=st.integers(0, 99))
def test_masks_and_boxes_follow_random_programs(text, seed):
    check_masks(text, seed)
    check_boxes(text, seed)


def test_what_has_left_the_picture_does_not_come_back():
    """A shift to one side and back by crops of another size: the image is black there, and the mask has its fill."""
    there, back = (
        moves.crop(10, SIZE, lambda keys, left=left: (tf.fill(tf.shape(keys), 10), tf.fill(tf.shape(keys), left)))
        for left in (20, 0)
    )
    masks = tf.ones((ROWS, *SIZE, 1), tf.uint8)
    moved = moves.masks_moved(masks, KEYS, [there, back], 9).numpy()
    np.testing.assert_array_equal(moved[:, :, :10], 9)
    np.testing.assert_array_equal(moved[:, :, 10:], 1)
    boxes, visible = tf.constant([[[5, 2, 20, 9], [5, 2, 20, 30]]] * ROWS, tf.float64), tf.ones((ROWS, 2), tf.bool)
    points, seen = tf.constant([[[5, 2], [5, 30]]] * ROWS, tf.float64), tf.ones((ROWS, 2), tf.bool)
    for move, maps in zip((there, back), moves.maps_of(KEYS, (there, back)), strict=True):
        boxes, visible = moves.boxes_moved(boxes, visible, maps, move.size)
        points, seen = moves.points_moved(points, seen, maps, move.size)
    assert visible.numpy().tolist() == seen.numpy().tolist() == [[False, True]] * ROWS
    assert boxes.numpy()[:, 1].tolist() == [[5, 10, 20, 30]] * ROWS
    assert points.numpy()[:, 1].tolist() == [[5, 30]] * ROWS


@pytest.mark.parametrize("text", ["affine(rotate=60, shear=15)", "flip(prob=1.0) | resize(height=90, width=31)"])
def test_a_point_follows_a_spot_of_the_image(text):
    images = np.zeros((ROWS, *SIZE, 1), np.uint8)
    images[:, 28:33, 20:25] = 255  # around 30.5, 22.5
    points, visible = tf.constant([[[30.5, 22.5]]] * ROWS, tf.float64), tf.ones((ROWS, 1), tf.bool)
    steps = moves_by(text)
    for move, maps in zip(steps, moves.maps_of(KEYS, steps), strict=True):
        points, visible = moves.points_moved(points, visible, maps, move.size)
    made = augmented(text, images)[..., 0]
    assert visible.numpy().all()
    for row in range(ROWS):
        places = np.indices(made[row].shape) + 0.5
        middle = (places * made[row]).sum(axis=(1, 2)) / made[row].sum()
        np.testing.assert_allclose(points[row, 0], middle, atol=0.05)


def test_a_mask_follows_the_operations_of_randaugment_that_move():
    keys = tf.constant(derive_key(Domain.AUGMENT, 2, 0, np.arange(64)))
    recipe, images = RandAugment(n=1, m=20), np.tile(cells(1)[:1], (64, 1, 1, 1))
    made = augmented_by_passes(recipe, tf.constant(images), keys, PLAIN, True).numpy().astype(int)
    moved = moves.masks_moved(tf.constant(images), keys, moves_of(recipe, SIZE, True, "mask"), 0).numpy()
    drawn = [OPERATIONS[number] for number in _drawn(0, keys)[0].numpy()]
    seen = set()
    for row, name in enumerate(drawn):
        if name in ("shear_x", "shear_y", "translate_x", "translate_y", "rotate"):
            sure = flat(made[row : row + 1], 1)[0]
            np.testing.assert_array_equal(moved[row][sure], made[row][sure], name)
            seen.add(name)
        else:
            np.testing.assert_array_equal(moved[row], images[row], name)
    assert len(seen) == 5


def test_colours_move_nothing():
    assert moves_by("color_jitter(saturation=0, hue=0) | random_erasing | cutout | normalize") == []
    assert moves_of(make_recipe("affine | flip | pad_crop_flip"), SIZE, False, "mask") == []


def test_a_mask_takes_the_pixel_with_the_largest_weight():
    """At half a pixel to the right both have the same; the mask takes the one to the right, as everywhere."""
    row = np.arange(5, dtype=np.uint8).reshape(1, 1, 5, 1)
    for shift, expected in ((0.49, [0, 1, 2, 3, 4]), (0.5, [1, 2, 3, 4, 9]), (-1.2, [9, 0, 1, 2, 3])):
        maps = tf.constant([[[1, 0, shift], [0, 1, 0]]], tf.float64)
        taken = kernels.separate(lambda m, maps=maps: kernels.nearest(m, kernels.places(maps, (1, 5)), (1, 5), 9))(row)
        assert taken.numpy().ravel().tolist() == expected


@pytest.mark.parametrize(
    ("text", "named"), [("mixup", "'mixup' mixes images"), ("flip | cutmix", "'cutmix' mixes images")]
)
def test_recipes_that_cannot_move_masks_are_refused(text, named):
    with pytest.raises(UsageError) as refused:
        moves_by(text)
    assert named in str(refused.value)
