import gzip
import io
import os
import pathlib
import pickle
import resource
import struct
import subprocess
import sys
import tarfile
import time
import zipfile

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from beam_jobs import sources
from beam_jobs.sources import cifar, published, row_files, streams
from beam_jobs.sources.base import SourceOptions
from pipeline.errors import DataError
from pipeline.files.paths import LocalPath
from pipeline.manifest import Feature
from tests.helpers.lanes import examples
from tests.helpers.raised import at
from tests.helpers.round_trips import Row, check, digits, empty_folder

DATA = pathlib.Path(__file__).parents[5] / "shared" / "data"
FOLDER = "cifar-10-batches-bin"


def opened(path):
    return sources.open_source(SourceOptions("cifar10", str(path)))


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


@st.composite
def batches(draw):
    """Draws a data set, whether it is Python's version, and {split: {file: records}}."""
    dataset, is_python = draw(st.sampled_from(["cifar10", "cifar100"])), draw(st.booleans())
    noise = np.random.default_rng(draw(st.integers(0, 99)))
    layout = cifar.LAYOUTS[dataset][is_python]
    found = {split: dict.fromkeys(names) for split, names in layout.files.items()}
    for files in found.values():
        for name in files:
            files[name] = noise.integers(0, 256, (draw(st.integers(1, 3)), len(cifar.LABELS[dataset]) + 3072), np.uint8)
            for column, label in enumerate(cifar.LABELS[dataset]):
                files[name][:, column] %= len(label.class_names)
    return dataset, layout, found


def pickled(records, dataset="cifar10", protocol=2, order="C", **changes):
    """Returns records as a batch of Python's version; a change of None leaves a key out."""
    labels = cifar.LABELS[dataset]
    batch = {b"batch_label": b"a batch"}
    batch |= {label.key.encode(): records[:, column].tolist() for column, label in enumerate(labels)}
    batch[b"data"] = np.asarray(records[:, len(labels) :].copy(), order=order)
    batch |= {key.encode(): value for key, value in changes.items()}
    return pickle.dumps({key: value for key, value in batch.items() if value is not None}, protocol)


@given(st.data())
@settings(max_examples=examples(40), derandomize=True)
def test_batches_become_their_rows_in_every_published_form(data):
    dataset, layout, splits = data.draw(batches())
    *others, label = cifar.LABELS[dataset]
    table, width = {}, 1 + len(others)
    with empty_folder() as folder:
        source = folder / layout.folder
        source.mkdir()
        for split, files in splits.items():
            most, table[split] = max(map(len, files.values())), []
            for name, records in files.items():
                protocol, order = data.draw(st.integers(2, 4), "protocol"), data.draw(st.sampled_from("CF"), "order")
                content = pickled(records, dataset, protocol, order) if layout.is_pickled else records.tobytes()
                (source / name).write_bytes(content)
                for number, record in enumerate(records):
                    pixels = record[width:].reshape(3, 32, 32).transpose(1, 2, 0).tobytes()
                    key = f"{name}#{number:0{digits(most)}d}".encode()
                    extra = {other.feature: int(record[column]) for column, other in enumerate(others)}
                    name_of_class = label.class_names[record[width - 1]]
                    table[split].append(Row(name, number, key, pixels, name_of_class, extra))
        form = data.draw(st.sampled_from(["folder", "parent", "w", "w:gz"]), "form")
        path = {"folder": source, "parent": folder}.get(form) or pack(folder / "packed", source, form, layout.folder)
        features = {other.feature: Feature("int64", class_names=other.class_names) for other in others}
        check(data, folder, table, label.class_names, features, dataset=dataset, source=str(path))


