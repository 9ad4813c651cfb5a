"""Images in the records of other writers: what the index says of them, what is fed, and what it refuses."""

import gzip
import io
import json
import pathlib
import shutil
import zlib

import numpy as np
import PIL.Image
import pytest
import tensorflow as tf

from beam_jobs import sources, validate
from beam_jobs.sources.base import SourceOptions
from pipeline import RandomAccess, input_fn, operations
from pipeline import manifest as manifests
from pipeline.errors import DataError, UsageError
from pipeline.index import __main__ as index
from pipeline.manifest import Feature, PixelRule
from pipeline.request import Request
from pipeline.resolved import resolve
from tests.helpers import foreign
from tests.helpers.raised import at, said

TF_SLIM = ("--split=train:train-*", "--split=validation:validation-*", foreign.TF_SLIM, "--label_offset=-1")


def run(folder, *arguments):
    index.main([str(folder), *arguments])
    return manifests.load(folder)


@pytest.fixture(scope="module")
def imagenet(tmp_path_factory):
    folder = foreign.tf_slim(tmp_path_factory.mktemp("imagenet"), {"train": [7, 0, 6], "validation": [5]})
    before = {path.name: path.read_bytes() for path in folder.iterdir()}
    run(folder, *TF_SLIM, "--keep_columns=image/height,image/object/bbox/xmin")
    assert {name: (folder / name).read_bytes() for name in before} == before
    return folder


def fed(folder, split, **options):
    """Returns [(key, label, image)] of the rows of a pass over a split."""
    request = {"global_batch_size": 4, "training": False, "features": ("key",), **options}
    found = []
    for x, labels, weights in input_fn(folder, split=split, **request):
        rows = zip(x["key"].numpy(), labels.numpy(), x["image"].numpy(), weights.numpy(), strict=True)
        found += [(key.decode(), int(label), image) for key, label, image, weight in rows if weight]
    return found


def test_the_manifest_says_where_images_labels_and_keys_are(imagenet):
    made = manifests.load(imagenet)
    assert made.features == {
        "image": Feature("uint8", (None, None, 3), "jpeg", stored_as="image/encoded"),
        "label": Feature("int64", stored_as="image/class/label", offset=-1),
        "key": Feature("string", stored_as="image/filename"),
        "image/height": Feature("int64"),
        "image/object/bbox/xmin": Feature("float32", (None,)),
    }
    assert made.class_names == ("0", "1", "2", "3", "4")
    assert made.splits["train"].label_histogram == (3, 3, 3, 2, 2)
    assert made.splits["train"].image_sizes["40x48"] == 1
    assert (made.format_version, made.pixels) == (4, PixelRule("stored", "exact"))
    pixels = np.concatenate([example["image"].reshape(-1, 3) for example in RandomAccess(imagenet, "train")])
    assert made.image_mean == pytest.approx(pixels.mean(axis=0), abs=1e-9)
    assert made.image_std == pytest.approx(pixels.std(axis=0), abs=1e-9)
    assert set(made.columns) == {"label", "bytes", "height", "width", "image_height"}
    assert manifests.parse(made.to_bytes().decode(), "") == made


@pytest.mark.parametrize(
    ("options", "is_compiled"),
    [({}, True), ({"portable": True}, False), ({"shuffle_bytes": 20_000, "streams": 1, "training": True}, True)],
)
@pytest.mark.quick(1)
def test_what_is_fed_are_the_pixels_and_labels_of_the_records(imagenet, options, is_compiled, monkeypatch):
    if not is_compiled:
        monkeypatch.setattr(operations, "is_compiled", lambda: False)
    options = {"resize": (40, 48), "epochs": 1, **options}
    found = {key: (label, image) for key, label, image in fed(imagenet, "train", **options)}
    assert sorted(found) == [f"n{number:06d}.JPEG" for number in range(13)]
    assert all(found[f"n{number:06d}.JPEG"][0] == number % 5 for number in range(13))
    file = foreign.jpeg(0)  # of the size that the others are stretched to
    expected = tf.io.decode_jpeg(file, channels=3, dct_method="INTEGER_ACCURATE").numpy()
    assert np.array_equal(found["n000000.JPEG"][1], expected)


def test_kept_features_are_fed_beside_them(imagenet):
    options = {"global_batch_size": 5, "training": False, "resize": (8, 8)}
    [(x, _, _)] = input_fn(imagenet, split="validation", features=("image/height", "image/object/bbox/xmin"), **options)
    assert x["image/height"].numpy().tolist() == [40 + n % 7 for n in range(13, 18)]
    assert x["image/object/bbox/xmin"].row_lengths().numpy().tolist() == [n % 4 for n in range(13, 18)]


