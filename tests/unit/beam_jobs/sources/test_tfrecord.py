import gzip
import io
import os
import pickle
import zlib

import numpy as np
import PIL.Image
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from beam_jobs import sources
from beam_jobs.sources import record_files
from beam_jobs.sources.base import SourceOptions
from pipeline.errors import DataError, UsageError
from pipeline.index import __main__ as index
from pipeline.manifest import Feature, Manifest, SplitInfo, naming
from pipeline.records import framing, tf_example
from tests.helpers.datasets import write_dataset, write_shard
from tests.helpers.lanes import examples
from tests.helpers.raised import at, said
from tests.helpers.round_trips import PICTURES, Row, check, digits, empty_folder, in_order, png


def opened(path, **flags):
    return sources.open_source(SourceOptions("tfrecord", str(path), **flags))


def pixels_of(row, shape=(4, 5, 3)):
    return np.random.default_rng(row).integers(0, 256, shape, np.uint8)


def framed(features):
    return b"".join(framing.frame(tf_example.encode(each)) for each in features)


def write(path, features, pack=bytes):
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(pack(framed(features)))
    return path


def book(row):
    """Features like those from `convert_to_records` in the TensorFlow book's MNIST chapter, for a 28x28x1 image."""
    return {"pixels": 784, "label": row % 10, "image_raw": pixels_of(row, (28, 28, 1)).tobytes()}


def write_ours(folder, examples, image, extra=None, compression="", counts=(4, 0, 3)):
    """Writes a data set of ours with one split, of examples whose image is described by the feature `image`."""
    folder.mkdir()
    records = [framing.frame(tf_example.encode(each)) for each in examples]
    shards, start = [], 0
    for shard, count in enumerate(counts):
        name = naming.shard_name("train", shard, len(counts), compression)
        shards.append(write_shard(folder, name, records[start : start + count]))
        start += count
    histogram = np.bincount([each["label"] for each in examples], minlength=3)
    made = Manifest(
        dataset="made",
        class_names=tuple(f"class {label}" for label in range(len(histogram))),
        features={"image": image, "label": Feature("int64"), "key": Feature("string"), **(extra or {})},
        splits={"train": SplitInfo(tuple(shards), tuple(histogram.tolist()))},
        image_mean=(1.0, 2.0, 3.0),
        image_std=(1.0, 1.0, 1.0),
        source=(),
        options={},
        compression=compression,
    )
    (folder / naming.MANIFEST).write_bytes(made.to_bytes())


PNGS = [
    {
        "image": png(pixels_of(row, (row + 1, 5, 3))),
        "label": row % 3,
        "key": b"key of %d" % row,
        "ids": np.arange(row),
        "box": np.array([row, 0.5], np.float32),
        "note": b"note %d" % row,
    }
    for row in range(7)
]
PNG_IMAGE = Feature("uint8", (None, 5, 3), "png")
PNG_EXTRA = {"ids": Feature("int64", (None,)), "box": Feature("float32", (2,)), "note": Feature("string")}


SHAPE, SINGLES = (2, 3, 3), st.floats(width=32)
RAW = [bytes(number * step % 256 for step in range(18)) for number in (1, 7, 50)]
PACKS = [bytes, gzip.compress, zlib.compress, lambda data: gzip.compress(data[:99]) + gzip.compress(data[99:])]
WORDS = {"train": ("train", "Data"), "validation": ("val", "Dev"), "test": ("test", "eval")}
FILES = ["{}-{:05d}-of-{:05d}", "{}_{}.tfrecords", "x.{}{}.TFRecord", "{}{}.tfrec"]
CLASSES = ["cat", "dog", "eel", "\u00e9", "ape", "bee", "cow"]


