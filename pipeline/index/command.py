"""Makes the index: choose files -> read each to its end -> write the sidecars -> write the manifest.

The files get their final names together at the end: a run killed before that leaves only a hidden folder. A run killed
during the renames leaves the manifest in that folder, which tells the next run what to remove.
"""

from __future__ import annotations

import array
import contextlib
import dataclasses
import os
import pathlib
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import CancelledError, ThreadPoolExecutor, as_completed

import crc32c
import numpy as np
import tqdm
from numpy.typing import NDArray

from pipeline import manifest as manifests
from pipeline.commands.text import count_of, printable, size_of, some_of
from pipeline.errors import DataError, UsageError, name_of, named, to_run
from pipeline.files.paths import StoragePath, alone_in, folder
from pipeline.files.write import Drafts, drafts_in, left_in
from pipeline.index import choice, images, labels
from pipeline.index.images import ImageFlags, ShardImages
from pipeline.manifest import (
    FORMAT_VERSION,
    MEMBERS_VERSION,
    PACKINGS_VERSION,
    Manifest,
    ShardInfo,
    SplitInfo,
    croissant,
    naming,
)
from pipeline.read import sidecars
from pipeline.read.shards import LOCAL_THREADS
from pipeline.read.statistics import STATISTICS_SPLIT
from pipeline.records import columns, framing, members
from pipeline.records.framing import Frame, walk
from pipeline.records.splits import SuspectFeatures
from pipeline.records.stream import WRITE_AGAIN, RecordStream, forward

_NAMELESS = "records"  # name of the data set in a folder without a name
_LARGEST_MEMBER = 16 << 20  # 16 MiB; to read one record, its whole member is decompressed


def make_index(
    data_dir: str, splits: Sequence[str], compression: str, overwrite: bool, flags: ImageFlags | None = None
) -> None:
    """Reads the files, writes the manifest, and prints a summary; the arguments are the command's flags.

    Args:
      data_dir, splits, compression, overwrite: flags of the command.
      flags: flags about images; None for records of any kind.

    Raises:
      DataError: a file cannot be read or written, or a record is corrupt.
      UsageError: a flag cannot work, or a manifest must not be replaced.
    """
    place = pathlib.Path(data_dir)
    with alone_in(place):
        chosen = choice.of_flags(data_dir, splits) if splits else choice.of_names(data_dir)
        earlier = _earlier(place, overwrite)
        _remove_unlisted(place, earlier)
        _check_sidecars_are_ours(place, chosen, earlier)
        if not splits:
            print(printable(choice.line(chosen)))
        began = time.monotonic()
        with drafts_in(place, "link its files into a folder of your own (ln -s), and index that") as drafts:
            made, notes = _manifest(data_dir, compression, chosen, not splits, drafts, flags)
            for name, data in {**croissant.files(folder(data_dir), made), naming.MANIFEST: made.to_bytes()}.items():
                drafts.add(name, data)
            drafts.publish(naming.MANIFEST)
        if earlier:  # remove descriptions of the records as they were
            columns.remove_others(place, made)
            (place / naming.CARD).unlink(missing_ok=True)
        for name in _sidecars_of(earlier) - {name for shard in made.shards for name in shard.files}:
            (place / name).unlink(missing_ok=True)
        with contextlib.suppress(OSError):  # the folder holds files of this index or of others
            (place / naming.SIDECARS).rmdir()
        count = sum(shard.num_examples for shard in made.shards)
        print(f"{data_dir}: {count_of(count, 'record')}, all CRCs are correct, {time.monotonic() - began:.1f} s")
        for name, split in made.splits.items():
            records, files = count_of(split.num_examples, "record"), count_of(len(split.shards), "file")
            print(f"  {name}: {records} in {files}, {size_of(split.num_bytes)}")
        for line in (*notes, *_compressed_lines(made)):
            print(printable(line))  # names of classes may hold line breaks
        print(f"feed them: pipeline.input_fn({data_dir!r}, ...{'' if made.has_images else ', parse=FUNCTION'})")


def _compressed_lines(made: Manifest) -> Iterator[str]:
    """Yields a line, if files are compressed, about whether each of their records can be read by itself."""
    if not made.packing:
        return
    forward = [shard.file for shard in made.shards if not shard.is_seekable]
    if not forward:
        yield "any record can be read by itself: the files are GZIP members that end where records do"
        return
    yield (
        f"read forward only: {count_of(len(forward), 'file')}, such as {forward[0]}: not GZIP members of up to 16 MiB "
        "that end where records do, so RandomAccess and on_corrupt='skip' do not work. To change that, decompress them "
        "and index them again; or, if they are images, convert them: "
        f"{to_run('beam_jobs.convert')} --dataset=tfrecord --compression=GZIP"
    )


