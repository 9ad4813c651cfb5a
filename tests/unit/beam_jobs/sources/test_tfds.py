import pathlib
import subprocess
import sys
import types

import numpy as np
import pytest
import tensorflow_datasets as tfds

from beam_jobs import sources
from beam_jobs.convert import main
from beam_jobs.sources import tfds as source_of_tfds
from beam_jobs.sources.base import SourceOptions
from pipeline import images
from pipeline.errors import DataError, UsageError
from pipeline.files.paths import LocalPath
from pipeline.manifest import Feature
from tests.helpers.raised import at, said

NAMES = ("circle", "square", "star")


def pixels_of(row):
    return np.random.default_rng(row).integers(0, 256, (8, 6, 3), np.uint8)


class TinyShapes(tfds.core.GeneratorBasedBuilder):
    """Thirty images, prepared as TFDS prepares its own data sets."""

    VERSION = tfds.core.Version("1.0.0")

    def _info(self):
        features = {
            "image": tfds.features.Image(shape=(8, 6, 3)),
            "label": tfds.features.ClassLabel(names=NAMES),
            "name": tfds.features.Text(),
            "kind": tfds.features.ClassLabel(names=("even", "odd")),
            "box": tfds.features.BBoxFeature(),
            "sizes": {"all": tfds.features.Sequence(np.int32), "mean": tfds.features.Scalar(np.float64)},
            "words": tfds.features.Sequence(tfds.features.Text()),
        }
        return tfds.core.DatasetInfo(builder=self, features=tfds.features.FeaturesDict(features))

    def _split_generators(self, dl_manager):
        return {"train": self._generate_examples(0, 20), "test": self._generate_examples(20, 30)}

    def _generate_examples(self, start, stop):
        for row in range(start, stop):
            yield (
                row,
                {
                    "image": pixels_of(row),
                    "label": row % 3,
                    "name": str(row),
                    "kind": row % 2,
                    "box": tfds.features.BBox(0.0, 0.0, 0.5, row / 100),
                    "sizes": {"all": list(range(row % 4)), "mean": row / 2},
                    "words": ["a"],
                },
            )


class TextOnly(TinyShapes):
    """A data set without images."""

    VERSION = tfds.core.Version("1.0.0")

    def _info(self):
        return tfds.core.DatasetInfo(builder=self, features=tfds.features.FeaturesDict({"name": tfds.features.Text()}))

    def _generate_examples(self, start, stop):
        for row in range(start, stop):
            yield row, {"name": str(row)}


def prepare(kind, folder, file_format):
    builder = kind(data_dir=str(folder), file_format=file_format)
    builder.download_and_prepare()
    return pathlib.Path(builder.data_dir)


@pytest.fixture(scope="module", params=["tfrecord", "array_record"])
def prepared(request, tmp_path_factory):
    folder = tmp_path_factory.mktemp(request.param)
    prepare(TinyShapes, folder, request.param)
    return folder


@pytest.fixture(scope="module")
def as_tfrecord(tmp_path_factory):
    folder = tmp_path_factory.mktemp("once")
    return folder, prepare(TinyShapes, folder, "tfrecord")


def opened(folder, name="tiny_shapes", **options):
    return sources.open_source(SourceOptions(f"tfds:{name}", str(folder), **options))


@pytest.mark.parametrize("name", ["tiny_shapes", "tiny_shapes:1.0.0", "tiny_shapes:1.*.*"])
def test_both_formats_have_all_examples(prepared, name):
    source = opened(prepared, name)
    assert source.splits == {"train": 20, "test": 10}
    assert source.class_names == NAMES
    assert source.image_shape is None
    assert source.features == {}
    assert len(source.files) == 2
    for split, expected in (("train", range(20)), ("test", range(20, 30))):
        block = source.read(split, np.arange(len(expected))[::-1])
        found = {
            images.pixels(images.open_file(image)).tobytes(): label
            for image, label in zip(block.images, block.labels.tolist(), strict=True)
        }
        assert found == {pixels_of(row).tobytes(): row % 3 for row in expected}
        assert block.bad == {}


