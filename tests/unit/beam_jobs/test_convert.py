import hashlib
import json
import os
import pathlib
import resource
import signal
import subprocess
import sys
import time

import numpy as np
import pytest

from beam_jobs import jobs
from pipeline import manifest

ROOT = pathlib.Path(__file__).parents[3]
# The first 16 digits of each file's SHA-256: conftest.py's mnist_arrays, --num_shards=train:2 --seed=1.
# The records themselves are held by test_shards.py against TensorFlow; this holds the order, the keys and the manifest.
GOLDEN = {
    "manifest.json": "9efa1c425db2fe98",
    "test-00000-of-00001.tfrecord": "2f18f11926645a3c",
    "train-00000-of-00002.tfrecord": "97c4f4fe216ee0cd",
    "train-00001-of-00002.tfrecord": "62a3158945b6e54c",
}
BUNDLES = "--runner=apache_beam.runners.direct.direct_runner.BundleBasedDirectRunner"


def flags(source, out, *more):
    return ("--dataset=mnist", f"--source={source}", f"--data_dir={out}", *more)


def digests(contents):
    return {name: hashlib.sha256(data).hexdigest()[:16] for name, data in contents.items()}


def test_the_bytes_of_a_tiny_data_set_are_pinned(mnist_folder, tmp_path, convert, contents):
    assert convert(*flags(mnist_folder(), tmp_path / "out", "--num_shards=train:2", "--seed=1")).code == 0
    assert digests(contents(tmp_path / "out")) == GOLDEN


@pytest.mark.parametrize(
    "how",
    [
        ["--direct_running_mode=multi_threading", "--direct_num_workers=2"],
        ["--direct_running_mode=multi_processing", "--direct_num_workers=2"],
        ["--direct_runner_bundle_repeat=1"],
        [BUNDLES],
    ],
)
def test_no_runner_or_number_of_workers_changes_a_byte(how, mnist_folder, tmp_path, convert, contents):
    source = mnist_folder()
    assert convert(*flags(source, tmp_path / "one", "--num_shards=5")).code == 0
    outcome = convert(*flags(source, tmp_path / "other", "--num_shards=5", *how))
    assert outcome.code == 0, outcome
    assert outcome.err == ""
    assert contents(tmp_path / "one") == contents(tmp_path / "other")


def test_a_failed_bundle_that_is_retried_changes_nothing(mnist_folder, tmp_path, convert, contents, monkeypatch):
    source = mnist_folder()
    assert convert(*flags(source, tmp_path / "one", "--num_shards=5")).code == 0
    failed, write_shard = [], jobs.write_shard

    def fails_once_after_writing(plan, split, shard):
        receipt = write_shard(plan, split, shard)
        if len(failed) < 3 and (split, shard) not in failed:  # a bundle is tried four times
            failed.append((split, shard))
            raise RuntimeError("the worker was lost")
        return receipt

    monkeypatch.setattr(jobs, "write_shard", fails_once_after_writing)
    assert convert(*flags(source, tmp_path / "other", "--num_shards=5", BUNDLES)).code == 0
    assert len(failed) == 3
    assert contents(tmp_path / "one") == contents(tmp_path / "other")


def test_gzip_or_not_gives_the_same_bytes(mnist_folder, tmp_path, convert, contents):
    for name, packed in (("plain", False), ("packed", True)):
        assert convert(*flags(mnist_folder(name, packed), tmp_path / f"{name}.out")).code == 0
    assert contents(tmp_path / "plain.out") == contents(tmp_path / "packed.out")


def test_the_manifest_says_nothing_of_this_machine(mnist_folder, tmp_path, convert):
    source = mnist_folder()
    assert convert(*flags(source, tmp_path / "out")).code == 0
    text = (tmp_path / "out" / "manifest.json").read_text()
    assert str(tmp_path) not in text
    assert "Runner" not in text
    assert set(json.loads(text)["options"]) == {"num_shards", "seed"}
    made = manifest.load(tmp_path / "out")
    assert {file.file: file.num_bytes for file in made.source}["train-images-idx3-ubyte"] == 16 + 50 * 784


