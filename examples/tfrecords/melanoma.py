"""SIIM's melanoma: few of the images are malignant, so the script weights the classes."""

import keras
import tensorflow as tf

SIZE, BATCH, EPOCHS, RECORDS = 32, 8, 1, 24
FEATURES = {"image": tf.io.FixedLenFeature([], tf.string), "target": tf.io.FixedLenFeature([], tf.int64)}
TEST = {"image": tf.io.FixedLenFeature([], tf.string), "image_name": tf.io.FixedLenFeature([], tf.string)}


def decode(file):
    image = tf.image.resize(tf.io.decode_jpeg(file, channels=3), (SIZE, SIZE))
    return tf.reshape(image / 255.0, [SIZE, SIZE, 3])


def labelled(record):
    found = tf.io.parse_single_example(record, FEATURES)
    return decode(found["image"]), found["target"]


def unlabelled(record):
    found = tf.io.parse_single_example(record, TEST)
    return decode(found["image"]), found["image_name"]


def dataset(pattern, parse):
    records = tf.data.TFRecordDataset(tf.io.gfile.glob(pattern), num_parallel_reads=tf.data.AUTOTUNE)
    return records.map(parse, num_parallel_calls=tf.data.AUTOTUNE)


layers = keras.Sequential([keras.layers.RandomFlip("horizontal_and_vertical"), keras.layers.RandomRotation(0.2)])
train = dataset("melanoma/train*.tfrec", labelled)
malignant = sum(int(label) for _, label in train)
weights = {0: RECORDS / (2 * (RECORDS - malignant)), 1: RECORDS / (2 * malignant)}
train = train.shuffle(2048).batch(BATCH)
train = train.map(lambda images, labels: (layers(images, training=True), labels)).prefetch(tf.data.AUTOTUNE)
test = dataset("melanoma/test*.tfrec", unlabelled).batch(BATCH)
with tf.distribute.MirroredStrategy().scope():
    model = keras.Sequential([keras.Input((SIZE, SIZE, 3)), keras.layers.Flatten(), keras.layers.Dense(1, "sigmoid")])
    model.compile("adam", "binary_crossentropy", metrics=[keras.metrics.AUC(name="auc")])
model.fit(train, epochs=EPOCHS, class_weight=weights)
probabilities = model.predict(test.map(lambda images, names: images))[:, 0]
names = [name.decode() for _, batch in test for name in batch.numpy()]
with open("submission.csv", "w", encoding="utf-8") as file:
    rows = (f"{name},{value:.4f}\n" for name, value in zip(names, probabilities, strict=True))
    file.write("image_name,target\n" + "".join(rows))
