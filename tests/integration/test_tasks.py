"""Models and tasks of users, as real processes: on every strategy, killed and resumed, from Python."""

import json
import re
import shlex
import shutil

import pytest

from tests.helpers import forked
from tests.helpers.forked import ROOT
from tests.helpers.lanes import some_slow
from tests.helpers.runs import checkpoint_bytes, finish, succeed, tf_configs, wait_for_step

REGRESSION = ROOT / "examples" / "regression" / "diabetes.py"
TOPOLOGIES = {
    "one": ["--strategy=one_device"],
    "m2": ["--strategy=mirrored", "--num_replicas=2"],
    "c2": ["--strategy=central_storage", "--num_replicas=2"],
    "w2": ["--strategy=multiworker"],
}
MOST = 0.52  # mean absolute error; 0.65 for the mean of the labels
TASK = ("--task=diabetes:Diabetes", "--optimizer=adam", "--learning_rate=0.01", "--global_batch_size=32")


@pytest.fixture(scope="module")
def project(tmp_path_factory):
    """A folder with the example's project and its data."""
    folder = tmp_path_factory.mktemp("project")
    shutil.copy(REGRESSION, folder)
    assert len(REGRESSION.read_text().splitlines()) < 40
    readme = (ROOT / "examples" / "README.md").read_text(encoding="utf-8")
    made, *_ = re.findall(r"^    cd examples/regression && (.*)$", readme, re.MULTILINE)
    for command in made.split(" && "):
        forked.output(shlex.split(command)[1:], cwd=folder)
    return folder


def start(folder, *flags, tf_config=None):
    return forked.Process(["-m", "trainer.run", *flags], {"PYTHONUNBUFFERED": "1", "TF_CONFIG": tf_config}, folder)


def start_on(folder, topology, *flags):
    """Starts all workers of a topology."""
    configs = tf_configs(2) if topology == "w2" else [None]
    return [start(folder, *TOPOLOGIES[topology], *flags, tf_config=config) for config in configs]


def error_of(text):
    match = re.search(r"mean_absolute_error = ([\d.]+), loss = [\d.]+ \(90 examples\)", text)
    assert match, text
    return float(match[1])


STEPS = 240
TRAINING = ("--data_dir=diabetes", *TASK, f"--train_steps={STEPS}")


@pytest.fixture(scope="module")
def whole(project):
    """The checkpoint of a run on one device, undisturbed."""
    [out] = succeed(*start_on(project, "one", *TRAINING, "--virtual_replicas=4", "--model_dir=whole"))
    assert error_of(out) < MOST
    return checkpoint_bytes(project / "whole", STEPS)


@pytest.mark.slow
@pytest.mark.parametrize("topology", ["c2", "w2"])
def test_regression_learns_on_every_strategy_and_comes_to_the_same_bits(topology, project, whole):
    virtual = [] if topology == "c2" else ["--virtual_replicas=4"]
    out, *_ = succeed(*start_on(project, topology, *TRAINING, f"--model_dir={topology}", *virtual))
    assert error_of(out) < MOST
    assert not virtual or checkpoint_bytes(project / topology, STEPS) == whole


@pytest.mark.slow
def test_a_task_is_killed_and_resumed_on_another_topology(project, whole):
    flags = (*TRAINING, "--virtual_replicas=4", "--steps_per_loop=2")
    often = ("--log_every=2", "--checkpoint_every=10", "--collective_timeout=30")
    for number, topology in enumerate(("m2", "w2")):
        processes = start_on(project, topology, *flags, *often, "--model_dir=killed")
        wait_for_step(processes[0], 40 + 50 * number)
        processes[-1].kill()
        finish(*processes)
    [out] = succeed(*start_on(project, "one", *flags, "--model_dir=killed"))
    assert "resumed from" in out
    assert error_of(out) < MOST
    assert checkpoint_bytes(project / "killed", STEPS) == whole


