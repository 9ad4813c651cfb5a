"""The compiled code under AddressSanitizer and UndefinedBehaviorSanitizer, over arguments that fit or almost do."""

import os
import pickle
import subprocess
import sys
import sysconfig

import numpy as np
import pytest

from tests.kernels import cases, expected, programs
from tests.kernels.calls import Alias, Buffer, Case, Tensor

needs_sanitizers = pytest.mark.skipif(bool(reason := programs.sanitizers()), reason=reason)
SOURCES = {source.name: source for source in programs.sources()}
OPERATIONS, NARROW = "pipeline.operations._operations", "-DNARROW"
CALLS, SEEDS = 1500, 4


@pytest.fixture(scope="module")
def program_of(tmp_path_factory):
    """Builds the program of a source with some flags once."""
    built = {}

    def program(name, *flags):
        if (name, flags) not in built:
            folder = tmp_path_factory.mktemp(name)
            built[name, flags] = programs.build(folder, SOURCES[name], [*programs.SANITIZED, *flags])
        return built[name, flags]

    return program


def skip_unless_wide(program):
    if not programs.resizes_wide(program):
        pytest.skip("nothing resizes with vectors of 64 bytes: the processor lacks VBMI2, or the compiler is too old")


@pytest.mark.slow
@needs_sanitizers
@pytest.mark.parametrize("seed", range(SEEDS))
@pytest.mark.parametrize(("name", "flags"), [*((name, ()) for name in SOURCES), (OPERATIONS, (NARROW,))])
def test_no_argument_makes_the_compiled_code_leave_its_memory(name, flags, seed, program_of):
    program = program_of(name, *flags)
    given = programs.drawn(program, SOURCES[name], seed, CALLS)
    results = programs.run(program, given)
    for case, result in zip(given, results, strict=True):
        expected.check(case, result)
    # Else the cases would test the checks of the arguments alone, or none of them.
    for called in {case.name for case in given}:
        refused = [bool(r.problem) for c, r in zip(given, results, strict=True) if c.name == called]
        assert 0.05 < np.mean(refused) < 0.6, called


@pytest.mark.slow
@needs_sanitizers
@pytest.mark.parametrize(
    ("flags", "shuffles"), [((), True), ((NARROW,), True), ((), False)], ids=["wide", "narrow", "no shuffles"]
)
def test_other_builds_give_the_same(flags, shuffles, program_of, tmp_path):
    """A narrow build under sanitizers has nothing that only newer processors can; the installed one chooses it.

    Older compilers cannot shuffle vectors, and take them apart value by value. They have no wide build either.
    """
    source = SOURCES[OPERATIONS]

    def changed(name, text):
        del name
        return text if shuffles else text.replace("__has_builtin(__builtin_shufflevector)", "0")

    installed = programs.build(tmp_path, source, ["-DNDEBUG", *flags], change=changed)
    if shuffles and not flags:
        skip_unless_wide(installed)
        assert programs.resizes_wide(program_of(source.name))  # so the sanitizers see it, too
    assert programs.resizes_wide(installed) == (shuffles and not flags)
    given = programs.drawn(installed, source, 99, CALLS)
    assert programs.run(installed, given) == programs.run(program_of(source.name, NARROW), given)


@pytest.mark.slow
@needs_sanitizers
@pytest.mark.parametrize("flags", [(), (NARROW,)], ids=["wide", "narrow"])
def test_words_of_a_line_do_not_reach_into_those_of_pixels(flags, tmp_path):
    """The compiler is told so. Lines of few pixels with many channels have more whole pixels than whole pieces."""
    old = "to[c] = (w[0]"

    def checked(name, text):
        assert name != "_resize.c" or text.count(old) == 1
        return text.replace(old, f"if (to + c >= four) __builtin_trap();\n            {old}")

    program = programs.build(tmp_path, SOURCES[OPERATIONS], [*programs.SANITIZED, *flags], change=checked)
    if not flags:
        skip_unless_wide(program)
    image, part = np.zeros((5, 4, 100), np.uint8), np.array([0, 0, 5, 4])
    inputs = zip(("uint8", "int32", "int32", "bool"), (image, part, np.array([3, 1]), np.array(False)), strict=True)
    [result] = programs.run(program, [Case("StepfeedResize", tuple(Tensor(*each) for each in inputs), "uint8")])
    assert (result.problem, result.shape) == ("", (3, 1, 100))


