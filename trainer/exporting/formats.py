"""The formats for exporting a model, by name: how each is written, and how a program uses it (README.md)."""

from __future__ import annotations

import json
import logging
import pathlib
import re
import warnings
from collections.abc import Sequence
from typing import TYPE_CHECKING

from pipeline.errors import UsageError, line_of
from pipeline.lazily import keras, tf
from trainer.config.trained import FORMATS

if TYPE_CHECKING:
    from trainer.exporting.parsed import Parsed
    from trainer.exporting.served import Served

_OPSET = 17  # from 2022; most ONNX runtimes in use read it
_TOKEN = re.compile(r'"(?:[^"\\]|\\.)*"|[()]')  # tokens of MLIR


_SAID = """\
print(said["class_name"]{name}, said["probabilities"]{best}.max())
"""


@FORMATS.named(
    "saved_model",
    file="saved_model",
    installed="tensorflow pillow",
    imported="import tensorflow as tf",
    program='model = tf.saved_model.load("{file}")\nsaid = model.serve(pixels)\n'
    + _SAID.format(name=".numpy()[0].decode()", best=".numpy()"),
    any_size=True,
    holds_parser=True,
)
def _write_saved_model(served: Served | Parsed, path: pathlib.Path, batch: int) -> None:
    """Writes TensorFlow's SavedModel; `assets.extra/class_names.txt` in it has a name per line, for other programs."""
    del batch
    served.save(path)
    if not served.class_names:
        return
    extra = path / "assets.extra"  # where TensorFlow Serving expects files of other programs
    extra.mkdir()
    lines = [" ".join(name.splitlines()) for name in served.class_names]  # a line break in a name would shift the rest
    (extra / "class_names.txt").write_text("\n".join(lines) + "\n", encoding="utf-8")


@FORMATS.named(
    "keras",
    file="model.keras",
    installed="tensorflow pillow",
    imported="import keras",
    program='said = keras.saving.load_model("{file}").predict(pixels, verbose=0)\n'
    + _SAID.format(name="[0].decode()", best=""),
)
def _write_keras(served: Served, path: pathlib.Path, batch: int) -> None:
    """Writes Keras' own file; for our models, it only contains Keras' layers and operations."""
    del batch
    probabilities = served.core.output
    numbers = keras.ops.cast(keras.ops.argmax(probabilities, axis=-1), "int64")
    lookup = keras.layers.StringLookup(
        vocabulary=list(served.class_names), invert=True, num_oov_indices=0, mask_token=None, name="class_name"
    )
    outputs = {"probabilities": probabilities, "class": numbers, "class_name": lookup(numbers)}
    keras.Model(served.core.input, outputs).save(path)


@FORMATS.named(
    "onnx",
    file="model.onnx",
    installed="onnxruntime numpy pillow",
    imported="import onnxruntime",
    program='session = onnxruntime.InferenceSession("{file}")\n'
    "names = [output.name for output in session.get_outputs()]\n"
    'said = dict(zip(names, session.run(names, {{"images": pixels}})))\n' + _SAID.format(name="[0]", best=""),
    libraries=("tf2onnx", "onnxruntime"),
)
def _write_onnx(served: Served, path: pathlib.Path, batch: int) -> None:
    """Writes an ONNX file with tf2onnx; its metadata also contain the class names."""
    del batch
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        import onnx  # noqa: PLC0415, an extra that not everybody has installed
        import tf2onnx  # noqa: PLC0415

    logging.getLogger("tf2onnx").setLevel(logging.CRITICAL)
    function = tf.function(served.outputs, autograph=False)
    try:
        model, _ = tf2onnx.convert.from_function(function, input_signature=[served.spec(any_size=False)], opset=_OPSET)
    except Exception as error:
        raise UsageError(f"--format=onnx: tf2onnx cannot convert this model: {line_of(error)}") from None
    entry = model.metadata_props.add()
    entry.key, entry.value = "class_names", json.dumps(served.class_names)
    onnx.save(model, str(path))


@FORMATS.named(
    "stablehlo",
    file="model.stablehlo",
    installed="tensorflow pillow",
    imported="import tensorflow as tf\nfrom tensorflow.compiler.tf2xla.python import xla",
    program='program = open("{file}", "rb").read()\n'
    'names = json.load(open("export.json"))["class_names"]\n'
    "batch = tf.constant(np.repeat(pixels, {batch}, axis=0))  # its number of rows is fixed\n"
    "probabilities, classes = xla.call_module(\n"
    "    [batch],\n"
    "    version=xla.call_module_maximum_supported_version(),\n"
    "    module=program,\n"
    "    Sout=[({batch}, len(names)), ({batch},)],\n"
    "    Tout=[tf.float32, tf.int64],\n"
    '    platforms=["CPU"],\n'
    ")\n"
    "print(names[classes.numpy()[0]], probabilities.numpy()[0].max())\n",
    is_static=True,
)
def _write_stablehlo(served: Served, path: pathlib.Path, batch: int) -> None:
    """Writes a StableHLO program with the weights inside, as a portable artifact: for XLA, IREE, OpenXLA and JAX.

    It is main(uint8 images) -> (probabilities, class), with `batch` rows, since its shapes are static. It uses the
    oldest version of StableHLO that TensorFlow can write, so that older tools can read it.
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


def without_locations(program: str) -> str:
    """Returns the text of an MLIR program without `loc(...)`, which names files on the machine that produced it."""
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


README = "README.md"  # next to the files: their inputs and outputs, and for each a program to run in the folder
_PHOTO = "photo.png"  # input of the programs
_IMAGE = """\
{standard}import numpy as np
import PIL.Image{upright}
{imports}

image = {opened}.convert("{mode}"){resized}
pixels = np.asarray(image, np.uint8).reshape(1, image.height, image.width, {channels})
"""
_RESIZED = ".resize(({width}, {height}))  # or crop it, as your images need"


def readme_of(name: str, model: Served, formats: Sequence[str], batch: int, upright: bool = False) -> str:
    """Returns the content of README.md.

    Args:
      name: text with the model and its step.
      model: model that was exported.
      formats: formats of the files.
      batch: number of images per batch of a StableHLO program.
      upright: whether photographs must be turned upright by their EXIF data, as in training.
    """
    opened = f'PIL.Image.open("{_PHOTO}")'
    height, width, channels = model.core_shape
    lines = [
        f"# {name}",
        "",
        f"Each file takes raw uint8 images of {height}x{width}x{channels}, and gives `probabilities`, `class` and, but "
        "for StableHLO, `class_name`. The preprocessing of the training is inside. `export.json` has the class names, "
        "and how far each file is from the trained model.",
    ]
    for kind in formats:
        known = FORMATS[kind]
        takes_any = known.any_size and model.fitting is not None
        head = _IMAGE.format(
            standard="import json\n\n" if "json." in known.program else "",
            imports=known.imported,
            upright="\nimport PIL.ImageOps" if upright else "",
            opened=f"PIL.ImageOps.exif_transpose({opened})" if upright else opened,
            mode="L" if channels == 1 else "RGB",
            resized="" if takes_any else _RESIZED.format(width=width, height=height),
            channels=channels,
        )
        lines += [
            "",
            f"## {known.file}",
            "",
            *(
                ["It takes images of any size, and cuts or stretches them as the training did.", ""]
                if takes_any
                else []
            ),
            f"`pip install {known.installed}`, then in this folder, with a `{_PHOTO}`:",
            "",
            "```python",
            f"{head}{known.program.format(file=known.file, batch=batch)}```",
        ]
    return "\n".join(lines) + "\n"