MINE = """
import keras


def compiled():
    layers = [keras.Input((8, 8, 1)), keras.layers.Flatten(), keras.layers.Dense(32, "relu"), keras.layers.Dense(10)]
    model = keras.Sequential(layers)
    loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
    metrics = ["accuracy", keras.metrics.SparseTopKCategoricalAccuracy(3)]
    model.compile(keras.optimizers.Adam(0.003), loss, metrics=metrics)
    return model


def plain(image_shape, num_classes):
    return keras.Sequential([keras.Input(image_shape), keras.layers.Flatten(), keras.layers.Dense(num_classes)])


def softmax(image_shape, num_classes):
    last = keras.layers.Dense(num_classes, "softmax")
    return keras.Sequential([keras.Input(image_shape), keras.layers.Flatten(), last])


def narrow(image_shape, num_classes):
    return keras.Sequential([keras.Input(image_shape), keras.layers.Flatten(), keras.layers.Dense(3)])


def wants_more(a, b, c):
    pass


def fails():
    return 1 / 0


def nothing():
    return None


class Called(keras.Model):
    def __init__(self, units):
        super().__init__()
        self.dense = keras.layers.Dense(units)

    def call(self, images):
        return self.dense(keras.ops.reshape(keras.ops.cast(images, "float32"), (-1, 64)))


def called(image_shape, num_classes, units=None):
    model = Called(units or num_classes)
    model(keras.ops.zeros((1, *image_shape)))
    return model


def called_narrow(image_shape, num_classes):
    return called(image_shape, num_classes, 3)


def not_called(image_shape, num_classes):
    return Called(num_classes)


def of_other_images():
    return plain((9, 9, 3), 10)


def untrained(image_shape, num_classes):
    model = plain(image_shape, num_classes)
    model.trainable = False
    return model
"""
FAILS = MINE.splitlines().index("    return 1 / 0") + 1
TASKS = """
from trainer import Task

class Fails(Task):
    def build_model(self):
        return self.nothing


class Wrong(Task):
    def train_step(self, model, features, labels):
        return features[:, 0, 0] @ features[:, :, 0, 0], {}


class Parses(Task):
    @staticmethod
    def parse(records):
        return (records + records)[:, 0, 0], records
"""
FROM_PYTHON = """
import sys

sys.path.insert(0, ".")  # as of a script
import mine
from trainer import Task, TrainConfig, train

config = TrainConfig.of(data_dir="digits", model_dir="python", train_steps=40, global_batch_size=50, resize="8x8")
first = train(config, model=mine.compiled)
print(f"{first.num_examples} {sorted(first.metrics)}")
"""


@pytest.fixture(scope="module")
def models(tmp_path_factory, digits):
    folder = tmp_path_factory.mktemp("models")
    (folder / "mine.py").write_text(MINE)
    (folder / "broken.py").write_text("import no_such_package\n")
    (folder / "wrong_syntax.py").write_text("\n\ndef (\n")
    (folder / "tasks.py").write_text(TASKS)
    (folder / "digits").symlink_to(digits)
    return folder


@pytest.mark.parametrize(
    "topology", ["one", *(pytest.param(more, marks=pytest.mark.slow) for more in ("m2", "c2", "w2"))]
)
def test_a_compiled_model_is_trained_by_its_own_optimizer_loss_and_metrics(topology, models):
    """Keras' own fit does not work under MultiWorkerMirroredStrategy."""
    flags = ("--data_dir=digits", f"--model_dir=compiled-{topology}", "--model=mine:compiled", "--train_steps=150")
    out, *_ = succeed(*start_on(models, topology, *flags, "--resize=8x8", "--global_batch_size=64"))
    match = re.search(r"test accuracy = ([\d.]+), sparse_top_k\w+ = ([\d.]+), loss = [\d.]+ \(368 examples\)", out)
    assert 0.8 < float(match[1]) < float(match[2])


def test_a_model_that_is_not_compiled_is_trained_as_the_flags_say(models):
    flags = ("--data_dir=digits", "--model_dir=plain", "--model=mine:plain", "--augment=shift", "--train_steps=100")
    [out] = succeed(start(models, *flags, "--optimizer=adamw", "--learning_rate=0.01"))
    assert float(re.search(r"accuracy = ([\d.]+)", out)[1]) > 0.8


@pytest.mark.slow
def test_a_subclass_that_was_called_is_trained(models):
    flags = ("--data_dir=digits", "--model_dir=called", "--model=mine:called", "--resize=8x8", "--train_steps=3")
    succeed(start(models, *flags))


def test_from_python_and_resumed_by_the_command(models):
    [out] = succeed(forked.Process(["-c", FROM_PYTHON], cwd=models))
    assert "368 ['accuracy', 'sparse_top_k_categorical_accuracy']" in out
    [out] = succeed(start(models, "--config=python/config.yaml", "--train_steps=60"))
    assert "step 40 to 60" in out


CHANGING = """
import keras


def model(image_shape, num_classes):
    layers = [keras.layers.Dense(16, ACTIVATION), keras.layers.Dropout(0.1), keras.layers.Dense(num_classes)]
    return keras.Sequential([keras.Input(image_shape), keras.layers.Flatten(), *layers])
"""


