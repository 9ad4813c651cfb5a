"""`trainer.run` on real digits: what it prints, writes and refuses; in this process where that is enough."""

import importlib.util
import json
import os
import re
import shutil

import pytest
import tensorflow as tf

from pipeline.errors import DataError, PipelineError, UsageError
from tests.helpers import forked, launches
from tests.helpers.runs import checkpoint_bytes, forget, saved_steps, scalars
from trainer import evaluate, run, training
from trainer.checkpoint import reader
from trainer.evaluation import command

LOG_LINE = re.compile(r"step (\d+), loss = \d+\.\d\d \(\d+\.\d examples/sec; \d+\.\d{3} sec/batch\)")


@pytest.fixture
def train(digits, tmp_path, capsys):
    """Returns a function that runs the command on the digits and returns its lines."""

    def train(*flags):
        small = () if any(flag.startswith("--model=") for flag in flags) else ("--model=softmax_regression",)
        run.main([f"--data_dir={digits}", f"--model_dir={tmp_path}", *small, *flags])
        return capsys.readouterr().out.splitlines()

    return train


def test_the_time_of_each_line_without_evaluations(train):
    lines = train("--train_steps=2", "--log_every=1", "--log_time", "--eval_split=none")
    assert len(lines) == 5
    assert all(launches.TIME.match(line) for line in lines), lines
    assert LOG_LINE.fullmatch(launches.TIME.sub("", lines[2]))[1] == "1"


def files(folder):
    return {path.name: path.stat().st_mtime_ns for path in folder.iterdir()}


def test_two_replicas_learn_the_digits(train, tmp_path):
    lines = train(
        "--model=mlp",
        "--strategy=mirrored",
        "--num_replicas=2",
        "--train_steps=120",
        "--log_every=50",
        "--eval_every=60",
    )
    assert lines[0] == (
        "mirrored: 2 replicas, here CPU:0, CPU:1; mlp with 397,510 parameters; momentum 0.05 exponential, "
        "average of the weights 0.99; no augmentation; step 0 to 120 of 100 examples, 15 per epoch; a new run"
    )
    assert [int(LOG_LINE.fullmatch(line)[1]) for line in lines if "examples/sec" in line] == [50, 100]
    evaluated = r"test accuracy = (0\.\d{4}), loss = \d\.\d{4} \((\d+) examples; averaged weights\)"
    assert [line for line in lines if line.startswith("epoch ")] == []  # the run is given in steps
    assert len([line for line in lines if re.fullmatch(f"step 60, {evaluated}", line)]) == 1
    accuracy, examples = re.fullmatch(evaluated, lines[-2]).groups()
    assert float(accuracy) >= 0.93
    assert int(examples) == 368
    how = "" if importlib.util.find_spec("tensorboard") else " (pip install tensorboard)"
    assert lines[-1] == f"checkpoint: {tmp_path}/ckpt-120; logs: tensorboard --logdir={tmp_path}/logs{how}"
    assert list((tmp_path / "logs").glob("events.*"))


@pytest.mark.slow
def test_the_means_of_an_epoch_survive_a_resume(digits, tmp_path, capsys):
    """An epoch has 15 steps, the last of 29 rows; a checkpoint of an earlier version lacks the sums."""

    def train(name, last):
        run.main(
            [
                *(f"--data_dir={digits}", f"--model_dir={tmp_path}/{name}", f"--train_steps={last}"),
                "--model=softmax_regression",
                *(f"--metrics_jsonl={tmp_path}/{name}.jsonl", "--summary_every=1", "--eval_split=none"),
            ]
        )
        return capsys.readouterr().out

    def metrics(name):
        lines = (tmp_path / f"{name}.jsonl").read_text().splitlines()
        found = {line["step"]: line for line in map(json.loads, lines)}
        return {step: {tag: v for tag, v in line.items() if "epoch_" in tag} for step, line in found.items()}, found

    train("undisturbed", 18)
    train("resumed", 8)
    assert "note: the checkpoint has no" not in train("resumed", 18)
    means, found = metrics("undisturbed")
    assert metrics("resumed")[0] == means
    assert set(means[18]) == {f"train/epoch_{name}" for name in ("total_loss", "loss", "regularization", "accuracy")}
    rows = [100] * 14 + [29]
    expected = sum(n * found[step]["train/accuracy"] for step, n in enumerate(rows, 1)) / sum(rows)
    assert means[15]["train/epoch_accuracy"] == pytest.approx(expected, rel=1e-6)
    assert means[16]["train/epoch_accuracy"] == pytest.approx(found[16]["train/accuracy"])


