"""Factors of rows by their classes, by Keras' rule: `class_weight` of `input_fn`, `distribute` and the trainer."""

import json
import re

import keras
import numpy as np
import pytest
import tensorflow as tf

from pipeline import Shard, StepIterator, distribute, input_fn
from pipeline.errors import UsageError
from tests.helpers import forked
from tests.helpers.datasets import write_dataset
from tests.helpers.runs import checkpoint_bytes

COUNT, CLASSES = 13, 3
NUMBERS = np.arange(COUNT)
FACTORS = {0: 2.5, 2: 0.25}  # class 1 has none


@pytest.fixture(scope="module")
def images(tmp_path_factory):
    path = tmp_path_factory.mktemp("images")
    write_dataset(path, (5, 0, 4, 4), (8, 6, 3))  # 13 records, of classes 0, 1, 2, 0, ...
    return path


KINDS = {
    "classes": lambda labels: labels,
    "columns": lambda labels: labels[:, None],
    "floats": lambda labels: tf.cast(labels, tf.float32),
    "one-hot": lambda labels: tf.one_hot(labels, CLASSES),
    "masks": lambda labels: tf.tile(
        (labels[:, None, None, None] + tf.range(5, dtype=tf.int64)[:, None]) % 3, [1, 4, 1, 1]
    ),
}


def parse_of(kind):
    def parse(records):
        number = tf.io.parse_example(records, {"id": tf.io.FixedLenFeature([], tf.int64)})["id"]
        return tf.cast(number[:, None], tf.float32) / COUNT, KINDS[kind](number % CLASSES)

    return tf.autograph.experimental.do_not_convert(parse)


def model_of(kind, last=CLASSES):
    keras.utils.set_random_seed(3)
    layers = [keras.layers.Dense(20 * last), keras.layers.Reshape((4, 5, last))]
    model = keras.Sequential([keras.Input((1,)), *(layers if kind == "masks" else [keras.layers.Dense(last)])])
    name = "CategoricalCrossentropy" if kind == "one-hot" else "SparseCategoricalCrossentropy"
    model.compile(
        keras.optimizers.SGD(0.5), getattr(keras.losses, name)(from_logits=True), weighted_metrics=["accuracy"]
    )
    return model


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.quick(2)
def test_fit_makes_the_update_of_keras_with_its_class_weight(numbered, kind):
    """13 rows in a batch of 16: the loss divides by the rows, not by the factors; weighted metrics see the factors."""
    ours, theirs = model_of(kind), model_of(kind)
    given = {"global_batch_size": 16, "training": True, "parse": parse_of(kind), "weights": "mean"}
    found = ours.fit(input_fn(numbered, class_weight=FACTORS, **given), steps_per_epoch=1, verbose=0).history
    labels = KINDS[kind](tf.constant(NUMBERS % CLASSES)).numpy()
    x = (NUMBERS[:, None] / COUNT).astype(np.float32)
    data = tf.data.Dataset.from_tensors((x, labels))
    expected = theirs.fit(data, class_weight=FACTORS, verbose=0).history
    plain = model_of(kind).fit(data, verbose=0).history
    assert expected["loss"][0] != pytest.approx(plain["loss"][0], rel=1e-3)
    for name in ("loss", "accuracy"):
        assert found[name][0] == pytest.approx(expected[name][0], rel=1e-5), name
    for one, other in zip(ours.get_weights(), theirs.get_weights(), strict=True):
        np.testing.assert_allclose(one, other, atol=1e-6)


def test_the_argument_of_fit_still_raises(numbered):
    data = input_fn(numbered, global_batch_size=16, training=True, parse=parse_of("classes"), weights="mean")
    with pytest.raises(ValueError, match="at the same time"):
        model_of("classes").fit(data, class_weight=FACTORS, steps_per_epoch=1, verbose=0)


FACTOR_OF = np.array([FACTORS.get(number, 1.0) for number in range(CLASSES)])


