"""`mixup`, `cutmix` and `mixup_or_cutmix` against one row after another."""

import math

import numpy as np
import pytest
import tensorflow as tf

from pipeline.augmentation import mixing
from pipeline.augmentation.recipes import make_recipe
from pipeline.errors import UsageError
from tests.unit.pipeline.augmentation import reference
from tests.unit.pipeline.augmentation.reference import below, beta, draw
from tests.unit.pipeline.augmentation.running import mix, run

ROWS = 40


@pytest.fixture(scope="module", params=[(9, 14, 3), (5, 5, 1)], ids=["9x14x3", "5x5x1"])
def pixels(request):
    return reference.images_of(ROWS, *request.param)


@pytest.fixture(scope="module")
def labels():
    return np.eye(7, dtype=np.float32)[np.arange(ROWS) % 7]


KEYS = reference.keys_of(ROWS)
REAL = np.arange(ROWS) % 9 != 4


def blended(image, partner, key, alpha):
    share = 1 - beta(alpha, key)
    return image * (1 - share) + partner * share, share


def pasted(image, partner, key, alpha):
    height, width = image.shape[:2]
    area = 1 - beta(alpha, key)
    tall, wide = int(math.sqrt(area) * height), int(math.sqrt(area) * width)
    top, left = below(height, key, 3) - tall // 2, below(width, key, 4) - wide // 2
    box = np.zeros((height, width), bool)
    box[max(top, 0) : max(top + tall, 0), max(left, 0) : max(left + wide, 0)] = True
    return np.where(box[..., None], partner, image), box.mean()


def mixed(name, arguments, image, partner, key):
    """Returns a row that is mixed, and its partner's share."""
    if name == "mixup_or_cutmix" and draw(key, 5) < arguments["cutmix_prob"]:
        return pasted(image, partner, key, arguments["cutmix_alpha"])
    if name == "mixup_or_cutmix":
        return blended(image, partner, key, arguments["mixup_alpha"])
    return (blended if name == "mixup" else pasted)(image, partner, key, arguments["alpha"])


@pytest.mark.parametrize("dtype", [np.uint8, pytest.param(np.float32, marks=pytest.mark.slow)])
@pytest.mark.parametrize(
    ("name", "arguments"),
    [
        pytest.param("mixup", {"alpha": 0.2, "prob": 1.0}, marks=pytest.mark.slow),
        ("mixup", {"alpha": 8.0, "prob": 0.5}),
        pytest.param("cutmix", {"alpha": 1.0, "prob": 1.0}, marks=pytest.mark.slow),
        ("cutmix", {"alpha": 0.05, "prob": 0.5}),
        ("mixup_or_cutmix", {"mixup_alpha": 0.4, "cutmix_alpha": 2.0, "cutmix_prob": 0.5, "prob": 0.8}),
    ],
)
@pytest.mark.quick(2)
def test_each_row_gets_its_share_of_its_partner(pixels, labels, name, arguments, dtype):
    images = pixels if dtype == np.uint8 else (pixels / 50 - 2).astype(np.float32)
    text = f"{name}({', '.join(f'{k}={v}' for k, v in arguments.items())})"
    got, got_labels = mix(text, images, labels, KEYS, real=REAL)
    assert (got.dtype, got_labels.dtype) == (dtype, np.float32)
    changed = 0
    for i, key in enumerate(KEYS):
        image, partner = (images[j].astype(float) for j in (i, i ^ 1))
        is_mixed = REAL[i] and REAL[i ^ 1] and draw(key, 0) < arguments["prob"]
        wanted, share = mixed(name, arguments, image, partner, key) if is_mixed else (image, 0.0)
        np.testing.assert_allclose(got[i], wanted, atol=0.51 if dtype == np.uint8 else 2e-6)
        np.testing.assert_allclose(got_labels[i], labels[i] * (1 - share) + labels[i ^ 1] * share, atol=1e-6)
        changed += share > 0
        if not is_mixed:
            np.testing.assert_array_equal(got[i], images[i])
    assert changed >= 8
    np.testing.assert_allclose(got_labels.sum(axis=1), 1, atol=1e-6)
    if dtype == np.uint8:  # the rest of the recipe does nothing; floats it only gets from recipes before it
        np.testing.assert_array_equal(run(text, images, KEYS), images)
        np.testing.assert_array_equal(run(text, images, KEYS, training=False), images)