def test_rows_are_those_that_tfds_itself_reads(prepared):
    source = opened(prepared)
    if "array_record" in source.records["train"][0].packing:
        theirs = tfds.data_source("tiny_shapes", split="train", data_dir=str(prepared))
        labels = [theirs[row]["label"] for row in range(20)]
        assert source.chunks("train") is None
    else:
        theirs = tfds.builder_from_directory(str(prepared / "tiny_shapes" / "1.0.0")).as_dataset(split="train")
        labels = [int(each["label"]) for each in theirs]
        assert source.chunks("train").tolist() == [20]
    block = source.read("train", np.array([19, 3, 7]))
    assert block.labels.tolist() == [labels[19], labels[3], labels[7]]
    file = source.files[1].file
    assert file.startswith("tiny_shapes-train.")
    assert list(block.keys) == [f"{file}#{row:02d}".encode() for row in (19, 3, 7)]


@pytest.mark.quick(1)
def test_the_command_converts_it(prepared, tmp_path):
    flags = ["--image_encoding=raw", "--num_shards=1"]
    main(["--dataset=tfds:tiny_shapes", f"--source={prepared}", f"--data_dir={tmp_path / 'out'}", *flags])
    source = sources.open_source(SourceOptions("tfrecord", str(tmp_path / "out")))
    assert (source.dataset, source.class_names, source.image_shape) == ("tfds:tiny_shapes", NAMES, (8, 6, 3))
    block = source.read("test", np.arange(10))
    found = {image.tobytes(): label for image, label in zip(block.images, block.labels.tolist(), strict=True)}
    assert found == {pixels_of(row).tobytes(): row % 3 for row in range(20, 30)}


def test_other_features_are_kept(prepared):
    source = opened(prepared, keep_columns=("name", "kind", "box", "sizes/all", "sizes/mean"))
    assert source.features == {
        "name": Feature("string"),
        "kind": Feature("int64", class_names=("even", "odd")),
        "box": Feature("float32", (4,)),
        "sizes/all": Feature("int64", (None,)),
        "sizes/mean": Feature("float32"),
    }
    block = source.read("test", np.array([7, 2]))
    assert block.bad == {}
    rows = [int(name) for name in block.extra["name"]]
    assert block.labels.tolist() == [row % 3 for row in rows]
    assert block.extra["kind"].tolist() == [row % 2 for row in rows]
    assert np.allclose(block.extra["box"], [(0, 0, 0.5, row / 100) for row in rows])
    assert [list(sizes) for sizes in block.extra["sizes/all"]] == [list(range(row % 4)) for row in rows]
    assert block.extra["sizes/mean"].tolist() == [row / 2 for row in rows]


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("nam", r"unknown 'nam'; did you mean 'name'\? known: box, kind, name, sizes/all, sizes/mean, words"),
        ("label", "--keep_columns=label: every converted record"),
        ("words", r"--keep_columns=words: .* of shape \(None,\); numbers .* can be kept"),
    ],
)
def test_what_cannot_be_kept(as_tfrecord, name, message):
    with pytest.raises(UsageError, match=message):
        opened(as_tfrecord[0], keep_columns=(name,))


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("tiny_shape", r"no 'tiny_shape' prepared .*; what it has: tiny_shapes; did you mean tfds:tiny_shapes\?$"),
        ("minst", r"no 'minst' .*; did you mean 'mnist'\? prepare it with: tfds build mnist --data_dir="),
        ("qqqqqqqq", "no 'qqqqqqqq' .*; prepare it with: tfds build qqqqqqqq --data_dir="),
    ],
)
def test_a_name_that_is_nearly_known_gets_a_suggestion(as_tfrecord, name, message):
    with pytest.raises(DataError, match=message):
        opened(as_tfrecord[0], name)


def test_a_folder_with_nothing_prepared_says_so(tmp_path):
    with pytest.raises(DataError, check=said("nothing", "tfds build mnist --data_dir=")):
        opened(tmp_path, "mnist")


def test_the_folder_of_the_data_set_can_be_named_itself(as_tfrecord):
    assert opened(as_tfrecord[1]).splits == {"train": 20, "test": 10}


def test_needs_no_tensorflow(as_tfrecord):
    code = f"""
import sys
import numpy as np
from beam_jobs import sources
from beam_jobs.sources.base import SourceOptions
sources.open_source(SourceOptions("tfds:tiny_shapes", {str(as_tfrecord[0])!r})).read("train", np.arange(20))
print("tensorflow" in sys.modules)
"""
    done = subprocess.run([sys.executable, "-c", code], check=True, capture_output=True, text=True)
    assert done.stdout == "False\n"


@pytest.mark.parametrize("name", ["mnist", "tiny_shapes:2.0.0", "tiny_shapes/big"])
def test_what_is_not_prepared_is_told_in_one_line(as_tfrecord, name):
    with pytest.raises(DataError, check=said(f"'{name}'", f"tfds build {name} --data_dir=")) as error:
        opened(as_tfrecord[0], name)
    assert "\n" not in str(error.value)


