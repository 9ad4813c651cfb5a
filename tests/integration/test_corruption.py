"""Damage to shards that were intact at first: no changed pixel or label reaches a step, whatever is hit, and when."""

import collections
import dataclasses
import pathlib
import re

import numpy as np
import pytest
import tensorflow as tf

from pipeline import Shard, input_fn, skipped_records
from pipeline import manifest as manifests
from pipeline.errors import DataError, UsageError
from pipeline.manifest import naming
from pipeline.manifest.splits import select
from pipeline.read.corruption import Corruption
from pipeline.read.records_reader import RecordsReader
from pipeline.read.rows_reader import Rows, RowsReader
from pipeline.read.shards import Shards
from pipeline.read.sidecars import shard_members, shard_offsets
from pipeline.records import tf_example
from tests.helpers.datasets import Kind, encoded, image_of, key_of, write_dataset
from tests.helpers.runs import finish, start, start_workers, wait_for_step
from trainer import run, runtime

SHAPE, CLASSES = (8, 6, 3), 3
COUNTS = (11, 0, 29, 20)
HIT, SEGMENT = 2, 1  # the damaged shard, records 11 to 39; its number not counting the empty shard
EVERYTHING = np.array([[segment, 0, count] for segment, count in enumerate((11, 29, 20))])
KINDS = {
    "raw": Kind(),
    "raw, offsets": Kind(unequal_keys=True),
    "png, offsets": Kind("png", varied=True),
    "jpeg, offsets": Kind("jpeg", varied=True),
}
EACH = pytest.mark.parametrize(
    "kind",
    [pytest.param(kind, marks=[pytest.mark.slow] if kind.encoding == "jpeg" else []) for kind in KINDS.values()],
    ids=KINDS.keys(),
)
FLIPS = 200