@pytest.mark.parametrize(
    ("memory", "more"),
    [
        ({}, {"augment": "shift(pixels=1)"}),
        pytest.param({"shuffle_bytes": 864, "streams": 2}, {"augment": "mixup"}, marks=pytest.mark.slow),
        pytest.param({"portable": True}, {}, marks=pytest.mark.slow),
        pytest.param({}, {}, marks=pytest.mark.slow),
        pytest.param({}, {"augment": "mixup"}, marks=pytest.mark.slow),
        pytest.param({"portable": True}, {"augment": "mixup"}, marks=pytest.mark.slow),
        pytest.param({"shuffle_bytes": 864, "streams": 2}, {}, marks=pytest.mark.slow),
    ],
)
def test_rows_have_the_factor_of_their_class_however_they_are_fed(images, more, memory):
    given = {"global_batch_size": 8, "training": True, "epochs": 1, "class_weight": FACTORS, **more, **memory}
    strategy = tf.distribute.MirroredStrategy([f"CPU:{i}" for i in range(2)])
    feeds = {
        "input_fn": input_fn(images, **given),
        "a shard": input_fn(images, shard=Shard(1, 2), **given),
        "NumPy": StepIterator(images, **given),
        "replicas": distribute(strategy, images, **given),
        "virtual replicas": distribute(strategy, images, virtual_replicas=4, **given),
    }
    for name, feed in feeds.items():
        real = 0
        for element in feed:
            _, labels, weights = (np.asarray(strategy.experimental_local_results(part)[0]) for part in element)
            classes = labels.argmax(-1) if labels.dtype == np.float32 else labels
            expected = FACTOR_OF[classes]
            assert weights.shape == classes.shape, name
            np.testing.assert_array_equal(weights[weights > 0], expected[weights > 0], err_msg=name)
            real += (weights > 0).sum()
        assert real == COUNT or name != "input_fn"


def test_with_sample_weights_it_is_the_product(numbered):
    def parse(records):
        x, labels = parse_of("classes")(records)
        return x, labels, 1 + x[:, 0]

    data = input_fn(numbered, global_batch_size=16, training=True, parse=parse, class_weight=FACTORS)
    x, labels, weights = next(iter(data))
    real = weights.numpy() > 0
    np.testing.assert_allclose(weights[real], FACTOR_OF[labels.numpy()[real]] * (1 + x.numpy()[real, 0]), rtol=1e-6)


@pytest.mark.parametrize(
    ("value", "message"),
    [
        ({3: 1.0}, r"^class_weight: there is no class 3; the data set has 0 to 2$"),
        ({-1: 1.0}, "^class_weight: the class -1 must be a number from 0"),
        ({"1": 1.0}, "^class_weight: the class '1' must be a number from 0"),
        ({1: -0.5}, "^class_weight: the factor of class 1 is -0.5: must be a number, 0 or more$"),
        ({1: float("nan")}, "^class_weight: the factor of class 1 is nan: "),
        ({}, r"^class_weight=\{\}: must map class numbers to factors"),
        ([1.0, 2.0], r"^class_weight=\[1.0, 2.0\]: must map class numbers to factors"),
    ],
)
def test_what_cannot_be_a_factor_is_one_line(images, value, message):
    with pytest.raises(UsageError, match=message):
        input_fn(images, global_batch_size=8, training=True, class_weight=value)


@pytest.mark.parametrize(
    ("more", "message"),
    [
        ({"training": False}, "^class_weight with training=False: "),
        ({"augment": "mixup", "augment_on": "device"}, "^class_weight with augment_on='device' and augment='mixup'"),
    ],
)
def test_where_it_cannot_be_is_one_line(images, more, message):
    with pytest.raises(UsageError, match=message):
        input_fn(images, **{"global_batch_size": 8, "training": True, "class_weight": FACTORS} | more)


def test_a_target_that_is_no_class_is_one_line(numbered):
    def parse(records):
        x, labels = parse_of("classes")(records)
        return x, tf.tile(labels[:, None], [1, 5])  # of tokens, or one-hot: Keras would take it for the latter

    with pytest.raises(UsageError, match=r"^class_weight: the target is int64 \(8, 5\): give classes as"):
        input_fn(numbered, global_batch_size=8, training=True, parse=parse, class_weight=FACTORS)


TASKS = '''
import keras
import tensorflow as tf

from trainer import Task


class Numbers(Task):
    """The class of a row is its number modulo 3; its loss is 1 + its number, its metric that squared."""

    @staticmethod
    def parse(records):
        number = tf.io.parse_example(records, {"id": tf.io.FixedLenFeature([], tf.int64)})["id"]
        return tf.cast(number[:, None], tf.float32), number % 3

    def build_model(self):
        return keras.Sequential([keras.Input((1,)), keras.layers.Dense(1)])

    def train_step(self, model, features, labels):
        loss = 1 + features[:, 0] + 1e-3 * model(features, training=True)[:, 0]
        return loss, {"square": loss**2}

    def evaluate(self, model, features, labels):
        return self.train_step(model, features, labels)


class Pairs(Numbers):
    @staticmethod
    def parse(records):
        x, labels = Numbers.parse(records)
        return x, {"label": labels}
'''


