"""Where a run's lines go, and the tutorials' log line."""

from __future__ import annotations

from trainer.actions.live import LiveLine
from trainer.loop import Progress
from trainer.step.train_step import TOTAL_LOSS


class Output:
    """Lines on stdout: the chief's, and the few that every other worker says of itself, with its number.

    Attributes:
      live: the line below them, on a terminal.
    """

    def __init__(self, rank: int = 0, live: LiveLine | None = None) -> None:
        self._rank, self.live = rank, live or LiveLine(wanted=False)

    def line(self, text: str) -> None:
        """Prints a line of the chief."""
        if self._rank == 0:
            with self.live.aside():
                print(text, flush=True)

    def other_line(self, text: str) -> None:
        """Prints a line of each worker but the chief."""
        if self._rank > 0:
            print(f"worker {self._rank}: {text}", flush=True)


class LogLine:
    """Reports the loss of the epoch so far, and the speed since the last line.

    The first speed is since the second update of this process.

    That leaves out tracing and compiling, which the first update waits for; a line of that update alone includes them.
    """

    def __init__(self, global_batch_size: int, output: Output) -> None:
        self._rows, self._output = global_batch_size, output
        self._earlier: Progress | None = None

    def __call__(self, progress: Progress) -> None:
        """Prints the log line of the CIFAR-10 tutorial (cifar10_train.py)."""
        steps, seconds = progress.since(self._earlier)
        self._earlier = progress
        self._output.line(
            f"step {progress.step}, loss = {progress.means[TOTAL_LOSS]:.2f} "
            f"({steps * self._rows / seconds:.1f} examples/sec; {seconds / steps:.3f} sec/batch)"
        )
