"""ImageNet as TF-Slim writes it: `tf.data` with Inception's crops, and Keras' `fit`; labels begin at 1."""

import keras
import tensorflow as tf

SIZE, BATCH, EPOCHS, CLASSES, RECORDS = 32, 8, 1, 5, 68
FEATURES = {
    "image/encoded": tf.io.FixedLenFeature([], tf.string),
    "image/class/label": tf.io.FixedLenFeature([], tf.int64),
}
MEAN, STD = tf.constant([123.68, 116.78, 103.94]), tf.constant([58.4, 57.12, 57.38])


def cropped(file):
    begin, size, _ = tf.image.sample_distorted_bounding_box(
        tf.io.extract_jpeg_shape(file),
        tf.zeros([1, 0, 4]),
        area_range=(0.08, 1.0),
        aspect_ratio_range=(3 / 4, 4 / 3),
        min_object_covered=0,
        use_image_if_no_bounding_boxes=True,
    )
    box = tf.concat([begin[:2], size[:2]], axis=0)
    image = tf.image.resize(tf.image.decode_and_crop_jpeg(file, box, channels=3), (SIZE, SIZE))
    return tf.image.random_flip_left_right(image)


def centred(file):
    image = tf.io.decode_jpeg(file, channels=3)
    return tf.image.resize(tf.image.central_crop(image, 0.875), (SIZE, SIZE))


def parse(record, training):
    found = tf.io.parse_single_example(record, FEATURES)
    image = cropped(found["image/encoded"]) if training else centred(found["image/encoded"])
    return (image - MEAN) / STD, found["image/class/label"] - 1


def dataset(pattern, training):
    files = tf.data.Dataset.list_files(pattern, shuffle=training)
    records = files.interleave(tf.data.TFRecordDataset, num_parallel_calls=tf.data.AUTOTUNE)
    records = records.shuffle(10_000).repeat() if training else records
    parsed = records.map(lambda record: parse(record, training), num_parallel_calls=tf.data.AUTOTUNE)
    return parsed.batch(BATCH).prefetch(tf.data.AUTOTUNE)


layers = keras.layers.RandAugment((0, 255), num_ops=2, factor=0.5, data_format="channels_last")
train = dataset("imagenet/train-*", True).map(lambda images, labels: (layers(images * STD + MEAN), labels))
train = train.map(lambda images, labels: ((images - MEAN) / STD, labels))
with tf.distribute.MirroredStrategy().scope():
    model = keras.Sequential([keras.Input((SIZE, SIZE, 3)), keras.layers.Flatten(), keras.layers.Dense(CLASSES)])
    model.compile("sgd", keras.losses.SparseCategoricalCrossentropy(from_logits=True), metrics=["accuracy"])
saved = keras.callbacks.BackupAndRestore("backup")
validation = dataset("imagenet/validation-*", False)
model.fit(train, steps_per_epoch=RECORDS // BATCH, epochs=EPOCHS, validation_data=validation, callbacks=[saved])
model.export("imagenet-saved")
