"""Masks, boxes and points of a record: numbers of each convention, and what a manifest does not say."""

import numpy as np
import pytest

from pipeline.manifest import Feature
from pipeline.records import annotation
from pipeline.records.annotation import ShardAnnotations
from tests.helpers.foreign import CONVENTIONS, png

BOXES = np.array([[2.0, 3.0, 8.0, 9.0], [0.0, 0.0, 10.0, 20.0]])  # ymin, xmin, ymax, xmax
SIZE = (10, 20)
FEATURES = {
    "boxes": Feature("float32", (2, 4), convention="yxyx"),
    "box_labels": Feature("int64", (2,), class_names=("a", "b"), convention="classes"),
    "mask": Feature("uint8", (10, 20, 1), "png", class_names=("a", "b", "c"), convention="classes"),
}
GOOD = {
    "boxes": np.float32(BOXES.ravel()),
    "box_labels": np.int64([1, 0]),
    "mask": [png(np.full(SIZE, 2, np.uint8))],
}


@pytest.mark.parametrize("convention", CONVENTIONS)
def test_numbers_go_into_each_convention_and_back(convention):
    is_relative = convention.startswith("rel_")
    stored = np.array([CONVENTIONS[convention](*box, *SIZE) for box in BOXES])
    ordered = annotation.in_order(stored, "boxes", convention, lambda parts: np.stack(parts, axis=-1))
    np.testing.assert_allclose(ordered, BOXES / np.tile(SIZE, 2) if is_relative else BOXES)
    np.testing.assert_allclose(annotation.in_convention(ordered, "boxes", convention), stored)


def test_what_the_manifest_says_is_no_problem():
    assert annotation.problem_of(GOOD, FEATURES, SIZE) is None
    assert annotation.problem_of(GOOD, FEATURES, None) is None


@pytest.mark.parametrize(
    ("change", "size", "text"),
    [
        ({"boxes": np.float32([*range(12)])}, SIZE, "it has 3 boxes, the manifest says 2 at most"),
        ({"boxes": np.float32([2, 3, 8, 9])}, None, "it has 1 box, but classes of 2"),
        ({"box_labels": np.int64([0, 2])}, None, "the class of box 1 is 2, not in 0..1"),
        ({"box_labels": np.float32([0, 1])}, None, "holds float32; must be int64"),
        ({"mask": [png(np.full(SIZE, 3, np.uint8))]}, SIZE, "its mask has the class 3, not in 0..2"),
        ({"mask": [png(np.zeros((9, 20), np.uint8))]}, SIZE, "its mask has 9x20, and its image 10x20"),
        ({"mask": []}, None, "must be one value of bytes; it has 0"),
        ({"boxes": np.float32([8, 3, 2, 9] * 2)}, None, "box 0 is flipped"),
    ],
)
def test_what_it_does_not_say_is_named(change, size, text):
    assert text in annotation.problem_of({**GOOD, **change}, FEATURES, size)


def test_pixels_of_no_class_are_no_problem():
    assert annotation.problem_of({**GOOD, "mask": [png(np.full(SIZE, 255, np.uint8))]}, FEATURES, SIZE) is None


def test_counts_go_on_from_a_receipt():
    shard = ShardAnnotations(FEATURES)
    shard.add(GOOD, SIZE)
    packed = shard.packed()
    assert packed["boxes"] == {"most": 2, "counts": 2, "beyond": 0, "tiny": 0, "unseen": 0}
    assert (packed["mask"]["classes"], packed["box_labels"]["highest"]) == ([2], 1)
    assert ShardAnnotations(FEATURES, packed).packed() == packed
    bare = {
        name: Feature(own.dtype, own.shape, own.encoding, convention=own.convention) for name, own in FEATURES.items()
    }
    made = annotation.described([ShardAnnotations(bare, packed)], (10, 20, 3), ())
    assert made["box_labels"].class_names == ("0", "1")
    assert made["mask"].class_names == ("0", "1", "2")
