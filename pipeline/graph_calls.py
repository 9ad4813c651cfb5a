"""Calls of Python functions by TensorFlow (NumPy functions that read windows, and the user's), with one-line errors.

A NumPy call that begins while the interpreter is finalized never returns, and the interpreter waits for it, so that a
script would hang at its end. So no call begins once the interpreter exits.
"""

from __future__ import annotations

import atexit
import contextlib
import dataclasses
import functools
import inspect
import logging
import random
import re
import threading
import time
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import tensorflow as tf

from pipeline.errors import DataError, PipelineError, UsageError, of_user

# Ops of tf.random, tf.random.Generator and tf.image that keep state (stateless ones begin with Stateless), and the
# clock, which may serve as a seed.
_STATEFUL_DRAW = re.compile(
    "(Random|Rng|Multinomial|TruncatedNormal|ParameterizedTruncatedNormal|Stateful(Random|Standard|Truncated|Uniform)"
    "|SampleDistortedBoundingBox|[A-Za-z]*CandidateSampler|Timestamp)"
)
# Keras layers that draw count their calls in a variable. Growing tables and queues could do the same.
_CHANGE = re.compile(
    "(Assign|Resource(Scatter|Apply|SparseApply|StridedSliceAssign|CountUpTo)|LookupTable(Insert|Remove)"
    "|Queue(Enqueue|Dequeue)|Stage|Unstage)"
)
_SHUFFLE = re.compile("Shuffle(AndRepeat)?Dataset")
_PYTHON = re.compile("(PyFunc|EagerPyFunc)")  # tf.numpy_function and tf.py_function
SEEDED = "seeded_by_keys"  # name of an op that calls Python with draws that depend only on its keys
_IS_SEEDED = re.compile(rf"(.*/)?{SEEDED}(_\d+)?")
_ADVICE = (
    "draw with pipeline.uniform(keys, draw) or tf.random.stateless_uniform, and wrap layers of Keras that draw: "
    "pipeline.augment(layer)"
)

KEYS, TRAINING = ASKED = ("keys", "training")  # arguments that a user's function gets by name
_NOT_KEYS = re.compile("(label|target|mask|weight|box)e?s?|y|y_true|sample_weights?")  # second arguments, but not keys

_logger = logging.getLogger("pipeline")


def as_given(function: Callable[..., Any]) -> Callable[..., Any]:
    """Returns a function as `tf.data.Dataset.map` would call it: converted by AutoGraph, if that is enabled."""
    autograph = tf.__internal__.autograph
    return autograph.tf_convert(function, autograph.control_status_ctx())


@dataclasses.dataclass(frozen=True)
class UserFunction:
    """A user's function of a batch, which gets further arguments by name.

    Attributes:
      name: name of the `input_fn` argument or method that is the function, for messages.
      function: user's function. Its first argument is the batch.
      by_position: whether the second argument is the keys, regardless of its name.
      asked: arguments from `ASKED` to pass by name.
      no_python: reason why it may not call Python, such as "portable=True runs it in other processes"; "" if it may.
    """

    name: str
    function: Callable[..., Any]
    by_position: bool
    asked: tuple[str, ...]
    no_python: str = ""

    @classmethod
    def of(cls, name: str, function: Callable[..., Any], any_keys: bool = False, no_python: str = "") -> UserFunction:
        """Returns a user's function, converted by AutoGraph as `tf.data.Dataset.map` would convert it.

        Args:
          name: name of the `input_fn` argument or method that is the function.
          function: user's function; arguments after the first are called `keys` or `training`, or have defaults.
          any_keys: whether a second argument without a default is the keys under almost any name.
          no_python: reason why the function may not call Python; "" if it may.

        Raises:
          UsageError: the function requires an unknown argument.
        """
        return cls(name, as_given(function), *_asked(name, function, any_keys), no_python)

    def __call__(self, batch: tf.Tensor, keys: Callable[[], tf.Tensor], training: bool) -> Any:
        """Calls the function and returns its result, in any structure.

        Args:
          batch: first argument.
          keys: function that returns the key of each row, uint64 (rows,); called only if the user's function takes
            keys.
          training: whether the rows are for training.

        Raises:
          UsageError: see `call_user`.
        """
        given = [keys()] if self.takes_keys else []

        def call(batch: tf.Tensor, *keys: tf.Tensor) -> Any:  # a partial would turn `training` into a tensor
            return self.unchecked(batch, *keys, training=training)

        return call_user(self.name, call, batch, *given, of=self.function, no_python=self.no_python)

    @property
    def takes_keys(self) -> bool:
        """Whether the function takes keys."""
        return self.by_position or KEYS in self.asked

    def unchecked(self, batch: tf.Tensor, *keys: tf.Tensor, training: bool) -> Any:
        """Calls the function without checks, with keys, uint64 (rows,), if it takes them, and returns its result."""
        named: dict[str, Any] = {TRAINING: training} if TRAINING in self.asked else {}
        if KEYS in self.asked:
            return self.function(batch, keys=keys[0], **named)
        return self.function(batch, *keys, **named)


