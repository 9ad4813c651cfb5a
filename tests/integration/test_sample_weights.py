"""What a `parse` function may return, and the weights that Keras' `fit`, loops and the trainer make of it."""

import itertools

import keras
import numpy as np
import pytest
import tensorflow as tf

from pipeline import Shard, StepIterator, distribute, input_fn
from pipeline.errors import UsageError
from tests.helpers import forked
from tests.helpers.lanes import some_slow

COUNT, SIZE = 13, 8
FACTORS = {"mask": 1.0, "mean": SIZE / (COUNT - SIZE)}  # of a real row of the second step
PAIRS, TRIPLES, OTHERS = ["a pair", "a list of two"], ["three", "three columns"], ["a tensor", "a dict", "four", "one"]


def ids(records):
    return tf.io.parse_example(records, {"id": tf.io.FixedLenFeature([], tf.int64)})["id"]


def parser(shape):
    """Returns a function of records: x is the number, y its half, the weight of a row 1 + its number."""

    def parse(records):
        x = tf.cast(ids(records)[:, None], tf.float32)
        y, weight = x[:, 0] / 2, 1 + x[:, 0]
        return {
            "a tensor": x,
            "a dict": {"x": x, "y": y},
            "a pair": (x, y),
            "a list of two": [x, y],
            "three": (x, y, weight),
            "three columns": [x, y, weight[:, None]],
            "four": (x, x, y, y),
            "one": (x,),
        }[shape]

    return tf.autograph.experimental.do_not_convert(parse)


def model_of(shape=(1,)):
    """Returns a model that gives 0: the loss of a row is y squared."""
    model = keras.Sequential([keras.Input(shape), keras.layers.Dense(1, kernel_initializer="zeros")])
    model.compile(keras.optimizers.SGD(0.0), "mse", weighted_metrics=["mse"])
    return model


NUMBERS = np.arange(COUNT)
LOSSES = (NUMBERS / 2) ** 2


@pytest.mark.parametrize("weights", ["mean", *(pytest.param(way, marks=pytest.mark.slow) for way in ("mask", "none"))])
@pytest.mark.parametrize("shape", some_slow([*PAIRS, *TRIPLES, *OTHERS], ["a pair", "three", "a tensor", "a dict"]))
def test_keras_takes_what_it_reads_rightly_and_refuses_the_rest(numbered, shape, weights):
    """The table of docs/feeding.md; an evaluation of 13 rows in batches of 8."""
    given = {"global_batch_size": SIZE, "training": False, "parse": parser(shape), "weights": weights}
    data, model = input_fn(numbered, **given), model_of()
    if shape in OTHERS:
        if weights == "none":
            assert len(data.element_spec) == 1  # x alone, as `predict` takes it
            return
        for change in (lambda data: data, lambda data: data.prefetch(1).take(2).repeat(1)):
            with pytest.raises(UsageError, match=r"^parse returns neither \(x, y\) nor \(x, y, sample_weight\)"):
                model.fit(change(input_fn(numbered, **given)), verbose=0)
            with pytest.raises(UsageError, match=r"^parse returns neither \(x, y\) nor \(x, y, sample_weight\)"):
                model.evaluate(change(input_fn(numbered, **given)), verbose=0)
        assert len(list(data)) == 2  # a loop takes it
        if shape == "a tensor":
            assert model.predict(data, verbose=0).shape == (2 * SIZE, 1)
        return
    own = 1.0 + NUMBERS if shape in TRIPLES else np.ones(COUNT)
    got = model.evaluate(data, verbose=0, return_dict=True)
    np.testing.assert_allclose(got["mse"], expected_metric(own, weights), rtol=1e-5)
    # Keras' loss is the mean over the batches, each of the sum over its rows divided by their number.
    factors = np.where(NUMBERS < SIZE, 1.0, FACTORS.get(weights, 1.0))
    rows = COUNT if weights == "none" else 2 * SIZE
    np.testing.assert_allclose(got["loss"], (own * factors * LOSSES).sum() / rows, rtol=1e-5)
    assert model.predict(data, verbose=0).shape == (rows, 1)


