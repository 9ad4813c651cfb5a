"""A mixture whose weights change, on several processes and devices: killed and resumed, logged, watched, made again."""

import json
import random
import re
import shutil
import time

import pytest

from pipeline import input_fn
from pipeline.audit import __main__ as audit
from pipeline.errors import DataError
from pipeline.inspect import __main__ as inspect
from tests.helpers.datasets import write_dataset
from tests.helpers.runs import (
    checkpoint_bytes,
    forget,
    kill,
    saved_steps,
    start,
    start_workers,
    succeed,
    train,
    wait_for_step,
)
from trainer import loss_log, replay, run, watch
from trainer.watching.batch import drawn

STEPS = 40
# Units of 4 rows: 16 + 8 rows, then 4 + 20 from step 13 on, then 12 + 12. The sources' epochs, of 17 and 10 units, end
# within steps, and the changes lie in the middle of epochs.
ROWS = ((0, (16, 8)), (13, (4, 20)), (27, (12, 12)))
SKIPS = "3:5,20:21"  # of the logged run
FLAGS = (
    "--global_batch_size=24",
    "--model=lenet",
    "--augment=flip | normalize",
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
    train(mixture, folder, *flags)
    return checkpoint_bytes(folder, STEPS)


@pytest.mark.slow
def test_two_processes_end_with_the_same_bits(mixture, flags, whole, tmp_path):
    succeed(*start_workers(mixture, [tmp_path / "two"] * 2, *flags))
    assert checkpoint_bytes(tmp_path / "two", STEPS) == whole


@pytest.mark.slow
@pytest.mark.parametrize("first", [2, 1])
def test_killed_and_resumed_on_other_processes_across_a_change(folders, mixture, flags, whole, tmp_path, first, capsys):
    logs = (f"--log_keys={tmp_path}/keys", f"--log_losses={tmp_path}/losses")
    more = (*flags, "--checkpoint_every=3", "--log_every=2", "--steps_per_loop=2", *logs)
    run = [tmp_path / "run"]
    begun = start_workers(mixture, run * 2, *more) if first == 2 else [start(mixture, *run, *more)]
    wait_for_step(begun[0], 8)
    time.sleep(random.Random(first).uniform(0, 0.3))
    kill(*begun)
    saved = saved_steps(run[0])[-1]
    resumed, *_ = succeed(*([start(mixture, *run, *more)] if first == 2 else start_workers(mixture, run * 2, *more)))
    assert re.search(rf"resumed from .*ckpt-{saved}\b", resumed)
    assert checkpoint_bytes(tmp_path / "run", STEPS) == whole
    audit.main([f"--model_dir={tmp_path}/run", f"--observed={tmp_path}/keys", "--workers=2"])
    out = capsys.readouterr().out
    assert out.count("; the run saw just that\n") == 2
    # 13 steps of 4 and 2 units, 14 of 1 and 5, 13 of 3 and 3
    assert re.findall(r"observed: (\d+) steps, 0 to", out) == ["105", "135"]
    real = [(step, i) for step, rows in enumerate(expected(mixture, folders, ROWS, STEPS)) for i, w in rows if w]
    assert sorted(loss_log.read(tmp_path / "losses")[["step", "record"]].tolist()) == sorted(real)


@pytest.mark.slow
def test_devices_of_one_process_end_with_the_same_bits(mixture, flags, whole, tmp_path):
    train(mixture, tmp_path / "run", *flags, "--strategy=mirrored", "--num_replicas=2")
    assert checkpoint_bytes(tmp_path / "run", STEPS) == whole


@pytest.fixture(scope="module")
def logged(folders, mixture, tmp_path_factory):
    """A run that is resumed after ckpt-12 by two replicas, with another schedule ahead; with both logs."""
    path = tmp_path_factory.mktemp("logged")
    flags = (*FLAGS[:-2], f"--log_keys={path}/keys", f"--log_losses={path}/losses", "--checkpoint_every=6")
    common = [f"--data_dir={mixture}", f"--model_dir={path}/run", *flags, f"--skip_steps={SKIPS}"]
    first = ((0, (24, 0)), (5, (16, 8)), (14, (12, 12)))
    run.main([*common, "--train_steps=16", f"--mixture_schedule={schedule_of(folders, first)}"])
    forget(path / "run", 16)
    last = ((0, (24, 0)), (5, (16, 8)), (14, (16, 8)), (16, (0, 24)), (22, (4, 20)))
    more = ("--train_steps=26", f"--mixture_schedule={schedule_of(folders, last)}")
    run.main([*common, *more, "--strategy=mirrored", "--num_replicas=2"])
    return path, last


def expected(mixture, folders, segments, steps, skips=""):
    """Returns [(record id, weight)] of each step, by `input_fn` without a log."""
    options = {"global_batch_size": 24, "training": True, "record_ids": True, "skip_steps": skips}
    data = [(part.rpartition("=")[0], 1) for part in mixture.split(",")]
    batches = input_fn(data, **options, schedule=schedule_of(folders, segments)).take(steps)
    return [list(zip(ids.tolist(), real.tolist(), strict=True)) for *_, real, ids in batches.as_numpy_iterator()]


@pytest.mark.slow
def test_the_logs_are_what_was_trained_on(folders, mixture, logged, capsys):
    path, segments = logged
    steps = expected(mixture, folders, segments, 26, SKIPS)
    rows = loss_log.read(path / "losses")
    real = [(step, i) for step, rows in enumerate(steps) for i, w in rows if w]
    assert sorted(rows[["step", "record"]].tolist()) == sorted(real)
    found: dict[int, list[int]] = {}
    for source, first in enumerate((0, 66)):
        path_of = path / "keys" / f"source-{source}" / "worker-00000.jsonl"
        for line in map(json.loads, path_of.read_text().splitlines()):
            if not 12 <= line.get("global_step", 12) < 16:  # in which steps both parts of the run have logged rows
                real = [int(key[-5:]) for key, w in zip(line["keys"], line["weights"], strict=True) if w]
                found.setdefault(line["global_step"], []).extend(first + record for record in real)
    assert {step: sorted(records) for step, records in found.items()} == {
        step: sorted(i for i, w in of_step if w) for step, of_step in enumerate(steps) if not 12 <= step < 16
    }


@pytest.mark.slow
def test_the_audit_of_a_run_knows_its_schedule_and_its_logs(folders, logged, capsys):
    path, _ = logged
    audit.main([f"--model_dir={path}/run", f"--observed={path}/keys"])
    out = [" ".join(line.split()) for line in capsys.readouterr().out.splitlines()]
    assert "0:24+0,5:16+8,14:16+8,16:0+24,22:4+20; units of 4 rows" in out
    assert sum(line.endswith("; the run saw just that") for line in out) == 2
    # Before it was killed, the run had step 15 take the unit 41 of a, and the units 22 and 23 of b.
    done_again = "rows were done again after a resume, and are equal"
    assert [line for line in out if line.startswith("observed")] == [
        f"observed: 78 steps, 0 to 77; 52 {done_again}; 4 rows left out, of a schedule that has changed",
        f"observed: 78 steps, 0 to 77; 28 {done_again}; 12 rows left out, of a schedule that has changed",
    ]
    # By another schedule, step 5 would take 6 units of a.
    wrong = schedule_of(folders, ((0, (24, 0)), (6, (16, 8)), (16, (0, 24)), (22, (4, 20))))
    with pytest.raises(
        DataError, match=r"the first at step 34, row 0 .* the run took it in step 6, the schedule in step 5 "
    ):
        audit.main([f"--model_dir={path}/run", f"--observed={path}/keys", f"--mixture_schedule={wrong}"])


@pytest.mark.slow
def test_steps_of_the_run_are_shown_and_made_again(folders, mixture, logged, capsys, tmp_path):
    path, segments = logged
    model_dir = f"--model_dir={path}/run"
    wanted = expected(mixture, folders, segments, 26, SKIPS)[23]
    own = [f"--mixture_schedule={schedule_of(folders, segments)}", "--global_batch_size=24"]
    for given in ([model_dir], [mixture, *own]):
        inspect.main([*given, "--step=23", "--json"])
        rows = json.loads(capsys.readouterr().out)["rows"]
        assert [row["record"] + 66 * row["source"] for row in rows] == [i for i, _ in wanted]
    row = next(row for row in rows if row["source"] == 1 and row["weight"])
    places = []
    for epoch in range(8):
        inspect.main([model_dir, f"--key={row['key']}", f"--epoch={epoch}", "--json"])
        [found] = [one for one in json.loads(capsys.readouterr().out)["records"] if one["source"] == 1]
        places += [(one["step"], one["row"]) for one in found["rows"]]
    assert (23, row["row"]) in places
    replay.main([model_dir, "--step=23", "--json"])
    shown = json.loads(capsys.readouterr().out)
    losses = loss_log.read(path / "losses", 23, 24)
    by_record = dict(zip(losses["record"].tolist(), losses["loss"].tolist(), strict=True))
    assert len(shown["rows"]) == sum(weight > 0 for _, weight in wanted)
    for row in shown["rows"]:
        assert row["loss"] == pytest.approx(by_record[row["record"] + 66 * row["source"]], rel=1e-5)
    moved = shutil.copytree(folders, tmp_path / "moved")
    replay.main([model_dir, "--step=23", "--json", f"--data_dir={moved}/a=1,{moved}/b=1"])
    assert json.loads(capsys.readouterr().out) == shown
    replay.main([model_dir, "--verify=0:12"])
    assert "all bits of" in capsys.readouterr().out


@pytest.mark.slow
def test_the_page_shows_units_and_the_batch_of_a_step(logged, capsys):
    path, _ = logged
    watch.main([f"{path}/run", "--json"])
    [shown] = json.loads(capsys.readouterr().out)["runs"]
    # The run has ended with the step 25, of 4 + 20 rows: 78 units of each source, in epochs of 17 and 10.
    assert [(one["epoch"], one["steps"], one["unit"], one["rows"]) for one in shown["data"]] == [
        (4, [10, 17], 4, 4),
        (7, [8, 10], 4, 20),
    ]
    assert [worker["rows"] for one in shown["data"] for worker in one["workers"]] == [[0, 4]] * 2
    assert drawn(path / "run", 16).startswith(b"\x89PNG")
    with pytest.raises(DataError, match=r"^no row of step 20 is trained on: --skip_steps=3:5,20:21$"):
        drawn(path / "run", 20)
