from types import SimpleNamespace

import numpy as np
import pytest

from pipeline.errors import DataError
from trainer.exporting import comparison


def test_a_file_that_takes_too_long_is_one_line(tmp_path, monkeypatch):
    monkeypatch.setattr(comparison, "_TIMEOUT", 0.02)
    files = {"keras": comparison.File(tmp_path / "model.keras", [np.zeros((1, 2, 2, 1), np.uint8)])}
    served = SimpleNamespace(class_names=("ape", "bee"))
    with pytest.raises(DataError, match=r"^--format=keras: not reloaded and run within 0.02 s; give fewer --examples$"):
        list(comparison.largest_differences(files, np.zeros((1, 2), np.float32), served, []))