def _asked(name: str, function: Callable[..., Any], any_keys: bool) -> tuple[bool, tuple[str, ...]]:
    """Returns `UserFunction.by_position` and `UserFunction.asked` for a function."""
    try:
        parameters = list(inspect.signature(function).parameters.values())
    except (TypeError, ValueError):  # a builtin without a signature
        return any_keys, ()
    if isinstance(function, functools.partial):  # a signature shows arguments bound by name as defaults
        parameters = [one for one in parameters if one.name not in function.keywords]
    if len(parameters) > 1 and parameters[0].name == "self":  # the batch would be self, the keys the batch
        raise UsageError(
            f"{name}: the function takes 'self', but gets none; decorate it with @staticmethod, or give a method of an "
            "object"
        )
    at = next((i for i, one in enumerate(parameters) if one.kind is one.VAR_POSITIONAL), None)
    if at is not None and at < 2:  # *arguments
        named = tuple(one.name for one in parameters[at:] if one.name in ASKED)
        return any_keys and KEYS not in named, named
    by_position, asked = False, []
    for place, one in enumerate(parameters[1:], 1):
        if one.kind in (one.VAR_POSITIONAL, one.VAR_KEYWORD):
            continue
        is_first, is_needed = place == 1 and one.kind is not one.KEYWORD_ONLY, one.default is one.empty
        # Keys are passed by position if possible: a decorator's wrapper may take (*arguments) and claim another
        # signature.
        may_be_keys = any_keys and is_needed and one.name != TRAINING and not _NOT_KEYS.fullmatch(one.name)
        if is_first and (one.name == KEYS or may_be_keys):
            by_position = True
        elif one.name in ASKED and one.kind is not one.POSITIONAL_ONLY:
            asked.append(one.name)
        elif is_needed:
            raise UsageError(
                f"{name}: the function needs {one.name!r}, but gets a batch and, by their names, keys (uint64, one per "
                "row) and training; call the argument by one of these names, give it a default, or bind it with "
                "functools.partial"
            )
    return by_position, tuple(asked)


def call_user(
    name: str,
    function: Callable[..., Any],
    *arguments: tf.Tensor,
    of: Callable[..., Any] | None = None,
    no_python: str = "",
) -> Any:
    """Calls a user's function on tensors and returns its result, in any structure.

    Args:
      name: name of the `input_fn` argument that is the function, for messages.
      function: user's function.
      *arguments: arguments of the call.
      of: function that the user wrote, if `function` wraps it.
      no_python: reason why the function may not call Python; "" if it may.

    Raises:
      UsageError: the function fails, draws random numbers that do not depend only on its arguments, changes a variable,
        or calls Python where it may not.
    """
    specs = [tf.TensorSpec(argument.shape, argument.dtype) for argument in arguments]
    try:
        traced = tf.function(function, autograph=False).get_concrete_function(*specs)
    except PipelineError:
        raise
    except Exception as error:
        given = ", ".join(f"{spec.dtype.name} {spec.shape}" for spec in specs)
        of_row, how = [tf.TensorSpec(spec.shape[1:], spec.dtype) for spec in specs], ""
        with contextlib.suppress(Exception):  # any error in user code
            tf.function(function, autograph=False).get_concrete_function(*of_row)
            how = (
                ". It works on one row, but gets a batch of them: tf.io.parse_example takes the place of "
                "tf.io.parse_single_example, and shapes begin with -1; tf.map_fn calls a function row by row"
            )
        raise UsageError(f"{name}: the function fails on {given}: {of_user(error)}{how}") from error
    _check_draws(name, of or function, traced, no_python)
    _check_repeats(name, lambda: tf.function(function, autograph=False).get_concrete_function(*specs), traced)
    return traced(*arguments)


