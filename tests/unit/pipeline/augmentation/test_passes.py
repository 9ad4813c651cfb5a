"""Passes of compiled code: the same bytes as what XLA compiles, whatever the recipe; and programs that are refused."""

import dataclasses

import numpy as np
import pytest
import tensorflow as tf

from pipeline import input_fn, operations
from pipeline.augmentation import RECIPES
from pipeline.augmentation.base import Recipe
from pipeline.augmentation.composed import augmented_by_passes
from pipeline.augmentation.passes import Pass
from pipeline.augmentation.recipes import make_recipe
from tests.helpers import datasets
from tests.helpers.datasets import write_dataset
from tests.helpers.lanes import some_slow
from tests.unit.pipeline.augmentation import reference
from tests.unit.pipeline.augmentation.running import run, statistics_of

pytestmark = pytest.mark.usefixtures("compiled_operation")
WITHOUT = {"cifar10_tutorial", "none"}  # recipes that only XLA does
EXTREME = "affine(rotate=180, scale=0.9, shift=1, shear=60, fill=99)"


@pytest.mark.parametrize("name", sorted(RECIPES))
def test_which_recipes_have_passes(name):
    made = make_recipe(name).passes((40, 40, 3), statistics_of(3), True)
    assert (made is None) == (name in WITHOUT)


@pytest.mark.parametrize("channels", some_slow([1, 3, 4], [3]))
@pytest.mark.parametrize(
    "text",
    [
        f"{EXTREME} | pad_crop_flip(pad=3) | flip | cutout(size=4)",
        "random_erasing(prob=1) | cutout(size=5) | flip",
        "resize(height=23, width=40) | shift(pixels=3)",
    ],
    ids=str,
)
@pytest.mark.parametrize("shape", [(31, 26), pytest.param((3, 2), marks=pytest.mark.slow)], ids=str)
def test_both_forms_give_the_same_bytes(text, shape, channels):
    if shape == (3, 2):
        text = text.replace("=3)", "=1)").replace("size=4", "size=2").replace("size=5", "size=1")
    run(text, reference.images_of(70, *shape, channels), reference.keys_of(70))


@pytest.mark.parametrize(
    ("text", "channels"),
    [
        ("randaugment(m=30, fill=200) | color_jitter(brightness=1, contrast=1, saturation=1, hue=0.5)", 3),
        pytest.param("randaugment(n=6) | color_jitter(saturation=0, hue=0)", 1, marks=pytest.mark.slow),
        pytest.param("color_jitter | randaugment(n=14, m=17)", 3, marks=pytest.mark.slow),
        *(pytest.param(f"randaugment(n=3, m={m})", 3, marks=pytest.mark.slow) for m in (0, 1, 5, 14, 23, 29)),
    ],
)
def test_both_forms_give_the_same_colours(text, channels):
    run(text, reference.images_of(300, 33, 31, channels), reference.keys_of(300))


@pytest.mark.slow
def test_long_chains_and_wide_images_have_passes_too():
    """As XLA takes them: spectra of 20,000 places, and more recipes than anybody chains."""
    run(" | ".join(["flip"] * 40), reference.images_of(5, 3, 4), reference.keys_of(5))
    run("flip | cutout(size=1)", reference.images_of(5, 1, 20_000, 1), reference.keys_of(5))


def test_a_recipe_without_passes_stands_between_those_with_them():
    run("cifar10_tutorial(crop=9) | flip | cutout(size=3)", reference.images_of(9, 12, 13), reference.keys_of(9))


@pytest.mark.parametrize("text", ["flip", "flip | mixup"])
def test_an_evaluation_copies_the_images(text):
    """Whoever kept images that share memory with a window would keep the window."""
    recipe, images = make_recipe(text), tf.constant(reference.images_of(5, 4, 3))
    made = augmented_by_passes(recipe, images, tf.constant(reference.keys_of(5)), statistics_of(3), False)
    np.testing.assert_array_equal(made, images)
    assert made is not images
    assert not recipe.hands_on


@pytest.fixture(scope="module")
def data(tmp_path_factory):
    path = tmp_path_factory.mktemp("data")
    write_dataset(path, (40, 26), (14, 12, 3), test_counts=(20,))
    return path


CHAIN = "affine | random_erasing | pad_crop_flip(pad=2) | cutout(size=4) | mixup"