@pytest.mark.slow
def test_a_model_that_is_another_one_now_is_neither_resumed_nor_evaluated_nor_exported(models):
    code = models / "changing.py"
    code.write_text(CHANGING.replace("ACTIVATION", "'relu'"))
    flags = ("--data_dir=digits", "--model_dir=changed", "--model=changing:model", "--resize=8x8")
    succeed(start(models, *flags, "--train_steps=3"))
    code.write_text(CHANGING.replace("ACTIVATION", "'tanh'").replace("0.1", "0.4"))
    said = r"changed/ckpt-3 has a different model.*: layer dense: activation was relu, is tanh; go back to "
    for module, *arguments in (
        ("trainer.run", *flags, "--train_steps=6"),
        ("trainer.evaluate", "--model_dir=changed"),
        ("trainer.export", "--model_dir=changed", "--output=exported"),
    ):
        [(ended, _, error)] = finish(forked.Process(["-m", module, *arguments], cwd=models))
        assert (ended, error.count("\n")) == (2, 1), error
        assert re.search(said, error)
    other = ("--model_dir=begun", "--train_steps=3", "--initialize_from=changed")
    succeed(start(models, *flags, *other))  # the flag is meant for starting another model with these weights
    code.write_text(CHANGING.replace("ACTIVATION", "'relu'").replace("0.1", "0.4"))
    [out] = succeed(start(models, *flags, "--train_steps=6"))
    assert "changed since ckpt-3: layer dropout: rate was 0.1, is 0.4" in out


def evaluated_loss(path):
    lines = map(json.loads, path.read_text().splitlines())
    return [line["eval/test/loss"] for line in lines if "eval/test/loss" in line][-1]


@pytest.mark.slow
def test_the_average_of_the_weights_begins_with_those_that_a_run_starts_from(models):
    flags = ("--data_dir=digits", "--model=mine:plain", "--resize=8x8")
    first = ("--model_dir=source", "--train_steps=50", "--metrics_jsonl=source.jsonl")
    succeed(start(models, *flags, *first))
    second = ("--model_dir=warm", "--train_steps=1", "--metrics_jsonl=warm.jsonl", "--initialize_from=source")
    succeed(start(models, *flags, *second, "--learning_rate=1e-9", "--ema=0.99", "--seed=7"))
    # Averaged over the first step with the random weights, at a decay of 2/11, the loss is another one.
    assert evaluated_loss(models / "warm.jsonl") == pytest.approx(evaluated_loss(models / "source.jsonl"), rel=1e-5)


def test_the_average_of_the_weights_is_kept_from_the_start_or_not_at_all(models):
    flags = ("--data_dir=digits", "--model_dir=averaged", "--model=mine:plain", "--resize=8x8")
    succeed(start(models, *flags, "--train_steps=3"))
    [(code, _, error)] = finish(start(models, *flags, "--train_steps=6", "--ema=0.9"))
    assert code == 2
    assert "has --ema unset, this run has set; use the old one, --ema=0, or another --model_dir" in error


def test_keys_are_not_logged_of_data_that_a_task_parses(project):
    flags = ("--data_dir=diabetes", "--model_dir=logged", *TASK, "--log_keys=keys", "--train_steps=3")
    [(code, _, error)] = finish(start(project, *flags))
    assert code == 2
    assert "--log_keys=keys: does not work with a task's own parse function" in error


WRONG = [  # flags, and the message
    (["--model=mine:compild"], ["--model=mine:compild", "has no 'compild'"]),
    (["--model=theirs:model"], ["--model=theirs:model", "No module named 'theirs'"]),
    (["--model=broken:model"], ["importing broken fails: broken.py:1: ", "No module named 'no_such_package'"]),
    (["--model=wrong_syntax:model"], ["--model=wrong_syntax:model", "wrong_syntax.py:3: SyntaxError: "]),
    (
        ["--task=tasks:Fails", "--model_dir=fails"],
        ["trainer.run: tasks.py:6: AttributeError: 'Fails' object has no"],
    ),
    (
        ["--task=tasks:Wrong", "--model_dir=fails"],
        ["trainer.run: tasks.py:11: ValueError: Dimensions must be equal"],
    ),
    (
        ["--task=tasks:Parses"],
        ["trainer.run: Task.parse: the function fails on string", "tasks.py:17: ValueError: "],
    ),
    (["--model=mine:wants_more"], ["--model=mine:wants_more", "it takes a, b, c"]),
    (["--model=mine:fails"], ["--model=mine:fails", f": mine.py:{FAILS}: ZeroDivisionError: division by zero"]),
    (["--model=mine:nothing"], ["--model=mine:nothing", "must return a Keras model"]),
    (["--model=mine:softmax"], ["--model=mine:softmax", "activation softmax"]),
    (["--model=mine:narrow"], ["--model=mine:narrow", "(None, 3)", "10 classes"]),
    (["--model=mine:called_narrow", "--resize=8x8"], ["its outputs have the shape (None, 3)", "10 classes"]),
    (["--model=mine:not_called"], ["the model is not built", "give it a keras.Input, or call it once on zeros"]),
    (["--model=mine:of_other_images"], ["the model does not take the data, which are uint8 (None, 28, 28, 1): "]),
    (["--model=mine:untrained"], ["--model=mine:untrained: the model has no trainable weights"]),
    (["--global_batch_size=1e12"], ["--global_batch_size=1000000000000: must be 16777216 or less"]),
    (["--task=mine:compiled"], ["--task=mine:compiled", "subclass of trainer.Task"]),
    (["--model=mine:compiled", "--resize=8x8", "--learning_rate=1"], ["--learning_rate=1.0", "is compiled"]),
]
IN_ONE_PROCESS = """
import contextlib, io, json, sys

from trainer import run

found = []
for flags in json.loads(sys.argv[1]):
    sys.argv[1:] = flags
    with contextlib.redirect_stderr(io.StringIO()) as said, contextlib.redirect_stdout(io.StringIO()):
        try:
            run.entry_point()
        except SystemExit as end:
            found.append((end.code, said.getvalue()))
print(json.dumps(found))
"""