@dataclasses.dataclass(frozen=True)
class Target:
    """A shard to damage.

    Attributes:
      path: path of its file.
      whole: intact content.
      offsets: offsets of its records, and of the end.
      first: record id of its first record.
    """

    path: pathlib.Path
    whole: bytes
    offsets: np.ndarray
    first: int

    def flip(self, *bits):
        """Writes the shard with these bits flipped."""
        data = bytearray(self.whole)
        for bit in bits:
            data[bit // 8] ^= 1 << bit % 8
        self.path.write_bytes(data)

    def record(self, bit):
        """Returns the number, within the shard, of the record that contains a bit."""
        return int(np.searchsorted(self.offsets, bit // 8, "right")) - 1

    def bits(self, count, seed=0):
        """Returns random bit positions in the whole file."""
        return np.random.default_rng(seed).integers(0, 8 * len(self.whole), count).tolist()

    def bits_of_records(self, count, seed=0):
        """Returns a bit position in each of `count` different records."""
        draw = np.random.default_rng(seed)
        chosen = draw.choice(len(self.offsets) - 1, count, replace=False).tolist()
        return [int(draw.integers(8 * self.offsets[i], 8 * self.offsets[i + 1])) for i in chosen]


def made(folder, kind, counts=COUNTS):
    """Writes a data set and returns the shard to damage."""
    write_dataset(folder, counts, SHAPE, test_counts=(7,), classes=CLASSES, kind=kind)
    shard = manifests.load(folder).splits["train"].shards[HIT]
    offsets = np.zeros(1, np.int64) if kind.compression else shard_offsets(str(folder), shard)
    path = folder / shard.file
    return Target(path, path.read_bytes(), offsets, sum(counts[:HIT]))


def reader_of(folder, policy="raise", most=1000):
    manifest = manifests.load(folder)
    shards = Shards.found(str(folder), select(manifest, "train").segments, Corruption(str(folder), policy, most))
    return RowsReader.fit(manifest, shards, with_keys=True) or RecordsReader(shards)


def examples(found):
    """Returns [(image's bytes, label, key)] of the records from a reader."""
    if isinstance(found, Rows):
        images = [image.tobytes() for image in found.images]
        return list(zip(images, found.labels.tolist(), found.keys.tolist(), strict=True))
    decoded = [tf_example.decode(record, ["image", "label", "key"]) for record in found.as_bytes()]
    return [(e["image"][0], int(e["label"][0]), e["key"][0]) for e in decoded]


def original(number, kind):
    return encoded(image_of(number, SHAPE, kind), kind.encoding), number % CLASSES, key_of("train", number, kind)


@EACH
def test_every_flipped_bit_is_refused_and_its_record_named(kind, tmp_path):
    target = made(tmp_path, kind)
    reader_of(tmp_path).read(EVERYTHING)
    for bit in target.bits(FLIPS):
        target.flip(bit)
        number = target.record(bit)
        where = rf"{target.path.name}, record {number}, byte offset {target.offsets[number]}: .* wrong; to see all that"
        for pieces in (EVERYTHING, np.array([[0, 0, 3], [SEGMENT, number, number + 1]])):
            with pytest.raises(DataError, match=where):
                reader_of(tmp_path).read(pieces)


@EACH
def test_every_flipped_bit_is_skipped_counted_and_nothing_else_changes(kind, tmp_path):
    target = made(tmp_path, kind)
    whole = [original(number, kind) for number in range(sum(COUNTS))]
    assert examples(reader_of(tmp_path).read(EVERYTHING)) == whole
    for bit in target.bits(FLIPS):
        target.flip(bit)
        number = target.record(bit)
        found = reader_of(tmp_path, "skip").read(EVERYTHING)
        assert np.flatnonzero(~found.good).tolist() == [target.first + number]
        read = examples(found)
        assert read.pop(target.first + number) in whole
        assert read == whole[: target.first + number] + whole[target.first + number + 1 :]
        part = reader_of(tmp_path, "skip").read(np.array([[SEGMENT, number, number + 1], [0, 2, 3]]))
        assert part.good.tolist() == [False, True]
        assert examples(part) == [whole[2]] * 2
    assert {(r.file, r.record) for r in skipped_records(tmp_path)} == {
        (str(target.path), target.record(bit)) for bit in target.bits(FLIPS)
    }


def test_every_flipped_bit_of_a_compressed_shard_is_refused(tmp_path):
    """What is read before the damage is right; where no record is hit (the file's header), it is the file's CRC."""
    kind = Kind(compression="GZIP")
    target = made(tmp_path, kind)
    numbers = range(target.first, target.first + COUNTS[HIT])
    whole = [original(number, kind) for number in numbers]
    named = rf"{target.path.name}(, record (\d+), byte offset \d+: .*|: every record is whole, but the file's CRC32C) "
    seen = set()
    for bit in target.bits(FLIPS):
        target.flip(bit)
        with pytest.raises(DataError, match=named) as caught:
            reader_of(tmp_path).read(EVERYTHING)
        record = re.search(named, str(caught.value))[2]
        first_bad = COUNTS[HIT] if record is None else int(record)
        seen.add(first_bad)
        assert first_bad <= COUNTS[HIT]
        if first_bad:
            good = reader_of(tmp_path).read(np.array([[SEGMENT, 0, first_bad]]))
            assert examples(good) == whole[:first_bad]
    assert len(seen) > COUNTS[HIT] // 2  # all over the shard
    with pytest.raises(UsageError, match="compressed as one GZIP stream, in which nothing can be skipped"):
        batches(tmp_path, "resident", on_corrupt="skip")


BATCH, T = 12, 5
WAYS = {"resident": {}, "windowed": {"streams": 3, "shuffle_bytes": 3 * 7 * 144}}
BOTH = pytest.mark.parametrize("way", WAYS)
MOSTLY_RESIDENT = pytest.mark.parametrize("way", ["resident", pytest.param("windowed", marks=pytest.mark.slow)])


def batches(folder, way, **changes):
    arguments = {"global_batch_size": BATCH, "training": True, "epochs": 2, "features": ("key",), "record_ids": True}
    return input_fn(folder, **arguments, **WAYS[way], **changes)


def refusal(folder, way, **changes):
    """Returns the one-line error that ends an input, after checking every row before it; None if it does not end."""
    delivered = 0
    try:
        for batch in batches(folder, way, **changes).as_numpy_iterator():
            check_rows(batch, Kind())
            delivered += 1
    except DataError as error:
        return str(error)
    except tf.errors.OpError as error:
        return runtime.first_line(error)
    return None


def check_rows(batch, kind):
    """Compares each row that counts with the converted data; returns the record ids of these rows and the others."""
    x, labels, weights, records = batch
    assert weights.shape == records.shape == labels.shape == (len(x["image"]),)
    for row in np.flatnonzero(weights).tolist():
        number = int(records[row])
        assert labels[row] == number % CLASSES
        assert x["key"][row] == key_of("train", number, kind)
        assert np.array_equal(x["image"][row], image_of(number, SHAPE, kind))
    return records[weights > 0].tolist(), records[weights == 0].tolist()


@pytest.mark.parametrize(
    ("way", "count"), [("resident", 20), ("windowed", 1), pytest.param("windowed", 20, marks=pytest.mark.slow)]
)
def test_a_flipped_bit_ends_the_input_with_its_record(way, count, tmp_path):
    target = made(tmp_path, Kind())
    for bit in target.bits(count, seed=1):
        target.flip(bit)
        number = target.record(bit)
        where = f"{target.path}, record {number}, byte offset {target.offsets[number]}: "
        assert refusal(tmp_path, way).startswith(where)


@BOTH
def test_a_flipped_bit_of_a_compressed_shard_ends_the_input(way, tmp_path):
    target = made(tmp_path, Kind(compression="GZIP"))
    (bit,) = target.bits(1)
    target.flip(bit)
    assert re.match(rf"{target.path}, record \d+, byte offset \d+: ", refusal(tmp_path, way))


@BOTH
@pytest.mark.parametrize("kind", [Kind(), Kind("png", unequal_keys=True)], ids=["raw", "png, offsets"])
def test_twenty_damaged_records_have_weight_0_and_all_others_come_once(way, kind, tmp_path):
    target = made(tmp_path, kind)
    bits = target.bits_of_records(20, seed=2)
    target.flip(*bits)
    bad = {target.first + target.record(bit) for bit in bits}
    good = sorted(set(range(sum(COUNTS))) - bad)
    found = list(batches(tmp_path, way, on_corrupt="skip").as_numpy_iterator())
    assert len(found) == 2 * T
    for epoch in range(2):
        rows = [check_rows(batch, kind) for batch in found[epoch * T : (epoch + 1) * T]]
        assert sorted(record for real, _ in rows for record in real) == good
        left_out = collections.Counter(record for _, others in rows for record in others)
        assert sum(left_out.values()) == T * BATCH - len(good)
        assert all(left_out[record] >= 1 for record in bad)
    assert {r.record for r in skipped_records(tmp_path)} == {target.record(bit) for bit in bits}
    assert {r.file for r in skipped_records(tmp_path)} == {str(target.path)}


MEMBERS = Kind(compression="GZIP", members=6)


def flip_members(target, *members):
    """Flips a bit in the middle of GZIP members of a shard; returns the record ids in them."""
    shard = manifests.load(target.path.parent).splits["train"].shards[HIT]
    table = shard_members(str(target.path.parent), shard)
    target.flip(*(4 * int(table.offsets[member] + table.offsets[member + 1]) for member in members))
    return {target.first + number for m in members for number in range(*table.firsts[m : m + 2].tolist())}


@MOSTLY_RESIDENT
def test_the_records_of_corrupt_members_have_weight_0_and_all_others_come_once(way, tmp_path):
    target = made(tmp_path, MEMBERS)
    bad = flip_members(target, 1, 3)
    assert bad == {*range(17, 23), *range(29, 35)}
    found = list(batches(tmp_path, way, on_corrupt="skip").as_numpy_iterator())
    assert len(found) == 2 * T
    for epoch in range(2):
        rows = [check_rows(batch, MEMBERS) for batch in found[epoch * T : (epoch + 1) * T]]
        assert sorted(record for real, _ in rows for record in real) == sorted(set(range(sum(COUNTS))) - bad)
        assert bad <= {record for _, others in rows for record in others}
    assert {(r.file, target.first + r.record) for r in skipped_records(tmp_path)} == {
        (str(target.path), n) for n in bad
    }
    assert refusal(tmp_path, way).startswith(f"{target.path}, GZIP member at byte offset ")
    words = "these are 6 records, over max_corrupt=11; 6 others were skipped: give 12 or more"
    assert words in refusal(tmp_path, way, on_corrupt="skip", max_corrupt=11)


@pytest.mark.parametrize("kind", [Kind(), pytest.param(MEMBERS, marks=pytest.mark.slow)], ids=["plain", "GZIP members"])
def test_every_replica_takes_as_many_steps_whoever_skips(kind, tmp_path):
    target = made(tmp_path, kind)
    if kind.members:
        flip_members(target, 1, 3)
    else:
        target.flip(*target.bits_of_records(20, seed=2))
    whole = list(batches(tmp_path, "windowed", on_corrupt="skip").as_numpy_iterator())
    rows = BATCH // 2
    for rank in range(2):
        mine = list(batches(tmp_path, "windowed", on_corrupt="skip", shard=Shard(rank, 2)).as_numpy_iterator())
        assert len(mine) == 2 * T
        for part, (y, _, all_weights, all_records) in zip(mine, whole, strict=True):
            check_rows(part, kind)
            x, _, weights, records = part
            place = slice(rank * rows, (rank + 1) * rows)
            assert records.tolist() == all_records[place].tolist()
            assert weights.tolist() == all_weights[place].tolist()
            real = weights > 0
            assert np.array_equal(x["image"][real], y["image"][place][real])


@MOSTLY_RESIDENT
def test_one_more_than_the_budget_is_an_error(way, tmp_path):
    target = made(tmp_path, Kind())
    target.flip(*target.bits_of_records(4, seed=3))
    assert refusal(tmp_path, way, on_corrupt="skip", max_corrupt=4) is None
    line = refusal(tmp_path, way, on_corrupt="skip", max_corrupt=3)
    assert re.match(
        rf"{target.path}, record \d+, byte offset \d+: .*; 3 others were skipped, which is max_corrupt;", line
    )


def train(data, model, *flags):
    """Runs the trainer in this process."""
    run.main([f"--data_dir={data}", f"--model_dir={model}", f"--global_batch_size={BATCH}", *flags])


WINDOWED = ("--streams=3", f"--shuffle_bytes={3 * 7 * 144}")


@pytest.mark.slow
def test_the_trainer_skips_says_so_and_keeps_to_the_budget(tmp_path, capfd):
    target = made(tmp_path / "data", Kind())
    target.flip(*target.bits_of_records(4, seed=3))
    test = tmp_path / "data" / naming.shard_name("test", 0, 1)
    test.write_bytes(test.read_bytes()[:100] + b"\0\xff" + test.read_bytes()[102:])
    with pytest.raises(DataError, match=rf"{target.path}, record \d+, byte offset \d+: "):
        train(tmp_path / "data", tmp_path / "model", "--eval_split=none", "--train_steps=5")
    with pytest.raises(DataError, match="; 3 others were skipped, which is max_corrupt"):
        train(
            tmp_path / "data", tmp_path / "model", "--on_corrupt=skip", "--max_corrupt=3", "--train_steps=5", *WINDOWED
        )
    train(tmp_path / "data", tmp_path / "model", "--on_corrupt=skip", "--train_steps=5", *WINDOWED)
    assert "test accuracy = " in (out := capfd.readouterr().out)
    assert "(6 examples; 1 corrupt left out; averaged weights)" in out


def delete(path):
    path.unlink()


def cut(path):
    path.write_bytes(path.read_bytes()[:-1])


def rewrite(path):
    """Writes another valid shard of the same size: the records in reverse order."""
    data = path.read_bytes()
    stride = len(data) // COUNTS_OF_A_LONG_RUN[HIT]
    records = [data[i : i + stride] for i in range(0, len(data), stride)]
    path.write_bytes(b"".join(reversed(records)))
    assert len(data) == path.stat().st_size


COUNTS_OF_A_LONG_RUN = (40, 30, 50, 43)
CHANGES = [
    (delete, "cannot be read: No such file or directory"),
    pytest.param(cut, r"has \d+ bytes instead of \d+ since the input began", marks=pytest.mark.slow),
    pytest.param(rewrite, "was written again since the input began", marks=pytest.mark.slow),
]


@pytest.mark.parametrize(("change", "words"), CHANGES, ids=["deleted", "cut", "rewritten"])
def test_a_shard_that_changes_while_a_windowed_run_reads_it_ends_the_run(change, words, tmp_path):
    target = made(tmp_path / "data", Kind(), COUNTS_OF_A_LONG_RUN)
    flags = [f"--global_batch_size={BATCH}", "--train_steps=100000000", "--log_every=10", "--steps_per_loop=10"]
    process = start(tmp_path / "data", tmp_path / "model", *flags, "--eval_split=none", *WINDOWED)
    wait_for_step(process, 20)
    change(target.path)
    ((code, _, err),) = finish(process)
    assert code == 1
    assert re.fullmatch(rf"trainer.run: {target.path}: {words}[^\n]*\n", err), err


@pytest.mark.slow
def test_the_worker_that_reads_a_corrupt_record_says_so_and_the_others_end(tmp_path):
    target = made(tmp_path / "data", Kind(), (40, 40, 40, 40))
    target.flip(*target.bits_of_records(1))
    model = tmp_path / "model"
    flags = [f"--global_batch_size={BATCH}", "--train_steps=100", "--streams=2", f"--shuffle_bytes={2 * 20 * 144}"]
    ended = finish(*start_workers(tmp_path / "data", [model, model], "--collective_timeout=30", *flags))
    record = rf"{target.path}, record \d+, byte offset \d+: the record's CRC is wrong"
    for number, (code, _, err) in enumerate(ended):
        assert code == 1
        # It has read the record itself, or repeats the other's error.
        assert re.match(rf"trainer.run: (lost (the chief|worker {1 - number}) \(localhost:\d+\): )?{record}", err), err
        assert err.count("\n") == 1
    assert any(re.match(f"trainer.run: {record}", err) for _, _, err in ended)
