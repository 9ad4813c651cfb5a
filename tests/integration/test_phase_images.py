"""Phases whose images have another size or recipe: what the step gets, in which order, resumed anywhere, refused."""

import itertools
import json
import random
import re
import shutil

import keras
import numpy as np
import pytest
import tensorflow as tf

from pipeline import input_fn, order_spec
from pipeline.audit import __main__ as audit
from pipeline.errors import UsageError
from pipeline.inspect import __main__ as inspect
from tests.helpers.datasets import Kind, write_dataset
from tests.helpers.runs import checkpoint_bytes, forget, kill, scalars, start, start_workers, succeed, wait_for_step
from tests.integration.test_phases import killed_on_any_devices, upto
from trainer import Task, TrainConfig, export, replay, run
from trainer import plan as plans
from trainer.step import state

# 4 steps per epoch; small windows, in three streams, so that the order depends on the size of an image.
STEPS, ROWS, SHUFFLED, LARGE = 12, 12, 3 * 6000, "12x12"
SIZED = (f"--global_batch_size={ROWS}", f"--shuffle_bytes={SHUFFLED}", "--streams=3", f"--resize={LARGE}")
FLAGS = (*SIZED, "--optimizer=adam", "--ema=0.9", "--eval_split=none", f"--train_steps={STEPS}")
WHOLE = "pad_crop_flip(pad=1, normalize=False)"
IMAGES = [("8x8", "flip"), ("8x8", WHOLE), (LARGE, WHOLE), (LARGE, "flip(prob=0.9)")]
STARTS = (0, 3, 4, 9)
PHASES = (
    "0: resize=8, augment=flip, freeze=norm+head; 3: augment=pad_crop_flip(pad=1, normalize=False); "
    "1 epochs: resize=12x12, freeze=none; 9: augment=flip(prob=0.9)"
)


def pooled(image_shape, num_classes):
    parts = [
        keras.layers.Rescaling(1 / 255),
        keras.layers.Conv2D(4, 3, name="stem"),
        keras.layers.BatchNormalization(name="norm"),
        keras.layers.Dropout(0.2),
        keras.layers.GlobalAveragePooling2D(),
        keras.layers.Dense(num_classes, name="head"),
    ]
    return keras.Sequential([keras.Input(image_shape, dtype="uint8"), *parts])


def flat(image_shape, num_classes):
    parts = [keras.layers.Flatten(), keras.layers.Dense(4, name="wide"), keras.layers.Dense(num_classes)]
    return keras.Sequential([keras.Input(image_shape, dtype="uint8"), keras.layers.Rescaling(1 / 255), *parts])


def fixed():
    return pooled((12, 12, 3), 3)


def of_any_size():
    return pooled((None, None, 3), 3)


class Pooled(Task):
    """Has the mean image as a metric, weighted so that flips and shifts show."""

    def build_model(self):
        return pooled(self.data.features.shape[1:], 3)

    def train_step(self, model, features, labels):
        assert features.shape[1:] == self.data.features.shape[1:]
        loss, metrics = super().train_step(model, features, labels)
        return loss, {**metrics, "seen": seen(features), "side": tf.fill([features.shape[0]], float(features.shape[1]))}

    def evaluate(self, model, features, labels):
        assert features.shape[1:] == (12, 12, 3)
        loss, metrics = super().evaluate(model, features, labels)
        return loss, {**metrics, "seen": seen(features), "side": tf.fill([features.shape[0]], float(features.shape[1]))}


def seen(images):
    ramp = tf.reshape(tf.range(images.shape[1] * images.shape[2], dtype=tf.float32), [*images.shape[1:3], 1])
    return tf.reduce_mean(tf.cast(images, tf.float32) * ramp, axis=[1, 2, 3])


MODEL = ("--task=tests.integration.test_phase_images:Pooled",)


@pytest.fixture(scope="module")
def data(tmp_path_factory):
    path = tmp_path_factory.mktemp("data")
    write_dataset(path, (26, 18), (13, 14, 3))
    return path


def train(data, folder, *more, phases=PHASES, model=MODEL):
    run.main([f"--data_dir={data}", f"--model_dir={folder}", *model, *FLAGS, f"--phases={phases}", *more])


@pytest.fixture(scope="module")
def whole(data, tmp_path_factory):
    """A run that was never stopped, with a checkpoint and scalars of each step, and its rows' keys."""
    folder = tmp_path_factory.mktemp("whole") / "run"
    kept = ("--checkpoint_every=1", "--max_to_keep=20", "--summary_every=1", "--histogram_every=5")
    train(data, folder, *kept, f"--log_keys={folder}-keys", "--eval_split=test")
    return folder


