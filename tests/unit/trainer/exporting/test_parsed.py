"""Predictions and exports of tasks that parse records: the same numbers as the model itself, called by hand."""

import json

import numpy as np
import PIL.Image
import pytest
import tensorflow as tf

from pipeline import input_fn, uniform
from pipeline.errors import DataError, UsageError
from pipeline.images import encoded as encoded_image
from pipeline.images import resized
from pipeline.index import __main__ as index
from pipeline.order.hashing import Domain, derive_key
from pipeline.records import framing, tf_example
from tests.helpers import foreign
from tests.unit.trainer.exporting import parsing_tasks as tasks
from trainer import Predictor, evaluate, export, inference, predict, run
from trainer.checkpoint import reader
from trainer.config.trained import CheckpointFlags
from trainer.exporting import answers, reading
from trainer.exporting.inputs import Record, RecordFile
from trainer.exporting.parsed import parsed

STEPS, COUNTS = 6, {"train": (16,), "test": (5, 6)}


def example(number):
    return {"x": np.random.default_rng(number).normal(size=4).astype(np.float32), "label": number % tasks.CLASSES}


def stored_tests():
    return [example(number) for number in range(COUNTS["train"][0], sum(map(sum, COUNTS.values())))]


def encoded(examples, *features):
    """Returns serialized records with some of the features of examples."""
    return [tf_example.encode({name: one[name] for name in features}) for one in examples]


@pytest.fixture(scope="module")
def data(tmp_path_factory):
    folder, number = tmp_path_factory.mktemp("parsed") / "data", 0
    for split, counts in COUNTS.items():
        for file, count in enumerate(counts):
            records = [example(number + i) for i in range(count)]
            foreign.write(folder / f"{split}-{file:05}-of-{len(counts):05}", records)
            number += count
    index.main([str(folder)])
    return folder


def train(data, folder, task):
    flags = ("--global_batch_size=8", f"--train_steps={STEPS}", "--ema=0.5", "--learning_rate=0.1", "--log_every=0")
    run.main([f"--data_dir={data}", f"--model_dir={folder}", f"--task={tasks.__name__}:{task.__name__}", *flags])
    return folder


@pytest.fixture(scope="module")
def classes(data, tmp_path_factory):
    return train(data, tmp_path_factory.mktemp("classes") / "run", tasks.Classes)


def built(folder):
    """Returns the model of a run with the average of its weights, as it is built for an evaluation."""
    return inference.build(reader.read(folder / f"ckpt-{STEPS}"), CheckpointFlags(str(folder)))


def softmax(logits):
    return np.asarray(tf.nn.softmax(logits))


def test_predictions_are_those_of_the_model_and_of_the_evaluation_and_need_no_label(classes, capsys):
    examples, trained, predictor = stored_tests(), built(classes), Predictor.of_run(classes)
    x = np.stack([one["x"] for one in examples])
    expected = softmax(trained.model(x, training=False))
    found = predictor.outputs(encoded(examples, "x", "label"))
    np.testing.assert_allclose(found["probabilities"], expected, atol=1e-6)
    assert found["class"].tolist() == expected.argmax(1).tolist()
    assert [name.decode() for name in found["class_name"]] == [predictor.class_names[i] for i in found["class"]]
    assert predictor.class_names == ("0", "1", "2")
    np.testing.assert_array_equal(predictor.probabilities(encoded(examples, "x")), found["probabilities"])
    assert not np.allclose(expected, Predictor.of_run(classes, weights="raw").probabilities(encoded(examples, "x")))
    capsys.readouterr()
    evaluate.main([f"--model_dir={classes}", "--split=test", "--json"])
    losses = -np.log(found["probabilities"][np.arange(len(examples)), [one["label"] for one in examples]])
    assert json.loads(capsys.readouterr().out)["loss"] == pytest.approx(losses.mean(), rel=1e-5)


@pytest.mark.slow
def test_a_record_counts_as_the_first_of_the_first_epoch(data, tmp_path, monkeypatch):
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "-1")  # as trainer.export sets it, and pytest takes it back
    folder = train(data, tmp_path / "run", tasks.Drawn)
    trained, examples = built(folder), stored_tests()
    key = derive_key(Domain.AUGMENT, trained.split.order.seed, 0, 0)
    x = np.stack([one["x"] for one in examples]) + np.asarray(uniform(tf.constant([key], tf.uint64), 0))
    found = Predictor.of_run(folder).probabilities(encoded(examples, "x"))
    np.testing.assert_allclose(found, softmax(trained.model(x)), atol=1e-6)
    # An evaluation draws by the key of each record, so the program is not what was evaluated.
    with pytest.raises(
        DataError, match="^--format=saved_model: a probability of .* differs by .*draw in training alone"
    ):
        export.main([f"--model_dir={folder}", f"--output={tmp_path}/out"])
    assert not (tmp_path / "out").exists()


