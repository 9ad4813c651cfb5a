"""The flags of `trainer.export`."""

from __future__ import annotations

import dataclasses
import os

from pipeline.commands.flags import flag
from pipeline.errors import UsageError, unknown
from trainer.config.meaning import check_apart, check_local
from trainer.config.run import CheckpointFlags

LIBRARIES = {  # that each format needs besides TensorFlow
    "saved_model": (),
    "keras": (),
    "onnx": ("tf2onnx", "onnxruntime"),
    "stablehlo": (),
}


@dataclasses.dataclass(frozen=True)
class _Required:
    output: str = flag(text="folder to make; one that is there is not touched")


@dataclasses.dataclass(frozen=True)
class ExportConfig(CheckpointFlags, _Required):
    """What is exported, and how it is compared. Data flags default to those of the run."""

    format: str = flag("saved_model,keras", "of saved_model, keras, onnx and stablehlo, with commas between")
    stablehlo_batch: int = flag(1, "images that the StableHLO program takes: its shapes are static", least=1)
    examples: int = flag(200, "of the split, on which each file is compared with the trained model", least=1)
    tolerance: float | None = flag(
        None,
        "most that a probability may differ by (None: 1e-4; 0.02 if --precision is not float32, or JPEGs are cropped)",
        above=0,
    )

    def __post_init__(self) -> None:
        """Checks the values, alone and together."""
        super().__post_init__()
        check_local(self, "output")
        check_apart("output", self.output, self.data_dir)
        for name in self.formats:
            if name not in LIBRARIES:
                raise unknown("--format", name, LIBRARIES)
        if os.path.lexists(self.output):
            raise UsageError(f"--output={self.output}: is there already; give a folder that is not")

    @property
    def formats(self) -> list[str]:
        """The formats, each once, in the order in which they are given."""
        return list(dict.fromkeys(name.strip() for name in self.format.split(",")))