def test_a_view_chooses_by_labels_after_the_offset(imagenet):
    options = {"resize": (8, 8), "training": True, "epochs": 1, "remainder": "drop", "global_batch_size": 2}
    assert {label for _, label, _ in fed(imagenet, "train", where="label < 2", **options)} == {0, 1}
    balanced = [label for _, label, _ in fed(imagenet, "train", balance="label", **options)]
    assert max(np.bincount(balanced)) - min(np.bincount(balanced)) <= 1


@pytest.mark.slow
def test_crops_of_files_that_stay_in_memory_are_those_of_parsed_records(imagenet, monkeypatch):
    options = {"augment": "random_resized_crop(size=16, normalize=False)", "training": True, "epochs": 1}
    kept = _crops(imagenet, **options)
    monkeypatch.setattr(operations, "find_images", lambda records, *names: tf.fill([tf.size(records), 3], np.int64(-1)))
    parsed = _crops(imagenet, **options)
    assert len(kept) == len(parsed) == 4
    for one, other in zip(kept, parsed, strict=True):
        assert all(np.array_equal(a, b) for a, b in zip(one, other, strict=True))
    assert {int(label) for _, labels, _ in kept for label in labels} == {0, 1, 2, 3, 4}


def _crops(folder, **options):
    return [tuple(part.numpy() for part in batch) for batch in input_fn(folder, global_batch_size=4, **options)]


def test_a_test_split_may_have_no_labels(tmp_path, capsys):
    folder = foreign.flowers(tmp_path)
    made = run(folder, "--split=train:train*", "--split=val:val*", "--split=test:test*", foreign.FLOWERS)
    assert [made.splits[name].has_labels for name in ("train", "val", "test")] == [True, True, False]
    assert made.labelled(made.splits) == ["train", "val"]
    assert [made.class_name(label) for label in (-1, 0, 99)] == ["none", made.class_names[0], "99"]
    assert made.splits["test"].image_sizes == {"32x32": 5}
    assert "  test: no labels (label -1), " in capsys.readouterr().out
    assert [label for _, label, _ in fed(folder, "test")] == [-1] * 5
    assert RandomAccess(folder, "test")[0]["label"] == -1
    assert [key for key, _, _ in fed(folder, "test")][:2] == ["000c8", "000c9"]
    with pytest.raises(UsageError, check=said("'test' has no labels", "train, val")):
        resolve(Request(folder, "test", global_batch_size=2, training=True))


def test_a_stored_label_of_minus_one_is_none_whatever_the_offset(tmp_path):
    for split, labels in (("train", [1, 2, 3]), ("test", [-1, -1])):
        records = [{"image": foreign.jpeg(i), "label": label} for i, label in enumerate(labels)]
        foreign.write(tmp_path / split, records)
    flags = ("--feature_map=image:image,label:label", "--split=train:train", "--split=test:test", "--label_offset=-1")
    made = run(tmp_path, *flags)
    assert (made.class_names, made.splits["test"].label_histogram) == (("0", "1", "2"), ())
    assert "key" not in made.features
    options = {"global_batch_size": 5, "training": False}
    assert [y.numpy().tolist()[:2] for _, y, _ in input_fn(tmp_path, split="test", **options)] == [[-1, -1]]
    assert [y.numpy().tolist()[:3] for _, y, _ in input_fn(tmp_path, split="train", **options)] == [[0, 1, 2]]


def test_class_names_are_those_of_the_file(tmp_path):
    folder = foreign.melanoma(tmp_path / "data")
    flags = (
        "--split=train:train*",
        "--feature_map=image:image,label:target,key:image_name",
        "--keep_columns=sex,age_approx",
    )
    (folder / "labels.txt").write_text("no\nyes\n")
    made = run(folder, *flags)
    assert (made.class_names, made.splits["train"].label_histogram) == (("no", "yes"), (9, 3))
    (tmp_path / "names").write_text("benign\nmalignant\n")
    made = run(folder, *flags, f"--class_names={tmp_path}/names", "--overwrite")
    assert made.class_names == ("benign", "malignant")
    assert made.features["image"].shape == (36, 36, 3)
    assert {"sex", "age_approx"} <= made.columns.keys()
    assert RandomAccess(folder)[1]["key"] == b"ISIC_0000017"


