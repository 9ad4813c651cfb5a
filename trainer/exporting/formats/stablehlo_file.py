"""A StableHLO program with the weights inside, as a portable artifact: for XLA, IREE, OpenXLA's tools and JAX."""

from __future__ import annotations

import pathlib
import re

import tensorflow as tf

from trainer.exporting.served import Served

FILE = "model.stablehlo"
ANY_SIZE = False


def write(served: Served, path: pathlib.Path, batch: int) -> None:
    """Writes the file: main(uint8 images) -> (probabilities, class), of `batch` rows, since its shapes are static.

    It is of the oldest version of StableHLO that has all its operations known to TensorFlow, so that older tools read
    it, too.
    """
    from tensorflow.compiler.mlir.stablehlo import stablehlo  # noqa: PLC0415, which only this needs

    core = served.core
    values = [[v.numpy() for v in variables] for variables in (core.trainable_variables, core.non_trainable_variables)]

    def main(images: tf.Tensor) -> tuple[tf.Tensor, tf.Tensor]:
        probabilities, _ = core.stateless_call(*values, images, training=False)
        return probabilities, tf.argmax(probabilities, axis=-1)

    compiled = tf.function(main, autograph=False, jit_compile=True)
    program = compiled.experimental_get_compiler_ir(served.spec(any_size=False, rows=batch))(stage="stablehlo")
    text = without_locations(program)
    path.write_bytes(stablehlo.serialize_portable_artifact_str(text, stablehlo.get_minimum_version()))


_TOKEN = re.compile(r'"(?:[^"\\]|\\.)*"|[()]')


def without_locations(program: str) -> str:
    """Returns MLIR as text without `loc(...)`: these name the files of the machine on which it was made."""
    lines = [line for line in program.splitlines() if not line.startswith("#loc")]
    return "\n".join(map(_without_location, lines)) + "\n"


def _without_location(line: str) -> str:
    kept, end = [], 0
    while (begin := line.find(" loc(", end)) >= 0:
        kept.append(line[end:begin])
        depth = 0
        for token in _TOKEN.finditer(line, begin):
            depth += {"(": 1, ")": -1}.get(token[0], 0)
            if depth == 0 and token[0] == ")":
                end = token.end()
                break
        else:
            break
    return "".join([*kept, line[end:]])