def test_what_is_trained_already_is_evaluated(train, tmp_path):
    first = train("--epochs=2")
    assert "step 0 to 30 of 100 examples, 15 per epoch" in first[0]  # the last of which is padded
    again = train("--epochs=2")
    assert again[0].endswith(f"; already at step 30 of 30; resumed from {tmp_path}/ckpt-30")
    assert again[1:] == first[-2:]
    assert "; already at step 30 of 5; " in train("--train_steps=5")[0]


def test_slices_of_splits(train):
    lines = train("--train_steps=2", "--train_split=train[:1000]", "--eval_split=train[1000:]")
    assert "10 per epoch" in lines[0]
    assert lines[-2].endswith("(429 examples)")
    assert lines[-2].startswith("train[1000:] accuracy")


@pytest.mark.parametrize(
    ("model", "flags", "weights"),
    [
        ("lenet", ["--optimizer=adam", "--learning_rate=0.001", "--augment=shift(pixels=2)"], ""),
        ("cifar10_cnn", ["--augment=none", "--global_batch_size=32"], "; averaged weights"),
        ("mlp", ["--strategy=central_storage", "--num_replicas=2", "--remainder=drop", "--ema=0"], ""),
    ],
)
@pytest.mark.quick(1)
def test_models_optimizers_and_strategies(model, flags, weights, train):
    lines = train(f"--model={model}", "--train_steps=3", "--log_every=3", *flags)
    assert LOG_LINE.fullmatch(lines[2])
    assert lines[-2].endswith(f"(368 examples{weights})")


def test_a_loss_that_is_not_finite_leaves_the_last_good_checkpoint(train, tmp_path):
    train("--model=mlp", "--train_steps=10", "--eval_split=none")
    before = {name: time_ for name, time_ in files(tmp_path).items() if name.startswith("ckpt")}
    with pytest.raises(
        DataError, match=r"^step 1\d: loss is \S+.*; rerun with a lower --learning_rate .*/ckpt-10$"
    ) as caught:
        train("--model=mlp", "--train_steps=200", "--learning_rate=1e18", "--checkpoint_every=100")
    assert caught.value.exit_code == 1
    assert {name: time_ for name, time_ in files(tmp_path).items() if name.startswith("ckpt")} == before


def test_another_order_is_refused_and_can_be_allowed(train):
    train("--train_steps=3")
    with pytest.raises(UsageError, match=r"seed was 0, is 1"):
        train("--train_steps=6", "--seed=1")
    with pytest.raises(UsageError, match=r"global_batch_size was 100, is 50"):
        train("--train_steps=6", "--global_batch_size=50")
    lines = train("--train_steps=6", "--seed=1", "--allow_order_change")
    assert "step 3 to 6" in lines[0]
    assert lines[1] == "changed since ckpt-3: seed was 0, is 1"


def test_what_a_resume_trains_with_differently_is_one_line(train):
    train("--train_steps=3", "--eval_split=none")
    changed = ("--learning_rate=0.01", "--augment=shift(pixels=2)", "--strategy=mirrored", "--num_replicas=2")
    lines = train("--train_steps=4", *changed)
    assert lines[1] == "changed since ckpt-3: --augment was none, is shift(pixels=2); --learning_rate was 0.5, is 0.01"
    assert not any("changed" in line for line in train("--train_steps=5", *changed[:2]))


@pytest.mark.slow
def test_besides_the_newest_checkpoints_older_ones_are_kept(train, tmp_path):
    train("--train_steps=50", "--checkpoint_every=1", "--max_to_keep=2", "--eval_split=none")
    assert saved_steps(tmp_path) == [31, 46, 49, 50]  # 15 steps are an epoch