def _earlier(data_dir: pathlib.Path, overwrite: bool) -> Manifest | None:
    """Returns the manifest of an earlier index, if there is one; raises UsageError if it must not be replaced."""
    path = data_dir / naming.MANIFEST
    if not path.exists():
        return None
    try:
        found = manifests.load(data_dir)
    except DataError as error:
        refused = UsageError(error.reason, path=error.path, advice=error.advice)
        raise refused.advised("it was not replaced: remove it if the files beside it are to be indexed") from None
    if found.has_images and not found.is_in_place:
        raise UsageError(
            f"belongs to a data set that {name_of('beam_jobs.convert')} made; an index never replaces it", path=path
        )
    if not overwrite:
        raise UsageError(
            "the files are already indexed", path=path, advice="--overwrite reads them again and replaces it"
        )
    return found


def _remove_unlisted(data_dir: pathlib.Path, earlier: Manifest | None) -> None:
    """Removes files that a killed run moved into the folder, but not the manifest that lists them.

    That manifest is still among its drafts. A file whose content differs from it is somebody else's and stays, as do
    the files of the `earlier` manifest, which is in the folder.
    """
    listed = _beside(earlier) if earlier else {}
    for hidden in left_in(data_dir):
        try:
            pending = _beside(manifests.load(hidden))
        except DataError:  # no manifest there: it is published, or not written yet
            continue
        for name in pending.keys() - listed.keys():
            _remove(data_dir / name, pending[name])
    for name in (naming.SIDECARS, naming.COLUMNS):
        with contextlib.suppress(OSError):  # the folder does not exist, or holds files
            (data_dir / name).rmdir()


def _beside(made: Manifest) -> dict[str, str]:
    """Returns {name: CRC32C} of the files that a manifest lists besides the records."""
    found = {name: crc for shard in made.shards for name, crc in shard.files.items() if name != shard.file}
    columns = ((split, name, crc) for name, column in made.columns.items() for split, crc in column.files.items())
    return found | {naming.column_name(split, name, crc): crc for split, name, crc in columns}


def _remove(path: pathlib.Path, crc: str) -> None:
    """Removes a file if it has this CRC32C."""
    if path.is_file():
        with named(path, "cannot be removed"):
            if f"{crc32c.crc32c(path.read_bytes()):08x}" == crc:
                path.unlink()


def _check_sidecars_are_ours(data_dir: pathlib.Path, chosen: dict[str, list[str]], earlier: Manifest | None) -> None:
    """Raises UsageError if a file that no manifest lists has a name under which the index would write."""
    ours = _sidecars_of(earlier)
    for name in (name for files in chosen.values() for file in files for name in naming.sidecar_names(file)):
        if name not in ours and (data_dir / name).exists():
            raise UsageError(
                "no manifest lists this file, and the index would replace it",
                path=data_dir / name,
                advice=f"move it elsewhere; if an index left it, whose manifest is gone, remove {naming.SIDECARS}/",
            )


def _manifest(
    data_dir: str,
    compression: str,
    chosen: dict[str, list[str]],
    is_by_name: bool,
    drafts: Drafts,
    flags: ImageFlags | None,
) -> tuple[Manifest, list[str]]:
    """Returns the manifest and lines about its content; `is_by_name`: whether file names determined the splits."""
    place = folder(data_dir)
    names = [name for of_split in chosen.values() for name in of_split]
    packings = _packings(place, names, compression)
    counters, classes = _counters(place, packings, chosen, flags) if flags else ({}, ())
    suspects = SuspectFeatures()
    if is_by_name and len(chosen) == 1:
        suspects = choice.suspects({place / name: packings[name] for name in names}, flags)
    found = _shards(place, packings, drafts, counters, suspects)
    suspects.check(place, chosen)
    for split, of_split in chosen.items():
        if not any(shard.num_examples for shard in found if shard.file in of_split):
            some = some_of(of_split, choice.MOST_NAMED)
            which = f"split {split!r}" if is_by_name else f"--split={split}"
            raise DataError(
                f"{which}: {count_of(len(of_split), 'file')} without a record ({some}); a split must have one: leave "
                "it out, or check what wrote the files"
            )
    shards, kinds = iter(found), set(packings.values())
    compression = kinds.pop() if len(kinds) == 1 else ""
    made = Manifest(
        dataset=os.path.basename(os.path.realpath(data_dir)) or _NAMELESS,
        class_names=(),
        features={},
        splits={split: SplitInfo(tuple(next(shards) for _ in names), ()) for split, names in chosen.items()},
        image_mean=(),
        image_std=(),
        source=(),
        options={},
        compression=compression,
        format_version=_version_of(found, compression),
    )
    return _with_images(place, made, counters, classes, drafts, flags) if flags else (made, [])