def expected_metric(own, weights):
    weighted = own * np.where(NUMBERS < SIZE, 1.0, FACTORS.get(weights, 1.0))
    return (weighted * LOSSES).sum() / weighted.sum()


def test_fit_of_a_triple_makes_the_update_of_keras_on_the_arrays(numbered):
    """13 rows in a batch of 16, in one step: with weights="mean" the padding changes nothing."""
    model, other = (keras.Sequential([keras.Input((1,)), keras.layers.Dense(1)]) for _ in range(2))
    other.set_weights(model.get_weights())
    for one in (model, other):
        one.compile(keras.optimizers.SGD(0.001), "mse", weighted_metrics=["mae"])
    given = {"global_batch_size": 16, "training": True, "parse": parser("three"), "weights": "mean"}
    found = model.fit(input_fn(numbered, **given), steps_per_epoch=1, verbose=0).history
    numbers = NUMBERS.astype(np.float32)
    same = other.fit(numbers[:, None], numbers / 2, sample_weight=1 + numbers, batch_size=13, verbose=0).history
    np.testing.assert_allclose(found["loss"], same["loss"], rtol=1e-5)
    np.testing.assert_allclose(found["mae"], same["mae"], rtol=1e-5)
    for one, two in zip(model.get_weights(), other.get_weights(), strict=True):
        np.testing.assert_allclose(one, two, rtol=1e-4)


@pytest.mark.parametrize("kind", [tuple, list])
def test_lists_within_a_pair_are_structures_as_tuples_are(numbered, kind):
    """tf.data would stack two targets to one tensor (2, rows), of which Keras makes a loss without a word."""

    @tf.autograph.experimental.do_not_convert
    def parse(records):
        x, y, weight = parser("three")(records)
        return {"inputs": kind([x, tf.concat([x, x], axis=1)])}, kind([y, 3 * y]), kind([weight, weight])

    found = input_fn(numbered, global_batch_size=16, training=True, parse=parse, weights="mean")
    one, two = keras.Input((1,), name="one"), keras.Input((2,), name="two")
    outputs = [keras.layers.Dense(1, kernel_initializer="zeros", use_bias=False)(x) for x in (one, two)]
    model = keras.Model({"inputs": [one, two]}, outputs)
    model.compile(keras.optimizers.SGD(0.0001), ["mse", "mse"])
    history = model.fit(found, steps_per_epoch=1, verbose=0).history
    mean, slope = np.mean((1 + NUMBERS) * LOSSES), 0.0001 * np.mean((1 + NUMBERS) * NUMBERS**2)
    np.testing.assert_allclose(history["loss"], [10 * mean], rtol=1e-5)
    first, second = model.get_weights()
    np.testing.assert_allclose(first, [[slope]], rtol=1e-5)  # of 2 * (y - 0) * x, y = x / 2
    np.testing.assert_allclose(second, [[3 * slope]] * 2, rtol=1e-5)


@pytest.mark.slow
@pytest.mark.parametrize("weights", ["mask", "mean"])
@pytest.mark.parametrize("shape", some_slow([*PAIRS, *TRIPLES, *OTHERS], ["a list of two", "three columns", "a dict"]))
def test_loops_get_as_many_parts_however_they_are_fed(numbered, shape, weights):
    given = {"global_batch_size": SIZE, "training": True, "parse": parser(shape), "weights": weights}
    strategy = tf.distribute.MirroredStrategy([f"CPU:{i}" for i in range(2)])
    feeds = {
        "input_fn": input_fn(numbered, **given),
        "record ids": input_fn(numbered, record_ids=True, **given),
        "portable": input_fn(numbered, portable=True, epochs=2, **given),
        "a shard": input_fn(numbered, shard=Shard(1, 2), **given),
        "NumPy": StepIterator(numbered, **given),
        "a mixture": input_fn([(str(numbered), 1), (str(numbered), 1)], **given),
        "replicas": distribute(strategy, numbered, **given),
        "virtual replicas": distribute(strategy, numbered, virtual_replicas=4, **given),
    }
    for name, feed in feeds.items():
        element = next(iter(feed))
        first = tf.nest.map_structure(lambda part: np.asarray(strategy.experimental_local_results(part)[0]), element)
        parts = first[:-1] if name == "record ids" else first
        if shape in OTHERS:
            assert len(parts) == 2, name
            assert (parts[1] == 1).all(), name
            continue
        x, y, found = parts
        assert (x[..., 0] == 2 * y).all(), name
        expected = 1 + x[..., 0] if shape in TRIPLES else np.ones(y.shape)
        assert found.shape == (*y.shape, 1)[: y.ndim + (shape == "three columns")], name
        np.testing.assert_array_equal(found.reshape(expected.shape), expected, err_msg=name)