@st.composite
def files_of(draw):
    """Draws {split: {file: records}}, both in the order of the source."""
    found, splits = {}, draw(st.lists(st.sampled_from(sorted(WORDS)), min_size=1, unique=True))
    for split in [split for split in WORDS if split in splits]:
        counts = draw(st.lists(st.sampled_from([0, 1, 2, 4, 11]), min_size=1, max_size=3).filter(any))
        # Without a word for its split, a file belongs to train, unless other files have one.
        may_be = WORDS[split][:1] if split == "train" and len(splits) > 1 else WORDS[split]
        name, word = draw(st.sampled_from(FILES)), draw(st.sampled_from(may_be))
        found[split] = {name.format(word, number, len(counts)): count for number, count in enumerate(counts)}
    return found


class Foreign:
    """Records as another program writes them. In each file, even-numbered ones are valid: they determine the columns.

    Attributes:
      rows: {split: expected rows}.
      flags: flags of the command.
      class_names, features: class names and features of the data set.
    """

    def __init__(self, draw, splits, folder):
        """Draws the records of {split: {file: records}} and writes them to the folder."""
        self._draw = draw
        self._kind = draw(st.sampled_from(["png", "jpeg", "given shape", "sizes"]), "images")
        self._is_text, self._has_lists = draw(st.booleans(), "text labels"), draw(st.booleans(), "lists")
        self._image, self._label = draw(
            st.sampled_from([("image", "label"), ("image_raw", "image/class/label"), ("x", "y")])
        )
        self._key = draw(st.sampled_from(["", "id", "name"]), "key")
        self._has_names = draw(st.booleans(), "labels.txt")
        mapped = {"key": self._key} | ({"image": "x", "label": "y"} if self._image == "x" else {})
        self.flags = {
            "dataset": "tfrecord",
            "source": str(folder),
            "feature_map": ",".join(f"{ours}:{theirs}" for ours, theirs in mapped.items() if theirs),
            "image_shape": "2x3x3" if self._kind == "given shape" else "",
            "keep_columns": "number,boxes,text",
        }
        boxes = Feature("float32", (None,) if self._has_lists else ())
        self.features = {"number": Feature("int64"), "boxes": boxes, "text": Feature("string")}
        self._labels, self._count = set(), 0
        self.rows = {split: [] for split in splits}
        for split, files in splits.items():
            for name, count in files.items():
                data = [self._record(split, name, number, max(files.values())) for number in range(count)]
                pack = draw(st.sampled_from(PACKS), "packing")
                (folder / name).write_bytes(pack(b"".join(map(framing.frame, data))))
        if self._has_names:
            (folder / "labels.txt").write_text("\n".join(CLASSES))
            self.class_names = CLASSES
        elif self._is_text:
            self.class_names = in_order(self._labels)
        else:
            self.class_names = [str(label) for label in range(max(self._labels) + 1)]

    def _record(self, split, file, number, most):
        """Draws a record; adds its expected row."""
        draw = self._draw
        self._count += 1
        label = draw(st.integers(0, 6))
        length = draw(st.integers(0, 3)) if number else 2
        row = Row(
            file, number, b"%s#%0*d" % (file.encode(), digits(most), number),
            draw(st.sampled_from({"png": PICTURES[:6], "jpeg": PICTURES[6:9]}.get(self._kind, RAW))),
            CLASSES[label] if self._is_text or self._has_names else str(label),
            {
                "number": draw(st.integers(-(2**63), 2**63 - 1)),
                "boxes": draw(st.lists(SINGLES, min_size=length, max_size=length)) if self._has_lists else 0.5,
                "text": draw(st.binary(max_size=4)),
            },
        )  # fmt: skip
        self.rows[split].append(row)
        features = row.extra | {
            "boxes": np.array(row.extra["boxes"], np.float32),
            self._image: row.image,
            self._label: row.class_name.encode() if self._is_text else label,
            "id": self._count - 3,
            "name": b"%d\0" % self._count,
        }
        features |= dict(zip(("height", "width", "depth"), SHAPE, strict=True)) if self._kind == "sizes" else {}
        if self._key:
            row.key = features["name"] if self._key == "name" else str(features["id"]).encode()
        if number % 2:
            change, row.fault = draw(st.sampled_from(self._faults()), "fault")
            if isinstance(change, bytes):
                return change
            features = {name: value for name, value in (features | change).items() if value is not None}
        self._see(features.get(self._label))
        return tf_example.encode(features)

    def _see(self, label):
        """Adds a label that names a class, even if the row is invalid."""
        if self._is_text and isinstance(label, bytes) and label and label != b"\xff":
            self._labels.add(label.decode())
        elif not self._is_text and isinstance(label, int) and label >= 0:
            self._labels.add(label)

    def _faults(self):
        """Returns (changed features or record, words in the reason) for every kind of fault."""
        image, label, key = repr(self._image), repr(self._label), repr(self._key)
        faults = [
            (b"\xffnot an Example", ("Example",)),
            (b"", ()),
            ({self._image: None}, (image,)),
            ({self._image: 3}, (image, "int64")),
            ({self._image: [b"a", b"b"]}, (image, "2")),
            ({self._image: b"hello"}, () if self._kind in ("png", "jpeg") else ("5 bytes",)),
            ({self._label: None}, (label,)),
            ({"number": b"one"}, ("'number'", "bytes")),
            ({"boxes": 3}, ("'boxes'", "int64")),
        ]
        faults += (
            [({"height": 1}, ("1x3x3", "2x3x3")), ({"width": None}, ("'width'",))] if self._kind == "sizes" else []
        )
        faults += [({self._key: None}, (key,)), ({self._key: 0.5}, (key, "float"))] if self._key else []
        faults += [({"name": b""}, (key,))] if self._key == "name" else []
        if self._is_text:
            faults += [({self._label: value}, (label,)) for value in (b"", b"\xff", 3, [b"cat", b"dog"])]
            faults += [({self._label: b"zebra"}, (label, "zebra"))] if self._has_names else []
        else:
            faults += [({self._label: value}, (label,)) for value in (b"cat", np.array([1, 2]), 0.5)]
            faults += [({self._label: -1}, ("-1", "0.."))]
            faults += [({self._label: 7}, ("7", "0..6"))] if self._has_names else []
        return faults


