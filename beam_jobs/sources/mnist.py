"""MNIST and the data sets that copy its four IDX files: 28x28 grey images, plain or gzip.

EMNIST's files store the images transposed; unlike TensorFlow Datasets, we turn them upright.
"""

from __future__ import annotations

import string

from beam_jobs.sources import idx, listing, published
from beam_jobs.sources.base import SOURCES, SourceOptions
from beam_jobs.sources.idx import IdxSource
from beam_jobs.sources.row_files import RowFile
from pipeline.commands.text import shape_of
from pipeline.errors import DataError
from pipeline.files.paths import LocalPath
from pipeline.records import splits

SPLITS = ("train", "test")
_SIDE = 28
_DIGITS = tuple(string.digits)
_FASHION = ("T-shirt/top", "Trouser", "Pullover", "Dress", "Coat", "Sandal", "Shirt", "Sneaker", "Bag", "Ankle boot")
_MERGED = (*_DIGITS, *string.ascii_uppercase, *"abdefghnqrt")  # lower-case letters that differ from their capitals
_CLASS_NAMES = {
    "mnist": _DIGITS,
    "fashion_mnist": _FASHION,
    "kmnist": ("o", "ki", "su", "tsu", "na", "ha", "ma", "ya", "re", "wo"),
    "emnist_balanced": _MERGED,
    "emnist_byclass": (*_DIGITS, *string.ascii_uppercase, *string.ascii_lowercase),
    "emnist_bymerge": _MERGED,
    "emnist_digits": _DIGITS,
    "emnist_letters": tuple(string.ascii_uppercase),  # upper and lower case are one class
    "emnist_mnist": _DIGITS,
}
_EMNIST = "emnist_"
_ZIP_FOLDER = "gzip"  # folder in EMNIST's archive
_FIRST_LABEL = {"emnist_letters": 1}  # in the files; 0 for other data sets


@SOURCES.named(*_CLASS_NAMES)
def open_source(options: SourceOptions) -> IdxSource:
    """Opens and checks the four files in the folder `options.source`; downloads them if it is "".

    Raises:
      DataError: a file is missing or is not a complete IDX file, images have another size, a label is out of range, the
        images and labels of a split differ in number, or the files cannot be downloaded.
    """
    dataset = options.dataset
    folder = LocalPath(options.source).absolute() if options.source else _downloaded(dataset)
    if not folder.is_dir():
        problem = "is not a folder" if folder.exists() else "no such folder"
        raise DataError(problem, path=folder, advice=f"--source of {dataset} is the folder with its four IDX files")
    pairs = {split: _open_split(folder, dataset, split) for split in SPLITS}
    is_transposed, first_label = dataset.startswith(_EMNIST), _FIRST_LABEL.get(dataset, 0)
    return idx.make(dataset, folder, pairs, _CLASS_NAMES[dataset], is_transposed, first_label)


def file_names(dataset: str, split: str) -> tuple[str, str]:
    """Returns the file names of a split's images and labels, without `.gz`."""
    if dataset.startswith(_EMNIST):
        prefix = f"emnist-{dataset.removeprefix(_EMNIST)}-{split}"
    else:
        prefix = "train" if split == "train" else "t10k"
    return f"{prefix}-images-idx3-ubyte", f"{prefix}-labels-idx1-ubyte"


def _downloaded(dataset: str) -> LocalPath:
    if not dataset.startswith(_EMNIST):
        return LocalPath(published.files(dataset)[0].parent)
    folder = LocalPath(published.cache_folder() / "emnist" / dataset)
    names = [f"{name}.gz" for split in SPLITS for name in file_names(dataset, split)]
    if not all((folder / name).exists() for name in names):
        (archive_path,) = published.files("emnist")  # one archive for all six data sets
        published.unzip(LocalPath(archive_path), _ZIP_FOLDER, names, folder)
    return folder


def _open_split(folder: LocalPath, dataset: str, split: str) -> tuple[RowFile, RowFile]:
    names = file_names(dataset, split)
    images, labels = (idx.open_file(_find(folder, dataset, names[i]), names[i], rank) for i, rank in ((0, 3), (1, 1)))
    if images.shape[1:] != (_SIDE, _SIDE):
        size = shape_of(images.shape[1:])
        raise DataError(f"its images are {size}; they must be {_SIDE}x{_SIDE}", path=images.path)
    idx.check_pair(images, labels)
    first = _FIRST_LABEL.get(dataset, 0)
    labels.check_labels([("label", first, first + len(_CLASS_NAMES[dataset]) - 1)])
    return images, labels


def _find(folder: LocalPath, dataset: str, name: str) -> LocalPath:
    found = [each for each in (name, f"{name}{listing.GZIP}") if (folder / each).exists()]
    splits.check_packed_once(folder, found)
    if found:
        return folder / found[0]
    others = [other for other in _CLASS_NAMES if other != dataset and _is_of(folder, other)]
    if others and not _is_of(folder, dataset):
        raise DataError(f"holds no {name}, but the files of --dataset={' or '.join(others)}", path=folder)
    raise DataError(
        f"no such file, and no {name}.gz either", path=folder / name, advice="--source must hold the four IDX files"
    )


def _is_of(folder: LocalPath, dataset: str) -> bool:
    names = [name for split in SPLITS for name in file_names(dataset, split)]
    return any((folder / f"{name}{suffix}").exists() for name in names for suffix in ("", ".gz"))