@pytest.mark.parametrize("third", ["labels", "names", "ragged"])
def test_a_third_part_that_is_no_weight_is_refused_by_name(numbered, third):
    def parse(records):
        x = ids(records)
        return x, x, {"labels": x, "names": records, "ragged": tf.strings.split(records)}[third]

    with pytest.raises(UsageError, match=r"^parse: the third of three parts is Keras' sample_weight, .*; it is "):
        input_fn(numbered, global_batch_size=SIZE, training=True, parse=parse)


@pytest.mark.parametrize("options", [{"record_ids": True}, {"record_ids": True, "weights": "none"}])
def test_record_ids_are_not_taken_for_weights(numbered, options):
    """With weights="none", (x, y, ids) has three parts, as Keras' (x, y, sample_weight)."""
    data = input_fn(numbered, global_batch_size=SIZE, training=False, parse=parser("a pair"), **options)
    with pytest.raises(UsageError, match="^record_ids=True: "):
        model_of().evaluate(data, verbose=0)
    with pytest.raises(UsageError, match="^record_ids=True: "):
        model_of().fit(data, class_weight={0: 1.0}, verbose=0)


ROWS = 5  # of a batch; and the width of masks
HEIGHT, CLASSES = 4, 3
DENSE = {  # target, probabilities, loss, metrics
    "masks (rows, h, w, 1)": ((HEIGHT, ROWS, 1), 1, "binary_crossentropy", ["accuracy", "AUC", "Precision"]),
    "classes (rows, h, w, 1)": ((HEIGHT, ROWS, 1), CLASSES, "sparse_categorical_crossentropy", ["accuracy"]),
    "classes (rows, h, w)": ((HEIGHT, ROWS), CLASSES, "sparse_categorical_crossentropy", ["accuracy"]),
    "probabilities (rows, h, w, classes)": (
        (HEIGHT, ROWS, CLASSES),
        CLASSES,
        "categorical_crossentropy",
        ["accuracy", "AUC"],
    ),
    "tokens (rows, time)": ((ROWS,), CLASSES, "sparse_categorical_crossentropy", ["accuracy"]),
    "numbers (rows, time, values)": ((ROWS, CLASSES), CLASSES, "mse", ["mae"]),
    "probabilities (rows, classes)": ((CLASSES,), CLASSES, "categorical_crossentropy", ["accuracy", "AUC"]),
}


def dense(name):
    """Returns the targets and outputs of 13 rows."""
    shape, outputs, *_ = DENSE[name]
    draw = np.random.default_rng(7)
    probabilities = draw.random(
        (COUNT, *shape[: None if name == "classes (rows, h, w)" or "tokens" in name else -1], outputs)
    )
    if outputs > 1:
        probabilities /= probabilities.sum(-1, keepdims=True)
    if "classes)" in name or "values" in name:
        hot = np.eye(CLASSES)[draw.integers(0, CLASSES, (COUNT, *shape[:-1]))]
        return hot.astype(np.float32), probabilities.astype(np.float32)
    targets = draw.integers(0, max(2, outputs), (COUNT, *shape))
    return targets.astype(np.float32 if outputs == 1 else np.int64), probabilities.astype(np.float32)


def looking_up(outputs, targets):
    """Returns a model's class that gives the outputs of the row whose number it gets, and the parser to its targets."""

    class Looked(keras.Model):
        def __init__(self):
            super().__init__()
            self.scale = self.add_weight(shape=(), initializer="ones")

        def call(self, numbers):
            return self.scale * tf.gather(tf.constant(outputs), tf.cast(numbers[:, 0], tf.int32))

    def parse(records):
        numbers = ids(records)
        return tf.cast(numbers[:, None], tf.float32), tf.gather(tf.constant(targets), numbers)

    return Looked, parse