@pytest.mark.parametrize("options", some_slow([{}, {"shuffle_bytes": 20_000}], [{}]), ids=["in memory", "in windows"])
def test_the_input_gives_the_same_bytes_with_and_without_a_compiler(data, options, monkeypatch):
    def batches():
        dataset = input_fn(data, "train", global_batch_size=12, training=True, augment=CHAIN, **options)
        return [[part.numpy() for part in batch] for batch in dataset.take(9)], str(graph_of(dataset))

    with_passes, graph = batches()
    assert "StepfeedDistort" in graph
    monkeypatch.setattr(operations, "is_compiled", lambda: False)
    by_xla, graph = batches()
    assert "Stepfeed" not in graph
    for one, other in zip(with_passes, by_xla, strict=True):
        for part, same in zip(one, other, strict=True):
            np.testing.assert_array_equal(part, same, strict=True)


def test_a_dataset_for_another_process_has_no_operations_of_ours(data):
    dataset = input_fn(data, "train", global_batch_size=12, training=True, augment=CHAIN, epochs=1, portable=True)
    assert "Stepfeed" not in str(graph_of(dataset))


@pytest.mark.parametrize("text", ["none", "cifar10_tutorial(crop=9)", "cifar10_tutorial(crop=9) | mixup"])
def test_what_has_no_pass_is_left_to_xla(data, text):
    """Else each batch would be copied, or its keys computed apart."""
    dataset = input_fn(data, "train", global_batch_size=12, training=True, augment=text)
    assert "StepfeedDistort" not in str(graph_of(dataset))


@pytest.mark.parametrize("text", some_slow(["mixup", "cutmix(prob=0.5)"], ["mixup"]))
def test_mixing_alone_is_a_pass_and_an_evaluation_hands_the_images_on(data, text):
    for training in (True, False):
        dataset = input_fn(data, "train", global_batch_size=12, training=training, augment=text)
        assert ("StepfeedDistort" in str(graph_of(dataset))) == training


@pytest.mark.parametrize("text", ["random_resized_crop(size=24)", "random_crop(size=24, normalize=False)"])
def test_photographs_are_resized_and_flipped_alike_in_this_process_and_for_another_one(text, tmp_path):
    write_dataset(tmp_path, (9, 7), (40, 60, 3), (5,), kind=datasets.Kind("jpeg", varied=True))
    found = {}
    for portable in (False, True):
        options = {"training": True, "augment": text, "epochs": 5, "portable": portable}
        dataset = input_fn(tmp_path, "train", global_batch_size=4, **options)
        found[portable] = [images.numpy() for images, *_ in dataset.take(5)]
        graph, is_resized = str(graph_of(dataset)), not portable and operations.can_resize()
        assert ("StepfeedResize" in graph) == is_resized
        if is_resized:  # which flips, too: nothing is left to do for a second pass
            assert ("StepfeedDistort" in graph) == ("normalize=False" not in text)
    np.testing.assert_allclose(found[False], found[True], rtol=0, atol=1e-5)


def graph_of(dataset):
    """Returns the graph of a dataset with its functions."""
    graph = tf.compat.v1.GraphDef()
    graph.ParseFromString(dataset._as_serialized_graph().numpy())
    return graph


SIZE = (5, 6, 3)
TABLE = [*(y for row in range(5) for y in (row, 4096)), *(x for column in range(6) for x in (column, 4096))]
FINE = {
    "crop": ([1, 4, 7], 2),
    "flip": ([], 1),
    "move": ([0], 22),
    "recolour": ([], 11),
    "resize": ([5, 6, 1, 1, *TABLE], 0),
    "cover": ([2, 2, 9, 9, 9], 2),
    "noise": ([], 6),
    "augment": ([*range(3), *[0] * 26, *[0] * (10 * 22)], 1),
    "normalise": ([0] * 6, 0),
    "mix": ([], 6),
}


def augmented(program, columns, parameter=0, images=None):
    images = np.zeros((2, *SIZE), np.uint8) if images is None else images
    floats = any(kind == "normalise" for kind, _ in program)
    numbers = [number for kind, given in program for number in Pass(kind, given).coded()]
    given = np.full((2, columns), parameter, np.int32)
    return operations.augment(images, np.array(numbers, np.int32), given, floats).numpy()


