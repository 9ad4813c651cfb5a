import json
import shutil

import pytest

from beam_jobs.validation.job import Progress, Report, column_problems, parse_report, tfds_problems
from pipeline import manifest
from pipeline.errors import DataError
from pipeline.files.paths import LocalPath
from pipeline.index import __main__ as index
from tests.helpers.displays import later
from tests.helpers.raised import at
from tests.helpers.validated import write


@pytest.fixture
def made(tmp_path):
    (tmp_path / "marks").mkdir()
    return write(tmp_path / "made", "raw", (300, 200, 300)), tmp_path / "marks"


def test_finished_shards_are_counted_by_their_bytes(made):
    manifest, marks = made
    with Progress(manifest.shards, str(marks)) as progress:
        for number in (0, 2):
            (marks / str(number)).touch()
        later(progress, 5.1)
        progress.show()
        sizes = [shard.num_bytes for shard in manifest.shards]
        assert (progress.finished, progress.done, progress.total) == (2, sizes[0] + sizes[2], sum(sizes))
        mib = [f"{size / (1 << 20):.1f}" for size in (progress.done, progress.total)]
        assert progress.text().startswith(f"2 of 4 shards, {mib[0]} of {mib[1]} MiB, 0.0 MiB/s")


def test_marks_that_cannot_be_seen_are_no_error(made):
    manifest, marks = made
    marks.rmdir()
    progress = Progress(manifest.shards, str(marks))
    later(progress, 6)
    progress.show()
    assert progress.finished == 0


@pytest.fixture
def folder(converted_mnist, tmp_path):
    shutil.copytree(converted_mnist / "out", tmp_path / "out")
    return LocalPath(tmp_path / "out")


def problems(folder):
    return [*tfds_problems(folder, manifest.load(folder))]


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
    ((file, text),) = problems(folder)
    assert (file, text.partition(":")[0]) == ("dataset_info.json", "was edited")


def test_a_report_comes_back_as_it_was_written_and_anything_else_is_refused():
    report = Report(("x: is cut",), 3, 2, 10, 1000)
    assert parse_report(report.to_bytes(), "r.json") == report
    for data in (b"", b"{}", b"[]", report.to_bytes()[:-4], report.to_bytes().replace(b'"records"', b'"rows"')):
        with pytest.raises(DataError, check=at("r.json", "is not a validation report (")):
            parse_report(data, "r.json")


def test_a_column_that_was_changed_is_a_problem(folder):
    index.main([str(folder), "--add_columns=records"])
    made = manifest.load(folder)
    assert list(column_problems(folder, made)) == []
    name = f"columns/test.label.{made.columns['label'].files['test']}.npy"
    (folder / name).write_bytes((folder / name).read_bytes()[:-1])
    ((file, text),) = column_problems(folder, made)
    assert file == name
    assert text.startswith("its CRC32C is")