def _check_draws(name: str, function: Callable[..., Any], traced: Any, no_python: str) -> None:
    """Refuses functions that would return other values after a resume; notes once that a Python function is opaque."""
    graph = traced.graph.as_graph_def()
    # The library has all called functions, including the bodies of branches, loops and datasets.
    for body in (graph.node, *(inner.node_def for inner in graph.library.function)):
        for node in body:
            if _STATEFUL_DRAW.match(node.op) or (_SHUFFLE.match(node.op) and _is_unseeded(node, body)):
                raise UsageError(
                    f"{name}: the function draws with the op {node.op}, whose numbers depend on how often it ran, not "
                    f"on the record; {_ADVICE}"
                )
            if _CHANGE.match(node.op):
                names = ", ".join(variable.name.split(":")[0] for variable in traced.variables)
                used = f"; the variables it uses: {names}" if names else ""
                raise UsageError(
                    f"{name}: the function changes what it will find at its next call, by the op {node.op}{used}. What "
                    f"it returns would depend on how often it ran, not on the record; {_ADVICE}"
                )
            if _PYTHON.match(node.op) and no_python:
                raise UsageError(
                    f"{name}: the function calls Python (the op {node.op}), but {no_python}; use TensorFlow's "
                    "operations, layers of Keras, or a recipe"
                )
            if _PYTHON.match(node.op) and not _IS_SEEDED.fullmatch(node.name):
                _say_unchecked(name, function)


def _check_repeats(name: str, trace: Callable[[], Any], traced: Any) -> None:
    """Refuses functions whose Python code draws during tracing: one number for all rows, and another after a resume."""
    before = _python_draws()
    again = _numbers(trace())
    if again == _numbers(traced) and before == _python_draws():
        return
    # The first trace may create objects, such as layers, that later ones find. Two traces may draw the same choice.
    if any(_numbers(trace()) != again for _ in range(_MORE_TRACES)):
        raise UsageError(
            f"{name}: the function computes other numbers each time that TensorFlow traces it, since its Python draws "
            f"(random, numpy.random) or reads the clock: once for all rows, and again after a resume; {_ADVICE}"
        )


def _python_draws() -> tuple[Any, ...]:
    """Returns the states of the generators that Python and NumPy share in the whole process."""
    return random.getstate(), str(np.random.get_state(legacy=False)["state"])


def _numbers(traced: Any) -> list[tuple[str, tuple[bytes, ...]]]:
    """Returns the operations of a graph with their numbers, in an order that depends only on these.

    Texts are left out because they contain names, which are new in each trace.
    """
    graph = traced.graph.as_graph_def()
    bodies = (graph.node, *(inner.node_def for inner in graph.library.function))
    return sorted((node.op, tuple(_numbers_of(node))) for body in bodies for node in body)


def _numbers_of(node: Any) -> Iterator[bytes]:
    for _, value in sorted(node.attr.items()):
        kind = value.WhichOneof("value")
        is_text = kind in ("s", "func", "placeholder") or (kind == "list" and (value.list.s or value.list.func))
        if not is_text and not (kind == "tensor" and value.tensor.dtype == tf.string.as_datatype_enum):
            yield value.SerializeToString(deterministic=True)


def _is_unseeded(node: Any, body: Any) -> bool:
    """Returns whether both seeds of a shuffling dataset are the constant 0: it then draws new ones at every call."""
    given = {other.name: other for other in body if other.op == "Const"}
    seeds = [given.get(text.split(":")[0]) for text in node.input[2:4]]
    return all(seed is not None and not tf.make_ndarray(seed.attr["value"].tensor).any() for seed in seeds)


def _say_unchecked(name: str, function: Callable[..., Any]) -> None:
    code = getattr(inspect.unwrap(function), "__code__", None) or getattr(function, "__qualname__", "")
    with _lock:
        is_new = code not in _unchecked
        _unchecked.add(code)
    if is_new:
        _logger.warning(
            "%s: the function calls Python (tf.numpy_function or tf.py_function): whether it draws random numbers "
            "cannot be checked; what does not depend on its arguments alone is different after a resume",
            name,
        )


_MORE_TRACES = 6  # of a function that may have drawn; they detect 98% of functions that flip a coin
_unchecked: set[Any] = set()  # code of functions already reported
_QUIET_SECONDS = 0.05  # after so long without a call, TensorFlow's buffers are full, or it has received the error
_MOST_SECONDS = 10.0

_lock = threading.Lock()
_calls: set[int] = set()
_errors: dict[str, PipelineError] = {}  # latest errors of functions, by their text
_MOST_ERRORS = 16
_state = {"ends": False, "last": 0.0}
_ASSERTED = re.compile(r"assertion failed: \[([^\n]*)\]")
_ESCAPED = re.compile(rb"\\([0-7]{3}|.)")
# TensorFlow escapes quotes, but not these substitutes.
_SHOWN = {ord("'"): "\N{RIGHT SINGLE QUOTATION MARK}", ord('"'): "\N{RIGHT DOUBLE QUOTATION MARK}"}
_ESCAPES = {b"n": b"\n", b"r": b"\r", b"t": b"\t"}


