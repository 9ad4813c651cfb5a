"""What lies on images is drawn on them."""

import numpy as np

from pipeline import step_rows
from pipeline.inspect.marks import marked

RED, YELLOW, CYAN = (255, 40, 40), (255, 220, 0), (0, 230, 255)


def where(made, colour):
    return np.argwhere((made == colour).all(axis=2)).tolist()


def test_boxes_points_and_outlines_of_masks_are_drawn_where_they_are_visible():
    image = np.full((20, 40, 1), 9, np.uint8)
    boxes = {"boxes": np.float32([[0.1, 0.1, 0.3, 0.2], [0.5, 0.5, 1, 1]]), "boxes_weight": np.float32([1, 0])}
    assert where(marked(image, boxes), RED) == [
        [y, x] for y in range(2, 6) for x in range(4, 8) if y in (2, 5) or x in (4, 7)
    ]
    points = {"points": np.float32([[0.5, 0.5], [0, 0]]), "points_weight": np.float32([1, 0])}
    drawn = np.array(where(marked(image, points), CYAN))
    assert (drawn.min(axis=0).tolist(), drawn.max(axis=0).tolist()) == ([8, 18], [12, 22])
    mask = np.zeros((20, 40, 1), np.uint8)
    mask[3:6, 4:7] = 2
    outline = where(marked(image, {"mask": mask}), YELLOW)
    assert outline == [[y, x] for y in range(3, 6) for x in range(4, 7) if (y, x) != (4, 5)]


def test_floats_are_stretched_and_nothing_else_is_changed():
    image = np.linspace(-1, 1, 20 * 40 * 3, dtype=np.float32).reshape(20, 40, 3)
    made = marked(image, {})
    assert (made.min(), made.max(), made.shape, made.dtype) == (0, 255, (20, 40, 3), np.uint8)


def test_outlines_stay_on_a_sheet_whose_tiles_are_smaller_than_the_images():
    """96 of 120 columns: the nearest ones would leave out each fifth, and a box's side with it."""
    for side in range(60, 70):
        box = {"boxes": np.float32([[0.2, side / 120, 0.8, 0.9]]), "boxes_weight": np.ones(1, np.float32)}
        image = marked(np.full((96, 120, 3), 200, np.uint8), box)
        tile = np.asarray(step_rows.sheet("", {"": [step_rows.Tile(image, None, ("",))]}))[32:128, 6:102].astype(int)
        red = tile[..., 0] - tile[..., 1]
        assert red[40, int((side + 0.5) * 0.8) - 1 : int((side + 0.5) * 0.8) + 2].max() > 60, side
