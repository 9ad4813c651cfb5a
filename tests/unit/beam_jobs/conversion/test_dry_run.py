"""`--dry_run`: reports what the conversion with the same flags then does, and writes nothing anywhere."""

import dataclasses
import pathlib
import re
import subprocess
import sys
import tempfile
import types

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from beam_jobs.conversion import dry_run
from beam_jobs.sink.local import LocalSink
from beam_jobs.sources import published
from pipeline import images, manifest
from pipeline.errors import DataError
from tests.helpers.converting import write_shard
from tests.helpers.datasets import examples_in
from tests.helpers.made_source import Content

ROOT = pathlib.Path(__file__).parents[4]


@pytest.fixture
def listing(tmp_path, monkeypatch):
    """A function that returns {path: bytes} of all in the test's folder, where temporary files go, too."""
    for name in ("home", "temporary"):
        (tmp_path / name).mkdir()
    monkeypatch.setenv("HOME", str(tmp_path / "home"))
    monkeypatch.setenv("TMPDIR", str(tmp_path / "temporary"))
    monkeypatch.delenv("XDG_CACHE_HOME", raising=False)
    monkeypatch.setattr(tempfile, "tempdir", None)
    return lambda: {str(p): p.read_bytes() if p.is_file() else None for p in pathlib.Path(tmp_path).rglob("*")}


def sources(kind, tmp_path, pixels, mnist_folder, cifar_folder):
    """Returns the flags of a source of a kind."""
    if kind == "digits":
        return ["--dataset=digits", "--num_shards=train:3,test:2", "--resize=14x14"]
    if kind == "mnist":
        return ["--dataset=mnist", f"--source={mnist_folder(packed=True)}", "--compression=GZIP"]
    if kind == "cifar10":
        return ["--dataset=cifar10", f"--source={cifar_folder()[0].parent}", "--image_encoding=png"]
    if kind == "parquet":
        rows = [{"image": images.encoded(p, "png"), "label": i % 3, "n": i} for i, p in enumerate(pixels(40))]
        pq.write_table(pa.Table.from_pylist(rows), tmp_path / "rows.parquet", row_group_size=7)
        return ["--dataset=parquet", f"--source={tmp_path}/rows.parquet", "--keep_columns=n", "--num_shards=2"]
    for i, p in enumerate(pixels(24)):
        folder = tmp_path / "folder" / ("train", "test")[i % 2] / f"class {i % 3}"
        folder.mkdir(parents=True, exist_ok=True)
        (folder / f"{i}.png").write_bytes(images.encoded(p[: 2 + i % 3], "png"))
    return ["--dataset=image_folder", f"--source={tmp_path}/folder"]


@pytest.mark.parametrize("kind", ["digits", "mnist", "cifar10", "parquet", "image_folder"])
@pytest.mark.quick(2)
def test_what_is_said_is_what_the_conversion_does(
    kind, tmp_path, pixels, mnist_folder, cifar_folder, listing, convert, convert_without_beam
):
    flags = sources(kind, tmp_path, pixels, mnist_folder, cifar_folder)
    if kind == "digits":
        flags += ["--image_encoding=raw"]
    flags += [f"--data_dir={tmp_path / 'new' / 'out'}"]
    before = listing()
    outcome = convert(*flags, "--dry_run")
    assert (outcome.code, outcome.err) == (0, "")
    assert listing() == before
    assert convert_without_beam(*flags).code == 0
    out = tmp_path / "new" / "out"
    made = manifest.load(out)
    assert f"to {len(made.shards)} shards in {out} (a dry run: nothing is written)" in outcome.out.splitlines()[0]
    for name, split in made.splits.items():
        found = re.search(
            rf"^  {name}: (\d[\d,]*) examples, (\d+) shards? of .*, about ([\d.]+) (\w+)$", outcome.out, re.M
        )
        assert (int(found[1].replace(",", "")), int(found[2])) == (split.num_examples, len(split.shards))
        said = float(found[3]) * {"bytes": 1, "KiB": 1 << 10, "MiB": 1 << 20}[found[4]]
        assert said == pytest.approx(split.num_bytes, rel=0.05)
        shown = [line.split("  ") for line in outcome.out.splitlines() if line.startswith(f"{name} ")]
        first = [one["key"][0].decode() for one in examples_in(out / split.shards[0].file)[:3]]
        assert [[part for part in line if part.strip()][1].strip() for line in shown] == first
    again = convert(*flags, "--dry_run")
    assert again.out.endswith(
        f"{out}: already holds this data set, made with the same options: nothing would be converted\n"
    )


def test_a_data_set_that_is_there_would_be_refused_or_replaced(
    tmp_path, mnist_folder, listing, convert, convert_without_beam
):
    flags = ["--dataset=mnist", f"--source={mnist_folder()}", f"--data_dir={tmp_path / 'out'}"]
    assert convert_without_beam(*flags).code == 0
    before = listing()
    other = convert(*flags, "--seed=1", "--dry_run")
    assert other.code == 2
    assert "--seed is 0 there and 1 here" in other.err
    replaced = convert(*flags, "--seed=1", "--dry_run", "--overwrite")
    assert replaced.code == 0
    assert f"{tmp_path / 'out'}: holds mnist, 70 examples, which would be replaced (--overwrite)" in replaced.out
    assert listing() == before