def test_scalars_have_their_own_steps_and_each_split_its_tags(train, tmp_path):
    logs = tmp_path / "logs"
    train("--train_steps=20", "--log_every=0", "--summary_every=8", "--eval_every=10")
    assert {step for tag, step in scalars(logs) if tag.startswith("train/")} == {8, 16}
    train("--train_steps=20", "--eval_split=train[:100]")
    evaluated = {(tag, step) for tag, step in scalars(logs) if tag.startswith("eval/")}
    tests = {(f"eval/test/{what}", step) for what in ("accuracy", "loss") for step in (10, 20)}
    assert evaluated == tests | {("eval/train[:100]/accuracy", 20), ("eval/train[:100]/loss", 20)}


def test_what_happens_every_so_many_epochs(train, tmp_path):
    """15 steps are an epoch: half of one ends after step 8, 23, ..."""
    flags = ("--train_steps=50", "--max_to_keep=9", "--summary_every=0.5 epochs", "--checkpoint_every=2 epochs")
    lines = train(*flags, "--log_every=1 epoch", "--eval_every=1.5 epochs", "--steps_per_loop=4")
    assert [int(LOG_LINE.fullmatch(line)[1]) for line in lines if "examples/sec" in line] == [15, 30, 45]
    assert saved_steps(tmp_path) == [30, 50]
    found = scalars(tmp_path / "logs")
    assert [step for tag, step in found if tag == "train/loss"] == [8, 15, 23, 30, 38, 45]
    assert [step for tag, step in found if tag == "eval/test/loss"] == [23, 45, 50]


def test_a_line_per_epoch_is_that_of_an_undisturbed_run_after_a_resume_in_its_middle(digits, tmp_path, capsys):
    """An epoch has 15 steps; the second is evaluated, and the last."""

    def epochs(folder, *flags):
        places = (f"--data_dir={digits}", f"--model_dir={tmp_path / folder}", "--model=softmax_regression")
        run.main([*places, "--eval_every=2 epochs", "--steps_per_loop=8", "--log_every=0", *flags])
        out = capsys.readouterr().out
        return [line for line in out.splitlines() if line.startswith("epoch ")]

    lines = epochs("whole", "--epochs=3", f"--metrics_jsonl={tmp_path}/m.jsonl", "--summary_every=1 epoch")
    values = {}
    for line in (tmp_path / "m.jsonl").read_text().splitlines():
        values.setdefault(json.loads(line)["step"], {}).update(json.loads(line))
    for number, line in enumerate(lines, 1):
        of = values[15 * number]
        loss, accuracy = of["train/epoch_total_loss"], of["train/epoch_accuracy"]
        expected = f"epoch {number} of 3, step {15 * number}: loss = {loss:.4f}, accuracy = {accuracy:.4f}"
        if number > 1:
            expected += f"; test loss = {of['eval/test/loss']:.4f}, accuracy = {of['eval/test/accuracy']:.4f}"
        assert line == expected
    assert epochs("resumed", "--train_steps=20", "--log_epochs") == [lines[0].replace("of 3", "of 1.33")]
    assert epochs("resumed", "--epochs=3") == lines[1:]
    assert epochs("silent", "--epochs=1", "--nolog_epochs") == []


def test_scalars_may_be_left_out_and_checkpoints_but_for_the_last(train, tmp_path):
    lines = train("--train_steps=20", "--summary_every=0", "--eval_every=10", "--checkpoint_every=0")
    assert lines[-1] == f"checkpoint: {tmp_path}/ckpt-20"
    assert not (tmp_path / "logs").exists()
    assert saved_steps(tmp_path) == [20]


def test_after_a_kill_and_a_resume_every_scalar_is_there_once(train, tmp_path):
    flags = ("--checkpoint_every=25", "--eval_split=none")
    train("--train_steps=60", "--summary_every=10", *flags)
    forget(tmp_path, 60)
    train("--train_steps=75", "--summary_every=35", *flags)
    assert [step for tag, step in scalars(tmp_path / "logs") if tag == "train/loss"] == [10, 20, 30, 40, 50, 70]


