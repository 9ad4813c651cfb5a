"""This input: `pipeline.input_fn`, in memory, in windows, or from compressed shards; batches taken in several ways.

Options:
  taken: `for`, by a plain loop in Python; `arrays`, from `pipeline.StepIterator`; default: inside a `tf.function`;
  nothing: True for a dataset that always hands out the same batch, the least that TensorFlow takes for a step.
"""

from __future__ import annotations

import pathlib
from typing import Any

import numpy as np

from benchmarks import commands, inputs, sources
from benchmarks.feeds.feed import Setting
from benchmarks.rounds import Take, taking

PACKAGES = ("tensorflow",)
MODULES = ("tensorflow",)
AUGMENTS = "cifar10_tutorial: crop to 24x24, flip, brightness, contrast, standardise"
_WINDOWS = 8  # shuffle_bytes x this is the decoded split


def prepare(setting: Setting) -> None:
    """Converts the images to compressed shards if needed."""
    if not setting.options.get("compression"):
        return
    own, arrays = pathlib.Path(setting.own), pathlib.Path(setting.arrays)
    images, labels = (np.load(arrays / f"{name}.npy") for name in ("images", "labels"))
    source = own / "source"
    source.mkdir()
    rows = np.concatenate([labels[:, None].astype(np.uint8), images.transpose(0, 3, 1, 2).reshape(len(images), -1)], 1)
    for part, name in zip(np.array_split(rows, len(sources.CIFAR_FILES) - 1), sources.CIFAR_FILES, strict=False):
        part.tofile(source / name)
    rows[: len(rows) // 5].tofile(source / sources.CIFAR_FILES[-1])
    commands.convert("cifar10", source, own / "data", f"--compression={setting.options['compression']}")


def take(setting: Setting) -> Take:
    """Returns a Take of whole batches inside a `tf.function`."""
    data_dir = f"{setting.own}/data" if setting.options.get("compression") else setting.data_dir
    options = {}
    if setting.options.get("windows"):
        options["shuffle_bytes"] = inputs.decoded_bytes(data_dir) // _WINDOWS
    recipe = "cifar10_tutorial" if setting.augmented else "none"
    if "replicas" in setting.options:
        return _steps(data_dir, setting, recipe)
    if setting.options.get("taken") == "arrays":
        from pipeline import StepIterator  # noqa: PLC0415

        arrays = StepIterator(data_dir, global_batch_size=setting.rows, training=True, augment=recipe, **options)
        return taking(arrays, setting.rows)
    dataset = inputs.train_input(data_dir, setting.rows, augment=recipe, **options)
    if setting.options.get("nothing"):
        dataset = _repeated(dataset)
    if setting.options.get("taken") == "for":
        return taking(iter(dataset), setting.rows)
    return inputs.taking_together(dataset, setting.rows)


def _repeated(dataset: Any) -> Any:
    """Repeats the first element of a dataset without end, and without a prefetching thread."""
    tf = inputs.load_tensorflow()
    options = tf.data.Options()
    options.experimental_optimization.apply_default_optimizations, options.autotune.enabled = False, False
    return tf.data.Dataset.from_tensors(next(iter(dataset))).repeat().with_options(options)


def _steps(data_dir: str, setting: Setting, recipe: str) -> Take:
    """Returns a Take of steps: of `distribute` on the number of devices in the options, or of the plain dataset."""
    from benchmarks.distributed_iterator import looper  # noqa: PLC0415

    tf = inputs.load_tensorflow()
    rows, replicas = setting.rows, setting.options["replicas"]
    devices = [tf.config.LogicalDeviceConfiguration()] * max(replicas, 1)
    tf.config.set_logical_device_configuration(tf.config.list_physical_devices("CPU")[0], devices)
    from pipeline import distribute  # noqa: PLC0415

    if not replicas:
        plain = inputs.train_input(data_dir, rows, augment=recipe)
        return looper(tf, tf.distribute.get_strategy(), iter(plain), rows, inside=True)
    names = [f"CPU:{i}" for i in range(replicas)]
    strategy = tf.distribute.OneDeviceStrategy(names[0]) if replicas == 1 else tf.distribute.MirroredStrategy(names)
    batches = distribute(strategy, data_dir, global_batch_size=rows, training=True, augment=recipe)
    if setting.options.get("nothing"):
        batches = _repeated(batches)
    return looper(tf, strategy, iter(batches), rows, inside=True)