CHAINS = [
    "normalize | mixup(alpha=1.0)",
    "affine | pad_crop_flip(pad=2) | cutout(size=3) | cutmix",
    "color_jitter(saturation=0, hue=0) | mixup_or_cutmix(mixup_alpha=1.0)",
    "resize(height=7, width=11) | mixup_or_cutmix(prob=0.8)",
    "cifar10_tutorial(crop=5) | flip | mixup_or_cutmix",  # which begins with floats of XLA
    "cifar10_tutorial(crop=5) | mixup",
]


@pytest.mark.parametrize("text", CHAINS)
@pytest.mark.quick(1)
def test_augmented_rows_are_mixed_alike_by_both_forms(pixels, labels, text):
    """`mix` compares them."""
    got, got_labels = mix(text, pixels, labels, KEYS, real=REAL)
    assert got.dtype == (np.uint8 if "color" in text or "resize" in text else np.float32)
    assert (got_labels.max(axis=1) < 1).sum() > 8


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(3))
def test_rows_of_any_shape_are_mixed_alike_by_both_forms(seed):
    rng = np.random.default_rng(seed)
    for _ in range(4):
        shape = (2 * int(rng.integers(1, 9)), *rng.integers(1, 40, 2).tolist(), int(rng.integers(1, 6)))
        images = rng.integers(0, 256, shape).astype(np.uint8)
        ones, keys = np.ones((len(images), 2), np.float32), rng.integers(0, 1 << 63, len(images)).astype(np.uint64)
        for text in ("normalize | mixup(alpha=3.0)", "normalize | mixup_or_cutmix", "cutmix", "mixup(alpha=0.5)"):
            mix(text, images, ones, keys)


@pytest.mark.quick(1)
def test_mixing_ends_with_an_epoch(pixels, labels):
    for epoch, is_mixed in ((0, True), (2, True), (3, False), (80, False)):
        got, got_labels = mix("mixup(alpha=1.0, until_epoch=3)", pixels, labels, KEYS, epoch)
        assert np.array_equal(got, pixels) is not is_mixed
        assert np.array_equal(got_labels, labels) is not is_mixed


@pytest.mark.parametrize("alpha", [0.1, 0.5, 1.0, 3.0])
def test_shares_are_of_the_beta_distribution(alpha):
    shares = mixing.symmetric_beta(alpha, tf.constant(reference.keys_of(50_000))).numpy()
    assert shares.min() >= 0
    assert shares.max() <= 1
    deviation = math.sqrt(1 / (4 * (2 * alpha + 1)))
    assert abs(shares.mean() - 0.5) < 5 * deviation / math.sqrt(50_000)
    assert abs(shares.std() / deviation - 1) < 0.02
    for point in (0.1, 0.3, 0.7):
        wanted = tf.math.betainc(tf.constant(alpha, tf.float64), alpha, point).numpy()
        assert abs((shares < point).mean() - wanted) < 5 * 0.5 / math.sqrt(50_000)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("mixup(alpha=0.0)", r"^augment: mixup\(alpha=0.0\): .* 0.01..100.0$"),
        ("cutmix(prob=2)", r"^augment: cutmix\(prob=2\): .* 0..1$"),
        ("mixup(until_epoch=-1)", r"^augment: mixup\(until_epoch=-1\): .* 0 "),
        ("mixup(until_epoch=1.5)", r"^augment: mixup\(until_epoch=1.5\): .*int"),
        ("mixup_or_cutmix(cutmix_prob=-1)", r"^augment: mixup_or_cutmix\(cutmix_prob=-1\): .* 0..1$"),
    ],
)
def test_what_is_out_of_bounds_is_refused(text, message):
    with pytest.raises(UsageError, match=message):
        make_recipe(text)