@given(st.data())
@settings(max_examples=examples(100), derandomize=True)
def test_foreign_records_become_their_valid_rows_and_the_rejects_of_the_others(data):
    with empty_folder() as folder, pytest.MonkeyPatch.context() as patch:
        patch.setattr(record_files, "_PIECE_RECORDS", 3)
        (folder / "in").mkdir()
        foreign = Foreign(data.draw, data.draw(files_of(), "files"), folder / "in")
        plan = check(data, folder, foreign.rows, foreign.class_names, foreign.features, **foreign.flags)
        for split, rows in foreign.rows.items():
            chunks = plan.source.chunks(split)
            assert chunks is None or chunks.sum() == len(rows)


class TestOurs:
    def test_raw_shards_come_back_row_by_row(self, tmp_path):
        made = write_dataset(tmp_path / "made", counts=(5, 0, 4, 3))
        source = opened(tmp_path / "made")
        assert source.splits == {"train": 12, "test": 4}
        assert (source.dataset, source.class_names, source.image_shape) == ("made", made.class_names, (8, 6, 3))
        assert source.chunks("train") is None
        assert source.unique_keys
        assert [(file.file, file.sha256) for file in source.files] == [("manifest.json", made.digest)]
        block = source.read("train", np.array([11, 0, 5, 4, 5]))
        assert block.images[:, 0, 0, 0].tolist() == [11, 0, 5, 4, 5]
        assert block.labels.tolist() == [2, 0, 2, 1, 2]
        assert block.keys.tolist() == [f"train#{row:05d}".encode() for row in (11, 0, 5, 4, 5)]
        assert source.where("train", 5) == ("train-00002-of-00004.tfrecord", 0)
        assert source.read("train", np.zeros(0, np.int64)).images.shape == (0, 8, 6, 3)

    def test_labels_above_127_and_empty_keys_come_back(self, tmp_path):
        keys, labels = [b"", b"a", b"b\0", b"c"], [0, 1, 127, 300]
        examples = [
            {"image": pixels_of(row).tobytes(), "label": label, "key": key}
            for row, (label, key) in enumerate(zip(labels, keys, strict=True))
        ]
        write_ours(tmp_path / "made", examples, Feature("uint8", (4, 5, 3), "raw"), counts=(4,))
        block = opened(tmp_path / "made").read("train", np.arange(4))
        assert block.labels.tolist() == labels
        assert block.images[3].tolist() == pixels_of(3).tolist()
        assert block.keys[1:] == keys[1:]

    def test_a_flipped_bit_is_named_with_its_record_and_offset(self, tmp_path):
        made = write_dataset(tmp_path / "made", counts=(12,))
        shard = made.splits["train"].shards[0]
        path = tmp_path / "made" / shard.file
        data = bytearray(path.read_bytes())
        data[7 * shard.stride + 50] ^= 4
        path.write_bytes(data)
        source = opened(tmp_path / "made")
        assert source.read("train", np.array([6, 8])).images[:, 0, 0, 0].tolist() == [6, 8]
        with pytest.raises(DataError, check=at(path, "CRC", record=7, offset=7 * shard.stride)):
            source.read("train", np.arange(12))

    def test_a_missing_or_cut_shard_is_found_at_once(self, tmp_path):
        made = write_dataset(tmp_path / "made")
        path = tmp_path / "made" / made.splits["test"].shards[0].file
        size = path.stat().st_size
        path.write_bytes(path.read_bytes()[:-1])
        with pytest.raises(DataError, check=at(path, size - 1, size)):
            opened(tmp_path / "made")
        path.unlink()
        with pytest.raises(DataError, check=at(path, "no such file")):
            opened(tmp_path / "made")

    @pytest.mark.parametrize(
        ("flag", "value"), [("image_shape", (1, 2, 3)), ("keep_columns", ("a",)), ("feature_map", (("image", "a"),))]
    )
    def test_takes_no_flags_of_foreign_records(self, tmp_path, flag, value):
        write_dataset(tmp_path / "made")
        with pytest.raises(UsageError, check=said(f"--{flag}:", naming.MANIFEST)):
            opened(tmp_path / "made", **{flag: value})


