"""The benchmarks run and print ratios; judging the ratios is left to a person with an idle machine."""

import json
import pathlib
import re

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from benchmarks import commands, feeding, side_by_side, sources, tfds_cifar
from pipeline.errors import DataError
from tests.helpers import forked

RATIO = r"ratio \d+\.\d\d \(\d+\.\d\d to \d+\.\d\d\)"
BOTH = rf".* img/s against [\d,]+: {RATIO}; [\d.,]+ us of processor per image against [\d.,]+: {RATIO}"


def run(*flags, benchmark="convert_throughput"):
    return forked.fresh(["-m", f"benchmarks.{benchmark}", *flags], timeout=600)


@pytest.mark.slow
def test_the_floor_is_measured_and_printed_as_ratios(tmp_path):
    done = run("--only=floor", "--rounds=1", "--images=6000", f"--work_dir={tmp_path}")
    assert done.returncode == 0, done.stderr
    table = done.stdout.split("\n\n")[1].splitlines()
    assert table[0].split() == ["compared", "ratio", "(lowest", "to", "highest)", "medians"]
    names = ("printed", "start-up apart", "with opening", "processor time, with opening")
    for line, name in zip(table[1:], names, strict=True):
        assert re.match(rf"part of the floor's speed, {name} +-?\d+\.\d\d  \(", line)
    assert not list(tmp_path.iterdir())


@pytest.mark.slow
def test_tar_shards_are_measured_against_their_files(tmp_path):
    done = run("--only=tar", "--rounds=1", "--gigabytes=0.02", f"--work_dir={tmp_path}")
    assert done.returncode == 0, done.stderr
    speed, memory = done.stdout.split("\n\n")[1].splitlines()[1:]
    assert re.match(r"0\.0 GB in tar shards, part of the files' speed, processor time +\d\.\d\d  \(", speed)
    assert re.match(r"their peak memory, against the files' +[01]\.\d\d  .*  \d+, \d+ MiB$", memory)
    assert not list(tmp_path.iterdir())


def test_the_processor_is_named_with_its_widest_vectors(tmp_path, monkeypatch):
    assert re.fullmatch(r".*\w.*, (AVX-512|AVX2|AVX|SSE4\.2|vector extension unknown)", commands.processor())
    zen3 = "processor : 0\nmodel name : AMD EPYC 7763\nflags : fpu sse4_2 avx avx2 fma\n\n"
    read = pathlib.Path.read_text
    monkeypatch.setattr(
        pathlib.Path, "read_text", lambda path, *given: zen3 if str(path) == "/proc/cpuinfo" else read(path, *given)
    )
    assert commands.processor() == "AMD EPYC 7763, AVX2"
    assert feeding.machine()["processor"] == "AMD EPYC 7763, AVX2"


@pytest.mark.slow
def test_a_run_says_what_it_took(tmp_path):
    source = sources.cifar(tmp_path / "cifar", 20)
    done = commands.convert("cifar10", source, tmp_path / "out")
    assert 0 < done.writing < done.wall
    assert 50 << 20 < done.peak < 4 << 30
    assert done.cpu > 0.1


def test_the_peak_of_a_run_is_its_own_whatever_the_benchmark_holds():
    held = b"x" * (500 << 20)
    least = commands.run("timeit", ["-n1", "-r1", "pass"]).peak
    more = commands.run("timeit", ["-n1", "-r1", "x = b'x' * (300 << 20)"]).peak
    assert 5 << 20 < least < 60 << 20 < len(held)
    assert 295 << 20 < more - least < 310 << 20


def test_a_run_that_fails_is_an_error_with_its_last_line():
    with pytest.raises(DataError, match="timeit failed: NameError: name 'nothing' is not defined"):
        commands.run("timeit", ["-n1", "-r1", "nothing"])


def test_tfds_is_given_the_rows_of_the_files(tmp_path):
    source = sources.cifar(tmp_path / "cifar", 20)
    found = list(tfds_cifar.examples(source, range(15, 45)))
    assert [key for key, _ in found] == [f"train_{row:06d}" for row in range(15, 45)]
    record = (source / "data_batch_2.bin").read_bytes()[3073 : 2 * 3073]
    assert found[6][1]["label"] == record[0]
    assert bytes(found[6][1]["image"].transpose(2, 0, 1).tobytes()) == record[1:]