def test_outputs_by_name_a_table_and_features_are_in_the_program(data, tmp_path):
    trained, examples = built(train(data, tmp_path / "run", tasks.Several)), stored_tests()
    stored = np.stack([one["x"] for one in examples])
    x = stored + np.array([1, 0, 0, 0], np.float32)
    scale = np.array([{0: 1.0, 1: 2.0, 2: 4.0}[int(value % 3)] for value in x[:, 0]], np.float32)
    wanted = trained.model({"x": x, "x scale": scale}, training=False)
    model = parsed(trained)
    assert model.needs == ("x",)
    assert model.in_words == "in: serialized examples with x, or features; out: a/map (float32 2x2), total (float32)"
    model.save(tmp_path / "program")
    records = np.array(encoded(examples, "x"), object)
    loaded = tf.saved_model.load(str(tmp_path / "program"))
    for found in (
        Predictor.of_run(tmp_path / "run").outputs(records.tolist()),
        reading.program(str(tmp_path / "program"))(records),
        loaded.signatures["serve_features"](x=tf.constant(x), x_scale=tf.constant(scale)),
    ):
        assert sorted(found) == ["a/map", "total"]
        np.testing.assert_allclose(found["a/map"], x.reshape(-1, 2, 2) * scale[:, None, None], rtol=1e-5)
        np.testing.assert_allclose(found["total"], wanted["total"], rtol=1e-5)
    with pytest.raises(UsageError, match="not one number per class; call outputs"):
        Predictor.of_run(tmp_path / "run").probabilities(records.tolist())


def test_the_command_answers_records_of_files_and_of_splits(data, classes, tmp_path, capsys):
    expected = Predictor.of_run(classes).probabilities(encoded(stored_tests(), "x"))
    capsys.readouterr()
    predict.main([str(classes), str(data), "--split=test[3:8]", "--top=1", "--batch_size=2"])
    lines = capsys.readouterr().out.splitlines()
    wanted = [f"{row.argmax()} {row.max():.3f}" for row in expected[3:8]]
    assert lines == [f"{data}:test[3:8], record {number}: {said}" for number, said in enumerate(wanted)]
    predict.main([str(classes), str(data), "--split=test", f"--output={tmp_path}/all.npz", "--batch_size=4"])
    with np.load(tmp_path / "all.npz") as found:
        assert found["record"].tolist() == list(range(11))
        assert set(found["file"].tolist()) == {f"{data}:test"}
        assert found["class_names"].tolist() == ["0", "1", "2"]
        np.testing.assert_allclose(found["probabilities"], expected, atol=1e-6)
        assert found["class"].tolist() == expected.argmax(1).tolist()
    file = data / "test-00001-of-00002"
    predict.main([str(classes), str(file), "--top=1", f"--output={tmp_path}/all.csv"])
    head, *rows = (tmp_path / "all.csv").read_text().splitlines()
    assert head == "file,record,class_1,probability_1"
    assert rows == [f"{file},{number},{row.argmax()},{row.max():.6f}" for number, row in enumerate(expected[5:])]
    assert [str(one) for one in Predictor.of_run(classes).predict([data], 1, split="test[3:8]")] == lines