class TestForeign:
    def test_records_of_the_tensorflow_book(self, tmp_path):
        import tensorflow as tf

        def feature(value):
            if isinstance(value, bytes):
                return tf.train.Feature(bytes_list=tf.train.BytesList(value=[value]))
            return tf.train.Feature(int64_list=tf.train.Int64List(value=[value]))

        for split, rows in (("train", range(40)), ("validation", range(40, 45)), ("test", range(45, 55))):
            with tf.io.TFRecordWriter(str(tmp_path / f"{split}.tfrecords")) as writer:
                for row in rows:
                    features = {name: feature(value) for name, value in book(row).items()}
                    writer.write(tf.train.Example(features=tf.train.Features(feature=features)).SerializeToString())
        flags = {"feature_map": (("image", "image_raw"), ("label", "label")), "image_shape": (28, 28, 1)}
        source = opened(tmp_path, **flags)
        assert source.splits == {"train": 40, "validation": 5, "test": 10}
        assert source.class_names == tuple("0123456789")
        assert source.chunks("train") is None  # records of one length
        assert [file.file for file in source.files] == ["test.tfrecords", "train.tfrecords", "validation.tfrecords"]
        block = pickle.loads(pickle.dumps(source)).read("test", np.array([9, 0]))
        assert block.images.tolist() == [pixels_of(54, (28, 28, 1)).tolist(), pixels_of(45, (28, 28, 1)).tolist()]
        assert block.labels.tolist() == [4, 5]
        assert list(block.keys) == [b"test.tfrecords#9", b"test.tfrecords#0"]
        assert source.unique_keys

    def test_a_piece_has_16_mib_at_most(self, tmp_path):
        jpeg = b"\xff\xd8\xff" + bytes(5 << 20)
        records = [{"image": jpeg + bytes(row), "label": 0} for row in range(8)]
        source = opened(write(tmp_path / "train.tfrecord", records))
        assert source.chunks("train").tolist() == [3, 3, 2]
        assert source.read("train", np.array([7, 2])).images == [records[7]["image"], records[2]["image"]]

    def test_a_record_as_long_as_gzips_magic_is_plain(self, tmp_path):
        size = 0x8B1F  # the first two bytes of the file are 1f 8b
        short = len(tf_example.encode({"image": bytes(size), "label": 0})) - size
        path = write(tmp_path / "a.tfrecord", [{"image": b"\xff\xd8\xff" + bytes(size - short - 3), "label": 0}])
        assert path.read_bytes().startswith(b"\x1f\x8b")
        assert opened(path).splits == {"train": 1}

    def test_data_without_images_gets_what_to_do(self, tmp_path):
        path = write(tmp_path / "a.tfrecord", [{"words": np.array([1, 2, 3]), "label": 1}] * 3)
        with pytest.raises(UsageError, check=said(path, "image", "label (1 int64)", "pipeline.index")):
            opened(path)

    def test_a_bad_row_is_a_bad_row_even_if_it_is_the_first(self, tmp_path):
        for bad, fact in (
            ({"label": 1}, "no feature 'image'"),
            ({"image": png(pixels_of(0))}, "no feature 'label'"),
            ({"image": 3, "label": 1}, "of int64, not 1 of bytes"),
            ({"image": png(pixels_of(0)), "label": b"cat"}, "of bytes, not 1 of int64"),
        ):
            features = [{"image": png(pixels_of(n)), "label": n % 2} for n in range(8)]
            features[0] = bad
            source = opened(write(tmp_path / "a.tfrecord", features))
            block = source.read("train", np.arange(8))
            assert list(block.bad) == [0]
            assert fact in block.bad[0]

    def test_a_raw_image_that_is_cut_is_a_bad_row_even_if_it_is_the_first(self, tmp_path):
        features = [book(n) for n in range(8)]
        features[0]["image_raw"] = b"cut"
        source = opened(write(tmp_path / "a.tfrecord", features), image_shape=(28, 28, 1))
        assert list(source.read("train", np.arange(8)).bad) == [0]

    def test_encoded_images_of_other_formats_are_no_raw_pixels(self, tmp_path):
        stream = io.BytesIO()
        PIL.Image.fromarray(pixels_of(1)).save(stream, "WEBP", lossless=True)
        source = opened(write(tmp_path / "a.tfrecord", [{"image": stream.getvalue(), "label": 0}]))
        assert source.image_shape is None
        assert source.read("train", np.arange(1)).images == [stream.getvalue()]

    def test_labels_txt_names_the_classes_without_reading_the_records(self, tmp_path):
        path = write(tmp_path / "a.tfrecord", [{"image": png(pixels_of(row)), "label": row} for row in range(2)])
        (tmp_path / "labels.txt").write_text("cat\ndog\nbird\n")
        assert opened(tmp_path).class_names == ("cat", "dog", "bird")
        (tmp_path / "label.labels.txt").write_text("chat\nchien\noiseau\n")  # as TFDS names the file of a feature
        assert opened(tmp_path).class_names == ("chat", "chien", "oiseau")
        data = bytearray(path.read_bytes())
        data[-6] ^= 1  # in the last record: its CRC is checked when it is read
        path.write_bytes(data)
        with pytest.raises(DataError, check=at(path, "CRC", record=1)):
            opened(tmp_path).read("train", np.array([1]))

    def test_a_glob_takes_files_of_many_folders(self, tmp_path):
        for part in ("one", "two"):
            write(tmp_path / part / "train.rec", [{"image": png(pixels_of(0)), "label": 0}])
        source = opened(tmp_path / "*" / "train.rec")
        assert list(source.read("train", np.arange(2)).keys) == [b"one/train.rec#0", b"two/train.rec#0"]