@pytest.mark.slow
def test_threads_are_counted_with_a_timeout_for_each_exchange_and_without():
    flags = ("--only=threads", "--model=softmax_regression", "--global_batch_size=16", "--train_steps=200")
    lines = lines_of(run(*flags, benchmark="topology"))
    names = ("a timeout for each", "a thread that watches")
    found = [
        re.fullmatch(rf"two workers, 200 steps, {name}: ([\d,]+) threads in a worker, [\d,]+ steps/sec", line)
        for name, line in zip(names, lines, strict=True)
    ]
    timed, watched = (int(one[1].replace(",", "")) for one in found)
    assert timed > watched + 3 * 200


@pytest.fixture(scope="module")
def cifar(tmp_path_factory):
    folder = tmp_path_factory.mktemp("benchmarks")
    commands.convert("cifar10", sources.cifar(folder / "source", 1_000), folder / "data", "--num_shards=train:4,test:1")
    return folder / "data"


def lines_of(done):
    assert done.returncode == 0, done.stderr
    first, *lines = done.stdout.splitlines()
    assert first == f"processor: {commands.processor()}"
    return lines


@pytest.mark.slow
def test_windows_are_measured_against_reading_memory_one_by_one_and_the_promise(cifar):
    flags = (f"--data_dir={cifar}", "--images=6000", "--rounds=1", "--seconds=0.1")
    first, *lines = lines_of(run(*flags, benchmark="windowed_throughput"))
    assert first in ("records are unpacked by compiled code", "records are unpacked by NumPy")
    readers = ("threads", "processes", "TFRecordDataset")
    names = [rf"in windows, unaugmented, against a bare checked read \({name}\)" for name in readers]
    names += ["in windows, cifar10_tutorial, against the same from memory"]
    names += [f"in windows, {recipe}, against one by one" for recipe in ("none", "cifar10_tutorial")]
    alone = ("zlib", "ISA-L")
    names += [rf"in windows, unaugmented, compressed, against {library} alone \(\d threads\)" for library in alone]
    names += ["in windows, unaugmented, compressed, against windows of uncompressed shards"]
    names += ["in windows, unaugmented, 1,000 classes, against 100 classes"]
    names += [f"in windows, unaugmented, from the cache, against {name}" for name in ("the store", "a local data set")]
    assert re.fullmatch(r"compressed to [01]\.\d\d of [\d,]+ bytes", lines.pop(-8))
    for line, name in zip(lines[:-1], names, strict=True):
        assert re.fullmatch(name + BOTH, line), line
    memory = r"[\d,]+ MB and [\d,]+ MB of mapped files, against 604 MB promised"
    assert re.fullmatch(rf"peak memory, .* shuffle_bytes=2 MB: {memory}: {RATIO}", lines[-1])


@pytest.mark.slow
def test_crops_out_of_jpegs_are_measured_against_decoding_alone():
    flags = ("--images=200", "--height=300", "--width=400", "--size=64", "--global_batch_size=16", "--rounds=1")
    *lines, in_place, scaled, difference = lines_of(run(*flags, "--seconds=0.1", benchmark="jpeg_throughput"))
    assert re.fullmatch(rf"random_resized_crop\(.*\) of records in place, against converted{BOTH}", in_place)
    assert re.fullmatch(rf"scaled_decoding, against the same, decoded in full{BOTH}", scaled)
    less = re.fullmatch(
        r"  its crops differ from these by a PSNR of (\d+) dB; of 5% of them by less than (\d+)", difference
    )
    assert 25 < int(less[2]) <= int(less[1]) < 60
    for line, name in zip(lines[-2:], ("random_crop", "random_resized_crop"), strict=True):
        assert re.fullmatch(rf"{name}\(size=64, normalize=False\), against decode_and_crop_jpeg of{BOTH}", line), line