@pytest.mark.parametrize(("mode", "prefix"), [("w:gz", FOLDER), ("w", FOLDER), ("w:gz", f"./{FOLDER}"), ("w:gz", "")])
def test_folder_parent_and_archive_are_the_same_source(cifar_folder, tmp_path, mode, prefix, monkeypatch):
    folder, _ = cifar_folder()
    packed = opened(pack(tmp_path / "cifar.tar.gz", folder, mode, prefix))
    assert packed.files == opened(folder).files == opened(tmp_path).files
    rows = np.arange(12)
    expected = opened(folder).read("test", rows).images
    monkeypatch.setattr(row_files, "_kept", {})  # as in a worker that has read nothing yet
    assert (pickle.loads(pickle.dumps(packed)).read("test", rows).images == expected).all()


@pytest.mark.parametrize(("mode", "packing"), [("w:bz2", "bzip2"), ("w:xz", "xz")])
def test_an_archive_of_another_packing_is_refused_with_what_to_do(cifar_folder, tmp_path, mode, packing):
    path = pack(tmp_path / "cifar.tar", cifar_folder()[0], mode)
    with pytest.raises(DataError, check=at("cifar.tar", packing)):
        opened(path)


def test_an_archive_is_read_once_by_a_worker(cifar_folder, tmp_path, monkeypatch):
    source = opened(pack(tmp_path / "cifar.tar.gz", cifar_folder()[0]))
    reads = []
    monkeypatch.setattr(row_files, "_kept", {})
    monkeypatch.setattr(
        published, "unpack", lambda *args, original=published.unpack: (reads.append(1), original(*args))[1]
    )
    source.read("train", np.arange(60))
    source.read("test", np.arange(12))
    assert len(reads) == 1


def write(name, data):
    return lambda folder: (folder / name).write_bytes(data)


BAD = [
    ("missing batch", lambda f: (f / "data_batch_3.bin").unlink(), "data_batch_3.bin"),
    ("size", write("data_batch_3.bin", bytes(3074)), "data_batch_3.bin: .*3,074 bytes.* 3073-byte"),
    ("empty", write("test_batch.bin", b""), "test_batch.bin: .* 0 bytes"),
    ("label", write("test_batch.bin", bytes(3073) + b"\x0a" + bytes(3072)), "test_batch.bin: row 1: label 10 .*0..9"),
]


@pytest.mark.parametrize("packed", [False, True])
@pytest.mark.parametrize(("change", "fact"), [pytest.param(*bad[1:], id=bad[0]) for bad in BAD])
def test_bad_files_are_named(change, fact, packed, cifar_folder, tmp_path):
    folder, _ = cifar_folder()
    change(folder)
    path = pack(tmp_path / "cifar.tar.gz", folder) if packed else folder
    with pytest.raises(DataError, match=f"^{path}.*{fact}", check=at("")):
        opened(path)


@pytest.mark.parametrize(
    "extra",
    [
        member("../evil", 4),
        member("/tmp/evil", 4),
        member(f"{FOLDER}/a/../../../evil", 4),
        member("x", kind=tarfile.LNKTYPE, target="y"),
        member("x", kind=tarfile.FIFOTYPE),
    ],
)
def test_odd_members_are_neither_written_nor_read(extra, cifar_folder, tmp_path):
    folder = cifar_folder()[0]
    source = opened(pack(tmp_path / "cifar.tar.gz", folder, extra=[extra]))
    assert source.files == opened(folder).files
    assert sorted(path.name for path in tmp_path.iterdir()) == sorted({"cifar.tar.gz", folder.name})


def test_a_link_is_no_file_and_a_file_may_not_come_twice(cifar_folder, tmp_path):
    folder = cifar_folder()[0]
    (folder / "data_batch_1.bin").unlink()
    link = member(f"{FOLDER}/data_batch_1.bin", kind=tarfile.SYMTYPE, target="/etc/passwd")
    with pytest.raises(DataError, check=at("cifar.tar.gz", "data_batch_1.bin")):
        opened(pack(tmp_path / "cifar.tar.gz", folder, extra=[link]))
    with pytest.raises(DataError, check=at("cifar.tar.gz", "test_batch.bin twice")):
        opened(pack(tmp_path / "cifar.tar.gz", folder, extra=[member(f"{FOLDER}/test_batch.bin", 3073)]))