class TestForeignErrors:
    @pytest.mark.parametrize(
        ("flags", "message"),
        [
            (
                {},
                r"--feature_map must name the label, as in label:height: .*: the first record has .*; if none is "
                "the label, boxes, masks and captions .* python -m pipeline.index",
            ),
            (
                {"feature_map": (("label", "nothing"),)},
                r"label:nothing: .*height \(1 int64\), image \(1 bytes\), of \(2",
            ),
            ({"feature_map": (("image", "of"),)}, "--feature_map must name the label"),
            ({"feature_map": (("label", "of"),)}, r"label:of: .*must be one value of int64 or bytes; "),
            ({"feature_map": (("lable", "of"),)}, "--feature_map: unknown 'lable'; did you mean 'label'"),
            ({"feature_map": (("label", "height"),)}, r"--image_shape=HxWxC is missing: .* holds 60 bytes beginning"),
            (
                {"feature_map": (("label", "height"),), "image_shape": (4, 5, 1)},
                "--image_shape=4x5x1: .*: must have 20 bytes; the first image has 60",
            ),
            (
                {"feature_map": (("label", "height"),), "image_shape": (4, 5, 3), "keep_columns": ("nothing",)},
                "--keep_columns=nothing: .*: the first record has no nothing; it has ",
            ),
        ],
    )
    def test_flags_that_do_not_fit_are_answered_with_the_features(self, tmp_path, flags, message):
        path = write(tmp_path / "a.tfrecord", [{"image": bytes(60), "height": 4, "of": np.array([1, 2])}])
        with pytest.raises(UsageError, match=message):
            opened(path, **flags)

    def test_encoded_images_take_no_shape(self, tmp_path):
        path = write(tmp_path / "a.tfrecord", [{"image": png(pixels_of(0)), "label": 0}])
        with pytest.raises(UsageError, check=said("--image_shape:", "'image'", "PNG")):
            opened(path, image_shape=(4, 5, 3))

    @pytest.mark.parametrize(
        ("name", "data", "message"),
        [
            ("a.tfrecord", b"", "a.tfrecord|1 TFRecord file, but there is no record in it"),
            ("a.tfrecord", b"PK\3\4 and so on.", "a.tfrecord: begins with 0x504b0304.*: neither a TFRecord's header"),
            ("a.tfrecord", framing.frame(b"\xff no"), "of 1 record read, none is a tf.train.Example"),
            ("a.csv", b"a,b", r"holds no file like \*\.tfrecord\*"),
        ],
    )
    def test_what_holds_no_examples_is_refused(self, tmp_path, name, data, message):
        (tmp_path / name).write_bytes(data)
        with pytest.raises(DataError, match=message):
            opened(tmp_path)

    @pytest.mark.parametrize(
        ("damage", "record"),
        [
            (lambda data: data[:-3], 9),
            (lambda data: data + b"1234", 10),
            (lambda data: data + bytes(12), 10),
            (lambda data: data[:-9] + b"!" + data[-8:], 9),
        ],
    )
    @pytest.mark.parametrize("pack", [bytes, gzip.compress, zlib.compress])
    def test_a_corrupt_file_is_named_with_the_record(self, tmp_path, damage, record, pack):
        data = framed([{"image": png(pixels_of(row)), "label": 0} for row in range(10)])
        (tmp_path / "a.tfrecord").write_bytes(pack(damage(data)))
        with pytest.raises(DataError, check=at("a.tfrecord", record=record)):
            opened(tmp_path)

    @pytest.mark.parametrize("pack", [gzip.compress, zlib.compress])
    @pytest.mark.parametrize("damage", [lambda data: data[:-9], lambda data: data[:400] + b"?" + data[401:]])
    def test_compressed_bytes_that_are_cut_or_changed_are_refused(self, tmp_path, pack, damage):
        data = pack(framed([{"image": png(pixels_of(row)), "label": 0} for row in range(10)]))
        (tmp_path / "a.tfrecord").write_bytes(damage(data))
        with pytest.raises(DataError, check=at("a.tfrecord", decompressed=True)):
            opened(tmp_path)

    def test_files_that_changed_are_refused(self, tmp_path):
        path = write(tmp_path / "a.tfrecord", [{"image": png(pixels_of(row)), "label": 0} for row in range(3)])
        source = opened(path)
        os.utime(path, ns=(1, 1))
        with pytest.raises(DataError, check=at(path, "changed")):
            source.read("train", np.array([0]))
        path.unlink()
        with pytest.raises(DataError, check=at(path, "no such file")):
            source.read("train", np.array([0]))

    def test_labels_must_be_able_to_be_classes(self, tmp_path):
        path = write(tmp_path / "a.tfrecord", [{"image": png(pixels_of(0)), "label": 1 << 40}])
        with pytest.raises(DataError, check=at(path, "'label'", (1 << 40) + 1, 1048576)):
            opened(path)

    @pytest.mark.parametrize("text", ["", "cat\n\ndog\n", "\xff"])
    def test_labels_txt_must_have_a_name_in_every_line(self, tmp_path, text):
        write(tmp_path / "a.tfrecord", [{"image": png(pixels_of(0)), "label": 0}])
        (tmp_path / "labels.txt").write_text(text, encoding="latin-1")
        with pytest.raises(DataError, check=at("labels.txt")):
            opened(tmp_path)

    def test_what_lies_beside_records_is_left_out(self, tmp_path):
        write_ours(tmp_path / "made", PNGS, PNG_IMAGE, PNG_EXTRA)
        (tmp_path / "made" / naming.MANIFEST).unlink()  # so these are anybody's records
        for path in (tmp_path / "made").glob("*.tfrecord"):
            (tmp_path / "made" / f"{path.name}.idx").write_bytes(b"0 40")
        source = opened(tmp_path / "made", feature_map=(("key", "key"),))
        assert source.splits == {"train": 7}
        assert list(source.read("train", np.array([6])).keys) == [b"key of 6"]

    def test_a_file_that_is_there_packed_and_unpacked_is_refused(self, tmp_path):
        records = [{"image": png(pixels_of(0)), "label": 0}]
        write(tmp_path / "train.tfrecord", records)
        write(tmp_path / "train.tfrecord.gz", records, gzip.compress)
        with pytest.raises(DataError, check=at(tmp_path, "train.tfrecord and train.tfrecord.gz")):
            opened(tmp_path)
        assert opened(tmp_path / "train.tfrecord.gz").splits == {"train": 1}

    def test_an_empty_split_is_told(self, tmp_path):
        write(tmp_path / "train.tfrecord", [{"image": png(pixels_of(0)), "label": 0}])
        write(tmp_path / "test.tfrecord", [])
        with pytest.raises(DataError, check=at(tmp_path, "'test'")):
            opened(tmp_path)

    def test_a_source_must_be_named(self):
        with pytest.raises(UsageError, match="--source"):
            opened("")


