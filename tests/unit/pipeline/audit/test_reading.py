"""Who reads what, against a count of every record, and as a picture."""

import itertools
import pathlib

import numpy as np
import pytest
from matplotlib.figure import Figure
from PIL import Image

from pipeline.audit import picture
from pipeline.audit.command import reading_lines
from pipeline.audit.contract import Contract
from pipeline.commands.text import size_of
from pipeline.order.reading import Reading, Topology
from pipeline.request import Request
from pipeline.resolved import resolve
from tests.helpers.datasets import edit_manifest, write_dataset


def source_of(folder, counts=(30, 0, 25, 44), split="train", **changes):
    if not (folder / "manifest.json").exists():
        write_dataset(folder, counts, (2, 3, 1))
    arguments = {"global_batch_size": 12, "training": True, "streams": 4, "shuffle_bytes": 240, "seed": 3}
    return resolve(Request(folder, split, **(arguments | changes)))


def reading_of(folder, topology, counts=(30, 0, 25, 44), epoch=0, **changes):
    source = source_of(folder, counts, **changes)
    return Reading(source.order, source.spec, source.selection, epoch, topology)


@pytest.mark.parametrize("split", ["train", "train[10:80]", "train[50:]+test"])
@pytest.mark.parametrize("streams", [1, 2, 4, 12])
@pytest.mark.parametrize("training", [True, False])
@pytest.mark.quick(6)
def test_bytes_and_shards_are_those_of_the_records_of_the_streams(tmp_path, split, streams, training):
    for workers, epoch in itertools.product((1, 2, 3, 4, 6, 12), (0, 5)):
        topology = Topology(workers, workers, 12)
        reading = reading_of(tmp_path, topology, epoch=epoch, split=split, streams=streams, training=training)
        source = source_of(tmp_path, split=split, streams=streams, training=training)
        sizes = np.concatenate([np.full(s.num_examples, s.shard.stride) for s in source.selection.segments])
        bounds, q = source.order.stream_bounds(), source.order.rows_per_stream
        contract = Contract.of(source).epoch(epoch)
        total = 0
        for worker, rows in enumerate(topology.worker_rows().tolist()):
            streams_of_worker = sorted({row // q for row in range(*rows)})
            records = np.concatenate([contract.stream(k, 0, bounds[k + 1] - bounds[k])[0] for k in streams_of_worker])
            assert list(range(*reading.streams[worker].tolist())) == streams_of_worker
            assert reading.worker_bytes[worker] == sizes[records].sum()
            assert set(reading.shards_of(worker)) == {source.selection.locate(int(r))[0] for r in records}
            total += sizes[records].sum()
        assert reading.split_bytes == sizes.sum()
        assert reading.amplification == pytest.approx(total / sizes.sum())


def test_amplification_is_the_number_of_workers_that_share_a_stream(tmp_path):
    expected = {(1, 1): 1, (1, 4): 4, (4, 1): 1, (4, 2): 1, (4, 4): 1, (4, 12): 3, (2, 12): 6, (4, 3): 1.5, (12, 6): 1}
    for (streams, workers), times in expected.items():
        reading = reading_of(tmp_path, Topology(workers, workers, 12), (48, 48), streams=streams)
        assert reading.amplification == times


def test_the_table_names_the_streams_that_are_read_once(tmp_path):
    for streams, workers, named in ((4, 12, 12), (4, 6, 6), (4, 4, None), (12, 4, None)):
        reading = reading_of(tmp_path, Topology(workers, workers, 12), streams=streams)
        notes = [line for line in reading_lines(reading, list_all=False) if line.startswith("note: ")]
        assert len(notes) == (named is not None)
        if named:
            assert f"{workers} workers with --streams={streams} read the split {reading.amplification:.2f} " in notes[0]
            assert f"--streams={named} (another order) reads it once" in notes[0]
            better = reading_of(tmp_path, reading.topology, streams=named)
            assert better.amplification == 1


def test_memory_is_what_the_design_promises(tmp_path):
    reading = reading_of(tmp_path, Topology(2, 4, 12))
    assert reading.memory.tolist() == [2 * 240 * 2 // 4] * 2
    # Streams of 24, 25, 25, 25 records in 3 windows of 8 or 9 records of 6 bytes; the two largest: 16, 17, 17, 17.
    assert reading.windows_memory.tolist() == [(16 + 17) * 6, (17 + 17) * 6]
    assert (reading.windows_memory <= reading.memory).all()


def test_padding_is_counted_by_worker(tmp_path):
    for workers, streams in itertools.product((1, 2, 3, 4, 12), (1, 2, 4)):
        reading = reading_of(tmp_path, Topology(workers, workers, 12), streams=streams)
        _, real = Contract.of(source_of(tmp_path, streams=streams)).batch(reading.order.steps_per_epoch - 1)
        assert reading.padding.tolist() == (~real).reshape(workers, -1).sum(1).tolist()
        assert reading.padding.sum() == 9


def test_bytes_of_records_of_unequal_length_are_shares_of_the_file(tmp_path):
    write_dataset(tmp_path, (30, 20), (2, 3, 1))

    def change(content):
        for shard, size in zip(content["splits"]["train"]["shards"], (3001, 1999), strict=True):
            shard.update(stride=None, num_bytes=size)

    edit_manifest(tmp_path, change)
    reading = reading_of(tmp_path, Topology(4, 4, 12))
    assert reading.split_bytes == 5000
    assert reading.worker_bytes.sum() == 5000
    assert abs(reading.worker_bytes - 1250).max() <= 60  # a record is about 100 bytes


def test_the_table_shows_the_first_and_the_last_of_many_workers(tmp_path):
    reading = reading_of(tmp_path, Topology(24, 24, 24), global_batch_size=24)
    lines = reading_lines(reading, list_all=False)
    shown = [line.split()[0] for line in lines[2:] if line[:1].isdigit() or line.startswith("...")]
    assert shown == [*map(str, range(8)), "...", *map(str, range(16, 24))]
    assert "8 more: --list_all" in next(line for line in lines if line.startswith("..."))
    every = [line for line in reading_lines(reading, list_all=True) if line[:1].isdigit()]
    assert len(every) == 24


def test_what_a_worker_reads_of_a_huge_split_is_in_its_own_unit(tmp_path):
    topology = Topology(1024, 1024, 1024)
    reading = reading_of(tmp_path, topology, (2048, 2048), streams=1024, global_batch_size=1024, shuffle_bytes=1 << 20)
    lines = reading_lines(reading, list_all=False)
    each = reading.split_bytes // 1024
    assert (
        f"read amplification 1.00: all workers together read {size_of(reading.split_bytes)} of a split of" in lines[-3]
    )
    assert lines[-3].endswith(f"; a worker reads {each} bytes")
    assert lines[2].split()[4:6] == [str(each), "bytes"]
    assert "at most 2.0 KiB of decoded images; the two largest windows of each stream take 24 bytes" in lines[-2]


def colours_of(path: pathlib.Path) -> np.ndarray:
    pixels = np.asarray(Image.open(path).convert("RGB")).reshape(-1, 3)
    return np.unique(pixels, axis=0)


@pytest.mark.parametrize(
    ("streams", "workers"),
    [pytest.param(1, 1, marks=pytest.mark.slow), (4, 6), pytest.param(12, 2, marks=pytest.mark.slow)],
)
def test_the_picture_has_a_colour_for_every_stream(tmp_path, streams, workers):
    reading = reading_of(tmp_path, Topology(workers, workers, 12), streams=streams)
    path = tmp_path / "who.png"
    picture.draw(reading, "made", str(path))
    found = colours_of(path).astype(int)
    parts = picture._draw_workers(Figure().subplots(), reading, 1)
    colours = np.unique(parts.to_rgba(parts.get_array())[:, :3] * 255, axis=0)
    assert len(colours) == streams
    for colour in colours:
        assert (abs(found - colour) <= 1).all(axis=1).any()
    assert Image.open(path).size == (1320, 880)


def test_in_the_picture_a_worker_has_its_streams_and_no_others(tmp_path):
    reading = reading_of(tmp_path, Topology(6, 6, 12), (48, 48), streams=4)
    parts = picture._draw_workers(Figure().subplots(), reading, 1)
    drawn = [
        (round(path.get_extents().y0 + 0.5), k, path.get_extents().intervalx.tolist())
        for path, k in zip(parts.get_paths(), parts.get_array().tolist(), strict=True)
    ]
    size = reading.split_bytes / 4
    expected = [(w, k) for w, streams in enumerate(reading.streams.tolist()) for k in range(*streams)]
    assert drawn == [(w, k, [k * size, (k + 1) * size]) for w, k in expected]


def test_of_1024_workers_all_are_in_the_picture(tmp_path):
    reading = reading_of(
        tmp_path, Topology(1024, 1024, 1024), (2048, 2048), streams=1024, global_batch_size=1024, shuffle_bytes=1 << 20
    )
    figure = Figure(figsize=(6, 5), dpi=100)
    axes = figure.add_axes((0, 0, 1, 1))
    picture._draw_workers(axes, reading, 1)
    axes.set_axis_off()
    axes.set_title("", loc="left")
    figure.savefig(tmp_path / "workers.png")
    coloured = (np.asarray(Image.open(tmp_path / "workers.png").convert("RGB")) < 250).any(axis=2)
    assert coloured.any(axis=1).all()
    assert coloured.any(axis=0).all()
