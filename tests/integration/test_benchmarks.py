"""The benchmarks run and print ratios; what the ratios are is for a person to read, on an idle machine."""

import pathlib
import re
import subprocess
import sys

import pytest

from benchmarks import commands, sources, tfds_cifar

ROOT = pathlib.Path(__file__).parents[2]


def run(*flags):
    command = [sys.executable, "-m", "benchmarks.convert_throughput", *flags]
    return subprocess.run(command, check=False, capture_output=True, text=True, cwd=ROOT)


def test_the_floor_is_measured_and_printed_as_ratios(tmp_path):
    done = run("--only=floor", "--rounds=1", "--images=6000", f"--work_dir={tmp_path}")
    assert done.returncode == 0, done.stderr
    table = done.stdout.split("\n\n")[1].splitlines()
    assert table[0].split() == ["compared", "ratio", "(lowest", "to", "highest)", "medians"]
    names = ("printed", "start-up apart", "with opening", "processor time, with opening")
    for line, name in zip(table[1:], names, strict=True):
        assert re.match(rf"part of the floor's speed, {name} +-?\d+\.\d\d  \(", line)
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize(
    ("flag", "says"),
    [
        ("--only=flor", "did you mean 'floor'?"),
        ("--images=61", "must be a multiple of 6"),
        ("--rounds=0", "must be 1 or more"),
    ],
)
def test_a_wrong_flag_is_one_line(flag, says):
    done = run(flag)
    assert (done.returncode, done.stdout) == (2, "")
    assert says in done.stderr
    assert done.stderr.count("\n") == 1


def test_a_run_says_what_it_took(tmp_path):
    source = sources.cifar(tmp_path / "cifar", 20)
    done = commands.convert("cifar10", source, tmp_path / "out")
    assert 0 < done.writing < done.wall
    assert 50 << 20 < done.peak < 4 << 30
    assert done.cpu > 0.1


def test_tfds_is_given_the_rows_of_the_files(tmp_path):
    source = sources.cifar(tmp_path / "cifar", 20)
    found = list(tfds_cifar.examples(source, range(15, 45)))
    assert [key for key, _ in found] == [f"train_{row:06d}" for row in range(15, 45)]
    record = (source / "data_batch_2.bin").read_bytes()[3073 : 2 * 3073]
    assert found[6][1]["label"] == record[0]
    assert bytes(found[6][1]["image"].transpose(2, 0, 1).tobytes()) == record[1:]
