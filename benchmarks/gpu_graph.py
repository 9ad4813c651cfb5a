"""The work that a training step would launch on a GPU, read from its optimised graph; no GPU is needed.

    python -m benchmarks.gpu_graph [--models=resnet50,fast_cifar,cifar10_cnn] [--only=plain,jit,virtual]

TensorFlow's graph optimizer takes the properties of a device instead of the device, and its wheel knows which
operations have a GPU kernel. So `TrainStep.repeat` is traced as if this machine had one H100, optimised for it, and
counted, per step and by part of the step: kernels to start, bytes that they read and write, programs of XLA. Then what
lets the data leave the GPU, or the GPU wait: operations without a GPU kernel, tensors copied to the host's memory, and
nodes that have an update start only once the one before it has ended.

Kernels inside an XLA program are not counted, since XLA fuses them for a device that must be present; the table has the
operations that went into it, and the bytes of its arguments and results, which are the least that it moves.
"""

from __future__ import annotations

import collections
import contextlib
import dataclasses
import functools
import math
import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple

from benchmarks import inputs
from pipeline.commands import commandline
from pipeline.commands.flags import check, flag

COMMAND = "benchmarks.gpu_graph"
VARIANTS = {
    "plain": ["--nojit_compile"],
    "jit": ["--jit_compile"],
    "virtual": ["--jit_compile", "--virtual_replicas=4"],
}
_GPU, _CPU, _ANYWHERE = "GPU", "CPU", "DEFAULT"  # device types of kernels
_GROUP = 4  # batches that are copied together
_ARGUMENT, _VARIABLE = "ImmutableConst", "VarHandleOp"  # operations that stand for a function's arguments

# Operations whose GPU kernel launches nothing: they pass on a buffer, or read a shape.
_STARTS_NOTHING = {
    *("Const", "ImmutableConst", "Placeholder", "VarHandleOp", "ReadVariableOp", "AssignVariableOp"),
    *("Identity", "IdentityN", "StopGradient", "PreventGradient", "NoOp", "ControlTrigger", "Bitcast", "Reshape"),
    *("Squeeze", "ExpandDims", "EnsureShape", "Shape", "ShapeN", "Size", "Rank", "BroadcastGradientArgs"),
    *("Enter", "Exit", "Merge", "Switch", "NextIteration", "LoopCond", "PartitionedCall", "StatefulPartitionedCall"),
    *("TensorListReserve", "TensorListFromTensor", "TensorListGetItem", "TensorListSetItem", "TensorListElementShape"),
    "IteratorGetNext",
}
_WORK = 1 << 10  # bytes: nobody waits noticeably for a kernel that moves less
_CALL_BEGINS, _CALL_RETURNS = "/input_control_node", "/output/"  # in names of nodes that stand for inlined calls
_CALLS = frozenset({"PartitionedCall", "StatefulPartitionedCall"})
_OF_SUMS = frozenset({"Bitcast", "BitwiseAnd", "LeftShift", "RightShift"})
HOST_OPS = frozenset({"IteratorGetNext", "Timestamp", "PyFunc", "PyFuncStateless", "EagerPyFunc"})
"""Operations that are meant for the host: they take a batch, or read a clock."""

# The first pattern that matches a node's name decides; names consist of the scopes in `TrainStep`.
_PARTS = {
    "input": r"(^|/)input/",
    "optimizer": r"(^|/)optimizer/",
    "averages": r"(^|/)averages/",
    "check of the weights": r"(^|/)is_finite/",
    "metrics and sums": r"(^|/)(metrics|global_step|learning_rate)/",
    "sums over replicas": r"(^|/)(all_sum|virtual_sum)",
    "BatchNorm, backward": r"gradient_tape/.*batch_norm",
    "BatchNorm, forward": r"batch_norm",
    "backward": r"gradient_tape/",
    "forward": r"(^|/)replica_\d+/",
}
_OTHER = "loop and others"


class Case(NamedTuple):
    """A model to count: the flags of its run, and its batches.

    Attributes:
      side: height and width of the images.
      rows: number of rows in a global batch.
      flags: further flags of `trainer.run`.
    """

    side: int
    rows: int
    flags: tuple[str, ...] = ()


CASES = {
    "resnet50": Case(224, 128, ("--precision=bfloat16",)),
    "fast_cifar": Case(32, 512, ("--precision=bfloat16",)),
    "cifar10_cnn": Case(24, 128),
}


