"""Labels of indexed images that are texts, floats or vectors: what the manifest says, what is fed, what is refused."""

import dataclasses
import json

import keras
import numpy as np
import pytest
import tensorflow as tf

from beam_jobs import validate
from pipeline import RandomAccess, input_fn, operations
from pipeline import manifest as manifests
from pipeline.batch.compose import make_dataset
from pipeline.errors import DataError, UsageError
from pipeline.index import __main__ as index
from pipeline.inspect import __main__ as inspect
from pipeline.manifest import Feature
from pipeline.request import Request
from pipeline.resolved import resolve
from tests.helpers import foreign
from tests.helpers.converting import convert_in_process
from tests.helpers.raised import at, said

FLOWERS = ("rose", "tulip", "daisy")
SPLITS = {"train": 9, "validation": 4, "test": 3}
FORMS = {  # label by number of the record
    "text": lambda number: FLOWERS[number % 3].encode(),
    "float": lambda number: number / 4,
    "hot": lambda number: np.array([number % 2, number % 3 == 0, 1, 0]).astype(np.int64),
    "soft": lambda number: np.array([number % 2, 0.25, 0.5], np.float32),
    "angles": lambda number: np.array([number * 10.0, -3.0], np.float32),
}
NUMBERS = {**FORMS, "text": lambda number: [1, 2, 0][number % 3]}  # sorted: daisy, rose, tulip


def feature(value):
    if isinstance(value, bytes):
        return tf.train.Feature(bytes_list=tf.train.BytesList(value=[value]))
    values = np.atleast_1d(value).tolist()
    if isinstance(values[0], float):
        return tf.train.Feature(float_list=tf.train.FloatList(value=values))
    return tf.train.Feature(int64_list=tf.train.Int64List(value=values))


def write(path, records):
    with tf.io.TFRecordWriter(str(path)) as writer:
        for record in records:
            features = tf.train.Features(feature={name: feature(value) for name, value in record.items()})
            writer.write(tf.train.Example(features=features).SerializeToString())


def run(folder, *flags):
    index.main([str(folder), "--feature_map=image:image,label:class,key:id", *flags])
    return manifests.load(folder)


def made(folder, form, unlabelled=("test",)):
    """Writes splits of 16 images whose labels are of a form."""
    folder.mkdir(exist_ok=True)
    first = 0
    for split, count in SPLITS.items():
        records = [{"image": foreign.jpeg(n, (24, 24)), "id": b"%03d" % n} for n in range(first, first + count)]
        if split not in unlabelled:
            records = [{**one, "class": FORMS[form](first + n)} for n, one in enumerate(records)]
        write(folder / f"{split}.tfrec", records)
        first += count
    return folder


@pytest.fixture(scope="module")
def data(tmp_path_factory):
    """Returns the indexed data set of a form."""
    known = {}

    def of(form):
        if form not in known:
            known[form] = made(tmp_path_factory.mktemp(form), form)
            run(known[form])
        return known[form]

    return of


def fed(folder, split, **options):
    """Returns {number of the record: label} of the rows of a pass over a split."""
    request = {"global_batch_size": 4, "training": False, "features": ("key",), **options}
    found = {}
    for x, labels, weights in make_dataset(Request(folder, split, **request)):
        for key, label, weight in zip(x["key"].numpy(), labels.numpy(), weights.numpy(), strict=True):
            if weight:
                found[int(key)] = label
    return found