@pytest.mark.slow
def test_files_of_several_compressions_feed_the_same_rows(imagenet, tmp_path):
    for path, pack in zip(sorted(imagenet.glob("*-of-*")), (gzip.compress, bytes, bytes, zlib.compress), strict=True):
        (tmp_path / path.name).write_bytes(pack(path.read_bytes()))
    made, plain = run(tmp_path, *TF_SLIM, "--keep_columns=image/height"), manifests.load(imagenet)
    assert (made.packing, made.format_version) == ("GZIP (1 of 4 shards) and ZLIB (1 of 4 shards)", 5)
    assert (made.image_mean, made.class_names) == (plain.image_mean, plain.class_names)
    for split in ("train", "validation"):
        for options in ({"resize": (8, 8)}, {"resize": (8, 8), "portable": True}):
            for one, other in zip(fed(tmp_path, split, **options), fed(imagenet, split, resize=(8, 8)), strict=True):
                assert one[:2] == other[:2]
                assert np.array_equal(one[2], other[2])
    source = sources.open_source(SourceOptions("tfrecord", str(tmp_path)))
    assert source.splits == {"train": 13, "validation": 5}
    labels = source.read("validation", np.arange(5)).labels.tolist()
    assert labels == [label for _, label, _ in fed(imagenet, "validation", resize=(8, 8))]


def test_class_names_may_lie_in_the_folder_of_the_files(tmp_path):
    foreign.melanoma(tmp_path / "train")
    (tmp_path / "train" / "labels.txt").write_text("no\nyes\n")
    made = run(tmp_path, foreign.MELANOMA)
    assert (made.class_names, [*made.splits]) == (("no", "yes"), ["train"])
    (tmp_path / "train" / "labels.txt").write_text("no\nno\n")
    with pytest.raises(UsageError, check=said("the class names have 'no' twice")):
        run(tmp_path, foreign.MELANOMA, "--overwrite")


@pytest.mark.parametrize(
    ("content", "offset", "names"),
    [
        ("\ufeffno\nyes\n", 0, ("no", "yes")),  # as Windows writes it
        ("1:yes\n0:no\n", 0, ("no", "yes")),  # as TF-Slim does
        ("0:background\n1:no\n2:yes\n", -1, ("no", "yes")),
        ("1:no\n2:yes\n", 0, ("1:no", "2:yes")),  # names, for all that is known
    ],
)
def test_numbered_class_names_are_those_of_stored_labels(tmp_path, content, offset, names):
    records = [{"image": foreign.jpeg(i), "label": i - offset} for i in range(2)]
    foreign.write(tmp_path / "train", records)
    (tmp_path / "labels.txt").write_text(content, encoding="utf-8")
    made = run(tmp_path, "--split=train:train", "--feature_map=image:image", f"--label_offset={offset}")
    assert (made.class_names, made.splits["train"].label_histogram) == (names, (1, 1))


def test_a_class_without_records_at_the_end_of_shifted_names_is_said(tmp_path, capsys):
    foreign.write(tmp_path / "train", [{"image": foreign.jpeg(i), "label": 1 + i} for i in range(2)])
    (tmp_path / "labels.txt").write_text("background\nno\nyes\n")
    run(tmp_path, "--split=train:train", "--feature_map=image:image", "--label_offset=-1")
    assert "note: no record is of the last class, yes; " in capsys.readouterr().out


def test_columns_added_later_have_the_labels_after_the_offset(imagenet, tmp_path):
    folder = foreign.tf_slim(tmp_path / "data", {"train": [5]})
    run(folder, "--split=train:train-*", foreign.TF_SLIM, "--label_offset=-1")
    before = manifests.load(folder)
    made = run(folder, "--add_columns=records:label,image/width,width")
    assert made.columns["label"] == before.columns["label"]
    assert made.columns["image_width"].files == made.columns["width"].files == before.columns["width"].files
    assert made.digest == before.digest


def test_features_with_our_names_beside_those_that_are_mapped_are_none_of_ours(tmp_path):
    taken = {"image": b"a thumbnail", "label": 9, "key": b"one for all"}
    records = [{"file": foreign.jpeg(i), "class": i + 1, "id": b"%d" % i, **taken} for i in range(3)]
    foreign.write(tmp_path / "train", records)
    names = "--feature_map=image:file,label:class,key:id"
    run(tmp_path, "--split=train:train", names, "--label_offset=-1", "--keep_columns=class")
    assert [(e["key"], e["label"], e["class"]) for e in RandomAccess(tmp_path)] == [
        (b"0", 0, 1),
        (b"1", 1, 2),
        (b"2", 2, 3),
    ]
    before = manifests.load(tmp_path)
    assert run(tmp_path, "--add_columns=records:label").columns["label"] == before.columns["label"]
    validate.main([str(tmp_path), "--deep"])