@dataclasses.dataclass(frozen=True)
class BenchmarkConfig:
    """What is counted."""

    models: str = flag(",".join(CASES), "models to count, separated by commas")
    only: str = flag("", "variants of the step, separated by commas; all of them by default")

    def __post_init__(self) -> None:
        """Checks the values."""
        inputs.parts_of(self.models, CASES)
        inputs.parts_of(self.only, VARIANTS)
        check(self)


def main(argv: Sequence[str] | None = None) -> None:
    """Prints a table for each model and variant."""
    config = commandline.parse(COMMAND, "Count what a training step starts on a GPU.", BenchmarkConfig, argv)
    inputs.load_tensorflow()
    for model in inputs.parts_of(config.models, CASES):
        for variant in inputs.parts_of(config.only, VARIANTS):
            case = CASES[model]
            step, batch = made([f"--model={model}", *case.flags, *VARIANTS[variant]], case.side, case.rows)
            print(f"{model}, {case.rows} rows, {' '.join([*case.flags, *VARIANTS[variant]]) or 'no flags'}")
            counts = count(repeated(step, batch))
            print("\n".join([*lines(counts), *waits(counts, "with a constant batch")]))
            for title, given in (("batches from groups", (batch, None)), ("images kept on the GPU", numbered(batch))):
                size = sum(one.shape.num_elements() * one.dtype.size for one in given[0])
                how = f"with {title}, {size:,} bytes per step from the host"
                print("\n".join(waits(count(fed(step, *given)), how)), flush=True)


@contextlib.contextmanager
def virtual_gpu(count: int = 1) -> Iterator[None]:
    """Context in which TensorFlow lists `count` GPUs besides the CPU; anything placed on them is on the CPU."""
    import tensorflow as tf  # noqa: PLC0415, after the quiet loading

    listings = {
        "list_physical_devices": [tf.config.PhysicalDevice(f"/physical_device:GPU:{i}", _GPU) for i in range(count)],
        "list_logical_devices": [tf.config.LogicalDevice(f"/device:GPU:{i}", _GPU) for i in range(count)],
    }
    own = {name: getattr(tf.config, name) for name in listings}

    def listed(name: str, device_type: str | None = None) -> list[Any]:
        return [*own[name](device_type), *(listings[name] if device_type in (None, _GPU) else [])]

    tf.config.set_soft_device_placement(True)
    try:
        for name in listings:
            setattr(tf.config, name, functools.partial(listed, name))
        yield
    finally:
        for name, listing in own.items():
            setattr(tf.config, name, listing)