def test_a_member_that_is_too_large_is_refused_before_it_is_read(cifar_folder, tmp_path, monkeypatch):
    monkeypatch.setattr(published, "MAX_FILE", 3073 * 11)
    with pytest.raises(DataError, match=r"'cifar-10-batches-bin/data_batch_1.bin' of 36,876 bytes"):
        opened(pack(tmp_path / "cifar.tar.gz", cifar_folder()[0]))


def test_too_many_members_are_refused(cifar_folder, tmp_path):
    extra = [member(f"x{i}") for i in range(1001)]
    with pytest.raises(DataError, match="1000 members"):
        opened(pack(tmp_path / "cifar.tar.gz", cifar_folder()[0], extra=extra))


@pytest.mark.parametrize("keep", [0.1, 0.5, 0.99])
def test_a_cut_archive_is_refused(keep, cifar_folder, tmp_path):
    path = pack(tmp_path / "cifar.tar.gz", cifar_folder()[0])
    data = path.read_bytes()
    for damaged in (data[: int(len(data) * keep)], b"not a tar" * int(keep * 10)):
        path.write_bytes(damaged)
        with pytest.raises(DataError, check=at("cifar.tar.gz")):
            opened(path)


@pytest.fixture
def python_folder(cifar_folder, tmp_path):
    """A tiny cifar-10-batches-py of the same records as the binary folder, and these records."""
    _, records = cifar_folder()
    folder = tmp_path / "py" / "cifar-10-batches-py"
    folder.mkdir(parents=True)
    for name, rows in records.items():
        (folder / name.removesuffix(".bin")).write_bytes(pickled(rows))
    return folder, records


def same(left, right, split):
    rows = np.arange(left.splits[split])[::-1]
    one, other = left.read(split, rows), right.read(split, rows)
    assert (one.images == other.images).all()
    assert (one.labels == other.labels).all()
    assert [key.replace(b".bin", b"") for key in one.keys.tolist()] == other.keys.tolist()


ROWS = np.zeros((12, 3073), np.uint8)
BAD_BATCHES = [
    ("os.system", b"\x80\x02cposix\nsystem\nU\x04true\x85R.", "posix.system"),
    ("cut", pickled(ROWS)[:-3000], "cut short"),
    ("list", pickle.dumps([1], 2), "a list"),
    ("no data", pickled(ROWS, data=None), "'data'"),
    ("no labels", pickled(ROWS, labels=None), "'labels'"),
    ("fine labels", pickled(ROWS, labels=None, fine_labels=[0] * 12), "'labels'"),
    ("labels no list", pickled(ROWS, labels=7), "labels"),
    ("labels empty", pickled(ROWS, labels=[]), "labels"),
    ("label", pickled(ROWS, labels=[0, 0, 10] + [0] * 9), "row 2: labels has 10, which is not in 0..9"),
    ("negative", pickled(ROWS, labels=[-1] * 12), "row 0: labels has -1, which is not in 0..9"),
    ("text label", pickled(ROWS, labels=["cat"] * 12), "row 0: labels has a str"),
    ("counts", pickled(ROWS, labels=[0] * 11), "(12, 3072) for 11 labels"),
    ("shape", pickled(ROWS, data=np.zeros((12, 3073), np.uint8)), "(12, 3073) for 12 labels"),
    ("flat", pickled(ROWS, data=np.zeros(12 * 3072, np.uint8)), "(36864,) for 12 labels"),
    ("floats", pickled(ROWS, data=np.zeros((12, 3072))), "uint8"),
    ("objects", pickled(ROWS, data=np.zeros((12, 3072), object)), "uint8"),
    ("no array", pickled(ROWS, data=b"123"), "for 12 labels"),
]


