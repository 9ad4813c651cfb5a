"""SageMaker's channels: a folder each for training and validation, raw pixels, channel by channel (CHW)."""

import os

import keras
import tensorflow as tf

BATCH, EPOCHS, RECORDS = 8, 1, 44
TRAIN = os.environ.get("SM_CHANNEL_TRAIN", "channels/train")
VALIDATION = os.environ.get("SM_CHANNEL_VALIDATION", "channels/validation")
FEATURES = {"image": tf.io.FixedLenFeature([], tf.string), "label": tf.io.FixedLenFeature([], tf.int64)}
layers = keras.Sequential([keras.layers.RandomFlip("horizontal"), keras.layers.RandomTranslation(0.1, 0.1)])


def parse(record):
    found = tf.io.parse_single_example(record, FEATURES)
    planes = tf.reshape(tf.io.decode_raw(found["image"], tf.uint8), [3, 32, 32])
    return tf.cast(tf.transpose(planes, [1, 2, 0]), tf.float32) / 255, found["label"]


def dataset(channel, training):
    data = tf.data.TFRecordDataset(tf.io.gfile.glob(f"{channel}/*.tfrecords"))
    data = data.map(parse, num_parallel_calls=tf.data.AUTOTUNE)
    data = data.shuffle(1000).repeat() if training else data
    data = data.batch(BATCH, drop_remainder=True)
    data = data.map(lambda images, labels: (layers(images, training=training), labels))
    return data.prefetch(tf.data.AUTOTUNE)


with tf.distribute.MirroredStrategy().scope():
    model = keras.Sequential([keras.Input((32, 32, 3)), keras.layers.Flatten(), keras.layers.Dense(10)])
    model.compile("adam", keras.losses.SparseCategoricalCrossentropy(from_logits=True), metrics=["accuracy"])
validation = dataset(VALIDATION, False)
model.fit(dataset(TRAIN, True), steps_per_epoch=RECORDS // BATCH, epochs=EPOCHS, validation_data=validation)
model.save("channels.keras")
