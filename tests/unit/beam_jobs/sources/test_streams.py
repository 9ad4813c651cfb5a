"""Damage to every kind of file with a checksum: a single flipped bit is found, or changes nothing that is converted."""

import gzip
import hashlib
import io
import os
import pathlib
import random
import subprocess
import sys
import tarfile
import time
import zipfile
import zlib

import numpy as np
import PIL.Image
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from beam_jobs import sources
from beam_jobs.sources import parquet as parquet_files
from beam_jobs.sources import published, row_files, streams
from beam_jobs.sources.base import SourceOptions
from pipeline import images
from pipeline.errors import DataError
from pipeline.files.paths import LocalPath
from pipeline.images import BadImageError
from pipeline.manifest import SourceFile
from pipeline.records import framing, tf_example
from tests.helpers.converting import convert_in_process
from tests.helpers.raised import at

FLIPS = 40
ROOT = pathlib.Path(__file__).parents[4]
EMPTY = "e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855"  # of no byte, FIPS 180-4


def smooth_png(row):
    stream = io.BytesIO()
    PIL.Image.fromarray((np.add.outer(np.arange(8), np.arange(9)) * 3 + row).astype(np.uint8)).save(stream, "PNG")
    return stream.getvalue()


def cifar(tmp_path, cifar_folder, mode="w:gz"):
    folder, _ = cifar_folder(4)
    with tarfile.open(tmp_path / "cifar.tar.gz", mode) as tar:
        tar.add(folder, folder.name)
    return SourceOptions("cifar10", str(tmp_path / "cifar.tar.gz")), tmp_path / "cifar.tar.gz"


def mnist(tmp_path, mnist_folder):
    folder = mnist_folder(packed=True)
    return SourceOptions("mnist", str(folder)), folder / "train-images-idx3-ubyte.gz"


def records(tmp_path, pack):
    features = [{"image": smooth_png(row), "label": row % 3, "more": float(row)} for row in range(30)]
    path = tmp_path / "rows.tfrecord"
    path.write_bytes(pack(b"".join(framing.frame(tf_example.encode(each)) for each in features)))
    return SourceOptions("tfrecord", str(path), keep_columns=("more",)), path


def parquet(tmp_path, **options):
    path = tmp_path / "rows.parquet"
    columns = {"image": [smooth_png(row) for row in range(30)], "label": [row % 3 for row in range(30)]}
    pq.write_table(pa.table(columns), path, row_group_size=11, write_page_checksum=True, **options)
    return SourceOptions("parquet", str(path)), path


KINDS = {
    "tar.gz": lambda request: cifar(request.getfixturevalue("tmp_path"), request.getfixturevalue("cifar_folder")),
    "idx.gz": lambda request: mnist(request.getfixturevalue("tmp_path"), request.getfixturevalue("mnist_folder")),
    "tfrecord": lambda request: records(request.getfixturevalue("tmp_path"), bytes),
    "tfrecord, gzip": lambda request: records(request.getfixturevalue("tmp_path"), gzip.compress),
    "tfrecord, zlib": lambda request: records(request.getfixturevalue("tmp_path"), zlib.compress),
    "parquet": lambda request: parquet(request.getfixturevalue("tmp_path")),
    "parquet, zstd": lambda request: parquet(request.getfixturevalue("tmp_path"), compression="zstd"),
}


def content(options):
    """Returns all that a source gives, as a process does that has read nothing yet."""
    row_files._kept.clear()
    parquet_files._footer.cache_clear()
    source = sources.open_source(options)
    blocks = {split: source.read(split, np.arange(count)) for split, count in source.splits.items()}
    values = [
        (split, np.asarray(block.images, object).tolist(), block.labels.tolist(), list(block.keys), block.bad)
        for split, block in blocks.items()
    ]
    extra = [{name: np.asarray(column).tolist() for name, column in block.extra.items()} for block in blocks.values()]
    return source.class_names, source.splits, source.features, values, extra


