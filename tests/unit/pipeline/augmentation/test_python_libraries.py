"""torchvision and Albumentations by keys, against the libraries themselves; they live in an environment of their own.

python3.11 -m venv augment && augment/bin/pip install '.[all]' torch torchvision albumentations==2.0.8
augment/bin/python -m pytest tests/unit/pipeline/augmentation/test_python_libraries.py
"""

import random
import sys
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest
import tensorflow as tf
from hypothesis import given, settings
from hypothesis import strategies as st

from pipeline import StepIterator, augment, input_fn
from pipeline.errors import UsageError
from pipeline.order import hashing
from pipeline.order.hashing import Domain
from pipeline.order.sharding import Shard
from tests.helpers.datasets import images_of, write_dataset

sys.modules.setdefault("triton", None)  # type: ignore[arg-type]  # its LLVM and TensorFlow's cannot be in one process
HOW = "in an environment of its own, see above: pip install torch torchvision albumentations==2.0.8"
torch = pytest.importorskip("torch", reason=f"needs torch, {HOW}")
v2 = pytest.importorskip("torchvision.transforms.v2", reason=f"needs torchvision, {HOW}")
albumentations = pytest.importorskip("albumentations", reason=f"needs Albumentations, {HOW}")

SHAPE, COUNTS, SEED = (8, 6, 3), (5, 0, 4, 3), 7
TRAIN = {"global_batch_size": 6, "training": True, "seed": SEED, "epochs": 2, "record_ids": True}


def of_torchvision():
    noise = v2.Compose([v2.ToDtype(torch.float32, scale=True), v2.GaussianNoise(), v2.ToDtype(torch.uint8, scale=True)])
    choice = v2.RandomChoice([v2.RandomErasing(1, value="random"), v2.RandAugment(), v2.AugMix()])
    return v2.Compose([v2.RandomHorizontalFlip(), v2.RandomAffine(20), v2.ColorJitter(0.3, 0.3), noise, choice])


def of_albumentations():
    a = albumentations
    return a.Compose(
        [a.HorizontalFlip(), a.RandomBrightnessContrast(p=1), a.OneOf([a.GaussNoise(), a.ElasticTransform()], p=1)]
    )


def by_torchvision(image, seed):
    torch.manual_seed(seed)
    return of_torchvision()(v2.functional.to_image(image)).permute(1, 2, 0).numpy()


def by_albumentations(image, seed):
    transform = of_albumentations()
    transform.set_random_seed(seed)
    return transform(image=image)["image"]


BOTH = pytest.mark.parametrize(
    ("make", "alone"), [(of_torchvision, by_torchvision), (of_albumentations, by_albumentations)]
)


def keys_of(epoch, records):
    return hashing.derive_key(Domain.AUGMENT, SEED, epoch, np.asarray(records))


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    path = tmp_path_factory.mktemp("python_libraries")
    write_dataset(path, COUNTS, SHAPE)
    return path


