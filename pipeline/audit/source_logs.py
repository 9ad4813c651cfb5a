"""What a run saw of a mixture: a key log for each source, which `pipeline.audit DIR --observed` checks by itself."""

from __future__ import annotations

import contextlib
import pathlib
from collections.abc import Sequence
from typing import Self

from pipeline.audit.key_log import SUFFIX, Header, KeyLogWriter
from pipeline.order.mixture_spec import MixtureSpec, Spec
from pipeline.order.shares import rows_in_blocks


class SourceLogs:
    """Appends to one worker's logs, `DIR/worker-00000.jsonl`, of a mixture `DIR/source-0/worker-00000.jsonl` and so on.

    A context manager.
    """

    def __init__(self, folder: str, spec: Spec, worker: int, workers: int, replicas: int) -> None:
        """Opens the logs, and writes their headers.

        Raises:
          DataError: a file cannot be written.
        """
        parts = spec.parts if isinstance(spec, MixtureSpec) else (spec,)
        places = [pathlib.Path(folder) / (f"source-{i}" if len(parts) > 1 else "") for i in range(len(parts))]
        self._shares = [part.global_batch_size for part in parts]
        self._open = contextlib.ExitStack()
        self._logs = [
            self._open.enter_context(
                KeyLogWriter(place / f"worker-{worker:05d}{SUFFIX}", Header.of(part, worker, workers, replicas))
            )
            for part, place in zip(parts, places, strict=True)
        ]

    def append(self, step: int, replica: int, keys: Sequence[bytes | str], weights: Sequence[float]) -> None:
        """Adds one replica's rows of one global step; as `KeyLogWriter.append`."""
        parts = sum(self._shares) // len(keys)
        for log, rows in zip(self._logs, rows_in_blocks([share // parts for share in self._shares]), strict=True):
            log.append(step, replica, [keys[row] for row in rows], [weights[row] for row in rows])

    def flush(self) -> None:
        """Hands all lines to the operating system; as `KeyLogWriter.flush`."""
        for log in self._logs:
            log.flush()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._open.close()