@pytest.fixture(scope="module")
def refused(models):
    """Exit code and stderr of the trainer for each of these flags, in one process: TensorFlow starts once."""
    given = [["--data_dir=digits", "--model_dir=wrong", *flags] for flags, _ in WRONG]
    done = forked.run(["-c", IN_ONE_PROCESS, json.dumps(given)], cwd=models)
    assert (done.returncode, done.stderr) == (0, "")
    return json.loads(done.stdout)


@pytest.mark.parametrize(("number", "facts"), [(number, facts) for number, (_, facts) in enumerate(WRONG)])
def test_what_cannot_work_is_one_line(number, facts, refused):
    code, error = refused[number]
    assert code == 2, error
    lines = [line for line in error.splitlines() if line]
    assert len(lines) == 1, error
    for fact in facts:
        assert fact in error


AT_THE_TOP = {
    "tensor": ("tf.constant(0.5)", "SCALE"),
    "table": (
        "tf.lookup.StaticHashTable(tf.lookup.KeyValueTensorInitializer(tf.range(2), tf.constant([0.5, 1.0])), 0.0)",
        "SCALE.lookup(tf.constant(0))",
    ),
    "layer": ("keras.layers.Rescaling(0.5)", "SCALE(tf.constant(1.0))"),
    "variable": ("tf.Variable(0.5)", "SCALE"),
}
TOP = """
import keras
import tensorflow as tf

from diabetes import Diabetes

SCALE = {made}


class Scaled(Diabetes):
    @staticmethod
    def parse(records):
        x, y = Diabetes.parse(records)
        return x * tf.cast({used}, tf.float32), y
"""


@pytest.mark.parametrize("kind", some_slow(AT_THE_TOP, ["table", "layer"]))
def test_a_module_may_have_it_at_its_top_on_one_device(kind, project):
    made, used = AT_THE_TOP[kind]
    (project / f"top_{kind}.py").write_text(TOP.format(made=made, used=used))
    flags = ["--data_dir=diabetes", f"--task=top_{kind}:Scaled", "--train_steps=2", f"--model_dir=top-{kind}"]
    [out] = succeed(start(project, *flags))
    printed = forked.output(["-m", "trainer.evaluate", f"--model_dir=top-{kind}"], cwd=project)
    assert f"mean_absolute_error = {error_of(out)}" in printed


@pytest.mark.parametrize(
    ("flags", "named"),
    [
        (["--strategy=mirrored", "--num_replicas=2"], "--num_replicas=2"),
        pytest.param(["--virtual_replicas=4"], "--virtual_replicas=4", marks=pytest.mark.slow),
        pytest.param(["--strategy=multiworker"], "--strategy=multiworker", marks=pytest.mark.slow),
    ],
)
def test_a_module_that_begins_before_the_strategy_is_named_with_its_line(flags, named, project):
    made, used = AT_THE_TOP["table"]
    (project / "top_late.py").write_text(TOP.format(made=made, used=used))
    given = ["--data_dir=diabetes", "--task=top_late:Scaled", "--global_batch_size=32", "--model_dir=late", *flags]
    configs = tf_configs(2) if "multiworker" in named else [None]
    outputs = finish(*(start(project, *given, tf_config=config) for config in configs))
    said = f"trainer.run: top_late.py:7 uses TensorFlow's devices before {named} has set them up; keep NumPy arrays"
    assert {code for code, _, _ in outputs} == {2}, outputs
    for _, _, error in outputs:
        assert said in error, error
        assert "Traceback" not in error
