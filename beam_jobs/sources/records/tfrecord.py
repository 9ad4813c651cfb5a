"""TFRecords of `tf.train.Example`: a converted data set (a folder with manifest.json), or those of other writers."""

from __future__ import annotations

from beam_jobs.sources import streams
from beam_jobs.sources.base import OWN_FEATURES, SourceOptions
from beam_jobs.sources.records import foreign as foreign_records
from beam_jobs.sources.records import rows as record_rows
from beam_jobs.sources.records.columns import Columns
from beam_jobs.sources.records.files import RecordFile
from beam_jobs.sources.records.rows import RecordSource
from beam_jobs.storage import paths
from beam_jobs.storage.paths import LocalPath, RemotePath
from pipeline import manifest
from pipeline.commands.text import count_of
from pipeline.errors import DataError, UsageError
from pipeline.manifest import Manifest, ShardInfo, SourceFile, naming


def open_source(options: SourceOptions) -> RecordSource:
    """Opens TFRecords: by the manifest if the folder has one, else as `foreign_records.open_files` does.

    Raises:
      UsageError: --source is missing, or a flag does not fit it.
      DataError: a file is missing, cut short, corrupt or cannot be read.
    """
    if not options.source:
        raise UsageError(
            f"--source is missing: a folder with {naming.MANIFEST}, or TFRecord files: a folder of them, a file, a glob"
        )
    folder = paths.path_of(options.source)
    if (folder / naming.MANIFEST).exists():
        return _open_ours(folder, options)
    return foreign_records.open_files(options)


def _open_ours(folder: LocalPath | RemotePath, options: SourceOptions) -> RecordSource:
    """Opens a converted data set. Its manifest, which has the shards' digests, is the source's only file."""
    for flag in ("feature_map", "image_shape", "keep_columns"):
        if getattr(options, flag):
            raise UsageError(f"--{flag}: does not apply to {folder}, whose {naming.MANIFEST} lists its features")
    made = manifest.load(folder)
    if not made.has_images:
        raise UsageError(
            f"--source={folder}: its {naming.MANIFEST} was written by pipeline.index and mentions no images; if its "
            f"records hold some, name the files: --source='{folder}/{next(iter(made.shards)).file}', or a glob"
        )
    columns = Columns(
        *OWN_FEATURES,
        image_shape=made.image_shape if made.features["image"].encoding == "raw" else None,
        extra={name: feature for name, feature in made.features.items() if name not in OWN_FEATURES},
    )
    return record_rows.make(
        dataset=made.dataset,
        class_names=made.class_names,
        root=folder,
        columns=columns,
        records={
            name: tuple(paths.each(lambda shard: _shard(folder, made, shard), split.shards, folder.is_remote))
            for name, split in made.splits.items()
            if split.num_examples
        },
        files=(SourceFile(naming.MANIFEST, len(made.to_bytes()), made.digest),),
    )


def _shard(folder: LocalPath | RemotePath, made: Manifest, shard: ShardInfo) -> RecordFile:
    path = folder / shard.file
    stamp = streams.stamp(path)
    if stamp[0] != shard.num_bytes:
        raise DataError(
            f"{path}: {count_of(stamp[0], 'byte')}, but the manifest says {shard.num_bytes:,}; convert it again"
        )
    if made.compression:
        return RecordFile(path, stamp, shard.num_examples, made.compression.lower())
    offsets = None
    if shard.offsets_crc32c is not None:
        place = folder / naming.offsets_name(shard.file)
        beside = folder / naming.beside_names(shard.file)[0]  # where earlier releases wrote it
        offsets = (beside if beside.exists() and not place.exists() else place, shard.offsets_crc32c)
    return RecordFile(path, stamp, shard.num_examples, stride=shard.stride, offsets=offsets)