def test_the_end_is_a_summary_with_the_next_command(mnist_folder, tmp_path, convert):
    outcome = convert(*flags(mnist_folder(), tmp_path / "out"))
    assert "  train: 50 examples, 1 shards, " in outcome.out
    assert f"train on it: python -m trainer.run --data_dir={tmp_path / 'out'} " in outcome.out
    assert outcome.err == ""


def test_digits_need_no_source(tmp_path, convert):
    pytest.importorskip("sklearn")
    assert convert("--dataset=digits", f"--data_dir={tmp_path / 'out'}").code == 0
    made = manifest.load(tmp_path / "out")
    assert {name: split.num_examples for name, split in made.splits.items()} == {"train": 1429, "test": 368}


@pytest.mark.parametrize(
    ("more", "message"),
    [
        (["--dataset=minst"], "--dataset: unknown 'minst'; did you mean 'mnist'?"),
        (["--source="], "--source is missing"),
        (["--overwite"], "did you mean --overwrite?"),
        (["--seed=x"], "argument --seed: invalid int value: 'x'"),
        (["--seed=-1"], "--seed=-1: must be in 0.."),
        (["--num_shards=51"], "51 shards for the 50 examples of split 'train'; at most 50"),
        (["--runner=FnApiRuner"], "did you mean 'FnApiRunner'?"),
        (["--direct_num_workers=-1"], "--direct_num_workers=-1: must be 0"),
        (["--runner=PortableRunner"], "--runner=PortableRunner: --job_endpoint is missing"),
        (["--environment_type=PROCESS"], "Option process_command is required for environment type PROCESS"),
        (["more"], "unexpected argument 'more'"),
        (["--dataset=digits"], "takes no --source"),
        (["--data_dir=/dev/null"], "/dev/null is not a folder"),
        (["--data_dir="], "--data_dir is missing"),
    ],
)
def test_a_usage_error_is_one_line(more, message, mnist_folder, tmp_path, convert, refused):
    refused(convert(*flags(mnist_folder(), tmp_path / "out", *more)), 2, message, data_dir=tmp_path / "out")
    assert not (tmp_path / "out").exists()


def test_a_shard_name_taken_by_a_folder_is_one_line(mnist_folder, tmp_path, convert, refused):
    (tmp_path / "out" / "test-00000-of-00001.tfrecord").mkdir(parents=True)
    outcome = convert(*flags(mnist_folder(), tmp_path / "out"))
    refused(outcome, 1, "test-00000-of-00001.tfrecord: cannot be written: Is a directory", data_dir=tmp_path / "out")


def test_help_is_fast_and_loads_neither_beam_nor_tensorflow():
    program = (
        "import sys\nfrom beam_jobs.convert import main\n"
        "try:\n    main(['--help'])\nexcept SystemExit:\n    pass\n"
        "print([m for m in ('apache_beam', 'tensorflow', 'sklearn') if m in sys.modules])"
    )
    began = time.monotonic()
    done = subprocess.run([sys.executable, "-c", program], cwd=ROOT, capture_output=True, text=True, check=True)
    assert done.stdout.splitlines()[-1] == "[]"
    for flag in (
        "--dataset",
        "--source",
        "--data_dir",
        "--num_shards",
        "--seed",
        "--overwrite",
        "--direct_num_workers",
    ):
        assert flag in done.stdout
    assert time.monotonic() - began < 3  # under one on an idle machine


def test_a_missing_extra_is_one_line_with_the_install(tmp_path):
    program = (
        "import importlib.util, sys\n"
        "find = importlib.util.find_spec\n"
        "importlib.util.find_spec = lambda name, *a: None if name == 'apache_beam' else find(name, *a)\n"
        "from beam_jobs.convert import entry_point\n"
        f"sys.argv[1:] = ['--dataset=digits', '--data_dir={tmp_path}']\n"
        "entry_point()"
    )
    done = subprocess.run([sys.executable, "-c", program], cwd=ROOT, capture_output=True, text=True, check=False)
    assert done.returncode == 2
    assert (
        done.stderr == "beam_jobs.convert: needs apache_beam, which is not installed: pip install 'stepfeed[convert]'\n"
    )


