"""`--virtual_replicas`: the same checkpoint to the bit on any topology, and over a run that changes its own."""

import random
import re
import shutil
import time

import numpy as np
import pytest

from tests.helpers import forked
from tests.helpers.datasets import Kind, flip, write_dataset
from tests.helpers.parameter_servers import Job, ledger_of
from tests.helpers.runs import ON_ONE_CORE, checkpoint_bytes, finish, kill, start, start_workers, wait_for_step

LONGEST = 1200  # seconds: twelve replicas of a ResNet on a busy machine
STEPS = 8  # of 3 per epoch, whose last has 6 rows of padding
FLAGS = ("--global_batch_size=24", "--virtual_replicas=12", "--steps_per_loop=2", "--log_every=2")
SMALL = (*FLAGS, "--model=lenet", "--augment=shift(pixels=1)")
DEEP = (*FLAGS, "--model=resnet20", "--dropout=0.3", "--augment=pad_crop_flip(pad=2)")
TUTORIAL = (*FLAGS, "--model=cifar10_cnn", "--augment=cifar10_tutorial(crop=12)")


@pytest.fixture(scope="module")
def data(tmp_path_factory):
    path = tmp_path_factory.mktemp("data")
    write_dataset(path, (40, 26), (16, 16, 3), test_counts=(20,))
    return path


@pytest.fixture(scope="module")
def damaged(data, tmp_path_factory):
    """The same data with a flipped bit in a record of each shard."""
    copy = shutil.copytree(data, tmp_path_factory.mktemp("damaged") / "data")
    for path, share in zip(sorted(copy.glob("train-*.tfrecord")), (0.4, 0.7), strict=True):
        flip(path, int(path.stat().st_size * share))
    return copy


def start_on(data, model_dir, topology, *flags):
    """Starts `w2` (two workers), `m3` (three replicas of one process), `one`, or `c1` (one that may use one core)."""
    kind, count = topology.rstrip("0123456789"), int(topology.lstrip("owmnec") or 1)
    if kind == "w":
        return start_workers(data, [model_dir] * count, *flags)
    if kind == "m":
        return [start(data, model_dir, "--strategy=mirrored", f"--num_replicas={count}", *flags)]
    if kind == "c":
        return [forked.Process(["-c", ON_ONE_CORE, f"--data_dir={data}", f"--model_dir={model_dir}", *flags])]
    return [start(data, model_dir, *flags)]


def train(data, model_dir, topology, *flags):
    """Trains to the end and returns the chief's output."""
    ends = finish(*start_on(data, model_dir, topology, *flags), timeout=LONGEST)
    assert {code for code, _, _ in ends} == {0}, ends
    return ends[0][1]


def results(output):
    """Returns the lines of losses and accuracies, without the rates."""
    return [line.split(" (")[0] for line in output.splitlines() if "loss =" in line or "accuracy =" in line]


def check(data, folder, flags, topologies):
    outputs = {t: train(data, folder / t, t, *flags, f"--train_steps={STEPS}") for t in topologies}
    first, *others = topologies
    expected = checkpoint_bytes(folder / first, STEPS)
    assert len(expected) > 8
    for topology in others:
        assert checkpoint_bytes(folder / topology, STEPS) == expected, topology
        assert results(outputs[topology]) == results(outputs[first])


@pytest.fixture(scope="module")
def undamaged(data, tmp_path_factory):
    """What one device comes to."""
    folder = tmp_path_factory.mktemp("undamaged")
    output = train(data, folder, "one", *SMALL, f"--train_steps={STEPS}")
    return checkpoint_bytes(folder, STEPS), results(output)


def test_the_checkpoint_is_the_same_on_three_replicas_and_goes_on_with_no_other_number(data, undamaged, tmp_path):
    expected, said = undamaged
    assert len(expected) > 8
    output = train(data, tmp_path / "m3", "m3", *SMALL, f"--train_steps={STEPS}")
    assert checkpoint_bytes(tmp_path / "m3", STEPS) == expected
    assert results(output) == said
    [(code, _, error)] = finish(start(data, tmp_path / "m3", *SMALL, "--virtual_replicas=6", "--train_steps=20"))
    assert code == 2
    assert "has --virtual_replicas 12, this run has 6; use the old one" in error
    [(code, _, error)] = finish(start(data, tmp_path / "m3", *SMALL, "--cpu_threads=4", "--train_steps=20"))
    assert code == 2
    assert "has --cpu_threads 8, this run has 4; use the old one" in error