@pytest.mark.parametrize(
    "name", some_slow(DENSE, ["masks (rows, h, w, 1)", "classes (rows, h, w)", "numbers (rows, time, values)"])
)
@pytest.mark.quick(1)
def test_weights_of_dense_targets_weigh_rows_where_they_are_as_many_as_columns(numbered, name):
    """The padded last step of `fit` and of `evaluate`: losses and metrics are means over the 13 rows."""
    targets, outputs = dense(name)
    _, _, loss, metrics = DENSE[name]

    looked, parse = looking_up(outputs, targets)

    def compiled():
        model = looked()
        model.compile(keras.optimizers.SGD(0.0), loss, weighted_metrics=[known(metric) for metric in metrics])
        return model

    known = lambda metric: getattr(keras.metrics, metric)(name=metric) if metric[0].isupper() else metric  # noqa: E731
    alone = compiled().evaluate(NUMBERS[:, None], targets, batch_size=COUNT, verbose=0, return_dict=True)
    given = {"global_batch_size": ROWS, "parse": parse}
    exact = compiled().evaluate(input_fn(numbered, training=False, **given), verbose=0, return_dict=True)
    for key in alone.keys() - {"loss"}:
        assert exact[key] == pytest.approx(alone[key], rel=1e-4), key
    # The loss that Keras reports is a mean over batches: 3 of 5 rows, of which the last has 3 real ones.
    assert exact["loss"] == pytest.approx(alone["loss"] * COUNT / 15, rel=1e-5)
    whole = {"global_batch_size": 15, "parse": parse, "weights": "mean"}
    fitted = compiled().fit(input_fn(numbered, training=True, **whole), steps_per_epoch=1, verbose=0).history
    for key in alone:
        assert fitted[key][0] == pytest.approx(alone[key], rel=1e-4), key


def test_weights_of_loops_have_one_number_per_row(numbered):
    """Only the data set that Keras takes has weights of more axes."""

    def parse(records):
        return ids(records), tf.ones((records.shape[0], 4, 5, 1))

    given = {"global_batch_size": SIZE, "training": True, "parse": parse}
    assert input_fn(numbered, **given).element_spec[2].shape == (SIZE, 1, 1, 1)
    assert next(StepIterator(numbered, **given))[2].shape == (SIZE,)
    assert next(iter(distribute(tf.distribute.get_strategy(), numbered, **given)))[2].shape == (SIZE,)


def test_several_targets_have_weights_each(numbered):
    def parse(records):
        rows = records.shape[0]
        return ids(records), {"mask": tf.ones((rows, 4, 5, 1)), "label": tf.ones((rows,))}

    spec = input_fn(numbered, global_batch_size=SIZE, training=True, parse=parse).element_spec[2]
    assert {name: tuple(one.shape) for name, one in spec.items()} == {"mask": (SIZE, 1, 1, 1), "label": (SIZE,)}


TASKS = '''
import keras
import tensorflow as tf

from trainer import Task


class Weighted(Task):
    """Rows of y = 1, whose loss and metric are their number; weights are small, and 0 for the first three."""

    @staticmethod
    def parse(records):
        number = tf.io.parse_example(records, {"id": tf.io.FixedLenFeature([], tf.int64)})["id"]
        number = tf.cast(number, tf.float32)
        return number[:, None], number, tf.maximum(number - 2, 0) / 100

    def build_model(self):
        return keras.Sequential([keras.Input((1,)), keras.layers.Dense(1)])

    def loss(self, labels, outputs):
        return labels + 0 * outputs[:, 0]

    def metrics(self, labels, outputs):
        return {"square": labels**2}


class OfPixels(Weighted):
    @staticmethod
    def parse(records):
        x, y, _ = Weighted.parse(records)
        return x, y, tf.ones((records.shape[0], 4, 5))


class Asks(Weighted):
    @staticmethod
    def parse(records, keys, *, training):
        assert keys.shape == records.shape and keys.dtype == tf.uint64, keys
        x, y, weight = Weighted.parse(records)
        return x, y, weight if training else 0 * weight + 1


class Four(Weighted):
    @staticmethod
    def parse(records):
        return 4 * (Weighted.parse(records)[0],)
'''