def test_a_process_ends_with_one_line_and_its_code(mnist_folder, tmp_path, convert_process, refused):
    source = mnist_folder()
    os.truncate(source / "t10k-labels-idx1-ubyte", 6)
    outcome = convert_process(*flags(source, tmp_path / "out"))
    refused(outcome, 1, "ends inside its header", data_dir=tmp_path / "out")


@pytest.mark.parametrize("module", ["simple_parsing", "numpy", "apache_beam"])
def test_ctrl_c_while_modules_are_loaded_is_one_line(module, tmp_path):
    program = (
        "import os, runpy, signal, sys\n"
        "class Interrupts:\n"
        "    def find_spec(name, *_):\n"
        f"        if name == {module!r}: os.kill(os.getpid(), signal.SIGINT)\n"
        "sys.meta_path.insert(0, Interrupts)\n"
        f"sys.argv[1:] = ['--dataset=mnist', '--source={tmp_path}', '--data_dir={tmp_path}']\n"
        "runpy.run_module('beam_jobs.convert', run_name='__main__')"
    )
    done = subprocess.run([sys.executable, "-c", program], cwd=ROOT, capture_output=True, text=True, check=False)
    assert (done.returncode, done.stderr) == (130, "beam_jobs.convert: interrupted\n")


@pytest.mark.parametrize(
    "mode",
    [
        "in_memory",
        pytest.param("multi_threading", marks=pytest.mark.slow),
        pytest.param("multi_processing", marks=pytest.mark.slow),
    ],
)
def test_a_full_disk_in_a_worker_is_one_line(mode, mnist_folder, tmp_path, convert_process, refused):
    def limit():  # as a full disk: no file can grow over 20,000 bytes; a shard of train takes 43,850
        signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
        resource.setrlimit(resource.RLIMIT_FSIZE, (20_000, 20_000))

    out = tmp_path / "out"
    workers = "1" if mode == "in_memory" else "2"
    outcome = convert_process(
        *flags(mnist_folder(), out, f"--direct_running_mode={mode}", f"--direct_num_workers={workers}"),
        preexec_fn=limit,
    )
    refused(outcome, 1, out / "train-00000-of-00001.tfrecord: cannot be written: File too large", data_dir=out)


@pytest.mark.parametrize(
    ("number", "mode"),
    [
        (signal.SIGINT, "in_memory"),
        pytest.param(signal.SIGTERM, "in_memory", marks=pytest.mark.slow),
        (signal.SIGTERM, "multi_processing"),
        pytest.param(signal.SIGINT, "multi_processing", marks=pytest.mark.slow),
    ],
)
def test_a_signal_ends_it_with_one_line_and_no_data_set(number, mode, mnist_folder, tmp_path, contents):
    out = tmp_path / "out"
    more = ["--num_shards=train:4000,test:20", f"--direct_running_mode={mode}"]
    more += ["--direct_num_workers=2"] if mode == "multi_processing" else []
    command = [sys.executable, "-m", "beam_jobs.convert", *flags(mnist_folder(arrays=many()), out, *more)]
    process = subprocess.Popen(command, cwd=ROOT, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    deadline = time.monotonic() + 60
    while len(list(out.glob(".converting*/train-*"))) < 20 and time.monotonic() < deadline:
        time.sleep(0.01)
    process.send_signal(number)
    _, err = process.communicate(timeout=20)
    assert err == "beam_jobs.convert: interrupted\n"
    assert process.returncode == 128 + number
    assert contents(out) == {}
    time.sleep(0.3)  # no worker goes on
    assert contents(out) == {}


def many():
    return {
        split: (np.zeros((n, 28, 28), np.uint8), np.zeros(n, np.uint8)) for split, n in (("train", 4000), ("test", 20))
    }
