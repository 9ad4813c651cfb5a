"""Paths, local and of stores, and errors of files."""

import errno
import glob
import pathlib
import pickle

import pyarrow
import pytest

from pipeline.errors import DataError, TransientError, one_line
from pipeline.files.paths import LocalPath, each, folder, matches, path_of, with_version
from pipeline.files.remote import RemotePath


@pytest.mark.parametrize(
    ("error", "kind"),
    [
        (OSError(errno.ENOSPC, "No space left on device"), TransientError),
        (PermissionError(errno.EACCES, "Permission denied"), TransientError),
        (
            OSError(
                "When reading information for key 'x' in bucket 'b': AWS Error NETWORK_CONNECTION during HeadObject"
            ),
            TransientError,
        ),
        (OSError("google::cloud::Status(UNAVAILABLE: Retry policy exhausted)"), TransientError),
        (OSError("Corrupt snappy compressed data."), DataError),  # pyarrow's of a Parquet file
        (pyarrow.ArrowInvalid("Parquet magic bytes not found in footer"), DataError),
        (TransientError("x"), TransientError),
        (DataError("x"), DataError),
    ],
)
def test_what_a_rerun_may_mend_is_told_from_bad_data(error, kind):
    with pytest.raises(DataError) as caught, one_line("/x", "read"):
        raise error
    assert type(caught.value) is kind


def test_a_url_is_shown_without_its_options_and_its_user():
    path = RemotePath("s3://key:secret@bucket/folder/?endpoint_override=localhost:9000")
    assert str(path) == "s3://bucket/folder"
    assert "secret" not in repr(path)
    assert path.url == "s3://key:secret@bucket/folder?endpoint_override=localhost:9000"


def test_parts_of_a_url():
    path = RemotePath("gs://bucket/a/b.tar.gz?x=1")
    assert (path.name, path.stem, path.suffix) == ("b.tar.gz", "b.tar", ".gz")
    assert path.parent == RemotePath("gs://bucket/a?x=1")
    assert path.parent / "c" == RemotePath("gs://bucket/a/c?x=1")


def test_a_name_with_a_question_mark_begins_no_options():
    path = RemotePath("s3://bucket/a?region=x") / "what?.parquet"
    assert str(path) == "s3://bucket/a/what?.parquet"
    assert path.parent == RemotePath("s3://bucket/a?region=x")


@pytest.mark.parametrize("text", ["/data/a", "s3://bucket/a?region=x"])
def test_a_path_is_its_text(text):
    assert path_of(text).url == text
    assert pickle.loads(pickle.dumps(path_of(text))) == path_of(text)


def test_a_local_path_does_what_a_remote_one_does(tmp_path):
    folder = path_of(str(tmp_path))
    for name in ("a.bin", "b/c/d.bin"):
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_bytes(bytes(range(100)))
    assert (folder.files(), folder.files(recursive=True)) == (["a.bin"], ["a.bin", "b/c/d.bin"])
    path = folder / "b" / "c" / "d.bin"
    assert isinstance(path.parent, LocalPath)
    assert path.name_in(folder) == "b/c/d.bin"
    store = RemotePath("s3://bucket/data?region=x")
    assert (store / "b/c").name_in(store) == "b/c"
    assert path.size_and_time() == (100, (tmp_path / "b" / "c" / "d.bin").stat().st_mtime_ns)
    with path.open_native() as stream:
        assert stream.read_at(5, 98) == bytes([98, 99])


@pytest.mark.parametrize("remote", [False, True])
def test_each_keeps_the_order_and_raises_of_the_first(remote):
    assert list(each(lambda n: n * n, range(100), remote)) == [n * n for n in range(100)]
    with pytest.raises(ZeroDivisionError):
        list(each(lambda n: 1 // (n - 50), range(100), remote))


NAMES = [
    "a.parquet",
    "b.txt",
    ".c.parquet",
    "d/a.parquet",
    "d/e/a.parquet",
    "d/.e/a.parquet",
    ".d/a.parquet",
    "x/y/z/b1",
]


@pytest.mark.parametrize(
    "pattern",
    [
        "*",
        "*.parquet",
        ".*",
        "*/*.parquet",
        "**",
        "**/*.parquet",
        "d/**",
        "**/a.parquet",
        "x/**/b[0-9]",
        "**/e/*",
        "[ab]*",
    ],
)
def test_globs_match_what_they_match_in_a_folder(tmp_path, pattern):
    for name in NAMES:
        path = tmp_path / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.touch()
    found = {
        path for match in glob.glob(str(tmp_path / pattern), recursive=True) if (path := pathlib.Path(match)).is_file()
    }
    expected = sorted(path.relative_to(tmp_path).as_posix() for path in found)
    matched = [name for name in NAMES if matches(name.split("/"), pattern.split("/"))]
    assert sorted(matched) == expected


@pytest.mark.parametrize(
    ("text", "found"),
    [
        ("data@2", ("data", "2")),
        ("a/data/@54836350", ("a/data", "54836350")),
        ("s3://bucket/data@12", ("s3://bucket/data", "12")),
        ("data", ("data", None)),
        ("data@", ("data@", None)),
        ("data@0", ("data@0", None)),
        ("data@newest", ("data@newest", None)),
        ("data@5483635", ("data@5483635", None)),  # neither a number nor enough of a digest
        ("data@2/more", ("data@2/more", None)),
    ],
)
def test_a_version_of_a_data_set(text, found):
    assert with_version(text) == found
    if "://" not in text:
        assert str(folder(text)) == found[0]


def test_a_folder_whose_name_ends_like_a_version_is_a_folder(tmp_path):
    place = tmp_path / "data@2"
    place.mkdir()
    assert with_version(place) == (str(place), None)
