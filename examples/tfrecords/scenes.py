"""Images with several classes each: a list of them in each record, of any length."""

import keras
import tensorflow as tf

SIZE, BATCH, EPOCHS, CLASSES, RECORDS = 32, 8, 1, 6, 40
FEATURES = {"image": tf.io.FixedLenFeature([], tf.string), "classes": tf.io.RaggedFeature(tf.int64)}


def parse(record, training):
    found = tf.io.parse_single_example(record, FEATURES)
    image = tf.image.resize(tf.io.decode_jpeg(found["image"], channels=3), (SIZE, SIZE)) / 255
    image = tf.image.random_flip_left_right(image) if training else image
    return image, tf.reduce_max(tf.one_hot(found["classes"], CLASSES), axis=0)


def dataset(pattern, training):
    files = tf.data.Dataset.list_files(pattern, shuffle=training)
    records = files.interleave(tf.data.TFRecordDataset, num_parallel_calls=tf.data.AUTOTUNE)
    records = records.shuffle(1000).repeat() if training else records
    parsed = records.map(lambda record: parse(record, training), num_parallel_calls=tf.data.AUTOTUNE)
    return parsed.batch(BATCH).prefetch(tf.data.AUTOTUNE)


with tf.distribute.MirroredStrategy().scope():
    model = keras.Sequential([keras.Input((SIZE, SIZE, 3)), keras.layers.Flatten(), keras.layers.Dense(CLASSES)])
    model.compile("adam", keras.losses.BinaryCrossentropy(from_logits=True), metrics=["binary_accuracy"])
validation = dataset("scenes/val-*", False)
train = dataset("scenes/train-*", True)
model.fit(train, steps_per_epoch=RECORDS // BATCH, epochs=EPOCHS, validation_data=validation)
model.save("scenes.keras")
