"""Feeds the replicas of a `tf.distribute` strategy: each gets exactly its rows, on its device, ahead of time."""

from __future__ import annotations

import dataclasses
import functools
import weakref
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import tensorflow as tf

from pipeline.batch.compose import Numbered, make_dataset, make_numbered, one_by_one
from pipeline.batch.dataset import split
from pipeline.batch.internals import ResourceVariable
from pipeline.batch.plans import RunningWorker
from pipeline.batch.resident import NOT_CUT
from pipeline.errors import UsageError
from pipeline.order.sharding import Shard, check_virtual_replicas, whole_number
from pipeline.request import JobOptions, Request, Taking

PREFETCH = 2  # batches on each device ahead of the step: one in use by the copy, one ready
_MOST_COPIED = 16 << 20  # 16 MiB of a replica's batches are copied to its device at once
_MOST_TOGETHER = 64  # batches: the first step waits until all of them are made
MOST_KEPT = 512 << 20  # 512 MiB of images stay on each device beside the model: a sixteenth of a GPU with 8 GiB


class ReplicaBatches(tf.distribute.DistributedDataset):
    """Batches that are already split for this worker's replicas inside `tf.data`.

    TensorFlow's distributed iterator runs a generator, a buffer and a thread per replica to copy to its device. With
    nothing to copy, they only cost 0.3 ms of processor time per replica and step (benchmarks/distributed_iterator.py).
    Here one element has the values of all replicas. Workers need not tell each other at every step whether one has run
    out, because all have the same number of steps.
    """

    def __init__(self, dataset: tf.data.Dataset) -> None:
        self._dataset = dataset

    def __iter__(self) -> Iterator[Any]:
        return iter(self._dataset)

    @property
    def element_spec(self) -> Any:
        """Type of an element."""
        return self._dataset.element_spec

    @property
    def cardinality(self) -> Any:
        """Number of steps, int64, like `tf.data.Dataset.cardinality()`."""
        return self._dataset.cardinality()

    def __len__(self) -> int:
        """Returns the number of steps.

        Raises:
          TypeError: the number is infinite.
        """
        return len(self._dataset)

    def reduce(self, initial_state: Any, reduce_func: Callable[[Any, Any], Any]) -> Any:
        """Returns the state after `state = reduce_func(state, element)` for all elements; `for` in graphs calls it."""
        iterator = iter(self._dataset)

        def advance(optional: Any, state: Any) -> tuple[Any, Any]:
            state = reduce_func(state, optional.get_value())
            return iterator.get_next_as_optional(), state

        def has_value(optional: Any, state: Any) -> tf.Tensor:
            del state
            return optional.has_value()

        first = iterator.get_next_as_optional()
        return tf.while_loop(has_value, advance, (first, initial_state), parallel_iterations=1)[1]

    def __repr__(self) -> str:
        """Returns advice on what to pass to Keras instead; Keras prints it in its error."""
        return f"<ReplicaBatches of {self.element_spec}, for your own loops; give Keras' fit the dataset of input_fn>"