def train(tmp_path, numbered, task, *flags):
    (tmp_path / "weighted.py").write_text(TASKS)
    fixed = ["--train_steps=2", "--log_every=1", f"--global_batch_size={SIZE}", "--eval_split=train", "--optimizer=sgd"]
    given = [f"--data_dir={numbered}", f"--model_dir={tmp_path / 'run'}", f"--task=weighted:{task}", *fixed, *flags]
    return forked.run(["-m", "trainer.run", *given], cwd=tmp_path)


@pytest.mark.parametrize("topology", ["--strategy=one_device", "--virtual_replicas=4"])
@pytest.mark.quick(1)
def test_the_trainer_divides_by_the_sum_of_the_sample_weights(tmp_path, numbered, topology):
    done = train(tmp_path, numbered, "Weighted", topology)
    assert done.returncode == 0, done.stderr
    own = np.maximum(NUMBERS - 2, 0) / 100  # 0.55 in sum, less than one row's
    loss, square = ((own * value).sum() / own.sum() for value in (NUMBERS, NUMBERS**2))
    assert f"train square = {square:.4f}, loss = {loss:.4f} (10 examples)" in done.stdout
    assert f"loss = {loss:.2f}" in done.stdout  # of the epoch, in training


def test_the_trainer_gives_keys_and_training_to_a_parser_that_asks_for_them(tmp_path, numbered):
    done = train(tmp_path, numbered, "Asks", "--strategy=one_device")
    assert done.returncode == 0, done.stderr
    own = np.maximum(NUMBERS - 2, 0)
    assert f"loss = {(own * NUMBERS).sum() / own.sum():.2f}" in done.stdout  # of the epoch, in training
    assert f"train square = {(NUMBERS**2).mean():.4f}, loss = {NUMBERS.mean():.4f} ({COUNT} examples)" in done.stdout


@pytest.mark.parametrize(
    ("task", "said"), [("OfPixels", r"(rows, 4, 5)"), ("Four", "must return (features, labels) or")]
)
def test_what_a_task_may_not_return_is_one_line(tmp_path, numbered, task, said):
    line = forked.refused(train(tmp_path, numbered, task))
    assert line.startswith("trainer.run: Task.parse: ")
    assert said in line


def measured(model, images, labels):
    """Returns the trainer's results for rows of which the last two are padding, and Keras' results for the others."""
    from trainer.step.measures import CompiledMeasure
    from trainer.task import DataSpec

    features, spec = (tf.TensorSpec([None, *rows.shape[1:]], rows.dtype) for rows in (images, labels))
    measure = CompiledMeasure(model, DataSpec(features, spec, ()), "--model")
    weights = tf.constant(np.arange(len(images)) < len(images) - 2, tf.float32)
    found = measure.results(measure.evaluation_sums(model, tf.constant(images), tf.constant(labels), weights))
    expected = model.evaluate(images[:-2], labels[:-2], verbose=0, return_dict=True)
    return {name: float(value) for name, value in found.items()}, expected


F1 = {"threshold": 0.5, "average": "macro"}
COMPILED = {  # a row's input, outputs, loss, metrics, how targets are drawn; two of the five rows are padding
    "masks as wide as there are rows": (
        (HEIGHT, ROWS, 1),
        (1, "sigmoid"),
        "binary_crossentropy",
        {"AUC": {}},
        lambda draw: (draw.random((ROWS, HEIGHT, ROWS, 1)) < 0.4).astype(np.float32),
    ),
    "as many tokens as rows": (
        (ROWS, 4),
        (CLASSES, "softmax"),
        "sparse_categorical_crossentropy",
        {},
        lambda draw: draw.integers(0, CLASSES, (ROWS, ROWS), dtype=np.int32),
    ),
    **{
        f"several of {classes} classes": (
            (4,),
            (classes, "sigmoid"),
            "binary_crossentropy",
            {"F1Score": {"average": "macro"}, "FBetaScore": F1, "AUC": {}},
            lambda draw, classes=classes: draw.integers(0, 2, (ROWS, classes), dtype=np.int32),
        )
        for classes in (3, ROWS)
    },
}