def test_a_check_names_the_key_that_two_records_share_by_the_feature_it_is_in(tmp_path, capsys):
    def write(*keys):
        records = [{"image": foreign.jpeg(1), "label": 0, "id": key} for key in keys]
        foreign.write(tmp_path / "train", records)

    write(b"one", b"two")
    run(tmp_path, "--split=train:train", "--feature_map=image:image,key:id")
    write(b"two", b"two")
    with pytest.raises(DataError):
        validate.main([str(tmp_path)])
    assert "record 1, byte offset" in (out := capsys.readouterr().out)
    assert "has the key of record 0 of train: 'two'" in out


def test_a_check_accepts_a_kept_vector_that_a_record_lacks_as_the_index_and_training_do(tmp_path):
    records = [{"image": foreign.jpeg(i), "label": i} for i in range(3)]
    records[0] |= {"tags": np.array([4, 5]), "words": [b"a", b"b"]}
    foreign.write(tmp_path / "train", records)
    run(tmp_path, "--split=train:train", "--feature_map=image:image", "--keep_columns=tags,words")
    [(x, _, _)] = input_fn(tmp_path, global_batch_size=3, training=False, features=("tags", "words"))
    assert x["tags"].to_list() == [[4, 5], [], []]
    assert x["words"].to_list() == [[b"a", b"b"], [], []]
    validate.main([str(tmp_path), "--deep"])


def test_a_kept_feature_takes_precedence_over_the_size_of_that_name(tmp_path):
    records = [{"image": foreign.jpeg(i, (30 + i, 40)), "label": i, "height": 500 + i} for i in range(3)]
    foreign.write(tmp_path / "train", records)
    run(tmp_path, "--split=train:train", "--feature_map=image:image", "--keep_columns=height")
    options = {"global_batch_size": 1, "training": False, "resize": (8, 8)}
    [(x, y, _)] = input_fn(tmp_path, where="height == 501 and width == 40", **options)
    assert (x.shape, y.numpy().tolist()) == ((1, 8, 8, 3), [1])


def test_compressed_files_may_hold_images(tmp_path):
    foreign.flowers(tmp_path)
    for path in tmp_path.glob("*.tfrec"):
        path.write_bytes(gzip.compress(path.read_bytes()))
    made = run(tmp_path, "--split=train:train*", "--compression=GZIP", foreign.FLOWERS)
    assert (made.format_version, made.compression, made.splits["train"].label_histogram) == (4, "GZIP", (4, 4, 4))
    assert [key for key, _, _ in fed(tmp_path, "train")] == [f"{n:05x}" for n in range(12)]


def test_raw_pixels_in_place(tmp_path):
    images = np.random.default_rng(0).integers(0, 256, (6, 4, 5, 3), np.uint8)
    records = [{"image_raw": image.tobytes(), "label": i % 2} for i, image in enumerate(images)]
    foreign.write(tmp_path / "train", records)
    flags = ("--split=train:train", "--feature_map=image:image_raw", "--image_shape=4x5x3")
    assert run(tmp_path, *flags).features["image"] == Feature("uint8", (4, 5, 3), "raw", stored_as="image_raw")
    [(x, y, _)] = input_fn(tmp_path, global_batch_size=6, training=False)
    assert np.array_equal(x.numpy(), images)
    assert y.numpy().tolist() == [0, 1, 0, 1, 0, 1]
    assert np.array_equal(RandomAccess(tmp_path)[5]["image"], images[5])


def test_raw_pixels_of_another_shape_in_as_many_bytes_are_named(tmp_path):
    records = [{"image_raw": bytes(60), "label": 0, "height": h, "width": w, "depth": 3} for h, w in ((4, 5), (5, 4))]
    foreign.write(tmp_path / "train", records)
    with pytest.raises(DataError, check=at("train", "say 5x4x3, those of the first record 4x5x3", record=1)):
        run(tmp_path, "--split=train:train", "--feature_map=image:image_raw")


