"""What a predictor says of image files, with a function in place of a model, and what is not an export."""

import csv
import json

import numpy as np
import PIL.Image
import pytest

from pipeline.errors import DataError, UsageError
from pipeline.manifest import PixelRule
from pipeline.records import tf_example
from trainer.config.trained import PredictConfig
from trainer.exporting import answers
from trainer.exporting.parsed import ImageFeature
from trainer.exporting.predictions import Prediction, Predictor

NAMES = ("dark", "grey", "light")


def brightness(batch):
    """Gives the classes probabilities by the mean of an image: 0 is dark, 255 light."""
    light = batch.reshape(len(batch), -1).mean(1) / 255
    return np.stack([(1 - light) ** 2, 2 * light * (1 - light), light**2], 1).astype(np.float32)


class Model:
    """Counts the batches of `brightness`, by their shapes."""

    def __init__(self):
        self.shapes = []

    def __call__(self, batch):
        self.shapes.append(batch.shape)
        return brightness(batch)


def image(folder, name, value, size=(6, 4)):
    path = folder / name
    PIL.Image.new("L", size, value).save(path)
    return str(path)


@pytest.fixture
def files(tmp_path):
    """Three images, a file that is none, and one that is not there."""
    (tmp_path / "text.png").write_text("no image")
    made = [image(tmp_path, f"{value}.png", value) for value in (0, 51, 255)]
    return [made[0], str(tmp_path / "text.png"), made[1], str(tmp_path / "none.png"), made[2]]


def test_a_prediction_is_one_line_whatever_its_names():
    assert str(Prediction("a\nb.png", ((0, "x\0", 0.5),))) == "a\\nb.png: x\\x00 0.500"


def test_each_file_has_its_classes_the_likeliest_first_or_the_reason(files):
    predictor = Predictor("a model", NAMES, (4, 6, 1), brightness)
    found = predictor.predict(files, top=2)
    assert [one.path for one in found] == files
    assert found[0].best == ((0, "dark", 1.0), (1, "grey", 0.0))
    assert [name for _, name, _ in found[2].best] == ["dark", "grey"]
    assert [p for _, _, p in found[2].best] == pytest.approx([0.64, 0.32])
    assert str(found[4]) == f"{files[4]}: light 1.000, dark 0.000"
    assert [bool(one.problem) for one in found] == [False, True, False, True, False]
    assert (found[1].best, str(found[3])) == ((), f"{files[3]}: No such file or directory")


def test_images_of_one_size_are_computed_at_once_and_answers_keep_their_order():
    model = Model()
    predictor = Predictor("a model", NAMES, (4, 6, 1), model, fit=lambda picture: picture)  # of any size
    pictures = [np.full(shape, value, np.uint8) for shape, value in (((2, 2, 1), 0), ((3, 2, 1), 255), ((2, 2, 1), 51))]
    np.testing.assert_allclose(predictor.probabilities(pictures)[:, 0], [1, 0, 0.64], rtol=1e-6)
    assert model.shapes == [(2, 2, 2, 1), (1, 3, 2, 1)]
    stretched = Predictor("a model", NAMES, (4, 6, 1), model)
    stretched.probabilities(pictures)
    assert model.shapes[2:] == [(3, 4, 6, 1)]


@pytest.mark.parametrize(
    "picture",
    [np.zeros((2, 2, 1)), np.zeros((2, 2), "u1"), np.zeros((2, 2, 3), "u1"), np.zeros((0, 2, 1), "u1"), b"a file"],
)
def test_pictures_of_another_kind_are_refused_by_their_number(picture):
    with pytest.raises(UsageError) as error:
        Predictor("a model", NAMES, (4, 6, 1), brightness).probabilities([np.zeros((2, 2, 1), np.uint8), picture])
    assert str(error.value).startswith("pictures[1]: ")


@pytest.fixture
def written(files, tmp_path, monkeypatch):
    """Returns a function that runs the command with such a model, and returns the content of --output."""
    monkeypatch.setattr(Predictor, "of_export", lambda path: Predictor("a model", NAMES, (4, 6, 1), brightness))

    def written(name, paths, **options):
        output = None if name is None else str(tmp_path / "out" / name)
        config = PredictConfig(paths, exported="exported", output=output, batch_size=2, **options)
        answers.run(config, paths)
        return output and (tmp_path / "out" / name).read_text()

    return written