def test_shards_of_a_killed_run_would_be_kept(plan_of, pixels, capsys):
    plan = plan_of({"train": Content(pixels(40))}, num_shards="4")
    folder = plan.data_dir / f".converting.tmp-{plan.digest[:16]}"
    folder.mkdir()
    write_shard(dataclasses.replace(plan, data_dir=folder, receipts_dir=folder), "train", 1)
    dry_run.show(plan, LocalSink(plan.data_dir), False, 1, "")
    assert "an earlier run had done 25%; the conversion would resume there" in capsys.readouterr().out


@pytest.mark.parametrize(("flags", "code"), [([], 1), (["--max_rejects=1"], 1), (["--max_rejects=2"], 0)])
def test_invalid_rows_of_the_sample_are_listed(flags, code, made, pixels, tmp_path, listing, convert):
    stored = [images.encoded(image, "png") for image in pixels(40)]
    stored[7] = b"broken"
    source = made({"train": Content(stored, labels=[99 if row == 3 else 1 for row in range(40)])})
    before = listing()
    outcome = convert("--dataset=made", f"--source={source}", f"--data_dir={tmp_path / 'out'}", "--dry_run", *flags)
    assert outcome.code == code
    assert "  sampled 40 rows: 2 invalid\n    train.rows, row 3: label 99 is not in 0..9\n" in outcome.out
    assert "    train.rows, row 7: " in outcome.out
    if code:
        assert "2 of 40 sampled rows invalid, so about 2 of all, over --max_rejects=" in outcome.err
    assert listing() == before


def test_a_source_in_chunks_is_measured_by_one_of_them(plan_of, pixels):
    plan = plan_of({"train": Content(pixels(60), chunks=[10, 30, 20])}, num_shards="2")
    measured = dry_run.measure(plan, "train")
    assert measured.rows in (10, 20, 30)
    assert measured.num_bytes == pytest.approx(plan.num_bytes, rel=0.02)
    assert len(measured.examples) == 3


def test_long_values_are_cut_and_two_passes_are_said(plan_of, pixels, capsys):
    extra = {"text": [b"a" * 100] * 9, "n": [np.arange(3)] * 9}
    features = {"text": manifest.Feature("string"), "n": manifest.Feature("int64", (3,))}
    plan = plan_of({"train": Content(pixels(9), extra=extra)}, features=features, passes=2)
    dry_run.show(plan, LocalSink(plan.data_dir), False, 3, "")
    said = capsys.readouterr().out
    assert f"  {'a' * 32}...  [0, 1, 2]" in said or f"[0, 1, 2]  {'a' * 32}..." in said
    assert "in 3 processes," in said
    assert "two passes" in said


def test_nothing_is_downloaded(tmp_path, listing, convert):
    before = listing()
    outcome = convert("--dataset=mnist", f"--data_dir={tmp_path / 'out'}", "--dry_run")
    assert outcome.code == 2
    assert re.search(r"--dry_run: writes nothing, but mnist .*\(4 files, 11.1 MiB, to .*--source=PATH", outcome.err)
    assert listing() == before
    assert not published._is_dry.get()


def test_a_small_disk_is_noticed(tmp_path, mnist_folder, listing, convert, monkeypatch):
    monkeypatch.setattr("shutil.disk_usage", lambda folder: types.SimpleNamespace(free=9))
    flags = ["--dataset=mnist", f"--source={mnist_folder()}", f"--data_dir={tmp_path / 'not' / 'there'}"]
    before = listing()
    outcome = convert(*flags, "--dry_run")
    assert outcome.code == 1
    assert "disk has 9 free" in outcome.err
    assert listing() == before


@pytest.mark.slow
def test_the_process_leaves_nothing_anywhere(tmp_path, listing):
    here = tmp_path / "here"
    here.mkdir()
    before = listing()
    command = [sys.executable, "-B", "-m", "beam_jobs.convert", "--dataset=digits", "--data_dir=out", "--dry_run=true"]
    done = subprocess.run(command, cwd=here, capture_output=True, text=True, check=False)
    assert (done.returncode, done.stderr) == (0, "")
    assert "digits: 1,797 examples to 2 shards in out (a dry run: nothing is written)" in done.stdout
    assert listing() == before


@pytest.mark.parametrize(
    ("seconds", "text"),
    [(0.04, "0.0 s"), (59.9, "59.9 s"), (60, "1 min"), (7199, "120 min"), (7200, "2.0 h"), (4e6, "1,111.1 h")],
)
def test_a_duration_is_said_in_the_unit_that_fits_it(seconds, text):
    assert dry_run._duration(seconds) == text


def test_a_split_of_invalid_rows_alone_is_an_error_with_the_first():
    bad = [types.SimpleNamespace(reason=f"no label in row {row}") for row in range(3)]
    measured = {"test": types.SimpleNamespace(rows=4, rejects=[]), "train": types.SimpleNamespace(rows=3, rejects=bad)}
    said = "^split 'train': all sampled rows are invalid; the first: no label in row 0; --splits=test leaves .* out$"
    with pytest.raises(DataError, match=said):
        dry_run._check_rejects(None, measured)
