"""Single-line faults in what says which record is fed at which row: with each of them the audit exits with 1."""

import contextlib
import importlib
import pathlib
import shutil
import sys

import pytest

from tests.datasets import write_dataset

ROOT = pathlib.Path(__file__).resolve().parents[4]

# 99 records in 4 streams of 4 windows, 9 steps of 12 rows; 2 workers with 2 replicas each.
FLAGS = ["--global_batch_size=12", "--workers=2", "--replicas=4", "--streams=4", "--shuffle_bytes=160", "--epoch=2"]

FEED = "order/feed.py"
FAULTS = {
    "rows shifted by a replica": ("order/sharding.py", "+ local_replica) * rows", "+ local_replica + 1) * rows"),
    "a worker has its neighbour's rows": (FEED, "Feed(order, arrays, first,", "Feed(order, arrays, 3 * (first == 0),"),
    "streams begin one late": (
        "order/order.py",
        "* self.num_records // self.streams",
        "* self.num_records // self.streams + 1",
    ),
    "a stream is skipped": (FEED, "return self.arrays.range(stop", "return 1 + self.arrays.range(stop"),
    "a window's first bound is off by one": (
        FEED,
        "return starts + window * lengths // count",
        "return starts + window * lengths // count + 1",
    ),
    "the last window is short": (FEED, "& (lengths == 0), 1, 0)", "& (lengths > 0), -1, 0)"),
    "a window's permutation is dropped": (FEED, "if self.order.training:", "if False:"),
    "a window's key is of another epoch": (
        FEED,
        "self.order.seed, epoch, self._stream",
        "self.order.seed, epoch + 1, self._stream",
    ),
    "a window's key is of another window": (
        FEED,
        "self._stream_numbers(), window)",
        "self._stream_numbers(), window + 1)",
    ),
    "shards are laid as in another epoch": (FEED, "order.seed, epoch)", "order.seed, epoch + 1)"),
    "record ids are off by one": (FEED, "at) + pieces[:, 1]", "at) + pieces[:, 1] + 1"),
    "a piece is left out": (FEED, "maximum(high - low, 0)", "maximum(high - low - 1, 0)"),
    "pieces begin one late": (
        FEED,
        "gather(begin, interval), first) - first",
        "gather(begin, interval), first) - first + 1",
    ),
    "padding is from the wrong end": (
        FEED,
        "lengths - 1 - (offsets - lengths) % last_window",
        "(offsets - lengths) % last_window",
    ),
    "padding is of the window before": (FEED, "lengths - 1 - (offsets -", "lengths - 8 - (offsets -"),
    "the mask of real rows is inverted": (FEED, "real=arrays.reshape(real,", "real=arrays.reshape(~real,"),
    "a padding row is real": (FEED, "real = offsets < lengths", "real = offsets <= lengths"),
    "real rows are counted wrong": (FEED, "order.num_records - steps *", "order.num_records - (steps + 1) *"),
    "the tail is lost": (FEED, "rows.begin + rows.sizes - begin, 0)", "rows.begin - begin, 0)"),
    "the tail begins one late": (FEED, "tail_begin = starts + first_step", "tail_begin = starts + 1 + first_step"),
    "the last step is missing": (
        FEED,
        "self.order.windows, self.order.steps_per_epoch, steps",
        "self.order.windows, self.order.steps_per_epoch - 1, steps",
    ),
    "an epoch is one step short": (
        "order/order.py",
        "return -(-num_records // global_batch_size)",
        "return num_records // global_batch_size",
    ),
    "a run begins one window late": (FEED, "maximum(lengths, 1)) - 1, windows)", "maximum(lengths, 1)), windows)"),
    "a resumed run repeats a step": (
        FEED,
        "step - self.steps_before(window), 0)",
        "step - 1 - self.steps_before(window), 0)",
    ),
    "windows are those of the epoch before": (
        FEED,
        "return number // self.order.windows",
        "return number // self.order.windows - 1",
    ),
    "contiguous rows overlap": (FEED, "count + arrays.sums_before(is_other)", "arrays.sums_before(is_other)"),
    "the tail is not moved with its rows": (FEED, "next_tail=moved(self.next_tail)", "next_tail=self.next_tail"),
    "padded elements count as complete": (
        FEED,
        "arrays.all_of_row(self.real), self.num_elements, numbers",
        "arrays.all_of_row(self.real), self.num_elements, self.num_elements",
    ),
    "windows are twice as large": ("order/order.py", "-(-longest // capacity)", "-(-longest // capacity // 2)"),
    "the hash is another one": ("order/hashing.py", "z, np.uint64(27)", "z, np.uint64(28)"),
    "hashes that are nearly equal are not ordered": (
        "order/hashing.py",
        "numbers &= low",
        "numbers &= low >> np.uint64(1)",
    ),
}


@pytest.fixture(scope="module")
def data(tmp_path_factory):
    folder = tmp_path_factory.mktemp("data")
    write_dataset(folder, (30, 0, 25, 44), (2, 3, 1))
    return folder


@pytest.fixture(scope="module")
def copy(tmp_path_factory):
    folder = tmp_path_factory.mktemp("copy")
    shutil.copytree(ROOT / "pipeline", folder / "pipeline", ignore=shutil.ignore_patterns("__pycache__"))
    return folder / "pipeline"


@contextlib.contextmanager
def imported_from(folder):
    """Context in which `pipeline` is the package of another folder, freshly imported."""
    own = {name: module for name, module in sys.modules.items() if name.split(".")[0] == "pipeline"}
    bytecode, sys.dont_write_bytecode = sys.dont_write_bytecode, True
    sys.path.insert(0, str(folder))
    for name in own:
        del sys.modules[name]
    importlib.invalidate_caches()
    try:
        yield
    finally:
        for name in [name for name in sys.modules if name.split(".")[0] == "pipeline"]:
            del sys.modules[name]
        sys.modules.update(own)
        sys.path.remove(str(folder))
        sys.dont_write_bytecode = bytecode


def audit(package, data):
    """Returns the exit code of the audit of a copy of the package."""
    with imported_from(package.parent):
        command = importlib.import_module("pipeline.audit.__main__")
        assert pathlib.Path(command.__file__).is_relative_to(package)
        with pytest.raises(SystemExit) as ended:
            command.commandline.run("pipeline.audit", command.main, [str(data), *FLAGS])
    return ended.value.code


def test_without_a_fault_the_proof_holds(copy, data, capsys):
    assert audit(copy, data) in (None, 0)
    out = capsys.readouterr().out
    assert out.splitlines()[-1].startswith("proof holds: each of 99 records")


@pytest.mark.parametrize("fault", FAULTS)
def test_with_a_fault_the_audit_exits_with_1(copy, data, capsys, fault):
    file, text, wrong = FAULTS[fault]
    source = (copy / file).read_text()
    assert source.count(text) == 1, f"{file}: {source.count(text)} times {text!r}"
    (copy / file).write_text(source.replace(text, wrong))
    try:
        code = audit(copy, data)
    finally:
        (copy / file).write_text(source)
    captured = capsys.readouterr()
    assert code == 1, captured.out
    assert captured.out.splitlines()[-1] == "proof FAILS"
    assert captured.err.count("\n") == 1
    print(f"{fault}: {captured.err}")