@pytest.mark.parametrize(
    ("form", "options", "is_compiled"),
    [
        *((form, {}, True) for form in ("text", "float", "hot")),
        pytest.param("soft", {}, True, marks=pytest.mark.slow),
        pytest.param("angles", {}, True, marks=pytest.mark.slow),
        pytest.param("text", {"portable": True}, True, marks=pytest.mark.slow),
        pytest.param("soft", {"portable": True}, True, marks=pytest.mark.slow),
        ("text", {"resize": (20, 20)}, False),
        pytest.param("hot", {"resize": (20, 20)}, False, marks=pytest.mark.slow),
    ],
)
@pytest.mark.quick(2)
def test_labels_are_fed_as_they_are_stored(data, form, options, is_compiled, monkeypatch):
    if not is_compiled:
        monkeypatch.setattr(operations, "is_compiled", lambda: False)
    for split, first in (("train", 0), ("validation", 9)):
        found = fed(data(form), split, **options)
        assert sorted(found) == [*range(first, first + SPLITS[split])]
        for number, label in found.items():
            expected = np.asarray(NUMBERS[form](number))
            assert label.dtype == (np.float32 if expected.dtype.kind == "f" else np.int64)
            assert np.array_equal(label, expected)
    none = -1 if form in ("text", "hot") else np.nan
    for label in fed(data(form), "test", **options).values():
        assert np.array_equal(label, np.full(label.shape, none), equal_nan=True)


@pytest.mark.parametrize("form", ["text", pytest.param("soft", marks=pytest.mark.slow)])
def test_labels_are_fed_beside_crops_of_images_that_stay_encoded_in_memory(data, form, monkeypatch):
    options = {"augment": "random_resized_crop(size=16, normalize=False)", "training": True, "epochs": 1}
    kept = fed(data(form), "train", **options, features=("key",))
    without = [y.numpy() for _, y, _ in make_dataset(Request(data(form), global_batch_size=3, **options))]
    assert np.array_equal(sorted(map(str, kept.values())), sorted(str(row) for batch in without for row in batch))
    monkeypatch.setattr(operations, "find_images", lambda records, *names: tf.fill([tf.size(records), 3], np.int64(-1)))
    parsed = [y.numpy() for _, y, _ in make_dataset(Request(data(form), global_batch_size=3, **options))]
    assert np.array_equal(without, parsed)


def test_the_compiled_operation_finds_images_beside_labels_of_any_kind(data):
    if not operations.is_compiled():
        pytest.skip("needs a compiler")
    [record] = tf.data.TFRecordDataset(str(data("float") / "train.tfrec")).take(1)
    begin, end, label = operations.find_images(record[None], "image", "").numpy()[0]
    assert record.numpy()[begin:end] == foreign.jpeg(0, (24, 24))
    assert label == 0


@pytest.mark.parametrize(
    ("form", "label", "names", "histogram"),
    [
        ("text", Feature("int64", stored_as="class", texts=("daisy", "rose", "tulip")), "daisy rose tulip", (3, 3, 3)),
        ("float", Feature("float32", stored_as="class"), "", ()),
        ("hot", Feature("int64", (4,), stored_as="class"), "0 1 2 3", (4, 3, 9, 0)),
        ("soft", Feature("float32", (3,), stored_as="class"), "0 1 2", (4, 9, 9)),
        ("angles", Feature("float32", (2,), stored_as="class"), "", ()),
    ],
)
def test_the_manifest_says_what_labels_are(data, form, label, names, histogram):
    found = manifests.load(data(form))
    assert found.features["label"] == label
    assert (found.class_names, found.format_version) == (tuple(names.split()), 5)
    assert found.splits["train"].label_histogram == histogram
    assert [split.has_labels for split in found.splits.values()] == [name != "test" for name in found.splits]
    assert ("label" in found.columns) == (form in ("text", "float"))
    example = RandomAccess(data(form), "train")[4]
    assert np.array_equal(example["label"], NUMBERS[form](4))
    with pytest.raises(UsageError, check=said("'test' has no labels")):
        resolve(Request(data(form), "test", global_batch_size=2, training=True))


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.quick(2)
def test_a_check_finds_the_labels_that_the_manifest_says(data, form, tmp_path, capsys):
    validate.main([str(data(form)), "--deep", "--card"])
    assert "the data set matches its manifest" in capsys.readouterr().out
    page = (data(form) / "card.html").read_text()
    assert page.count("data:image/") >= 5
    assert ("<h2>Labels</h2>" in page) == (form != "angles")
    inspect.main([str(data(form))])
    described = {"text": "3 classes", "float": "labels float32,", "hot": "labels int64 (4,) of 4 classes"}
    assert described.get(form, "labels float32 (") in capsys.readouterr().out


