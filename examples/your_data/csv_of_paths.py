"""A CSV of 5,000 paths, 20 of them broken: the broken rows are named and left out, all others are trained on."""

import csv
import json
import pathlib
import subprocess

import numpy as np
import PIL.Image

# The files: photos.csv, and 5,000 photographs in three classes. Four rows each have no file, half a file, an empty
# file, the error page of a web server, and no label.
broken = dict(zip(range(100, 5_000, 245), 4 * ["missing", "cut", "empty", "page", "unlabelled"], strict=True))
draw = np.random.default_rng(0)
pathlib.Path("photos").mkdir()
with open("photos.csv", "w", newline="") as file:
    table = csv.writer(file)
    table.writerow(["path", "label"])
    for number in range(5_000):
        kind, fault = number % 3, broken.get(number)
        path = pathlib.Path(f"photos/{number:04}.jpg")
        pixels = draw.integers(0, 100, (32, 32, 3), np.uint8)
        pixels[:, :, kind] += 120
        PIL.Image.fromarray(pixels).save(path)
        if fault == "missing":
            path.unlink()
        elif fault:
            path.write_bytes({"cut": path.read_bytes()[:-200], "page": b"<html>404"}.get(fault, b""))
        table.writerow([path, "" if fault == "unlabelled" else ("red", "green", "blue")[kind]])

# Nothing is published as long as rows are broken: the error gives their number and the file that lists them.
convert = "stepfeed convert --dataset=image_table --source=photos.csv --data_dir=data --split=train:0.9,test:0.1"
refused = subprocess.run(convert.split(), capture_output=True, text=True, check=False)
assert refused.returncode == 1
assert not pathlib.Path("data/manifest.json").exists()
print(refused.stderr)

subprocess.run(f"{convert} --max_rejects=20".split(), check=True)
rejects = [json.loads(line) for line in pathlib.Path("data/rejects.jsonl").read_text().splitlines()]
print(*(f"row {each['row']}: {each['reason']}" for each in rejects), sep="\n")
assert sorted(each["row"] for each in rejects) == sorted(broken)

subprocess.run(["stepfeed", "train", "data", "--model_dir=run", "--model=lenet", "--train_steps=60"], check=True)
shown = subprocess.run(["stepfeed", "evaluate", "run"], check=True, capture_output=True, text=True).stdout
print(shown)
assert float(shown.partition("accuracy = ")[2][:6]) > 0.95
