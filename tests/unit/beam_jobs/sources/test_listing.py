import pytest

from beam_jobs.sources import listing
from pipeline.errors import DataError


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
