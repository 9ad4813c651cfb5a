"""The audit of a schedule: what is proved, that the plan it is compared with is what is fed, and faults."""

import contextlib
import dataclasses
import itertools
import os
import re

import numpy as np
import pytest

from pipeline import input_fn, order_flags, request
from pipeline.audit import __main__ as audit
from pipeline.audit import schedules
from pipeline.audit.contract import Contract
from pipeline.audit.proof import Fault
from pipeline.errors import DataError, UsageError
from pipeline.order import shares
from pipeline.order.key_log import SourceLogs
from pipeline.order.reading import Topology
from pipeline.request import Request
from pipeline.resolved import resolve_all
from tests.helpers.datasets import write_dataset
from tests.helpers.raised import said

# Units of 6 rows: b begins later, a pauses; the rest goes to the largest remainder.
SEGMENTS = ((0, (24, 0)), (3, (18, 6)), (6, (0, 24)), (10, (12, 12)))


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    path = tmp_path_factory.mktemp("made")
    write_dataset(path / "a", (20, 0, 18, 15))
    write_dataset(path / "b", (22, 18))
    return path


@pytest.fixture(scope="module")
def flags(folder):
    text = ";".join(f"{first}:{folder}/a={a},{folder}/b={b}" for first, (a, b) in SEGMENTS)
    return [f"{folder}/a=2,{folder}/b=1", "--global_batch_size=24", f"--mixture_schedule={text}"]


@pytest.fixture(scope="module")
def mixture(folder, flags):
    data = [(folder / "a", 2), (folder / "b", 1)]
    schedule = flags[2].partition("=")[2]
    return resolve_all(Request(data, global_batch_size=24, training=True, schedule=schedule, seed=5))


def test_the_schedule_and_each_source_are_proved(folder, flags, capsys):
    audit.main([*flags, "--workers=2", "--replicas=6", "--against_workers=3", "--epoch=1"])
    out = capsys.readouterr().out
    assert "0:24+0,3:18+6,6:0+24,10:12+12; units of 6 rows\n" in out
    assert "around 3 changes" in out
    same = "every row is of one unit, and every replica has as many rows of it"
    assert f"{same} (2 workers, 6 replicas)\n       rows 0 to 23 of each segment, 1 row of a unit per replica" in out
    assert re.search(rf"{re.escape(same)} \(3 .*; every global batch is the same on 3 workers, 3 .* as on 2 work", out)
    # 9 units of a: 4 in each of steps 0 to 2, 3 in each of steps 3 to 5. b: 7 units, the first in step 3.
    assert (
        f"source 0: {folder}/a\nits steps here are units of 6 rows; its epoch 1 is in the run's steps 2 to 4\n" in out
    )
    assert (
        f"source 1: {folder}/b\nits steps here are units of 6 rows; its epoch 1 is in the run's steps 7 to 8\n" in out
    )
    proofs = [line.partition(";")[0] for line in out.splitlines() if line.startswith("proof holds")]
    assert proofs == [f"proof holds: each of {n} records once per epoch, by one replica" for n in (53, 40)]
    other = flags[2].replace(";10:", ";11:").replace("a=12,", "a=0,")
    audit.main([*flags[:2], other, "--epoch=4", "--skip_steps=7:8"])
    out = capsys.readouterr().out
    assert "the run never takes its epoch 4\n" in out
    assert "skipped steps: 7:11\n" in out  # b's units: 1 in each of steps 3 to 5, 4 in step 6, then these