class DeviceGroups(tf.distribute.DistributedDataset):
    """Batches that are copied to the replicas' devices in groups, and sliced there.

    Copying one batch of CIFAR-10 costs TensorFlow about as much as copying ten. `tf.data` cannot slice on a GPU, so the
    iterator holds a group on the devices, and a batch is a slice of it, in the same memory. The position of the slice
    is in host memory, so that a step does not wait for a device.

    If a split's images fit beside the model, each device keeps all of them, groups have row numbers in their place, and
    a batch's images are gathered on the device.
    """

    def __init__(
        self,
        strategy: tf.distribute.Strategy,
        groups: tf.distribute.DistributedDataset,
        size: int,
        steps: int,
        images: tf.Tensor | None = None,
    ) -> None:
        """Keeps the arguments.

        Args:
          strategy: strategy of the replicas.
          groups: groups of batches; an element is a group for each local replica, with a leading axis.
          size: number of batches in a group.
          steps: number of batches; tf.data's INFINITE_CARDINALITY if endless.
          images: images to keep on each device, as in `Numbered`.
        """
        self._strategy, self._groups, self.size, self._steps = strategy, groups, size, steps
        self._images = images

    def __iter__(self) -> Iterator[Any]:
        return GroupIterator(self._strategy, iter(self._groups), self._groups.element_spec, self.size, self._images)

    @property
    def element_spec(self) -> Any:
        """Type of a replica's part of an element."""
        spec = tf.nest.map_structure(_of_batch, _local_spec(self._groups.element_spec))
        if (images := self._images) is None:
            return spec
        return _with_images(spec, lambda numbers: tf.TensorSpec([*numbers.shape, *images.shape[1:]], images.dtype))

    @property
    def cardinality(self) -> Any:
        """Number of steps, int64, like `tf.data.Dataset.cardinality()`."""
        return self._steps

    def reduce(self, initial_state: Any, reduce_func: Callable[[Any, Any], Any]) -> Any:
        """Raises UsageError: a `for` loop in a graph would need an iterator made in the graph."""
        raise UsageError("reduce over batches that are copied in groups: take them with iter and next")


class GroupIterator(Iterator[Any]):
    """Iterator over the batches of groups; made outside of a `tf.function`, used inside or outside.

    A loop in a graph can carry its state, so that a pass need not read and write variables. The state is the position
    in the group, int32, and the group: a list of tensors for each local replica.
    """

    def __init__(
        self,
        strategy: tf.distribute.Strategy,
        groups: Iterator[Any],
        spec: Any,
        size: int,
        images: tf.Tensor | None = None,
    ) -> None:
        self._strategy, self._groups, self._size = strategy, groups, size
        self._spec = _local_spec(spec)
        self._devices = strategy.extended.worker_devices
        self._held, self._images = [], []  # variables of each replica; of uint8, GPUs can gather from nothing else
        for device in self._devices:
            # In the strategy's scope, a tf.Variable would be a distributed one, on all devices.
            with tf.device(device):
                self._images.append(None if images is None else _of_any_length(images))
                zeros = [tf.zeros(one.shape, one.dtype) for one in tf.nest.flatten(self._spec)]
                self._held.append([ResourceVariable(zero, trainable=False) for zero in zeros])
        with tf.device("CPU:0"):
            self._position = ResourceVariable(tf.constant(size), trainable=False)
        # A function that was traced with this iterator keeps its variables: those of the images would take the place of
        # the images of the next phase.
        weakref.finalize(self, _empty, [one for one in self._images if one is not None]).atexit = False

    def __next__(self) -> Any:
        """Returns the next batch of each local replica, as distributed values or, with only one replica, as tensors."""
        batch, state = self.following(self.begin())
        self.end(state)
        return batch

    def begin(self) -> tuple[tf.Tensor, list[list[tf.Tensor]]]:
        """Returns the position and the group."""
        # A GPU's int32 numbers are in host memory, where those decide that copy or cut a group; its variables are not.
        with tf.device("CPU:0"):
            position = self._position.read_value()
        with tf.device(self._devices[0]):
            return tf.identity(position), [[one.read_value() for one in held] for held in self._held]

    def following(self, state: tuple[tf.Tensor, list[list[tf.Tensor]]]) -> tuple[Any, Any]:
        """Returns the next batch of each local replica, and the state after it."""
        with tf.device(self._devices[0]):
            # A loop of one pass or none: the condition of a tf.cond would be copied to a GPU, which waits for the GPU.
            position, groups = tf.while_loop(
                lambda position, _: position >= self._size, self._fetch, state, parallel_iterations=1
            )
        parts = []
        for device, group, images in zip(self._devices, groups, self._images, strict=True):
            with tf.device(device):
                begin = tf.reshape(position, [1])
                cut = [tf.strided_slice(one, begin, begin + 1, [1], shrink_axis_mask=1) for one in group]
                part = tf.nest.pack_sequence_as(self._spec, cut)
                parts.append(part if images is None else _with_images(part, functools.partial(tf.gather, images)))
        batch = parts[0] if self._strategy.num_replicas_in_sync == 1 else _distributed(self._strategy, parts)
        with tf.device(self._devices[0]):
            return batch, (position + 1, groups)

    def end(self, state: tuple[tf.Tensor, list[list[tf.Tensor]]]) -> None:
        """Keeps the position and the group in variables."""
        position, groups = state
        with tf.device("CPU:0"):
            self._position.assign(position)
        for held, group in zip(self._held, groups, strict=True):
            for variable, values in zip(held, group, strict=True):
                variable.assign(values)

    def _fetch(self, position: tf.Tensor, _: list[list[tf.Tensor]]) -> tuple[tf.Tensor, list[list[tf.Tensor]]]:
        """Returns the position in the next group, and that group."""
        flat = [self._strategy.experimental_local_results(one) for one in tf.nest.flatten(next(self._groups))]
        return position - self._size, [list(own) for own in zip(*flat, strict=True)]


