"""The rule by which image files become pixels: one for training, evaluation and prediction, stated by the manifest."""

import dataclasses
import io
import itertools
import json

import numpy as np
import PIL.ExifTags
import PIL.Image
import pyarrow
import pyarrow.parquet
import pytest
import tensorflow as tf

from pipeline import RandomAccess, images, input_fn, manifest
from pipeline.audit.__main__ import main as audit
from pipeline.errors import DataError
from pipeline.manifest import PixelRule
from tests.helpers import forked
from tests.helpers.converting import convert_in_process
from tests.helpers.lanes import some_slow
from trainer import Predictor

OLD = PixelRule("stored", "fast")
COUNT, SIZE = 24, (32, 48)  # upright: height, width
RESIDENT, WINDOWS = 1 << 30, 40_000
TURNS = {1: 0, 3: 2, 6: 1, 8: -1}  # by EXIF's orientation: the quarters by which the camera had turned the picture


def picture(number):
    """Returns a grey wave from left to right in class 0, from top to bottom in class 1, in colours that differ."""
    y, x = np.mgrid[: SIZE[0], : SIZE[1]]
    wave = 128 + 100 * np.sin((y if number % 2 else x) / 3 + number)
    noise = np.random.default_rng(number).normal(0, 20, (*SIZE, 3))
    return np.uint8((wave[..., None] + noise).clip(0, 255))