def test_lines_of_json(written, files):
    paths = [files[0], files[2]]
    first, second = map(json.loads, written("a.jsonl", paths, top=2).splitlines())
    top = [
        {"class": 0, "class_name": "dark", "probability": 1.0},
        {"class": 1, "class_name": "grey", "probability": 0.0},
    ]
    assert first == {"file": files[0], **top[0], "top": top}
    assert (second["file"], second["probability"]) == (files[2], 0.64)


def test_a_table_has_room_for_all_classes_and_for_reasons(written, files, tmp_path):
    with pytest.raises(DataError) as error:
        written("a.csv", files, top=5)
    assert "2 of 5 images" in str(error.value)
    head, *rows = csv.reader((tmp_path / "out" / "a.csv").open())
    assert head == ["file", *(f"{what}_{n}" for n in (1, 2, 3) for what in ("class", "probability")), "problem"]
    assert rows[0] == [files[0], "dark", "1.000000", "grey", "0.000000", "light", "0.000000", ""]
    assert rows[3] == [files[3], *[""] * 6, "No such file or directory"]
    assert len({len(row) for row in rows}) == 1


def test_answers_are_printed_and_what_cannot_be_read_is_an_error_at_the_end(written, files, capsys):
    with pytest.raises(DataError):
        written(None, files)
    out, err = capsys.readouterr()
    assert [line.partition(": ")[0] for line in out.splitlines()] == files
    assert err == "a model\n"


def test_an_output_is_there_as_a_whole_or_as_it_was(written, files, tmp_path, monkeypatch):
    before = written("a.jsonl", [files[0]])

    def fails(self, *arguments):
        yield [Prediction(files[0], ((0, "dark", 1.0),))]
        raise DataError("out of memory")

    monkeypatch.setattr(Predictor, "batches", fails)
    with pytest.raises(DataError):
        written("a.jsonl", files)
    assert (tmp_path / "out" / "a.jsonl").read_text() == before
    assert [path.name for path in (tmp_path / "out").iterdir()] == ["a.jsonl"]


def of_records(names, kinds, compute):
    """Returns a predictor of records with an image, for which the model gives what `compute` does for the images."""

    def answer(records):
        images = [np.frombuffer(tf_example.decode(one)["image"][0], np.uint8) for one in records]
        return compute(np.stack(images).reshape(-1, 4, 6, 1))

    image_of = ImageFeature("image", (4, 6, 1), True, PixelRule())
    return Predictor("a model", names, None, answer, image=image_of, kinds=kinds)


def several():
    """A model of images that may be dark, light, both or neither."""

    def compute(images):
        light = images.reshape(len(images), -1).mean(1) / 255
        return {"probabilities": np.stack([0.9 - light, 1.2 * light, light * 0], 1).astype(np.float32)}

    return of_records(NAMES, {"probabilities": ["float32", 3]}, compute)


def test_classes_above_a_half_are_those_that_an_image_has_where_it_may_have_several(
    written, files, monkeypatch, tmp_path
):
    monkeypatch.setattr(Predictor, "of_export", lambda path: several())
    grey = image(tmp_path, "grey.png", 105)  # of which neither is above 0.5
    rows = list(csv.reader(written("a.csv", [files[0], grey, files[4]]).splitlines()))
    assert rows[0] == ["file", *(f"{what}_{n}" for n in (1, 2, 3) for what in ("class", "probability")), "problem"]
    assert rows[1] == [files[0], "dark", "0.900000", *[""] * 5]
    assert rows[2] == [grey, *[""] * 7]
    assert rows[3] == [files[4], "grey", "1.200000", *[""] * 5]
    lines = [json.loads(line) for line in written("a.jsonl", [files[0], grey]).splitlines()]
    assert lines[0] == {"file": files[0], "classes": [{"class": 0, "class_name": "dark", "probability": 0.9}]}
    assert lines[1] == {"file": grey, "classes": []}
    assert str(several().predict([grey])[0]) == f"{grey}: no class above 0.5"
    assert [name for _, name, _ in several().predict([grey], top=2)[0].best] == ["grey", "dark"]


def test_an_image_may_have_all_of_many_classes_but_none_at_exactly_a_half(files):
    likely = np.float32([0.75, 0.875, 0.5, 1, 0.625, 0.51])
    kinds = {"probabilities": ["float32", 6]}
    predictor = of_records(tuple("abcdef"), kinds, lambda images: {"probabilities": np.tile(likely, (len(images), 1))})
    assert "".join(name for _, name, _ in predictor.predict(files[:1])[0].best) == "dbaef"