def test_a_check_takes_a_vector_of_minus_ones_for_a_label(tmp_path, capsys):
    labels = [np.array([-1, -1]), np.array([3, -1])]
    write(tmp_path / "train.tfrec", [{"image": IMAGE, "class": v, "id": b"%d" % n} for n, v in enumerate(labels)])
    assert run(tmp_path).splits["train"].is_labelled
    validate.main([str(tmp_path)])
    assert "the data set matches its manifest" in capsys.readouterr().out


@pytest.mark.parametrize("form", ["float", "hot"])
def test_a_check_tells_a_manifest_with_other_labels(data, form, tmp_path, capsys):
    folder = made(tmp_path / "data", form)
    found = run(folder)
    train = found.splits["train"]
    changed = dataclasses.replace(train, is_labelled=False, label_histogram=())
    other = dataclasses.replace(found, splits={**found.splits, "train": changed})
    (folder / "manifest.json").write_bytes(other.to_bytes())
    with pytest.raises(DataError):
        validate.main([str(folder)])
    assert "is_labelled is False" in capsys.readouterr().out


def test_class_names_give_the_order_of_texts(tmp_path):
    folder = made(tmp_path, "text")
    (tmp_path / "names.txt").write_text("tulip\nrose\nlily\ndaisy\n")
    found = run(folder, f"--class_names={tmp_path}/names.txt")
    assert found.class_names == ("tulip", "rose", "lily", "daisy")
    assert found.splits["train"].label_histogram == (3, 3, 0, 3)
    assert [fed(folder, "train")[number] for number in range(3)] == [1, 0, 3]
    (tmp_path / "names.txt").write_text("tulip\nroses\ndaisy\n")
    with pytest.raises(DataError, check=at(".tfrec", "'rose'", "3 class names", "did you mean 'roses'")):
        run(folder, f"--class_names={tmp_path}/names.txt", "--overwrite")


def test_views_choose_by_texts_and_floats(data):
    options = {"training": True, "epochs": 1, "remainder": "drop", "global_batch_size": 1}
    assert set(fed(data("text"), "train", where="label in ('rose', 'daisy')", **options).values()) == {0, 1}
    assert sorted(fed(data("float"), "train", where="label > 1.2", **options).values()) == [1.25, 1.5, 1.75, 2]
    with pytest.raises(UsageError, check=said("balance='label'", "float32, not whole numbers")):
        resolve(Request(data("float"), balance="label", **options))


def test_a_class_of_another_split_that_training_lacks_is_told(tmp_path, capsys):
    image = foreign.jpeg(0)
    for split, labels in (("train", (b"rose", b"daisy")), ("test", (b"tulip", b"rose"))):
        records = [{"image": image, "class": label, "id": split.encode() + label} for label in labels]
        write(tmp_path / f"{split}.tfrec", records)
    assert run(tmp_path).class_names == ("daisy", "rose", "tulip")
    assert "test has records of 1 class that train lacks: tulip" in capsys.readouterr().out


def test_a_class_name_with_a_line_break_stays_in_its_line(tmp_path, capsys):
    write(tmp_path / "train.tfrec", [{"image": IMAGE, "class": text, "id": text} for text in (b"a\nb", b"z\0")])
    assert run(tmp_path).class_names == ("a\nb", "z\0")
    assert "2 classes: a\\nb to z\\x00\n" in capsys.readouterr().out
    inspect.main([str(tmp_path)])
    assert "a\\nb" in capsys.readouterr().out


def test_a_label_that_is_empty_in_all_records_is_named(tmp_path):
    foreign.write(tmp_path / "train.tfrec", [{"image": IMAGE, "class": [], "id": b"%d" % n} for n in range(2)])
    with pytest.raises(
        DataError,
        check=at("train.tfrec", "feature 'class' is empty", advice="map another feature: --feature_map=label:NAME"),
    ):
        run(tmp_path)