def train(tmp_path, numbered, name, *flags, task="Numbers", steps=2):
    (tmp_path / "numbered.py").write_text(TASKS)
    fixed = [f"--train_steps={steps}", "--log_every=1", "--global_batch_size=8", "--eval_split=train"]
    rate = ["--optimizer=sgd", "--learning_rate=1e-6", "--schedule=constant"]
    given = [
        f"--data_dir={numbered}",
        f"--model_dir={tmp_path / name}",
        f"--task=numbered:{task}",
        *fixed,
        *rate,
        *flags,
    ]
    return forked.run(["-m", "trainer.run", *given], cwd=tmp_path)


TOPOLOGIES = [
    ["--strategy=one_device", "--virtual_replicas=4"],
    ["--strategy=mirrored", "--num_replicas=2", "--virtual_replicas=4"],
    ["--strategy=mirrored", "--num_replicas=2"],
]


def test_the_trainer_weighs_losses_and_nothing_else(tmp_path, numbered):
    """The sum of the factors does not divide the loss; metrics and the evaluation do not see them."""
    stored = []
    for number, topology in enumerate(TOPOLOGIES):
        more = ["--summary_every=2", f"--metrics_jsonl={number}.jsonl"]
        done = train(tmp_path, numbered, f"run{number}", "--class_weight=0:2.5, 2:0.25", *more, *topology)
        assert done.returncode == 0, done.stderr
        losses = 1.0 + NUMBERS
        metric, plain = np.mean(losses**2), np.mean(losses)
        weighted = np.mean(losses * FACTOR_OF[NUMBERS % CLASSES])
        scalars = json.loads((tmp_path / f"{number}.jsonl").read_text().splitlines()[0])
        assert scalars["train/epoch_loss"] == pytest.approx(weighted, rel=1e-3)
        assert scalars["train/epoch_square"] == pytest.approx(metric, rel=1e-3)
        last = re.search(r"train square = ([\d.]+), loss = ([\d.]+) \(13 examples\)", done.stdout)
        assert float(last[1]) == pytest.approx(metric, rel=1e-3)
        assert float(last[2]) == pytest.approx(plain, rel=1e-3)
        stored.append(checkpoint_bytes(tmp_path / f"run{number}", 2))
    assert stored[0] == stored[1]  # with virtual replicas to the bit


@pytest.mark.slow
def test_parameter_servers_weigh_alike(tmp_path, numbered):
    (tmp_path / "numbered.py").write_text(TASKS)
    fixed = ["--train_steps=2", "--sync", "--global_batch_size=8", "--eval_split=train", "--log_every=1"]
    rate = ["--optimizer=sgd", "--learning_rate=1e-6", "--schedule=constant", "--class_weight=0:2.5,2:0.25"]
    run = [f"--data_dir={numbered}", "--model_dir=run", "--task=numbered:Numbers", *fixed, *rate]
    out = forked.output(["-m", "trainer.launch", "--num_workers=2", "--num_ps=1", "--", *run], cwd=tmp_path)
    losses = 1.0 + NUMBERS
    assert f"step 2, loss = {np.mean(losses * FACTOR_OF[NUMBERS % CLASSES]):.2f} " in out  # of the epoch
    assert f"train square = {np.mean(losses**2):.1f}" in out


@pytest.mark.slow
def test_a_resume_with_other_factors_is_told(tmp_path, numbered):
    first = train(tmp_path, numbered, "run", "--class_weight=0:2.5")
    assert first.returncode == 0, first.stderr
    second = train(tmp_path, numbered, "run", "--class_weight=0:3", steps=4)
    assert second.returncode == 0, second.stderr
    assert "--class_weight" in second.stdout
    assert "0:2.5" in second.stdout


@pytest.mark.parametrize(
    ("flag", "task", "message"),
    [
        ("0:1,2", "Numbers", "trainer.run: --class_weight=0:1,2: '2' must be a class number and a factor"),
        ("0:1,0:2", "Numbers", "trainer.run: --class_weight=0:1,0:2: gives class 0 twice"),
        ("0:-1", "Numbers", "trainer.run: --class_weight: the factor of class 0 is -1.0: must be a number, 0 or more"),
        ("0:1", "Pairs", "trainer.run: --class_weight: needs labels that are a class per row"),
    ],
)
def test_factors_that_the_trainer_cannot_use_are_one_line(tmp_path, numbered, flag, task, message):
    assert forked.refused(train(tmp_path, numbered, "run", f"--class_weight={flag}", task=task)).startswith(message)


def test_a_class_that_the_data_set_lacks_is_one_line(tmp_path, images):
    given = [f"--data_dir={images}", f"--model_dir={tmp_path / 'run'}", "--class_weight=7:2"]
    said = forked.refused(forked.run(["-m", "trainer.run", *given], cwd=tmp_path))
    assert said.startswith("trainer.run: --class_weight: there is no class 7; ")
