"""Segmentation as DeepLab stores it: an image and a mask of classes in each record, both encoded."""

import keras
import tensorflow as tf

SIZE, BATCH, EPOCHS, CLASSES, RECORDS = 32, 8, 1, 4, 30
FEATURES = {
    "image/encoded": tf.io.FixedLenFeature([], tf.string),
    "image/segmentation/class/encoded": tf.io.FixedLenFeature([], tf.string),
}


def parse(record, training):
    found = tf.io.parse_single_example(record, FEATURES)
    image = tf.io.decode_jpeg(found["image/encoded"], channels=3)
    mask = tf.io.decode_png(found["image/segmentation/class/encoded"], channels=1)
    image = tf.image.resize(image, (SIZE, SIZE)) / 255
    mask = tf.image.resize(mask, (SIZE, SIZE), method="nearest")
    if training:
        is_mirrored = tf.random.uniform([]) < 0.5
        image = tf.cond(is_mirrored, lambda: image[:, ::-1], lambda: image)
        mask = tf.cond(is_mirrored, lambda: mask[:, ::-1], lambda: mask)
    return image, mask


def dataset(split, training):
    files = tf.data.Dataset.list_files(f"voc/{split}-*", shuffle=training)
    records = files.interleave(tf.data.TFRecordDataset, num_parallel_calls=tf.data.AUTOTUNE)
    records = records.shuffle(1000).repeat() if training else records
    parsed = records.map(lambda record: parse(record, training), num_parallel_calls=tf.data.AUTOTUNE)
    return parsed.batch(BATCH).prefetch(tf.data.AUTOTUNE)


with tf.distribute.MirroredStrategy().scope():
    convolutions = [keras.layers.Conv2D(8, 3, padding="same", activation="relu"), keras.layers.Conv2D(CLASSES, 1)]
    model = keras.Sequential([keras.Input((SIZE, SIZE, 3)), *convolutions])
    model.compile("adam", keras.losses.SparseCategoricalCrossentropy(from_logits=True), metrics=["accuracy"])
validation = dataset("val", False)
model.fit(dataset("train", True), steps_per_epoch=RECORDS // BATCH, epochs=EPOCHS, validation_data=validation)
model.save("voc.keras")