@pytest.mark.slow
def test_the_checkpoint_is_the_same_when_the_run_changes_its_topology(data, undamaged, tmp_path):
    expected, _ = undamaged
    for step, topology in ((2, "w2"), (5, "m4"), (STEPS, "one")):
        train(data, tmp_path, topology, *SMALL, f"--train_steps={step}")
    assert checkpoint_bytes(tmp_path, STEPS) == expected


@pytest.mark.gpu
def test_a_gpu_repeats_its_bits_after_a_kill_too(data, tmp_path):
    steps = 20 * STEPS
    flags = (*TUTORIAL, "--checkpoint_every=9", f"--train_steps={steps}")
    train(data, tmp_path / "one", "one", *flags)
    expected = checkpoint_bytes(tmp_path / "one", steps)
    train(data, tmp_path / "mirrored", "m1", *flags)
    assert checkpoint_bytes(tmp_path / "mirrored", steps) == expected
    killed = start(data, tmp_path / "killed", *flags)
    wait_for_step(killed, steps // 4)
    kill(killed)
    assert not (tmp_path / "killed" / f"ckpt-{steps}.index").exists()
    train(data, tmp_path / "killed", "one", *flags)
    assert checkpoint_bytes(tmp_path / "killed", steps) == expected


@pytest.mark.slow
def test_steps_that_augment_keep_the_bits(data, tmp_path):
    flags = (*FLAGS, "--model=lenet", "--augment=pad_crop_flip(pad=2) | mixup", "--train_steps=4")
    on_device = (*flags, "--augment_on=device", "--image_every=2")
    train(data, tmp_path / "one", "one", *on_device, f"--log_keys={tmp_path / 'keys'}")
    expected = checkpoint_bytes(tmp_path / "one", 4)
    train(data, tmp_path / "two", "m2", *on_device)
    assert checkpoint_bytes(tmp_path / "two", 4) == expected
    train(data, tmp_path / "host", "one", *flags)
    host = checkpoint_bytes(tmp_path / "host", 4)
    names = [name for name in expected if "_trainable_variables" in name]
    assert len(names) == 10
    for name in names:
        weights = np.frombuffer(host[name], np.float32), np.frombuffer(expected[name], np.float32)
        np.testing.assert_allclose(*weights, rtol=0, atol=1e-4, err_msg=name)


@pytest.mark.slow
def test_skipped_records_keep_the_bits(damaged, undamaged, tmp_path):
    check(damaged, tmp_path, (*SMALL, "--on_corrupt=skip"), ("c1", "w2"))
    assert checkpoint_bytes(tmp_path / "c1", STEPS) != undamaged[0]


@pytest.mark.slow
@pytest.mark.timeout(1800)
def test_a_run_killed_ten_times_on_changing_topologies_ends_with_the_bits_of_an_undisturbed_one(data, tmp_path):
    steps, draw = 90, random.Random(12)
    flags = (*DEEP, f"--train_steps={steps}", "--checkpoint_every=3", "--collective_timeout=30")
    train(data, tmp_path / "undisturbed", "one", *flags)
    folder, topologies = tmp_path / "killed", ["one", "m2", "m4", "w2", "w3"] * 2
    draw.shuffle(topologies)
    for number, topology in enumerate(topologies, 1):
        processes = start_on(data, folder, topology, *flags)
        wait_for_step(processes[0], draw.randrange(number * 4, number * 8))
        time.sleep(draw.uniform(0, 0.5))
        victim = draw.choice(processes)
        victim.kill()
        codes = [code for code, _, _ in finish(*processes)]
        assert victim.returncode == -9
        assert set(codes) <= {-9, 75}, (topology, codes)
    output = train(data, folder, "w2", *flags)
    assert "resumed from" in output
    assert checkpoint_bytes(folder, steps) == checkpoint_bytes(tmp_path / "undisturbed", steps)


@pytest.mark.slow
@pytest.mark.timeout(1800)
@pytest.mark.parametrize("optimizer", ["momentum", "adam"])
@pytest.mark.parametrize("model", [DEEP, TUTORIAL], ids=["resnet20", "cifar10_cnn"])
def test_every_model_is_the_same_on_every_topology(damaged, tmp_path, model, optimizer):
    """Over the padded end of an epoch, and over records that are skipped."""
    topologies = ("one", "c1", "m2", "m3", "m4", "m6", "m12", "w1", "w2", "w3", "w4")
    check(damaged, tmp_path, (*model, f"--optimizer={optimizer}", "--on_corrupt=skip"), topologies)


@pytest.mark.slow
@pytest.mark.timeout(1800)
@pytest.mark.parametrize("model", ["softmax_regression", "mnist_cnn", "fast_cifar", "resnet18"])
def test_the_other_models_are_too_with_their_recipes(data, tmp_path, model):
    recipe = ("--ema=0.99", "--label_smoothing=0.1", "--schedule=cosine", "--warmup_epochs=1", "--clip_norm=1")
    check(data, tmp_path, (*FLAGS, f"--model={model}", *recipe), ("one", "c1", "m3", "w2"))


@pytest.mark.slow
def test_a_clipped_gradient_is_scaled_before_the_learning_rate_that_changes_is_known(data, tmp_path):
    """Grappler multiplied both scales first where it knew the shapes of the gradients: not on two workers."""
    flags = (*FLAGS, "--model=softmax_regression", "--ema=0.9", "--clip_norm=1", "--schedule=cosine")
    check(data, tmp_path, flags, ("one", "w2"))


@pytest.mark.slow
@pytest.mark.timeout(3600)
def test_resnet50_trains_on_photographs_with_every_strategy(tmp_path):
    """With its own recipe, in bfloat16; the strategies with virtual replicas give the same bits."""
    photographs = tmp_path / "photographs"
    write_dataset(photographs, (8, 5), (256, 320, 3), (2,), classes=2, kind=Kind("jpeg", varied=True))
    flags = ("--model=resnet50", "--precision=bfloat16", "--global_batch_size=4", "--log_every=1", "--steps_per_loop=1")
    same = {}
    for topology in ("one", "m2", "w2"):
        output = train(photographs, tmp_path / topology, topology, *flags, "--virtual_replicas=4", "--train_steps=5")
        same[topology] = checkpoint_bytes(tmp_path / topology, 5), results(output)
        assert "resnet50 with 23,565,250 parameters; nesterov 0.1 cosine, warm-up 5 epochs" in output
    assert same["m2"] == same["one"]
    assert same["w2"] == same["one"]
    assert len(same["one"][1]) == 6
    central = (*flags, "--strategy=central_storage", "--train_steps=2", "--eval_split=none")
    [(code, _, error)] = finish(start(photographs, tmp_path / "central", *central, "--num_replicas=2"), timeout=LONGEST)
    assert (code, "as BatchNorm has" in error) == (2, True)  # TensorFlow cannot average its moments there
    [(code, output, error)] = finish(start(photographs, tmp_path / "central", *central), timeout=LONGEST)
    assert (code, len(results(output))) == (0, 2), error
    job = Job(2, 1, photographs, tmp_path / "servers", *flags, "--train_steps=2", "--eval_split=none")
    assert ledger_of(job.succeed(LONGEST)["chief 0"]) == (2, 2, 0, 0)


@pytest.mark.parametrize(
    ("flags", "message"),
    [
        ("--virtual_replicas=5", "virtual_replicas=5: must divide .*=24 .* 4 and 6"),
        ("--virtual_replicas=4 --strategy=mirrored --num_replicas=3", "number of replicas, 3; .* 3 and 6"),
        ("--virtual_replicas=4 --strategy=central_storage", "with --strategy=central_storage: is not supported"),
        ("--virtual_replicas=12 --strategy=mirrored --num_replicas=5", "replicas=12: .* 5, .*=24; .* 4 and 6"),
        ("--virtual_replicas", "--virtual_replicas: expected a value"),
        ("--virtual_replicas=0", "--virtual_replicas=0: must be 1 or more"),
    ],
)
def test_what_cannot_work_is_said_at_once(data, tmp_path, flags, message, command):
    places = (f"--data_dir={data}", f"--model_dir={tmp_path}/run", "--model=mlp", "--global_batch_size=24")
    code, _, err = command("trainer.run", *places, *flags.split())
    assert (code, err.count("\n")) == (2, 1)
    assert re.search(message, err)
