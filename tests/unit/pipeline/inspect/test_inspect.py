import numpy as np
import pytest
from PIL import Image

from pipeline.errors import DataError, UsageError
from pipeline.index import __main__ as index
from pipeline.inspect import __main__ as inspect
from tests.helpers.datasets import edit_manifest, images_of, write_dataset


@pytest.fixture
def folder(tmp_path):
    write_dataset(tmp_path / "made", (5, 0, 4, 3), (8, 6, 3), (4,))
    return tmp_path / "made"


def test_tables_show_counts_bytes_and_labels(folder, capsys):
    inspect.main([str(folder)])
    lines = [" ".join(line.split()) for line in capsys.readouterr().out.splitlines()]
    assert lines[0].startswith("made: 16 examples, image 8x6x3 uint8 raw, 3 classes, pixel mean 1")
    assert "split shards examples size examples per shard rejects" in lines
    size = (folder / "train-00000-of-00004.tfrecord").stat().st_size
    assert f"train 4 12 {size * 12 / 5 / 1024:.1f} KiB 0 to 5 0" in lines
    assert f"test 1 4 {(folder / 'test-00000-of-00001.tfrecord').stat().st_size} bytes 4 0" in lines
    assert any(line.startswith(f"train-00000-of-00004.tfrecord 5 {size:,} ") for line in lines)
    assert "0 class 0 2 4" in lines
    assert "2 class 2 1 4" in lines


def test_the_contact_sheet_shows_the_first_batch_as_stored_and_augmented(folder, tmp_path, capsys):
    path = tmp_path / "sheet.png"
    inspect.main([str(folder), f"--png={path}", "--augment=cifar10_tutorial(crop=6)", "--seed=4"])
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


@pytest.mark.slow
def test_another_seed_or_split_is_another_picture(folder, tmp_path, capsys):
    pictures = []
    for number, flags in enumerate((["--seed=4"], ["--seed=4"], ["--seed=5"], ["--split=test", "--seed=4"])):
        path = tmp_path / f"{number}.png"
        inspect.main([str(folder), f"--png={path}", "--augment=none", *flags])
        pictures.append(np.asarray(Image.open(path)))
    assert np.array_equal(pictures[0], pictures[1])
    assert not np.array_equal(pictures[0], pictures[2])
    assert not np.array_equal(pictures[0], pictures[3])
    assert "contact sheet of test" in capsys.readouterr().out


@pytest.mark.slow
def test_the_contact_sheet_shows_a_view_and_the_table_its_columns(folder, tmp_path, capsys):
    index.main([str(folder), "--add_columns=records"])
    pictures = []
    views = [], ["--where=label == 1"], ["--limit=3"], ["--where=label != 0", "--balance=label"], ["--weigh=label"]
    classes = "--classes=class 2,class 0"
    views += ([classes],)
    for number, flags in enumerate(views):
        path = tmp_path / f"{number}.png"
        inspect.main([str(folder), f"--png={path}", "--augment=none", *flags])
        pictures.append(Image.open(path).tobytes())
    assert len({*pictures}) == len(views)
    path = tmp_path / "where.png"  # the same images under the names of the same classes
    inspect.main([str(folder), f"--png={path}", "--augment=none", "--where=label in ('class 2', 'class 0')"])
    assert pictures[-1] == Image.open(path).tobytes()
    assert "columns: bytes (int16), label (int8)" in capsys.readouterr().out
    with pytest.raises(UsageError, match="chooses what --png shows"):
        inspect.main([str(folder), "--where=label == 1"])


