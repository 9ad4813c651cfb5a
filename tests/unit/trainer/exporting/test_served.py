import keras
import numpy as np
import pytest
import tensorflow as tf

from pipeline.augmentation import RECIPES
from pipeline.augmentation.base import ImageStatistics, UserAugmented
from pipeline.augmentation.recipes import make_recipe
from pipeline.decode.images import ImageDecoder, InStrings
from pipeline.errors import UsageError
from pipeline.graph_calls import UserFunction
from pipeline.request import Request
from tests.helpers.datasets import encoded
from trainer import models
from trainer.config.model import MODELS, ModelFlags
from trainer.exporting.served import fitting_of, preprocess, told_apart, without_own_layers


def request(**options):
    return Request("data", global_batch_size=1, training=False, **options)


@pytest.mark.parametrize(
    "shape",
    [
        (40, 36, 3),
        *(pytest.param(more, marks=pytest.mark.slow) for more in ((20, 60, 3), (200, 100, 3))),
        (24, 24, 3),
        (5, 9, 3),
    ],
)
@pytest.mark.parametrize(
    ("augment", "resize"),
    [("random_crop(size=24)", None), ("random_resized_crop(size=24)", None), ("none", "24x20"), ("none", "40x36")],
)
@pytest.mark.quick(2)
def test_images_are_fitted_as_the_input_decodes_them(shape, augment, resize):
    image = np.random.default_rng(0).integers(0, 256, shape, np.uint8)
    fitting = fitting_of(request(augment=augment, resize=resize), make_recipe(augment), 3)
    decoder = ImageDecoder("png", (None, None, 3), fitting.crop)
    expected = decoder.decode(InStrings(tf.constant([encoded(image, "png")])), lambda: tf.zeros(1, tf.uint64))
    fitted = tf.function(fitting.fit, input_signature=[tf.TensorSpec((None, None, None, 3), tf.uint8)])
    np.testing.assert_array_equal(fitted(np.stack([image, image]))[1], expected[0])


def test_images_that_have_the_models_size_are_not_fitted():
    assert fitting_of(request(augment="shift"), make_recipe("shift"), 1) is None


def test_classes_of_one_name_aretold_apart_by_their_numbers():
    assert told_apart(["a", "b", "a"]) == ("a (0)", "b", "a (2)")


@pytest.mark.parametrize("dtype", ["uint8", pytest.param("float32", marks=pytest.mark.slow)])
@pytest.mark.parametrize(
    "name",
    [
        pytest.param(name, marks=pytest.mark.slow) if name.startswith("resnet") else name
        for name in MODELS
        if ":" not in name
    ],
)
def test_the_same_numbers_from_the_same_variables_without_our_layers(name, dtype, tmp_path):
    model = models.build(ModelFlags(model=name), tf.TensorSpec((None, 24, 24, 3), dtype), 7)
    images = np.random.default_rng(0).integers(0, 256, (5, 24, 24, 3)).astype(dtype)
    expected = model(images, training=False).numpy()
    found = without_own_layers(model)
    assert [id(v) for v in found.variables] == [id(v) for v in model.variables]
    np.testing.assert_allclose(found(images, training=False).numpy(), expected, rtol=1e-5, atol=1e-5)
    found.save(tmp_path / "m.keras")
    loaded = keras.saving.load_model(tmp_path / "m.keras")  # our layers are not registered
    assert {type(layer).__module__.partition(".")[0] for layer in loaded.layers} == {"keras"}
    np.testing.assert_allclose(loaded(images, training=False).numpy(), expected, rtol=1e-5, atol=1e-5)


def test_a_users_model_stays_as_it_is():
    model = keras.Sequential([keras.Input((3,)), keras.layers.Dense(2)])
    assert without_own_layers(model) is model


STATISTICS = ImageStatistics((120.0, 11.5, 0.0), (60.0, 3.25, 0.0))
CASES = [
    "none",
    "shift",
    "pad_crop_flip(pad=3)",
    "cifar10_tutorial",
    "cifar10_tutorial(crop=9)",
    "cifar10_tutorial(crop=9, standardize=False)",
    "random_crop(size=30)",
    "random_resized_crop(size=30, normalize=False)",
    "pad_crop_flip(normalize=False)",
    "resize(height=11, width=40)",
    "randaugment | random_erasing | resize(height=11, width=40) | pad_crop_flip | cutout | mixup",
    "affine | color_jitter | flip | normalize | mixup_or_cutmix",
    "cutmix(prob=0.5)",
]


def batch(shape):
    images = np.random.default_rng(0).integers(0, 256, (6, *shape), np.uint8)
    images[1], images[2] = 255, 0  # without any deviation
    images[3], images[3, 4, 4, 0] = 7, 8  # with the least
    images[4] //= 200
    return images


def exported(recipe, shape):
    inputs = keras.Input(shape, dtype="uint8")
    return keras.Model(inputs, preprocess(recipe, inputs, STATISTICS))


@pytest.mark.parametrize("shape", [(30, 27, 3), (25, 32, 1)])
@pytest.mark.parametrize("text", CASES)
@pytest.mark.quick(6)
def test_it_gives_what_an_evaluation_gives(text, shape, tmp_path):
    recipe, images = make_recipe(text), batch(shape)
    statistics = ImageStatistics(STATISTICS.mean[: shape[2]], STATISTICS.std[: shape[2]])
    evaluate = tf.function(lambda rows: recipe.evaluate(rows, tf.zeros(6, tf.uint64), statistics), jit_compile=True)
    expected = evaluate(tf.constant(images)).numpy()
    inputs = keras.Input(shape, dtype="uint8")
    model = keras.Model(inputs, preprocess(recipe, inputs, statistics))
    found = model(images).numpy()
    assert (found.dtype, found.shape) == (expected.dtype, expected.shape)
    np.testing.assert_allclose(found, expected, rtol=2e-5, atol=2e-5)
    model.save(tmp_path / "m.keras")
    np.testing.assert_array_equal(keras.saving.load_model(tmp_path / "m.keras")(images).numpy(), found)


def test_every_named_recipe_is_among_the_cases():
    assert {one.partition("(")[0].strip() for text in CASES for one in text.split("|")} == set(RECIPES)


def test_a_users_function_is_refused_unless_evaluations_get_images_as_they_are():
    shape, functions = (8, 8, 3), (lambda images, training: images, lambda images: tf.cast(images, tf.float32))
    for kept in functions:
        model = exported(UserAugmented(UserFunction.of("augment", kept)), shape)
        np.testing.assert_array_equal(model(batch(shape)), batch(shape))
    with pytest.raises(UsageError, match=r"^Task\.augment: changes images in evaluations, too"):
        exported(UserAugmented(UserFunction.of("augment", lambda images: 255 - images)), shape)
