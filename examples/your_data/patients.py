"""A table of scans of 120 patients: no patient is in two splits, and a hundred later scans change none of them."""

import csv
import pathlib
import subprocess

import numpy as np
import PIL.Image

from stepfeed import RandomAccess

CONVERT = (
    "stepfeed convert --dataset=image_table --label_column=finding --keep_columns=patient "
    "--split=train:0.7,validation:0.1,test:0.2 --group_by=patient"
)


def write(table: str, numbers: range, patients: int) -> None:
    """Writes scans and their table: several scans for each patient, with more or less of a finding."""
    draw = np.random.default_rng(numbers.start)
    with open(table, "w", newline="") as file:
        rows = csv.writer(file)
        rows.writerow(["file_name", "finding", "patient"])
        for number in numbers:
            finding = number % 3 == 0
            pixels = draw.integers(0, 120, (32, 32), np.uint8)
            pixels[8:20, 8:20] += 120 * finding
            PIL.Image.fromarray(pixels).save(f"scans/{number}.png")
            rows.writerow([f"scans/{number}.png", "yes" if finding else "no", f"p{draw.integers(patients):03}"])


def patients_of(data: str) -> dict[str, set[str]]:
    """Returns the patients of each split."""
    splits = ("train", "validation", "test")
    return {split: {row["patient"].decode() for row in RandomAccess(data, split)} for split in splits}


pathlib.Path("scans").mkdir()
write("scans.csv", range(600), patients=120)
subprocess.run([*CONVERT.split(), "--source=scans.csv", "--data_dir=data"], check=True)
before = patients_of("data")
print({split: f"{len(found)} patients" for split, found in before.items()})
assert sum(map(len, before.values())) == len(set.union(*before.values())) == 119

# Scans of the same patients and of new ones: known patients keep their splits.
write("later.csv", range(600, 700), patients=150)
subprocess.run([*CONVERT.split(), "--source=later.csv", "--data_dir=data", "--append"], check=True)
after = patients_of("data")
assert all(before[split] <= after[split] for split in before)
assert sum(map(len, after.values())) == len(set.union(*after.values()))

train = "stepfeed train data --model_dir=run --model=lenet --train_steps=60 --eval_split=validation --optimizer=adamw"
subprocess.run(train.split(), check=True)
subprocess.run(["stepfeed", "evaluate", "run", "--split=test"], check=True)
