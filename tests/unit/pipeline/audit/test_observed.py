"""What a run saw, against the order: logs are written by the writer, some of them wrong."""

import dataclasses
import json
import re

import pytest

from pipeline.audit import __main__ as audit
from pipeline.audit import observed
from pipeline.audit.contract import Contract
from pipeline.errors import DataError, UsageError
from pipeline.order.key_log import Header, KeyLogWriter
from pipeline.request import Request
from pipeline.resolved import resolve
from tests.helpers.datasets import write_dataset
from tests.helpers.raised import at

COUNTS = (30, 0, 25, 44)  # 99 records; T = 9 steps of 12 rows with 9 rows of padding in the last
FLAGS = {"global_batch_size": 12, "streams": 4, "shuffle_bytes": 240, "seed": 3}


@pytest.fixture
def data(tmp_path):
    write_dataset(tmp_path / "data", COUNTS, (2, 3, 1))
    return tmp_path / "data"


def source_of(data, **changes):
    return resolve(Request(data, "train", training=True, **(FLAGS | changes)))


def log(folder, source, steps, workers=2, replicas=4, change=None, weights="mask", only=None):
    """Writes a run's logs of some steps, one per worker; change(step, replica, keys, weights) edits a line."""
    contract, rows = Contract.of(source), 12 // replicas
    for worker in range(workers) if only is None else only:
        with KeyLogWriter(
            folder / f"worker-{worker:05d}.jsonl", Header.of(source.spec, worker, workers, replicas)
        ) as out:
            for step in steps:
                records, real = contract.batch(step)
                one = 12 / real.sum() if weights == "mean" else 1.0
                for replica in range(worker * replicas // workers, (worker + 1) * replicas // workers):
                    place = slice(replica * rows, (replica + 1) * rows)
                    keys = [f"train#{record:05d}".encode() for record in records[place]]
                    values = [float(ok) * one for ok in real[place]]
                    if change is not None:
                        change(step, replica, keys, values)
                    out.append(step, replica, keys, values)


def run(data, logs, *flags):
    audit.main([str(data), f"--observed={logs}", *flags])


def columns(text, epoch):
    lines = text.splitlines()
    start = next(i for i, line in enumerate(lines) if line.startswith("epoch "))
    row = next(line for line in lines[start:] if line.split()[0] == str(epoch))
    return row.replace(" of ", "/").split()


@pytest.mark.parametrize("weights", ["mask", "mean"])
def test_a_run_that_followed_the_order_passes(data, tmp_path, capsys, weights):
    log(tmp_path / "logs", source_of(data), range(18), weights=weights)
    run(data, tmp_path / "logs")
    out = capsys.readouterr().out
    assert "observed: 18 steps, 0 to 17\n" in out
    assert columns(out, 0) == ["0", "9/9", "99", "0", "0", "0", "0", "0"]
    assert columns(out, 1) == ["1", "9/9", "99", "0", "0", "0", "0", "0"]
    assert out.endswith("9 full steps on each of 4 replicas; epochs 0 and 1 replayed; the run saw just that\n")
    assert "topology: 2 workers, 4 replicas" in out


def test_a_run_that_dropped_the_remainder_passes(data, tmp_path, capsys):
    log(tmp_path / "logs", source_of(data, remainder="drop"), range(8))
    run(data, tmp_path / "logs")
    assert columns(capsys.readouterr().out, 0) == ["0", "8/8", "96", "0", "0", "0", "0", "0"]


def test_a_killed_run_that_was_resumed_passes_also_on_another_topology(data, tmp_path, capsys):
    source = source_of(data)
    log(tmp_path / "logs", source, range(7), workers=2, replicas=4)
    with (tmp_path / "logs" / "worker-00001.jsonl").open("ab") as file:
        file.write(b'{"step":7,"replica":2,"ke')
    log(tmp_path / "logs", source, range(4, 12), workers=1, replicas=6)
    run(data, tmp_path / "logs")
    out = capsys.readouterr().out
    assert "observed: 12 steps, 0 to 11; 36 rows were done again after a resume, and are equal" in out
    assert columns(out, 1)[:5] == ["1", "3/9", "36", "0", "0"]


def test_steps_that_a_kill_cut_at_the_end_are_no_fault(data, tmp_path, capsys):
    source = source_of(data)
    log(tmp_path / "logs", source, range(5), only=[0])
    log(tmp_path / "logs", source, range(4), only=[1])
    run(data, tmp_path / "logs")
    assert "observed: 4 steps, 0 to 3; 1 more were not finished" in capsys.readouterr().out


def test_a_resume_on_fewer_workers_may_skip_steps(data, tmp_path, capsys):
    first, last = source_of(data), source_of(data, skip_steps="3:4,8:10")
    log(tmp_path / "logs", first, range(6), workers=2, replicas=4)  # the second worker's log ends with the old header
    log(tmp_path / "logs", last, range(3, 12), workers=1, replicas=1)
    run(data, tmp_path / "logs")
    out = capsys.readouterr().out
    assert "\nskipped steps: 3:4,8:10\n" in out
    assert "36 rows were done again after a resume, and are equal" in out
    assert columns(out, 0)[1] == "9/9"
    assert columns(out, 0)[-3:] == columns(out, 1)[-3:] == ["0", "0", "0"]
    assert "proof holds: every record as often as the view says, 99 rows per epoch but for skipped steps" in out
    run(data, tmp_path / "logs", "--skip_steps=3:4,8:10")
    with pytest.raises(DataError, match="the first at step 3, row 0 .*; later key .*, weight 0 "):
        run(data, tmp_path / "logs", "--skip_steps=8:10")


def test_a_resumed_run_that_does_not_skip_as_its_header_says_fails(data, tmp_path):
    log(tmp_path / "logs", source_of(data), range(6), workers=2, replicas=4)

    def trained(step, replica, keys, weights):
        weights[:] = [1.0] * len(weights)

    log(tmp_path / "logs", source_of(data, skip_steps="4:5"), range(3, 8), workers=1, replicas=1, change=trained)
    assert first_difference(data, tmp_path / "logs", "weight 1") == (12, 4, 0)


def test_a_run_that_added_steps_to_skip_before_its_checkpoint_fails(data, tmp_path):
    log(tmp_path / "logs", source_of(data), range(6))
    log(tmp_path / "logs", source_of(data, skip_steps="2:3"), range(4, 9))
    assert first_difference(data, tmp_path / "logs", "weight 1") == (12, 2, 0)


def swap(step, replica, keys, weights):
    if (step, replica) == (3, 2):
        keys[0], keys[1] = keys[1], keys[0]


def repeat(step, replica, keys, weights):
    if (step, replica) == (3, 2):
        keys[2] = keys[0]


def foreign(step, replica, keys, weights):
    if (step, replica) == (12, 1):
        keys[1] = b"nobody's"


def heavy_padding(step, replica, keys, weights):
    if step == 8 and replica == 3:
        weights[-1] = 1.0


def half(step, replica, keys, weights):
    if step == 2:
        weights[:] = [0.5] * len(weights)


def short(step, replica, keys, weights):
    if (step, replica) == (3, 2):
        del keys[-1], weights[-1]


def first_difference(data, logs, *facts):
    """Returns (number of differences, step and row of the first) of a run that fails, whose error has the facts."""
    with pytest.raises(DataError) as caught:
        run(data, logs)
    assert all(fact in caught.value.reason for fact in facts), caught.value
    return tuple(map(int, re.search(r"(\d+) difference.*? step (\d+), row (\d+)\b", caught.value.reason).groups()))


@pytest.mark.parametrize(
    ("change", "first", "facts", "counts"),
    [
        (swap, (2, 3, 6), ("replica 2", "'train#"), "0 0 2 0 0"),
        (repeat, (1, 3, 8), ("replica 2",), "1 1 1 0 0"),
        (foreign, (1, 12, 4), ("nobody's",), "0 1 0 1 0"),
        (heavy_padding, (1, 8, 11), ("weight 1", "padding"), "1 0 0 0 1"),
        (half, (12, 2, 0), ("weight 0.5", "real"), "0 0 0 0 12"),
    ],
)
def test_a_run_that_saw_something_else_fails_with_the_first_difference(
    data, tmp_path, capsys, change, first, facts, counts
):
    log(tmp_path / "logs", source_of(data), range(18), change=change)
    assert first_difference(data, tmp_path / "logs", *facts) == first
    out = capsys.readouterr().out
    assert counts.split() in [columns(out, epoch)[3:] for epoch in (0, 1)]
    assert "proof holds, but the run saw something else" in out


@pytest.mark.parametrize(
    ("runs", "first", "facts"),
    [
        ([{"steps": range(9), "change": short}], (2, 3, 6), ("2 rows, not 3", "line 8")),
        ([{"steps": range(5), "change": swap}, {"steps": range(3, 9)}], (1, 3, 6), ("again",)),
        ([{"steps": [0, 1, 2, 5, 6]}], (2, 3, 0), ()),
        ([{"steps": range(9), "only": [0]}], (1, 0, 6), ("1 of 2 workers",)),
        ([{"steps": []}], (1, 0, 0), ()),
    ],
    ids=["too few rows", "other rows after a resume", "steps left out", "a worker's log is missing", "no step"],
)
def test_logs_that_lack_something_fail_with_its_place(data, tmp_path, runs, first, facts):
    for arguments in runs:
        log(tmp_path / "logs", source_of(data), **arguments)
    assert first_difference(data, tmp_path / "logs", *facts) == first


def test_a_log_without_a_header_is_named(data, tmp_path):
    (tmp_path / "empty.jsonl").touch()
    with pytest.raises(DataError, check=at("empty.jsonl", "header")):
        run(data, tmp_path / "empty.jsonl")


def test_a_run_of_another_seed_is_a_wrong_flag(data, tmp_path):
    log(tmp_path / "logs", source_of(data), range(3))
    with pytest.raises(UsageError, match="seed=3, not 4"):
        run(data, tmp_path / "logs", "--seed=4")
    run(data, tmp_path / "logs", "--seed=3", "--global_batch_size=12")


def test_a_run_on_other_data_is_refused(data, tmp_path):
    log(tmp_path / "logs", source_of(data), range(3))
    write_dataset(data, (99,), (2, 3, 1))
    with pytest.raises(DataError, match="manifest digest"):
        run(data, tmp_path / "logs")


def test_runs_of_two_orders_are_not_mixed(data, tmp_path):
    log(tmp_path / "logs", source_of(data), range(3))
    log(tmp_path / "logs", source_of(data, seed=4), range(3, 6))
    with pytest.raises(DataError, match="worker-00000.jsonl, line 8: .*seed=4, not 3"):
        run(data, tmp_path / "logs")


def test_the_log_says_what_the_run_was(data, tmp_path, capsys):
    source = resolve(Request(data, "train[:50]", global_batch_size=12, training=False))
    log(tmp_path / "logs", source, range(5), workers=3, replicas=3)
    run(data, tmp_path / "logs")
    out = capsys.readouterr().out
    assert "split train[:50]: 50 records" in out
    assert "order: evaluation, epoch 0, global batch 12" in out
    assert columns(out, 0) == ["0", "5/5", "50", "0", "0", "0", "0", "0"]


def test_two_records_of_one_key_cannot_be_told_apart(data, tmp_path, monkeypatch):
    monkeypatch.setattr(observed, "keys_of", lambda file, segment, key: [b"same"] * segment.num_examples)
    with pytest.raises(DataError, match="'same'.* 0 of train-00000.* 1 of train-00000"):
        observed.read_keys(data, source_of(data).selection)


def test_keys_of_compressed_shards_are_read(data, tmp_path):
    import gzip

    from pipeline.manifest.splits import Segment, Selection

    source = source_of(data)
    segments = []
    for segment in source.selection.segments:
        name = segment.shard.file + ".gz"
        (tmp_path / name).write_bytes(gzip.compress((data / segment.shard.file).read_bytes()))
        packed = dataclasses.replace(segment.shard, file=name, compression="GZIP")
        segments.append(Segment(packed, segment.start, segment.stop))
    found = observed.read_keys(tmp_path, Selection("train", tuple(segments)))
    assert found == observed.read_keys(data, source.selection) == [f"train#{i:05d}" for i in range(99)]


def test_a_shard_that_is_missing_or_cut_is_named(data, tmp_path):
    log(tmp_path / "logs", source_of(data), range(3))
    path = data / "train-00002-of-00004.tfrecord"
    whole = path.read_bytes()
    path.write_bytes(whole[:-1])
    with pytest.raises(DataError, check=at(path, record=24)):
        run(data, tmp_path / "logs")
    size = len(whole) // 25
    path.write_bytes(whole[:-size])
    with pytest.raises(DataError, check=at(path, 24, 25)):
        run(data, tmp_path / "logs")
    path.unlink()
    with pytest.raises(DataError, check=at(path, "No such file")):
        run(data, tmp_path / "logs")


def test_a_header_of_a_later_order_is_refused(data, tmp_path):
    log(tmp_path / "logs", source_of(data), range(3))
    for path in (tmp_path / "logs").iterdir():
        head, *rest = path.read_text().splitlines(keepends=True)
        content = json.loads(head)
        content["spec"]["version"] += 1
        path.write_text(json.dumps(content) + "\n" + "".join(rest))
    with pytest.raises(UsageError, match="version=2, not 1"):
        run(data, tmp_path / "logs")


def test_files_folders_and_globs_are_found(tmp_path):
    paths = [tmp_path / f"worker-{i}.jsonl" for i in range(3)]
    for path in paths:
        path.touch()
    (tmp_path / "other.txt").touch()
    assert observed.find(str(tmp_path)) == paths
    assert observed.find(f"{tmp_path}/worker-[02].jsonl") == [paths[0], paths[2]]
    assert observed.find(f"{paths[2]},{paths[0]},{paths[0]}") == [paths[0], paths[2]]
    with pytest.raises(UsageError, match=r"^--observed=.*/no-\*:"):
        observed.find(f"{paths[0]},{tmp_path}/no-*")
    (tmp_path / "empty").mkdir()
    with pytest.raises(UsageError, match=r"^--observed=.*/empty: .*\*.jsonl"):
        observed.find(str(tmp_path / "empty"))
