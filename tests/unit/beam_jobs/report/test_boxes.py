"""Figures about boxes: what counts as their part of the image, and how parts and classes are counted."""

import numpy as np
import pytest

from beam_jobs.report import boxes
from beam_jobs.report.boxes import Boxes
from pipeline.manifest import Feature, Manifest
from pipeline.records import tf_example
from tests.helpers.round_trips import picture


def manifest_of(convention, encoding="raw", **more):
    features = {
        "image": Feature("uint8", (10, 20, 1) if encoding == "raw" else (10, 20, 3), encoding),
        "boxes": Feature("float32", (2, 4), convention=convention),
    }
    return Manifest("made", (), features | more, {}, (), (), (), {})


def record(numbers, image=bytes(200), **more):
    return tf_example.encode({"image": image, "boxes": np.array(numbers, np.float32)} | more)


@pytest.mark.parametrize(
    ("convention", "numbers", "expected"),
    [
        ("rel_yxyx", [0.25, 0.5, 0.5, 1], [[0.25, 0.5, 0.5, 1]]),
        ("xywh", [10, 2.5, 10, 2.5], [[0.25, 0.5, 0.5, 1]]),
        ("xyxy", [-10, -5, 10, 5, 0, 0, 20, 10], [[0, 0, 0.5, 0.5], [0, 0, 1, 1]]),  # clipped
        ("xyxy", [], np.zeros((0, 4))),
        ("xyxy", [1, 2, 3], np.zeros((0, 4))),  # no boxes can be these
    ],
)
def test_boxes_are_parts_of_the_sides_of_their_image(convention, numbers, expected):
    for made, image in (
        (manifest_of(convention), bytes(200)),
        (manifest_of(convention, "png"), picture(0, size=(10, 20))),
    ):
        found, classes = boxes.of_record(record(numbers, image), made)
        np.testing.assert_allclose(found, expected, atol=1e-6)
        assert len(classes) == 0


def test_records_without_boxes_have_none():
    plain = manifest_of("xyxy")
    assert len(boxes.of_record(tf_example.encode({"image": bytes(200)}), plain)[0]) == 0
    assert len(boxes.of_record(record([0, 0, 1, 1], b"no image"), manifest_of("xyxy", "png"))[0]) == 0
    found = boxes.counted([record([0, 0, 20, 5]), record([])], plain)
    assert found.per_image.tolist() == [1, 0]
    assert found.parts.tolist() == [0.5]


def test_parts_are_counted_from_a_bound_on_up_to_the_next():
    def of(*parts):
        return Boxes(np.array([len(parts)]), np.array(parts), np.zeros(len(parts), np.int64))

    found = boxes.by_part({"train": of(0.0, 0.0009, 0.001, 0.3, 1.0), "test": of(0.29)})
    assert [(name, counts["train"], counts["test"]) for name, counts in found] == [
        ("below 0.1%", 2, 0),
        ("0.1% to 0.3%", 1, 0),
        ("0.3% to 1%", 0, 0),
        ("1% to 3%", 0, 0),
        ("3% to 10%", 0, 0),
        ("10% to 30%", 0, 1),
        ("over 30%", 2, 0),
    ]
    assert boxes.by_class({"train": of(0.1, 0.2), "test": of()}, ()) == [("0", {"train": 2, "test": 0}, "15%")]