@pytest.mark.parametrize(
    ("name", "split"),
    [
        ("train-00000-of-00010", "train"),
        ("mnist-test.tfrecord-00000-of-00001", "test"),
        ("cifar10_val.tfrecords", "validation"),
        ("Eval.TFRecord", "test"),
        ("train2.tfrecord", "train"),
        ("latest.tfrecord", "train"),
        ("data.tfrec", "train"),
    ],
)
def test_the_split_is_a_word_of_the_name(name, split, tmp_path):
    write(tmp_path / name, [{"image": png(pixels_of(0)), "label": 0}])
    assert opened(tmp_path / name).splits == {split: 1}


def test_labels_that_are_missing_values_are_invalid_rows(tmp_path):
    words = [b"cat", b"NA", b"None", b"none", b""]
    path = write(tmp_path / "a.tfrecord", [{"image": png(pixels_of(0)), "label": word} for word in words])
    source = opened(path)
    block = source.read("train", np.arange(5))
    assert (source.class_names, list(block.bad)) == (("cat", "none"), [1, 2, 4])
    assert "--na_is_class" in block.bad[1]
    assert opened(path, na_is_class=True).class_names == ("NA", "None", "cat", "none")
    write(path, [{"image": png(pixels_of(0)), "label": word} for word in (b"1", b"1.0")])
    with pytest.raises(DataError, check=said("'1'", "'1.0'", "number")):
        opened(path)


