"""A CSV in which an image has several labels, with spaces between them; a task has the loss and the metric for them."""

import csv
import pathlib
import subprocess

import numpy as np
import PIL.Image
import tensorflow as tf

from stepfeed import RandomAccess, Task

TAGS = np.array(["beach", "boat", "sky"])  # each of them makes one of the three colours bright


class SeveralClasses(Task):
    """Predicts for each class whether an image has it."""

    def loss(self, labels, outputs):
        losses = tf.nn.sigmoid_cross_entropy_with_logits(tf.cast(labels, tf.float32), outputs)
        return tf.reduce_mean(losses, axis=-1)

    def metrics(self, labels, outputs):
        right = tf.equal(outputs > 0, tf.cast(labels, tf.bool))
        return {"accuracy": tf.reduce_mean(tf.cast(right, tf.float32), axis=-1)}


def main() -> None:
    """Makes the files, converts them and trains."""
    draw = np.random.default_rng(0)
    pathlib.Path("photos").mkdir()
    wanted = {}
    with open("tags.csv", "w", newline="") as file:
        table = csv.writer(file)
        table.writerow(["file_name", "tags", "split"])
        for number in range(700):
            path, has = f"photos/{number}.png", np.array([1 + number % 7 >> tag & 1 for tag in range(3)], np.uint8)
            pixels = draw.integers(0, 80, (32, 32, 3), np.uint8) + 150 * has
            PIL.Image.fromarray(pixels).save(path)
            table.writerow([path, " ".join(TAGS[has > 0]), "test" if number % 10 == 0 else "train"])
            wanted[path] = has.tolist()

    convert = "stepfeed convert --dataset=image_table --source=tags.csv --label_column=tags --data_dir=data"
    subprocess.run([*convert.split(), "--label_separator= "], check=True)
    records = [record for split in ("train", "test") for record in RandomAccess("data", split)]
    found = {record["key"].decode(): record["label"].tolist() for record in records}
    print(f"{len(found)} images; {records[0]['key'].decode()} has {TAGS[records[0]['label'] > 0]}")
    assert found == wanted

    train = "stepfeed train data --model_dir=run --task=several_labels:SeveralClasses --model=lenet --train_steps=60"
    subprocess.run([*train.split(), "--optimizer=adamw"], check=True)
    shown = subprocess.run(["stepfeed", "evaluate", "run"], check=True, capture_output=True, text=True).stdout
    print(shown)
    assert float(shown.partition("accuracy = ")[2][:6]) > 0.95


if __name__ == "__main__":
    main()