# One off, or not checked at all: a file, a text of it, and what stands for that then.
U, V, O, P, R = "_unpack.c", "_planes.c", "_operations.c", "_pixels.c", "_resize.c"  # noqa: E741
LONGER = "if (length > (size_t)(from->end - from->begin)) return 0;"
VOLUME = "shape.tall * shape.wide * shape.crops"
OVERFLOW = "__builtin_mul_overflow(shape.tall * shape.wide, shape.crops, &bytes)"
FAULTS = {
    "frames end one byte behind the block": (U, "at[count] - at[0] <= size", "at[count] - at[0] <= size + 1"),
    "a row is behind the last one": (U, "w->row_of[i] >= w->rows", "w->row_of[i] > w->rows"),
    "a field may be longer than the record": (U, LONGER, ""),
    "numbers may overlap what is written": (U, 'return "arrays overlap"', "continue"),
    "numbers may lie anywhere": (U, 'return "an array is not aligned"', "continue"),
    "a place may be behind the memory": (U, "|| places[count] > of[MEMORY].len", "&& places[count] > 0"),
    "images are smaller than their planes": (U, "shape[COUNT] * pixels != of[IMAGES_OF].len", "0"),
    "pixels before the last ones are too many": (V, "i + WIDE <= plane", "i < plane"),
    "values are taken behind the last one": (V, "size / PERIOD < MOST ? size / PERIOD : MOST", "MOST"),
    "a row is behind the last image": (O, "rows[i] >= shape->images", "rows[i] > shape->images"),
    "a crop is one line too low": (O, "top + y < shape->height", "top + y <= shape->height"),
    "a part to turn is one line too low": (
        O,
        "(int64_t)part[i] + part[i + 2] > TF_Dim(inputs[STORED], i)",
        "(int64_t)part[i] + part[i + 2] > TF_Dim(inputs[STORED], i) + 1",
    ),
    "a record ends one byte behind the memory": (O, "bounds[2 * i + 1] > size", "bounds[2 * i + 1] > size + 1"),
    "a string has no room for its zero": (O, "(size + ALIGNED)", "(size + ALIGNED - 1)"),
    "a pixel moves in from the right of its frame": (P, "x = x > most_x ? most_x : x;", ""),
    "a pixel moves in from above its frame": (P, "y = y < least ? least : y;", ""),
    "weights may be of any line": (P, "table[0] < 0 || table[0] + taps > before", "0"),
    "noise may begin anywhere": (P, "given[TOP] < 0 || given[LEFT] < 0 || given[TALL]", "given[TALL]"),
    "a box is one line too tall": (
        P,
        "bottom < size.height ? bottom : size.height,",
        "bottom <= size.height ? bottom : size.height + 1,",
    ),
    "a box is as wide as it is given": (P, "left + wide < size.width ? left + wide : size.width", "left + wide"),
    "the first image is mixed with one before it": (P, "program->mixes && i % 2", "program->mixes"),
    "the last pixel of a flip has four bytes": (P, "x + TOGETHER < width", "x + TOGETHER <= width"),
    "a grey may be more than a number holds": (
        P,
        "grey > INT32_MIN && grey < INT32_MAX ? (int32_t)grey : 0",
        "(int32_t)grey",
    ),
    "a line has no room for a whole vector": (P, "in_vectors(lanes_of(size))", "lanes_of(size)"),
    "the last pixels of words are sixteen bytes": (P, "REACH = 6", "REACH = 5"),
    "the floats have no room for all lines": (R, "aligned(4 * STRIP * lines)", "aligned(4 * STRIP)"),
    "the last strip of a part is as wide as others": (R, "if (lanes < STRIP)", "if (lanes < 1)"),
    "a line below the part is summed": (
        R,
        "within(down->starts[rows[ABREAST - 1]] + down->most, before.height)",
        "down->starts[rows[ABREAST - 1]] + down->most",
    ),
    "a field may be longer than its record": (O, "if (size > (uint64_t)(from->end - from->at)) return 0;", ""),
    "a part may end behind its string": (O, "bounds[1] > (int64_t)size", "bounds[1] > (int64_t)size + 1"),
    "a row may be behind the last string": (O, "row >= TF_Dim(inputs[STRINGS], 0)", "row > TF_Dim(inputs[STRINGS], 0)"),
    "a frame may end before its size": (O, "end - at < 1 + OF_FRAME", "end - at < 1"),
    "there is no room for the last pixel": (R, "words_of(width, channels) + ", ""),
    "the size of the crops overflows": (O, OVERFLOW, f"(bytes = {VOLUME}, 0)"),
}
WIDE_FAULTS = {  # of rooms that are large enough for vectors of 32 bytes
    "the sums have no room for wide vectors": (R, "aligned(4 * ABREAST * lanes)", "aligned(4 * 8 * lanes)"),
    "the words have no room for wide vectors": (R, "aligned(4 * ABREAST * (", "aligned(4 * 8 * ("),
}


