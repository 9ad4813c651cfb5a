"""The README.md beside exported files: what they take and give, and for each a program that runs in their folder."""

from __future__ import annotations

from collections.abc import Sequence

from trainer.exporting.formats import FORMATS
from trainer.exporting.served import Served

FILE = "README.md"
PHOTO = "photo.png"  # what the programs look at
_IMAGE = """\
{standard}import numpy as np
import PIL.Image
{imports}

image = PIL.Image.open("{photo}").convert("{mode}"){resized}
pixels = np.asarray(image, np.uint8).reshape(1, image.height, image.width, {channels})
"""
_RESIZED = ".resize(({width}, {height}))  # or cut it, as your images need it"
_SAID = """\
print(said["class_name"]{name}, said["probabilities"]{best}.max())
"""
# By format: what to install, what to import, and what to do with the pixels.
_PROGRAMS = {
    "saved_model": (
        "tensorflow pillow",
        "import tensorflow as tf",
        'model = tf.saved_model.load("{file}")\nsaid = model.serve(pixels)\n'
        + _SAID.format(name=".numpy()[0].decode()", best=".numpy()"),
    ),
    "keras": (
        "tensorflow pillow",
        "import keras",
        'said = keras.saving.load_model("{file}").predict(pixels, verbose=0)\n'
        + _SAID.format(name="[0].decode()", best=""),
    ),
    "onnx": (
        "onnxruntime numpy pillow",
        "import onnxruntime",
        'session = onnxruntime.InferenceSession("{file}")\n'
        "names = [output.name for output in session.get_outputs()]\n"
        'said = dict(zip(names, session.run(names, {{"images": pixels}})))\n' + _SAID.format(name="[0]", best=""),
    ),
    "stablehlo": (
        "tensorflow pillow",
        "import tensorflow as tf\nfrom tensorflow.compiler.tf2xla.python import xla",
        'program = open("{file}", "rb").read()\n'
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
    ),
}


def text(name: str, model: Served, formats: Sequence[str], batch: int) -> str:
    """Returns the content of the file.

    Args:
      name: of the model and its step.
      model: that was exported.
      formats: of the files.
      batch: images that a StableHLO program takes.
    """
    height, width, channels = model.core_shape
    lines = [
        f"# {name}",
        "",
        f"Each file takes raw uint8 images of {height}x{width}x{channels}, and gives `probabilities`, `class` and, but "
        "for StableHLO, `class_name`. The preprocessing of the training is inside. `export.json` has the class names, "
        "and how far each file is from the trained model.",
    ]
    for kind in formats:
        packages, imports, program = _PROGRAMS[kind]
        takes_any = FORMATS[kind].any_size and model.fitting is not None
        head = _IMAGE.format(
            standard="import json\n\n" if kind == "stablehlo" else "",
            imports=imports,
            photo=PHOTO,
            mode="L" if channels == 1 else "RGB",
            resized="" if takes_any else _RESIZED.format(width=width, height=height),
            channels=channels,
        )
        file = FORMATS[kind].file
        lines += [
            "",
            f"## {file}",
            "",
            *(
                ["It takes images of any size, and cuts or stretches them as the training did.", ""]
                if takes_any
                else []
            ),
            f"`pip install {packages}`, then in this folder, with a `{PHOTO}`:",
            "",
            "```python",
            f"{head}{program.format(file=file, batch=batch)}```",
        ]
    return "\n".join(lines) + "\n"
