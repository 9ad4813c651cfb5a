"""Composes `input_fn`'s dataset: request -> feed -> reader -> resident or windowed -> batches -> joined."""

from __future__ import annotations

import tensorflow as tf

from pipeline.batch.components import choose, is_read_by_graph
from pipeline.batch.dataset import Run, resident, unpadded, windowed
from pipeline.batch.decoded_split import load
from pipeline.batch.joining import joined
from pipeline.commands.text import size_of
from pipeline.errors import UsageError
from pipeline.mixture import Mixture, check_replicas, of_source, resolve_all
from pipeline.order.arrays import NumpyArrays
from pipeline.order.feed import Feed, make_feed
from pipeline.order.sharding import as_shard
from pipeline.order.tensors import TENSORS
from pipeline.read import memory
from pipeline.read.graph_reader import GraphReader
from pipeline.request import Request
from pipeline.resolved import ResolvedRequest


def make_dataset(request: Request, replicas: int | None = None) -> tf.data.Dataset:
    """Returns the dataset that `input_fn` documents.

    Args:
      request: what is asked for.
      replicas: between how many each element is split, which makes it a tuple of what each gets; None: it is not.

    Raises:
      DataError, UsageError: as `input_fn`.
    """
    if shard := as_shard(request.shard):
        check_replicas(request, shard.num_replicas)
    mixture, datasets = resolve_all(request), []
    if not is_read_by_graph(request):
        _check_memory(mixture)
    for part, source in zip(mixture.parts, request.sources or (None,), strict=True):
        with of_source(request, source):
            datasets.append(_of(part, None if request.sources else replicas))
    if request.weights == "none":
        return unpadded(datasets[0], mixture.first.order, request.epochs or 1)
    if not request.sources:
        return datasets[0]
    with tf.device("CPU:0"):
        return joined(mixture, datasets, replicas)


def _of(resolved: ResolvedRequest, replicas: int | None) -> tf.data.Dataset:
    """Returns the dataset of one data set."""
    request = resolved.request
    arrays = TENSORS if is_read_by_graph(request) else NumpyArrays()
    feed, order = make_feed(resolved.order, as_shard(request.shard), arrays), resolved.order
    resolved.check_pairs(order.global_batch_size // feed.replica_rows)
    run = Run(feed, request.start_step, resolved.last_step(), replicas)
    with tf.device("CPU:0"):
        reader, batches = choose(resolved)
        if not isinstance(reader, GraphReader) and _is_resident(feed):
            rows, batches = load(reader, batches)
            dataset = resident(run, batches, rows)
        else:
            dataset = windowed(run, batches, reader)
    return dataset


def _is_resident(feed: Feed) -> bool:
    """Whether this worker reads the whole split, once."""
    return feed.order.windows == 1 and len(feed.streams) == feed.order.streams


def _check_memory(mixture: Mixture) -> None:
    """Raises UsageError where the machine, or the container, has too little for the windows of all sources.

    A source has this window and the next in memory; one that is read once, its records.
    """
    request, needed, texts = mixture.request, 0, []
    for part, source in zip(mixture.parts, request.sources or (None,), strict=True):
        feed = make_feed(part.order, as_shard(request.shard), NumpyArrays())
        own = (1 if _is_resident(feed) else 2) * feed.window_records * part.spec.record_bytes
        needed += own
        share = f"{source} {size_of(own)}, " if source else ""
        texts.append(f"{share}{len(feed.streams)} of {part.spec.streams} streams")
    if needed > (limit := memory.available()):
        raise UsageError(
            f"shuffle_bytes={request.shuffle_bytes}, {'; '.join(texts)}: needs {size_of(needed)} on this worker, which "
            f"has {size_of(limit)}; give a smaller shuffle_bytes (another order), or more workers"
        )
