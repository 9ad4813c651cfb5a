"""CIFAR-10 and CIFAR-100 as published, in the binary or the Python version, unpacked or as the .tar.gz.

Format: https://www.cs.toronto.edu/~kriz/cifar.html: each record is one byte per label, then 3,072 bytes of pixels.
Pickles are rewritten as temporary files of such records.
"""

from __future__ import annotations

import contextlib
import dataclasses
import functools
import hashlib
import io
import os
import pickle
import pickletools
from collections.abc import Callable, Collection
from concurrent.futures import ThreadPoolExecutor
from typing import IO, Any, ClassVar

import numpy as np
from numpy.typing import NDArray

from beam_jobs.sources import base, published, row_files, streams
from beam_jobs.sources.base import SOURCES, Block, Files, Source, SourceOptions
from beam_jobs.sources.row_files import RowFile
from beam_jobs.sources.streams import KnownFile
from pipeline.commands.text import count_of
from pipeline.errors import DataError, reason_of
from pipeline.files.paths import LocalPath
from pipeline.manifest import Feature, SourceFile

try:
    from pipeline.read import _unpack
except ImportError:  # installed without a compiler, or for another kind of processor
    _unpack = None  # type: ignore[assignment]

SIDE, CHANNELS = 32, 3
_PIXELS = CHANNELS * SIDE * SIDE  # 3,072 bytes: 1,024 red, 1,024 green, 1,024 blue
_PLANE = SIDE * SIDE
_AT_ONCE = 256  # rows, which stay in a core's cache between reading and transposing
_ROWS = 1024  # rows written together, 3 MB


@dataclasses.dataclass(frozen=True)
class Layout:
    """One published form of a data set.

    Attributes:
      folder: folder in the archive.
      files: {split: its files, in order}.
      is_pickled: whether it is the Python version; otherwise the binary one.
    """

    folder: str
    files: dict[str, tuple[str, ...]]
    is_pickled: bool

    @property
    def names(self) -> tuple[str, ...]:
        """Names of all files."""
        return tuple(name for names in self.files.values() for name in names)


@dataclasses.dataclass(frozen=True)
class Label:
    """A kind of label: one byte of each binary record, or one list of a pickle.

    Attributes:
      feature: name of the feature in our examples.
      key: key in the pickles.
      class_names: name of each class, by label.
    """

    feature: str
    key: str
    class_names: tuple[str, ...]


def _words(text: str) -> tuple[str, ...]:
    return tuple(text.split())


_TEN = _words("airplane automobile bird cat deer dog frog horse ship truck")
_COARSE = _words(
    """aquatic_mammals fish flowers food_containers fruit_and_vegetables household_electrical_devices
    household_furniture insects large_carnivores large_man-made_outdoor_things large_natural_outdoor_scenes
    large_omnivores_and_herbivores medium_mammals non-insect_invertebrates people reptiles small_mammals trees
    vehicles_1 vehicles_2"""
)
_FINE = _words(
    """apple aquarium_fish baby bear beaver bed bee beetle bicycle bottle bowl boy bridge bus butterfly camel can castle
    caterpillar cattle chair chimpanzee clock cloud cockroach couch crab crocodile cup dinosaur dolphin elephant
    flatfish forest fox girl hamster house kangaroo keyboard lamp lawn_mower leopard lion lizard lobster man maple_tree
    motorcycle mountain mouse mushroom oak_tree orange orchid otter palm_tree pear pickup_truck pine_tree plain plate
    poppy porcupine possum rabbit raccoon ray road rocket rose sea seal shark shrew skunk skyscraper snail snake spider
    squirrel streetcar sunflower sweet_pepper table tank telephone television tiger tractor train trout tulip turtle
    wardrobe whale willow_tree wolf woman worm"""
)
LABELS = {
    "cifar10": (Label("label", "labels", _TEN),),
    "cifar100": (Label("coarse_label", "coarse_labels", _COARSE), Label("label", "fine_labels", _FINE)),
}
_BATCHES = tuple(f"data_batch_{i}" for i in range(1, 6))
LAYOUTS = {
    "cifar10": (
        Layout(
            "cifar-10-batches-bin", {"train": tuple(f"{n}.bin" for n in _BATCHES), "test": ("test_batch.bin",)}, False
        ),
        Layout("cifar-10-batches-py", {"train": _BATCHES, "test": ("test_batch",)}, True),
    ),
    "cifar100": (
        Layout("cifar-100-binary", {"train": ("train.bin",), "test": ("test.bin",)}, False),
        Layout("cifar-100-python", {"train": ("train",), "test": ("test",)}, True),
    ),
}


