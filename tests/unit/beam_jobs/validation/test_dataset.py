import json
import shutil

import pytest

from beam_jobs.storage.paths import LocalPath
from beam_jobs.validation.dataset import tfds_problems
from pipeline import manifest


@pytest.fixture
def folder(converted_mnist, tmp_path):
    shutil.copytree(converted_mnist / "out", tmp_path / "out")
    return LocalPath(tmp_path / "out")


def problems(folder):
    return [str(problem) for problem in tfds_problems(folder, manifest.load(folder))]


def test_what_a_conversion_of_two_splits_wrote_for_tfds_is_right(folder):
    assert [split["name"] for split in json.loads((folder / "dataset_info.json").read_bytes())["splits"]] == [
        "train",
        "test",
    ]
    assert list(manifest.load(folder).splits) == ["test", "train"]
    assert problems(folder) == []


@pytest.mark.parametrize(
    "edit", [lambda info: info["splits"][0].update(shardLengths=["1"]), lambda info: info.pop("splits")]
)
def test_a_change_of_it_is_found(edit, folder):
    path = folder / "dataset_info.json"
    content = json.loads(path.read_bytes())
    edit(content)
    path.write_bytes(json.dumps(content).encode())
    (found,) = problems(folder)
    assert found.startswith("dataset_info.json: was edited: ")