@pytest.mark.parametrize(
    ("data", "message", "packed"),
    [
        pytest.param(*BAD_BATCHES[0][1:], True, id="packed"),
        *(pytest.param(*bad[1:], False, id=bad[0]) for bad in BAD_BATCHES),
    ],
)
def test_bad_batches_are_named(data, message, packed, python_folder, tmp_path):
    folder, _ = python_folder
    (folder / "data_batch_2").write_bytes(data)
    path = pack(tmp_path / "py.tar.gz", folder, prefix=folder.name) if packed else folder
    where = f"{path}: data_batch_2" if packed else folder / "data_batch_2"
    with pytest.raises(DataError, check=at(where, message)):
        opened(path)


@pytest.fixture
def cifar100(tmp_path):
    """Tiny folders of CIFAR-100 in both versions, of the same records, which are returned too."""
    draw = np.random.default_rng(9)
    binary, python = tmp_path / "cifar-100-binary", tmp_path / "cifar-100-python"
    binary.mkdir()
    python.mkdir()
    records = {}
    for name, count in (("train", 300), ("test", 20)):
        rows = records[name] = draw.integers(0, 256, (count, 3074), np.uint8)
        rows[:, 0] %= 20
        rows[:, 1] %= 100
        (binary / f"{name}.bin").write_bytes(rows.tobytes())
        (python / name).write_bytes(pickled(rows, "cifar100"))
    return binary, python, records


def opened100(path):
    return sources.open_source(SourceOptions("cifar100", str(path)))


@pytest.mark.parametrize(("column", "facts"), [(0, ["row 0", "coarse label 20", "0..19"]), (1, ["row 0", "label 100"])])
def test_labels_of_cifar100_out_of_range_are_named(column, facts, cifar100):
    binary, _, records = cifar100
    records["test"][0, column] = (20, 100)[column]
    (binary / "test.bin").write_bytes(records["test"].tobytes())
    with pytest.raises(DataError, check=at("test.bin", *facts)):
        opened100(binary)


def test_the_other_data_set_is_recognised(cifar100, cifar_folder, tmp_path):
    binary, python, _ = cifar100
    ten, _ = cifar_folder()
    packed = pack(tmp_path / "cifar.tar.gz", python, prefix=python.name)
    for path in (binary, python, packed):
        with pytest.raises(DataError, match="--dataset=cifar100, not of cifar10"):
            opened(path)
    with pytest.raises(DataError, match="--dataset=cifar10, not of cifar100"):
        opened100(ten)
    (tmp_path / "empty").mkdir()
    with pytest.raises(DataError, match="cifar-10-batches-bin/.* cifar-10-batches-py/data_batch_1"):
        opened(tmp_path / "empty")
    with pytest.raises(DataError, match="no such .* cifar-100-binary or"):
        opened100(tmp_path / "no")