def test_what_is_wrong_with_records_is_one_error(data, classes, tmp_path):
    predictor, examples = Predictor.of_run(classes), stored_tests()
    with pytest.raises(DataError, match=r"^records\[1\]: .*Feature: x .*required"):
        predictor.outputs([*encoded(examples[:1], "x"), *encoded(examples[:2], "label")])
    with pytest.raises(UsageError, match=r"^records\[0\]: must be the bytes of a record, not ndarray"):
        predictor.outputs([np.zeros(4)])
    file, good = tmp_path / "a.tfrec", [{"x": one["x"]} for one in examples[:2]]

    def said(records, *flags, damage=lambda content: content):
        foreign.write(file, records)
        file.write_bytes(damage(file.read_bytes()))
        with pytest.raises((DataError, UsageError)) as error:
            predict.main([str(classes), str(file), *flags])
        return error.value

    lacking, size = said([*good, {"label": 1}]), len(framing.frame(encoded(examples, "x")[0]))
    assert (lacking.path, lacking.record, lacking.offset) == (str(file), 2, 2 * size)
    assert "Feature: x" in lacking.reason
    corrupt = said(good, damage=lambda content: content[:-1] + b"?")
    assert (corrupt.path, corrupt.record, corrupt.offset) == (str(file), 1, size)
    no_records = said([], damage=lambda content: b"no records")
    assert isinstance(no_records, UsageError)
    assert str(no_records).startswith(f"{file}: is neither a TFRecord file nor a data set, but tests.")
    assert str(said(good, "--split=test")).startswith("--split=test: is for data sets")
    for name, records in (("0", good), ("1", [*good, {"label": 1}])):
        foreign.write(tmp_path / "two" / f"train-0000{name}-of-00002", records)
    index.main([str(tmp_path / "two")])
    with pytest.raises(DataError) as error:
        predict.main([str(classes), str(tmp_path / "two"), "--split=train[3:]"])
    second = str(tmp_path / "two" / "train-00001-of-00002")
    assert (error.value.path, error.value.record, error.value.offset) == (second, 2, 2 * size)
    with pytest.raises(UsageError, match=r"^--split is missing: .* has test, train; give one"):
        predict.main([str(classes), str(data)])
    with pytest.raises(UsageError, match="^--split=tset: unknown 'tset'"):
        predict.main([str(classes), str(data), "--split=tset"])
    with pytest.raises(DataError, match="has records: give such files, or python -m pipeline.index the folder"):
        predict.main([str(classes), str(tmp_path)])


def test_a_record_that_is_no_example_is_named_whoever_reads_it(classes, tmp_path, monkeypatch):
    """TensorFlow's message about it has its bytes, and is no text."""
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "-1")  # as trainer.export sets it, and pytest takes it back
    file = tmp_path / "bad" / "test.tfrec"
    foreign.write(file, stored_tests()[:3])
    file.write_bytes(file.read_bytes() + framing.frame(b"\xff\xff"))
    index.main([str(file.parent)])
    of_data = (f"--model_dir={classes}", f"--data_dir={file.parent}", "--split=test")
    for main, arguments in (
        (predict.main, [str(classes), str(file)]),
        (evaluate.main, of_data),
        (export.main, [*of_data, f"--output={tmp_path}/out"]),
    ):
        with pytest.raises(DataError, match=r"Could not parse example input, value: '\\+xff\\+xff'") as error:
            main(list(arguments))
        assert (error.value.path, error.value.record) == (str(file), 3)


@pytest.mark.slow
def test_what_cannot_be_exported_is_said(data, tmp_path, monkeypatch):
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "-1")  # as above
    folder = train(data, tmp_path / "python", tasks.CallsPython)
    expected = softmax(built(folder).model(2 * np.stack([one["x"] for one in stored_tests()])))
    np.testing.assert_allclose(
        Predictor.of_run(folder).probabilities(encoded(stored_tests(), "x")), expected, atol=1e-6
    )
    for flags, message in (
        ([], r"^Task\.parse: the function calls Python \(the op PyFunc.*an exported program runs without it"),
        (["--format=keras"], r"^--format=keras: cannot hold the parser of .*give saved_model, whose signature"),
    ):
        with pytest.raises(UsageError, match=message):
            export.main([f"--model_dir={folder}", f"--output={tmp_path}/out", *flags])
        assert not (tmp_path / "out").exists()
    folder = train(data, tmp_path / "sized", tasks.OfOneSize)
    with pytest.raises(UsageError, match=r"^Task\.parse: the function fails on .*; predictions and exports parse any"):
        Predictor.of_run(folder)


@pytest.mark.slow
def test_a_compiled_model_of_a_task_that_parses_gives_its_own_probabilities(data, tmp_path):
    folder, examples = tmp_path / "run", stored_tests()
    flags = (f"--model={tasks.__name__}:compiled", "--global_batch_size=8", f"--train_steps={STEPS}")
    run.main([f"--data_dir={data}", f"--model_dir={folder}", f"--task={tasks.__name__}:Parses", *flags])
    expected = built(folder).model(np.stack([one["x"] for one in examples]))
    np.testing.assert_allclose(Predictor.of_run(folder).probabilities(encoded(examples, "x")), expected, atol=1e-6)


