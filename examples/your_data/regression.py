"""A CSV in which an image has a number to predict, how bright it is; a task has the loss and the metric for it."""

import csv
import pathlib
import subprocess

import numpy as np
import PIL.Image
import tensorflow as tf

from stepfeed import Task, input_fn


class Number(Task):
    """Predicts the number of an image."""

    def loss(self, labels, outputs):
        return tf.square(labels - outputs[:, 0])

    def metrics(self, labels, outputs):
        return {"mae": tf.abs(labels - outputs[:, 0])}


def main() -> None:
    """Makes the files, converts them and trains."""
    draw = np.random.default_rng(0)
    pathlib.Path("photos").mkdir()
    numbers = []
    with open("photos.csv", "w", newline="") as file:
        table = csv.writer(file)
        table.writerow(["file_name", "brightness", "split"])
        for number in range(600):
            brightness = int(draw.integers(0, 200))
            pixels = draw.integers(0, 50, (32, 32, 3), np.uint8) + np.uint8(brightness)
            PIL.Image.fromarray(pixels).save(f"photos/{number}.png")
            table.writerow([f"photos/{number}.png", brightness / 100, "test" if number % 10 == 0 else "train"])
            numbers += [brightness / 100] if number % 10 else []

    convert = "stepfeed convert --dataset=image_table --source=photos.csv --label_column=brightness --float_labels"
    subprocess.run([*convert.split(), "--data_dir=data"], check=True)
    batches = input_fn("data", global_batch_size=60, training=True, epochs=1)
    found = np.concatenate([labels for _, labels, _ in batches.as_numpy_iterator()])
    print(f"{len(found)} numbers from {found.min():.2f} to {found.max():.2f}, {found.mean():.3f} on average")
    np.testing.assert_array_equal(np.sort(found), np.sort(np.float32(numbers)))

    train = "stepfeed train data --model_dir=run --task=regression:Number --model=lenet --train_steps=100"
    subprocess.run([*train.split(), "--optimizer=adamw", "--augment=normalize"], check=True)
    shown = subprocess.run(["stepfeed", "evaluate", "run"], check=True, capture_output=True, text=True).stdout
    print(shown)
    assert float(shown.partition("mae = ")[2][:6]) < 0.3  # 0.5 by guessing the mean


if __name__ == "__main__":
    main()
