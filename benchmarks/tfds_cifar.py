"""CIFAR-10's binary files through TensorFlow Datasets' own `download_and_prepare`, to compare conversion with.

    python -m benchmarks.tfds_cifar --source=DIR --data_dir=DIR --count=5000 [--beam] [--raw]

Prints the seconds that --count examples take in addition to 20, after a first call that imports everything, so start-up
is not included. Examples are as in TFDS's `cifar10` (image as PNG, label, id); with --raw the image is a plain tensor,
as in our raw shards.
"""

from __future__ import annotations

import argparse
import pathlib
import time
from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np

from pipeline.commands import quiet

_FEW = 20
_RECORD = 1 + 3072  # bytes: a label, then 1,024 red, 1,024 green and 1,024 blue


def main(argv: Sequence[str] | None = None) -> None:
    """Runs one preparation."""
    parser = argparse.ArgumentParser(description="Prepare CIFAR-10 with TFDS.")
    parser.add_argument("--source", type=pathlib.Path, required=True)
    parser.add_argument("--data_dir", required=True)
    parser.add_argument("--count", type=int, required=True)
    parser.add_argument("--beam", action="store_true")
    parser.add_argument("--raw", action="store_true")
    arguments = parser.parse_args(argv)
    counts = {"first": _FEW, "few": _FEW, "all": arguments.count + _FEW}
    seconds = {
        name: prepare(arguments.source, f"{arguments.data_dir}/{name}", count, arguments.beam, arguments.raw)
        for name, count in counts.items()
    }
    print(seconds["all"] - seconds["few"])


def prepare(source: pathlib.Path, data_dir: str, count: int, beam: bool, raw: bool) -> float:
    """Writes `count` examples of the files in `source`; returns the seconds of `download_and_prepare`."""
    with quiet.loading():
        import tensorflow_datasets as tfds  # noqa: PLC0415 (seconds to import)

    with tfds.core.registered.skip_registration():  # the class is created more than once
        builder = _builder(tfds, source, count, beam, raw)(data_dir=data_dir)
    config = tfds.download.DownloadConfig(beam_runner="FnApiRunner", verify_ssl=False) if beam else None
    began = time.perf_counter()
    builder.download_and_prepare(download_config=config)
    seconds = time.perf_counter() - began
    if builder.info.splits["train"].num_examples != count:
        raise RuntimeError(f"TFDS wrote {builder.info.splits['train'].num_examples} examples, not {count}")
    return seconds


def examples(source: pathlib.Path, rows: range) -> Iterator[tuple[str, dict[str, Any]]]:
    """Yields (key, example) for rows of the files, concatenated."""
    for number, path in enumerate(sorted(source.glob("*.bin"))):
        first, size = number * (path.stat().st_size // _RECORD), path.stat().st_size // _RECORD
        own = range(max(rows.start, first) - first, min(rows.stop, first + size) - first)
        with path.open("rb") as file:
            file.seek(max(own.start, 0) * _RECORD)
            for row in own:
                record = np.frombuffer(file.read(_RECORD), np.uint8)
                image = record[1:].reshape(3, 32, 32).transpose(1, 2, 0)
                key = f"train_{first + row:06d}"
                yield key, {"id": key, "image": image, "label": int(record[0])}


def _builder(tfds: Any, source: pathlib.Path, count: int, beam: bool, raw: bool) -> type:
    class BenchmarkCifar(tfds.core.GeneratorBasedBuilder):  # type: ignore[name-defined, misc]
        """CIFAR-10 as yielded by TFDS's own builder."""

        VERSION = tfds.core.Version("1.0.0")

        def _info(self) -> Any:
            shape = (32, 32, 3)
            image = tfds.features.Tensor(shape=shape, dtype=np.uint8) if raw else tfds.features.Image(shape=shape)
            features = {"id": tfds.features.Text(), "image": image, "label": tfds.features.ClassLabel(num_classes=10)}
            return tfds.core.DatasetInfo(builder=self, features=tfds.features.FeaturesDict(features))

        def _split_generators(self, _: Any) -> dict[str, Any]:
            return {"train": self._generate_examples()}

        def _generate_examples(self) -> Any:
            if not beam:
                return examples(source, range(count))
            import apache_beam  # noqa: PLC0415

            parts = [range(start, min(start + 1000, count)) for start in range(0, count, 1000)]
            return apache_beam.Create(parts) | apache_beam.FlatMap(lambda rows: examples(source, rows))

    return BenchmarkCifar


if __name__ == "__main__":
    main()