@pytest.mark.slow
def test_by_the_clock_scalars_are_written_and_checkpoints_saved(train, tmp_path):
    flags = ("--train_steps=20", "--steps_per_loop=1", "--eval_split=none", "--max_to_keep=20", "--log_every=0")
    train(*flags, "--summary_every=0", "--summary_secs=0.0001", "--checkpoint_every=0", "--checkpoint_secs=0.0001")
    steps = {step for tag, step in scalars(tmp_path / "logs") if tag == "train/loss"}
    saved = set(saved_steps(tmp_path))
    assert len(steps) >= 7  # after every second loop: what is due by the clock is agreed after one
    assert len(saved) >= 7
    shorter = ("--summary_every=0.0001s", "--checkpoint_every=0.0001s", "--eval_every=0.0001s", "--eval_split=test")
    lines = train(*flags[1:], "--train_steps=40", *shorter)
    steps = {step for tag, step in scalars(tmp_path / "logs") if step > 20 and tag == "train/loss"}
    saved = set(saved_steps(tmp_path)) - saved
    evaluated = [line for line in lines if re.match(r"step \d+, test ", line)]
    assert min(len(steps), len(saved), len(evaluated)) >= 7


@pytest.mark.parametrize(("prefetch", "place"), [(0, "host"), (3, "device"), (2, "both")])
def test_what_the_replicas_are_fed(prefetch, place, train, monkeypatch):
    fed, distribute = [], training.distribute_request

    def distributed(strategy, request, ahead, *others, **options):
        batches = distribute(strategy, request, ahead, *others, **options)
        fed.append((ahead, tf.uint8 in [part.dtype for part in tf.nest.flatten(batches.element_spec)]))
        return batches

    monkeypatch.setattr(
        training, "distribute_request", distributed
    )  # test_strategies.py sees what is ahead of the steps
    train("--train_steps=2", "--eval_split=none", "--augment=shift", f"--prefetch={prefetch}", f"--augment_on={place}")
    assert fed == [(prefetch, place != "host")]  # pixels as uint8, for the steps to augment


@pytest.mark.slow
def test_on_gpus_the_steps_make_floats_unless_a_flag_says_otherwise(train, monkeypatch, tmp_path):
    """Only whether there is a GPU is feigned; the bits of the weights do not depend on where floats are made."""
    flags, weights = ("--eval_split=none", "--augment=flip | shift"), []
    for has_gpu, flag, place in ((True, (), "both"), (True, ("--augment_on=host",), "host"), (False, (), "host")):
        monkeypatch.setattr(training, "replicas_are_on_cpus", lambda strategy, has_gpu=has_gpu: not has_gpu)
        folder = tmp_path / f"{has_gpu}{len(flag)}"
        train(*flags, *flag, f"--model_dir={folder}", "--train_steps=2")
        assert reader.read(folder / "ckpt-2").config().data.augment_on == place
        weights.append(checkpoint_bytes(folder, 2))
    assert weights[0] == weights[1] == weights[2]
    lines = train(*flags, f"--model_dir={tmp_path / 'True0'}", "--train_steps=3")
    assert "changed since ckpt-2: --augment_on was both, is host" in lines
    assert "--augment_on" not in str(train(*flags, f"--model_dir={tmp_path / 'False0'}", "--train_steps=3"))


IN_GROUPS = """
import os, sys
from pipeline import distribution
from trainer import run
distribution.replicas_are_on_cpus = lambda strategy: False
kept, make = [], distribution.DeviceGroups.__iter__
# TensorFlow can crash where an iterator that reads ahead is deleted.
distribution.DeviceGroups.__iter__ = lambda groups: kept.append(make(groups)) or kept[-1]
for steps, distribution.MOST_KEPT in ((5, 1 << 21), (12, int(sys.argv[1]))):
    run.main([*sys.argv[2:], f"--train_steps={steps}"])  # the second resumes within an epoch, and what was a group
for one in kept:
    print("in groups of", one._size, "with" if one._images[0] is None else "without", "images", flush=True)
os._exit(0)
"""


