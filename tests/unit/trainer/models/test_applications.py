import keras
import numpy as np
import pytest
import tensorflow as tf
from keras.src.applications import imagenet_utils

from pipeline.errors import UsageError
from trainer import models
from trainer.config import TrainConfig
from trainer.config.model import IMAGENET, ModelFlags, built_in
from trainer.models import layers
from trainer.models.applications import modules, pretrained, sides

SMALL = "keras:MobileNetV3Small"
PATHS = {"data_dir": "D", "model_dir": "M"}


def build(name, shape=(32, 32, 3), dtype="uint8", **flags):
    return models.build(ModelFlags(model=name, **flags), tf.TensorSpec([None, *shape], dtype), 5)


def pixels(*shape):
    return np.random.default_rng(0).integers(0, 256, shape).astype(np.uint8)


def test_the_installed_keras_lists_them():
    assert {"MobileNetV3Small", "EfficientNetV2B0", "VGG16", "ConvNeXtXLarge"} <= modules().keys()
    assert set(modules()) == {name for name in dir(keras.applications) if name[0].isupper()}


def test_their_own_sizes_are_those_of_keras(monkeypatch):
    """Each function asks for its size before it builds anything."""

    class AskedError(Exception):
        pass

    def ask(input_shape, default_size, **options):
        raise AskedError(default_size)

    monkeypatch.setattr(imagenet_utils, "obtain_input_shape", ask)
    found = {}
    others = {name for name in modules() if name.startswith("MobileNetV3")}  # which take any size
    for name in modules().keys() - others:
        with pytest.raises(AskedError) as caught:
            getattr(keras.applications, name)(weights=None)
        found[name] = caught.value.args[0] or 331  # NASNet's own default
    assert {**found, **dict.fromkeys(others, 224)} == sides()


@pytest.mark.parametrize(
    ("flags", "size"),
    [
        ({}, "300x300"),
        ({"resize": "64x64"}, "64x64"),
        ({"augment": "flip"}, "300x300"),
        ({"augment": "random_resized_crop(size=96, normalize=False)"}, None),
        ({"augment": "flip | resize(height=32, width=32)"}, None),
    ],
)
def test_images_have_the_models_own_size_unless_a_flag_or_a_recipe_decides_it(flags, size):
    config = TrainConfig.of(**PATHS, model="keras:EfficientNetV2B3", **flags)
    assert config.data.resize == size
    assert TrainConfig.of(**PATHS, model="mlp").data.resize is None


def test_the_defaults_are_those_of_fine_tuning():
    config = TrainConfig.of(**PATHS, model=SMALL)
    found = config.optimizer
    assert (found.optimizer, found.learning_rate, found.schedule) == ("adam", 0.0001, "cosine")
    other = TrainConfig.of(**PATHS, model=SMALL, optimizer="momentum").optimizer
    assert (other.learning_rate, other.warmup_epochs) == (0.001, 1.0)
    assert config.last_step(10) == 200
    assert config.model.modules == []
    assert built_in("mine:model") is None


def test_a_misspelt_name_gets_the_nearest():
    with pytest.raises(UsageError, match=r"^--model=keras: unknown 'EfficientNetV2B9'; did .* 'EfficientNetV2B\d'"):
        TrainConfig.of(**PATHS, model="keras:EfficientNetV2B9")
    with pytest.raises(UsageError, match=r"pretrained: name.*'MobilNetV2'.*did you mean 'MobileNetV2'"):
        pretrained("MobilNetV2", (32, 32, 3))


def test_imagenet_is_for_models_of_keras():
    with pytest.raises(UsageError, match=r"--initialize_from=imagenet: .*--model=lenet"):
        ModelFlags(model="lenet", initialize_from=IMAGENET)


@pytest.fixture(scope="module")
def small():
    keras.utils.set_random_seed(0)
    return build(SMALL, initialize_from="w.h5", dropout=0.25)


def test_pixels_become_logits_by_the_preprocessing_of_the_model(small):
    images = pixels(2, 32, 32, 3)
    assert small(images).shape == (2, 5)
    base, head = small.get_layer("MobileNetV3Small"), small.get_layer("head")
    np.testing.assert_allclose(small(images), head(base(images.astype(np.float32))), atol=1e-6)
    assert [one.rate for one in small.layers if isinstance(one, keras.layers.Dropout)] == [0.25]


@pytest.mark.slow
def test_given_weights_keep_their_statistics_in_training_and_random_ones_do_not(small):
    images = pixels(4, 32, 32, 3)
    new = build(SMALL)
    for model, moves in ((small, False), (new, True)):
        statistics = [v for v in model.non_trainable_variables if "moving" in v.name]
        before = [v.numpy() for v in statistics]
        trained = model(images, training=True).numpy()
        moved = [not np.array_equal(a, b) for a, b in zip(before, statistics, strict=True)]
        assert (any(moved), all(moved)) == (moves, moves)
        base = model.get_layer("MobileNetV3Small")
        fixed, own = (base(images.astype(np.float32), training=training).numpy() for training in (False, True))
        assert np.array_equal(fixed, own) != moves
        assert trained.shape == (4, 5)
    assert not layers.has_unfused(small)


def test_grey_images_become_three_equal_channels(small):
    grey = pixels(2, 32, 32, 1)
    model = build(SMALL, (32, 32, 1), initialize_from="w.h5")
    model.set_weights(small.get_weights())
    np.testing.assert_allclose(model(grey), small(np.repeat(grey, 3, axis=-1)), atol=1e-6)


@pytest.mark.parametrize(
    ("name", "shape", "dtype", "said"),
    [
        (SMALL, (32, 32, 3), "float32", "--augment makes floats"),
        (SMALL, (32, 32, 4), "uint8", "1 or 3 channels, not 4"),
        ("keras:InceptionV3", (32, 32, 3), "uint8", "at least 75x75"),
    ],
)
def test_images_that_it_cannot_take_are_one_line(name, shape, dtype, said):
    with pytest.raises(UsageError, match=rf"--model={name} cannot take images of .*{said}") as caught:
        build(name, shape, dtype)
    assert "\n" not in str(caught.value)


def test_features_without_a_head():
    model = pretrained("MobileNetV3Small", (32, 32, 3), weights=None)
    assert model(pixels(2, 32, 32, 3)).shape == (2, 576)
    with pytest.raises(UsageError, match="pretrained: Xception cannot take images of"):
        pretrained("Xception", (32, 32, 3), weights=None)


@pytest.mark.slow
@pytest.mark.parametrize(
    "name", ["ResNet50", "ResNet50V2", "DenseNet121", "EfficientNetB0", "EfficientNetV2B0", "ConvNeXtTiny", "VGG16"]
)
def test_every_kind_preprocesses_as_its_module_does_and_is_saved(name, tmp_path):
    images = pixels(2, 32, 32, 3)
    model = build(f"keras:{name}")
    base = next(one for one in model.layers if isinstance(one, keras.Model))
    ready = getattr(keras.applications, modules()[name]).preprocess_input(images.astype(np.float32))
    expected = model.get_layer("head")(base(ready)).numpy()
    np.testing.assert_allclose(model(images).numpy(), expected, rtol=1e-4, atol=1e-4)
    model.save(tmp_path / "m.keras")
    np.testing.assert_allclose(keras.models.load_model(tmp_path / "m.keras")(images), expected, rtol=1e-4, atol=1e-4)
