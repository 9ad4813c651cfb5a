"""Shards of another conversion, as long as the manifest says, every record whole: told before such a row is fed."""

import dataclasses
import gzip
import io
import shutil

import crc32c
import numpy as np
import pytest
import tensorflow as tf

from beam_jobs import validate
from pipeline import RandomAccess, StepIterator, input_fn, skipped_records
from pipeline import manifest as manifests
from pipeline.errors import DataError
from pipeline.manifest import naming
from pipeline.records import framing
from tests.helpers.converting import convert_in_process
from tests.helpers.datasets import Kind, edit_manifest, write_dataset
from tests.helpers.raised import said

SHAPE, FIRST = (8, 6, 3), 2  # the record of the first shard that changes places with the next one
KINDS = {"raw": Kind(), "png": Kind("png"), "offsets": Kind(unequal_keys=True), "gzip": Kind(compression="GZIP")}
WINDOWS = {"global_batch_size": 4, "training": True, "streams": 2, "shuffle_bytes": 12 * 144}


def exchanged(path):
    """Exchanges two records of equal length; the file keeps its size, as GZIP because nothing is compressed."""
    packed = path.suffix == ".gz"
    data = gzip.decompress(path.read_bytes()) if packed else path.read_bytes()
    frames, at = [], 0
    while at < len(data):
        end = at + 16 + int.from_bytes(data[at : at + 8], "little")
        frames.append(data[at:end])
        at = end
    frames[FIRST : FIRST + 2] = reversed(frames[FIRST : FIRST + 2])
    data = b"".join(frames)
    path.write_bytes(gzip.compress(data, 0, mtime=0) if packed else data)


def list_as_it_is(folder, path):
    """Has the manifest list a file's bytes as they are."""
    made, data = manifests.load(folder), path.read_bytes()
    split = made.splits["train"]
    shards = [
        dataclasses.replace(s, num_bytes=len(data), crc32c=f"{crc32c.crc32c(data):08x}") if s.file == path.name else s
        for s in split.shards
    ]
    splits = made.splits | {"train": dataclasses.replace(split, shards=tuple(shards))}
    (folder / naming.MANIFEST).write_bytes(dataclasses.replace(made, splits=splits).to_bytes())


@pytest.fixture(params=KINDS.values(), ids=list(KINDS))
def swapped(request, tmp_path):
    """A data set whose first shard has two records in another order; and that shard's path."""
    made = write_dataset(tmp_path, (12, 12), SHAPE, kind=request.param)
    path = tmp_path / made.splits["train"].shards[0].file
    exchanged(path)
    list_as_it_is(tmp_path, path)
    exchanged(path)  # as it was, stored in as many bytes
    list_as_it_is(tmp_path, path)
    exchanged(path)
    return tmp_path, path


def refused(path):
    return rf"{path.name}, record {FIRST}, byte offset \d+: the record is whole, but its CRC is .* another conversion"


@pytest.mark.parametrize("split", ["train", "train[:60%]"])
@pytest.mark.quick(4)
def test_no_window_and_no_slice_of_it_is_fed(swapped, split):
    folder, path = swapped
    policy = "raise" if path.suffix == ".gz" else "skip"  # which skips corrupt records, not wrong ones
    batches = StepIterator(folder, split, epochs=1, on_corrupt=policy, record_ids=True, **WINDOWS)
    seen = []

    def read_all():
        for batch in batches:
            seen.extend(batch[-1].tolist())

    with pytest.raises(DataError, match=refused(path)):
        read_all()
    assert not {FIRST, FIRST + 1} & set(seen)
    assert not skipped_records(folder)


def test_no_example_of_it_is_given(swapped):
    folder, path = swapped
    if path.suffix == ".gz":  # has no access to single records
        return
    examples = RandomAccess(folder)
    assert examples[FIRST + 2]["key"].startswith(b"train#")
    with pytest.raises(DataError, match=refused(path)):
        examples[FIRST]