@pytest.mark.parametrize("kind", FINE)
def test_each_pass_takes_its_numbers_and_no_others(kind):
    numbers, columns = FINE[kind]
    assert augmented([(kind, numbers)], columns).shape[0] == 2
    for wrong in (numbers[:-1], [*numbers, 0]):
        if wrong != numbers:
            with pytest.raises(tf.errors.InvalidArgumentError, match="wrong numbers"):
                augmented([(kind, wrong)], columns)
    for wrong in (columns - 1, columns + 1):
        if wrong >= 0:
            with pytest.raises(tf.errors.InvalidArgumentError, match="parameters must be those of the program"):
                augmented([(kind, numbers)], wrong)


@pytest.mark.parametrize(
    ("program", "columns", "parameter", "reason"),
    [
        ([("blur", [])], 0, 0, "there is no such kind"),
        ([("flip", [])] * 257, 257, 0, "more than 256"),
        ([("crop", [0, 6, 6])], 2, 0, "larger than the padded image"),
        ([("crop", [1, 0, 7])], 2, 0, "at least 1"),
        ([("crop", [1, 4, 7])], 2, 4, "must lie in the padded image"),
        ([("crop", [1, 4, 7])], 2, -1, "must lie in the padded image"),
        ([("noise", [])], 6, 4, "must lie in the image"),
        ([("noise", [])], 6, -1, "must lie in the image"),
        ([("augment", FINE["augment"][0])], 1, 28, "no such operation"),
        ([("augment", FINE["augment"][0])], 1, -1, "no such operation"),
        ([("resize", [5, 6, 1, 1, 5, *TABLE[1:]])], 0, 0, "must be those of an image's lines"),
        ([("resize", [5, 6, 1, 1, *TABLE[:8], 0, *TABLE[9:]])], 0, 0, "in the order of the image's lines"),
        ([("resize", [5, 6, 1, 1, 0, -1, *TABLE[2:]])], 0, 0, "must not be negative"),
        ([("resize", [5, 6, 1, 1, 0, 4097, *TABLE[2:]])], 0, 0, "no more than 1"),
        ([("cover", [-1, 2, 9, 9, 9])], 2, 0, "wrong numbers"),
        ([("normalise", [0] * 6), ("move", [0])], 22, 0, "takes no floats"),
        ([("mix", []), ("flip", [])], 7, 0, "must be the last pass"),
    ],
)
def test_a_program_that_would_reach_beyond_an_image_is_refused(program, columns, parameter, reason):
    with pytest.raises(tf.errors.InvalidArgumentError, match=reason):
        augmented(program, columns, parameter)


@pytest.mark.parametrize("numbers", [[], [1], [-1], [0, 1]], ids=str)
def test_a_program_that_ends_within_a_pass_is_refused(numbers):
    program = [*Pass("flip").coded()[:-1], *numbers]
    with pytest.raises(tf.errors.InvalidArgumentError, match="must not end within a pass"):
        operations.augment(
            np.zeros((1, *SIZE), np.uint8), np.array(program, np.int32), np.zeros((1, 1), np.int32), False
        )


def test_an_odd_number_of_images_is_not_mixed():
    program, parameters = np.array(Pass("mix").coded(), np.int32), np.zeros((3, 6), np.int32)
    with pytest.raises(tf.errors.InvalidArgumentError, match="even number of images"):
        operations.augment(np.zeros((3, *SIZE), np.uint8), program, parameters, False)


def test_an_operation_gives_only_its_own_type():
    with pytest.raises(tf.errors.InvalidArgumentError, match="floats if it normalises"):
        operations.augment(np.zeros((1, *SIZE), np.uint8), np.zeros(0, np.int32), np.zeros((1, 0), np.int32), True)


def test_the_parameters_are_those_of_the_keys_that_are_given():
    given = Pass("flip", (), lambda keys: [tf.cast(keys, tf.int32)])
    later = given.of(lambda keys: keys + tf.constant(2, tf.uint64))
    assert later.parameters(tf.constant([1], tf.uint64))[0].numpy() == 3
    assert dataclasses.replace(later, parameters=given.parameters) == given


def test_a_recipe_of_ones_own_has_none():
    assert Recipe().passes((2, 2, 3), statistics_of(3), True) is None
