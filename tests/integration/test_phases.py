"""Phases of a training: stopped and resumed in any of them, on several devices and processes, changed, made again."""

import itertools
import json
import random
import shutil
import time

import keras
import numpy as np
import pytest
import tensorflow as tf

from pipeline.audit import __main__ as audit
from pipeline.errors import UsageError
from pipeline.inspect import __main__ as inspect
from tests.helpers.datasets import write_dataset
from tests.helpers.runs import (
    checkpoint_bytes,
    forget,
    kill,
    saved_steps,
    scalars,
    start,
    start_workers,
    succeed,
    wait_for_step,
)
from trainer import TrainConfig, fuse_layers, replay, run
from trainer import plan as plans

# 4 steps per epoch: phases begin at steps 0, 6 and 9.
STEPS = 12
PHASES = (
    "0: freeze=base, learning_rate=0.01; 1.5 epochs: freeze=none, learning_rate=0.002, schedule=cosine; 9: freeze=st*"
)
FLAGS = (
    "--global_batch_size=12",
    "--optimizer=adamw",
    "--weight_decay=0.1",
    "--ema=0.9",
    "--eval_split=none",
    f"--train_steps={STEPS}",
)


def pixels():
    return keras.Input((6, 6, 3), dtype="uint8"), keras.layers.Rescaling(1 / 255)


def with_norm():
    parts = [
        keras.layers.Conv2D(4, 3, name="stem", kernel_regularizer=keras.regularizers.L2(0.1)),
        keras.layers.BatchNormalization(name="norm"),
        keras.layers.ReLU(),
        keras.layers.Flatten(),
        keras.layers.Dropout(0.2),
        keras.layers.Dense(3, name="head"),
    ]
    return fuse_layers(keras.Sequential([*pixels(), *parts]))


def without_norm():
    parts = [keras.layers.Dense(6, "relu", name="stem"), keras.layers.Dense(3, name="head")]
    return keras.Sequential([*pixels(), keras.layers.Flatten(), *parts])


MODEL = ("--model=tests.integration.test_phases:with_norm",)


@pytest.fixture(scope="module")
def data(tmp_path_factory):
    path = tmp_path_factory.mktemp("data")
    write_dataset(path, (26, 18), (6, 6, 3))
    return path


def train(data, folder, *more, phases=PHASES):
    run.main([f"--data_dir={data}", f"--model_dir={folder}", *MODEL, *FLAGS, f"--phases={phases}", *more])


@pytest.fixture(scope="module")
def whole(data, tmp_path_factory):
    """A run that was never stopped, with a checkpoint of each step."""
    folder = tmp_path_factory.mktemp("whole") / "run"
    train(data, folder, "--checkpoint_every=1", "--max_to_keep=20", "--summary_every=1")
    return folder


def upto(whole, folder, step):
    """Copies a run as it was when it had saved a step."""
    shutil.copytree(whole, folder)
    forget(folder, *(saved for saved in saved_steps(folder) if saved > step))
    return folder


def test_what_is_frozen_stays_to_the_bit(whole):
    tensors = [checkpoint_bytes(whole, step) for step in range(1, STEPS + 1)]
    names = [name for name in tensors[0] if name.startswith(("model/", "averages/", "optimizer/_variables/"))]
    reader = tf.train.load_checkpoint(str(whole / "ckpt-1"))
    sizes = {name: np.prod(reader.get_tensor(name).shape, initial=1) for name in names}
    of_stem = {name for name in names if sizes[name] == 4 * 27}  # weights, average, slots
    assert len(of_stem) >= 4
    others = {name for name in names if sizes[name] == 4}  # a bias, and all of the norm
    changed = [{name for name in names if one[name] != other[name]} for one, other in itertools.pairwise(tensors)]
    for step, found in enumerate(changed, 1):  # by the update of this step
        assert found.isdisjoint(of_stem) == (step < 6 or step >= 9), step
        assert found.isdisjoint(others) == (step < 6), step


@pytest.mark.slow
def test_lines_and_scalars_say_the_phase(data, whole, tmp_path, capsys):
    found = scalars(whole / "logs")
    assert [found["train/phase", step] for step in range(1, STEPS + 1)] == [1.0] * 6 + [2.0] * 3 + [3.0] * 3
    rates = [found["train/learning_rate", step] for step in (1, 6, 7, 8, 12)]
    falling = [0.002 * (1 + np.cos(np.pi * at / 6)) / 2 for at in (0, 1, 5)]
    np.testing.assert_allclose(rates, [0.01, 0.0099, *falling], rtol=1e-5)
    replay.main([f"--model_dir={whole}", "--step=7", "--context=0"])
    second = "phase 2 of 3, from step 6: freeze=none, learning_rate=0.002, schedule=cosine"
    assert f"\n{second}\n" in capsys.readouterr().out
    inspect.main([f"--model_dir={whole}", "--step=10"])
    third = "phase 3 of 3, from 9: freeze=st*, learning_rate=0.002, schedule=cosine"
    assert f"\n{third}\n" in capsys.readouterr().out
    inspect.main([f"--model_dir={whole}", "--step=10", "--json"])
    assert json.loads(capsys.readouterr().out)["phase"] == third
    audit.main([f"--model_dir={whole}"])
    assert "44" in capsys.readouterr().out


