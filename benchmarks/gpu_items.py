"""The parts of `benchmarks.gpu_report`, each measured in a process of its own: `benchmarks.gpu_items NAME SETTINGS`.

Each result is printed as JSON as soon as it is known, so that an item that is cut off leaves some results. The top of
this module loads only the standard library, since the interpreter with PyTorch may lack the project's packages.
"""

from __future__ import annotations

import collections
import contextlib
import dataclasses
import hashlib
import heapq
import json
import os
import pathlib
import shutil
import sys
import tempfile
import time
import traceback
from collections.abc import Callable, Iterator, Mapping
from typing import Any, NamedTuple

Advance = Callable[[int], None]
"""Runs so many steps, and returns when the device has done them."""

RESULT = "RESULT "  # prefix of a result line
TINY = "benchmarks.gpu_items:tiny"
_ROUNDS, _SECONDS = 5, 1.2  # maximum number of rounds; length of a contestant's turn
_TO_BEGIN, _TO_MEASURE = 15.0, 4.0  # seconds that must be left to make a contestant, or to measure it again
_PROFILED_STEPS, _LONGEST = 5, 15  # number of steps in a profile, and of kernels to list
_LOOP = 20  # steps of an inner loop


@dataclasses.dataclass(frozen=True)
class Item:
    """One part of the report.

    Attributes:
      seconds: maximum number of seconds that it may take.
      kind: measurement: train, torch, bits or input.
      model: name of a model of `trainer.run`.
      data: data set: `cifar` or `photos`.
      rows: number of rows in a global batch.
      precision: precision of the model: float32 or bfloat16.
      steps: number of updates in a contestant's call.
      contestants: contestant names, most important first; see `benchmarks.gpu_report`.
      is_profiled: whether kernels are also counted.
      is_deterministic: whether op determinism is on and XLA uses only reproducible algorithms.
    """

    seconds: int
    kind: str
    model: str = "cifar10_cnn"
    data: str = "cifar"
    rows: int = 128
    precision: str = "float32"
    steps: int = 20
    contestants: tuple[str, ...] = ()
    is_profiled: bool = False
    is_deterministic: bool = False


_OURS = ("ours", "keras jit", "ours input", "keras", "ours nojit", "ours loop=1", "ours loop=100")
_SMALL = ("ours", "keras fit", *_OURS[1:], "ours input host", "ours input prefetch=0")
_VIRTUAL = ("ours", "ours V=4", "ours input")
_BITS = ("default", "V=4", "jit", "nojit", "V=4 mirrored", "V=4 jit", "V=4 nojit")
ITEMS: dict[str, Item] = {  # by importance; XLA takes 77 s to compile resnet50, 33 s for fast_cifar
    "resnet50": Item(220, "train", "resnet50", "photos", 128, "bfloat16", 10, _OURS, is_profiled=True),
    "torch": Item(60, "torch", contestants=("torch", "torch compile", "torch rows=32", "torch rows=256")),
    "fast_cifar": Item(150, "train", "fast_cifar", "cifar", 512, "bfloat16", 100, _SMALL),
    "cifar10_cnn": Item(90, "train", steps=200, contestants=_SMALL),
    "cifar10_cnn V=4": Item(60, "train", steps=200, contestants=_VIRTUAL, is_deterministic=True),
    "resnet50 V=4": Item(180, "train", "resnet50", "photos", 128, "bfloat16", 10, _VIRTUAL, is_deterministic=True),
    "bits 1": Item(45, "bits", steps=40, contestants=_BITS, is_deterministic=True),
    "bits 2": Item(45, "bits", steps=40, contestants=_BITS, is_deterministic=True),
    "bits jit 1": Item(18, "bits", steps=40, contestants=("nojit", "jit")),
    "bits jit 2": Item(18, "bits", steps=40, contestants=("nojit", "jit")),
    "input": Item(27, "input", contestants=("host", "uint8 for the device", "photos, crops of 224")),
}
_SMOKE = Item(900, "", TINY, "cifar", 8, steps=2)
_FLAGS = {  # flags by words in contestant names
    "jit": "--jit_compile",
    "nojit": "--nojit_compile",
    "V=4": "--virtual_replicas=4",
    "host": "--augment_on=host",
    "prefetch=0": "--prefetch=0",
    "mirrored": "--strategy=mirrored",
}