@pytest.mark.slow
def test_models_are_trained_with_scaled_decoding_and_without(tmp_path):
    for split, count in (("train", 64), ("test", 16)):
        made = pq.read_table(sources.parquet(tmp_path / "made", count, (32, 32), "JPEG"))
        images = [{"bytes": image, "path": ""} for image in made["image"].to_pylist()]
        pq.write_table(pa.table({"img": images, "label": made["label"]}), tmp_path / f"cifar10-{split}.parquet")
    flags = (f"--cifar10={tmp_path}", "--images=64", "--rounds=1")
    *each, full, scaled = lines_of(run(*flags, benchmark="jpeg_throughput"))
    ways = [(trained, tested) for trained in ("in full", "scaled") for tested in ("in full", "scaled")]
    for line, (trained, tested) in zip(each[-4:], ways, strict=True):
        assert re.fullmatch(rf"  seed 0, trained {trained}, tested {tested}: [01]\.\d+", line)
    for line, tested in ((full, "in full"), (scaled, "scaled")):
        assert re.match(rf"tested {tested}: [01]\.\d+ trained in full, [01]\.\d+ scaled; difference [+-]", line)


@pytest.mark.slow
def test_starts_are_measured_at_a_far_step_against_step_0(cifar):
    lines = lines_of(run(f"--data_dir={cifar}", "--rounds=1", benchmark="cold_start"))
    for line, kind in zip(lines, ("resident", "windowed"), strict=True):
        assert re.fullmatch(rf"{kind}, first batch after .* s at step 10,000,000 against .* at step 0 .*{RATIO}", line)


def test_the_order_is_measured_against_numpy():
    lines = lines_of(run("--records=200000", "--rounds=1", benchmark="order_throughput"))
    for line, size in zip(lines, ("16,384", "131,072", "1,000,000"), strict=True):
        assert re.fullmatch(rf"[\d,]+ records in windows of {size}: .*{RATIO}", line), line


@pytest.mark.slow
def test_distributed_iterators_are_measured_against_a_plain_one(cifar):
    flags = (f"--data_dir={cifar}", "--global_batch_size=64", "--rounds=1", "--seconds=0.05")
    lines = lines_of(run(*flags, benchmark="distributed_iterator"))
    assert sum("next inside a tf.function" in line for line in lines) == 2
    assert sum("next outside a tf.function" in line for line in lines) == 2
    assert sum(bool(re.search(r"mirrored x4, after .* of before x \d", line)) for line in lines) == 4


@pytest.mark.slow
def test_a_mixture_is_measured_against_the_whole(cifar):
    lines = lines_of(run(f"--data_dir={cifar}", "--rounds=1", "--seconds=0.05", benchmark="mixture_throughput"))
    for line, what in zip(
        lines, (f"{r}, batch {b}" for r in ("none", "cifar10_tutorial") for b in (128, 512)), strict=True
    ):
        assert re.fullmatch(rf"{what}: [\d.]+ us of processor per image against [\d.]+: {RATIO}", line), line


@pytest.mark.slow
def test_virtual_replicas_are_measured_against_the_classic_step(cifar):
    flags = ("--only=bytes,steps", f"--data_dir={cifar}", "--model=mlp", "--global_batch_size=16", "--rounds=1")
    sent, *steps = lines_of(run(*flags, "--seconds=0.05", benchmark="topology"))
    assert re.fullmatch(r"two workers send per step: classic -?[\d,]+ bytes, V = 2 -?[\d,]+ bytes: ratio .*", sent)
    assert [line.split(":")[0] for line in steps[::3]] == [f"mlp, 16 rows on {devices}" for devices in (4, 2, 1)]
    measured = rf"  V = \d: .* ms; of the classic speed, {RATIO}; by processor time, {RATIO}"
    assert sum(bool(re.fullmatch(measured, line)) for line in steps) == 6


@pytest.mark.slow
def test_stale_gradients_are_those_of_earlier_weights(cifar, tmp_path):
    flags = (f"--data_dir={cifar}", "--model=softmax_regression", "--delays=0,9,30", "--steps=20")
    done = run(*flags, f"--json={tmp_path}/s.json", f"--chart={tmp_path}/s.svg", benchmark="staleness")
    assert len(lines_of(done)) == 3
    losses = {delay: one["losses"] for delay, one in json.loads((tmp_path / "s.json").read_text()).items()}
    assert {len(one) for one in losses.values()} == {3}
    assert len({one[0] for one in losses.values()}) == 1  # all begin with the same weights
    assert losses["9"][1] == losses["30"][1]  # ten gradients of the first weights
    assert losses["9"][2] != losses["30"][2]
    assert losses["0"][1] != losses["9"][1]
    assert "<svg" in (tmp_path / "s.svg").read_text()