def fed(data, step, number, **options):
    """Returns an input of a phase's images that begins with a step."""
    size, augment = IMAGES[number]
    given = {"global_batch_size": ROWS, "training": True, "shuffle_bytes": SHUFFLED, "streams": 3}
    return iter(input_fn(data, resize=size, augment=augment, start_step=step, **given, **options))


def test_each_step_gets_the_images_of_its_phase_in_the_order_of_the_largest(data, whole):
    found, step = scalars(whole / "logs"), 0
    for number, end in enumerate([*STARTS[1:], STEPS]):
        batches = fed(data, step, number, record_bytes=12 * 12 * 3)
        for images, _, weights in itertools.islice(batches, end - step):
            assert found["train/side", step + 1] == images.shape[1] == (8 if step < 4 else 12)
            expected = np.sum(seen(images) * weights) / np.sum(weights)
            np.testing.assert_allclose(found["train/seen", step + 1], expected, rtol=1e-5)
            step += 1
    assert found["eval/test/side", STEPS] == 12
    # The rows are those of an input without phases.
    plain = [batch[0]["key"].numpy().tolist() for batch in itertools.islice(fed(data, 0, 2, features=("key",)), STEPS)]
    header, *lines = (whole.parent / "run-keys" / "worker-00000.jsonl").read_text().splitlines()
    assert '"record_bytes":432' in header
    keys = [json.loads(line)["keys"] for line in lines]
    assert [[one.encode() for one in own] for own in keys] == plain


def test_two_inputs_share_an_order_by_the_bytes_of_a_record(data):
    given = {"training": True, "global_batch_size": ROWS, "shuffle_bytes": SHUFFLED}
    small, large = (order_spec(data, resize=size, **given) for size in ("8x8", LARGE))
    assert small.digest != large.digest
    same = order_spec(data, resize="8x8", record_bytes=12 * 12 * 3, **given)
    assert same.digest == large.digest
    ids = [next(fed(data, 5, number, record_ids=True, record_bytes=432))[-1].numpy().tolist() for number in (1, 2)]
    assert ids[0] == ids[1] != next(fed(data, 5, 1, record_ids=True))[-1].numpy().tolist()
    with pytest.raises(UsageError, match=r"^record_bytes=100: a record takes 192 here; inputs that share an order"):
        order_spec(data, resize="8x8", record_bytes=100, **given)


@pytest.mark.parametrize("step", [4, *(pytest.param(step, marks=pytest.mark.slow) for step in (1, 2, 3, 5, 8, 9, 10))])
def test_a_run_that_is_resumed_ends_with_the_same_bits(step, data, whole, tmp_path, capsys):
    folder = upto(whole, tmp_path / "run", step)
    train(data, folder, "--steps_per_loop=5", "--eval_split=test")
    assert checkpoint_bytes(folder, STEPS) == checkpoint_bytes(whole, STEPS)
    lines = capsys.readouterr().out
    third = f"phase 3 of 4, from step 4: freeze=none, resize={LARGE}, augment={WHOLE}"
    assert (f"\n{third}; 135 of 135 weights are trained\n" in lines) == (step < 9)


@pytest.mark.slow
def test_steps_are_made_again_and_proved(data, whole, tmp_path, capsys):
    folder = shutil.copytree(whole, tmp_path / "run")
    forget(folder, *range(3, 10))
    replay.main([f"--model_dir={folder}", "--verify=2:10"])
    assert "ckpt-10: 8 steps after ckpt-2, all bits of" in capsys.readouterr().out
    replay.main([f"--model_dir={whole}", "--step=3"])
    said = capsys.readouterr().out
    assert "phase 2 of 4, from step 3: freeze=norm+head, resize=8x8, augment=pad_crop" in said
    assert said.count("13x14x3, mean") == said.count("  8x8x3, mean") == 8  # those that are no padding
    inspect.main([f"--model_dir={whole}", "--step=2"])
    said = capsys.readouterr().out
    assert "phase 1 of 4, from 0: resize=8, augment=flip, freeze=norm+head" in said
    assert said.count("  8x8x3, mean") == ROWS
    for epoch, recipe in ((0, "flip"), (1, WHOLE), (3, "flip(prob=0.9)")):
        audit.main([f"--model_dir={whole}", "--content", f"--epoch={epoch}"])
        assert f"the same when the epoch is repeated ({recipe})" in capsys.readouterr().out


