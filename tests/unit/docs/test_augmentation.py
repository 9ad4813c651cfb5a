"""docs/augmentation.png shows what the recipes do today."""

import pathlib
import runpy

import numpy as np
import PIL.Image
import pytest

DOCS = pathlib.Path(__file__).resolve().parents[3] / "docs"


@pytest.mark.slow
def test_the_picture_is_up_to_date():
    pytest.importorskip("sklearn", reason="needs scikit-learn, whose photographs it shows")
    drawing = runpy.run_path(str(DOCS / "augmentation.py"))["draw"]
    drawn = np.asarray(drawing().quantize(256).convert("RGB"), np.float32)
    stored = np.asarray(PIL.Image.open(DOCS / "augmentation.png").convert("RGB"), np.float32)
    assert drawn.shape == stored.shape
    assert np.abs(drawn - stored).mean() < 1, "run: python docs/augmentation.py"