class Settings(NamedTuple):
    """The settings of an item.

    Attributes:
      limit: seconds available.
      smoke: whether to measure next to nothing, with a tiny model, just to check that everything runs.
      cifar, photos: folders of the data sets.
      traces: prefix of the profile files' names, for TensorBoard.
    """

    limit: float
    smoke: bool
    cifar: str
    photos: str
    traces: str


def tiny(image_shape: tuple[int, ...], num_classes: int) -> Any:
    """Returns a small model with a convolution, a normalisation and overlapping windows of max pooling."""
    import keras  # noqa: PLC0415

    from trainer.models import layers  # noqa: PLC0415

    norm, pooling = (
        getattr(layers, name, getattr(keras.layers, name)) for name in ("BatchNormalization", "MaxPooling2D")
    )
    return keras.Sequential(
        [
            keras.Input(image_shape),
            keras.layers.Rescaling(1 / 255),
            keras.layers.Conv2D(4, 3, strides=2, use_bias=False),
            norm(),
            keras.layers.ReLU(),
            pooling(3, strides=2, padding="same"),
            keras.layers.GlobalAveragePooling2D(),
            keras.layers.Dense(num_classes, dtype="float32"),
        ]
    )


def emit(kind: str, **values: Any) -> None:
    """Prints a result."""
    print(RESULT + json.dumps({"kind": kind, **values}), flush=True)


class Turns:
    """Contestants of an item, created one after the other and then measured in turn.

    If a contestant fails, the others continue; none begins once the time is nearly over.
    """

    def __init__(self, item: Item, settings: Settings) -> None:
        self.item, self.smoke = item, settings.smoke
        self._end = time.monotonic() + settings.limit
        self._ready: dict[str, Advance] = {}

    def is_over(self, needed: float) -> bool:
        """Returns whether less than the needed seconds are left."""
        return not self.smoke and time.monotonic() > self._end - needed

    @contextlib.contextmanager
    def attempt(self, name: str, needed: float = _TO_BEGIN) -> Iterator[bool]:
        """Context of creating a contestant; yields whether there is enough time, and reports its error."""
        has_time = not self.is_over(needed) or not (self._ready or needed < _TO_BEGIN)
        if not has_time:
            emit("skipped", name=name, why="no time left")
        try:
            yield has_time
        except Exception as error:
            emit("failed", name=name, why=f"{type(error).__name__}: {' '.join(str(error).split())[:300]}")
            traceback.print_exc()

    def run(self, make: Callable[[str], Advance], then: Callable[[str, Advance], None] | None = None) -> None:
        """Measures all contestants.

        Args:
          make: function that makes the contestant with a given name.
          then: function that is called with a contestant's name and function after its first round.
        """
        for name in self.item.contestants:
            with self.attempt(name) as has_time:
                if has_time:
                    began = time.perf_counter()
                    advance = make(name)
                    advance(1)
                    emit("made", name=name, seconds=time.perf_counter() - began)
                    advance(2)
                    self._measure(name, advance, 0)
                    self._ready[name] = advance
                    if then:
                        then(name, advance)
        for number in range(1, 2 if self.smoke else _ROUNDS):
            for name, advance in self._ready.items():
                if self.is_over(_TO_MEASURE):
                    return
                self._measure(name, advance, number)

    def _measure(self, name: str, advance: Advance, number: int) -> None:
        done, timer = 0, Timer(0.05 if self.smoke else _SECONDS)
        while timer.goes_on():
            advance(self.item.steps)
            done += self.item.steps
        found = timer.found()
        rows = next((int(word.removeprefix("rows=")) for word in name.split() if "rows=" in word), self.item.rows)
        emit(
            "round",
            name=name,
            round=number,
            rate=rows * done / found["seconds"],
            ms=1e3 * found["seconds"] / done,
            **found,
        )


