import glob
import pathlib

import pytest

from beam_jobs.sources import listing
from pipeline.errors import DataError

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
    matched = [name for name in NAMES if listing.matches(name.split("/"), pattern.split("/"))]
    assert sorted(matched) == expected


@pytest.mark.parametrize("count", [1, 2, 5])
@pytest.mark.parametrize("tail", ["", "-0a1b", ".x"])
def test_a_file_that_is_missing_is_named(count, tail, tmp_path):
    def find():
        return listing.find(str(tmp_path), lambda name: True, True, "file", "")[1]

    names = [f"a/train-{index:05d}-of-{count:05d}{tail}" for index in range(count)]
    (tmp_path / "a").mkdir()
    for name in names:
        (tmp_path / name).touch()
    assert find() == names
    for index in range(count) if count > 1 else ():
        (tmp_path / names[index]).unlink()
        with pytest.raises(DataError, match=rf"/a/train-0000{index}-of-0000{count}.* {count - 1} of {count} "):
            find()
        (tmp_path / names[index]).touch()
