"""The records as TFRecord files, which several adapters read."""

from __future__ import annotations

from benchmarks.conformance import records


def write(folder: str, shards: list[range]) -> None:
    """Writes a file per shard."""
    import tensorflow as tf  # noqa: PLC0415

    for number, shard in enumerate(shards):
        with tf.io.TFRecordWriter(f"{folder}/train-{number:05d}-of-{len(shards):05d}.tfrecord") as file:
            for record in shard:
                file.write(records.record(record))