@pytest.mark.parametrize("name", some_slow(COMPILED, [name for name in COMPILED if "of 3" not in name]))
def test_compiled_metrics_take_one_weight_per_row(name):
    shape, outputs, loss, metrics, targets = COMPILED[name]
    draw = np.random.default_rng(3)
    model = keras.Sequential([keras.Input(shape), keras.layers.Dense(*outputs)])
    made = [getattr(keras.metrics, metric)(**options) for metric, options in metrics.items()]
    model.compile("sgd", loss, metrics=["accuracy", *made])
    rows = draw.normal(size=(ROWS, *shape)).astype(np.float32)
    found, expected = measured(model, rows, targets(draw))
    assert len(expected) == 2 + len(metrics)
    assert found == pytest.approx(expected, rel=1e-5)


IOU = {  # a metric, classes of the outputs
    "MeanIoU": (lambda: keras.metrics.MeanIoU(3, sparse_y_pred=False), 3),
    "IoU": (lambda: keras.metrics.IoU(3, [0, 2], sparse_y_pred=False), 3),
    "BinaryIoU": (lambda: keras.metrics.BinaryIoU([0, 1], 0.5), 1),
    "OneHotIoU": (lambda: keras.metrics.OneHotIoU(3, [0, 2]), 3),
    "OneHotMeanIoU": (lambda: keras.metrics.OneHotMeanIoU(3), 3),
}


@pytest.mark.parametrize(
    "shape",
    [
        pytest.param((), id="of rows", marks=pytest.mark.slow),
        pytest.param((ROWS,), id="of tokens", marks=pytest.mark.slow),
        pytest.param((8, ROWS), id="of pixels"),
    ],
)
@pytest.mark.parametrize("name", some_slow(IOU, ["MeanIoU", "BinaryIoU", "OneHotIoU"]))
def test_compiled_iou_is_that_of_the_real_rows(name, shape):
    make, classes = IOU[name]
    draw, one_hot = np.random.default_rng(3), name.startswith("OneHot")
    model = keras.Sequential(
        [keras.Input((*shape, 4)), keras.layers.Dense(classes, "softmax" if classes > 1 else None)]
    )
    loss = "categorical_crossentropy" if one_hot else "sparse_categorical_crossentropy" if classes > 1 else "mse"
    model.compile("sgd", loss, metrics=[make()])
    labels = draw.integers(0, max(2, classes), (9, *shape, 1), dtype=np.int32)
    labels = np.eye(classes, dtype=np.int32)[labels[..., 0]] if one_hot else labels
    found, expected = measured(model, draw.normal(size=(9, *shape, 4)).astype(np.float32), labels)
    assert found == pytest.approx(expected, rel=1e-5)


def test_iou_in_integers_is_refused_beside_sample_weights():
    """They would be cut off: 0.5 is 0."""
    from trainer.step.measures import CompiledMeasure
    from trainer.task import DataSpec

    model = keras.Sequential([keras.Input((8, 8, 3)), keras.layers.Dense(2, "softmax")])
    spec = DataSpec(tf.TensorSpec([None, 8, 8, 3]), tf.TensorSpec([None, 8, 8, 1], tf.int32), (), True)
    model.compile("sgd", "sparse_categorical_crossentropy", metrics=[keras.metrics.MeanIoU(2, sparse_y_pred=False)])
    with pytest.raises(UsageError, match=r"^--model: its metric mean_io_u.* counts in integers, .*dtype=.float32"):
        CompiledMeasure(model, spec, "--model")
    exact = keras.metrics.MeanIoU(2, sparse_y_pred=False, dtype="float32")
    model.compile("sgd", "sparse_categorical_crossentropy", metrics=[exact])
    CompiledMeasure(model, spec, "--model")