@pytest.mark.parametrize("mode", ["I;16", "LA", "P"])
def test_pixels_of_png_files_of_every_kind_are_those_of_tensorflow(tmp_path, mode):
    values = np.random.default_rng(0).integers(0, 1 << 16, (9, 7)).astype(np.uint16)
    image = PIL.Image.fromarray(values if mode == "I;16" else (values >> 8).astype(np.uint8))
    stream = io.BytesIO()
    (image if mode == "I;16" else image.convert(mode)).save(stream, "PNG")
    foreign.write(tmp_path / "train", [{"image": stream.getvalue(), "label": 0}])
    made = run(tmp_path, "--split=train:train", "--feature_map=image:image")
    expected = tf.io.decode_png(stream.getvalue(), channels=made.features["image"].shape[2]).numpy()
    assert np.array_equal(RandomAccess(tmp_path)[0]["image"], expected)
    assert made.image_mean == pytest.approx(expected.mean(axis=(0, 1)), abs=1e-9)


def test_images_that_exif_data_turn_are_read_as_stored_and_said(tmp_path, capsys):
    files = [foreign.jpeg(i, exif=exif) for i, exif in enumerate((0, 6, 1, 3))]
    foreign.write(tmp_path / "train", [{"image": file, "label": i} for i, file in enumerate(files)])
    made = run(tmp_path, "--split=train:train", "--feature_map=image:image")
    assert "note: 2 images would be turned by EXIF data" in capsys.readouterr().out
    assert (made.pixels.orientation, made.features["image"].shape) == ("stored", (40, 48, 3))
    [(x, _, _)] = input_fn(tmp_path, global_batch_size=4, training=False)
    assert np.array_equal(x[1], tf.io.decode_jpeg(files[1], dct_method="INTEGER_ACCURATE"))


def test_grey_and_coloured_png_and_jpeg_files_may_be_mixed(tmp_path):
    files = [foreign.jpeg(0), foreign.jpeg(1, form="PNG"), foreign.jpeg(2, mode="L")]
    foreign.write(tmp_path / "train", [{"image": file, "label": i} for i, file in enumerate(files)])
    made = run(tmp_path, "--split=train:train", "--feature_map=image:image")
    assert made.features["image"] == Feature("uint8", (40, 48, None), "any", stored_as="image")
    pixels = np.concatenate([example["image"].reshape(-1, 3) for example in RandomAccess(tmp_path)])
    assert made.image_mean == pytest.approx(pixels.mean(axis=0), abs=1e-9)


INKS = foreign.jpeg(1, mode="CMYK").replace(b"Adobe", b"Other")
GOOD = {"image": foreign.jpeg(0), "label": 1, "key": b"k", "other": 2.0}


@pytest.mark.parametrize(
    ("second", "where", "facts"),
    [
        ({"image": foreign.jpeg(1)}, None, ["split 'train'", "1 of 4 records", "record 3"]),
        ({"label": 1}, 1, ["no feature 'image'"]),
        ({"image": b"text", "label": 1}, 1, ["0x74657874"]),
        ({"image": foreign.jpeg(1)[:900], "label": 1}, 1, ["cut short"]),
        ({"image": foreign.jpeg(1, form="GIF"), "label": 1}, 1, ["GIF", "PNG and JPEG"]),
        ({"image": INKS, "label": 1}, 1, ["a JPEG file of a kind that TensorFlow reads otherwise"]),
        ({"image": foreign.jpeg(1), "label": 0}, 1, ["label -1 (stored as 0, --label_offset=-1)", "0..2"]),
        ({"image": foreign.jpeg(1), "label": 4}, 1, ["label 3 (stored as 4, --label_offset=-1)", "0..2"]),
        ({"image": foreign.jpeg(1), "label": -2}, 1, ["label -2"]),
        ({"image": foreign.jpeg(1), "label": np.array([1, 2])}, 1, ["2 values of int64, not 1 of int64"]),
        ({"image": foreign.jpeg(1), "label": 1.0}, 1, ["1 value of float, not 1 of int64"]),
    ],
)  # fmt: skip
def test_a_bad_record_is_named(tmp_path, second, where, facts):
    (tmp_path / "labels.txt").write_text("a\nb\nc\n")
    foreign.write(tmp_path / "train-0", [GOOD, GOOD])
    foreign.write(tmp_path / "train-1", [GOOD, second])
    with pytest.raises(DataError, check=at("" if where is None else "train-1", *facts, record=where)):
        run(tmp_path, "--split=train:train-*", "--feature_map=image:image", "--label_offset=-1")
    assert not (tmp_path / "manifest.json").exists()


