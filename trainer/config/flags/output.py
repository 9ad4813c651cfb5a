"""What a run writes and measures, besides its weights; none of it shapes them."""

from __future__ import annotations

import dataclasses

from pipeline.errors import UsageError
from trainer.config.flags.checks import check_least


@dataclasses.dataclass(frozen=True)
class OutputFlags:
    """What a run writes and measures, besides its weights."""

    histogram_every: int = 0  # steps between histograms of all weights and summed gradients for TensorBoard; 0: none
    image_every: int = 0  # steps between images of a distorted batch for TensorBoard; 0: none
    profile: str | None = None  # START:STOP, steps between which TensorFlow's profiler records; for TensorBoard
    metrics_jsonl: str | None = None  # a file that receives all scalars as one JSON object per step and line
    headspace: int = 0  # at the end: so many steps with one constant batch, to compare the speed; 0: none
    log_device_placement: bool = False  # TensorFlow says on which device it computes each operation

    def __post_init__(self) -> None:
        """Checks the values."""
        check_least(self, 0, "histogram_every", "image_every", "headspace")
        self.profiled  # noqa: B018, it raises

    @property
    def profiled(self) -> tuple[int, int] | None:
        """START and STOP of --profile."""
        if self.profile is None:
            return None
        start, _, stop = self.profile.partition(":")
        if not (start.isdigit() and stop.isdigit() and 1 <= int(start) < int(stop)):
            raise UsageError(
                f"--profile={self.profile}: must be START:STOP, the steps after which it begins and ends, such as "
                "100:110; START is 1 or more, since the first step is compiled"
            )
        return int(start), int(stop)