class Timer:
    """Times a contestant's turn: wall seconds, busy cores, start and end."""

    def __init__(self, seconds: float) -> None:
        self._seconds, self._at = seconds, time.time()
        self._cpu, self._began = sum(os.times()[:2]), time.perf_counter()

    def goes_on(self) -> bool:
        """Returns whether the turn is still running."""
        return time.perf_counter() - self._began < self._seconds

    def found(self) -> dict[str, float]:
        """Returns the turn's figures so far."""
        seconds = time.perf_counter() - self._began
        return {
            "seconds": seconds,
            "cores": (sum(os.times()[:2]) - self._cpu) / seconds,
            "began": self._at,
            "ended": time.time(),
        }


class Trainer:
    """Makes TensorFlow contestants: the trainer's step, and the same model in plain Keras."""

    def __init__(self, item: Item, settings: Settings) -> None:
        os.environ.setdefault("TF_FORCE_GPU_ALLOW_GROWTH", "true")
        from benchmarks import inputs  # noqa: PLC0415, after the variable

        self.tf = inputs.load_tensorflow()
        if item.is_deterministic:
            self._make_deterministic()
        smoke = ["--augment=flip", "--optimizer=nesterov"] if settings.smoke and item.kind != "input" else []
        self.flags = [f"--data_dir={getattr(settings, item.data)}", f"--model={item.model}", *smoke]
        self.flags += [f"--global_batch_size={item.rows}", f"--precision={item.precision}", "--ema=0"]
        self._made: dict[tuple[str, ...], Any] = {}
        self._batches: dict[tuple[int, ...], Any] = {}

    def _make_deterministic(self) -> None:
        """Does the same as `trainer.run --deterministic`."""
        import keras  # noqa: PLC0415

        from trainer.cluster import algorithms  # noqa: PLC0415
        from trainer.run_folder import RunFolder  # noqa: PLC0415

        keras.utils.set_random_seed(0)
        self.tf.config.experimental.enable_op_determinism()
        if self.tf.config.list_physical_devices("GPU"):
            folder = pathlib.Path(tempfile.mkdtemp(prefix="algorithms-"))
            algorithms.pin(RunFolder(folder), is_chief=False)

    def made(self, *more: str) -> Any:
        """Returns the parts of a run with further flags, like `benchmarks.loops.make`."""
        from benchmarks import loops  # noqa: PLC0415

        if more not in self._made:
            self._made[more] = loops.make([*self.flags, *more])
        return self._made[more]

    def batches(self, made: Any) -> Iterator[Any]:
        """Returns an iterator of a run's batches."""
        from pipeline.distribution import distribute_request  # noqa: PLC0415

        order = made.config.order
        return iter(
            distribute_request(made.strategy, made.plan.training.request, order.prefetch, order.virtual_replicas)
        )

    def constant(self, made: Any) -> Any:
        """Returns one batch on the device, the same for all contestants with this batch shape."""
        virtual = made.config.order.virtual_replicas
        if virtual not in self._batches:
            self._batches[virtual] = next(self.batches(made))
        return self._batches[virtual]

    def contestant(self, name: str) -> Advance:
        """Returns the contestant with a given name."""
        kind, *words = name.split()
        if kind == "keras":
            return self._fit() if "fit" in words else self._keras("jit" in words)
        made = self.made(*(_FLAGS[word] for word in words if word in _FLAGS))
        loop = next((int(word.removeprefix("loop=")) for word in words if "loop=" in word), _LOOP)
        run = self._run(made) if "input" in words else self._repeat(made)

        def advance(steps: int) -> None:
            for done in range(0, steps, loop):
                before, wanted = made.stepper.state.step, min(loop, steps - done)
                if (found := run(wanted) - before) != wanted:
                    raise RuntimeError(f"{found} of {wanted} steps: a loss or weight is not finite")

        return advance

    def _run(self, made: Any) -> Callable[[int], int]:
        source = self.batches(made)
        return lambda steps: int(made.stepper.run(source, steps).step)

    def _repeat(self, made: Any) -> Callable[[int], int]:
        batch = self.constant(made)
        return lambda steps: int(made.stepper.repeat(batch, self.tf.constant(steps, self.tf.int64)))

    def _model(self) -> tuple[Any, Any]:
        """Returns a plain Keras user's model, with Keras' own layers, and optimizer."""
        import keras  # noqa: PLC0415

        from trainer import models  # noqa: PLC0415
        from trainer.step import optimizers  # noqa: PLC0415

        made = self.made()
        config, spec = made.config, made.stepper.state.task.data

        def own(layer: Any) -> Any:
            kinds = (keras.layers.BatchNormalization, keras.layers.MaxPooling2D)
            kind = next((kind for kind in kinds if isinstance(layer, kind)), type(layer))
            return kind.from_config(layer.get_config())

        built = models.build(config.model, spec.features, len(spec.class_names))
        optimizer = optimizers.create(config.optimizer, config.model.precision)
        optimizer.learning_rate = min(config.optimizer.learning_rate, 0.01)
        return keras.models.clone_model(built, clone_function=own), optimizer

    def _keras(self, compiled: bool) -> Advance:
        """Returns the simplest step: one `tf.function` in a Python loop."""
        tf, (model, optimizer) = self.tf, self._model()
        images, labels, _ = self.constant(self.made())
        optimizer.build(model.trainable_variables)

        @tf.function(autograph=False, jit_compile=compiled)
        def train(images: Any, labels: Any) -> Any:
            with tf.GradientTape() as tape:
                logits = tf.cast(model(images, training=True), tf.float32)
                loss = tf.reduce_mean(tf.nn.sparse_softmax_cross_entropy_with_logits(labels, logits))
                loss = loss + tf.add_n([tf.constant(0.0), *model.losses])
            gradients = tape.gradient(loss, model.trainable_variables)
            optimizer.apply_gradients(zip(gradients, model.trainable_variables, strict=True))
            return loss

        def advance(steps: int) -> None:
            for _ in range(steps):
                loss = train(images, labels)
            float(loss)

        return advance

    def _fit(self) -> Advance:
        """Returns Keras' `fit` with its defaults, which compile by XLA on one GPU."""
        import keras  # noqa: PLC0415

        model, optimizer = self._model()
        model.compile(optimizer, keras.losses.SparseCategoricalCrossentropy(from_logits=True))
        dataset = self.tf.data.Dataset.from_tensors(self.constant(self.made())[:2]).repeat()
        return lambda steps: model.fit(dataset, steps_per_epoch=steps, epochs=1, verbose=0) and None