def log(folder, logs, segments, steps, workers=1):
    """Writes a run's logs of some steps of a schedule, with a replica per worker; returns its flags."""
    text = ";".join(f"{first}:{folder}/a={a},{folder}/b={b}" for first, (a, b) in segments)
    options = {"global_batch_size": 24, "training": True, "schedule": text}
    data = [(folder / "a", 2), (folder / "b", 1)]
    fed = input_fn(data, **options, record_ids=True).as_numpy_iterator()
    rows = 24 // workers
    with contextlib.ExitStack() as stack:
        spec = resolve_all(Request(data, **options)).spec
        of_worker = [SourceLogs(os.fspath(logs), spec, n, workers, workers, steps.start) for n in range(workers)]
        for one in of_worker:
            stack.enter_context(one)
        for step, (_, _, weights, ids) in enumerate(itertools.islice(fed, steps.stop)):
            for replica, one in enumerate(of_worker if step in steps else []):
                mine = slice(replica * rows, (replica + 1) * rows)
                one.append(step, replica, [f"train#{i % 53:05d}" for i in ids[mine]], weights[mine].tolist())
    return [f"{folder}/a=2,{folder}/b=1", "--global_batch_size=24", f"--mixture_schedule={text}", f"--observed={logs}"]


def test_rows_of_another_schedule_are_a_difference(folder, tmp_path):
    flags = log(folder, tmp_path / "keys", ((0, (12, 12)), (4, (18, 6))), range(12))
    audit.main(flags)
    flags[2] = flags[2].replace("a=18", "a=6").replace("b=6", "b=18")
    with pytest.raises(DataError, match=r"the first at step 9, row 0 .* the run took it in step 4, the schedule in st"):
        audit.main(flags)


@pytest.mark.slow
def test_rows_of_a_schedule_that_a_resume_on_fewer_workers_changed_are_left_out(folder, tmp_path, capsys):
    log(folder, tmp_path / "keys", ((0, (12, 12)), (6, (18, 6))), range(10), workers=2)
    flags = log(folder, tmp_path / "keys", ((0, (12, 12)), (6, (6, 18))), range(5, 14))
    audit.main(flags)
    out = capsys.readouterr().out
    assert out.count("; the run saw just that\n") == 2
    assert out.count(" rows were done again after a resume, and are equal; ") == 2
    assert out.count(" rows left out, of a schedule that has changed\n") == 2
    # Had the resume begun with step 8, the first job's steps 6 and 7 would stand.
    log(folder, tmp_path / "others", ((0, (12, 12)), (6, (18, 6))), range(10), workers=2)
    flags = log(folder, tmp_path / "others", ((0, (12, 12)), (6, (6, 18))), range(8, 14))
    with pytest.raises(DataError, match=r"the first at step 13, row 0 .* the run took it in step 6, the schedule in s"):
        audit.main(flags)


@pytest.mark.slow
@pytest.mark.parametrize("stop", [10, 14])
def test_a_source_that_the_changed_schedule_pauses_has_no_row_in_the_steps_that_were_done_again(
    folder, tmp_path, capsys, stop
):
    log(folder, tmp_path / "keys", ((0, (12, 12)), (6, (18, 6))), range(10), workers=2)
    paused = ((0, (12, 12)), (6, (24, 0)), (12, (18, 6)))
    audit.main(log(folder, tmp_path / "keys", paused, range(6, stop)))
    out = capsys.readouterr().out
    assert out.count("; the run saw just that\n") == 2
    assert out.count(" rows left out, of a schedule that has changed\n") == 2


def test_steps_of_units_are_not_checked_without_their_schedule_and_that_is_said(folder, tmp_path, capsys):
    flags = log(folder, tmp_path / "keys", ((0, (12, 12)), (4, (18, 6))), range(12))
    audit.main(flags)
    assert "note: the steps are units" not in capsys.readouterr().out
    for given, sources in (([flags[0], flags[-1]], 2), ([f"{folder}/b", f"{flags[-1]}/source-1"], 1)):
        audit.main(given)
        out = capsys.readouterr().out
        assert out.count("; the run saw just that\n") == sources
        said = (
            "which step of the run took each was not checked: for that, give all sources with their --mixture_schedule"
        )
        assert out.count(said) == sources


def test_the_plan_and_the_contracts_are_what_is_fed(folder, mixture):
    plan, contracts = schedules.Plan.of(mixture), [Contract.of(part) for part in mixture.parts]
    options = {"global_batch_size": 24, "training": True, "seed": 5, "schedule": mixture.request.schedule}
    fed = input_fn([(folder / "a", 2), (folder / "b", 1)], **options, record_ids=True).as_numpy_iterator()
    for step, (_, _, weights, ids) in enumerate(itertools.islice(fed, 14)):
        units = [(source, number) for source, numbers in enumerate(plan.units(step)) for number in numbers]
        for (source, number), own, real in zip(units, ids.reshape(6, -1).T, weights.reshape(6, -1).T, strict=True):
            records, is_real = contracts[source].batch(number)
            np.testing.assert_array_equal(own - 53 * source, records)
            np.testing.assert_array_equal(real == 1, is_real)