@pytest.mark.parametrize(
    ("record", "flags", "facts"),
    [
        (GOOD, ["--feature_map=image:picture"], ["image:picture", "train-1", "image (1 bytes), key (1 bytes)"]),
        (GOOD, ["--feature_map=image:label"], ["image:label", "train-1", "must be one value of bytes"]),
        (GOOD, ["--feature_map=picture:image"], ["'picture'"]),
        (GOOD, ["--feature_map=image:image,key:label"], ["key:label", "int64", "must be bytes"]),
        ({"image": GOOD["image"]}, ["--feature_map=image:image"], ["no feature could be the label"]),
        (GOOD, ["--feature_map=image:image", "--keep_columns=missing"], ["--keep_columns=missing"]),
        (GOOD, ["--feature_map=image:image", "--class_names=missing.txt"], ["--class_names=missing.txt"]),
        (GOOD, ["--label_offset=-1"], ["--label_offset=-1", "--feature_map"]),
        (GOOD, ["--keep_columns=a"], ["--keep_columns=a", "--feature_map"]),
    ],
)
def test_what_an_index_of_images_cannot_be_made_of(tmp_path, record, flags, facts):
    foreign.write(tmp_path / "train-1", [record] * 3)
    with pytest.raises(UsageError, check=said(*facts)):
        run(tmp_path, "--split=train:train-*", *flags)
    assert [path.name for path in tmp_path.iterdir()] == ["train-1"]


def test_files_of_another_schema_are_named(tmp_path):
    foreign.write(tmp_path / "train-0", [GOOD])
    foreign.write(tmp_path / "train-1", [{"image_raw": bytes(12), "label": 1, "height": 2, "width": 2, "depth": 3}])
    with pytest.raises(DataError, check=at("train-1", "image_raw", "train-0", record=0)):
        run(tmp_path, "--split=train:train-*", "--feature_map=label:label")
    foreign.write(tmp_path / "train-1", [{"image": GOOD["image"], "image/class/label": 1}])
    foreign.write(tmp_path / "test", [{"image": GOOD["image"]}])
    splits = ("--split=test:test", "--split=train:train-0", "--split=val:train-1")  # those would be without labels
    with pytest.raises(
        DataError, check=at("train-1", "label 'image/class/label', those of train-0 have 'label'", record=0)
    ):
        run(tmp_path, *splits, "--feature_map=image:image")
    foreign.write(tmp_path / "train-1", [GOOD, GOOD])
    with pytest.raises(DataError, check=said("2 of 3 records have the key of another record")):
        run(tmp_path, "--split=train:train-*", "--feature_map=image:image,key:key")


def test_shards_that_change_afterwards_are_noticed_at_the_start(imagenet, tmp_path):
    folder = pathlib.Path(tmp_path / "copy")
    folder.mkdir()
    for path in imagenet.glob("**/*"):
        if path.is_file():
            (folder / path.relative_to(imagenet)).parent.mkdir(exist_ok=True)
            (folder / path.relative_to(imagenet)).write_bytes(path.read_bytes())
    shard = folder / "train-00002-of-00003"
    options = {"global_batch_size": 4, "training": False, "resize": (8, 8)}
    data = shard.read_bytes()
    shard.write_bytes(data + data[:50])
    with pytest.raises(DataError, check=at("train-00002-of-00003", str(len(data) + 50))):
        list(input_fn(folder, **options))
    other = foreign.tf_slim(tmp_path / "other", {"train": [7, 0, 6]}, classes=4) / "train-00002-of-00003"
    shard.write_bytes(other.read_bytes())
    assert len(data) == len(other.read_bytes())
    with pytest.raises(DataError, check=at("train-00002-of-00003", "CRC", "or was written again")):
        list(input_fn(folder, **options))


def test_an_index_whose_manifest_is_gone_says_what_to_remove(tmp_path):
    foreign.flowers(tmp_path)
    flags = ("--feature_map=image:image,label:class,key:id",)
    made = run(tmp_path, *flags)
    (tmp_path / "manifest.json").unlink()
    with pytest.raises(UsageError, check=said("sidecars/", "no manifest", "if an index left it", "remove sidecars/")):
        run(tmp_path, *flags)
    shutil.rmtree(tmp_path / "sidecars")
    assert run(tmp_path, *flags) == made


def test_an_index_without_a_feature_map_still_describes_no_images(imagenet):
    made = run(imagenet, *TF_SLIM[:2], "--overwrite")
    assert (made.features, made.format_version) == ({}, 2)
    assert not list((imagenet / "columns").glob("*"))
    made = run(imagenet, *TF_SLIM, "--overwrite")
    assert json.loads(made.to_bytes())["features"]["label"]["offset"] == -1
