"""A mixture whose weights change, on several processes and devices: killed and resumed, logged, watched, made again."""

import random
import re
import time

import pytest

from tests.datasets import write_dataset
from tests.runs import checkpoint_bytes, finish, start, start_workers, wait_for_step

STEPS = 40
# Units of 4 rows: 16 + 8 rows, then 4 + 20 from step 13 on, then 12 + 12. The sources' epochs, of 17 and 10 units, end
# within steps, and the changes lie in the middle of epochs.
ROWS = ((0, (16, 8)), (13, (4, 20)), (27, (12, 12)))
FLAGS = (
    "--global_batch_size=24",
    "--model=lenet",
    "--distort=flip | normalize",
    "--eval_split=none",
    "--virtual_replicas=4",
    f"--train_steps={STEPS}",
)


@pytest.fixture(scope="module")
def folders(tmp_path_factory):
    path = tmp_path_factory.mktemp("data")
    write_dataset(path / "a", (40, 26), (16, 16, 3))
    write_dataset(path / "b", (39,), (16, 16, 3))
    return path


@pytest.fixture(scope="module")
def mixture(folders):
    return f"{folders}/a=1,{folders}/b=1"


def schedule_of(folders, rows=ROWS):
    """Returns the flag's value."""
    return ";".join(f"{first}:{folders}/a={a},{folders}/b={b}" for first, (a, b) in rows)


@pytest.fixture(scope="module")
def flags(folders):
    return (*FLAGS, f"--mixture_schedule={schedule_of(folders)}")


@pytest.fixture(scope="module")
def whole(mixture, flags, tmp_path_factory):
    """Returns the bytes of the last checkpoint of a run of one process."""
    folder = tmp_path_factory.mktemp("whole")
    [(code, _, err)] = finish(start(mixture, folder, *flags))
    assert (code, err) == (0, "")
    return checkpoint_bytes(folder, STEPS)


def test_two_processes_end_with_the_same_bits(mixture, flags, whole, tmp_path):
    outputs = finish(*start_workers(mixture, [tmp_path / "two"] * 2, *flags))
    assert {code for code, _, _ in outputs} == {0}, outputs
    assert checkpoint_bytes(tmp_path / "two", STEPS) == whole


@pytest.mark.slow
@pytest.mark.parametrize("first", [2, 1])
def test_killed_and_resumed_on_other_processes_across_a_change(mixture, flags, whole, tmp_path, first):
    more = (*flags, "--checkpoint_every=3", "--log_every=2", "--steps_per_loop=2")
    run = [tmp_path / "run"]
    begun = start_workers(mixture, run * 2, *more) if first == 2 else [start(mixture, *run, *more)]
    wait_for_step(begun[0], 8)
    time.sleep(random.Random(first).uniform(0, 0.3))
    for worker in begun:
        worker.kill()
    finish(*begun)
    saved = max(int(path.stem.split("-")[1]) for path in run[0].glob("ckpt-*.index"))
    resumed = finish(*([start(mixture, *run, *more)] if first == 2 else start_workers(mixture, run * 2, *more)))
    assert {(code, err) for code, _, err in resumed} == {(0, "")}, resumed
    assert re.search(rf"resumed from .*ckpt-{saved}\b", resumed[0][1])
    assert checkpoint_bytes(tmp_path / "run", STEPS) == whole


@pytest.mark.slow
def test_devices_of_one_process_end_with_the_same_bits(mixture, flags, whole, tmp_path):
    [(code, _, err)] = finish(start(mixture, tmp_path / "run", *flags, "--strategy=mirrored", "--num_replicas=2"))
    assert (code, err) == (0, "")
    assert checkpoint_bytes(tmp_path / "run", STEPS) == whole
