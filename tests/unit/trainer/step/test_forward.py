"""The model's outputs for images and their mirror images."""

import keras
import numpy as np
import tensorflow as tf

from trainer.step.forward import Forward

IMAGES = np.random.default_rng(0).random((2, 4, 5, 3)).astype(np.float32)
WEIGHTS = np.random.default_rng(1).random((60, 3)).astype(np.float32)


def outputs(training, eval_flip):
    """Returns what a linear model gives, as pixels of each row in its own place."""
    images = keras.Input(IMAGES.shape[1:])
    model = keras.Model(images, keras.layers.Dense(3, use_bias=False)(keras.layers.Flatten()(images)))
    return Forward(model, [tf.constant(WEIGHTS)], [], eval_flip)(tf.constant(IMAGES), training=training).numpy()


def of(images):
    return images.reshape(2, -1) @ WEIGHTS


def test_an_evaluation_is_the_mean_over_images_and_their_mirror_images():
    np.testing.assert_allclose(outputs(False, True), (of(IMAGES) + of(IMAGES[:, :, ::-1])) / 2, rtol=1e-5)


def test_training_and_evaluations_without_the_flag_see_each_image_once():
    for training, eval_flip in ((True, True), (True, False), (False, False)):
        np.testing.assert_allclose(outputs(training, eval_flip), of(IMAGES), rtol=1e-5)