@pytest.mark.slow
def test_the_trainer_is_measured_beside_its_peers(cifar):
    flags = ("--only=peers", "--models=cifar10_cnn", "--precision=float32", "--global_batch_size=4")
    done = run(f"--data_dir={cifar}", *flags, "--rounds=1", "--seconds=0.05", benchmark="training")
    torch = [line.split(":")[0] for line in lines_of(done) if ": skipped, ModuleNotFoundError" in line]
    lines = [line for line in lines_of(done) if ": skipped, " not in line]
    assert torch in ([], ["PyTorch eager", "PyTorch compile", "limit PyTorch", "PyTorch eager", "PyTorch compile"])
    names = list(side_by_side.CONTESTANTS["one constant batch"])
    for kind, found in (("one constant batch", names), ("real input", names[:6])):
        assert re.match(rf"cifar10_cnn, float32, 4 rows, {kind}: 1,068,298 weights", lines.pop(0))
        for name in found:
            if name in torch or (kind == "real input" and name == "tf.function XLA"):
                continue
            measured = r"\d+\.\d+ s of processor per step +[\d,]+ img/s +[\d,]+ MB"
            ratios = rf"; of [\w. ]+ by processor time, {RATIO}; of [\w. ]+ by the clock, {RATIO}"
            assert re.fullmatch(rf"  {re.escape(name)} +{measured}{ratios}", lines.pop(0))
    assert not lines


@pytest.mark.slow
def test_scaling_is_measured_modelled_and_drawn(cifar, tmp_path):
    flags = (f"--data_dir={cifar}", "--models=softmax_regression", "--seconds=0.5", "--links=")
    done = run(*flags, f"--json={tmp_path}/s.json", f"--chart={tmp_path}/s.svg", benchmark="scaling")
    parts, beside, *jobs, mean = lines_of(done)
    assert re.fullmatch(r"  2 at once, each alone: [\d.]+ ms per step", beside)
    assert re.match(r"softmax_regression: 128 rows per worker, [\d.]+ ms per step, 0\.12 MB of gradients; ", parts)
    names = [re.match(r"  (\w+, \d) on one machine: [\d,]+ img/s, loss [\d.]+", job)[1] for job in jobs]
    assert names == ["synchronous, 1", "asynchronous, 1", "synchronous, 2", "asynchronous, 2"]
    assert re.fullmatch(r"the model is off by \d+% in the mean of 2 jobs, at most by \d+%", mean)
    found = json.loads((tmp_path / "s.json").read_text())["models"][0]
    assert found["parts"]["gradients"] == 4 * (32 * 32 * 3 * 10 + 10)
    assert [point["predicted"] is None for point in found["points"]] == [True, True, False, False]
    assert "<svg" in (tmp_path / "s.svg").read_text()


@pytest.mark.parametrize(
    ("benchmark", "flag", "fact"),
    [
        ("convert_throughput", "--only=flor", "'floor'"),
        ("convert_throughput", "--images=61", "--images=61"),
        ("convert_throughput", "--rounds=0", "--rounds=0"),
        ("windowed_throughput", "--only=reed", "'read'"),
        ("jpeg_throughput", "--size=0", "--size=0"),
        ("cold_start", "--step=-1", "--step=-1"),
        ("topology", "--global_batch_size=7", "--global_batch_size=7"),
        ("scaling", "--links=1000,fast", "'fast'"),
        ("training", "--contestants=PyTorch eeger", "'PyTorch eager'"),
        ("training", "--precision=float16", "'float16'"),
    ],
)
def test_a_wrong_flag_is_one_line(benchmark, flag, fact):
    done = forked.run(["-m", f"benchmarks.{benchmark}", flag])
    assert (done.returncode, done.stdout) in ((2, ""), (2, f"processor: {commands.processor()}\n"))
    assert fact in done.stderr
    assert done.stderr.count("\n") == 1


def test_a_folder_without_a_data_set_is_one_line_before_anything_is_measured(tmp_path):
    done = run(f"--data_dir={tmp_path}/none", "--only=peers", benchmark="training")
    assert done.returncode == 1
    assert done.stderr.startswith(f"benchmarks.training: {tmp_path}/none: there is no such folder; make one with: ")
    assert len(done.stderr.splitlines()) == 1
