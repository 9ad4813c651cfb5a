"""Conversion of tables that name image files, from the command to a trained model: in real processes."""

import csv
import json
import re

import numpy as np
import PIL.Image
import pytest

from pipeline import manifest
from tests.helpers import forked
from tests.helpers.datasets import examples_in

ROWS, CLASSES = 240, ("bird", "cat", "dog")


@pytest.fixture
def table(tmp_path):
    """A table as of Kaggle: of files without their ending, one of them missing, one torn; with a column of splits."""
    draw = np.random.default_rng(4)
    with open(tmp_path / "train.csv", "w", newline="") as stream:
        out = csv.writer(stream)
        out.writerow(["id", "breed", "split", "age"])
        for number in range(ROWS):
            kind = number % len(CLASSES)
            pixels = draw.integers(0, 60, (48, 48, 3), np.uint8)
            pixels[:, :, kind] += 150
            path = tmp_path / "images" / f"{number:03d}.png"
            path.parent.mkdir(exist_ok=True)
            PIL.Image.fromarray(pixels).save(path)
            out.writerow([f"{number:03d}", CLASSES[kind], "val" if number % 4 == 0 else "train", number / 8])
    torn = tmp_path / "images" / "010.png"
    torn.write_bytes(torn.read_bytes()[:-100])
    (tmp_path / "images" / "011.png").unlink()
    return tmp_path / "train.csv"


def flags(table):
    return [
        *("--dataset=image_table", f"--source={table}", f"--image_dir={table.parent}/images/{{}}.png"),
        *("--image_column=id", "--label_column=breed", "--split_column=split", "--keep_columns=age", "--max_rejects=2"),
    ]


def convert(out, *given):
    done = forked.run(["-m", "beam_jobs.convert", f"--data_dir={out}", *given])
    assert done.returncode == 0, done.stderr
    return done


def examples(folder, split):
    shards = manifest.load(folder).split(split).shards
    return [one for shard in shards for one in examples_in(folder / shard.file)]


def test_every_row_becomes_one_example_or_one_reject(table, tmp_path):
    out = tmp_path / "out"
    dry = convert(out, *flags(table), "--dry_run")
    assert "train: 180 examples" in dry.stdout
    assert not out.exists()
    done = convert(out, *flags(table))
    assert done.stderr.startswith(f"{table}, row 11: 011.png: no such file; ")
    assert done.stderr.count("\n") == 1
    made = manifest.load(out)
    assert made.class_names == CLASSES
    rejects = [json.loads(line) for line in (out / "rejects.jsonl").read_text().splitlines()]
    assert [(reject["file"], reject["row"]) for reject in rejects] == [("train.csv", 10), ("train.csv", 11)]
    for split, is_of in (("validation", lambda number: number % 4 == 0), ("train", lambda number: number % 4)):
        found = {entry["key"][0].decode(): entry for entry in examples(out, split)}
        wanted = [number for number in range(ROWS) if is_of(number) and number not in (10, 11)]
        assert sorted(found) == [f"{number:03d}.png" for number in wanted]
        for number in wanted:
            entry = found[f"{number:03d}.png"]
            assert entry["image"] == [(table.parent / "images" / f"{number:03d}.png").read_bytes()]
            assert (entry["label"].tolist(), entry["age"].tolist()) == ([number % 3], [number / 8])


@pytest.mark.slow
def test_a_model_learns_from_it(table, tmp_path):
    convert(tmp_path / "out", *flags(table))
    given = ["--model=mlp", "--epochs=1", "--eval_split=validation", "--global_batch_size=6", "--optimizer=adam"]
    out = forked.output(
        ["-m", "trainer.run", f"--data_dir={tmp_path / 'out'}", f"--model_dir={tmp_path / 'run'}", *given]
    )
    assert float(re.search(r"^validation accuracy = ([\d.]+)", out, re.M)[1]) > 0.9