@pytest.mark.parametrize(
    ("side", "recipe"),
    [(4, "none"), pytest.param(5, "pad_crop_flip", marks=pytest.mark.slow), (24, "cifar10_tutorial")],
)
@pytest.mark.quick(1)
def test_the_recipe_of_the_contact_sheet_fits_the_images(side, recipe, tmp_path, capsys):
    write_dataset(tmp_path / "made", (3,), (side, side, 3), (1,))
    inspect.main([str(tmp_path / "made"), f"--png={tmp_path / 'sheet.png'}"])
    assert f"as stored and by {recipe}" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("arguments", "error", "facts"),
    [
        (["--png=/nowhere/a.png"], DataError, "^--png=/nowhere/a.png: .*No such file"),
        (["--png=a.png", "--split=trian"], UsageError, "'trian'.*'train'"),
        (["--seed=0"], UsageError, "^--seed=0: .*--png"),
    ],
)
def test_wrong_flags_are_one_clear_error(folder, arguments, error, facts):
    with pytest.raises(error, match=facts):
        inspect.main([str(folder), *arguments])


def no_stride(content):
    for split in content["splits"].values():
        for shard in split["shards"]:
            shard["stride"] = None


def encoded(content):
    content["features"]["image"].update(encoding="jpeg", shape=[None, None, 3])
    content["features"]["box"] = {"dtype": "float32", "shape": [None], "encoding": None, "class_names": []}
    content["splits"]["train"].update(image_sizes={"8x6": 8, "10x6": 3, "6x6": 1}, num_rejects=1234)
    content["splits"]["test"].update(image_sizes={"8x6": 3, "9x9": 1})


def test_images_that_differ_in_size_are_shown_with_their_sizes(folder, capsys):
    edit_manifest(folder, no_stride)
    edit_manifest(folder, encoded)
    edit_manifest(folder, lambda content: content.update(compression="GZIP"))
    inspect.main([str(folder)])
    lines = [" ".join(line.split()) for line in capsys.readouterr().out.splitlines()]
    assert lines[0].startswith("made: 16 examples, jpeg images of several sizes, colour, 3 classes, pixel mean 1")
    assert lines[1:3] == [
        "other features: box (? float32)",
        "shards compressed with GZIP; 4 of 5 are read forward only",
    ]
    assert "train 4 12 2.6 KiB 0 to 5 1,234" in lines
    assert lines[-5:] == ["height x width test train", "8x6 3 8", "10x6 0 3", "6x6 0 1", "9x9 1 0"]


def test_sizes_that_may_be_rounded_up_are_said_to_be(tmp_path, capsys):
    write_dataset(tmp_path, (12,), test_counts=(4,))
    edit_manifest(tmp_path, lambda content: content["features"]["image"].update(encoding="any", shape=[None, None, 3]))
    for split, count in (("train", 12), ("test", 4)):
        edit_manifest(
            tmp_path, lambda c, split=split, count=count: c["splits"][split].update(image_sizes={"64x128": count})
        )
    inspect.main([str(tmp_path)])
    lines = capsys.readouterr().out.splitlines()
    assert lines[-1] == "of a split with more than 100 sizes, sides are rounded up to a multiple of 64"


def test_of_many_sizes_the_most_frequent_are_shown(tmp_path, capsys):
    write_dataset(tmp_path, (60,), test_counts=(4,))
    sizes = {f"{side}x{side}": 1 for side in range(1, 31)} | {"100x100": 30}
    edit_manifest(tmp_path, lambda content: content["features"]["image"].update(encoding="any", shape=[None, None, 3]))
    edit_manifest(tmp_path, lambda content: content["splits"]["train"].update(image_sizes=sizes))
    inspect.main([str(tmp_path)])
    lines = [" ".join(line.split()) for line in capsys.readouterr().out.splitlines()]
    table = lines[lines.index("height x width test train") :]
    assert table[1:4] == ["100x100 0 30", "8x6 4 0", "1x1 0 1"]
    assert (len(table), table[-1]) == (22, "and 12 more sizes")


def test_records_without_a_label_are_counted(folder, capsys):
    def change(content):  # only records of other writers may have no label
        content["format_version"] = 4
        content["features"]["label"]["stored_as"] = "label"
        content["splits"]["test"]["label_histogram"] = [0, 0, 0]

    edit_manifest(folder, change)
    inspect.main([str(folder)])
    assert "test: 4 examples without a label" in capsys.readouterr().out