def test_what_is_frozen_is_frozen_in_the_model_of_the_size(data, whole, tmp_path):
    steps = [checkpoint_bytes(whole, step) for step in (1, 4, 5)]
    weights = [name for name in steps[0] if re.match(r"averages/values/|model/.*/moving_", name)]
    moved = [[one[name] != other[name] for name in weights] for one, other in itertools.pairwise(steps)]
    assert (len(weights), sum(moved[0]), sum(moved[1])) == (8, 2, 8)  # kernel and bias of the stem; all
    config = TrainConfig.of(
        data_dir=data, model_dir=tmp_path, phases=PHASES, task=MODEL[0][7:], resize=LARGE, global_batch_size=ROWS
    )
    made = state.planned(config, plans.make(config, task=Pooled), tf.distribute.get_strategy(), Pooled)
    small, model = made.fed[0].model, made.model
    assert [one.model is model for one in made.fed] == [False, False, True, True]
    assert made.trained[0].frozen == (small.get_layer("norm"), small.get_layer("head"))
    assert all(one.value is other.value for one, other in zip(small.variables, model.variables, strict=True))


@pytest.mark.slow
def test_a_phase_ahead_may_change_and_a_past_one_may_not(data, whole, tmp_path, capsys):
    folder = upto(whole, tmp_path / "run", 6)
    ahead = PHASES.replace("9: augment=flip(prob=0.9)", "8: resize=10")
    train(data, folder, phases=ahead)
    said = capsys.readouterr().out
    assert "changed since ckpt-6: phases were " in said
    assert f"; step 8: freeze=none, resize=10x10, augment={WHOLE}, from step 6 on" in said
    folder = upto(whole, tmp_path / "past", 6)
    for past in (PHASES.replace("resize=8", "resize=9"), PHASES.replace("augment=flip,", "augment=none,")):
        with pytest.raises(
            UsageError, match=r"^--phases: .*ckpt-6: the phase that begins at step 0 was 'step 0: freeze"
        ):
            train(data, folder, phases=past)


@pytest.mark.slow
def test_exports_take_the_runs_size(data, whole, tmp_path):
    export.main([f"--model_dir={whole}", f"--output={tmp_path}/out", "--format=keras"])
    model = keras.models.load_model(next((tmp_path / "out").rglob("*.keras")))
    assert model.input_shape[1:] == (12, 12, 3)


@pytest.mark.parametrize(
    ("phases", "said"),
    [
        ("0: resize=8; 6: resize=12", "'step 6: .*resize=12x12': changes images of 8x8 to 12x12 within an epoch"),
        ("0: augment=none; 1.5 epochs: augment=resize(height=9, width=9)", "'step 6: .*': changes .* of 12x12 to 9x9"),
        ("0: resize=16", "'step 0: .*resize=16x16': its images are larger than the run's, 12x12, .*--resize=16x16"),
        ("0: augment=pad_crop_flip", r"'step 0: .*': its images are float32 \(12, 12, 3\), .* uint8 \(12, 12, 3\)"),
        ("0: resize=0", "'0': resize='0x0': must be a height and a width, such as 224x224"),
        ("0: resize=small", "'0': resize='small': must be a height and a width, such as 224x224"),
        ("0: augment=flipp", "'0': augment: unknown 'flipp'; did you mean 'flip'"),
        ("0: augment=flip(probability=1)", "'0': augment: argument of flip: unknown 'probability'"),
        ("0: augment=flip(prob=2.0)", r"'step 0: .*': augment: flip\(prob=2.0\): must be in 0..1"),
        ("0: augment=random_resized_crop(size=8)", "'step 0: .*': augment='random_resized_crop.*' crops a PNG or JPEG"),
        ("0: resize=8, resize=12", "'0': resize must have one value, such as resize=128x128"),
    ],
)
def test_images_that_cannot_work_are_one_line(phases, said, data, tmp_path):
    with pytest.raises(UsageError, match=rf"^--phases: {said}") as caught:
        train(data, tmp_path / "run", phases=phases)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    ("model", "said"),
    [
        ("flat", r"has weights that depend on the size of .*wide/kernel is \(432, 4\) for 12x12, \(192, 4\) for 8x8"),
        ("fixed", r"takes images of \(None, 12, 12, 3\) alone"),
    ],
)
def test_models_of_one_size_are_refused(model, said, data, tmp_path):
    name = f"--model=tests.integration.test_phase_images:{model}"
    with pytest.raises(UsageError, match=rf"^--phases: 'step 0: .*resize=8x8': {name}: {said}"):
        train(data, tmp_path / "run", phases="0: resize=8", model=[name])


class Augmenting(Pooled):
    @staticmethod
    def augment(images, keys, training):
        return images