def test_numbers_are_printed_and_written_as_they_are_and_files_that_cannot_be_read_are_named(
    written, files, monkeypatch, tmp_path, capsys
):
    def compute(images):
        light = images.reshape(len(images), -1).mean(1)
        return {"age": light[:, None].astype(np.float32), "place": np.stack([light, -light], 1)}

    predictor = of_records((), {"age": ["float32", 1], "place": ["float64", 2]}, compute)
    monkeypatch.setattr(Predictor, "of_export", lambda path: predictor)
    for name in ("a.csv", "a.jsonl", None):
        with pytest.raises(DataError, match=r"^2 of 5 images cannot be read: "):
            written(name, files)
    rows = list(csv.reader((tmp_path / "out" / "a.csv").open()))
    assert rows[0] == ["file", "age", "place_1", "place_2", "problem"]
    assert rows[3] == [files[2], "51", "51", "-51", ""]
    assert rows[1][:2] == [files[0], "0"]
    assert rows[2][1:4] == ["", "", ""]
    assert rows[2][4].startswith("no image of a known format")
    lines = [json.loads(line) for line in (tmp_path / "out" / "a.jsonl").read_text().splitlines()]
    assert lines[2] == {"file": files[2], "age": 51.0, "place": [51.0, -51.0]}
    assert f"{files[2]}: age 51, place 51 -51\n" in capsys.readouterr().out
    assert str(
        of_records((), {"outputs": ["float32"]}, lambda x: {"outputs": x.mean((1, 2, 3))}).predict(files)[2]
    ) == (f"{files[2]}: 51")


@pytest.mark.parametrize(
    ("kinds", "said"),
    [
        ({"masks": ["float32", 4, 6, 1]}, "its outputs are arrays"),
        ({"boxes": ["float32", None]}, "its outputs are arrays"),
        ({"text": ["string"]}, "its outputs are arrays"),
        ({"file": ["float32"]}, "the output 'file' has the name of another column"),
    ],
)
def test_outputs_that_are_no_table_are_for_arrays(kinds, said, written, files, monkeypatch):
    monkeypatch.setattr(Predictor, "of_export", lambda path: of_records((), kinds, dict))
    for name in (None, "a.csv"):
        with pytest.raises(UsageError, match=rf"^a model: {said}.*; give --output=FILE.npz"):
            written(name, files[:1])
    with pytest.raises(UsageError, match=rf"^a model: {said}.*; call outputs"):
        of_records((), kinds, dict).predict(files[:1])


ABOUT = {
    "image_size": [4, 6], "preprocessing": {"fits": False}, "class_names": list(NAMES),
    "files": {"keras": {"file": "model.keras", "images": [None, 4, 6, 1]},
              "stablehlo": {"file": "model.stablehlo", "images": [1, 4, 6, 1]}},
}  # fmt: skip


@pytest.fixture
def exported(tmp_path):
    (tmp_path / "export.json").write_text(json.dumps(ABOUT))
    (tmp_path / "model.stablehlo").touch()
    return tmp_path


def test_what_is_no_export_is_named(exported):
    def path_of(path):
        with pytest.raises(DataError) as error:
            Predictor.of_export(path)
        return error.value.path

    assert path_of(exported) == str(exported / "model.keras")  # it is not there
    assert path_of(exported / "other.keras") == str(exported / "other.keras")
    assert path_of(exported.parent) == str(exported.parent)
    (exported / "export.json").write_text(json.dumps({**ABOUT, "preprocessing": {}}))
    assert path_of(exported) == str(exported / "export.json")
    (exported / "export.json").write_text("{")
    assert path_of(exported) == str(exported / "export.json")


def test_a_file_that_cannot_be_asked_is_refused(exported):
    with pytest.raises(UsageError):
        Predictor.of_export(exported / "model.stablehlo")
    (exported / "model.keras").touch()
    (exported / "export.json").write_text(json.dumps({**ABOUT, "preprocessing": {"fits": True}}))
    with pytest.raises(UsageError) as error:  # it takes images that are cut already
        Predictor.of_export(exported)
    assert str(exported / "model.keras") in str(error.value)


def test_a_file_that_is_damaged_is_named_when_it_is_asked(exported):
    (exported / "model.keras").write_bytes(b"no model")
    predictor = Predictor.of_export(exported)
    assert (predictor.class_names, predictor.image_shape) == (NAMES, (4, 6, 1))
    with pytest.raises(DataError) as error:
        predictor.probabilities([np.zeros((4, 6, 1), np.uint8)])
    assert error.value.path == str(exported / "model.keras")