@pytest.mark.slow
@pytest.mark.parametrize("virtual", [[], ["--virtual_replicas=4"]], ids=["classic", "virtual"])
@pytest.mark.parametrize(
    ("place", "most_then", "groups"),
    [
        ("both", 1 << 21, ["with", "with"]),
        ("device", 1 << 21, ["without", "without"]),
        ("device", 0, ["without", "with"]),
    ],
    ids=["copied", "kept", "no longer kept"],
)
def test_batches_copied_in_groups_train_to_the_same_weights(virtual, place, most_then, groups, digits, tmp_path):
    """On logical devices, to which batches are copied as to GPUs; they may keep the images."""
    flags = ["--eval_split=none", "--augment=shift", "--strategy=mirrored", "--num_replicas=2", f"--augment_on={place}"]
    folders = tmp_path / "groups", tmp_path / "host"
    common = [f"--data_dir={digits}", "--model=softmax_regression", *flags, *virtual]
    out = forked.output(["-c", IN_GROUPS, str(most_then), *common, f"--model_dir={folders[0]}"])
    assert out.splitlines()[-2:] == [f"in groups of 64 {one} images" for one in groups]
    forked.output(["-m", "trainer.run", *common, f"--model_dir={folders[1]}", "--train_steps=12"])
    assert checkpoint_bytes(folders[0], 12) == checkpoint_bytes(folders[1], 12)


@pytest.mark.slow
def test_augmented_images_train_to_other_weights(train, tmp_path):
    ends = []
    for number, augment in enumerate(("shift(pixels=2)", "shift(pixels=2)", "shift(pixels=3)", "none")):
        model_dir = tmp_path / str(number)
        train("--train_steps=2", "--eval_split=none", f"--model_dir={model_dir}", f"--augment={augment}")
        ends.append({name: value for name, value in checkpoint_bytes(model_dir, 2).items() if "trainable" in name})
    assert len(ends[0]) == 2
    assert ends[0] == ends[1]
    assert all(ends[0][name] != other[name] for other in ends[2:] for name in other)


THREADS = """
import collections, pathlib, sys
from trainer import run
run.main(sys.argv[1:])
print(*(path.read_text().strip() for path in pathlib.Path("/proc/self/task").glob("*/comm")))
"""


@pytest.mark.slow
def test_operations_of_virtual_replicas_have_so_many_threads(digits, tmp_path):
    flags = [f"--data_dir={digits}", f"--model_dir={tmp_path}", "--model=mlp", "--train_steps=1", "--eval_split=none"]
    out = forked.output(["-c", THREADS, *flags, "--virtual_replicas=4", "--cpu_threads=3"])
    assert out.splitlines()[-1].split().count("tf_XLAEigen") == 3


@pytest.mark.slow
def test_evaluations_take_so_many_examples_at_a_time(train, tmp_path, monkeypatch, capsys):
    run_said = train("--train_steps=2")[-2]
    sizes, judge = [], command.Judge
    monkeypatch.setattr(
        command,
        "Judge",
        lambda trained, *rest: sizes.append(trained.split.order.global_batch_size) or judge(trained, *rest),
    )
    for flags in ([], ["--batch_size=7"]):
        evaluate.main([f"--model_dir={tmp_path}", *flags])
        assert run_said in capsys.readouterr().out
    assert sizes == [100, 7]


def tags_of(folder, kind):
    """Returns {(tag, step)} of one kind of summary, histo or image, in the event files of a folder."""
    records = (record for path in folder.glob("events.*") for record in tf.data.TFRecordDataset(str(path)))
    events = [tf.compat.v1.Event.FromString(record.numpy()) for record in records]
    values = [(event.step, value) for event in events for value in event.summary.value]
    return {(value.tag, step) for step, value in values if value.WhichOneof("value") == kind}


@pytest.mark.slow
def test_histograms_pictures_a_profile_and_where_operations_run(digits, tmp_path):
    flags = ["--train_steps=12", "--histogram_every=4", "--image_every=6", "--activation_every=5", "--profile=3:5"]
    program = ["-m", "trainer.run", f"--data_dir={digits}", f"--model_dir={tmp_path}", "--eval_split=none", *flags]
    environment = {name: value for name, value in os.environ.items() if name != "TF_CPP_MIN_LOG_LEVEL"}
    done = forked.fresh([*program, "--log_device_placement"], environment)
    assert done.returncode == 0, done.stderr
    assert re.search(r"MatMul.*CPU:0", done.stderr)
    logs = tmp_path / "logs"
    histograms, scalars = tags_of(logs, "histo"), tags_of(logs, "simple_value")
    for kind, steps in (("weights", {1, 4, 8, 12}), ("gradients", {1, 4, 8, 12}), ("activations", {1, 5, 10})):
        assert {step for tag, step in histograms if tag.startswith(f"{kind}/")} == steps
    layers = {tag.removeprefix("activations/") for tag, _ in histograms if tag.startswith("activations/")}
    assert {tag.removeprefix("sparsity/") for tag, _ in scalars if tag.startswith("sparsity/")} == layers
    assert len(layers) > 2
    assert {step for _, step in tags_of(logs, "image")} == {1, 6, 12}
    assert list(logs.glob("plugins/profile/*/*.xplane.pb"))