def made(flags: Sequence[str], side: int, rows: int, gpus: int = 1) -> tuple[Any, Any]:
    """Returns a `TrainStep` for GPUs, and the TensorSpecs of its global batches of float32 images.

    Args:
      flags: flags of `trainer.run`, without data and folder.
      side: height and width of the images.
      rows: number of rows in a global batch.
      gpus: number of GPUs to list.
    """
    import tensorflow as tf  # noqa: PLC0415, as above

    from trainer import config as configs  # noqa: PLC0415
    from trainer.cluster import strategies, tf_config  # noqa: PLC0415
    from trainer.step import state, train_step  # noqa: PLC0415
    from trainer.task import DataSpec, Task  # noqa: PLC0415

    config = configs.parse([*flags, "--data_dir=no-data", "--model_dir=no-run", f"--global_batch_size={rows}"])
    virtual = config.order.virtual_replicas
    of_rows = [virtual, rows // virtual] if virtual else [rows]
    images, labels = tf.TensorSpec([*of_rows, side, side, 3]), tf.TensorSpec(of_rows, tf.int64)
    spec = DataSpec(tf.TensorSpec([None, side, side, 3]), tf.TensorSpec([None], tf.int64), tuple("0123456789"))
    with virtual_gpu(gpus):
        strategy = strategies.create(config.run, rows, tf_config.ALONE)
        trained = state.build(config, spec, strategy, Task, lambda step: tf.constant(0.1))
        step = train_step.create(strategy, trained, config, None)
    return step, (images, labels, tf.TensorSpec(of_rows))


def repeated(step: Any, batch: Any) -> Any:
    """Returns the traced `TrainStep.repeat`: updates with one batch."""
    import tensorflow as tf  # noqa: PLC0415, as above

    with virtual_gpu():
        return step.repeat.get_concrete_function(batch, tf.TensorSpec([], tf.int64))


def numbered(batch: Any) -> tuple[Any, Any]:
    """Returns batches with row numbers in the place of images, and images to keep on the GPU, for `fed`."""
    import tensorflow as tf  # noqa: PLC0415, as above

    images, *others = batch
    return (tf.TensorSpec(others[-1].shape, tf.int64), *others), tf.zeros([1, *images.shape[-3:]], tf.uint8)


def fed(step: Any, batch: Any, images: Any = None) -> Any:
    """Returns the traced `TrainStep.train`: updates with batches that were copied to the GPU in groups.

    Args:
      step: the `TrainStep`.
      batch: TensorSpecs of the global batches that are copied.
      images: images that the GPU keeps, of which the batches have row numbers; None if they have the images.
    """
    import tensorflow as tf  # noqa: PLC0415, as above

    from pipeline.distribution import DeviceGroups  # noqa: PLC0415, as above

    group = tf.nest.map_structure(lambda one: tf.TensorSpec([_GROUP, *one.shape], one.dtype), batch)
    shapes, kinds = ([getattr(one, name) for one in tf.nest.flatten(group)] for name in ("shape", "dtype"))

    class Groups:
        element_spec = group

        def __init__(self) -> None:
            zeros = tf.nest.map_structure(lambda one: tf.zeros(one.shape, one.dtype), group)
            self._iterator = iter(tf.data.Dataset.from_tensors(zeros))

        def __iter__(self) -> Groups:
            return self

        def __next__(self) -> Any:
            with tf.device("GPU:0"):
                found = tf.raw_ops.IteratorGetNext(
                    iterator=self._iterator._iterator_resource, output_types=kinds, output_shapes=shapes
                )
            return tf.nest.pack_sequence_as(group, found)

    with virtual_gpu():
        batches = iter(DeviceGroups(step.strategy, Groups(), _GROUP, tf.data.INFINITE_CARDINALITY, images))
        return step.train.get_concrete_function(batches, tf.TensorSpec([], tf.int64))


def optimized(concrete: Any) -> Any:
    """Returns a traced function's graph as TensorFlow would run it on an H100, with all calls inlined except XLA's."""
    from tensorflow.core.protobuf import config_pb2  # noqa: PLC0415
    from tensorflow.python.grappler import cluster, tf_optimizer  # noqa: PLC0415

    gpu = {"architecture": "9.0", "cuda": "12050", "cudnn": "90300"}
    devices = [
        _device(_GPU, num_cores=132, frequency=1980, memory_size=80 << 30, environment=gpu, vendor="NVIDIA"),
        _device(_CPU, num_cores=16, frequency=3000, memory_size=128 << 30),
    ]
    inlined, settings = config_pb2.ConfigProto(), config_pb2.ConfigProto()
    for one in (inlined, settings):
        one.graph_options.rewrite_options.meta_optimizer_timeout_ms = 600_000
    inlined.graph_options.rewrite_options.optimizers.append("function")
    machine = cluster.Cluster(devices=devices)
    try:
        graph_def = tf_optimizer.OptimizeGraph(inlined, _metagraph(concrete), verbose=False, cluster=machine)
        _as_run(graph_def)
        return tf_optimizer.OptimizeGraph(settings, _metagraph(concrete, graph_def), verbose=False, cluster=machine)
    finally:
        machine.Shutdown()


def _as_run(graph_def: Any) -> None:
    """Changes a graph of inlined calls to what TensorFlow makes of it when it runs.

    There, no call waits for all of its arguments, and its results are where they are computed.
    """
    nodes = {node.name: node for node in graph_def.node}
    for node in graph_def.node:
        given = [name.removeprefix("^") for name in node.input]
        if node.op == "NoOp" and _CALL_BEGINS in node.name:
            kept = [name for name in given if nodes[name].op not in ("Merge", "Switch", "Enter")]
            # A loop's condition comes after the first of the loop's values.
            merges = [name for name in given if nodes[name].op == "Merge"]
            kept = kept or sorted(merges, key=lambda name: int(name.rpartition("_")[2]))[:1]
            node.input[:] = [f"^{name}" for name in kept] or node.input
        elif node.op == "Identity" and _CALL_RETURNS in node.name:
            node.device = node.device or nodes[given[0].partition(":")[0]].device


def _device(kind: str, **properties: Any) -> Any:
    from tensorflow.core.protobuf import device_properties_pb2  # noqa: PLC0415

    return device_properties_pb2.NamedDevice(
        name=f"/job:localhost/replica:0/task:0/device:{kind}:0",
        properties=device_properties_pb2.DeviceProperties(type=kind, **properties),
    )


def _metagraph(concrete: Any, graph_def: Any = None) -> Any:
    """Returns a function's graph, or a transformed one, with the nodes that must stay in it."""
    import tensorflow as tf  # noqa: PLC0415, as above

    graph = concrete.graph
    graph_def = graph_def or _with_arguments(graph)
    given = tf.compat.v1.train.export_meta_graph(graph_def=graph.as_graph_def(), graph=graph)
    given.graph_def.CopyFrom(graph_def)
    kept = [*(output.op.name for output in graph.outputs), *(operation.name for operation in graph.control_outputs)]
    given.collection_def["train_op"].node_list.value.extend(dict.fromkeys(kept))
    return given


def _with_arguments(graph: Any) -> Any:
    """Returns a function's graph with inputs of known shapes as arguments; placeholders have none."""
    import tensorflow as tf  # noqa: PLC0415, as above
    from tensorflow.python.ops import handle_data_util  # noqa: PLC0415

    found, arguments = graph.as_graph_def(), {one.op.name: one for one in graph.inputs}
    for function in found.library.function:  # remaining calls would not be counted
        function.attr.pop("_noinline", None)
    for node in found.node:
        if (argument := arguments.get(node.name)) is None:
            continue
        if argument.dtype != tf.resource:
            node.op, node.attr["memory_region_name"].s = _ARGUMENT, b"argument"
        elif (handle := handle_data_util.get_resource_handle_data(argument)).shape_and_type:
            node.op = _VARIABLE
            node.attr["dtype"].type = handle.shape_and_type[0].dtype
            node.attr["shape"].shape.CopyFrom(handle.shape_and_type[0].shape)
            node.attr["shared_name"].s = node.name.encode()
    return found


@dataclasses.dataclass
class Part:
    """The cost of a part of a step: kernels to launch, bytes that they move, XLA programs."""

    kernels: int = 0
    moved: int = 0
    programs: int = 0


class Copied(NamedTuple):
    """A tensor that leaves the GPU: its node, its consumer on the host, bytes, and times per step."""

    name: str
    reader: str
    size: int
    times: int


@dataclasses.dataclass(frozen=True)
class Counts:
    """The work of a function, per step.

    Attributes:
      parts: costs by part of the step.
      operations: number of operations in each XLA program, by name.
      without_kernel: operations without a GPU kernel for their types that are not meant for the host, such as `SplitV
        (int64)`, with their number per step.
      uncompiled: operations inside an XLA program that XLA does not support on GPUs.
      host: operations meant for the host, with their number per step.
      copied: tensors copied to host memory in each step.
      waits: nodes that delay a step until the one before it has ended, each with the node that they wait for. Copying
        a tensor between host and GPU, or letting a node wait for one on the other side, which copies an empty tensor,
        means waiting until the GPU has done all of its earlier work.
    """

    parts: Mapping[str, Part]
    operations: Mapping[str, int]
    without_kernel: Mapping[str, int]
    uncompiled: Mapping[str, int]
    host: Mapping[str, int]
    copied: Sequence[Copied]
    waits: Mapping[str, str]

    @property
    def total(self) -> Part:
        """The sum of the parts."""
        sums = (sum(getattr(part, field.name) for part in self.parts.values()) for field in dataclasses.fields(Part))
        return Part(*sums)


def count(concrete: Any) -> Counts:
    """Returns the work of a traced function in each step, after optimisation."""
    return Graph(concrete, optimized(concrete)).counts()


def lines(counts: Counts) -> list[str]:
    """Returns a table, followed by what leaves the GPU."""
    found = [f"  {'':24s}{'kernels':>9s}{'GB moved':>10s}{'XLA':>5s}"]
    rows = {name: counts.parts[name] for name in [*_PARTS, _OTHER] if name in counts.parts}
    for name, part in {**rows, "all": counts.total}.items():
        found.append(f"  {name:24s}{part.kernels:9,.0f}{part.moved / 1e9:10.2f}{part.programs:5.0f}")
    found += [f"  XLA program {name}: {number:,} operations" for name, number in counts.operations.items()]
    for what, some in (
        ("no GPU kernel, so on the CPU", counts.without_kernel),
        ("not known to XLA on GPUs", counts.uncompiled),
        ("meant for the host", counts.host),
    ):
        text = ", ".join(f"{name} x {times:g}" for name, times in some.items())
        found.append(f"  {what}: {text or 'none'}")
    copies, size = sum(one.times for one in counts.copied), sum(one.times * one.size for one in counts.copied)
    found.append(f"  copied to the host in each step: {copies:g} tensors, {size:,.0f} bytes")
    largest = sorted(counts.copied, key=lambda one: -one.size * one.times)
    found += [f"    {one.size:,} bytes x {one.times:g}: {one.name} for {one.reader}" for one in largest[:8]]
    return found


def waits(counts: Counts, how: str) -> list[str]:
    """Returns lines about the nodes that delay a step until the one before it has ended."""
    found = [f"  {how}: {name} waits for {source}" for name, source in counts.waits.items()]
    return found or [f"  {how}: the GPU always has its next step queued"]


class Graph:
    """An optimised graph: where its nodes run, in which memory their results are, and how many times per step."""

    def __init__(self, concrete: Any, graph_def: Any) -> None:
        from tensorflow.python.grappler import item  # noqa: PLC0415

        self.nodes = {node.name: node for node in graph_def.node}
        self.functions = {function.signature.name: function for function in graph_def.library.function}
        self._variables = {  # bytes of each variable, by handle
            name: _bytes(node.attr["dtype"].type, node.attr["shape"].shape)
            for name, node in self.nodes.items()
            if node.op == _VARIABLE
        }
        described = item.Item(_metagraph(concrete, graph_def)).GetOpProperties()
        self._outputs = {name: [_bytes(one.dtype, one.shape) for one in outputs] for name, outputs in described.items()}
        self.places = {name: self._place(node) for name, node in self.nodes.items()}
        self._frames, self._parents = self._find_frames()
        enters = [self.nodes[name] for name in self._named("Enter")]
        self._parallel = {one.attr["frame_name"].s.decode(): one.attr["parallel_iterations"].i for one in enters}
        self._trips = {self._frames[name]: self._trip_count(name) for name in self._named("LoopCond")}

    def counts(self) -> Counts:
        """Returns the work of the graph in each step."""
        parts: dict[str, Part] = collections.defaultdict(Part)
        tallies = [collections.Counter[str]() for _ in range(3)]
        without_kernel, uncompiled, host = tallies
        operations: dict[str, int] = {}
        for name, node in self.nodes.items():
            times, place = self.times(name), self.places[name]
            if not times:
                continue
            part = parts[part_of(node)]
            if function := self._program(node):
                inside = list(self._inside(function))
                operations[function] = len(inside)
                uncompiled.update(titled(one) for one in inside if not has_kernel(one, "XLA_GPU_JIT"))
                part.programs += times
                part.moved += times * self._moved(node)
            elif node.op in _CALLS:
                raise AssertionError(f"{name}: a call that is not counted")
            elif place.lacks_kernel:
                (host if node.op in HOST_OPS else without_kernel)[titled(node)] += times
            elif self._starts_kernel(name):
                part.kernels += times
                part.moved += times * self._moved(node)
        return Counts(dict(parts), operations, without_kernel, uncompiled, host, self._copies(), dict(self._waits()))

    def times(self, name: str) -> int:
        """Returns how many times a node runs per step; 0 for once per call, if the graph has a loop over the steps."""
        frame = self._frames.get(name, "")
        chain = _chain(self._parents, self._parents[frame] if self.nodes[name].op == "Enter" else frame)[:-1]
        if None in self._trips.values() and all(self._trips.get(frame) is not None for frame in chain):
            return 0
        return math.prod(trips for frame in chain if (trips := self._trips.get(frame)))

    def _named(self, *ops: str) -> list[str]:
        return [name for name, node in self.nodes.items() if node.op in ops]

    def _place(self, node: Any) -> Place:
        on_gpu = f"device:{_CPU}" not in node.device
        kernel = kernel_of(node, _GPU) if on_gpu else None
        lacks = on_gpu and kernel is None
        given, returned = _arguments(node)
        if node.op == _ARGUMENT:
            return Place(_GPU, False, [], [False])
        if kernel is None:
            return Place(_CPU, lacks, [True] * len(given), [True] * len(returned))
        on_host = set() if self._program(node) else set(kernel.host_memory_arg)
        return Place(_GPU, False, [name in on_host for name in given], [name in on_host for name in returned])

    def _starts_kernel(self, name: str) -> bool:
        node, place = self.nodes[name], self.places[name]
        return place.device == _GPU and node.op not in _STARTS_NOTHING and place.touches_gpu_memory

    def _program(self, node: Any) -> str | None:
        """Returns the function that XLA compiles if a node calls one."""
        if node.op not in _CALLS:
            return None
        name: str = node.attr["f"].func.name
        compiled = node.attr["_XlaMustCompile"].b or self.functions[name].attr["_XlaMustCompile"].b
        return name if compiled else None

    def _inside(self, name: str) -> Iterator[Any]:
        """Yields the operations of a function, including those of functions that it calls."""
        for node in self.functions[name].node_def:
            called = [node.attr[key].func.name for key in ("f", "body", "cond", "then_branch", "else_branch")]
            called = [one for one in called if one in self.functions]
            for one in called:
                yield from self._inside(one)
            if not called:
                yield node

    def _moved(self, node: Any) -> int:
        """Returns the bytes that a node reads and writes."""
        given = [(self._size_of(*source), self._is_handle(source[0])) for source in _sources(node)]
        changes = "Assign" in node.op or node.op.startswith("ResourceApply")
        changed = sum(size for size, is_variable in given if is_variable) if changes else 0
        return sum(size for size, _ in given) + sum(self._outputs.get(node.name, [])) + changed

    def _size_of(self, name: str, port: int) -> int:
        if name in self._variables:
            return self._variables[name]
        if self._is_handle(name):  # passed on
            return self._size_of(*_sources(self.nodes[name])[0])
        sizes = self._outputs.get(name, [])
        return sizes[port] if port < len(sizes) else 0

    def _is_handle(self, name: str) -> bool:
        import tensorflow as tf  # noqa: PLC0415, as above

        node = self.nodes[name]
        passes = node.op in ("Enter", "Identity") and node.attr["T"].type == tf.resource.as_datatype_enum
        return node.op == _VARIABLE or bool(passes)

    def _copies(self) -> list[Copied]:
        """Returns the tensors copied to the host in each step."""
        found: dict[tuple[str, int], Copied] = {}
        for name in self.nodes:
            for source, port in self._moves(name):
                if (source, port) not in found and self.places[source].device == _GPU and self._wants(name, source):
                    found[source, port] = Copied(source, name, self._size_of(source, port), self.times(name))
        return list(found.values())

    def _wants(self, name: str, source: str) -> bool:
        """Returns whether a node takes an output of another in the host's memory."""
        taken = zip(self.places[name].inputs_on_host, _sources(self.nodes[name]), strict=True)
        return any(on_host for on_host, (one, _) in taken if one == source)

    def _moves(self, name: str) -> Iterator[tuple[str, int]]:
        """Yields the outputs, by node and number, that are copied between host and GPU for a node."""
        if self.times(name):
            taken = zip(self.places[name].inputs_on_host, _sources(self.nodes[name]), strict=True)
            for on_host, (source, port) in taken:
                if on_host != self.places[source].outputs_on_host[port] and not self._never_moves(source):
                    yield source, port

    def _waits(self) -> Iterator[tuple[str, str]]:
        """Yields the nodes as in `Counts.waits`."""
        steps = [name for name, trips in self._trips.items() if trips is None]
        steps = [name for name in steps if not set(_chain(self._parents, name)[1:]) & set(steps)]
        inside = [name for name in self.nodes if set(_chain(self._parents, self._frames.get(name, ""))) & set(steps)]
        inside = [name for name in inside if self.times(name)]
        readers, ends = collections.defaultdict[str, list[str]](list), set[str]()
        for name in inside:
            for given in self.nodes[name].input:
                readers[given.removeprefix("^").partition(":")[0]].append(name)
            if self.nodes[name].op == "NextIteration" and self._frames[name] in steps:
                ends.add(name)
        work = [name for name in inside if self._is_work(name)]
        later = _reached(work, lambda name: [] if name in ends else readers[name])
        for name in inside:
            crossed = [source for source, _ in self._moves(name)]
            for given in self.nodes[name].input:
                source = given.removeprefix("^")
                if given.startswith("^") and self.places[source].device != self.places[name].device:
                    crossed.append(source)
            for source in crossed:
                # By then, the GPU has been given the step before, and also this one if the source follows its work.
                nearest = self._passes_until(set(work), name, readers, ends)
                if source in readers and nearest - (source in later) < 1:
                    yield name, source

    def _is_work(self, name: str) -> bool:
        return bool(self._program(self.nodes[name])) or (
            self._starts_kernel(name) and self._moved(self.nodes[name]) >= _WORK
        )

    def _passes_until(self, work: set[str], name: str, readers: Mapping[str, list[str]], ends: set[str]) -> int:
        """Returns after how many passes the GPU begins with work that waits for a node; 2 for later, too."""
        begun = {name}
        for passes in range(2):
            reached = _reached(begun, lambda one: [] if one in ends else readers[one])
            if reached & work:
                return passes
            begun = {reader for one in reached & ends for reader in readers[one]}
            # A device begins a pass when it has done its part of the one before.
            devices = {self.places[one].device for one in reached}
            begun |= {
                reader
                for end in ends
                if self.places[end].device in devices and self._is_serial(end)
                for reader in readers[end]
            }
        return 2

    def _is_serial(self, name: str) -> bool:
        """Returns whether a loop begins a pass only when the one before has ended."""
        return self._parallel[self._frames[name]] == 1

    def _never_moves(self, name: str) -> bool:
        """Returns whether a node's outputs are handles or lists, whose placement is not that of the data."""
        node = self.nodes[name]
        return node.op == _ARGUMENT or node.op.startswith("TensorList") or _is_of_handles(node)

    def _find_frames(self) -> tuple[dict[str, str], dict[str, str]]:
        """Returns the loop that contains each node, and the loop around each loop; an empty name means none."""
        readers: dict[str, list[str]] = collections.defaultdict(list)
        for name, node in self.nodes.items():
            for given in node.input:
                readers[given.removeprefix("^").split(":")[0]].append(name)
        frames, parents = {name: "" for name, node in self.nodes.items() if not node.input}, dict[str, str]()
        open_ = list(frames)
        while open_:
            name = open_.pop()
            frame = frames[name]
            for reader in readers[name]:
                node, inner = self.nodes[reader], frame
                if node.op == "Enter":
                    inner = node.attr["frame_name"].s.decode()
                    parents[inner] = frame
                if self.nodes[name].op == "Exit":
                    inner = parents[frame] if node.op != "Enter" else inner
                # A node that also reads constants from outside is in the innermost loop of its inputs.
                if reader not in frames or (frames[reader] != inner and frames[reader] in _chain(parents, inner)[1:]):
                    frames[reader] = inner
                    open_.append(reader)
        return frames, parents

    def _trip_count(self, name: str) -> int | None:
        """Returns how many times a loop runs, given its LoopCond; None if an argument determines it."""
        import tensorflow as tf  # noqa: PLC0415, as above

        limits, open_, seen = [], [name], set()
        while open_:
            node = self.nodes[open_.pop()]
            if node.name in seen:
                continue
            seen.add(node.name)
            if node.op in ("LoopCond", "LogicalAnd", "Less", "Identity", "Enter", "Merge", "Switch"):
                open_ += [source for source, _ in _sources(node)]
            elif node.op == "Const" and node.attr["dtype"].type in (tf.int32, tf.int64):
                limits.append(int(tf.make_ndarray(node.attr["value"].tensor).reshape(-1)[0]))
        return min((limit for limit in limits if limit > 0), default=None)


class Place(NamedTuple):
    """Where a node runs, whether it lacks a GPU kernel, and which of its inputs and outputs are in host memory."""

    device: str
    lacks_kernel: bool
    inputs_on_host: list[bool]
    outputs_on_host: list[bool]

    @property
    def touches_gpu_memory(self) -> bool:
        """Whether it computes on the GPU: its output is a tensor there, or, without outputs, it touches a variable."""
        return not all(self.outputs_on_host or self.inputs_on_host)


def part_of(node: Any) -> str:
    """Returns the part of a step that a node belongs to."""
    import tensorflow as tf  # noqa: PLC0415, as above

    for part, pattern in _PARTS.items():
        if part == "BatchNorm, backward" and "replica_" in node.name:
            exact = node.attr["T"].type in (tf.int64.as_datatype_enum, tf.float64.as_datatype_enum)
            if exact or node.op in _OF_SUMS:
                return "sums over replicas"
        if re.search(pattern, node.name):
            return part
    return _OTHER


def titled(node: Any) -> str:
    """Returns a node's operation with its dtype: `SplitV (int64)`."""
    import tensorflow as tf  # noqa: PLC0415, as above

    kind = next((node.attr[name].type for name in ("T", "dtype", "element_dtype") if node.attr[name].type), 0)
    return f"{node.op} ({tf.dtypes.as_dtype(kind).name})" if kind else str(node.op)


def has_kernel(node: Any, device: str) -> bool:
    """Returns whether a device type has a kernel for a node's dtypes."""
    return kernel_of(node, device) is not None


def kernel_of(node: Any, device: str) -> Any:
    """Returns the registered kernel for a node's dtypes on a device type; None if there is none."""
    kinds = (_GPU, _ANYWHERE) if device == _GPU else (device,)
    for kernel in _kernels(node.op):
        if kernel.device_type not in kinds or kernel.label != node.attr["_kernel"].s.decode():
            continue
        if all(_allows(one, node.attr[one.name]) for one in kernel.constraint):
            return kernel
    return None


def _allows(constraint: Any, value: Any) -> bool:
    given = list(value.list.type) or [value.type]
    return all(one in constraint.allowed_values.list.type for one in given)


@functools.cache
def _kernels(op: str) -> list[Any]:
    import tensorflow as tf  # noqa: PLC0415, as above
    from tensorflow.python.framework import kernels  # noqa: PLC0415

    if not _kernels.cache_info().currsize:  # XLA registers its kernels at the first compilation
        tf.function(tf.identity, jit_compile=True, autograph=False)(tf.constant(0.0))
    # Kernels for a device type come before those for any device.
    return sorted(kernels.get_registered_kernels_for_op(op).kernel, key=lambda one: one.device_type == _ANYWHERE)


def _arguments(node: Any) -> tuple[list[str], list[str]]:
    """Returns the argument name of each input and of each output of a node."""
    from tensorflow.python.framework import op_def_registry  # noqa: PLC0415

    definition = op_def_registry.get(node.op)

    def names(arguments: Any) -> list[str]:
        found: list[str] = []
        for one in arguments:
            number = node.attr[one.number_attr].i if one.number_attr else 1
            found += [one.name] * (len(node.attr[one.type_list_attr].list.type) if one.type_list_attr else number)
        return found

    return names(definition.input_arg), names(definition.output_arg)


def _sources(node: Any) -> list[tuple[str, int]]:
    """Returns the nodes, with output numbers, of a node's inputs."""
    parts = [given.partition(":") for given in node.input if not given.startswith("^")]
    return [(name, int(port or 0)) for name, _, port in parts]


def _reached(begin: Iterable[str], readers: Callable[[str], Iterable[str]]) -> set[str]:
    """Returns some nodes and all that follow from them."""
    found, open_ = set(begin), list(begin)
    while open_:
        new = [name for name in readers(open_.pop()) if name not in found]
        found.update(new)
        open_ += new
    return found


def _chain(parents: Mapping[str, str], frame: str) -> list[str]:
    found = [frame]
    while found[-1]:
        found.append(parents[found[-1]])
    return found


def _is_of_handles(node: Any) -> bool:
    import tensorflow as tf  # noqa: PLC0415, as above

    handles = {one.as_datatype_enum for one in (tf.resource, tf.variant, tf.string)}
    return any(node.attr[name].type in handles for name in ("T", "dtype"))


def _bytes(dtype: int, shape: Any) -> int:
    """Returns the bytes of a tensor; unknown dimensions count as 1, handles as nothing."""
    import tensorflow as tf  # noqa: PLC0415, as above

    kind = tf.dtypes.as_dtype(dtype)
    if kind in (tf.resource, tf.variant, tf.string):
        return 0
    return int(math.prod(max(one.size, 1) for one in shape.dim)) * kind.size


if __name__ == "__main__":
    commandline.run(COMMAND, main)