MASKS = np.random.default_rng(5).random((COUNT, HEIGHT, ROWS, 1)).astype(np.float32)
OUTPUTS = np.random.default_rng(6).random((COUNT, HEIGHT, ROWS, 1)).astype(np.float32)
OWN = 1.0 + NUMBERS


class OfRows(keras.Model):
    """Gives the masks of the rows whose numbers it gets; with `classes`, a number per row as well."""

    def __init__(self, classes=False):
        super().__init__()
        self.scale, self.classes = self.add_weight(shape=(), initializer="ones"), classes

    def call(self, numbers):
        masks = self.scale * tf.gather(tf.constant(OUTPUTS), tf.cast(numbers[:, 0], tf.int32))
        return {"m": masks, "c": 0 * self.scale * numbers} if self.classes else masks


def of_masks(targets, sample_weight):
    """Returns a function of records, whose targets are masks and numbers, from functions of a row's targets."""

    def parse(records):
        numbers = ids(records)
        masks, values = tf.gather(tf.constant(MASKS), numbers), tf.cast(numbers[:, None], tf.float32)
        return values, targets(masks, values / 10), sample_weight(1 + values[:, 0])

    return tf.autograph.experimental.do_not_convert(parse)


SQUARES = ((MASKS - OUTPUTS) ** 2).mean(axis=(1, 2, 3))  # of a row
ALONE = lambda masks, _: masks  # noqa: E731
BOTH = lambda masks, values: {"m": masks, "c": values}  # noqa: E731


STRUCTURES = {
    "one tensor": (ALONE, lambda own: own),
    "a tuple of one": (ALONE, lambda own: (own,)),
    "a column": (ALONE, lambda own: own[:, None]),
    "one each": (BOTH, lambda own: {"m": own, "c": own}),
    "one each, one of them a column": (BOTH, lambda own: {"m": own, "c": own[:, None]}),
    "one for both": (BOTH, lambda own: own),
    "a column for both": (BOTH, lambda own: own[:, None]),
}


@pytest.mark.parametrize(
    ("structure", "weights"),
    some_slow(
        itertools.product(STRUCTURES, ("mask", "none")),
        [("one tensor", "mask"), ("one each, one of them a column", "none"), ("one for both", "mask")],
    ),
)
def test_sample_weights_in_a_structure_weigh_rows_of_masks(numbered, structure, weights):
    """Batches of as many rows as the masks are wide."""
    targets, sample_weight = STRUCTURES[structure]
    model = OfRows(classes=targets is BOTH)
    model.compile(
        keras.optimizers.SGD(0.0),
        {"m": "mse", "c": "mse"} if targets is BOTH else "mse",
        weighted_metrics={"m": ["mse"], "c": ["mse"]} if targets is BOTH else ["mse"],
    )
    given = {"global_batch_size": ROWS, "training": False, "parse": of_masks(targets, sample_weight)}
    found = model.evaluate(input_fn(numbered, weights=weights, **given), verbose=0, return_dict=True)
    rows = COUNT if weights == "none" else 15
    expected = {"mse": (OWN * SQUARES).sum() / OWN.sum(), "loss": (OWN * SQUARES).sum() / rows}
    if targets is BOTH:
        expected = {"m_mse": expected["mse"], "c_mse": (OWN * NUMBERS**2).sum() / OWN.sum() / 100}
        expected["loss"] = (OWN * (SQUARES + NUMBERS**2 / 100)).sum() / rows
    for name, value in expected.items():
        assert found[name] == pytest.approx(value, rel=1e-5), name


@pytest.mark.parametrize("weights", some_slow(["mask", "none"], ["mask"]))
@pytest.mark.parametrize(
    ("targets", "sample_weight"),
    [
        pytest.param(ALONE, lambda own: (own, own), id="two for one"),
        pytest.param(BOTH, lambda own: {"m": own}, id="one for one of two"),
        pytest.param(BOTH, lambda own: (own, own), id="without names"),
    ],
)
def test_sample_weights_that_pair_with_no_mask_are_refused_by_keras_alone(numbered, targets, sample_weight, weights):
    given = {"global_batch_size": ROWS, "training": False, "parse": of_masks(targets, sample_weight)}
    data = input_fn(numbered, weights=weights, **given)
    assert len(list(data)) == 3  # a loop takes it
    model = OfRows(classes=targets is BOTH)
    model.compile("sgd", "mse")
    with pytest.raises(UsageError, match=r"^parse returns sample_weight as "):
        model.evaluate(data, verbose=0)