def checks_of(mixture, *topologies):
    return [check for _, check in schedules.checks(mixture, [Topology(*each, 24) for each in topologies])]


@pytest.mark.parametrize(
    ("name", "change", "number", "fault"),
    [
        ("shares_of", lambda n: (n[0] - 6, n[1] + 6), 0, r"step 0 on, the sources have \(18, 6\) rows, and must have"),
        ("unit_of", lambda found: found // 2, 0, "a unit has 3 rows, and must have 6"),
        ("units_at", lambda found: found[::-1], 1, r"step 0: \(source, unit\) is \(0, 3\), and must be \(0, 0\)"),
        ("units_at", lambda found: found[1:], 1, r"step 0: \(source, unit\) is one of 3, and must be one of 4"),
        ("units_before", lambda found: found + 1, 1, r"step 0: \(source, unit\) is \(0, 1\), and must be \(0, 0\)"),
        (
            "between",
            lambda found: [(f + 1, s + 1, u) for f, s, u in found],
            1,
            "resumes at step 0 takes units 4 to 7 of source 0",
        ),
        ("rows_in_blocks", lambda found: found[::-1], 2, "from step 0 on: row 0 of unit 0 of a step is at another row"),
    ],
)
def test_a_fault_in_the_code_that_the_input_follows_is_found(mixture, monkeypatch, name, change, number, fault):
    home = {"shares_of": shares, "unit_of": request, "rows_in_blocks": schedules}.get(name, shares.Shares)
    right = getattr(home, name)
    monkeypatch.setattr(home, name, lambda *arguments: change(right(*arguments)))
    again = dataclasses.replace(mixture, request=dataclasses.replace(mixture.request))  # that has no shares yet
    with pytest.raises(Fault, match=fault):
        checks_of(again, (2, 6))[number]()


def test_a_schedule_that_fails_ends_the_audit(flags, monkeypatch, capsys):
    monkeypatch.setattr(shares.Shares, "units_at", lambda shares, step: [])
    with pytest.raises(DataError, match="the proof fails: each source continues in its own units"):
        audit.main(flags)
    assert "source 0" not in capsys.readouterr().out


def test_wrong_flags(folder, flags):
    for given, message in [
        ([f"{folder}/a", *flags[1:]], "--mixture_schedule with DATA_DIR=.*a: needs a mixture, such as a=0.7,b=0.3"),
        (
            [flags[0], flags[2], "--observed=nowhere"],
            "--mixture_schedule: needs --global_batch_size, which its weights",
        ),
        ([*flags, "--replicas=4"], "a:train 18, .*b:train 6 rows, of which 4 replicas need equal parts"),
        ([], r"DATA_DIR is missing \(or give --model_dir\); see --help"),
        (["--model_dir=/nowhere"], "config.yaml cannot be read"),
    ]:
        with pytest.raises((UsageError, DataError), match=message):
            audit.main(given)


@pytest.mark.parametrize(
    ("own", "problem"),
    [
        ("data@00000000=1,data@11111111=1", "data@1, or leave it out: the run in run is of data@00000000=1,data@1111"),
        ("data", "--model_dir=run: the data set data has other versions, and the run's config.yaml is older"),
    ],
)
def test_data_of_several_versions_are_told_from_those_of_the_run(own, problem, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "data/versions").mkdir(parents=True)
    (tmp_path / "data/versions/1-000000000000.json").write_text("{}")
    (tmp_path / "run").mkdir()
    (tmp_path / "run/config.yaml").write_text(f"data:\n  data_dir: {own}\n")
    with pytest.raises(UsageError, check=said(problem)):
        order_flags.flags_of_data("run", "data")