@pytest.mark.parametrize("kind", KINDS)
def test_a_flipped_bit_is_found_or_changes_nothing(kind, request):
    options, path = KINDS[kind](request)
    whole, expected, draw, found = path.read_bytes(), content(options), random.Random(2026), 0
    for _ in range(FLIPS):
        bit = draw.randrange(8 * len(whole))
        data = bytearray(whole)
        data[bit // 8] ^= 1 << bit % 8
        path.write_bytes(data)
        try:
            outcome = content(options)
        except DataError as error:
            outcome = str(error)
            found += 1
        is_one_line = isinstance(outcome, str) and path.name in outcome and "\n" not in outcome
        assert is_one_line or outcome == expected, f"bit {bit} of {8 * len(whole)}"
    assert found >= FLIPS // 4  # much of a small Parquet file is statistics, which nothing reads


def test_no_bit_of_a_footer_loses_rows(tmp_path):
    options, path = parquet(tmp_path)
    whole, rows = path.read_bytes(), 30
    start = len(whole) - 8 - int.from_bytes(whole[-8:-4], "little")
    refused = set()
    for place in range(start, len(whole) - 8):
        if whole[place - 2] == 0x16 and whole[place] == 0x26:  # num_rows, before file_offset
            for bit in range(8):
                data = bytearray(whole)
                data[place - 1] ^= 1 << bit
                path.write_bytes(data)
                try:
                    assert sources.open_source(options).splits == {"train": rows}
                except DataError as error:
                    refused.add(str(error).split("; ")[-1])
    assert "it is corrupt, get the file again" in refused


def test_the_checksum_at_the_end_of_an_archive_is_read(tmp_path, cifar_folder):
    options, path = cifar(tmp_path, cifar_folder)
    whole = path.read_bytes()
    for place in (-8, -1):
        data = bytearray(whole)
        data[place] ^= 1
        path.write_bytes(data)
        with pytest.raises(DataError, check=at(path, "corrupt")):
            sources.open_source(options)
    for cut in (1, 8, 9):
        path.write_bytes(whole[:-cut])
        with pytest.raises(DataError, check=at(path, "cut short")):
            sources.open_source(options)


def test_nothing_is_published_from_a_damaged_archive(tmp_path, cifar_folder):
    _, path = cifar(tmp_path, cifar_folder)
    data = bytearray(path.read_bytes())
    data[-6] ^= 4
    path.write_bytes(data)
    with pytest.raises(DataError, match="corrupt"):
        convert_in_process("--dataset=cifar10", f"--source={path}", f"--data_dir={tmp_path / 'out'}")
    assert not (tmp_path / "out").exists()


def test_a_stream_that_goes_on_after_its_content_is_bounded(tmp_path, cifar_folder, monkeypatch):
    options, path = cifar(tmp_path, cifar_folder)
    path.write_bytes(path.read_bytes() + gzip.compress(bytes(3 << 20)))
    sources.open_source(options)
    monkeypatch.setattr(streams, "MAX_REST", 2 << 20)
    with pytest.raises(DataError, check=at(path, "2097152 bytes")):
        sources.open_source(options)


def test_a_flipped_bit_of_a_zip_is_found_or_changes_nothing(tmp_path):
    path, names, target = LocalPath(tmp_path / "rows.zip"), ["a", "b.gz"], tmp_path / "out"
    values = {name: np.random.default_rng(4).integers(0, 9, 3000, np.uint8).tobytes() for name in names}
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as made:
        for name in names:
            made.writestr(f"gzip/{name}", values[name])
    whole, draw, found = path.read_bytes(), random.Random(2026), 0
    for _ in range(FLIPS):
        data, bit = bytearray(whole), draw.randrange(8 * len(whole))
        data[bit // 8] ^= 1 << bit % 8
        path.write_bytes(data)
        for name in names:
            (target / name).unlink(missing_ok=True)
        try:
            published.unzip(path, "gzip", names, target)
            assert {name: (target / name).read_bytes() for name in names} == values
        except DataError:
            found += 1
            assert not (target / "b.gz").exists()
    assert found >= FLIPS // 2


def test_a_flipped_bit_of_a_png_file_is_found_or_changes_nothing():
    whole = smooth_png(3)
    expected = images.pixels(images.open_file(whole))
    for bit in range(8 * len(whole)):
        data = bytearray(whole)
        data[bit // 8] ^= 1 << bit % 8
        with pytest.raises(BadImageError):
            images.pixels(images.open_file(bytes(data)))
    for length in range(len(whole)):
        with pytest.raises(BadImageError):
            images.pixels(images.open_file(whole[:length]))
    assert (images.pixels(images.open_file(whole + b"more")) == expected).all()


def test_files_are_described_in_their_order_whatever_thread_reads_them(tmp_path):
    contents = [os.urandom(size) for size in [0, 1, 3 << 20, (1 << 20) - 1, 1 << 20, *range(200, 300)]]
    files = []
    for number, data in enumerate(contents):
        path = tmp_path / f"{number}.bin"
        path.write_bytes(data)
        files.append((f"folder/{number}", LocalPath(path)))
    described = streams.describe(files)
    assert described[0] == SourceFile("folder/0", 0, EMPTY)
    assert described == tuple(
        SourceFile(f"folder/{n}", len(data), hashlib.sha256(data).hexdigest()) for n, data in enumerate(contents)
    )


def test_a_missing_file_a_folder_and_a_pipe_are_one_line_errors(tmp_path):
    there = LocalPath(tmp_path / "there")
    there.write_bytes(b"x" * (5 << 20))
    os.mkfifo(tmp_path / "pipe")
    for name, problem in (("gone", "no such file"), (".", "is not a regular file"), ("pipe", "is not a regular file")):
        with pytest.raises(DataError) as raised:
            streams.describe([("a", there), ("b", LocalPath(tmp_path / name)), ("c", there)])
        assert str(raised.value) == f"{tmp_path / name}: {problem}"


def test_an_unreadable_file_ends_the_other_threads_early(tmp_path):
    """The unreadable one is found while a file of 64 GiB (a hole, which no disk holds) is being read."""
    large = LocalPath(tmp_path / "large")
    with open(large, "wb") as stream:
        stream.truncate(64 << 30)
    began = time.monotonic()
    with pytest.raises(DataError, check=at("/proc/self/mem", "Input/output error")):
        streams.describe([("a", large), ("b", LocalPath("/proc/self/mem"))])
    assert time.monotonic() - began < 10


def test_no_bar_is_drawn_where_stderr_is_no_terminal(tmp_path):
    path = tmp_path / "large"
    with open(path, "wb") as stream:
        stream.truncate(64 << 20)
    program = (
        "from pipeline.files.paths import LocalPath; from beam_jobs.sources import streams;"
        "streams._SECONDS_WITHOUT_BAR = 0.0;"
        f"print(streams.describe([('a', LocalPath({str(path)!r}))])[0].num_bytes)"
    )
    done = subprocess.run([sys.executable, "-c", program], cwd=ROOT, capture_output=True, text=True, check=True)
    assert (done.stdout, done.stderr) == ("67108864\n", "")