def train(item: Item, settings: Settings) -> None:
    """Measures training steps."""
    made = Trainer(item, settings)
    gpus = made.tf.config.list_physical_devices("GPU")
    names = [str(made.tf.config.experimental.get_device_details(gpu).get("device_name")) for gpu in gpus]
    emit("machine", tensorflow=made.tf.__version__, gpus=names)

    def profile(name: str, advance: Advance) -> None:
        if item.is_profiled and name in ("ours", "ours nojit", "keras jit"):
            emit("profile", name=name, **profiled(made.tf, advance, f"{settings.traces}.{name.replace(' ', '_')}"))

    Turns(item, settings).run(made.contestant, profile)


def profiled(tf: Any, advance: Advance, begin: str) -> dict[str, Any]:
    """Returns the kernels per step, the share of time in which one ran, and the most expensive ones.

    Args:
      tf: TensorFlow.
      advance: contestant to profile.
      begin: path of the profile, without `.xplane.pb`.
    """
    from tensorflow.tsl.profiler.protobuf import xplane_pb2  # noqa: PLC0415

    with tempfile.TemporaryDirectory() as folder:
        tf.profiler.experimental.start(folder)
        began = time.perf_counter()
        advance(_PROFILED_STEPS)
        wall = time.perf_counter() - began
        tf.profiler.experimental.stop()
        trace = next(pathlib.Path(folder).rglob("*.xplane.pb"))
        shutil.copy(trace, f"{begin}.xplane.pb")
        space = xplane_pb2.XSpace.FromString(trace.read_bytes())
    planes = [plane for plane in space.planes if plane.name.startswith("/device:GPU")]
    by_name: dict[str, float] = collections.defaultdict(float)
    spans, copied = list[tuple[float, float]](), 0.0
    for name, start, seconds in _kernels(planes or [one for one in space.planes if one.name == "/host:CPU"]):
        if "Memcpy" in name or "Memset" in name:
            copied += seconds
        else:
            by_name[name.split("<")[0][:60]] += seconds
            spans.append((start, start + seconds))
    busy, longest = _covered(spans), heapq.nlargest(_LONGEST, by_name, key=by_name.__getitem__)
    return {
        "kernels_per_step": len(spans) / _PROFILED_STEPS,
        "busy": busy / wall,
        "kernel_ms_per_step": 1e3 * busy / _PROFILED_STEPS,
        "copies_ms_per_step": 1e3 * copied / _PROFILED_STEPS,
        "wall_ms_per_step": 1e3 * wall / _PROFILED_STEPS,
        "top_ms_per_step": [[name, 1e3 * by_name[name] / _PROFILED_STEPS] for name in longest],
    }


