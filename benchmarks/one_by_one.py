"""The tutorials' pipeline: `tf.data` one example at a time, which several benchmarks compare with."""

from __future__ import annotations

from benchmarks import inputs
from pipeline import manifest


def one_by_one(data_dir: str, rows: int, recipe: str):
    """Returns the tutorials' pipeline, as in cifar10_input.py, in `tf.data`, with a recipe's augmentation."""
    tf, shape = inputs.load_tensorflow(), manifest.load(data_dir).image_shape
    features = {"image": tf.io.FixedLenFeature([], tf.string), "label": tf.io.FixedLenFeature([], tf.int64)}

    def parse(record):
        example = tf.io.parse_single_example(record, features)
        image = tf.reshape(tf.io.decode_raw(example["image"], tf.uint8), shape)
        return AUGMENTATIONS[recipe.partition("(")[0]](tf, image), example["label"]

    dataset = tf.data.TFRecordDataset(inputs.train_files(data_dir), num_parallel_reads=tf.data.AUTOTUNE)
    dataset = dataset.repeat().shuffle(10_000)
    return dataset.map(parse, num_parallel_calls=tf.data.AUTOTUNE).batch(rows).prefetch(tf.data.AUTOTUNE)


def tutorial(tf, image):
    """Returns one image augmented as in the CIFAR-10 tutorial."""
    image = tf.image.random_crop(tf.cast(image, tf.float32), [24, 24, image.shape[2]])
    image = tf.image.random_flip_left_right(image)
    image = tf.image.random_brightness(image, max_delta=63)
    image = tf.image.random_contrast(image, lower=0.2, upper=1.8)
    return tf.image.per_image_standardization(image)


def pad_crop_flip(tf, image):
    """Returns one image shifted by up to 4 pixels and randomly flipped."""
    height, width, channels = image.shape
    padded = tf.image.resize_with_crop_or_pad(image, height + 8, width + 8)
    return tf.image.random_flip_left_right(tf.image.random_crop(padded, [height, width, channels]))


AUGMENTATIONS = {
    "none": lambda tf, image: image,
    "cifar10_tutorial": tutorial,
    "pad_crop_flip": pad_crop_flip,
}