def _version_of(shards: Sequence[ShardInfo], compression: str) -> int:
    """Returns the oldest manifest version that can describe the shards; `compression` is the common one."""
    packings = {shard.compression for shard in shards}
    if packings - {compression} or "ZLIB" in packings:
        return PACKINGS_VERSION
    return MEMBERS_VERSION if compression and any(shard.offsets_crc32c for shard in shards) else FORMAT_VERSION


def _counters(
    place: StoragePath, packings: Mapping[str, str], chosen: dict[str, list[str]], flags: ImageFlags
) -> tuple[dict[str, ShardImages], tuple[str, ...]]:
    """Returns the image counter of each file, by name, and the class names; no names if labels name themselves."""
    files = [place / name for names in chosen.values() for name in names]
    schema = images.schema_of({place / name: packing for name, packing in packings.items()}, flags)
    classes = flags.named_classes(place, files, schema)
    labels.check_flags(schema.labels, flags.label_offset, classes, place)
    decoded = {STATISTICS_SPLIT} & chosen.keys() or chosen.keys()
    counters = {
        name: ShardImages(schema, flags, classes, split in decoded) for split, names in chosen.items() for name in names
    }
    return counters, classes


def _with_images(
    place: StoragePath,
    made: Manifest,
    counters: dict[str, ShardImages],
    classes: tuple[str, ...],
    drafts: Drafts,
    flags: ImageFlags,
) -> tuple[Manifest, list[str]]:
    """Returns a manifest with the counts, and lines about them; adds the files of columns to the drafts."""
    splits = {split: [(shard, counters[shard.file]) for shard in info.shards] for split, info in made.splits.items()}
    found = images.described(splits, flags, classes, place)
    version = max(made.format_version, found.fields["format_version"])
    made = dataclasses.replace(made, splits=found.splits, **{**found.fields, "format_version": version})
    return columns.drafted(drafts, made, found.columns), list(images.lines(made, found))


def _packings(place: StoragePath, names: Sequence[str], given: str) -> dict[str, str]:
    """Returns the compression of each file from its first bytes; an empty file gets the compression of the others."""
    found: dict[str, str | None] = {}
    for name in names:
        with (place / name).open_file() as opened:
            start = bytes(opened.read_at(0, min(framing.HEADER, opened.identity().num_bytes)))
        found[name] = framing.packing_of(start) if start else None
    kinds = {packing for packing in found.values() if packing is not None}
    if given and (others := [name for name, packing in found.items() if packing not in (None, given)]):
        some = f"{count_of(len(others), 'file')} ({some_of(others, choice.MOST_NAMED)})"
        raise UsageError(
            f"--compression={given}: {some} {'has' if len(others) == 1 else 'have'} another compression or none; leave "
            "the flag out: the compression is read from the files"
        )
    usual = next(iter(kinds)) if len(kinds) == 1 else given
    return {name: usual if packing is None else packing for name, packing in found.items()}


def _shards(
    place: StoragePath,
    packings: Mapping[str, str],
    drafts: Drafts,
    counters: dict[str, ShardImages],
    suspects: SuspectFeatures,
) -> list[ShardInfo]:
    """Reads the files in threads; returns their entries in the manifest. The first error stops all threads."""
    stopped, lock = threading.Event(), threading.Lock()
    size = sum((place / name).identity().num_bytes for name in packings)
    bar = tqdm.tqdm(total=size, unit="B", unit_scale=True, unit_divisor=1024, delay=1, disable=None, leave=False)

    def count(num_bytes: int) -> None:
        if stopped.is_set():
            raise CancelledError
        with lock:
            bar.update(num_bytes)

    with bar, ThreadPoolExecutor(LOCAL_THREADS, thread_name_prefix="index") as pool:
        try:
            tasks = [
                pool.submit(_scanned, place, name, packing, drafts, count, counters.get(name), suspects)
                for name, packing in packings.items()
            ]
            for task in as_completed(tasks):
                task.result()
        finally:
            stopped.set()
            pool.shutdown(cancel_futures=True)
    return [task.result() for task in tasks]


