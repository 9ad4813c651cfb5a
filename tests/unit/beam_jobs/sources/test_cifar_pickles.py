"""Pickles as Python 2 and 3 write them, and pickles that want more than to be read."""

import os
import pickle
import resource
import struct
import time

import numpy as np
import pytest

from beam_jobs.sources import cifar_pickles, streams
from pipeline.errors import DataError


def load(data):
    return cifar_pickles.load(streams.spool([data]), "/x/data_batch_1")


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
    monkeypatch.setattr(cifar_pickles, "MAX_READS", 10_000)
    start = time.monotonic()
    with pytest.raises(DataError, match="10000"):
        load(mark(b"}" * 10_001))
    assert time.monotonic() - start < 2


def test_a_file_that_is_too_large_is_not_read(monkeypatch):
    monkeypatch.setattr(cifar_pickles, "MAX_FILE", 10)
    with pytest.raises(DataError, match="11 bytes.* 10$"):
        load(b"\x80\x02" + b"N" * 8 + b".")


@pytest.mark.parametrize("kind", [np.int64, np.float32, object])
def test_an_array_of_other_numbers_is_refused(kind):
    with pytest.raises(DataError, match="something other than uint8"):
        load(pickle.dumps({"data": np.ones((2, 3), kind)}, 2))
