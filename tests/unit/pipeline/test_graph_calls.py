"""The input's errors as they come out of TensorFlow."""

import functools
import threading
import time
import types

import keras
import numpy as np
import pytest
import tensorflow as tf

from pipeline import graph_calls
from pipeline.errors import DataError, UsageError
from pipeline.graph_calls import call_numpy, call_user, error_of_input, message_of_input

NAMES = ["train-00001.tfrecord, record 7: the record's CRC is wrong", 'says "no"', "dä/日本", "[x] [y]", "a\\b\n\t"]


@pytest.mark.parametrize("text", NAMES)
@pytest.mark.parametrize("in_a_dataset", [False, True])
def test_the_words_of_the_input_are_said_as_they_were(text, in_a_dataset):
    """TensorFlow escapes them as in C and wraps them in where in the graph it was."""

    def refuse(_=0):
        with tf.control_dependencies([tf.debugging.Assert(tf.constant(False), [tf.constant(text)])]):
            return tf.constant(0)

    with pytest.raises(tf.errors.InvalidArgumentError) as caught:
        list(tf.data.Dataset.range(1).map(refuse)) if in_a_dataset else tf.function(refuse)()
    assert message_of_input(caught.value.message) == text


def test_quotes_of_the_input_are_not_escaped():
    text = "the file 'a', \"b\": the record's CRC is wrong"

    def fails(_):
        raise DataError(text)

    with pytest.raises(tf.errors.InvalidArgumentError) as caught:
        list(tf.data.Dataset.range(1).map(lambda n: call_numpy(fails, [n], [tf.int64])[0]))
    assert "the file ’a’, ”b”: the record’s CRC is wrong" in caught.value.message  # noqa: RUF001
    assert "\\" not in caught.value.message
    assert message_of_input(caught.value.message) == text


def test_op_determinism_leaves_reading_ahead(op_determinism):
    """TensorFlow then takes prefetching and parallelism out of a dataset with a stateful operation."""
    called = threading.Semaphore(0)

    def read(number):
        called.release()
        return [number]

    batches = iter(tf.data.Dataset.range(9).map(lambda n: call_numpy(read, [n], [tf.int64])[0]).prefetch(4))
    assert int(next(batches)) == 0
    for _ in range(4):
        assert called.acquire(timeout=60)  # by nobody's demand but for the first


def test_other_errors_are_not_the_inputs():
    with pytest.raises(tf.errors.InvalidArgumentError) as caught:
        tf.reshape(tf.zeros([3]), [2])
    assert message_of_input(caught.value.message) is None


def said(text):
    return f"assertion failed: [{text}]\n\t [[{{{{node Assert}}}}]]"


def test_the_last_sixteen_errors_are_found_again_with_their_fields(monkeypatch):
    monkeypatch.setattr(graph_calls, "_errors", {})
    for number in range(20):
        graph_calls._kept(DataError("is corrupt", path="a", record=number, advice="get it again"))
    found = [error_of_input(said(f"a, record {number}: is corrupt; get it again")) for number in range(20)]
    assert [error.record for error in found] == [None] * 4 + [*range(4, 20)]
    assert {error.advice for error in found[4:]} == {"get it again"}
    assert len({str(error) for error in found}) == 20  # of the first four the sentence is left
    assert error_of_input("Out of range: End of sequence") is None


def test_an_error_comes_with_values_of_each_type_beside_it():
    """TensorFlow wants as many results as without an error."""

    def fails(number):
        raise MemoryError(f"Unable to allocate {number} GiB")

    words = r"not enough memory for a window \(Unable to allocate 7 GiB\): give a smaller shuffle_bytes"
    with pytest.raises(tf.errors.InvalidArgumentError, match=words):
        call_numpy(fails, [tf.constant(7)], [tf.int64, tf.string, tf.uint8])
    doubled, text = call_numpy(lambda n: (n * 2, np.array(b"x", object)), [tf.constant(7)], [tf.int32, tf.string])
    assert (int(doubled), text.numpy()) == (14, b"x")


def test_no_call_begins_once_the_interpreter_exits_and_those_that_have_begun_end(monkeypatch):
    monkeypatch.setattr(graph_calls, "_state", {"ends": False, "last": 0.0})
    monkeypatch.setattr(graph_calls, "_calls", set())
    begun, ended = threading.Event(), []

    def slow():
        with graph_calls._reading() as may_begin:
            begun.set()
            time.sleep(0.2)
            ended.append(may_begin)

    thread = threading.Thread(target=slow)
    thread.start()
    assert begun.wait(60)
    graph_calls._end()
    assert ended == [True]
    thread.join()
    with graph_calls._reading() as may_begin:
        assert not may_begin
    with pytest.raises(tf.errors.InvalidArgumentError, match="the interpreter is exiting"):
        call_numpy(lambda n: (n,), [tf.constant(7)], [tf.int32])


def test_an_exit_without_a_call_does_not_wait(monkeypatch):
    monkeypatch.setattr(graph_calls, "_state", {"ends": False, "last": 0.0})
    monkeypatch.setattr(graph_calls, "_calls", set())
    clock = types.SimpleNamespace(monotonic=time.monotonic, sleep=lambda _: pytest.fail("waits"))
    monkeypatch.setattr(graph_calls, "time", clock)
    graph_calls._end()


