"""Photographs and their masks, named by a table: a mask takes the place of a label, and moves with its image."""

import csv
import pathlib
import subprocess

import keras
import numpy as np
import PIL.Image
import tensorflow as tf

from stepfeed import Task, input_fn


class Segmentation(Task):
    """Predicts the class of each pixel."""

    label = "mask"

    def build_model(self):
        images = keras.Input(self.data.features.shape[1:], dtype="uint8")
        found = keras.layers.Conv2D(8, 3, padding="same", activation="relu")(keras.layers.Rescaling(1 / 255)(images))
        return keras.Model(images, keras.layers.Conv2D(self.data.num_outputs, 1)(found))

    def loss(self, labels, outputs):
        losses = tf.nn.sparse_softmax_cross_entropy_with_logits(tf.cast(labels[..., 0], tf.int32), outputs)
        return tf.reduce_mean(losses, axis=[1, 2])

    def metrics(self, labels, outputs):
        right = tf.argmax(outputs, axis=-1) == tf.cast(labels[..., 0], tf.int64)
        return {"accuracy": tf.reduce_mean(tf.cast(right, tf.float32), axis=[1, 2])}


def main() -> None:
    """Makes the files, converts them and trains."""
    draw = np.random.default_rng(0)
    for folder in ("photos", "masks"):
        pathlib.Path(folder).mkdir()
    with open("photos.csv", "w", newline="") as file:
        table = csv.writer(file)
        table.writerow(["file_name", "mask", "split"])
        for number in range(200):
            mask = np.zeros((40, 48), np.uint8)
            top, left = draw.integers(0, 20, 2)
            mask[top : top + 18, left : left + 14] = 1 + number % 2
            pixels = draw.integers(0, 60, (40, 48, 3), np.uint8)
            for kind in (1, 2):
                pixels[mask == kind, kind] += 180
            PIL.Image.fromarray(pixels).save(f"photos/{number}.png")
            PIL.Image.fromarray(mask).save(f"masks/{number}.png")
            table.writerow([f"{number}.png", f"{number}.png", "test" if number % 10 == 0 else "train"])

    convert = "stepfeed convert --dataset=image_table --source=photos.csv --image_dir=photos --mask_column=mask"
    subprocess.run(f"{convert} --mask_dir=masks --data_dir=data".split(), check=True)

    # However images are drawn, the pixels of class 1 or 2 have the colour of their class, and no others do.
    options = {"global_batch_size": 20, "training": True, "epochs": 3, "augment": "flip | affine(rotate=0, shift=0.3)"}
    same = either = 0
    for images, masks, _ in input_fn("data", label="mask", **options).as_numpy_iterator():
        for kind in (1, 2):
            is_class, has_colour = masks[..., 0] == kind, images[..., kind] > 120
            same, either = same + (is_class & has_colour).sum(), either + (is_class | has_colour).sum()
    print(f"{same / either:.1%} of {either} pixels of a class or of its colour are both")
    assert same > 0.9 * either > 10_000

    train = "stepfeed train data --model_dir=run --task=masks:Segmentation --global_batch_size=20 --train_steps=60"
    subprocess.run([*train.split(), "--optimizer=adam", "--learning_rate=0.01", "--augment=flip"], check=True)
    shown = subprocess.run(["stepfeed", "evaluate", "run"], check=True, capture_output=True, text=True).stdout
    print(shown)
    assert float(shown.partition("accuracy = ")[2][:6]) > 0.95


if __name__ == "__main__":
    main()
