"""Makes the index: choose files -> read them -> write what lies beside them -> write the manifest."""

from __future__ import annotations

import contextlib
import fnmatch
import os
import pathlib
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import CancelledError, ThreadPoolExecutor, as_completed

import tqdm

from pipeline import manifest as manifests
from pipeline.commands.text import count_of, size_of
from pipeline.errors import DataError, UsageError, named
from pipeline.files.paths import StoragePath, folder
from pipeline.index.files import Drafts, drafts_in, scan
from pipeline.manifest import FORMAT_VERSION, MEMBERS_VERSION, Manifest, ShardInfo, SplitInfo, naming
from pipeline.read.shards import LOCAL_THREADS

_MOST_NAMED = 3  # files in a message
_NAMELESS = "records"  # the data set of a folder without a name


def make_index(data_dir: str, splits: Sequence[str], compression: str, overwrite: bool) -> None:
    """Reads the files, writes the manifest, and prints what it holds; the arguments are the command's flags.

    Raises:
      DataError: a file cannot be read or written, or a record is corrupt.
      UsageError: a flag that cannot work, or a manifest that must not be replaced.
    """
    place = pathlib.Path(data_dir)
    chosen = _choose(data_dir, splits)
    earlier = _earlier(place, overwrite)
    _check_sidecars_are_ours(place, chosen, earlier)
    began = time.monotonic()
    with drafts_in(place) as drafts:
        made = _manifest(data_dir, compression, chosen, drafts)
        drafts.add(naming.MANIFEST, made.to_bytes())
        drafts.publish()
    for name in _sidecars_of(earlier) - {name for shard in made.shards for name in shard.files}:
        (place / name).unlink(missing_ok=True)
    with contextlib.suppress(OSError):  # it holds files: of this index, or of others
        (place / naming.SIDECARS).rmdir()
    count = sum(shard.num_examples for shard in made.shards)
    print(f"{data_dir}: {count:,} records, all CRCs are correct, {time.monotonic() - began:.1f} s")
    for name, split in made.splits.items():
        records, files = count_of(split.num_examples, "record"), count_of(len(split.shards), "file")
        print(f"  {name}: {records} in {files}, {size_of(split.num_bytes)}")
    for line in _compressed_lines(made):
        print(line)
    print(f"feed them: pipeline.input_fn({data_dir!r}, ..., parse=FUNCTION)")


def _compressed_lines(made: Manifest) -> Iterator[str]:
    """Yields what can be done with compressed files, and how to do the rest."""
    if not made.compression:
        return
    forward = [shard.file for shard in made.shards if not shard.is_seekable(made.compression)]
    if not forward:
        yield "any record can be read by itself: the files are GZIP members that end where records do"
        return
    yield (
        f"read forward only: {count_of(len(forward), 'file')}, such as {forward[0]}: not GZIP members of up to 16 MiB "
        "that end where records do, so RandomAccess and on_corrupt='skip' do not work. To change that, decompress them "
        "(gunzip) and index them without --compression; or, if they are images, convert them: python -m "
        "beam_jobs.convert --dataset=tfrecord --compression=GZIP"
    )


def _earlier(data_dir: pathlib.Path, overwrite: bool) -> Manifest | None:
    """Returns the manifest that this command made before, if it may be replaced; None: there is none."""
    path = data_dir / naming.MANIFEST
    if not path.exists():
        return None
    try:
        found = manifests.load(data_dir)
    except DataError as error:
        refused = UsageError(error.reason, path=error.path, advice=error.advice)
        raise refused.advised("it was not replaced: remove it if the files beside it are to be indexed") from None
    if found.has_images:
        raise UsageError("belongs to a data set that beam_jobs.convert made; an index never replaces it", path=path)
    if not overwrite:
        raise UsageError(
            "the files are already indexed", path=path, advice="--overwrite reads them again and replaces it"
        )
    return found


def _check_sidecars_are_ours(data_dir: pathlib.Path, chosen: dict[str, list[str]], earlier: Manifest | None) -> None:
    ours = _sidecars_of(earlier)
    for name in (name for files in chosen.values() for file in files for name in naming.sidecar_names(file)):
        if name not in ours and (data_dir / name).exists():
            raise UsageError(
                "no manifest lists this file, and the index would replace it",
                path=data_dir / name,
                advice="remove it (a run that was killed near its end leaves such a file)",
            )