def image_rows():
    return tf.constant(np.arange(2 * 4 * 4 * 3, dtype=np.float32).reshape(2, 4, 4, 3))


@pytest.fixture
def made_before():
    """Makes all that functions find outside of any graph, as a module or a script does; unseeded draws stay so."""
    tf.random.set_seed(None)  # other tests of this process seed all draws
    for name in ("variable", "table", "grows", "generator", "flip", "rotation", "dropout", "teacher"):
        held(name)


@functools.cache
def held(name):
    """Returns the values that a called function finds; made late, because tests still choose TensorFlow's devices."""
    table = lambda: tf.lookup.KeyValueTensorInitializer(tf.constant(["a"]), tf.constant([1.0]))  # noqa: E731
    return {
        "variable": lambda: tf.Variable(0.0),
        "table": lambda: tf.lookup.StaticHashTable(table(), 0.0),
        "grows": lambda: tf.lookup.experimental.MutableHashTable(tf.int64, tf.float32, 0.0),
        "generator": lambda: tf.random.Generator.from_seed(1),
        "flip": lambda: keras.layers.RandomFlip(seed=1),
        "rotation": lambda: keras.layers.RandomRotation(0.1, seed=2),
        "dropout": lambda: keras.layers.Dropout(0.5, seed=3),
        "teacher": lambda: keras.Sequential([keras.Input((4, 4, 3)), keras.layers.Dropout(0.5), keras.layers.Dense(3)]),
    }[name]()


def assigns(images):
    held("variable").assign_add(1.0)
    return images + held("variable")


def inserts(images):
    held("grows").insert(tf.constant([1], tf.int64), tf.constant([1.0]))
    return images


def shuffled(images, seed=None):
    rows = tf.data.Dataset.range(9).shuffle(9, seed=seed).map(lambda n: n * 3)
    return images + tf.cast(rows.reduce(np.int64(0), lambda total, n: total * 2 + n), tf.float32)


def boxed(images):
    boxes = tf.zeros([1, 0, 4])
    box = tf.image.sample_distorted_bounding_box([4, 4, 3], boxes, use_image_if_no_bounding_boxes=True)
    return images + tf.cast(box[0][0], tf.float32)


@pytest.mark.parametrize(
    ("function", "op"),
    [
        (lambda images: held("flip")(images, training=True), "AssignVariableOp"),
        (lambda images: held("rotation")(images, training=True), "AssignVariableOp"),
        (lambda images: held("dropout")(images, training=True), "AssignVariableOp"),
        (lambda images: images + keras.random.uniform(images.shape), "AssignVariableOp"),
        (assigns, "AssignAddVariableOp"),
        (
            lambda images: tf.cond(images[0, 0, 0, 0] > 0, lambda: assigns(images), lambda: images),
            "AssignAddVariableOp",
        ),
        (lambda images: tf.map_fn(assigns, images), "AssignAddVariableOp"),
        (lambda images: tf.function(assigns)(images + 1), "AssignAddVariableOp"),
        (inserts, "LookupTableInsertV2"),
        (lambda images: images * held("generator").uniform([]), "RngReadAndSkip"),
        (tf.random.shuffle, "RandomShuffle"),
        (shuffled, "ShuffleDatasetV3"),
        (boxed, "SampleDistortedBoundingBoxV2"),
        (lambda images: images * tf.cast(tf.timestamp(), tf.float32), "Timestamp"),
    ],
)
@pytest.mark.usefixtures("made_before")
@pytest.mark.quick(3)
def test_what_depends_on_how_often_it_ran_is_refused(function, op):
    with pytest.raises(
        UsageError, match=f"^parse: the function .* by the op {op}|^parse: the function draws .* op {op},"
    ):
        tf.data.Dataset.from_tensors(image_rows()).map(lambda images: call_user("parse", function, images))


@pytest.mark.parametrize(
    "function",
    [
        lambda images: images + held("variable"),
        lambda images: images + held("table").lookup(tf.constant("a")),
        lambda images: images + held("grows").lookup(tf.constant(3, tf.int64)),
        lambda images: held("flip")(images, training=False),
        lambda images: held("teacher")(images, training=False),
        lambda images: images * tf.random.stateless_uniform([], [1, 2]),
        lambda images: images + keras.random.uniform(images.shape, seed=3),
        lambda images: shuffled(images, seed=4),
    ],
)
@pytest.mark.usefixtures("made_before")
def test_what_depends_on_its_arguments_alone_is_allowed(function):
    made = tf.data.Dataset.from_tensors(image_rows()).map(lambda images: call_user("parse", function, images)).repeat(2)
    first, second = made.as_numpy_iterator()
    np.testing.assert_array_equal(first, second)


@pytest.mark.parametrize("wrap", [tf.numpy_function, tf.py_function])
def test_of_a_python_function_is_said_once_that_it_cannot_be_checked(wrap, caplog, monkeypatch):
    monkeypatch.setattr(graph_calls, "_unchecked", set())

    def drawn(images):
        return tf.ensure_shape(wrap(lambda values: values, [images], tf.float32), images.shape)

    for _ in range(2):
        call_user("augment", drawn, image_rows())
    assert [record.message.split(":")[0] for record in caplog.records] == ["augment"]
    assert "whether it draws random numbers cannot be checked" in caplog.text