def test_a_damaged_file_is_not_to_be_converted_again(tmp_path):
    write(tmp_path / "train.tfrec", [{"image": IMAGE, "class": 0, "id": b"%d" % n} for n in range(200)])
    data = (tmp_path / "train.tfrec").read_bytes()
    for at_byte in (5, len(data) - 5):  # among the first records, by which labels are known, and behind them
        (tmp_path / "train.tfrec").write_bytes(data[:at_byte] + bytes([data[at_byte] ^ 1]) + data[at_byte + 1 :])
        with pytest.raises(DataError, check=at("train.tfrec", advice="copy or write the file again")):
            run(tmp_path)


def test_texts_become_the_same_classes_in_a_conversion(data, tmp_path):
    flags = ("--dataset=tfrecord", "--image_encoding=source", "--splits=train,validation")
    by_manifest = convert_in_process(*flags, f"--source={data('text')}", f"--data_dir={tmp_path}/a")
    names = "--feature_map=image:image,label:class,key:id"
    by_names = convert_in_process(*flags, f"--source={data('text')}/[tv][ra]*.tfrec", names, f"--data_dir={tmp_path}/b")
    for folder in (by_manifest, by_names):
        assert manifests.load(folder).class_names == ("daisy", "rose", "tulip")
        assert fed(folder, "train") == fed(data("text"), "train")


@pytest.mark.parametrize("form", ["float", "hot"])
@pytest.mark.quick(1)
def test_a_conversion_keeps_labels_that_are_no_classes(data, form, tmp_path):
    flags = ("--dataset=tfrecord", f"--source={data(form)}", "--splits=train,validation", f"--data_dir={tmp_path}/out")
    out, label = convert_in_process(*flags), manifests.load(data(form)).features["label"]
    assert manifests.load(out).features["label"] == Feature(label.dtype, label.shape)
    found, wanted = fed(out, "train"), fed(data(form), "train")
    assert {n: found[n].tolist() for n in found} == {n: wanted[n].tolist() for n in wanted}


def test_a_conversion_takes_a_stored_label_of_minus_one_for_none(tmp_path):
    folder = tmp_path / "data"
    folder.mkdir()
    records = [{"image": foreign.jpeg(n), "class": n, "id": b"%d" % n} for n in range(3)]
    write(folder / "train.tfrec", records)
    write(folder / "test.tfrec", [{**records[0], "class": -1, "id": b"x"}])
    found = run(folder, "--label_offset=1")
    unlabelled = found.splits["test"]
    # As if it had labels: what a conversion would read, had the record changed since.
    labelled = dataclasses.replace(unlabelled, label_histogram=(1, 0, 0, 0))
    other = dataclasses.replace(found, splits={**found.splits, "test": labelled})
    (folder / "manifest.json").write_bytes(other.to_bytes())
    with pytest.raises(DataError, match="label -1 is not in 0..3"):
        convert_in_process("--dataset=tfrecord", f"--source={folder}", f"--data_dir={tmp_path}/out")


IMAGE = foreign.jpeg(0)


@pytest.mark.parametrize(
    ("labels", "flags", "facts"),
    [
        ([np.array([1]), np.array([1, 2]), np.array([1, 2, 3])], [], ["1 to 3 values", "parse="]),
        ([1.5, 2.5], ["--label_offset=-1"], ["--label_offset=-1", "class numbers", "float32"]),
        ([b"a", b"b"], ["--label_offset=-1"], ["--label_offset=-1", "names of classes"]),
        ([np.array([0, 1])] * 2, ["--class_names={}/three"], ["3 class names", "2 values"]),
        ([1.5, 2.5], ["--class_names={}/three"], ["3 class names", "one float"]),
    ],
)  # fmt: skip
def test_labels_that_no_image_in_place_can_have(tmp_path, labels, flags, facts):
    (tmp_path / "three").write_text("a\nb\nc\n")
    write(tmp_path / "train.tfrec", [{"image": IMAGE, "class": one, "id": b"%d" % n} for n, one in enumerate(labels)])
    with pytest.raises(UsageError, check=said(*facts)):
        run(tmp_path, *(flag.format(tmp_path) for flag in flags))


