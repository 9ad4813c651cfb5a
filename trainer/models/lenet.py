"""LeNet-5 (LeCun et al. 1998, "Gradient-based learning applied to document recognition"), with ReLU and max pooling.

On 28x28x1 it has the 61,706 parameters of the usual count (full connections to the third layer).
"""

from __future__ import annotations

import keras

from trainer.models.layers import ScalePixels


def build(image_shape: tuple[int, int, int], image_dtype: str, num_classes: int) -> keras.Model:
    """Returns the network.

    Raises:
      ValueError: the images are smaller than 12 pixels on a side.
    """
    if min(image_shape[:2]) < 12:
        raise ValueError("it needs 12 pixels or more on each side")
    return keras.Sequential(
        [
            keras.Input(image_shape, dtype=image_dtype),
            ScalePixels(),
            keras.layers.Conv2D(6, 5, padding="same", activation="relu"),
            keras.layers.MaxPooling2D(),
            keras.layers.Conv2D(16, 5, activation="relu"),
            keras.layers.MaxPooling2D(),
            keras.layers.Flatten(),
            keras.layers.Dense(120, "relu"),
            keras.layers.Dense(84, "relu"),
            keras.layers.Dense(num_classes),
        ],
        name="lenet",
    )