def write(folder, kind="JPEG"):
    """Writes photographs of two classes, three in four of them turned; returns {key: (file, whether it is turned)}."""
    found = {}
    for number in range(COUNT):
        value = list(TURNS)[number // 2 % 4]
        exif, stream = PIL.Image.Exif(), io.BytesIO()
        exif[PIL.ExifTags.Base.Orientation] = value
        turned = np.ascontiguousarray(np.rot90(picture(number), TURNS[value]))
        PIL.Image.fromarray(turned).save(
            stream, kind, exif=exif, **({"quality": 100, "subsampling": 0} if kind == "JPEG" else {})
        )
        path = folder / "ab"[number % 2] / f"{number}.{kind.lower()}"
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(stream.getvalue())
        found[path.relative_to(folder).as_posix()] = stream.getvalue(), value != 1
    return found


def converted(source, data_dir, *flags):
    split = "--split=train:0.7,validation:0.3"
    return convert_in_process("--dataset=image_folder", f"--source={source}", f"--data_dir={data_dir}", split, *flags)


def converted_long_ago(source, data_dir, monkeypatch):
    """Converts as releases did that had no rule: files stay as they are, and the manifest says nothing of pixels."""
    with monkeypatch.context() as patched:
        patched.setattr(images, "orientation", lambda image: 1)
        converted(source, data_dir)
    forget(data_dir)
    return data_dir


def forget(data_dir):
    made = dataclasses.replace(manifest.load(data_dir), pixel_rule=None)
    (data_dir / "manifest.json").write_bytes(made.to_bytes())


@pytest.fixture(scope="module")
def photographs(tmp_path_factory):
    folder = tmp_path_factory.mktemp("photographs")
    return folder, write(folder)


@pytest.fixture(scope="module")
def new(photographs, tmp_path_factory):
    return converted(photographs[0], tmp_path_factory.mktemp("new") / "data")


@pytest.fixture(scope="module")
def old(photographs, tmp_path_factory):
    with pytest.MonkeyPatch.context() as patched:
        return converted_long_ago(photographs[0], tmp_path_factory.mktemp("old") / "data", patched)


def fed(data_dir, **options):
    """Returns {key: image} of the training split as it is fed."""
    options = {"global_batch_size": 2, "training": False, "augment": None, "features": ("key",), **options}
    found = {}
    for x, _, weights in input_fn(data_dir, "train", epochs=1, **options):
        for key, image, weight in zip(x["key"].numpy(), x["image"].numpy(), weights.numpy(), strict=True):
            if weight:
                found[key.decode()] = image
    return found


WAYS = {
    "resident": {"shuffle_bytes": RESIDENT},
    "windows": {"shuffle_bytes": WINDOWS},
    "portable": {"portable": True},
    "crops": {"augment": "random_crop(size=32, normalize=False)"},
    "crops portable": {
        "augment": "random_crop(size=32, normalize=False)",
        "shuffle_bytes": WINDOWS,
        "portable": True,
    },
}


def middle(image):
    """Returns the 32x32 in the middle, or the whole if there is no more."""
    top, left = ((side - 32) // 2 for side in image.shape[:2])
    return image[top : top + 32, left : left + 32]


@pytest.mark.parametrize("way", some_slow(WAYS, ["resident", "windows", "crops"]))
def test_what_is_fed_is_upright_and_what_pillow_decodes(way, new, photographs):
    options = WAYS[way]
    rule = manifest.load(new).pixel_rule
    assert (rule, manifest.load(new).features["image"].shape) == (PixelRule(), (*SIZE, 3))
    crop = middle if "augment" in options else lambda image: image
    stored = {example["key"].decode(): example for example in RandomAccess(new, "train", decode=False)}
    shown = {example["key"].decode(): example["image"] for example in RandomAccess(new, "train")}
    found = fed(new, **options)
    assert found.keys() == stored.keys()
    assert len(found) > COUNT / 2
    for key, image in found.items():
        decoded = images.pixels(images.open_file(stored[key]["image"]))
        assert np.array_equal(image, crop(decoded)) or "augment" in options
        assert np.abs(image.astype(int) - crop(decoded)).max() <= (12 if "augment" in options else 0)  # at borders
        assert np.array_equal(shown[key], decoded)
        assert (stored[key]["image"] == photographs[1][key][0]) == (not photographs[1][key][1])
        assert np.abs(decoded.astype(int) - picture(int(key[2:].split(".")[0]))).mean() < 4


@pytest.mark.parametrize("way", some_slow(WAYS, ["windows", "crops portable"]))
def test_a_data_set_without_a_rule_is_fed_as_it_always_was(way, old, photographs):
    options = WAYS[way]
    assert (manifest.load(old).pixel_rule, manifest.load(old).pixels) == (None, OLD)
    sized = options if "augment" in options else {**options, "resize": SIZE}
    for key, image in fed(old, **sized).items():
        file, is_turned = photographs[1][key]
        decoded = tf.io.decode_jpeg(file, channels=3).numpy()
        assert not np.array_equal(decoded, images.pixels(images.open_file(file)))
        if "augment" in options:
            assert np.abs(image.astype(int) - middle(decoded)).max() <= 12
        elif decoded.shape[:2] == SIZE:
            assert np.array_equal(image, decoded)
        else:
            assert is_turned


def test_an_edited_rule_is_named(new, tmp_path):
    content = json.loads((new / "manifest.json").read_text())
    for name, value in (("orientation", "sideways"), ("dct", "slow")):
        wrong = {**content, "pixel_rule": {**content["pixel_rule"], name: value}}
        (tmp_path / "manifest.json").write_text(json.dumps(wrong))
        with pytest.raises(DataError, match=f"pixel_rule has the {name} '{value}'; known: "):
            manifest.load(tmp_path)


def test_where_pixels_are_stored_there_is_no_rule(photographs, tmp_path):
    raw = manifest.load(converted(photographs[0], tmp_path / "raw", "--image_encoding=raw"))
    assert (raw.pixel_rule, raw.pixels) == (None, PixelRule())
    png = converted(photographs[0], tmp_path / "png", "--image_encoding=png")
    forget(png)
    assert manifest.load(png).pixels == PixelRule()  # Pillow had decoded and turned them


def test_the_rule_is_part_of_the_datas_identity(new, tmp_path):
    made = manifest.load(new)
    assert made.digest != dataclasses.replace(made, pixel_rule=None).digest


@pytest.mark.parametrize("form", some_slow(["new", "old"], ["old"]))
def test_the_audit_compares_by_the_rule(form, request, capsys):
    audit([str(request.getfixturevalue(form)), "--global_batch_size=2", "--content", "--resize=32x48"])
    assert "holds  the values that are fed are those of the records" in capsys.readouterr().out


def train(data_dir, run, steps=60):
    flags = ["--model=lenet", "--resize=32x32", "--global_batch_size=8", f"--train_steps={steps}", "--log_every=0"]
    return forked.run(["-m", "trainer.run", f"--data_dir={data_dir}", f"--model_dir={run}", *flags])


@pytest.fixture(scope="module")
def new_run(new, tmp_path_factory):
    run = tmp_path_factory.mktemp("new_run") / "run"
    done = train(new, run)
    assert done.returncode == 0, done.stderr
    return run


@pytest.fixture(scope="module")
def old_run(old, tmp_path_factory):
    run = tmp_path_factory.mktemp("old_run") / "run"
    done = train(old, run)
    assert done.returncode == 0, done.stderr
    return run


def as_trained(data_dir, predictor):
    """Returns {key: probabilities} of the validation split, as an evaluation computes them."""
    found = {}
    options = {"global_batch_size": 1, "training": False, "resize": (32, 32), "features": ("key",)}
    for x, *_ in input_fn(data_dir, "validation", epochs=1, **options):
        found[x["key"].numpy()[0].decode()] = predictor.probabilities([x["image"].numpy()[0]])[0]
    return found


@pytest.mark.parametrize(
    ("form", "exported"),
    some_slow(itertools.product(("new", "old"), (False, True)), [("new", False), ("old", False)]),
)
@pytest.mark.quick(1)
def test_files_are_predicted_as_the_split_is_evaluated(form, exported, request, photographs, tmp_path):
    data_dir, run = (request.getfixturevalue(name) for name in (form, f"{form}_run"))
    predictor = of_run = Predictor.of_run(run)
    if exported:
        flags = [f"--model_dir={run}", f"--output={tmp_path / 'out'}", "--format=saved_model", "--examples=4"]
        forked.output(["-m", "trainer.export", *flags])
        predictor = Predictor.of_export(tmp_path / "out")
        assert ("exif_transpose" in (tmp_path / "out" / "README.md").read_text()) == (form == "new")
    assert predictor.pixel_rule == (PixelRule() if form == "new" else OLD)
    folder, files = photographs
    expected = as_trained(data_dir, of_run)
    assert len(expected) > 4
    # In the new data set a turned JPEG has been encoded twice; everything else has the same pixels, and so nearly bits.
    for key, probabilities in expected.items():
        (said,) = predictor.predict([folder / key], top=2)
        tolerance = 0.02 if files[key][1] and form == "new" else 1e-5
        found = {number: probability for number, _, probability in said.best}
        assert [found[0], found[1]] == pytest.approx(probabilities.tolist(), abs=tolerance)


@pytest.mark.slow
def test_an_export_that_says_nothing_of_a_rule_is_asked_as_it_was(new_run, tmp_path):
    flags = [f"--model_dir={new_run}", f"--output={tmp_path / 'out'}", "--format=saved_model", "--examples=4"]
    assert forked.run(["-m", "trainer.export", *flags]).returncode == 0
    about = json.loads((tmp_path / "out" / "export.json").read_text())
    assert about["preprocessing"].pop("pixel_rule") == {"orientation": "upright", "dct": "exact"}
    (tmp_path / "out" / "export.json").write_text(json.dumps(about))
    assert Predictor.of_export(tmp_path / "out").pixel_rule == PixelRule()


@pytest.mark.slow
def test_a_resume_on_data_of_another_rule_is_refused_and_the_rule_named(old_run, new, old):
    done = train(new, old_run, steps=70)
    assert done.returncode == 2
    assert "images upright, exact DCT" in done.stderr
    assert train(old, old_run, steps=61).returncode == 0


def test_a_mask_beside_an_image_that_is_resized_is_named(tmp_path):
    mask = images.encoded(picture(0), "png")
    (tmp_path / "in").mkdir()
    table = {"image": [mask] * 4, "label": [0, 1] * 2, "mask": [mask] * 4, "bbox": [[1, 2, 3, 4]] * 4, "id": [1] * 4}
    kinds = {"bbox": pyarrow.list_(pyarrow.int64(), 4)}
    columns = {name: pyarrow.array(values, kinds.get(name)) for name, values in table.items()}
    pyarrow.parquet.write_table(pyarrow.table(columns), tmp_path / "in" / "a.parquet")
    flags = [
        "--dataset=parquet",
        f"--source={tmp_path / 'in'}",
        f"--data_dir={tmp_path / 'out'}",
        "--image_encoding=png",
    ]
    for size, count in (["--resize=8x8"], 1), ([], 0):
        out = forked.output(["-m", "beam_jobs.convert", *flags, "--keep_columns=mask,bbox,id", "--overwrite", *size])
        said = "warning: only the images were resized: the kept features mask, bbox may refer to their pixels"
        assert out.count(said) == count
