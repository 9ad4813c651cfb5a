import io
import pickle
import re
import tarfile

import numpy as np
import pytest

from beam_jobs import sources
from beam_jobs.sources import archive, content
from pipeline.errors import DataError

FOLDER = "cifar-10-batches-bin"


def opened(path):
    return sources.open_source("cifar10", str(path))


def pack(path, folder, mode="w:gz", prefix=FOLDER, extra=()):
    with tarfile.open(path, mode) as tar:
        for info in extra:
            tar.addfile(info, io.BytesIO(bytes(info.size)))
        for file in sorted(folder.iterdir()):
            tar.add(file, f"{prefix}/{file.name}" if prefix else file.name)
    return path


def member(name, size=0, kind=tarfile.REGTYPE, target=""):
    info = tarfile.TarInfo(name)
    info.size, info.type, info.linkname = size, kind, target
    return info


def test_rows_are_those_of_the_files_with_channels_last(cifar_folder):
    folder, records = cifar_folder()
    source = opened(folder)
    rows = np.array([59, 0, 13, 12])  # of five files of 12 rows
    block = source.read("train", rows)
    assert block.keys.tolist() == [
        b"data_batch_5.bin#11",
        b"data_batch_1.bin#00",
        b"data_batch_2.bin#01",
        b"data_batch_2.bin#00",
    ]
    for i, (file, row) in enumerate([(5, 11), (1, 0), (2, 1), (2, 0)]):
        record = records[f"data_batch_{file}.bin"][row]
        assert block.labels[i] == record[0]
        for channel in range(3):
            plane = record[1 + 1024 * channel : 1 + 1024 * (channel + 1)].reshape(32, 32)
            assert (block.images[i, :, :, channel] == plane).all()
    assert source.splits == {"train": 60, "test": 12}
    assert source.key_sizes == {"train": 19, "test": 17}


def test_batches_may_have_different_numbers_of_rows(cifar_folder):
    folder, records = cifar_folder()
    (folder / "data_batch_2.bin").write_bytes(records["data_batch_2.bin"][:1].tobytes())
    source = opened(folder)
    keys = source.read("train", np.arange(49)).keys.tolist()
    assert len(set(keys)) == 49
    assert keys[11:14] == [b"data_batch_1.bin#11", b"data_batch_2.bin#00", b"data_batch_3.bin#00"]


@pytest.mark.parametrize(("mode", "prefix"), [("w:gz", FOLDER), ("w", FOLDER), ("w:gz", f"./{FOLDER}"), ("w:gz", "")])
def test_folder_parent_and_archive_are_the_same_source(cifar_folder, tmp_path, mode, prefix, monkeypatch):
    folder, _ = cifar_folder()
    packed = opened(pack(tmp_path / "cifar.tar.gz", folder, mode, prefix))
    assert packed.files == opened(folder).files == opened(tmp_path).files
    rows = np.arange(12)
    expected = opened(folder).read("test", rows).images
    monkeypatch.setattr(content, "_contents", {})  # as in a worker that has read nothing yet
    assert (pickle.loads(pickle.dumps(packed)).read("test", rows).images == expected).all()


def test_an_archive_is_read_once_by_a_worker(cifar_folder, tmp_path, monkeypatch):
    source = opened(pack(tmp_path / "cifar.tar.gz", cifar_folder()[0]))
    reads = []
    monkeypatch.setattr(content, "_contents", {})
    monkeypatch.setattr(
        archive, "read_members", lambda *args, original=archive.read_members: (reads.append(1), original(*args))[1]
    )
    source.read("train", np.arange(60))
    source.read("test", np.arange(12))
    assert len(reads) == 1


BAD = [
    ("missing batch", lambda f: (f / "data_batch_3.bin").unlink(), "data_batch_3.bin: no such file"),
    (
        "size",
        lambda f: (f / "data_batch_3.bin").write_bytes(bytes(3074)),
        "data_batch_3.bin: has 3074 bytes, not a whole number of 3073-byte records",
    ),
    ("empty", lambda f: (f / "test_batch.bin").write_bytes(b""), "test_batch.bin: has 0 bytes"),
    (
        "label",
        lambda f: (f / "test_batch.bin").write_bytes(bytes(3073) + b"\x0a" + bytes(3072)),
        "test_batch.bin: row 1: label 10 is not in 0..9",
    ),
]


@pytest.mark.parametrize("packed", [False, True])
@pytest.mark.parametrize(("change", "message"), [pytest.param(*bad[1:], id=bad[0]) for bad in BAD])
def test_bad_files_are_named_and_nothing_is_written(change, message, packed, cifar_folder, tmp_path, convert, refused):
    folder, _ = cifar_folder()
    change(folder)
    path = pack(tmp_path / "cifar.tar.gz", folder) if packed else folder
    if packed:
        message = message.replace("data_batch_3.bin: no such file", f"holds no {FOLDER}/data_batch_3.bin")
    outcome = convert("--dataset=cifar10", f"--source={path}", f"--data_dir={tmp_path / 'out'}")
    refused(outcome, 1, message, path, data_dir=tmp_path / "out")
    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize(
    ("extra", "message"),
    [
        (member("../evil"), "'../evil' has a path that leaves the archive"),
        (member("/etc/evil"), "'/etc/evil' has a path that leaves the archive"),
        (member(f"{FOLDER}/a/../../../evil"), "has a path that leaves the archive"),
        (member(f"{FOLDER}/data_batch_1.bin", kind=tarfile.SYMTYPE, target="/etc/passwd"), "is a link or a device"),
        (member("x", kind=tarfile.LNKTYPE, target="y"), "is a link or a device"),
        (member("x", kind=tarfile.FIFOTYPE), "is a link or a device"),
        (member(f"{FOLDER}/test_batch.bin", 3073), "holds test_batch.bin twice"),
    ],
)
def test_an_archive_with_an_odd_member_is_refused(extra, message, cifar_folder, tmp_path):
    path = pack(tmp_path / "cifar.tar.gz", cifar_folder()[0], extra=[extra])
    with pytest.raises(DataError, match=re.escape(f"{path}: ") + ".*" + re.escape(message)):
        opened(path)


def test_a_member_that_is_too_large_is_refused_before_it_is_read(cifar_folder, tmp_path, monkeypatch):
    monkeypatch.setattr(archive, "MAX_FILE", 3073 * 11)
    with pytest.raises(
        DataError, match=r"'cifar-10-batches-bin/data_batch_1.bin' of 36876 bytes is larger than can be"
    ):
        opened(pack(tmp_path / "cifar.tar.gz", cifar_folder()[0]))


def test_too_many_members_are_refused(cifar_folder, tmp_path):
    extra = [member(f"x{i}") for i in range(1001)]
    with pytest.raises(DataError, match="has more than 1000 members"):
        opened(pack(tmp_path / "cifar.tar.gz", cifar_folder()[0], extra=extra))


@pytest.mark.parametrize("keep", [0.1, 0.5, 0.99])
def test_a_cut_archive_is_refused(keep, cifar_folder, tmp_path):
    path = pack(tmp_path / "cifar.tar.gz", cifar_folder()[0])
    data = path.read_bytes()
    path.write_bytes(data[: int(len(data) * keep)])
    with pytest.raises(DataError, match=r"cifar.tar.gz: .*get the file again"):
        opened(path)


def test_a_file_that_is_no_archive_is_refused(tmp_path):
    path = tmp_path / "notes.txt"
    path.write_text("not a tar")
    with pytest.raises(DataError, match=r"notes.txt: is no whole tar archive"):
        opened(path)