INTEGERS = {  # shape of a row's targets and outputs, metrics
    "tokens": ((7,), (7, CLASSES), {"SparseCategoricalAccuracy": {}}),
    "as many tokens as rows": ((ROWS,), (ROWS, CLASSES), {"SparseCategoricalAccuracy": {}}),
    "several of 3 classes": (
        (3,),
        (3,),
        {"BinaryAccuracy": {}, "AUC": {"name": "auc"}, "Precision": {"name": "precision"}},
    ),
    "several of as many classes as rows": ((ROWS,), (ROWS,), {"BinaryAccuracy": {}, "AUC": {"name": "auc"}}),
    "one class": ((1,), (1,), {"BinaryAccuracy": {}, "F1Score": F1}),
    "several of 3 classes, floats": ((3,), (3,), {"F1Score": F1, "FBetaScore": F1}),
    "several of as many classes as rows, floats": ((ROWS,), (ROWS,), {"F1Score": F1}),
}


def of_integers(name, metrics):
    """Returns a function of records, a function that makes a compiled model, and all targets."""
    shape, of_outputs, _ = INTEGERS[name]
    draw = np.random.default_rng(11)
    outputs = draw.random((COUNT, *of_outputs)).astype(np.float32)
    several = shape != of_outputs
    outputs = outputs / outputs.sum(-1, keepdims=True) if several else outputs
    targets = draw.integers(0, 2, (COUNT, *shape)).astype(np.float32 if "floats" in name else np.int32)

    looked, parse = looking_up(outputs, targets)

    def compiled():
        model, loss = looked(), "sparse_categorical_crossentropy" if several else "binary_crossentropy"
        made = [getattr(keras.metrics, metric)(**options) for metric, options in metrics.items()]
        model.compile(keras.optimizers.SGD(0.0), loss, weighted_metrics=made)
        return model

    return tf.autograph.experimental.do_not_convert(parse), compiled, targets


@pytest.mark.parametrize(
    "name",
    some_slow(
        INTEGERS,
        [
            "as many tokens as rows",
            "several of as many classes as rows",
            "one class",
            "several of as many classes as rows, floats",
        ],
    ),
)
def test_integers_of_rank_2_are_weighed_as_tokens_and_as_classes(numbered, name):
    parse, compiled, targets = of_integers(name, INTEGERS[name][2])
    alone = compiled().evaluate(NUMBERS[:, None], targets, batch_size=COUNT, verbose=0, return_dict=True)
    data = input_fn(numbered, global_batch_size=ROWS, training=False, parse=parse)
    found = compiled().evaluate(data, verbose=0, return_dict=True)
    for key in alone:
        expected = alone[key] * (COUNT / 15 if key == "loss" else 1)
        assert found[key] == pytest.approx(expected, rel=1e-5), key


@pytest.mark.parametrize(
    "name",
    some_slow(["several of 3 classes", "several of as many classes as rows"], ["several of as many classes as rows"]),
)
def test_f1_of_integers_is_an_error_not_a_wrong_number(numbered, name):
    """The way out, of docs/feeding.md, is floats, as above."""
    parse, compiled, _ = of_integers(name, {"F1Score": F1})
    with pytest.raises(ValueError, match="f1_score/true_positives"):
        compiled().evaluate(input_fn(numbered, global_batch_size=ROWS, training=False, parse=parse), verbose=0)


def test_record_ids_beside_masks_are_as_they_are(numbered):
    """With weights="none" they follow the target, where weights would be."""
    parse = tf.autograph.experimental.do_not_convert(lambda records: of_masks(ALONE, lambda own: own)(records)[:2])
    given = {"global_batch_size": ROWS, "training": False, "parse": parse, "record_ids": True, "weights": "none"}
    found = np.concatenate([ids.numpy() for *_, ids in input_fn(numbered, **given)])
    np.testing.assert_array_equal(found, NUMBERS)