@dataclasses.dataclass(frozen=True, eq=False, kw_only=True)
class CifarSource(Source):
    """The files of a folder or an archive.

    Attributes:
      batches: {split: its files}.
    """

    batches: dict[str, tuple[RowFile, ...]]

    def read(self, split: str, rows: NDArray[np.int64]) -> Block:
        count = len(LABELS[self.dataset])
        images = np.empty((len(rows), _PLANE, CHANNELS), np.uint8)
        labels = np.empty((len(rows), count), np.int64)
        scratch = np.empty((min(_AT_ONCE, len(rows)), count + _PIXELS), np.uint8)
        files, own = base.locate(self.parts[split].counts, rows)
        order = np.lexsort((rows, np.arange(len(rows)) // _AT_ONCE))  # each part in file order
        with contextlib.ExitStack() as stack:
            handles = [stack.enter_context(batch.opened()).fileno() for batch in self.batches[split]]
            descriptors, offsets = np.array(handles)[files[order]], own[order] * scratch.shape[1]
            for start in range(0, len(rows), _AT_ONCE):
                part = slice(start, start + _AT_ONCE)
                records = scratch[: len(rows[part])]
                row_files.fill(records, order[part] - start, descriptors[part].tolist(), offsets[part].tolist())
                labels[part] = records[:, :count]
                interleave(records, count, images[part])
        extra = {name: labels[:, i] for i, name in enumerate(self.features)}
        keys = self.parts[split].keys(rows)
        return Block(images.reshape(-1, SIDE, SIDE, CHANNELS), labels[:, -1], keys, extra)


def interleave(planes: NDArray[np.uint8], before: int, images: NDArray[np.uint8]) -> None:
    """Converts RGB images stored plane by plane to interleaved pixels.

    Args:
      planes: uint8 (n, before + 3 x pixels), C-contiguous: other bytes, then the red, green and blue values.
      before: number of other bytes before the pixels.
      images: images to write to, uint8 (n, pixels, 3), C-contiguous.
    """
    if _unpack is not None:
        _unpack.interleave(np.array([len(planes), before, images.shape[1]]), planes, images)
        return
    for channel in range(CHANNELS):  # three times as fast as a transposed copy
        begin = before + channel * images.shape[1]
        images[:, :, channel] = planes[:, begin : begin + images.shape[1]]


@SOURCES.named("cifar10", "cifar100")
def open_source(options: SourceOptions) -> CifarSource:
    """Opens and checks the files of `options.source`; downloads the archive if it is empty.

    Args:
      options: options; `source` is a folder as in the archive, the parent of that folder, or the .tar.gz.

    Raises:
      DataError: a file is missing or damaged, is not a whole number of records, or has a label out of range; or the
        archive cannot be downloaded.
    """
    dataset = options.dataset
    path = LocalPath(options.source or published.files(dataset)[0]).absolute()
    layout, found = _find(path, dataset)
    *others, label = LABELS[dataset]
    by_name = {file.file.file: file for file in found}
    batches = {split: tuple(by_name[name] for name in names) for split, names in layout.files.items()}
    parts = {split: Files(layout.files[split], tuple(file.shape[0] for file in own)) for split, own in batches.items()}
    return CifarSource(
        dataset=dataset,
        class_names=label.class_names,
        files=tuple(file.file for file in found),
        splits=base.rows_of(parts, path),
        image_shape=(SIDE, SIDE, CHANNELS),
        features={other.feature: Feature("int64", class_names=other.class_names) for other in others},
        parts=parts,
        batches=batches,
    )


def _find(path: LocalPath, dataset: str) -> tuple[Layout, list[RowFile]]:
    """Returns the layout of a folder or an archive, and its files in the layout's order."""
    if not path.exists():
        folders = " or ".join(layout.folder for layout in LAYOUTS[dataset])
        raise DataError(
            "no such folder or file", path=path, advice=f"--source of {dataset} is the folder {folders} or its .tar.gz"
        )
    members = [(layout.folder, name) for layouts in LAYOUTS.values() for layout in layouts for name in layout.names]
    unpack = functools.partial(_find, path, dataset)
    if not path.is_dir():
        archived = KnownFile.of(path)
        handles = published.unpack(path, members)
        layout = _choose(path, dataset, handles)
        opened = [(archived, handles[layout.folder, name]) for name in layout.names]
        return layout, _all_checked(opened, layout, dataset, unpack)
    candidates = [(member, place) for member in members for place in (path / member[1], path.joinpath(*member))]
    places = {member: place for member, place in candidates if place.exists()}  # the inner folder's come last, and win
    layout = _choose(path, dataset, places)
    chosen = [places[layout.folder, name] for name in layout.names]
    opened = [(KnownFile.of(place), streams.open_plain(place)) for place in chosen]
    return layout, _all_checked(opened, layout, dataset, unpack if layout.is_pickled else None)


def _choose(path: LocalPath, dataset: str, present: Collection[tuple[str, str]]) -> Layout:

    def score(layout: Layout) -> int:
        return sum((layout.folder, name) in present for name in layout.names)

    best = max(LAYOUTS[dataset], key=score)
    if not score(best):
        for other, layouts in LAYOUTS.items():
            if any(map(score, layouts)):
                raise DataError(f"holds the files of --dataset={other}, not of {dataset}", path=path)
        names = " nor ".join(f"{layout.folder}/{layout.names[0]}" for layout in LAYOUTS[dataset])
        raise DataError(f"holds neither {names}", path=path)
    for name in best.names:
        if (best.folder, name) not in present:
            raise DataError(f"holds no {name} of {best.folder}", path=path)
    return best


def _all_checked(
    opened: list[tuple[KnownFile, IO[bytes]]], layout: Layout, dataset: str, unpack: Callable[[], object] | None
) -> list[RowFile]:
    """Checks the layout's files on all cores (pickles one by one, as each is held in memory) and keeps them open."""

    def check(known: KnownFile, handle: IO[bytes], name: str) -> tuple[RowFile, IO[bytes]]:
        return _checked(known, handle, name, layout, dataset, unpack)

    with ThreadPoolExecutor(1 if layout.is_pickled else os.cpu_count()) as pool:
        found = list(pool.map(check, *zip(*opened, strict=True), layout.names))
    for rows, records in found:
        rows.keep(records)  # not in those threads: while a file is unpacked again, this thread holds the lock
    return [rows for rows, _ in found]


def _checked(
    known: KnownFile, handle: IO[bytes], name: str, layout: Layout, dataset: str, unpack: Callable[[], object] | None
) -> tuple[RowFile, IO[bytes]]:
    """Checks that a file's records are complete and its labels in range; returns the file and a handle for its rows."""
    labels = LABELS[dataset]
    length = len(labels) + _PIXELS
    where = str(known.path) if known.path.name == name else f"{known.path}: {name}"
    bounds = [(label.feature.replace("_", " "), 0, len(label.class_names) - 1) for label in labels]
    with streams.errors_of(known.path):
        records = _unpickled(handle, where, labels) if layout.is_pickled else handle
        size = streams.size(records)
    if not size or size % length:
        problem = f"has {count_of(size, 'byte')}, not a whole number of {length}-byte records"
        raise streams.damaged(where, problem)
    shape = (size // length, length)
    sha256 = hashlib.sha256()
    with streams.errors_of(known.path):
        for block in row_files.with_labels_checked(records, where, 0, shape, bounds):
            if not layout.is_pickled:  # the digest of a pickle covers the pickle itself, below
                sha256.update(block)
        file = streams.entry_of(name, handle) if layout.is_pickled else SourceFile(name, size, sha256.hexdigest())
    return RowFile(known.path, known.stamp, file, shape, unpack=unpack), records


def _unpickled(handle: IO[bytes], where: str, labels: tuple[Label, ...]) -> IO[bytes]:
    batch = load_pickle(handle, where)
    if not isinstance(batch, dict):
        raise DataError(f"holds a {type(batch).__name__}, not the dictionary of a batch", path=where)
    batch = {key.decode("latin-1") if isinstance(key, bytes) else key: value for key, value in batch.items()}
    for key in ("data", *(label.key for label in labels)):
        if key not in batch:
            raise DataError(f"its dictionary has no {key!r}; it is not a batch of this data set", path=where)
    columns = [_column(batch[label.key], label, where) for label in labels]
    array, expected = batch["data"], (len(columns[0]), _PIXELS)
    try:
        pixels = array.values() if isinstance(array, Array) else np.empty(0, np.uint8)
    except (ValueError, TypeError):
        problem = f"its data has {count_of(len(array.data), 'byte')}, not those of its shape"
        raise streams.damaged(where, problem) from None
    if pixels.shape != expected or any(len(column) != len(pixels) for column in columns):
        lengths = " and ".join(count_of(len(column), "label") for column in columns)
        raise DataError(f"its data is {pixels.shape} for {lengths}; must be uint8 {expected}", path=where)
    blocks = (slice(start, start + _ROWS) for start in range(0, len(pixels), _ROWS))
    labels_of_rows = np.stack(columns, axis=1)
    return streams.spool(np.concatenate([labels_of_rows[rows], pixels[rows]], axis=1).tobytes() for rows in blocks)


def _column(values: Any, label: Label, where: str) -> NDArray[np.uint8]:
    if not isinstance(values, list) or not values:
        raise DataError(f"its {label.key} is not a list of labels; it is not a batch of this data set", path=where)
    high = len(label.class_names) - 1
    for row, value in enumerate(values):
        if type(value) is not int or not 0 <= value <= high:
            shown = value if isinstance(value, int) else f"a {type(value).__name__}"
            raise DataError(f"row {row}: {label.key} has {shown}, which is not in 0..{high}", path=where)
    return np.array(values, np.uint8)


MAX_PICKLE = 256 << 20  # 256 MiB: one and a half times CIFAR-100's train
MAX_READS = 2_000_000  # at least one per operation: several times what CIFAR-100's train takes
_UINT8_NAMES = ("u1", b"u1", "|u1", b"|u1")
_NDARRAY, _UINT8 = object(), object()
_OPERATIONS = """
    NONE NEWTRUE NEWFALSE MARK EMPTY_DICT EMPTY_LIST EMPTY_TUPLE BININT1 BININT2 BININT SHORT_BINSTRING BINSTRING
    SHORT_BINBYTES BINBYTES BINBYTES8 SHORT_BINUNICODE BINUNICODE BINGET LONG_BINGET GLOBAL STACK_GLOBAL TUPLE TUPLE1
    TUPLE2 TUPLE3 REDUCE PROTO FRAME BINPUT LONG_BINPUT MEMOIZE APPEND APPENDS SETITEM SETITEMS BUILD STOP
"""
_CODES = {operation.name: ord(operation.code) for operation in pickletools.opcodes}


class _RefusedError(Exception):
    """A pickle that is refused; the message gives the reason."""


@dataclasses.dataclass
class Array:
    """A uint8 NumPy array in a pickle; has no shape until its state is read."""

    shape: Any = None
    is_fortran: bool = False
    data: bytes = b""

    def values(self) -> NDArray[np.uint8]:
        """Returns the array; raises ValueError or TypeError if its shape does not fit its data."""
        return np.frombuffer(self.data, np.uint8).reshape(self.shape, order="F" if self.is_fortran else "C")


def load_pickle(handle: IO[bytes], where: str) -> Any:
    """Loads an untrusted pickle of dict, list, tuple, str, bytes, int, bool, None and `Array` objects.

    A pickle is a program for a stack machine. It runs on Python's own machine, restricted to the operations needed for
    a dictionary of lists, strings and one array, with stand-ins for the four names that such files call. It is the
    machine written in Python, because six bytes of a pickle can make the one in C allocate gigabytes.

    Raises:
      DataError: the file is damaged, too large, or contains or calls anything else. The message begins with `where`.
    """
    size = streams.size(handle)
    if size > MAX_PICKLE:
        raise DataError(f"has {count_of(size, 'byte')}; a file of this data set has at most {MAX_PICKLE}", path=where)
    with _Counted(io.FileIO(os.dup(handle.fileno()))) as stream:
        stream.seek(0)
        try:
            return _Unpickler(stream, size).load()
        except _RefusedError as error:
            reason = str(error)
        except EOFError:
            reason = "it is cut short"
        except OSError as error:
            raise DataError(f"cannot be read: {reason_of(error)}", path=where) from None
        except Exception:  # the machine's operations check little, and some are missing
            reason = "it is damaged, or does what these files do not need"
        at = stream.tell()
    raise streams.damaged(where, f"is not a pickle of this data set: {reason}, before byte {at} of {size}")


class _Counted(io.BufferedReader):
    """A stream that stops a pickle after too many operations."""

    reads = 0

    def read(self, size: int | None = -1) -> bytes:
        """Returns the next bytes, fewer at the end."""
        self.reads += 1
        if self.reads > MAX_READS:
            raise _RefusedError(f"it has more than {MAX_READS} operations")
        return super().read(size)


_Base: Any = pickle._Unpickler  # type: ignore[attr-defined]  # unknown to mypy


class _Unpickler(_Base):  # type: ignore[misc]
    """Python's machine, which calls nothing but the stand-ins below."""

    def __init__(self, stream: _Counted, size: int) -> None:
        super().__init__(stream, encoding="bytes")
        self._left_to_encode = size
        self._named: dict[tuple[str, str], Any] = {
            ("numpy", "ndarray"): _NDARRAY,
            ("numpy", "dtype"): self._dtype,
            ("_codecs", "encode"): self._encode,
            ("numpy.core.multiarray", "_reconstruct"): self._reconstruct,
            ("numpy._core.multiarray", "_reconstruct"): self._reconstruct,
        }

    def find_class(self, module: str, name: str) -> Any:
        if (module, name) not in self._named:
            raise _RefusedError(f"it calls {f'{module}.{name}'!r:.80}")
        return self._named[module, name]

    def _reconstruct(self, kind: object, *_: object) -> Array:
        if kind is not _NDARRAY:
            raise _RefusedError("it makes something other than an array")
        return Array()

    def _dtype(self, name: object, *_: object) -> object:
        if name not in _UINT8_NAMES:
            raise _RefusedError("it holds an array of something other than uint8")
        return _UINT8

    def _encode(self, text: str, _: object) -> bytes:
        self._left_to_encode -= len(text)
        if self._left_to_encode < 0:  # the same string, encoded again and again
            raise _RefusedError("its strings are longer than the file")
        return text.encode("latin-1")

    def _build(self) -> None:
        state, built = self.stack.pop(), self.stack[-1]
        if isinstance(built, Array):
            _, built.shape, dtype, built.is_fortran, built.data = state
            if dtype is not _UINT8 or not isinstance(built.data, bytes):
                raise _RefusedError("it holds an array of something other than uint8")
        elif built is not _UINT8:
            raise _RefusedError("it gives a state to something other than an array")

    def _set_items(self, items: list[Any]) -> None:
        if not isinstance(self.stack[-1], dict) or not all(isinstance(key, str | bytes) for key in items[::2]):
            raise _RefusedError("it has a dictionary whose keys are not strings")
        self.stack[-1].update(zip(items[::2], items[1::2], strict=True))

    dispatch: ClassVar[dict[int, Callable[[Any], Any]]] = {
        **{_CODES[name]: _Base.dispatch[_CODES[name]] for name in _OPERATIONS.split()},
        _CODES["FRAME"]: lambda self: self.read(8),  # its length; the content is read like the rest
        _CODES["BUILD"]: _build,
        _CODES["SETITEM"]: lambda self: self._set_items([self.stack.pop(-2), self.stack.pop()]),
        _CODES["SETITEMS"]: lambda self: self._set_items(self.pop_mark()),
    }
