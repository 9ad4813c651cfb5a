"""TensorFlow's SavedModel; what brings images of any size to that of the model is inside."""

from __future__ import annotations

import pathlib

import keras

from trainer.exporting.served import Served

FILE = "saved_model"
ANY_SIZE = True


def write(served: Served, path: pathlib.Path, batch: int) -> None:
    """Writes the folder; `assets.extra/class_names.txt` in it has a name per line, for other programs."""
    del batch
    fitting = served.fitting
    archive = keras.export.ExportArchive()
    archive.track(served.core)
    serve = (lambda images: served.outputs(fitting.fit(images))) if fitting else served.outputs
    archive.add_endpoint("serve", serve, input_signature=[served.spec(any_size=True)])
    archive.write_out(str(path), verbose=False)
    extra = path / "assets.extra"  # where TensorFlow Serving expects what is not its own
    extra.mkdir()
    (extra / "class_names.txt").write_text("\n".join(served.class_names) + "\n", encoding="utf-8")
