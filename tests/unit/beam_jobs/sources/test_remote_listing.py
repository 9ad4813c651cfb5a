import glob
import pathlib

import pytest

from beam_jobs.sources import remote_listing

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
    matched = [name for name in NAMES if remote_listing._matches(name.split("/"), pattern.split("/"))]
    assert sorted(matched) == expected


def test_the_folder_of_all_files():
    assert remote_listing.common_folder(["a/b/c", "a/b/d", "a/e"]) == "a"
    assert remote_listing.common_folder(["a/b/c"]) == "a/b"
    assert remote_listing.common_folder(["a", "b/c"]) == ""