def _kernels(planes: list[Any]) -> Iterator[tuple[str, float, float]]:
    """Yields name, start and seconds of everything that ran on the devices of a trace."""
    for plane in planes:
        for line in plane.lines:
            if plane.name.startswith("/device:GPU") and not line.name.startswith("Stream"):
                continue  # lines derived from the streams
            for event in line.events:
                name = plane.event_metadata[event.metadata_id].name
                yield name, line.timestamp_ns / 1e9 + event.offset_ps / 1e12, event.duration_ps / 1e12


def _covered(spans: list[tuple[float, float]]) -> float:
    """Returns the seconds covered by at least one of the spans."""
    covered, end = 0.0, float("-inf")
    for start, stop in sorted(spans):
        covered += max(0.0, stop - max(start, end))
        end = max(end, stop)
    return covered


def torch(item: Item, settings: Settings) -> None:
    """Measures torchvision's resnet50, channels_last and in bfloat16, as a yardstick.

    Batches of 32 are the best case for four virtual replicas of 128 rows: the same rows in smaller passes.
    """
    try:
        import torch  # noqa: PLC0415
        import torchvision  # noqa: PLC0415
    except ImportError as error:
        emit("skipped", name="torch", why=str(error))
        return
    device = "cuda" if torch.cuda.is_available() else "cpu"
    torch.backends.cudnn.benchmark = True
    gpus = [torch.cuda.get_device_name(0)] if device == "cuda" else []
    emit("machine", torch=torch.__version__, gpus=gpus)

    def make(name: str) -> Advance:
        words = dict(word.split("=") for word in name.split() if "=" in word)
        rows, side = (4, 64) if settings.smoke else (int(words.get("rows", item.rows)), 224)
        images = torch.rand(rows, 3, side, side, device=device).to(memory_format=torch.channels_last)
        labels = torch.randint(0, 10, (rows,), device=device)
        model = torchvision.models.resnet50(num_classes=10).to(device).to(memory_format=torch.channels_last)
        optimizer = torch.optim.SGD(model.parameters(), 0.01, momentum=0.9, nesterov=True, weight_decay=1e-4)
        loss_of = torch.nn.CrossEntropyLoss(label_smoothing=0.1)
        called = torch.compile(model) if "compile" in name else model

        def advance(steps: int) -> None:
            for _ in range(steps):
                with torch.autocast(device, torch.bfloat16):
                    loss = loss_of(called(images), labels)
                optimizer.zero_grad(set_to_none=True)
                loss.backward()
                optimizer.step()
            loss.item()

        return advance

    Turns(item, settings).run(make)