@BOTH
@settings(max_examples=8, deadline=None)
@given(st.data())
def test_draws_are_those_of_the_library_with_a_seed_for_each_record(folder, make, alone, data):
    workers, step = data.draw(st.sampled_from([1, 2, 3])), data.draw(st.integers(0, 3))
    shard = Shard(data.draw(st.integers(0, workers - 1)), workers)
    made = input_fn(folder, **TRAIN, augment=augment(make()), start_step=step, shard=shard)
    for at, (images, _, weights, records) in enumerate(made.as_numpy_iterator(), step):
        seeds = hashing.splitmix64(keys_of(at // 2, records) + np.uint64(1 << 32))
        for row in np.flatnonzero(weights):
            expected = alone(images_of(records[row], 1, SHAPE)[0], int(seeds[row]))
            np.testing.assert_array_equal(images[row], expected)


@BOTH
def test_threads_do_not_draw_for_each_other_and_the_process_draws_as_before(make, alone):
    augmentation, images = augment(make()), images_of(0, 32, SHAPE)
    keys = keys_of(0, np.arange(32))
    torch.manual_seed(1), random.seed(1), np.random.seed(1)
    expected = torch.rand(()), random.random(), np.random.rand()
    torch.manual_seed(1), random.seed(1), np.random.seed(1)
    whole = augmentation(tf.constant(images), tf.constant(keys), training=True)
    with ThreadPoolExecutor(8) as pool:
        one = lambda i: augmentation(tf.constant(images[i : i + 1]), tf.constant(keys[i : i + 1]), training=True)  # noqa: E731
        np.testing.assert_array_equal(np.concatenate(list(pool.map(one, range(32)))), whole)
    assert (torch.rand(()), random.random(), np.random.rand()) == expected


def drawn_from_everywhere(image, **_):
    return image * (np.random.rand() + random.random() + float(torch.rand(()))) / 3


def test_what_draws_from_the_process_is_seeded():
    image, keys = images_of(0, 1, SHAPE)[[0] * 8], keys_of(0, np.arange(8))
    transforms = (
        v2.Compose([drawn_from_everywhere]),
        albumentations.Compose([albumentations.Lambda(image=drawn_from_everywhere)]),
        torch.nn.Sequential(v2.ToDtype(torch.float32), torch.nn.Dropout()),
    )
    for transform in transforms:
        first, second = (augment(transform)(tf.constant(image), tf.constant(keys), True).numpy() for _ in range(2))
        np.testing.assert_array_equal(first, second)
        assert len({row.tobytes() for row in first}) == 8


@BOTH
def test_evaluations_get_the_images_as_they_are(folder, make, alone):
    made = input_fn(folder, global_batch_size=6, training=False, augment=augment(make()))
    images = np.concatenate([images for images, *_ in made.as_numpy_iterator()])
    np.testing.assert_array_equal(images, images_of(0, sum(COUNTS), SHAPE))


def test_a_pipeline_for_evaluations():
    train = v2.Compose([v2.RandomCrop(4), v2.ToDtype(torch.float32, scale=True)])
    images, keys = tf.constant(images_of(0, 2, SHAPE)), tf.constant(keys_of(0, [0, 1]))
    with pytest.raises(UsageError, match=r"makes float32 \(4, 4, 3\) of uint8 \(8, 6, 3\).*evaluation="):
        augment(train)(images, keys, training=False)
    judged = v2.Compose([v2.CenterCrop(4), v2.ToImage(), v2.ToDtype(torch.float32, scale=True)])
    found = augment(train, evaluation=judged)(images, keys, training=False)
    np.testing.assert_allclose(found, images[:, 2:6, 1:5].numpy() / np.float32(255), rtol=1e-6)


def test_evaluations_do_not_lose_what_every_image_needs():
    floats, keys = tf.constant(images_of(0, 2, SHAPE) / np.float32(255)), tf.constant(keys_of(0, [0, 1]))
    flipped_and = [v2.Grayscale(3), v2.Normalize([0.5] * 3, [1.0] * 3)]
    transforms = [v2.Compose([v2.RandomHorizontalFlip(), one]) for one in flipped_and]
    transforms.append(albumentations.Compose([albumentations.HorizontalFlip(), albumentations.ToGray(p=1)]))
    for transform, name in zip(transforms, ("Grayscale", "Normalize", "ToGray"), strict=True):
        with pytest.raises(UsageError, match=f"has a {name}, so that evaluations need a transform of their own"):
            augment(transform)(floats, keys, training=False)
        assert augment(transform, transform)(floats, keys, training=False).shape == floats.shape
    at_times = albumentations.Compose([albumentations.ToGray(p=0.5)])
    np.testing.assert_array_equal(augment(at_times)(floats, keys, training=False), floats)


class Copied(albumentations.HorizontalFlip):
    copies = 0

    def __deepcopy__(self, memo):
        Copied.copies += 1
        return Copied(p=self.p)


def test_a_transform_of_albumentations_is_copied_once_for_calls_in_turn(folder):
    Copied.copies = 0
    for _ in input_fn(folder, **TRAIN | {"epochs": 20}, augment=augment(albumentations.Compose([Copied()]))):
        pass
    assert 1 <= Copied.copies <= 8  # of 40 batches, some at the same time


def fails_on_some(image, **_):
    if image.mean() > 0:
        raise ValueError("no such image")
    return image


def test_a_transform_that_fails_is_the_users_mistake(folder):
    own = augment(albumentations.Compose([albumentations.Lambda(image=fails_on_some)]))
    with pytest.raises(UsageError, match="fails on uint8 .*ValueError: no such image"):
        next(StepIterator(folder, global_batch_size=6, training=True, augment=own))


def test_a_pipeline_that_begins_with_pil_images_gets_them():
    images, keys = tf.constant(images_of(0, 2, SHAPE)), tf.constant(keys_of(0, [0, 1]))
    found = augment(v2.Compose([v2.RandomHorizontalFlip(0.0), v2.PILToTensor()]))(images, keys, training=True)
    np.testing.assert_array_equal(found, images)


@pytest.mark.parametrize(
    ("make", "facts"),
    [
        (lambda: v2.Compose([v2.MixUp(num_classes=3)]), "MixUp of torchvision mixes the rows"),
        (lambda: v2.FiveCrop(4), "FiveCrop of torchvision must return an image, returned tuple"),
        (albumentations.Mosaic, "Mosaic of Albumentations takes pixels of other rows"),
        (lambda: v2.RandomCrop(9), r"RandomCrop of torchvision fails on uint8 \(8, 6, 3\): ValueError: "),
    ],
)
def test_what_cannot_be_seeded_is_refused_by_name(make, facts):
    with pytest.raises(UsageError, match=f"augment: {facts}"):
        augment(make())(tf.zeros([2, *SHAPE], tf.uint8), keys_of(0, [0, 1]), training=True)


def test_images_of_several_sizes_are_one_clear_error(folder):
    made = input_fn(folder, **TRAIN, augment=augment(albumentations.RandomScale(0.5, p=1)))
    with pytest.raises(tf.errors.OpError, match=r"RandomScale of Albumentations makes images of .* and of .*resize"):
        list(made)


def test_other_processes_have_no_python(folder):
    with pytest.raises(UsageError, match="augment: the function calls Python .* portable=True"):
        input_fn(folder, **TRAIN, augment=augment(of_torchvision()), portable=True)
