import pytest

from pipeline.errors import UsageError
from pipeline.manifest.splits import select
from tests.helpers.datasets import write_dataset


@pytest.fixture(scope="module")
def manifest(tmp_path_factory):
    return write_dataset(tmp_path_factory.mktemp("made"), counts=(5, 0, 4, 3), test_counts=(4,))


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("train", [("0", 0, 5), ("2", 0, 4), ("3", 0, 3)]),
        ("train[:50%]", [("0", 0, 5), ("2", 0, 1)]),
        ("train[50%:]", [("2", 1, 4), ("3", 0, 3)]),
        ("train[-2:]", [("3", 1, 3)]),
        ("train[:-2]", [("0", 0, 5), ("2", 0, 4), ("3", 0, 1)]),
        ("train[ 4 : 6 ]", [("0", 4, 5), ("2", 0, 1)]),
        ("train[-10%:]", [("3", 2, 3)]),
        ("train[:2]+train[11:]", [("0", 0, 2), ("3", 2, 3)]),
    ],
)
def test_slices(manifest, text, expected):
    selection = select(manifest, text)
    assert [(s.shard.file[10], s.start, s.stop) for s in selection.segments] == expected
    assert selection.num_examples == sum(stop - start for _, start, stop in expected)


def test_percentages_cut_without_loss(manifest):
    chosen = []
    for percent in range(100):
        try:
            chosen += select(manifest, f"train[{percent}%:{percent + 1}%]").segments
        except UsageError as error:
            assert "selects no record" in str(error)  # noqa: PT017
    assert sum(segment.num_examples for segment in chosen) == 12


def test_locate_names_file_and_row(manifest):
    selection = select(manifest, "train[3:]+test")
    assert selection.locate(0) == ("train-00000-of-00004.tfrecord", 3)
    assert selection.locate(2) == ("train-00002-of-00004.tfrecord", 0)
    assert selection.locate(9) == ("test-00000-of-00001.tfrecord", 0)
    with pytest.raises(IndexError, match=r"record 13 .* 0\.\.12"):
        selection.locate(13)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("trian", "'trian'.*'train'"),
        ("train[", "slice"),
        ("train[1]", "slice"),
        ("train[a:]", "slice"),
        ("", "slice"),
        ("train[:101%]", "101%"),
        ("train[:13]", "13.* 12 records"),
        ("train[5:5]", "selects no record"),
        ("train[7:3]", "selects no record"),
        ("train[:5]+train[4:]", "record 4 of train-00000-of-00004.tfrecord "),
        ("train+train", "twice"),
    ],
)
def test_what_is_no_slice_is_one_clear_error(manifest, text, message):
    with pytest.raises(UsageError, match=message.replace("[", r"\[")):
        select(manifest, text)