def bits(item: Item, settings: Settings) -> None:
    """Computes the SHA-256 of all weights after some steps, for comparing two processes."""
    made = Trainer(item, settings)
    turns = Turns(item, settings)
    for name in item.contestants:
        with turns.attempt(name, _TO_MEASURE) as has_time:
            if has_time:
                begun = time.perf_counter()
                run = made.made(*(_FLAGS[word] for word in name.split() if word in _FLAGS))
                source, stepper = made.batches(run), run.stepper
                stepper.run(source, 1)
                compiled, timer = time.perf_counter() - begun, Timer(0)
                int(stepper.run(source, item.steps).step)
                found = timer.found()
                weights = [one.numpy().tobytes() for one in stepper.state.model.variables if "seed" not in one.name]
                digest = hashlib.sha256(b"".join(weights)).hexdigest()
                rate = item.rows * item.steps / found["seconds"]
                emit("bits", name=name, sha256=digest, rate=rate, compiled=compiled, **found)


def input(item: Item, settings: Settings) -> None:
    """Measures the rows per second that reach device memory, without a step."""
    turns = Turns(item, settings)
    cifar = "--augment=pad_crop_flip(pad=4) | cutout(size=8)"
    crops = "--augment=random_resized_crop" + ("(size=32)" if settings.smoke else "")
    runs = {
        "host": (512, "cifar", [cifar]),
        "uint8 for the device": (512, "cifar", [cifar, "--augment_on=device"]),
        "photos, crops of 224": (256, "photos", [crops]),
    }
    for name in item.contestants:
        with turns.attempt(name, _TO_MEASURE + _SECONDS) as has_time:
            if has_time:
                rows, data, flags = runs[name]
                model = TINY if settings.smoke else {"cifar": "lenet", "photos": "resnet18"}[data]
                rows = item.rows if settings.smoke else rows
                _take(dataclasses.replace(item, model=model, data=data, rows=rows), settings, name, flags)


def _take(item: Item, settings: Settings, name: str, flags: list[str]) -> None:
    """Takes batches for a while."""
    trainer = Trainer(item, settings)
    tf, source, count = trainer.tf, trainer.batches(trainer.made(*flags)), 2 if settings.smoke else 10

    @tf.function(autograph=False)
    def take() -> Any:
        return tf.add_n([tf.reduce_sum(next(source)[-1]) for _ in range(count)])

    float(take())
    done, timer = 0, Timer(0.1 if settings.smoke else 2 * _SECONDS)
    while timer.goes_on():
        float(take())
        done += count * item.rows
    found = timer.found()
    emit("input", name=name, rate=done / found["seconds"], **found)


_MEASURES: Mapping[str, Callable[[Item, Settings], None]] = {
    "train": train,
    "torch": torch,
    "bits": bits,
    "input": input,
}


def main(name: str, settings: Settings) -> None:
    """Measures one item."""
    item = ITEMS[name]
    if settings.smoke:
        item = dataclasses.replace(
            _SMOKE,
            kind=item.kind,
            contestants=item.contestants,
            is_profiled=item.is_profiled,
            is_deterministic=item.is_deterministic,
        )
    _MEASURES[item.kind](item, settings)


if __name__ == "__main__":
    main(sys.argv[1], Settings(**json.loads(sys.argv[2])))