def test_the_files_of_tensorflow_extended_are_read_in_any_compression(tmp_path):
    rows = [{"image": png(pixels_of(row)), "label": row % 3} for row in range(6)]
    packs = {"Split-train": (gzip.compress, bytes), "Split-eval": (zlib.compress,)}
    for folder, own in packs.items():
        for number, pack in enumerate(own):
            suffix = ".gz" if pack is gzip.compress else ""
            write(tmp_path / folder / f"data_tfrecord-{number:05d}-of-{len(own):05d}{suffix}", rows, pack)
    assert opened(f"{tmp_path}/Split-*/*").splits == {"train": 12, "test": 6}
    assert opened(tmp_path / "Split-eval").splits == {"train": 6}


def test_a_record_that_is_too_long_is_no_damage(tmp_path, monkeypatch):
    path = write(tmp_path / "a.tfrecord", [{"image": png(pixels_of(row, (40, 40, 3))), "label": 0} for row in range(3)])
    monkeypatch.setattr(framing, "MAX_RECORD", 2000)
    with pytest.raises(DataError, check=said("a.tfrecord, record 0", "above 2,000", "write it as several")) as error:
        opened(path)
    assert "corrupt" not in str(error.value)


def test_numbers_of_different_classes_are_not_joined(tmp_path):
    for name, classes in (("a", "cat\ndog\n"), ("b", "dog\ncat\n")):
        write(tmp_path / name / "train.tfrecord", [{"image": png(pixels_of(row)), "label": row} for row in range(2)])
        (tmp_path / name / "labels.txt").write_text(classes)
    with pytest.raises(DataError, check=said(tmp_path, "a and of b", "names of classes")):
        opened(f"{tmp_path}/*/*.tfrecord")
    assert opened(f"{tmp_path}/b/*.tfrecord").class_names == ("dog", "cat")
    (tmp_path / "b" / "labels.txt").write_text("cat\ndog\n")
    assert opened(f"{tmp_path}/*/*.tfrecord").class_names == ("cat", "dog")
    (tmp_path / "b" / "labels.txt").unlink()
    with pytest.raises(DataError, check=said(tmp_path, "a and of b")):
        opened(f"{tmp_path}/*/*.tfrecord")


def test_an_index_of_any_records_says_which_file_is_of_which_split(tmp_path):
    for name, rows in (("a.tfrecord", range(3)), ("b.tfrecord", range(3, 5)), ("c.tfrecord", range(5, 9))):
        write(tmp_path / name, [book(row) for row in rows], gzip.compress if name == "b.tfrecord" else bytes)
    index.main([str(tmp_path), "--split=held_out:[ab]*", "--split=train:c*"])
    flags = {"feature_map": (("image", "image_raw"), ("label", "label")), "image_shape": (28, 28, 1)}
    source = opened(tmp_path, **flags)
    assert source.splits == {"train": 4, "held_out": 5}
    assert source.read("held_out", np.arange(5)).labels.tolist() == [0, 1, 2, 3, 4]
    assert [*opened(tmp_path, **flags, splits=("held_out",)).splits] == ["held_out"]
    with pytest.raises(UsageError, check=said("--splits", "'test'", "held_out")):
        opened(tmp_path, **flags, splits=("test",))
