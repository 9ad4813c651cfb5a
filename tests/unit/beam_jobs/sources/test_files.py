import pytest

from beam_jobs.sources import files
from beam_jobs.storage.paths import RemotePath
from pipeline.errors import DataError


def test_places_of_a_folder_and_of_a_store():
    assert files.place(files.path_of("/data/a")) == "/data/a"
    assert files.join("/data", "a/b") == "/data/a/b"
    assert files.name_from("/data/a/b", "/data") == "a/b"
    store = RemotePath("s3://bucket/data?region=x")
    assert files.join(store, "a/b") == RemotePath("s3://bucket/data/a/b?region=x")
    assert files.name_from(store / "a/b", store) == "a/b"


def test_bytes_of_a_local_file_and_its_stamp(tmp_path):
    path = tmp_path / "a"
    path.write_bytes(bytes(range(100)))
    with files.open_file(str(path)) as stream:
        assert files.size_of(stream) == 100
        assert files.read_at(stream, 10, 5) == bytes(range(10, 15))
        assert files.read_at(stream, 98, 5) == bytes([98, 99])
        assert files.stamp_of(stream, str(path)) == files.stamp(str(path)) == (100, path.stat().st_mtime_ns)
    with pytest.raises(DataError, match="missing: no such file"):
        files.stamp(str(tmp_path / "missing"))


@pytest.mark.parametrize("remote", [False, True])
def test_each_keeps_the_order_and_raises_of_the_first(remote):
    assert list(files.each(lambda n: n * n, range(100), remote)) == [n * n for n in range(100)]
    with pytest.raises(ZeroDivisionError):
        list(files.each(lambda n: 1 // (n - 50), range(100), remote))