@pytest.mark.parametrize("step", [6, *(pytest.param(step, marks=pytest.mark.slow) for step in (1, 5, 7, 9, 11))])
def test_a_run_that_is_resumed_ends_with_the_same_bits(step, data, whole, tmp_path, capsys):
    folder = upto(whole, tmp_path / "run", step)
    train(data, folder, "--steps_per_loop=4")
    lines = capsys.readouterr().out
    assert checkpoint_bytes(folder, STEPS) == checkpoint_bytes(whole, STEPS)
    assert ("phase 2 of 3, from step 6: freeze=none" in lines) == (step < 9)
    third = "phase 3 of 3, from step 9: freeze=st*, learning_rate=0.002, schedule=cosine"
    assert f"\n{third}; 203 of 315 weights are trained\n" in lines


@pytest.mark.slow
def test_steps_are_made_again_across_phases(whole, tmp_path, capsys):
    folder = shutil.copytree(whole, tmp_path / "run")
    forget(folder, *range(6, 10))
    replay.main([f"--model_dir={folder}", "--verify=5:10"])
    assert "ckpt-10: 5 steps after ckpt-5, all bits of" in capsys.readouterr().out


def test_steps_that_are_skipped_are_no_updates(data, tmp_path):
    flags = {"data_dir": data, "model_dir": tmp_path, "global_batch_size": 12, "train_steps": 12, "phases": PHASES}
    plan = plans.make(TrainConfig.of(**flags, skip_steps="7:8"))
    assert plan.phases.updates_of([1]) == ((6, 7), (8, 9))


AHEAD = "0: freeze=base, learning_rate=0.01; 6: freeze=none, learning_rate=0.002, schedule=cosine; 10: freeze=base"


def test_a_phase_ahead_may_change_and_is_announced(data, whole, tmp_path, capsys):
    folder = upto(whole, tmp_path / "run", 8)
    train(data, folder, phases=AHEAD)
    assert (
        "changed since ckpt-8: phases were step 0: freeze=base, learning_rate=0.01; step 6: freeze=none, "
        "learning_rate=0.002, schedule=cosine; step 9: freeze=st*, learning_rate=0.002, schedule=cosine, are "
    ) in capsys.readouterr().out
    replay.main([f"--model_dir={folder}", "--verify=5:12"])  # by the phases of the run as it went on
    assert "ckpt-12: 7 steps after ckpt-5, all bits of" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("phases", "said"),
    [
        (
            AHEAD.replace("none", "head"),
            "the phase that begins at step 6 was 'step 6: freeze=none, .*', is 'step 6: freeze=head, .* from step 8 on",
        ),
        ("0: freeze=base, learning_rate=0.01", "the phase that begins at step 6 was 'step 6: .*', is none"),
        ("", "the phase that begins at step 0 was 'step 0: freeze=base, learning_rate=0.01', is 'step 0: freeze=none'"),
    ],
)
def test_a_phase_that_has_begun_stays(phases, said, data, whole, tmp_path):
    folder = upto(whole, tmp_path / "run", 8)
    with pytest.raises(UsageError, match=rf"^--phases: .*ckpt-8: {said}"):
        train(data, folder, phases=phases)


@pytest.mark.parametrize(
    ("phases", "said"),
    [
        ("0: freeze=base; 3 epochs: freeze=none", "'3 epochs' begins at step 12, but training ends at step 12"),
        ("0: freeze=base; 6: freeze=none; 1.5 epochs: schedule=cosine", r"its first steps are \[0, 6, 6\]; they must"),
        ("0: freeze=base; 8: freeze=none; 1.5 epochs: schedule=cosine", r"its first steps are \[0, 8, 6\]; they must"),
        ("2: freeze=base", r"its first steps are \[2\]; they must begin with 0, increase"),
        ("0: freez=base", "'0': key: unknown 'freez'; did you mean 'freeze'"),
        ("0: rate=32", "'0': key: unknown 'rate'; .*known: augment, freeze, learning_rate, resize, schedule"),
        ("0: freeze=base, freeze=none", "'0': freeze must have one value, such as freeze=base"),
        ("0: freeze=", "'0': freeze must have one value, such as freeze=base"),
        ("0: freeze=base; soon: freeze=none", "'soon' must be a step or an epoch, such as 5000, or '10 epochs'"),
        ("0: freeze=base; 2.5: freeze=none", "'2.5' must be a step or an epoch"),
        ("freeze=base", "'freeze=base': sets nothing; write a step and its settings"),
        ("0: learning_rate=0", "'0': learning_rate=0: must be a number above 0"),
        ("0: learning_rate=nan", "'0': learning_rate=nan: must be a number above 0"),
        ("0: learning_rate=fast", "'0': learning_rate=fast: must be a number above 0"),
        ("0: schedule=cosin", "schedule: unknown 'cosin'; did you mean 'cosine'"),
        ("0: schedule=piecewise", "schedule=piecewise: needs --schedule=piecewise, and --decay_at"),
        ("0: freeze=steam", "'step 0: freeze=steam': layer: unknown 'steam'; did you mean 'stem'"),
        ("0: freeze=stem+norm+head", "'step 0: freeze=stem.norm.head': leaves nothing to train; freeze fewer layers"),
    ],
)
def test_phases_that_cannot_work_are_one_line(phases, said, data, tmp_path):
    with pytest.raises(UsageError, match=rf"^--phases: {said}") as caught:
        train(data, tmp_path / "run", phases=phases)
    assert "\n" not in str(caught.value)
    assert caught.value.exit_code == 2


