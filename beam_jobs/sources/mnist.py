"""MNIST and the data sets that copy its four IDX files: 28x28 grey images, gzip or not.

EMNIST's files have the images transposed; here they are turned upright, unlike in TensorFlow Datasets.
"""

from __future__ import annotations

import dataclasses
import string

import numpy as np
from numpy.typing import NDArray

from beam_jobs.sources import archive, base, download, idx, listing
from beam_jobs.sources.base import Block, Files, Source, SourceOptions
from beam_jobs.sources.row_files import RowFile
from beam_jobs.storage.paths import LocalPath
from pipeline.errors import DataError

SPLITS = ("train", "test")
_SIDE = 28
_DIGITS = tuple(string.digits)
_FASHION = ("T-shirt/top", "Trouser", "Pullover", "Dress", "Coat", "Sandal", "Shirt", "Sneaker", "Bag", "Ankle boot")
_MERGED = (*_DIGITS, *string.ascii_uppercase, *"abdefghnqrt")  # lower-case letters that differ from their capitals
CLASS_NAMES = {
    "mnist": _DIGITS,
    "fashion_mnist": _FASHION,
    "kmnist": ("o", "ki", "su", "tsu", "na", "ha", "ma", "ya", "re", "wo"),
    "emnist_balanced": _MERGED,
    "emnist_byclass": (*_DIGITS, *string.ascii_uppercase, *string.ascii_lowercase),
    "emnist_bymerge": _MERGED,
    "emnist_digits": _DIGITS,
    "emnist_letters": tuple(string.ascii_uppercase),  # in either case
    "emnist_mnist": _DIGITS,
}
_EMNIST = "emnist_"
_ZIP_FOLDER = "gzip"  # in EMNIST's archive
_FIRST_LABEL = {"emnist_letters": 1}  # in the files; 0 for the others


@dataclasses.dataclass(frozen=True, eq=False, kw_only=True)
class MnistSource(Source):
    """The four files of a folder.

    Attributes:
      pairs: {split: (images, labels)}.
    """

    pairs: dict[str, tuple[RowFile, RowFile]]

    def read(self, split: str, rows: NDArray[np.int64]) -> Block:
        """Returns rows of a split; see `base.Source.read`."""
        images, labels = (file.read(rows) for file in self.pairs[split])
        if self.dataset.startswith(_EMNIST):
            images = np.ascontiguousarray(images.transpose(0, 2, 1))
        classes = labels.astype(np.int64) - _FIRST_LABEL.get(self.dataset, 0)
        return Block(images[..., None], classes, self.parts[split].keys(rows))


def open_source(options: SourceOptions) -> MnistSource:
    """Opens and checks the four files in the folder `options.source`; downloads them if it is "".

    Raises:
      DataError: a file is missing or is not a whole IDX file, images have another size, a label is out of range, the
        images and labels of a split differ in number, or the files cannot be downloaded.
    """
    dataset = options.dataset
    folder = LocalPath(options.source).absolute() if options.source else _downloaded(dataset)
    if not folder.is_dir():
        problem = "is not a folder" if folder.exists() else "no such folder"
        raise DataError(f"{folder}: {problem}; --source of {dataset} is the folder with its four IDX files")
    pairs = {split: _open_split(folder, dataset, split) for split in SPLITS}
    parts = {split: Files((images.file.file,), images.shape[:1]) for split, (images, _) in pairs.items()}
    return MnistSource(
        dataset=dataset,
        class_names=CLASS_NAMES[dataset],
        files=tuple(file.file for pair in pairs.values() for file in pair),
        splits=base.rows_of(parts, folder),
        image_shape=(_SIDE, _SIDE, 1),
        parts=parts,
        pairs=pairs,
    )


def file_names(dataset: str, split: str) -> tuple[str, str]:
    """Returns the names of a split's images and labels, without `.gz`."""
    if dataset.startswith(_EMNIST):
        prefix = f"emnist-{dataset.removeprefix(_EMNIST)}-{split}"
    else:
        prefix = "train" if split == "train" else "t10k"
    return f"{prefix}-images-idx3-ubyte", f"{prefix}-labels-idx1-ubyte"


def _downloaded(dataset: str) -> LocalPath:
    """Returns the folder with a data set's files."""
    if not dataset.startswith(_EMNIST):
        return LocalPath(download.files(dataset)[0].parent)
    folder = LocalPath(download.cache_folder() / "emnist" / dataset)
    names = [f"{name}.gz" for split in SPLITS for name in file_names(dataset, split)]
    if not all((folder / name).exists() for name in names):
        (archive_path,) = download.files("emnist")  # one archive for all six data sets
        archive.unzip(LocalPath(archive_path), _ZIP_FOLDER, names, folder)
    return folder


def _open_split(folder: LocalPath, dataset: str, split: str) -> tuple[RowFile, RowFile]:
    names = file_names(dataset, split)
    images, labels = (idx.open_file(_find(folder, dataset, names[i]), names[i], rank) for i, rank in ((0, 3), (1, 1)))
    if images.shape[1:] != (_SIDE, _SIDE):
        size = "x".join(map(str, images.shape[1:]))
        raise DataError(f"{images.path}: its images are {size}; they must be {_SIDE}x{_SIDE}")
    idx.check_pair(images, labels)
    first = _FIRST_LABEL.get(dataset, 0)
    labels.check_labels([("label", first, first + len(CLASS_NAMES[dataset]) - 1)])
    return images, labels


def _find(folder: LocalPath, dataset: str, name: str) -> LocalPath:
    found = [each for each in (name, f"{name}{listing.GZIP}") if (folder / each).exists()]
    listing.check_packed_once(folder, found)
    if found:
        return folder / found[0]
    others = [other for other in CLASS_NAMES if other != dataset and _is_of(folder, other)]
    if others and not _is_of(folder, dataset):
        raise DataError(f"{folder}: holds no {name}, but the files of --dataset={' or '.join(others)}")
    raise DataError(f"{folder / name}: no such file, and no {name}.gz either; --source must hold the four IDX files")


def _is_of(folder: LocalPath, dataset: str) -> bool:
    names = [name for split in SPLITS for name in file_names(dataset, split)]
    return any((folder / f"{name}{suffix}").exists() for name in names for suffix in ("", ".gz"))
