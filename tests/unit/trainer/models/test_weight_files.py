import hashlib
import pathlib
import re

import h5py
import keras
import numpy as np
import pytest
from keras.src.legacy.saving import legacy_h5_format
from keras.src.utils import file_utils

from pipeline.errors import UsageError
from trainer.models import pretrained, weight_files
from trainer.models.weight_files import load

NAME, SHAPE = "MobileNetV3Small", (32, 32, 3)
KINDS = ("published.h5", "own.weights.h5", "own.keras")


def application(name=NAME, **options):
    """A Keras model whose statistics differ from those of new layers."""
    model = getattr(keras.applications, name)(input_shape=SHAPE, weights=None, **options)
    random = np.random.default_rng(0)
    for variable in model.weights:
        if "moving" in variable.name:
            variable.assign(random.uniform(0.5, 1.5, variable.shape))
    return model


def write(model, path):
    """Saves a model's weights in the format that the path's ending names; `.h5` as Keras publishes them."""
    if path.name.endswith(".weights.h5"):
        model.save_weights(path)
    elif path.suffix == ".keras":
        model.save(path)
    else:
        with h5py.File(path, "w") as file:
            legacy_h5_format.save_weights_to_hdf5_group(file, model)


@pytest.fixture(scope="module")
def seven(tmp_path_factory):
    """A folder with a model of 7 classes in each format, and without a head; and the model."""
    folder, model = tmp_path_factory.mktemp("weights"), application(classes=7)
    for kind in KINDS:
        write(model, folder / kind)
    bare = application(include_top=False, pooling="avg")
    bare.set_weights(model.get_weights()[: len(bare.weights)])
    write(bare, folder / "notop.h5")
    return folder, model


@pytest.mark.parametrize("kind", [*KINDS, "notop.h5"])
@pytest.mark.quick(1)
def test_all_but_the_head_is_taken_from_another_number_of_classes(kind, seven):
    folder, source = seven
    model = pretrained(NAME, SHAPE, 5, weights=None)
    head = model.get_layer("head").get_weights()
    found, note = load(model, str(folder / kind))
    classes = "none" if kind == "notop.h5" else "one of 7 classes"
    assert note == (
        f"--initialize_from={folder / kind}: taken but for the head, which begins anew ((576, 5) and (5,); the file "
        f"has {classes})"
    )
    digest = hashlib.sha256((folder / kind).read_bytes()).hexdigest()
    assert (found.name, found.sha256) == (kind, digest)
    mine = weight_files.base_of(model).get_weights()
    for ours, theirs in zip(mine, source.get_weights(), strict=False):
        np.testing.assert_array_equal(ours, theirs)
    for now, before in zip(model.get_layer("head").get_weights(), head, strict=True):
        np.testing.assert_array_equal(now, before)


@pytest.mark.slow
def test_a_model_of_ours_is_taken_with_its_head_if_that_fits(tmp_path):
    ours, same, other = (pretrained(NAME, SHAPE, classes, weights=None) for classes in (4, 4, 3))
    ours.save_weights(tmp_path / "ours.weights.h5")
    assert load(same, str(tmp_path / "ours.weights.h5"))[1] == ""
    for a, b in zip(ours.get_weights(), same.get_weights(), strict=True):
        np.testing.assert_array_equal(a, b)
    assert "the file has one of 4 classes" in load(other, str(tmp_path / "ours.weights.h5"))[1]
    np.testing.assert_array_equal(other.get_weights()[0], ours.get_weights()[0])


def sequential(*widths):
    dense = [keras.layers.Dense(width) for width in widths]
    return keras.Sequential([keras.Input((3,)), *dense])


def test_a_model_of_ones_own_is_taken_but_for_the_head(tmp_path):
    source, model = sequential(4, 6), sequential(4, 2)
    for kind in KINDS:
        write(source, tmp_path / kind)
        assert "begins anew ((4, 2) and (2,); the file has one of 6 classes)" in load(model, str(tmp_path / kind))[1]
        np.testing.assert_array_equal(model.get_weights()[0], source.get_weights()[0])


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize(
    ("widths", "said"),
    [
        ((5, 2), r"layer dense\w* has \(3, 4\) and \(4,\) here, and the file has \(3, 5\) and \(5,\)"),
        ((4, 8, 2), r"it has 2 more layers, the first of them \S+ of \(4, 8\) and \(8,\)"),
    ],
)
def test_another_architecture_is_refused_by_its_first_layer(kind, widths, said, tmp_path):
    model, path = sequential(4, 2), tmp_path / kind
    before = model.get_weights()
    write(sequential(*widths), path)
    with pytest.raises(UsageError, match=rf"^--initialize_from={path}: has a different architecture: {said}$"):
        load(model, str(path))
    for a, b in zip(model.get_weights(), before, strict=True):
        np.testing.assert_array_equal(a, b)


def test_a_layer_that_the_file_lacks(tmp_path):
    write(sequential(4), tmp_path / "short.h5")
    with pytest.raises(
        UsageError, match=r"layer dense\w* has \(4, 4\) and \(4,\) here, and the file has no such layer"
    ):
        load(sequential(4, 4, 2), str(tmp_path / "short.h5"))


def test_a_model_of_one_layer_has_no_head_that_may_differ(tmp_path):
    write(sequential(4, 2), tmp_path / "two.weights.h5")
    with pytest.raises(UsageError, match="it has 1 more layer, the first of them"):
        load(sequential(4), str(tmp_path / "two.weights.h5"))