def test_several_texts_are_refused(tmp_path):
    foreign.write(tmp_path / "train.tfrec", [{"image": IMAGE, "class": [b"a", b"b"], "id": b"1"}])
    with pytest.raises(UsageError, check=said("2 texts", "parse=")):
        run(tmp_path)


@pytest.mark.parametrize(
    ("good", "bad", "facts"),
    [
        (np.array([0, 1, 1]), np.array([0, 1]), ["2 values of int64, not 3 of int64"]),
        (np.array([0.5, 1.0]), np.array([np.nan, 1.0]), ["not finite"]),
        (1.5, 2, ["1 value of int64, not 1 of float"]),
        (1.5, float("inf"), ["inf is not a finite number"]),
        (b"rose", 1, ["1 value of int64, not 1 of bytes"]),
        (b"rose", b"\xff\xfe", ["not UTF-8"]),
    ],
)
def test_a_bad_label_is_named(tmp_path, good, bad, facts):
    records = [{"image": IMAGE, "class": label, "id": b"%d" % n} for n, label in enumerate([good, good, good, bad])]
    write(tmp_path / "train.tfrec", records)
    with pytest.raises(DataError, check=at("train.tfrec", *facts, record=3)):
        run(tmp_path)


@pytest.mark.parametrize(("good", "none"), [(b"rose", b""), (b"rose", b"NaN"), (1.5, float("nan")), (2, -1)])
def test_a_value_that_means_no_label_is_none(tmp_path, good, none):
    write(tmp_path / "train.tfrec", [{"image": IMAGE, "class": good, "id": b"%d" % n} for n in range(2)])
    write(tmp_path / "test.tfrec", [{"image": IMAGE, "class": none, "id": b"t"}])
    found = run(tmp_path)
    assert [split.has_labels for split in found.splits.values()] == [name == "train" for name in found.splits]
    label = RandomAccess(tmp_path, "test")[0]["label"]
    assert np.isnan(label) if good == 1.5 else label == -1
    records = [{"image": IMAGE, "class": value, "id": b"m%d" % n} for n, value in enumerate([good, none])]
    write(tmp_path / "train.tfrec", records)
    word = ["'NaN' is read as a missing value"] * (none == b"NaN")
    facts = "split 'train'", "1 of 2 records have no label", "record 1 of the split", *word
    with pytest.raises(DataError, check=said(*facts)):
        run(tmp_path, "--overwrite")


def test_names_that_look_alike_are_refused(tmp_path):
    records = [{"image": IMAGE, "class": text, "id": text} for text in (b"rose", b"rose ")]
    write(tmp_path / "train.tfrec", records)
    with pytest.raises(DataError, check=said("'rose' and 'rose '", "look alike")):
        run(tmp_path)


def test_files_with_labels_of_other_kinds_are_named(tmp_path):
    for name, label in (("train-0", 1.5), ("train-1", 1)):
        write(tmp_path / f"{name}.tfrec", [{"image": IMAGE, "class": label, "id": name.encode()}])
    with pytest.raises(DataError, check=at("train-1.tfrec", "labels int64", "train-0.tfrec have float32", record=0)):
        run(tmp_path)


def test_what_needs_a_class_refuses_other_labels(data):
    options = {"global_batch_size": 4, "training": True}
    for form in ("float", "hot"):
        kind = manifests.load(data(form)).features["label"]
        with pytest.raises(UsageError, check=said("class_weight", "one class per image", kind)):
            make_dataset(Request(data(form), class_weight={0: 2.0}, **options))
    with pytest.raises(UsageError, check=said("augment='mixup'", "float32, without class_names")):
        resolve(Request(data("float"), augment="mixup", **options))  # before a model is built