@pytest.mark.parametrize(
    ("flags", "said"),
    [
        (("--optimizer=nadam",), "--optimizer=nadam with --phases: nadam has one state for all weights"),
        (("--optimizer=adam(use_ema=True)",), "use_ema has one state for all weights"),
        (("--optimizer=adam(gradient_accumulation_steps=2)",), "accumulation_steps has one state for all weights"),
        (("--strategy=parameter_server", "--ps_hosts=a:1", "--worker_hosts=b:1"), "gradients of all weights; use"),
        (("--model=tests.integration.test_phases:compiled",), "--phases=.* is compiled with an optimizer of its own"),
    ],
)
def test_what_has_no_phases_says_so(flags, said, data, tmp_path):
    with pytest.raises(UsageError, match=said):
        run.main([f"--data_dir={data}", f"--model_dir={tmp_path}/run", *MODEL, *flags, f"--phases={PHASES}"])


def compiled():
    model = without_norm()
    model.compile("adam", keras.losses.SparseCategoricalCrossentropy(from_logits=True))
    return model


VIRTUAL = (*MODEL, *FLAGS, f"--phases={PHASES}", "--virtual_replicas=2")


@pytest.fixture(scope="module")
def on_any_devices(data, tmp_path_factory):
    """A run that has the same bits on one device and on two."""
    folder = tmp_path_factory.mktemp("virtual") / "run"
    succeed(start(data, folder, *VIRTUAL, "--checkpoint_every=1", "--max_to_keep=20"))
    return folder


def killed_on_any_devices(data, folder, flags, steps, draw):
    """Runs to the end, killed around each of these steps, on one device or on two as it comes."""
    flags = (*flags, "--checkpoint_every=1", "--log_every=1", "--steps_per_loop=1")
    for step in sorted(steps):
        on = ("--strategy=mirrored", "--num_replicas=2") if draw.random() < 0.5 else ()
        process = start(data, folder, *flags, *on)
        wait_for_step(process, step)
        time.sleep(draw.uniform(0, 0.1))
        kill(process)
    succeed(start(data, folder, *flags))


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(4))
def test_killed_at_random_moments(seed, data, on_any_devices, tmp_path):
    draw = random.Random(seed)
    killed_on_any_devices(data, tmp_path, VIRTUAL, draw.sample(range(1, STEPS), 3), draw)
    assert checkpoint_bytes(tmp_path, STEPS) == checkpoint_bytes(on_any_devices, STEPS)


@pytest.mark.slow
@pytest.mark.parametrize("step", [4, 6, 8])
def test_two_processes_end_with_the_same_bits(step, data, on_any_devices, tmp_path):
    folder = upto(on_any_devices, tmp_path / "two", step)
    succeed(*start_workers(data, [folder] * 2, *VIRTUAL))
    assert checkpoint_bytes(folder, STEPS) == checkpoint_bytes(on_any_devices, STEPS)


@pytest.mark.slow
def test_central_storage_trains_as_one_device_does(data, tmp_path):
    flags = [f"--data_dir={data}", *FLAGS, "--model=tests.integration.test_phases:without_norm"]
    found = []
    for replicas, strategy in ((1, "one_device"), (2, "central_storage")):
        folder = tmp_path / strategy
        where = (f"--strategy={strategy}", f"--num_replicas={replicas}")
        run.main([*flags, f"--model_dir={folder}", *where, f"--phases={PHASES}"])
        reader = tf.train.load_checkpoint(str(folder / f"ckpt-{STEPS}"))
        names = [name for name in reader.get_variable_to_shape_map() if name.startswith("model/")]
        found.append({name: reader.get_tensor(name) for name in names})
    assert found[0].keys() == found[1].keys()
    for name, one in found[0].items():
        np.testing.assert_allclose(one, found[1][name], atol=1e-5)