def test_a_augmentation_that_leaves_nothing_of_the_images_is_refused(train):
    with pytest.raises(UsageError, match=r"^augment: shift\(pixels=50\): must be in 0\.\.27 for images of 28x28$"):
        train("--augment=shift(pixels=50)")


def test_another_model_or_optimizer_is_refused(train):
    train("--train_steps=3", "--eval_split=none")
    for flag, had in (("--model=lenet", "model softmax_regression"), ("--optimizer=adam", "optimizer sgd")):
        with pytest.raises(UsageError, match=rf"ckpt-3 has {had}, this run has"):
            train("--train_steps=6", flag)


@pytest.mark.slow
def test_a_run_in_its_own_process_says_nothing_on_stderr(digits, tmp_path):
    flags = [f"--data_dir={digits}", f"--model_dir={tmp_path}", "--model=mlp", "--train_steps=20", "--eval_every=10"]
    done = forked.fresh(["-m", "trainer.run", *flags])
    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout.startswith("one_device: 1 replica, here CPU:0; ")


def test_a_damaged_shard_is_one_line(digits, tmp_path):
    data = tmp_path / "data"
    shutil.copytree(digits, data)
    shard = next(data.glob("train-*.tfrecord"))
    shard.write_bytes(shard.read_bytes()[:-10])
    with pytest.raises(PipelineError, match=shard.name):
        run.main([f"--data_dir={data}", f"--model_dir={tmp_path / 'model'}", "--train_steps=5"])
    shard.unlink()
    with pytest.raises(PipelineError, match=shard.name):
        run.main([f"--data_dir={data}", f"--model_dir={tmp_path / 'model'}", "--train_steps=5"])


def test_multiworker_without_a_cluster_is_one_worker(train, monkeypatch):
    monkeypatch.setenv("TF_CONFIG", "{")
    with pytest.raises(UsageError, match="TF_CONFIG is not valid JSON"):
        train("--strategy=multiworker", "--train_steps=2")


def test_help_loads_nothing_heavy():
    loaded = "import sys; from trainer import run; run.main(['--help'])"
    code = f"import atexit, sys; atexit.register(lambda: print(*sorted(sys.modules))); {loaded}"
    done = forked.fresh(["-c", code])
    assert (done.returncode, done.stderr) == (0, "")
    assert "--global_batch_size" in done.stdout
    assert not {"tensorflow", "keras", "pyarrow", "apache_beam"} & set(done.stdout.splitlines()[-1].split())


def test_without_tensorflow_nothing_is_made(monkeypatch, tmp_path):
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
    with pytest.raises(UsageError, match=r"needs tensorflow, .*pip install 'stepfeed\[train\]'"):
        run.main([f"--data_dir={tmp_path / 'data'}", f"--model_dir={tmp_path / 'model'}"])
    assert list(tmp_path.iterdir()) == []


TWO = ("--strategy=mirrored", "--num_replicas=2")
LAYERS = """
import keras
import tensorflow as tf


def fails(x):
    raise ValueError(f"no class of {len(x)} rows\\nand more lines")


DO = {
    "numerics": lambda x: tf.debugging.check_numerics(x + float("inf"), "the third layer"),
    "python": lambda x: tf.ensure_shape(tf.numpy_function(fails, [x], tf.float32), x.shape),
    "clock": lambda x: x + tf.cast(0.0 * tf.timestamp(), tf.float32),
}


@keras.saving.register_keras_serializable()
class Does(keras.layers.Layer):
    def __init__(self, what, only_evaluating=False, **options):
        super().__init__(**options)
        self.what, self.only_evaluating = what, only_evaluating

    def call(self, x, training=False):
        return x if training and self.only_evaluating else DO[self.what](x)

    def get_config(self):
        return {**super().get_config(), "what": self.what, "only_evaluating": self.only_evaluating}


def model(what, **options):
    images = keras.Input((28, 28, 1))
    x = Does(what, **options)(keras.layers.Flatten()(images))
    return keras.Model(images, keras.layers.Dense(10)(x))


numerics = lambda **given: model("numerics")
python = lambda **given: model("python")
clock = lambda **given: model("clock")
evaluated = lambda **given: model("numerics", only_evaluating=True)
"""