def _manifest(data_dir: str, compression: str, chosen: dict[str, list[str]], drafts: Drafts) -> Manifest:
    files = [folder(data_dir) / name for names in chosen.values() for name in names]
    found = _shards(files, compression, drafts)
    for split, names in chosen.items():
        if not any(shard.num_examples for shard in found if shard.file in names):
            some = ", ".join(names[:_MOST_NAMED]) + (", ..." if len(names) > _MOST_NAMED else "")
            raise DataError(
                f"--split={split}: {count_of(len(names), 'file')} without a record ({some}); a split must have one: "
                "leave it out, or check what wrote the files"
            )
    shards, has_tables = iter(found), bool(compression) and any(shard.offsets_crc32c for shard in found)
    return Manifest(
        dataset=os.path.basename(os.path.realpath(data_dir)) or _NAMELESS,
        class_names=(),
        features={},
        splits={split: SplitInfo(tuple(next(shards) for _ in names), ()) for split, names in chosen.items()},
        image_mean=(),
        image_std=(),
        source=(),
        options={},
        compression=compression,
        format_version=MEMBERS_VERSION if has_tables else FORMAT_VERSION,
    )


def _shards(files: list[StoragePath], compression: str, drafts: Drafts) -> list[ShardInfo]:
    """Returns what the files hold; the first error, or an interruption, stops all reading."""
    stopped, lock = threading.Event(), threading.Lock()
    size = sum(file.identity().num_bytes for file in files)
    bar = tqdm.tqdm(total=size, unit="B", unit_scale=True, unit_divisor=1024, disable=None, leave=False)

    def count(num_bytes: int) -> None:
        if stopped.is_set():
            raise CancelledError
        with lock:
            bar.update(num_bytes)

    with bar, ThreadPoolExecutor(LOCAL_THREADS, thread_name_prefix="index") as pool:
        try:
            tasks = [pool.submit(_shard, file, compression, drafts, count) for file in files]
            for task in as_completed(tasks):
                task.result()
        finally:
            stopped.set()
            pool.shutdown(cancel_futures=True)
    return [task.result() for task in tasks]


def _shard(file: StoragePath, compression: str, drafts: Drafts, on_bytes: Callable[[int], None]) -> ShardInfo:
    info, beside = scan(file, compression, on_bytes)
    for name, data in beside.items():
        drafts.add(name, data)
    return info


def _sidecars_of(made: Manifest | None) -> set[str]:
    """Returns the names of all sidecars of a manifest's files, also where earlier releases wrote them."""
    shards = made.shards if made else ()
    places = (naming.sidecar_names, naming.beside_names)
    return {name for shard in shards for names in places for name in names(shard.file)}


def _choose(data_dir: str, splits: Sequence[str]) -> dict[str, list[str]]:
    """Returns each split's files: base names in the order of its patterns, sorted within one.

    Hidden files, manifests and the files beside records are never chosen.

    Args:
      data_dir: the folder.
      splits: `<name>:<pattern>`, in any number; patterns of one name add up.

    Raises:
      DataError: the folder cannot be listed.
      UsageError: `splits` is empty, a text is malformed, a pattern matches nothing, or a file is chosen twice.
    """
    if not splits:
        raise UsageError("--split is missing: a name and a pattern of files, such as --split=train:'train-*.tfrecord'")
    names = _files(data_dir)
    chosen: dict[str, list[str]] = {}
    for text in splits:
        split, pattern = _parsed(text)
        found = fnmatch.filter(names, pattern)
        if not found:
            some = f", such as {', '.join(names[:_MOST_NAMED])}" if names else ""
            count = count_of(len(names), "file")
            raise UsageError(f"--split={text}: no file in {data_dir} matches {pattern!r}; it has {count}{some}")
        for name in found:
            _check(name, text, chosen)
        chosen.setdefault(split, []).extend(found)
    return chosen


def _files(data_dir: str) -> list[str]:
    with named(data_dir, "cannot be listed"), os.scandir(data_dir) as entries:
        names = [entry.name for entry in entries if entry.is_file()]
    beside = {naming.MANIFEST, naming.REJECTS, naming.CARD, *naming.TFDS_FILES}
    beside |= {beside_one for name in names for beside_one in naming.beside_names(name)}
    return sorted(name for name in names if not name.startswith(".") and name not in beside)


def _parsed(text: str) -> tuple[str, str]:
    split, colon, pattern = text.partition(":")
    if not colon or not pattern:
        raise UsageError(f"--split={text}: must be a name and a pattern of files, such as train:'train-*.tfrecord'")
    if not naming.is_split_name(split):
        raise UsageError(f"--split={text}: {split!r} must be letters, digits and _, and begin with a letter")
    if "/" in pattern:
        raise UsageError(f"--split={text}: {pattern!r} contains a folder; the files must be in DATA_DIR itself")
    return split, pattern


def _check(name: str, text: str, chosen: dict[str, list[str]]) -> None:
    if not naming.is_base_name(name):
        raise UsageError(f"--split={text}: {name!r} cannot be listed in a manifest: rename it, without : and \\")
    for split, files in chosen.items():
        if name in files:
            raise UsageError(f"--split={text}: {name} is already a file of {split}; a file belongs to one split, once")