def test_a_batch_that_changes_is_an_error(cifar_folder, python_folder, monkeypatch):
    folder, _ = python_folder
    binary = folder.parents[1] / FOLDER
    sources_ = opened(binary), opened(folder)
    for path in (binary / "data_batch_3.bin", folder / "data_batch_3"):
        data = bytearray(path.read_bytes())
        data[len(data) // 2] ^= 1
        path.write_bytes(data)
    monkeypatch.setattr(row_files, "_kept", {})
    for source in sources_:
        with pytest.raises(DataError, match="data_batch_3(.bin)?: changed"):
            source.read("train", np.arange(60))


def test_a_huge_header_of_a_member_is_not_read(tmp_path):
    """A long name of 1 GiB, which gzip makes small and tarfile would hold in memory."""
    info = tarfile.TarInfo("././@LongLink")
    info.type, info.size = tarfile.GNUTYPE_LONGNAME, 1 << 30
    path = tmp_path / "cifar.tar.gz"
    with gzip.open(path, "wb", compresslevel=1) as stream:
        stream.write(info.tobuf(tarfile.GNU_FORMAT))
        for _ in range(64):
            stream.write(bytes(1 << 20))
    with pytest.raises(DataError, match="1048576 bytes"):
        opened(path)


def zipped(path, members):
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as made:
        for name, data in members.items():
            made.writestr(name, data)
    return path


def test_a_zip_is_unpacked_by_our_names_alone(tmp_path):
    path = zipped(tmp_path / "a.zip", {"gzip/x.gz": b"x" * 100, "gzip/y.gz": b"y", "../evil": b"e", "/evil": b"e"})
    published.unzip(LocalPath(path), "gzip", ["x.gz"], tmp_path / "out")
    assert {file.name: file.read_bytes() for file in (tmp_path / "out").iterdir()} == {"x.gz": b"x" * 100}
    assert sorted(file.name for file in tmp_path.iterdir()) == ["a.zip", "out"]


def test_a_bad_zip_leaves_no_file(tmp_path, monkeypatch):
    path = zipped(tmp_path / "a.zip", {"gzip/x.gz": os.urandom(5000)})
    with pytest.raises(DataError, check=at("a.zip", "gzip/y.gz")):
        published.unzip(LocalPath(path), "gzip", ["y.gz"], tmp_path / "out")
    whole = path.read_bytes()
    for data in (whole[:2000], b"", whole[:1000] + b"?" + whole[1001:]):
        path.write_bytes(data)
        with pytest.raises(DataError, match=r"a\.zip: .*\.zip"):
            published.unzip(LocalPath(path), "gzip", ["x.gz"], tmp_path / "out")
    path.write_bytes(whole)
    monkeypatch.setattr(published, "MAX_FILE", 4999)
    with pytest.raises(DataError, match="'gzip/x.gz' of 5,000 bytes"):
        published.unzip(LocalPath(path), "gzip", ["x.gz"], tmp_path / "out")
    assert not list((tmp_path / "out").iterdir())


@pytest.mark.slow  # the script decodes all images, to write some
@pytest.mark.skipif(not (DATA / "expand_cifar10.py").is_file(), reason="needs ../shared/data/expand_cifar10.py")
def test_real_images_are_the_same_in_both_versions(tmp_path):
    subprocess.run([sys.executable, str(DATA / "expand_cifar10.py"), str(tmp_path), "--per-batch", "20"], check=True)
    binary, python = opened(tmp_path / FOLDER), opened(tmp_path / "cifar-10-batches-py")
    assert binary.splits == python.splits == {"train": 100, "test": 20}
    for split in ("train", "test"):
        same(binary, python, split)
    names = (tmp_path / FOLDER / "batches.meta.txt").read_text().split()
    meta = pickle.loads((tmp_path / "cifar-10-batches-py" / "batches.meta").read_bytes())
    assert binary.class_names == tuple(names) == tuple(name.decode() for name in meta[b"label_names"])
    assert 100 < binary.read("train", np.arange(100)).images.mean() < 140  # CIFAR-10's is 120.7


def load(data):
    return cifar.load_pickle(streams.spool([data]), "/x/data_batch_1")


@pytest.mark.parametrize("protocol", [2, 3, 4])
@pytest.mark.parametrize("rows", [3, 100])
@pytest.mark.parametrize("order", ["C", "F"])
def test_arrays_of_python_3_are_found(protocol, rows, order):
    values = np.asarray(np.random.default_rng(1).integers(0, 256, (rows, 3072), np.uint8), order=order)
    data = pickle.dumps({"data": values, b"labels": [1, 300, 70_000, -5], "n": None, "t": (True, ())}, protocol)
    found = load(data)
    assert (found.pop("data").values() == values).all()
    assert found == {b"labels": [1, 300, 70_000, -5], "n": None, "t": (True, ())}


def python_2(values):
    """Returns the pickle of {'labels': [6, 9], 'data': values} as Python 2's cPickle writes it."""
    rows, columns = values.shape
    return (
        b"\x80\x02}q\x01(U\x06labelsq\x02]q\x03(K\x06K\x09eU\x04dataq\x04cnumpy.core.multiarray\n_reconstruct\nq\x05"
        b"cnumpy\nndarray\nq\x06K\x00\x85U\x01b\x87Rq\x07(K\x01"
        + b"M" + struct.pack("<H", rows) + b"M" + struct.pack("<H", columns)
        + b"\x86cnumpy\ndtype\nq\x08U\x02u1K\x00K\x01\x87Rq\x09(K\x03U\x01|NNNJ\xff\xff\xff\xffJ\xff\xff\xff\xffK\x00tb"
        b"\x89T" + struct.pack("<i", values.size) + values.tobytes() + b"tbu."
    )  # fmt: skip


def test_the_pickles_of_python_2_are_found():
    values = np.random.default_rng(1).integers(0, 256, (40, 3072), np.uint8)
    data = python_2(values)
    assert pickle.loads(data, encoding="bytes")[b"data"].tobytes() == values.tobytes()  # it is such a pickle
    found = load(data)
    assert found[b"labels"] == [6, 9]
    assert (found[b"data"].values() == values).all()


class Evil:
    def __reduce__(self):
        return os.system, ("echo never > /dev/null; touch never",)


def mark(code):
    return b"\x80\x02" + code + b"."


HOSTILE = [
    ("os.system", pickle.dumps({"data": Evil()}, 2), "posix.system"),
    ("os.system 4", pickle.dumps({"data": Evil()}, 4), "posix.system"),
    ("eval", mark(b"c__builtin__\neval\n(U\x011tR"), "__builtin__.eval"),
    ("getattr", mark(b"\x8c\x08builtins\x8c\x07getattr\x93"), "builtins.getattr"),
    ("dotted", mark(b"\x8c\x05numpy\x8c\x10ndarray.__init__\x93"), "numpy.ndarray.__init__"),
    ("global of a list", mark(b"]]\x93"), ""),
    ("long name", mark(b"c" + b"a" * 70_000 + b"\nb\n"), "aaaa"),
    ("newline in a name", mark(b"\x8c\x03a\nb\x8c\x01c\x93"), r"a\nb.c"),
    ("persistent", mark(b"P1\n"), ""),
    ("instance", mark(b"(ios\nsystem\n"), ""),
    ("object", mark(b"]\x81"), ""),
    ("extension", mark(b"\x82\x01"), ""),
    ("long integer", mark(b"\x8b\xff\xff\xff\x7f"), ""),
    ("set of deep tuples", mark(b"\x8f()" + b"\x85" * 100_000 + b"\x90"), ""),
    ("float array", pickle.dumps(np.zeros(3), 2), "uint8"),
    ("object array", pickle.dumps(np.array([{}, []], object), 2), "uint8"),
    ("record array", pickle.dumps(np.zeros(3, [("a", "u1")]), 2), "uint8"),
    ("called array", mark(b"cnumpy\nndarray\nK\x05\x85R"), ""),
    ("array of another", mark(b"cnumpy.core.multiarray\n_reconstruct\n(N)U\x01btR"), "array"),
    ("state of a list", mark(b"]]b"), "state"),
    ("state of a function", mark(b"cnumpy\ndtype\n}(X\x01\x00\x00\x00aNub"), "state"),
    ("state that is short", mark(b"cnumpy.core.multiarray\n_reconstruct\n(cnumpy\nndarray\nNNtR)b"), ""),
    ("2 GB string", mark(b"T\xff\xff\xff\x7f"), "cut short, before byte 8"),
    ("8 EB string", mark(b"\x8e" + b"\xff" * 7 + b"\x7f"), "byte 11"),
    ("negative string", mark(b"T\xff\xff\xff\xff"), "byte 7"),
    ("8 EB frame", mark(b"\x95" + b"\xff" * 7 + b"\x7fc_\n_\n"), "_._"),
    ("64 GB memo", mark(b"Nr\xff\xff\xff\x7fj\x00\x00\x00\x00"), ""),
    ("missing memo", mark(b"j\xff\xff\xff\x7f"), ""),
    ("empty stack", mark(b""), ""),
    ("no mark", mark(b"]K\x01e"), ""),
    ("tuple of nothing", mark(b"\x87"), ""),
    ("append to none", mark(b"NNa"), ""),
    ("nested key", mark(b"})" + b"\x85" * 100_000 + b"Ns"), "keys"),
    ("odd dictionary", mark(b"}(U\x01aNU\x01bu"), ""),
    ("protocol", b"\x80\x06N.", ""),
    ("text", b"label,pixels\n1,2\n", ""),
    ("empty", b"", "byte 0 of 0"),
    ("no end", b"\x80\x02N", "byte 3 of 3"),
    ("bad text", mark(b"X\x02\x00\x00\x00\xff\xfe"), ""),
    ("text of no bytes", mark(b"c_codecs\nencode\nX\x03\x00\x00\x00\xe2\x82\xacU\x06latin1\x86R"), ""),
    (
        "one string again and again",
        mark(
            b"X\x00\x80\x00\x00"
            + b"a" * 32_768
            + b"q\x01c_codecs\nencode\nq\x00U\x06latin1q\x02"
            + b"h\x00h\x01h\x02\x86R" * 1000
        ),
        "strings",
    ),
]


@pytest.mark.parametrize(("data", "fact"), [pytest.param(*case[1:], id=case[0]) for case in HOSTILE])
def test_a_hostile_pickle_is_refused_and_calls_nothing(data, fact, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    with pytest.raises(DataError) as caught:
        load(data)
    text = str(caught.value)
    assert text.startswith("/x/data_batch_1: ")
    assert fact in text
    assert "\n" not in text
    assert len(text) < 300
    assert not list(tmp_path.iterdir())
    assert resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before < 50_000  # KB


def test_nothing_nests_too_deep():
    """So many tuples in each other would end an interpreter that hashes or prints them."""
    assert isinstance(load(mark(b")" + b"\x85" * 200_000)), tuple)
    cyclic = load(mark(b"]q\x00h\x00a"))
    assert cyclic[0] is cyclic


def test_a_program_that_does_not_end_is_ended(monkeypatch):
    monkeypatch.setattr(cifar, "MAX_READS", 10_000)
    start = time.monotonic()
    with pytest.raises(DataError, match="10000"):
        load(mark(b"}" * 10_001))
    assert time.monotonic() - start < 2


def test_a_file_that_is_too_large_is_not_read(monkeypatch):
    monkeypatch.setattr(cifar, "MAX_PICKLE", 10)
    with pytest.raises(DataError, match="11 bytes.* 10$"):
        load(b"\x80\x02" + b"N" * 8 + b".")


@pytest.mark.parametrize("kind", [np.int64, np.float32, object])
def test_an_array_of_other_numbers_is_refused(kind):
    with pytest.raises(DataError, match="something other than uint8"):
        load(pickle.dumps({"data": np.ones((2, 3), kind)}, 2))


@pytest.fixture(params=["compiled", "NumPy"])
def code(request, monkeypatch):
    if request.param == "NumPy":
        monkeypatch.setattr(cifar, "_unpack", None)
    elif cifar._unpack is None:
        pytest.skip("not compiled")


@pytest.mark.usefixtures("code")
@pytest.mark.parametrize("plane", [1, 15, 16, 17, 1024, 1030])
@pytest.mark.parametrize("before", [0, 1, 2])
def test_planes_become_pixels(plane, before):
    planes = np.random.default_rng(plane).integers(0, 256, (5, before + 3 * plane), np.uint8)
    images = np.full((5, plane, 3), 9, np.uint8)
    cifar.interleave(planes, before, images)
    assert np.array_equal(images, planes[:, before:].reshape(5, 3, plane).transpose(0, 2, 1))
