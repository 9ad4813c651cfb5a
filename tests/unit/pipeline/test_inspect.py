import numpy as np
import pytest
from PIL import Image

from pipeline import inspect
from pipeline.errors import DataError, UsageError
from tests.datasets import images_of, write_dataset


@pytest.fixture
def folder(tmp_path):
    write_dataset(tmp_path / "made", (5, 0, 4, 3), (8, 6, 3), (4,))
    return tmp_path / "made"


def test_tables_show_counts_bytes_and_labels(folder, capsys):
    inspect.main([str(folder)])
    lines = [" ".join(line.split()) for line in capsys.readouterr().out.splitlines()]
    assert lines[0].startswith("made: 16 examples, image 8x6x3 uint8 raw, 3 classes, pixel mean 1")
    assert "train 4 12 0.0 0 to 5" in lines
    assert "test 1 4 0.0 4" in lines
    size = (folder / "train-00000-of-00004.tfrecord").stat().st_size
    assert any(line.startswith(f"train-00000-of-00004.tfrecord 5 {size:,} ") for line in lines)
    assert "0 class 0 2 4" in lines
    assert "2 class 2 1 4" in lines


def test_the_contact_sheet_shows_the_first_batch_as_stored_and_distorted(folder, tmp_path, capsys):
    path = tmp_path / "sheet.png"
    inspect.main([str(folder), f"--png={path}", "--distort=cifar10_tutorial(crop=6)", "--seed=4"])
    assert f"{path}: contact sheet of train, as stored and by cifar10_tutorial(crop=6)" in capsys.readouterr().out
    sheet = np.asarray(Image.open(path))
    assert sheet.shape[2] == 3
    from pipeline import input_fn

    raw, _, _ = next(input_fn(folder, global_batch_size=32, training=True, seed=4).as_numpy_iterator())
    assert any(np.array_equal(raw[0], image) for image in images_of(0, 12, (8, 6, 3)))
    tile = sheet[32 : 32 + 96, 6 : 6 + 96]  # the first image, 96 pixels wide, nearest neighbour
    assert np.array_equal(tile[6::12, 8::16], raw[0])
    below = sheet[32 + 96 + 3 : 32 + 96 + 3 + 96, 6 : 6 + 96]
    assert below.min() == 0
    assert below.max() >= 254
    assert not np.array_equal(tile, below)


@pytest.mark.parametrize(
    ("arguments", "error", "message"),
    [
        (["--png=a.jpg"], UsageError, "--png=a.jpg: the file's name must end in .png"),
        (["--png=/nowhere/a.png"], DataError, "--png=/nowhere/a.png: cannot be written: No such file"),
        (["--png=a.png", "--distort=shfit"], UsageError, "did you mean 'shift'"),
        (["--png=a.png", "--split=trian"], UsageError, "did you mean 'train'"),
        (["--split=test"], UsageError, "--split=test: chooses what --png shows; give --png"),
        (["--seed=0"], UsageError, "--seed=0: chooses what --png shows"),
        (["--pgn=a.png"], UsageError, "unknown '--pgn'; did you mean '--png'"),
        (["more"], UsageError, "unexpected argument 'more'"),
        (["--seed=x"], UsageError, "argument --seed: invalid int value: 'x'"),
    ],
)
def test_wrong_flags_are_one_clear_error(folder, arguments, error, message):
    with pytest.raises(error, match=message):
        inspect.main([str(folder), *arguments])


def test_a_missing_shard_is_named(folder):
    (folder / "train-00002-of-00004.tfrecord").unlink()
    with pytest.raises(DataError, match="train-00002-of-00004.tfrecord: the manifest lists this shard"):
        inspect.main([str(folder)])
    with pytest.raises(UsageError, match="required: DATA_DIR"):
        inspect.main([])