@tf.autograph.experimental.do_not_convert
def call_numpy(
    function: Callable[..., tuple[np.ndarray, ...]], arguments: list[tf.Tensor], dtypes: list, name: str | None = None
) -> list[tf.Tensor]:
    """Returns the results of a NumPy function as tensors; its errors become one-line TensorFlow errors."""

    def call(*values: np.ndarray) -> tuple[np.ndarray, ...]:
        problem = "the interpreter is exiting"
        with _reading() as may_begin:
            try:
                if may_begin:
                    return *function(*values), np.array(b"", object)
            except PipelineError as error:
                problem = _kept(error)
            except MemoryError as error:
                problem = (
                    f"not enough memory for a window ({error}): give a smaller shuffle_bytes, which changes the order"
                )
            nothing = (np.array([b""] if dtype == tf.string else [0], dtype.as_numpy_dtype) for dtype in dtypes)
            return *nothing, np.array(problem.translate(_SHOWN).encode(), object)

    # A Python error would reach the user as many lines with a stack; an assertion's message is one line. Under op
    # determinism, a stateful operation would make TensorFlow disable all parallelism and prefetching of an input; these
    # functions depend only on their arguments.
    *tensors, problem = tf.numpy_function(call, arguments, [*dtypes, tf.string], stateful=False, name=name)
    with tf.control_dependencies([tf.debugging.Assert(tf.equal(problem, ""), [problem])]):
        return [tf.identity(tensor) for tensor in tensors]


def _kept(error: PipelineError) -> str:
    """Keeps an error and returns the text that `error_of_input` looks up: only text passes through TensorFlow."""
    with _lock:
        while len(_errors) >= _MOST_ERRORS:
            del _errors[next(iter(_errors))]
        _errors[str(error)] = error.changed()  # a copy, because the traceback would keep its frames' arrays
    return str(error)


def error_of_input(message: str) -> PipelineError | None:
    """Returns the input's own error, given an op error's message; None if that has another cause."""
    if (said := message_of_input(message)) is None:
        return None
    return kept_error(message) or DataError(" ".join(said.split("] [")))  # tf.debugging.assert_* appends values


def kept_error(message: str) -> PipelineError | None:
    """Returns `error_of_input`'s result, but None for an assertion in TensorFlow's graph, which may be the user's."""
    found = _errors.get(message_of_input(message) or "")
    return found.changed() if found else None


def message_of_input(message: str) -> str | None:
    """Returns the text of the input's own error, given an op error's message; None if that has another cause."""
    asserted = _ASSERTED.search(message)
    return _unescaped(asserted[1]) if asserted else None


def _unescaped(text: str) -> str:
    """Returns a text without escaped quotes and octal escapes of non-ASCII bytes."""

    def character(match: re.Match[bytes]) -> bytes:
        code = match[1]
        return bytes([int(code, 8) & 0xFF]) if len(code) == 3 else _ESCAPES.get(code, code)

    found = _ESCAPED.sub(character, text.encode()).decode(errors="replace")
    return found.translate({ord(shown): chr(quote) for quote, shown in _SHOWN.items()})


@contextlib.contextmanager
def _reading() -> Iterator[bool]:
    """Marks a read by TensorFlow and yields whether it may begin."""
    me = threading.get_ident()
    with _lock:
        _calls.add(me)
    try:
        yield not _state["ends"]
    finally:
        with _lock:
            _calls.discard(me)
            _state["last"] = time.monotonic()


@atexit.register
def _end() -> None:
    _state["ends"] = True
    if not _state["last"] and not _calls:
        return
    # Let running calls finish, and fail calls that begin now, until TensorFlow stops calling.
    start = quiet = time.monotonic()
    while time.monotonic() - quiet < _QUIET_SECONDS and time.monotonic() - start < _MOST_SECONDS:
        time.sleep(_QUIET_SECONDS / 10)
        with _lock:
            quiet = time.monotonic() if _calls else max(quiet, _state["last"])


def release_arrays() -> None:
    """Makes TensorFlow release arrays that it no longer needs.

    A TensorFlow thread without the interpreter's lock leaves the release to the next NumPy call, and a loop inside one
    `tf.function` makes no such call for a whole epoch.
    """
    tf.numpy_function(_nothing, [], tf.int64)


@tf.autograph.experimental.do_not_convert
def _nothing() -> np.int64:
    return np.int64(0)