@pytest.mark.slow
def test_a_task_that_augments_has_sizes_but_no_recipes(data, tmp_path):
    model = ("--task=tests.integration.test_phase_images:Augmenting",)
    with pytest.raises(UsageError, match=r"^--phases: 'step 0: .*': augment='flip': a function augments already"):
        train(data, tmp_path / "run", phases="0: augment=flip", model=model)
    train(data, tmp_path / "run", "--summary_every=4", phases="0: resize=8; 1 epochs: resize=12", model=model)
    found = scalars(tmp_path / "run" / "logs")
    assert [found["train/side", step] for step in (4, 8)] == [8, 12]


@pytest.mark.slow
def test_a_model_of_any_size_and_crops_that_follow_the_size(tmp_path):
    """Crops are of files of different sizes, so that the order does not depend on the size; recipes may mix rows."""
    write_dataset(tmp_path / "data", (26, 18), (20, 22, 3), kind=Kind(encoding="png", varied=True))
    crop = "random_resized_crop(size=16, normalize=False)"
    flags = [f"--data_dir={tmp_path}/data", f"--model_dir={tmp_path}/run", "--eval_split=test", "--summary_every=1"]
    model = "--model=tests.integration.test_phase_images:of_any_size"
    phases = "0: resize=9; 1 epochs: resize=12; 5: augment=random_crop(normalize=False) | mixup"
    run.main([*flags, model, f"--augment={crop}", *FLAGS[:1], "--train_steps=7", f"--phases={phases}"])
    config = TrainConfig.of(
        data_dir=f"{tmp_path}/data", model_dir="x", augment=crop, phases=phases, global_batch_size=12
    )
    made = plans.make(config)
    texts = [one.request.augment for one in made.inputs]
    assert texts[0] == "random_resized_crop(size=9, normalize=False)"
    assert texts[2] == "random_crop(normalize=False, size=12) | mixup"
    assert {one.spec for one in made.inputs} == {made.training.spec}
    assert (tmp_path / "run" / "ckpt-7.index").exists()


@pytest.mark.slow
def test_models_of_keras_are_trained_on_small_images_then_on_large_ones(data, tmp_path, capsys):
    model = "keras:MobileNetV3Small"
    flags = [
        f"--data_dir={data}",
        f"--model={model}",
        "--resize=64x64",
        f"--global_batch_size={ROWS}",
        "--train_steps=6",
    ]
    phases = "--phases=0: freeze=base, resize=48; 1 epochs: freeze=none, resize=64"
    more = ["--eval_split=none", phases, "--checkpoint_every=1", "--max_to_keep=9"]
    run.main([*flags, f"--model_dir={tmp_path}/whole", *more])
    folder = upto(tmp_path / "whole", tmp_path / "run", 5)
    run.main([*flags, f"--model_dir={folder}", *more])
    assert checkpoint_bytes(folder, 6) == checkpoint_bytes(tmp_path / "whole", 6)
    assert "phase 2 of 2, from step 4: freeze=none, resize=64x64" in capsys.readouterr().out


VIRTUAL = (*MODEL, *FLAGS, f"--phases={PHASES}", "--virtual_replicas=2")


@pytest.fixture(scope="module")
def on_any_devices(data, tmp_path_factory):
    """A run that has the same bits on one device and on two."""
    folder = tmp_path_factory.mktemp("virtual") / "run"
    succeed(start(data, folder, *VIRTUAL, "--checkpoint_every=1", "--max_to_keep=20"))
    return folder


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(4))
def test_killed_at_random_moments(seed, data, on_any_devices, tmp_path):
    """The first kill is around the step at which the size changes."""
    draw = random.Random(seed)
    steps = [draw.choice([3, 4, 5]), *draw.sample(range(1, STEPS), 2)]
    killed_on_any_devices(data, tmp_path, VIRTUAL, steps, draw)
    assert checkpoint_bytes(tmp_path, STEPS) == checkpoint_bytes(on_any_devices, STEPS)


@pytest.mark.slow
@pytest.mark.parametrize("step", [2, 4, 8])
def test_two_processes_that_are_killed_end_with_the_same_bits(step, data, on_any_devices, tmp_path):
    folder = tmp_path / "two"
    more = (*VIRTUAL, "--checkpoint_every=1", "--log_every=1", "--steps_per_loop=1")
    workers = start_workers(data, [folder] * 2, *more)
    wait_for_step(workers[0], step)
    kill(*workers)
    succeed(*start_workers(data, [folder] * 2, *more))
    assert checkpoint_bytes(folder, STEPS) == checkpoint_bytes(on_any_devices, STEPS)