def test_a_graph_that_runs_elsewhere_is_refused_by_the_ends_of_each_shard(tmp_path):
    made = write_dataset(tmp_path, (4, 12), SHAPE)
    one, other = (tmp_path / shard.file for shard in made.splits["train"].shards)
    exchanged(other)
    frames = one.read_bytes()
    one.write_bytes(frames[len(frames) // 4 :] + frames[: len(frames) // 4])

    @tf.function(autograph=False)
    def dataset():
        return input_fn(tmp_path, epochs=1, **WINDOWS)

    with pytest.raises(DataError, match=f"{one.name}, record 0, byte offset 0: .*another conversion"):
        dataset()


def test_the_files_of_two_conversions_are_told_apart(tmp_path):
    flags = ["--dataset=digits", "--num_shards=train:2,test:1"]
    one = convert_in_process(*flags, f"--data_dir={tmp_path / 'one'}", "--seed=1")
    other = convert_in_process(*flags, f"--data_dir={tmp_path / 'other'}", "--seed=2")
    mixed = tmp_path / "mixed"
    shutil.copytree(other, mixed)
    shutil.copy(one / naming.MANIFEST, mixed)
    shard, windows = r"train-0000\d-of-00002\.tfrecord", WINDOWS | {"shuffle_bytes": 16 * 784}
    crcs = r"sidecars/crcs\.train-0000\d-of-00002\.tf-record"
    with pytest.raises(DataError, match=rf"{crcs}: its CRC32C is \w+, but the manifest says"):
        next(StepIterator(mixed, **windows))
    for path in one.glob("sidecars/crcs.*"):
        shutil.copy(path, mixed / "sidecars")
    with pytest.raises(DataError, match=f"{shard}, record .*another conversion"):
        next(StepIterator(mixed, **windows))
    for path in mixed.glob("sidecars/crcs.*"):
        path.unlink()
    with pytest.raises(DataError, match=rf"{crcs}: cannot be read: No such file"):
        next(StepIterator(mixed, **windows))


def test_data_sets_of_earlier_releases_are_read_and_keep_their_identity(tmp_path):
    made = write_dataset(tmp_path, (12, 12), SHAPE)
    splits = {
        name: dataclasses.replace(s, shards=tuple(dataclasses.replace(i, crcs_crc32c=None) for i in s.shards))
        for name, s in made.splits.items()
    }
    old = dataclasses.replace(made, splits=splits)
    assert b"crcs_crc32c" not in old.to_bytes()
    assert old.digest == made.digest
    new = [batch[-1] for batch in StepIterator(tmp_path, epochs=1, record_ids=True, **WINDOWS)]
    (tmp_path / naming.MANIFEST).write_bytes(old.to_bytes())
    for path in tmp_path.glob("sidecars/crcs.*"):
        path.unlink()
    was = [batch[-1] for batch in StepIterator(tmp_path, epochs=1, record_ids=True, **WINDOWS)]
    assert np.array_equal(new, was)


def test_validate_compares_the_list_with_the_records(tmp_path, capsys):
    folder = convert_in_process("--dataset=digits", f"--data_dir={tmp_path / 'd'}", "--num_shards=train:1,test:1")
    info = manifests.load(folder).splits["train"].shards[0]
    path = folder / naming.crcs_name(info.file)
    crcs = np.fromfile(path, "<u4")
    crcs[5] ^= 1
    crcs.tofile(path)
    with pytest.raises(DataError):
        validate.main([str(folder)])
    assert f"{path.name}: its CRC32C is" in capsys.readouterr().out


def test_images_that_are_not_what_the_manifest_says_are_named_when_the_input_is_made(tmp_path):
    write_dataset(tmp_path, (12, 12), SHAPE)
    edit_manifest(tmp_path, lambda content: content["features"]["image"].update(encoding="png"))
    for more in ({}, {"shuffle_bytes": 1 << 30}, {"portable": True, "epochs": 1}):
        with pytest.raises(DataError, match="train-00000-of-00002.tfrecord, record 0: its image is not a PNG or JPEG"):
            input_fn(tmp_path, **WINDOWS | more)


def test_an_image_that_cannot_be_decoded_is_named(tmp_path):
    made = write_dataset(tmp_path, (12, 12), SHAPE, kind=Kind("png"))
    path = tmp_path / made.splits["train"].shards[1].file
    stored = list(framing.records(io.BytesIO(path.read_bytes()).read, path))
    changed = [record.replace(b"IDAT", b"XXXX") if i == 5 else record for i, (_, _, record) in enumerate(stored)]
    path.write_bytes(b"".join(map(framing.frame, changed)))
    crcs = b"".join(framing.frame(record)[-4:] for record in changed)
    (tmp_path / naming.crcs_name(path.name)).write_bytes(crcs)
    changes = {"crc32c": f"{crc32c.crc32c(path.read_bytes()):08x}", "crcs_crc32c": f"{crc32c.crc32c(crcs):08x}"}
    edit_manifest(tmp_path, lambda content: content["splits"]["train"]["shards"][1].update(changes))
    with pytest.raises(DataError, check=said(f"{path.name}, record 5: its image cannot be decoded: ")):
        input_fn(tmp_path, **WINDOWS | {"shuffle_bytes": 1 << 30})
