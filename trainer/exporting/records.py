"""Real examples of the split, as stored and as the trained model judges them."""

from __future__ import annotations

import dataclasses
import itertools
from collections.abc import Iterator
from typing import Any

import numpy as np
import tensorflow as tf
from numpy.typing import NDArray

from pipeline.batch.compose import make_dataset
from pipeline.decode.images import ExampleParser
from trainer.step.state import Forward
from trainer.task.data_spec import gives_probabilities
from trainer.trained import Trained


def stored_images(trained: Trained, count: int) -> list[NDArray[np.uint8]]:
    """Returns the first images of the split, decoded and nothing else: uint8 (height, width, channels) each."""
    feature, parser = trained.split.manifest.features["image"], ExampleParser({})

    def parse(records: tf.Tensor) -> tuple[tf.Tensor, tf.Tensor]:
        image, label, _ = parser.parse(records)
        return image, label

    request = dataclasses.replace(trained.split.request, parse=parse, distort=None, resize=None)
    rows = _real_rows(make_dataset(request), lambda batch: batch[0], count)
    if feature.encoding == "raw":
        return [np.frombuffer(row, np.uint8).reshape(trained.split.manifest.image_shape) for row in rows]
    channels = feature.shape[2] or 3
    return [tf.io.decode_image(row, channels=channels, expand_animations=False).numpy() for row in rows]


def trained_probabilities(trained: Trained, count: int) -> NDArray[np.float32]:
    """Returns what the trained model gives for the first images of the split, by the input of its run."""
    model, is_done = trained.model, gives_probabilities(trained.model)

    @tf.function(autograph=False)
    def probabilities(features: Any) -> tf.Tensor:
        kinds = model.trainable_variables, model.non_trainable_variables
        trainable, fixed = ([tf.convert_to_tensor(v.value) for v in variables] for variables in kinds)
        forward = Forward(model, trainable, fixed, trained.state.eval_flip)
        outputs = forward(features)
        return outputs if is_done else tf.nn.softmax(outputs)

    rows = _real_rows(make_dataset(trained.split.request), lambda batch: probabilities(batch[0]), count)
    return np.stack(list(rows))


def _real_rows(batches: Any, values: Any, count: int) -> Iterator[Any]:
    """Yields the first rows of what `values` gives of the batches, without padding and skipped records."""

    def rows() -> Iterator[Any]:
        for batch in batches:
            yield from values(batch).numpy()[batch[-1].numpy() > 0]

    return itertools.islice(rows(), count)
