"""docs/augmentation.png and docs/masks.png show what the recipes do today."""

import pathlib
import runpy

import numpy as np
import PIL.Image
import pytest

DOCS = pathlib.Path(__file__).resolve().parents[3] / "docs"


@pytest.mark.slow
def test_the_pictures_are_up_to_date():
    pytest.importorskip("sklearn", reason="needs scikit-learn, whose photographs they show")
    pictures = runpy.run_path(str(DOCS / "augmentation.py"))["pictures"]()
    assert len(pictures) == 2
    for path, picture in pictures.items():
        drawn = np.asarray(picture.convert("RGB"), np.float32)
        stored = np.asarray(PIL.Image.open(path).convert("RGB"), np.float32)
        assert drawn.shape == stored.shape
        assert np.abs(drawn - stored).mean() < 1, "run: python docs/augmentation.py"