@pytest.fixture
def run_beside(digits, tmp_path):
    """Returns a function that runs a command on the digits, beside the layers above; (exit code, stdout, stderr)."""
    (tmp_path / "layers.py").write_text(LAYERS)

    def run_beside(module, *flags):
        done = forked.run(["-m", module, f"--data_dir={digits}", "--model_dir=run", *flags], cwd=tmp_path)
        return done.returncode, done.stdout, done.stderr

    return run_beside


@pytest.mark.parametrize(
    ("flags", "said"),
    [
        (("--model=layers:numerics", *TWO), "the third layer : Tensor had Inf values"),
        (("--model=layers:python", *TWO), r"ValueError: no class of 50 rows"),
        (("--model=layers:clock", *TWO, "--deterministic"), "Timestamp cannot be called when determinism is enabled"),
    ],
)
@pytest.mark.quick(1)
def test_an_error_in_a_step_of_two_replicas_is_the_line_that_says_it(flags, said, run_beside):
    code, out, error = run_beside("trainer.run", "--train_steps=2", "--eval_split=none", *flags)
    assert (code, "2 replicas, here CPU:0, CPU:1" in out) == (1, True)
    assert re.fullmatch(f"trainer.run: ({said})\n", error)


@pytest.mark.slow
def test_an_error_in_a_virtual_replica_is_said_by_a_run_on_one_replica(run_beside):
    """On two, TensorFlow names what it cancelled, and not why."""
    flags = ["--model=layers:python", "--train_steps=2", "--eval_split=none", *TWO, "--virtual_replicas=4"]
    code, _, error = run_beside("trainer.run", *flags)
    assert (code, error.count("\n")) == (1, 1)
    if "no class of 25 rows" not in error:
        assert re.search(r"a step failed, .*cancelled.*; rerun the same command with --num_replicas=1 ", error)
    code, _, error = run_beside("trainer.run", *flags, "--num_replicas=1")
    assert (code, error) == (1, "trainer.run: ValueError: no class of 25 rows\n")


@pytest.mark.slow
def test_an_error_in_an_evaluation_or_an_export_is_the_line_that_says_it(run_beside):
    for module, *flags in (
        ("trainer.run", "--model=layers:evaluated", "--train_steps=2", *TWO),
        ("trainer.evaluate",),
        ("trainer.export", "--output=out"),
    ):
        code, _, error = run_beside(module, *flags)
        assert (code, error) == (1, f"{module}: the third layer : Tensor had Inf values\n")


@pytest.mark.parametrize(
    "flags",
    [
        pytest.param((), marks=pytest.mark.slow),
        (*TWO, "--model=softmax_regression"),
        pytest.param((*TWO, "--virtual_replicas=4", "--model=softmax_regression"), marks=pytest.mark.slow),
    ],
)
def test_deterministic_runs_train_to_the_same_bits_and_know_how_long_they_waited(flags, run_beside, tmp_path):
    ends = []
    for name in ("one", "other"):
        given = ("--deterministic", "--train_steps=4", "--eval_split=none", "--augment=shift", "--headspace=2", *flags)
        code, out, error = run_beside("trainer.run", f"--model_dir={name}", *given)
        assert (code, error) == (0, "")
        assert re.search(r"\b[1-9]\d*% of \d+\.\d s waiting for input", out)
        ends.append(checkpoint_bytes(tmp_path / name, 4))
    assert ends[0] == ends[1]


def test_what_deterministic_refuses_trains_without_it(run_beside):
    """The clock in a model stands for what is not deterministic: see the case of two replicas above."""
    assert run_beside("trainer.run", "--model=layers:clock", "--train_steps=2", "--eval_split=none")[::2] == (0, "")