def test_arrays_of_another_shape_are_refused_and_leave_no_file(tmp_path):
    of = RecordFile("a.tfrec", 0, tmp_path / "a.tfrec", "")
    first, second = ([Record(of, number, 0, b"")] for number in (0, 1))
    with answers.ArrayFile(tmp_path / "all.npz") as file:
        file.add(first, {"boxes": np.zeros((1, 2, 4)), "texts": np.array([b"a"], object)})
        with pytest.raises(UsageError, match=r"^the output 'boxes' has shape \(3, 4\) from a.tfrec, record 1 on"):
            file.add(second, {"boxes": np.zeros((1, 3, 4))})
        with pytest.raises(UsageError, match="^the output 'record' has the name of another array in the file"):
            file.add(second, {"record": np.zeros(1)})
    assert list(tmp_path.iterdir()) == []


@pytest.mark.slow
@pytest.mark.parametrize(
    ("form", "augment"), [("raw", "normalize"), ("PNG", "normalize"), ("PNG", "random_resized_crop(size=3)")]
)
def test_images_with_numbers_as_labels_are_asked_as_records(form, augment, tmp_path):
    images = np.random.default_rng(1).integers(0, 256, (24, 4, 5, 3), np.uint8)
    contents = [one.tobytes() if form == "raw" else encoded_image(one, "png") for one in images]
    records = [{"image": content, "label": np.float32(number)} for number, content in enumerate(contents)]
    for split, some in (("train", records[:16]), ("test", records[16:])):
        foreign.write(tmp_path / "data" / f"{split}.tfrec", some)
    index.main(
        [str(tmp_path / "data"), "--feature_map=image:image,label:label", *["--image_shape=4x5x3"] * (form == "raw")]
    )
    flags = (f"--augment={augment}", "--global_batch_size=8", f"--train_steps={STEPS}", "--learning_rate=1e-3")
    task = f"--task={tasks.__name__}:Number"
    run.main([f"--data_dir={tmp_path}/data", f"--model_dir={tmp_path}/run", task, *flags])
    [(features, *_)] = input_fn(tmp_path / "data", "test", global_batch_size=8, training=False, augment=augment)
    found = Predictor.of_run(tmp_path / "run").outputs([tf_example.encode({"image": one}) for one in contents[16:]])
    np.testing.assert_allclose(found["outputs"], built(tmp_path / "run").model(features), rtol=1e-4, atol=1e-4)
    # Image files, of any lossless format, become such records, for the run and for its program.
    photos = [tmp_path / f"{number}.{kind}" for number, kind in enumerate(["png", "bmp"] * 4)]
    for path, image in zip(photos, images[16:], strict=True):
        PIL.Image.fromarray(image).save(path)
    PIL.Image.fromarray(np.kron(images[23], np.ones((3, 2, 1), np.uint8))).save(photos[7])
    fitted = resized(np.kron(images[23], np.ones((3, 2, 1), np.uint8)), (4, 5))
    content = fitted.tobytes() if form == "raw" else encoded_image(fitted, "png")
    (last,) = Predictor.of_run(tmp_path / "run").outputs([tf_example.encode({"image": content})])["outputs"]
    wanted = np.concatenate([found["outputs"][:7], last[None]])
    export.main([f"--model_dir={tmp_path}/run", f"--output={tmp_path}/program"])
    for where in (f"--model_dir={tmp_path}/run", f"--exported={tmp_path}/program"):
        predict.main([*map(str, photos), where, f"--output={tmp_path}/numbers.npz"])
        with np.load(tmp_path / "numbers.npz") as file:
            assert file["file"].tolist() == list(map(str, photos))
            np.testing.assert_allclose(file["outputs"], wanted, rtol=1e-5, atol=1e-5)
    photos[3].write_text("no image")
    (one,) = Predictor.of_run(tmp_path / "run").predict(photos[3:4])
    assert str(one).startswith(f"{photos[3]}: no image of a known format")
    (tmp_path / "numbers.npz").unlink()
    with pytest.raises(UsageError, match="^--split=test: is for data sets, not for image files"):
        predict.main([*map(str, photos), where, f"--output={tmp_path}/numbers.npz", "--split=test"])
    for given in (photos[3:4], photos):
        assert not (tmp_path / "numbers.npz").exists()
        with pytest.raises(DataError, match=f"^1 of {len(given)} images? cannot be read: {photos[3]}: no image of a"):
            predict.main([*map(str, given), where, f"--output={tmp_path}/numbers.npz", "--batch_size=3"])
    with np.load(tmp_path / "numbers.npz") as file:
        assert file["file"].tolist() == list(map(str, photos[:3] + photos[4:]))
        np.testing.assert_allclose(file["outputs"], np.delete(wanted, 3, 0), rtol=1e-5, atol=1e-5)