def run_all(program, source):
    for seed in range(SEEDS):
        programs.run(program, programs.drawn(program, source, seed, CALLS))


def source_with(file):
    [source] = [source for source in SOURCES.values() if any(path.endswith(f"/{file}") for path in source.files)]
    return source


@pytest.mark.parametrize("fault", [*FAULTS, *WIDE_FAULTS])
def test_what_a_planted_fault_replaces_is_there_once(fault):
    file, old, _ = {**FAULTS, **WIDE_FAULTS}[fault]
    [path] = [programs.ROOT / path for path in source_with(file).files if path.endswith(f"/{file}")]
    assert path.read_text().count(old) == 1


@pytest.mark.slow
@needs_sanitizers
@pytest.mark.parametrize("fault", [*FAULTS, *WIDE_FAULTS])
def test_a_planted_fault_is_found_and_its_file_named(fault, tmp_path):
    file, old, new = {**FAULTS, **WIDE_FAULTS}[fault]
    source = source_with(file)

    def planted(name, text):
        return text.replace(old, new) if name == file else text

    flags = [NARROW] if fault in FAULTS else []  # the same code on every processor
    program = programs.build(tmp_path, source, [*programs.SANITIZED, *flags], change=planted)
    if fault in WIDE_FAULTS:
        skip_unless_wide(program)
    with pytest.raises(programs.FaultError) as raised:
        run_all(program, source)
    found = str(raised.value)
    assert (file in found and ("AddressSanitizer" in found or "runtime error" in found)) or "TensorFlow ends" in found


@pytest.mark.slow
@needs_sanitizers
def test_the_module_is_called_by_python_itself(tmp_path):
    """The driver's fakes of Python may be wrong; this has Python's own buffers, of NumPy's arrays."""
    source = SOURCES["pipeline.read._unpack"]
    module = tmp_path / f"_unpack{sysconfig.get_config_var('EXT_SUFFIX')}"
    include = f"-I{sysconfig.get_paths()['include']}"
    files = [str(programs.ROOT / file) for file in source.files]
    command = ["cc", *programs.SANITIZED, *source.flags, "-shared", "-fPIC", include, *files, "-o", str(module)]
    subprocess.run(command, check=True, cwd=programs.ROOT)
    rng = np.random.default_rng(0)
    calls = [as_plain(cases.call(rng, name)) for name in cases.FUNCTIONS for _ in range(CALLS)]
    (tmp_path / "calls").write_bytes(pickle.dumps(calls))
    environment = {
        **os.environ,
        "LD_PRELOAD": str(programs.library("libasan.so")),
        "ASAN_OPTIONS": "detect_leaks=0",
        "PYTHONMALLOC": "malloc",
    }
    program = [sys.executable, str(programs.HERE / "call_unpack.py"), str(module), str(tmp_path / "calls")]
    done = subprocess.run(program, capture_output=True, check=False, text=True, env=environment)
    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout.startswith(f"{len(calls)} calls, ")


def as_plain(case):
    """Returns a call without this project's classes."""
    arguments = []
    for argument in case.arguments:
        if isinstance(argument, Buffer):
            arguments.append(("buffer", argument.content, argument.offset))
        elif isinstance(argument, Alias):
            arguments.append(("alias", argument.of, argument.begin, argument.size))
        else:
            arguments.append(("file", argument.content))
    return case.name, arguments