def _of_any_length(images: tf.Tensor) -> ResourceVariable:
    return ResourceVariable(images, trainable=False, shape=tf.TensorShape([None, *images.shape[1:]]))


def _empty(images: list[ResourceVariable]) -> None:
    with tf.init_scope():
        for one in images:
            one.assign(tf.zeros([0, *one.shape[1:]], one.dtype))


def _of_batch(group: tf.TensorSpec) -> tf.TensorSpec:
    return tf.TensorSpec(group.shape[1:], group.dtype)


def _with_images(batch: tuple[Any, ...], of_numbers: Callable[[Any], Any]) -> tuple[Any, ...]:
    """Returns a batch with images in the place of their numbers, or the type of one, given that of the numbers."""
    x, *others = batch
    return ({**x, "image": of_numbers(x["image"])} if isinstance(x, dict) else of_numbers(x), *others)


def _local_spec(spec: Any) -> Any:
    """Returns the type of a replica's part of a distributed element."""
    return tf.nest.map_structure(lambda one: one._value_specs[0] if hasattr(one, "_value_specs") else one, spec)


def _group_size(spec: Any) -> int:
    """Returns the number of batches to copy together, given the type of one replica's batch; 1 for one by one."""
    leaves = tf.nest.flatten(spec)
    if not all(isinstance(one, tf.TensorSpec) and one.shape.is_fully_defined() for one in leaves):
        return 1
    if any(one.dtype in NOT_CUT for one in leaves):
        return 1
    num_bytes = sum(one.shape.num_elements() * one.dtype.size for one in leaves)
    return max(1, min(_MOST_TOGETHER, _MOST_COPIED // max(1, num_bytes)))


def in_parts(request: Request, parts: int) -> tf.data.Dataset:
    """Returns the steps of a request for `parts` local replicas; an element stacks the rows of all of them."""
    return make_dataset(request).batch(parts, drop_remainder=True)


def in_host_memory(
    strategy: tf.distribute.Strategy, request: Request, virtual_replicas: int | None = None
) -> tf.distribute.DistributedDataset | tf.data.Dataset:
    """Returns the rows of this worker's replicas in host memory, as one batch or as stacked virtual replicas."""
    dataset = of_worker(strategy, request, virtual_replicas)
    return dataset if strategy.num_replicas_in_sync == 1 else as_distributed(strategy, dataset)


def of_worker(
    strategy: tf.distribute.Strategy, request: Request, virtual_replicas: int | None = None
) -> tf.data.Dataset:
    """Returns this worker's steps: tuples with a part for each local replica, or just the part if there is only one."""
    return numbered_of_worker(strategy, request, virtual_replicas, 0).dataset


def numbered_of_worker(
    strategy: tf.distribute.Strategy, request: Request, virtual_replicas: int | None, most: int
) -> Numbered:
    """Returns the steps of `of_worker`, with row numbers in the place of images where it can.

    A batch for all local replicas is made and split, which is cheaper than a batch for each.

    Args:
      strategy: strategy of the replicas.
      request: request for all rows of the global batch.
      virtual_replicas: number of virtual replicas.
      most: largest number of bytes of images.
    """
    replicas, local = strategy.num_replicas_in_sync, _local_replicas(strategy)
    workers = replicas // len(local)
    between = len(local) if replicas > 1 else None
    if virtual_replicas:
        parts = virtual_replicas // workers
        shard: Shard | None = Shard(local[0] // len(local), workers, parts)
        of_replicas = tf.autograph.experimental.do_not_convert(lambda *stacked: split(stacked, between))
        made = make_numbered(dataclasses.replace(request, shard=shard), most=most)
        stacked = made.dataset.batch(parts, drop_remainder=True)
        return made._replace(dataset=stacked.map(of_replicas).prefetch(1))
    shard = Shard(local[0] // len(local), workers) if workers > 1 else None
    return make_numbered(dataclasses.replace(request, shard=shard), between, most=most)


def as_distributed(strategy: tf.distribute.Strategy, dataset: tf.data.Dataset) -> ReplicaBatches:
    """Turns a dataset's elements, tuples with a part for each of this worker's replicas, into distributed values.

    The map is free: TensorFlow does not run a function that only passes on its arguments.
    """

    @tf.autograph.experimental.do_not_convert
    def distributed(*elements: Any) -> Any:
        return _distributed(strategy, elements)

    return ReplicaBatches(dataset.map(distributed))


def _distributed(strategy: tf.distribute.Strategy, parts: Sequence[Any]) -> Any:
    """Returns the local replicas' parts as distributed values."""

    def value(*of_replicas: Any) -> Any:
        return strategy.experimental_distribute_values_from_function(
            lambda context: of_replicas[context.replica_id_in_sync_group % len(of_replicas)]
        )

    return tf.nest.map_structure(value, *parts)


def _local_replicas(strategy: tf.distribute.Strategy) -> list[int]:
    """Returns the global numbers of the replicas that this worker feeds, which are consecutive."""
    found: list[int] = []

    def note(context: tf.distribute.experimental.ValueContext) -> tf.Tensor:
        found.append(context.replica_id_in_sync_group)
        return tf.constant(0)

    strategy.experimental_distribute_values_from_function(note)
    return found


@dataclasses.dataclass(frozen=True, kw_only=True)
class _DistributeOptions(JobOptions):
    prefetch: int = PREFETCH
    virtual_replicas: int | None = None


@Taking(_DistributeOptions, shard="the strategy says which rows a worker feeds")
def distribute(strategy: tf.distribute.Strategy, options: _DistributeOptions) -> Any:
    """Returns the input of a strategy: replica r gets rows [rG/R, (r+1)G/R) of every global batch.

    Use it in custom loops, inside a `tf.function` or outside, with `for` or `next`; Keras' `fit` distributes
    `input_fn`'s dataset by itself. Each worker only makes the rows of its own replicas.

    With a ParameterServerStrategy, worker i of W makes, in its own process, rows [iG/W, (i+1)G/W) of every step. The
    result is used like that of `ClusterCoordinator.create_per_worker_dataset`: `coordinator.schedule(step,
    args=(iter(it),))`. Workers do not wait for each other, so one may be steps ahead; a restarted worker begins at
    `start_step` again. Workers must see the data set's files under the same path as the coordinator. The order of all
    steps is stored in the dataset, so that training needs `epochs`.

    Args:
      strategy: a OneDevice, Mirrored, MultiWorkerMirrored, ParameterServer, CentralStorage or default strategy.
      options: arguments of `input_fn`, except `shard`; and the next two.
      prefetch: number of batches that wait on each replica's device; 0 keeps batches in host memory until the step.
        Replicas on CPUs read host memory.
      virtual_replicas: V, a multiple of R that divides the global batch: each replica gets V/R stacked batches, (V/R,
        rows, ...), of G/V rows each, which are the same to the bit for any R (see `trainer.topology.sum_gradients`);
        None for one batch of G/R rows.

    Returns:
      Elements of `input_fn`, such as (images, labels, weights), as distributed values, or as tensors if there is only
      one replica. For a finite run `batches.cardinality` is its number of steps (TensorFlow's own distributed datasets
      have no `len`).

    Raises:
      DataError, UsageError: see `input_fn`; also if the replicas do not divide the global batch, and for
        `on_corrupt="skip"` with a ParameterServerStrategy, whose workers cannot skip.
    """
    of_input = dict(vars(options))
    own = of_input.pop("prefetch"), of_input.pop("virtual_replicas")
    return distribute_request(strategy, Request(**of_input), *own)


def distribute_request(
    strategy: tf.distribute.Strategy,
    request: Request,
    prefetch: int = PREFETCH,
    virtual_replicas: int | None = None,
    grouped: bool = False,
) -> Any:
    """Returns a strategy's input, like `distribute`, given a request for all rows of the global batch.

    With `grouped`, an endless input may be a `DeviceGroups`, whose iterators can only be made outside of a
    `tf.function`.
    """
    if not isinstance(strategy, tf.distribute.Strategy):
        raise UsageError(f"strategy={strategy!r}: must be a tf.distribute.Strategy; distribute takes it first")
    if request.weights == "none":
        raise UsageError(
            "weights='none' with distribute: its batches differ in size, and replicas need full ones; use 'mask', or "
            "give input_fn's dataset to Keras"
        )
    prefetch = whole_number("prefetch", prefetch, 0)
    workers = _num_workers(strategy)
    request.check_replicas(max(1, workers) * strategy.num_replicas_in_sync)
    if virtual_replicas is not None:
        check_virtual_replicas(request.global_batch_size, virtual_replicas, strategy.num_replicas_in_sync)
        request.check_replicas(virtual_replicas, "virtual replicas")
        if workers:
            raise UsageError("virtual_replicas: not with a ParameterServerStrategy, whose order of sums is not fixed")
    options = None if prefetch == 0 or replicas_are_on_cpus(strategy) else copied_ahead(prefetch)
    if workers:
        return per_worker(strategy, request, options)
    if options is None:
        return in_host_memory(strategy, request, virtual_replicas)
    if grouped and request.training and request.epochs is None:
        made = numbered_of_worker(strategy, request, virtual_replicas, MOST_KEPT)
        return in_groups(strategy, made.dataset, prefetch, made.images)
    return on_devices(strategy, request, options, virtual_replicas)


def replicas_are_on_cpus(strategy: tf.distribute.Strategy) -> bool:
    """Returns whether a strategy's replicas compute on CPUs, so that they read host memory."""
    try:
        devices = strategy.extended.worker_devices
    except RuntimeError:  # the default strategy has no device names, and copies nothing ahead
        return True
    return all(tf.DeviceSpec.from_string(device).device_type == "CPU" for device in devices)


def copied_ahead(prefetch: int) -> tf.distribute.InputOptions:
    """Returns options that make `prefetch` batches wait on each replica's device."""
    return tf.distribute.InputOptions(experimental_fetch_to_device=True, experimental_per_replica_buffer_size=prefetch)


def on_devices(
    strategy: tf.distribute.Strategy,
    request: Request,
    options: tf.distribute.InputOptions,
    virtual_replicas: int | None = None,
) -> tf.distribute.DistributedDataset:
    """Returns batches that TensorFlow's distributed iterator copies to each replica's device ahead of the step.

    A single worker makes whole global batches and splits them, which is cheaper than many small batches.
    """
    # TensorFlow 2.21's CentralStorageStrategy.experimental_distribute_dataset fails with any options (a misspelt name).
    by_function = (tf.distribute.MultiWorkerMirroredStrategy, tf.distribute.experimental.CentralStorageStrategy)

    def of_context(context: tf.distribute.InputContext) -> tf.data.Dataset:
        if not virtual_replicas:
            return make_dataset(dataclasses.replace(request, shard=context))
        workers = context.num_input_pipelines
        shard = Shard(context.input_pipeline_id, workers, virtual_replicas // workers)
        # Consecutive elements go to consecutive replicas.
        return in_parts(dataclasses.replace(request, shard=shard), virtual_replicas // context.num_replicas_in_sync)

    if isinstance(strategy, by_function):
        return strategy.distribute_datasets_from_function(of_context, options)
    if virtual_replicas:
        whole = in_parts(dataclasses.replace(request, shard=Shard(0, 1, virtual_replicas)), virtual_replicas)
    else:
        whole = make_dataset(request)
    return strategy.experimental_distribute_dataset(whole, options)


@tf.autograph.experimental.do_not_convert
def in_groups(
    strategy: tf.distribute.Strategy, dataset: tf.data.Dataset, prefetch: int, images: tf.Tensor | None = None
) -> tf.distribute.DistributedDataset:
    """Returns batches that are copied ahead of the step, in groups if they are small enough, else one by one.

    Args:
      strategy: strategy of the replicas.
      dataset: steps of this worker, as from `of_worker` or, with images, `numbered_of_worker`.
      prefetch: smallest number of batches that wait on each device.
      images: images to keep on each device; None if the steps have them.
    """
    with tf.device("CPU:0"):
        is_tuple, steps = strategy.num_replicas_in_sync > 1, int(dataset.cardinality())
        size = _group_size(dataset.element_spec[0] if is_tuple else dataset.element_spec)
        if steps != tf.data.INFINITE_CARDINALITY:  # all groups are full
            size = max(part for part in range(1, size + 1) if steps % part == 0)
        is_grouped = size > 1 or images is not None
        if is_grouped:
            dataset = dataset.batch(size, drop_remainder=True)
        if is_tuple:  # consecutive elements go to consecutive replicas
            count = steps // size * len(dataset.element_spec) if steps >= 0 else steps
            dataset = dataset.flat_map(one_by_one).apply(tf.data.experimental.assert_cardinality(count))
    copied = strategy.distribute_datasets_from_function(lambda context: dataset, copied_ahead(-(-prefetch // size)))
    return DeviceGroups(strategy, copied, size, steps, images) if is_grouped else copied


def _num_workers(strategy: tf.distribute.Strategy) -> int:
    """Returns the number of workers of a ParameterServerStrategy; 0 for any other strategy."""
    if not isinstance(strategy, tf.distribute.ParameterServerStrategy):
        return 0
    return strategy.extended._num_workers  # there is no public way: the strategy's cluster_resolver is None


def per_worker(strategy: tf.distribute.Strategy, request: Request, options: tf.distribute.InputOptions | None) -> Any:
    """Returns all workers' datasets, each made in the worker's process by the same graph.

    Args:
      strategy: a ParameterServerStrategy.
      request: request for all rows of the global batch.
      options: options for copying to devices; None for as few copies as the strategy allows.
    """
    workers, replicas = _num_workers(strategy), strategy.num_replicas_in_sync

    # No autograph, which would turn an error about the arguments into many lines.
    @tf.function(autograph=False)
    def dataset() -> tf.data.Dataset | tf.distribute.DistributedDataset:
        index = tf.distribute.coordinator.experimental_get_current_worker_index()
        shard = RunningWorker(0, workers, replicas, number=tf.cast(index, tf.int64))
        made = make_dataset(dataclasses.replace(request, shard=shard))
        if options is None and replicas == 1:
            return made
        return strategy.distribute_datasets_from_function(lambda _: made, options)

    return tf.distribute.coordinator.ClusterCoordinator(strategy).create_per_worker_dataset(dataset)
