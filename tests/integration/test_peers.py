"""`benchmarks.input_throughput` and `benchmarks.conformance` as commands; the ratios are for a person to read."""

import json
import re

import pytest

from benchmarks import commands, sources
from tests.helpers import forked

RATIO = r"ratio \d+\.\d\d \(\d+\.\d\d to \d+\.\d\d\)"


def run(benchmark, *flags):
    return forked.fresh(["-m", f"benchmarks.{benchmark}", *flags], timeout=600)


@pytest.mark.slow
def test_contestants_are_measured_in_processes_of_their_own(tmp_path):
    commands.convert("cifar10", sources.cifar(tmp_path / "source", 1_000), tmp_path / "data")
    flags = (f"--data_dir={tmp_path}/data", "--only=peers,distribute", "--batches=64", "--rounds=1", "--seconds=0.1")
    chosen = ("--contestants=ours,tf_whole_batch", f"--json={tmp_path}/found.json")
    done = run("input_throughput", *flags, *chosen, f"--chart={tmp_path}/chart.svg")
    assert done.returncode == 0, done.stderr
    processor, *lines = done.stdout.splitlines()
    assert processor.startswith("processor: ")
    assert [line for line in lines if not line.startswith(" ")] == [
        "contestants, and how they augment:",
        *(f"{part}, {what}, batch 64:" for part in ("peers", "distribute") for what in ("augmented", "unaugmented")),
    ]
    assert sum(bool(re.search(rf"; of ours: {RATIO}, by processor time {RATIO}$", line)) for line in lines) == 2
    assert sum(bool(re.search(rf"(distribute|nothing) on [124] .*; of plain: {RATIO}", line)) for line in lines) == 12
    found = json.loads((tmp_path / "found.json").read_text())
    assert found["machine"]["cores"] >= 1
    assert [result["rows"] for result in found["results"]] == [64] * 18
    assert all(result["rounds"][0]["memory"] > 100 << 20 for result in found["results"])
    assert "tf_whole_batch" in (tmp_path / "chart.svg").read_text()


@pytest.mark.slow
def test_photographs_are_cropped_by_contestants_in_processes_of_their_own(tmp_path):
    flags = ("--only=photographs", "--photographs=64x48:160", "--photographs_batch=16", "--rounds=1", "--seconds=0.05")
    names = ("ours", "ours_windowed", "ours_scaled", "tf_one_by_one", "tf_whole_batch", "tfds", "crop_alone")
    done = run("input_throughput", *flags, f"--contestants={','.join(names)}", f"--json={tmp_path}/found.json")
    assert done.returncode == 0, done.stderr
    skipped = "crop_alone: skipped, NotImplementedError: libjpeg-turbo has no RandAugment"
    assert [line for line in done.stdout.splitlines() if "skipped" in line] == [skipped]
    results = json.loads((tmp_path / "found.json").read_text())["results"]
    assert [(one["name"], one["augmented"]) for one in results] == [
        *((name, False) for name in names),
        *((name, True) for name in names[:-1]),
    ]
    assert all(one["rounds"][0]["memory"] > 100 << 20 for one in results)
    assert all(one["rounds"][0]["cpu"] > 10 for one in results)


@pytest.mark.slow
def test_this_input_keeps_what_it_promises(tmp_path):
    done = run("conformance", "--only=ours", f"--json={tmp_path}/verdicts.json")
    assert done.returncode == 0, done.stderr
    (row,) = json.loads((tmp_path / "verdicts.json").read_text())
    assert {name: verdict["kept"] for name, verdict in row["verdicts"].items()} == dict.fromkeys(row["verdicts"], True)
    assert len(row["verdicts"]) == 7


@pytest.mark.parametrize(
    ("benchmark", "flag", "fact"),
    [
        ("input_throughput", "--batches=12,x", "'x' is not a whole number of 1 or more"),
        ("input_throughput", "--contestants=dally", "'dally'"),
        ("input_throughput", "--photographs=64x48:8", "8 are fewer than --photographs_batch=256"),
        ("input_throughput", "--python=dali=/no/such", "no file /no/such"),
        ("conformance", "--only=mozaic", "'mozaic'"),
        ("conformance", "--seconds=0", "--seconds=0"),
    ],
)
def test_a_wrong_flag_is_one_line(benchmark, flag, fact):
    done = forked.run(["-m", f"benchmarks.{benchmark}", flag])
    assert (done.returncode, done.stdout) == (2, "")
    assert fact in done.stderr
    assert done.stderr.count("\n") == 1
