"""Reads the scalars, texts and images in TensorBoard's files while a run writes them, without TensorFlow."""

from __future__ import annotations

import bisect
import dataclasses
import math
import pathlib
import time
from collections.abc import Iterable, Mapping
from typing import Any

from pipeline.files.reading import opened as opened_file
from pipeline.records import framing
from pipeline.records.framing import Kind
from trainer.journal import parsed
from trainer.run_folder import EVENTS

_CUT = (Kind.CUT_HEADER, Kind.CUT_RECORD)
_MOST_IMAGES = 8
_START = 1  # SessionLog.START in TensorBoard's event.proto


@dataclasses.dataclass
class Series:
    """The values of a tag, in ascending order of steps.

    Attributes:
      steps: global steps.
      times: writing time of each value, in seconds since 1970.
      values: values; NaN for values that are not finite.
    """

    steps: list[int] = dataclasses.field(default_factory=list)
    times: list[float] = dataclasses.field(default_factory=list)
    values: list[float] = dataclasses.field(default_factory=list)

    def add(self, step: int, time: float, value: float) -> None:
        """Adds a value, after removing values of the same or later steps."""
        if self.steps and self.steps[-1] >= step:
            self.cut(step)
        self.steps.append(step)
        self.times.append(time)
        self.values.append(value if math.isfinite(value) else math.nan)

    def cut(self, step: int) -> None:
        """Removes the values from a step on."""
        end = bisect.bisect_left(self.steps, step)
        del self.steps[end:], self.times[end:], self.values[end:]

    @property
    def last(self) -> float | None:
        """The newest value; None if there is none."""
        return self.values[-1] if self.values else None

    def thinned(self, most: int) -> Series:
        """Returns at most about `most` values, evenly spaced, including the last one."""
        every = max(1, -(-len(self.steps) // most))
        where = range(len(self.steps) - 1, -1, -every)[::-1]
        return Series([self.steps[i] for i in where], [self.times[i] for i in where], [self.values[i] for i in where])


@dataclasses.dataclass(frozen=True)
class Start:
    """A start or resume of training.

    Attributes:
      step: global step that it continues from.
      time: seconds since 1970.
      host: name of the machine.
      flags: flags of the run, by group; None if they are not (yet) in the file.
    """

    step: int
    time: float
    host: str
    flags: Mapping[str, Mapping[str, Any]] | None


class EventFiles:
    """Follows the files of a folder: each call of `update` reads what was added since the last one.

    Like TensorBoard, it drops earlier processes' values for steps that a later process repeats.

    Attributes:
      series: points of each scalar, by tag.
      starts: starts of the run, in order.
      images: PNGs by tag, from the newest step that has any.
      images_step: global step of these images.
      problems: problems with files, as text, by file name.
    """

    def __init__(self, folder: pathlib.Path) -> None:
        """Does not read anything yet; the folder need not exist."""
        self._folder = folder
        self._forget()

    def _forget(self) -> None:
        self._offsets: dict[str, int] = {}
        self.series: dict[str, Series] = {}
        self.starts: list[Start] = []
        self.images: dict[str, bytes] = {}
        self.images_step: int | None = None
        self.problems: dict[str, str] = {}

    def update(self, until: float = math.inf) -> bool:
        """Reads new content; returns whether none is left. Unreadable files are listed in `problems`.

        Args:
          until: `time.monotonic` value after which the rest is left to the next call.
        """
        files = sorted(self._folder.glob(f"{EVENTS}*"))  # names begin with the time
        sizes = {file.name: _size_of(file) for file in files}
        if any(sizes.get(name, -1) < offset for name, offset in self._offsets.items()):  # a new run has started there
            self._forget()
        return all(self._read(file, until) for file in files if sizes[file.name] > self._offsets.get(file.name, 0))

    def _read(self, file: pathlib.Path, until: float) -> bool:
        self.problems.pop(file.name, None)
        offset = self._offsets.get(file.name, 0)
        try:
            with opened_file(file) as opened:
                opened.seek(offset)
                for frame in framing.walk(lambda size: opened.read(max(size, 1 << 20)), offset=offset):
                    if frame.fault:
                        cut = frame.fault.kind in _CUT
                        what = "ends inside a record, which may still be written" if cut else "is damaged"
                        self.problems[file.name] = f"{what} (byte {frame.offset:,}: {frame.fault.text})"
                    if frame.record is not None:
                        self._take(file, frame.record)
                    self._offsets[file.name] = frame.end
                    if time.monotonic() > until:
                        return False
        except OSError as error:
            self.problems[file.name] = f"cannot be read: {error.strerror}"
        return True

    def _take(self, file: pathlib.Path, record: bytes) -> None:
        from google.protobuf.message import DecodeError  # noqa: PLC0415, as below
        from tensorboard.compat.proto import event_pb2  # noqa: PLC0415, 0.1 s, after --help

        try:
            event = event_pb2.Event.FromString(record)
        except DecodeError:
            self.problems[file.name] = "has a record that is not TensorBoard's"
            return
        if event.HasField("session_log") and event.session_log.status == _START:
            for series in self.series.values():
                series.cut(event.step)
            host = file.name.removeprefix(EVENTS).split(".", 2)[-1].rsplit(".", 2)[0]
            self.starts.append(Start(event.step - 1, event.wall_time, host, None))
        for value in event.summary.value:
            kind = value.WhichOneof("value")
            if kind == "simple_value":
                self.series.setdefault(value.tag, Series()).add(event.step, event.wall_time, value.simple_value)
            elif kind == "image":
                self._take_image(event.step, value.tag, value.image.encoded_image_string)
            elif kind == "tensor" and value.tag == "flags" and self.starts:
                flags = _flags_in(value.tensor.string_val)
                self.starts[-1] = dataclasses.replace(self.starts[-1], flags=flags)

    def _take_image(self, step: int, tag: str, png: bytes) -> None:
        if step != self.images_step:
            self.images, self.images_step = {}, step
        if len(self.images) < _MOST_IMAGES:
            self.images[tag] = png


class MetricsLines:
    """Follows a --metrics_jsonl file, which contains the same scalars; see `EventFiles`."""

    def __init__(self, path: pathlib.Path) -> None:
        """Does not read anything yet; the file need not exist."""
        self._path, self._offset = path, 0
        self.series: dict[str, Series] = {}
        self.problems: dict[str, str] = {}

    def update(self, until: float = math.inf) -> bool:
        """Reads the new lines, except one that is still being written; see `EventFiles.update`."""
        size = _size_of(self._path)
        if size < self._offset:  # a resumed run has removed lines
            self.series, self._offset = {}, 0
        if size == self._offset:
            return True
        try:
            with opened_file(self._path) as file:
                file.seek(self._offset)
                for line in file:
                    if not line.endswith(b"\n"):
                        break
                    self._offset += len(line)
                    self._take(line)
                    if time.monotonic() > until:
                        return False
        except OSError as error:
            self.problems[self._path.name] = f"cannot be read: {error.strerror}"
        return True

    def _take(self, line: bytes) -> None:
        try:
            content = parsed(line)
            step, time = int(content.pop("step")), float(content.pop("time"))
            for tag, value in content.items():
                self.series.setdefault(tag, Series()).add(step, time, math.nan if value is None else float(value))
        except (ValueError, TypeError, KeyError, AttributeError, OverflowError):
            self.problems[self._path.name] = "has a line that is not this trainer's"


def _flags_in(texts: Iterable[bytes]) -> Mapping[str, Mapping[str, Any]] | None:
    for text in texts:
        try:
            content = parsed(text)
        except ValueError:
            continue
        if isinstance(content, dict) and all(isinstance(group, dict) for group in content.values()):
            return content
    return None


def _size_of(path: pathlib.Path) -> int:
    try:
        return path.stat().st_size
    except OSError:
        return 0