def test_vectors_are_mixed_as_probabilities_are(data):
    options = {"augment": "mixup", "training": True, "epochs": 1, "global_batch_size": 4, "remainder": "drop"}
    for x, labels, _ in make_dataset(Request(data("hot"), features=("key",), **options)):
        own = np.stack([NUMBERS["hot"](int(key)) for key in x["key"].numpy()]).astype(np.float32)
        partner = own[[1, 0, 3, 2]]
        assert labels.dtype == tf.float32
        low, high = np.minimum(own, partner) - 1e-6, np.maximum(own, partner) + 1e-6
        assert ((labels.numpy() >= low) & (labels.numpy() <= high)).all()
        assert np.allclose(labels.numpy()[:, 2:], [1, 0], atol=1e-6)  # of both rows


@pytest.mark.slow
@pytest.mark.parametrize("form", ["float", "angles", "soft", "hot"])
def test_keras_means_losses_over_the_rows_with_labels_of_any_kind(data, form):
    outputs = np.atleast_1d(NUMBERS[form](0)).size
    layers = [keras.Input((24, 24, 3)), keras.layers.Flatten(), keras.layers.Dense(outputs, kernel_initializer="zeros")]
    model = keras.Sequential(layers)
    model.compile("sgd", keras.losses.BinaryCrossentropy(from_logits=True) if form == "hot" else "mse")
    expected = np.mean([np.square(NUMBERS[form](number)) for number in range(9)]) if form != "hot" else np.log(2)
    evaluated = input_fn(data(form), "train", training=False, global_batch_size=4, weights="none")
    assert model.evaluate(evaluated, verbose=0) == pytest.approx(expected, rel=1e-5)
    trained = input_fn(data(form), "train", training=True, epochs=1, global_batch_size=4, weights="mean")
    assert np.isfinite(model.fit(trained, verbose=0, shuffle=False).history["loss"]).all()


def test_classes_of_texts_are_a_view(data):
    found = fed(data("text"), "train", classes="tulip,rose")
    assert found == {number: number % 3 == 0 for number in range(9) if number % 3 < 2}
    for form in ("float", "hot"):
        with pytest.raises(UsageError, check=said("classes='1'", "not classes")):
            resolve(Request(data(form), classes="1", global_batch_size=2, training=True))


def test_raw_pixels_may_have_floats_as_labels(tmp_path):
    sizes = {"height": 2, "width": 2, "depth": 3}
    records = [{"image_raw": bytes([n] * 12), "class": n / 2, "id": b"%d" % n, **sizes} for n in range(5)]
    write(tmp_path / "train.tfrec", records)
    index.main([str(tmp_path), "--feature_map=label:class,key:id"])
    assert fed(tmp_path, "train") == {n: n / 2 for n in range(5)}


def test_a_mixture_needs_labels_of_one_kind(data):
    sources = [(data("hot"), 0.5), (data("float"), 0.5)]
    with pytest.raises(UsageError, check=said("differ in")):
        make_dataset(Request(sources, global_batch_size=4, training=True))


def changed(made, **label):
    content = json.loads(made.to_bytes())
    content.pop("content_sha256")
    content["features"]["label"].update(label)
    return content


@pytest.mark.parametrize(
    ("form", "label", "rest", "facts"),
    [
        ("text", {}, {"format_version": 4}, ["version 4 does not know"]),
        ("float", {}, {"format_version": 4}, ["version 4 does not know"]),
        ("float", {}, {"format_version": 9}, ["newer than 8"]),
        ("text", {"texts": ["a", "b", "c"]}, {}, ["'a', 'b', 'c'", "daisy"]),
        ("hot", {"shape": [2, 2]}, {}, ["(2, 2)", "a vector of one length"]),
        ("hot", {}, {"class_names": ["a"]}, ["int64 (4,)", "1 class_names"]),
    ],
)
def test_a_manifest_with_labels_that_cannot_be_is_refused(data, form, label, rest, facts):
    content = {**changed(manifests.load(data(form)), **label), **rest}
    with pytest.raises(DataError, check=said(*facts)):
        manifests.parse(json.dumps(content), "manifest.json")
