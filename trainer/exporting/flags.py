"""The flags of `trainer.export` and `trainer.predict`."""

from __future__ import annotations

import dataclasses
import os

from pipeline.commands.flags import check, check_all, flag
from pipeline.errors import UsageError, unknown
from trainer.config.run import WEIGHTS, CheckpointFlags

EXPORT = "export.json"  # describes the exported files, beside them
OUTPUTS = (".jsonl", ".csv")  # of predictions
LIBRARIES = {  # that each format needs in addition to TensorFlow
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
    """What is exported, and how it is compared with the model. Data flags default to those of the run."""

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
        check_all(
            super().__post_init__,
            lambda: self._check_folder("output"),
            *(self._check_formats, self._check_new),
        )

    def _check_formats(self) -> None:
        for name in self.formats:
            if name not in LIBRARIES:
                raise unknown("--format", name, LIBRARIES)

    def _check_new(self) -> None:
        if os.path.lexists(self.output):
            raise UsageError(f"--output={self.output}: is there already; give a folder that is not")

    @property
    def formats(self) -> list[str]:
        """The formats, each once, in the given order."""
        return list(dict.fromkeys(name.strip() for name in self.format.split(",")))


@dataclasses.dataclass(frozen=True)
class PredictConfig:
    """Which model is asked, about which images, and where the answers go."""

    images: list[str] = flag(text="image files, and folders of them", positional=True, repeated=True, metavar="IMAGE")
    model_dir: str | None = flag(None, "folder of a run of trainer.run; it may be training")
    exported: str | None = flag(None, "instead: what trainer.export wrote, its folder or one of the files in it")
    checkpoint: str | None = flag(None, "of the run: ckpt-400, 400, best or best/ckpt-400 (None: the newest)")
    weights: str | None = flag(
        None, "of the run: raw, or ema: the average over the steps (None: the average if it kept one)", known=WEIGHTS
    )
    data_dir: str | None = flag(None, "folder of the run's data set, where that has moved")
    top: int = flag(3, "classes per image, the most likely ones", least=1)
    output: str | None = flag(None, "file for the answers: FILE.jsonl or FILE.csv (None: they are printed)")
    batch_size: int = flag(64, "images that are computed at once", least=1)

    def __post_init__(self) -> None:
        """Checks the values, alone and together."""
        check_all(lambda: check(self), self._check_images, self._check_model, self._check_output)

    def _check_images(self) -> None:
        if not self.images:
            raise UsageError("IMAGE is missing: give image files, or folders of them")

    def _check_model(self) -> None:
        if (self.model_dir is None) == (self.exported is None):
            are = "or --exported is missing" if self.exported is None else "and --exported"
            raise UsageError(f"--model_dir {are}: give one of them")
        for name in ("checkpoint", "weights", "data_dir"):
            if self.exported is not None and getattr(self, name) is not None:
                raise UsageError(f"--{name}={getattr(self, name)} with --exported: is of a run; give --model_dir")

    def _check_output(self) -> None:
        if self.output is not None and not self.output.endswith(OUTPUTS):
            raise UsageError(f"--output={self.output}: must end with {' or '.join(OUTPUTS)}")