def test_without_tfds_the_error_says_what_to_install(as_tfrecord, monkeypatch):
    monkeypatch.setitem(sys.modules, "tensorflow_datasets", None)  # as if it were not there
    with pytest.raises(UsageError, check=said("tensorflow_datasets", "pip install 'stepfeed[convert]'")):
        opened(as_tfrecord[0])


def test_a_missing_name_or_folder(tmp_path):
    with pytest.raises(UsageError, check=said("--dataset=tfds::", "tfds:mnist")):
        opened(tmp_path, "")
    with pytest.raises(DataError, check=at("nowhere", "no such folder")):
        opened(tmp_path / "nowhere", "mnist")


def test_a_data_set_without_images_is_refused_with_its_features(tmp_path):
    prepare(TextOnly, tmp_path, "tfrecord")
    message = r"1.0.0: has no feature of type Image, and none is named 'image'; it has name \(Text\)"
    with pytest.raises(DataError, match=message):
        opened(tmp_path, "text_only")


def test_a_shard_of_another_number_of_records_is_found(tmp_path):
    folder = prepare(TinyShapes, tmp_path, "tfrecord")
    train, test = folder / "tiny_shapes-train.tfrecord-00000-of-00001", "tiny_shapes-test.tfrecord-00000-of-00001"
    train.write_bytes((folder / test).read_bytes())
    with pytest.raises(DataError, check=at(train, "10 records", "dataset_info.json says 20")):
        opened(tmp_path)


def test_a_damaged_array_record_is_found(tmp_path):
    folder = prepare(TinyShapes, tmp_path, "array_record")
    path = folder / "tiny_shapes-train.array_record-00000-of-00001"
    data = bytearray(path.read_bytes())
    data[2000] ^= 0xFF
    path.write_bytes(data)
    with pytest.raises(DataError, check=at(path, "ArrayRecord")):
        opened(tmp_path).read("train", np.arange(20))
    path.write_bytes(data[:3000])
    with pytest.raises(DataError, check=at(path, "ArrayRecord")):
        opened(tmp_path)


def test_damaged_metadata_is_one_line(tmp_path):
    folder = prepare(TinyShapes, tmp_path, "tfrecord")
    (folder / "dataset_info.json").write_text("{")
    with pytest.raises(DataError, match="TFDS cannot open 'tiny_shapes': ") as error:
        opened(tmp_path)
    assert at("")(error.value)


def test_splits_that_cannot_be_converted_are_named(tmp_path):
    def split(name, num_examples):
        return types.SimpleNamespace(name=name, num_examples=num_examples)

    root = LocalPath(tmp_path)
    for splits, file_format, facts in (
        ([split("train", 1)], "riegeli", ("TFDS's format riegeli", "tfds build --file_format=array_record")),
        ([split("a-b", 1)], "tfrecord", ("has a split 'a-b'", "letters, digits and _")),
        ([split("train", 0), split("test", 0)], "tfrecord", ("its splits hold no example",)),
    ):
        with pytest.raises(DataError, check=at(tmp_path, *facts)):
            source_of_tfds._records(splits, file_format, root, ())


@pytest.mark.parametrize(
    ("image", "label", "facts"),
    [
        (
            tfds.features.Image(dtype=np.uint16, shape=(8, 6, 1)),
            {"num_classes": 3},
            "images are of dtype uint16; .* uint8",
        ),
        (tfds.features.Image(), {}, "its ClassLabel 'kind' does not say how many classes"),
    ],
)
def test_features_that_cannot_be_converted_are_named(tmp_path, image, label, facts):
    features = {"picture": image, "kind": tfds.features.ClassLabel(**label)}
    with pytest.raises(DataError, match=f"^{tmp_path}: .*{facts}"):
        source_of_tfds._image_and_label(features, LocalPath(tmp_path))


def test_a_label_without_classes_is_kept_as_a_number(tmp_path):
    features = tfds.features.FeaturesDict(
        {"kind": tfds.features.ClassLabel(), "size": tfds.features.ClassLabel(num_classes=2)}
    )
    assert source_of_tfds._kept(features, "kind", LocalPath(tmp_path)) == Feature("int64")
    assert source_of_tfds._kept(features, "size", LocalPath(tmp_path)) == Feature("int64", class_names=("0", "1"))