def test_names_of_layers_that_are_cut_in_parts_are_joined(tmp_path, monkeypatch):
    """HDF5 takes attributes of 64 KiB at most; Keras writes more as name0, name1 and so on."""
    source, model = sequential(4, 5, 6, 7, 2), sequential(4, 5, 6, 7, 2)
    # No less than a single name, whose number grows with the models that the process has made.
    limit = max(len(weight.path) for weight in source.weights)
    monkeypatch.setattr(legacy_h5_format, "HDF5_OBJECT_HEADER_LIMIT", limit)
    write(source, tmp_path / "cut.h5")
    with h5py.File(tmp_path / "cut.h5") as file:
        assert {"layer_names0", "layer_names1"} <= set(file.attrs)
    assert load(model, str(tmp_path / "cut.h5"))[1] == ""
    for a, b in zip(source.get_weights(), model.get_weights(), strict=True):
        np.testing.assert_array_equal(a, b)


class Subclassed(keras.Model):
    """A model whose attributes, not its layers, name the weights in files."""

    def __init__(self):
        super().__init__()
        self.first, self.head = keras.layers.Dense(4), keras.layers.Dense(2)

    def call(self, inputs):
        return self.head(self.first(inputs))


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize(
    "layer",
    [
        lambda: keras.layers.LSTM(2),
        lambda: keras.layers.Bidirectional(keras.layers.GRU(2)),
        lambda: keras.layers.TimeDistributed(keras.layers.Dense(2)),
        Subclassed,
    ],
    ids=["lstm", "bidirectional", "time_distributed", "subclassed"],
)
@pytest.mark.quick(3)
def test_layers_inside_of_others_are_read_as_keras_reads_them(layer, kind, tmp_path):
    def made():
        inputs = keras.Input((4, 3))
        outputs = keras.layers.Dense(2)(keras.layers.Flatten()(layer()(inputs)))
        return keras.Model(inputs, outputs)

    source, model = made(), made()
    write(source, tmp_path / kind)
    assert load(model, str(tmp_path / kind))[1] == ""
    for a, b in zip(source.get_weights(), model.get_weights(), strict=True):
        np.testing.assert_array_equal(a, b)


def test_files_that_cannot_be_read_are_one_line(tmp_path):
    model = sequential(4, 2)
    (tmp_path / "bad.h5").write_bytes(b"not weights")
    (tmp_path / "bad.keras").write_bytes(b"no archive")
    for name, said in (("none.h5", "there is no such file"), ("bad.h5", ""), ("bad.keras", "zip")):
        with pytest.raises(UsageError, match=rf"^--initialize_from={tmp_path / name}: .*{said}") as caught:
            load(model, str(tmp_path / name))
        assert "\n" not in str(caught.value)


def test_imagenets_weights_are_fetched_as_keras_does_or_the_line_says_which_file_to_put_where(seven, monkeypatch):
    folder, _ = seven
    model, asked = pretrained(NAME, SHAPE, 5, weights=None), []

    def get_file(fname, origin, **options):
        asked.append((fname, origin, options["cache_subdir"]))
        if len(asked) > 1:
            raise Exception(f"URL fetch failure on {origin}: None -- no route")  # as Keras does
        return str(folder / "notop.h5")

    monkeypatch.setattr(file_utils, "get_file", get_file)
    found, note = load(model, "imagenet")
    assert (found.name, "head" in note) == ("notop.h5", True)
    with pytest.raises(UsageError, match="^--initialize_from=imagenet: ") as caught:
        load(model, "imagenet")
    name, origin, cache = asked[0]
    said = str(caught.value)
    assert re.fullmatch(r"weights_mobilenet_v3_small_224_1.0_float_no_top\w*\.h5", name)
    assert f"{name} is not in {pathlib.Path(file_utils.config.keras_home()) / cache}" in said
    assert f"fetch {origin} elsewhere and put it there, or give it as --initialize_from=FILE" in said
    with pytest.raises(UsageError, match=r"trainer\.models\.pretrained"):
        load(sequential(4, 2), "imagenet")


@pytest.mark.slow
def test_efficientnet_computes_what_keras_does_with_imagenets_weights(tmp_path, monkeypatch):
    """Keras adds a layer to EfficientNetB0 for these weights alone, and reads mean and variance from the file."""
    source = application("EfficientNetB0", include_top=False)
    mean, variance, _ = next(one for one in source.layers if isinstance(one, keras.layers.Normalization)).weights
    mean.assign([0.485, 0.456, 0.406])
    variance.assign([0.229, 0.224, 0.225])
    write(source, tmp_path / "b0.h5")
    monkeypatch.setattr(file_utils, "get_file", lambda *given, **options: str(tmp_path / "b0.h5"))
    theirs = keras.applications.EfficientNetB0(input_shape=SHAPE, include_top=False, pooling="avg", weights="imagenet")
    ours = pretrained("EfficientNetB0", SHAPE)
    images = np.random.default_rng(1).integers(0, 256, (2, *SHAPE)).astype(np.uint8)
    expected = theirs(images.astype(np.float32)).numpy()
    np.testing.assert_allclose(ours(images).numpy(), expected, rtol=1e-3, atol=1e-3 * np.abs(expected).max())