def _sidecars_of(made: Manifest | None) -> set[str]:
    """Returns the names that a manifest's sidecars may have."""
    return {name for shard in (made.shards if made else ()) for name in naming.sidecar_names(shard.file)}


def _scanned(
    place: StoragePath,
    name: str,
    compression: str,
    drafts: Drafts,
    on_bytes: Callable[[int], None],
    counter: ShardImages | None,
    suspects: SuspectFeatures,
) -> ShardInfo:
    """Reads a file to its end, and adds its sidecars to the drafts; returns its entry in the manifest.

    Args:
      place, name, compression: folder of the data set, record file in it, and the file's compression.
      drafts: drafts of the folder.
      on_bytes: callback that gets the number of bytes after each read; an error that it raises ends the scan.
      counter: counter of the images in the records; None for records of any kind.
      suspects: collector of features that may determine splits; gets each record.
    """
    file = place / name
    before = file.identity()
    offsets, crcs = array.array("Q", [0]), array.array("I")
    with file.open_file() as opened:
        read = forward(opened)

        def counted(size: int) -> memoryview:
            data = read(size)
            on_bytes(len(data))
            return data

        stream = RecordStream(counted, compression)
        for frame in walk(stream.read):
            if frame.fault is not None:
                raise frame.error(file, bool(compression), WRITE_AGAIN)
            offsets.append(frame.end)
            crcs.append(frame.crc)
            assert frame.record is not None
            suspects.see(frame.record)
            if counter is not None:
                _count(counter, file, frame, compression)
    if file.identity() != before:
        raise DataError("changed while it was being read", path=file, advice="stop what writes there and start again")
    begins = np.frombuffer(offsets, np.uint64).astype(np.int64)
    lengths, firsts = np.diff(begins), _member_firsts(stream, begins) if compression == "GZIP" else None
    is_even = (firsts is not None or not compression) and len(lengths) > 0 and bool((lengths == lengths[0]).all())
    beside = {}
    if len(lengths):
        beside[naming.crcs_name(name)] = np.frombuffer(crcs, np.uint32).astype(sidecars.CRCS).tobytes()
    if firsts is not None:
        at = [*(offset for offset, _ in stream.members), before.num_bytes]
        beside[naming.offsets_name(name)] = members.to_bytes(at, firsts, None if is_even else begins)
    elif len(lengths) and not compression and not is_even:
        beside[naming.offsets_name(name)] = begins.astype(sidecars.OFFSETS).tobytes()
    for sidecar, content in beside.items():
        drafts.add(sidecar, content)
    of_beside = {name: f"{crc32c.crc32c(data):08x}" for name, data in beside.items()}
    return ShardInfo(
        name,
        len(lengths),
        before.num_bytes,
        f"{stream.crc:08x}",
        int(lengths[0]) if is_even else None,
        of_beside.get(naming.offsets_name(name)),
        crcs_crc32c=of_beside.get(naming.crcs_name(name)),
        compression=compression,
    )


def _count(counter: ShardImages, file: StoragePath, frame: Frame, compression: str) -> None:
    assert frame.record is not None
    try:
        counter.add(frame.record)
    except ValueError as error:
        raise DataError(
            str(error),
            path=file,
            record=frame.number,
            offset=frame.offset,
            decompressed=bool(compression),
            advice=f"files that stay as they are must be whole; {name_of('beam_jobs.convert')} --dataset=tfrecord "
            "--max_rejects=N leaves out such records",
        ) from None


def _member_firsts(stream: RecordStream, begins: NDArray[np.int64]) -> NDArray[np.int64] | None:
    """Returns the number of the first record of each GZIP member, and the number of records.

    Returns None if a record cannot be read by itself: members do not end where records do, one is empty, or one is too
    large. `begins` has the byte offset of each record in the decompressed file, and that file's size; (n + 1,).
    """
    member_begins = np.array([*(given for _, given in stream.members), begins[-1]], np.int64)
    firsts = np.searchsorted(begins, member_begins)
    records, sizes = np.diff(firsts), np.diff(member_begins)
    if stream.is_padded or not len(records) or not records.all() or (begins[firsts] != member_begins).any():
        return None
    return None if ((sizes > _LARGEST_MEMBER) & (records > 1)).any() else firsts
