"""Training on several data sets: the trainer, its evaluations, resuming, key logs, the same bits on any topology."""

import json
import random
import re
import time

import numpy as np
import pytest

from pipeline.audit import __main__ as audit
from pipeline.errors import UsageError
from pipeline.inspect import __main__ as inspect
from tests.helpers.datasets import edit_manifest, write_dataset
from tests.helpers.runs import (
    checkpoint_bytes,
    kill,
    scalars,
    start_workers,
    succeed,
    train,
    wait_for_step,
)
from trainer import evaluate, run

STEPS = 10
# 16 rows of a, 8 of b: epochs of 5 steps, whose last has 14 rows of padding, and of 5 with 1
FLAGS = ("--global_batch_size=24", "--model=softmax_regression", "--augment=flip | normalize", f"--train_steps={STEPS}")
SERVERS = ("--strategy=parameter_server", "--worker_hosts=a:1", "--ps_hosts=b:1", "--job_name=worker")


@pytest.fixture(scope="module")
def folders(tmp_path_factory):
    path = tmp_path_factory.mktemp("data")
    write_dataset(path / "a", (40, 26), (16, 16, 3), test_counts=(20,))
    write_dataset(path / "b", (50,), (16, 16, 3), test_counts=(13,))
    return path


@pytest.fixture(scope="module")
def mixture(folders):
    return f"{folders}/a=2,{folders}/b:train[:39]=1"


def flags_of(mixture, model_dir, *flags):
    return [f"--data_dir={mixture}", f"--model_dir={model_dir}", *FLAGS, *flags]


@pytest.mark.slow
def test_a_run_reports_each_source_and_all_together(folders, mixture, tmp_path, capsys):
    model_dir = tmp_path / "run"
    flags = ("--model=lenet", "--eval_every=5", "--summary_every=5")  # which makes mistakes
    run.main(flags_of(mixture, model_dir, *flags, "--strategy=mirrored", "--num_replicas=2"))
    lines = capsys.readouterr().out.splitlines()
    assert re.search(r"step 0 to 10 of 24 examples, 5 per epoch; a new run", "\n".join(lines))
    found = [
        re.fullmatch(r"(step 5, )?(\S+) accuracy = (\S+), loss = \S+ \((\d+ examples.*)\)", line) for line in lines
    ]
    found = [match.groups() for match in found if match]
    assert [(step, name, count) for step, name, _, count in found] == [
        (step, name, count)
        for step in ("step 5, ", None)
        for name, count in (("a:test", "20 examples"), ("b:test", "13 examples"), ("test", "33 examples of 2 sources"))
    ]
    written = scalars(model_dir / "logs")
    for step in (5, 10):
        a, b, both = (written[f"eval/{name}/loss", step] for name in ("a:test", "b:test", "test"))
        assert both == pytest.approx((20 * a + 13 * b) / 33, rel=1e-6)
    assert (model_dir / "config.yaml").read_text().count(f"{folders}/b:train[:39]=1") == 1

    evaluate.main([f"--model_dir={model_dir}", "--json"])
    together = json.loads(capsys.readouterr().out)
    assert [(one["split"], one["num_examples"]) for one in together["sources"]] == [("a:test", 20), ("b:test", 13)]
    for one, (_, name, accuracy, _) in zip([*together["sources"], together], found[3:], strict=True):
        assert one["metrics"]["accuracy"] == pytest.approx(float(accuracy), abs=1e-4)
        assert one["loss"] == pytest.approx(written[f"eval/{name}/loss", 10], rel=1e-5)
    report = together["report"]
    assert np.sum(report["confusion"]) == report["num_examples"] == 33
    assert {mistake["key"].split("#")[0] for mistake in report["mistakes"]} == {"a:test test", "b:test test"}

    # b alone is normalised as in the run, by the statistics of a
    evaluate.main([f"--model_dir={model_dir}", f"--data_dir={folders}/b", "--json"])
    alone = json.loads(capsys.readouterr().out)
    assert "sources" not in alone
    assert alone["loss"] == pytest.approx(together["sources"][1]["loss"], rel=1e-5)


def test_a_resumed_run_has_the_same_sources_and_shares(folders, mixture, tmp_path, capsys):
    logs = tmp_path / "logs"
    flags = (f"--log_keys={logs}", "--eval_split=none", "--checkpoint_every=7")
    run.main(flags_of(mixture, tmp_path / "whole", "--eval_split=none"))
    run.main(flags_of(mixture, tmp_path / "run", *flags, "--train_steps=7"))
    a, b = mixture.split(",")
    for other, message in [
        (f"{folders}/a=1,{b}", "source 0: global_batch_size was 16, is 12; source 0: shuffle_bytes"),
        (f"{a},{folders}/b:train[:38]=1", r"source 1: split was train\[:39\], is train\[:38\]"),
        (f"{a},{folders}/a=1", r"source 1: the data was made:train\[:39\], 39 records .*, is made:train, 66 records "),
        (f"{folders}/a", "sources was 2, is 1"),
    ]:
        with pytest.raises(UsageError, match=f"the order of examples has changed: {message}"):
            run.main(flags_of(other, tmp_path / "run", "--eval_split=none"))
    run.main(flags_of(mixture, tmp_path / "run", *flags))
    assert checkpoint_bytes(tmp_path / "run", STEPS) == checkpoint_bytes(tmp_path / "whole", STEPS)
    for number, (name, count) in enumerate([("a", 66), ("b", 39)]):
        capsys.readouterr()
        audit.main([str(folders / name), f"--observed={logs}/source-{number}"])
        lines = [" ".join(line.split()) for line in capsys.readouterr().out.splitlines()]
        assert [line for line in lines if re.match(r"\d \d of \d", line)] == [
            f"{epoch} 5 of 5 {count} 0 0 0 0 0" for epoch in range(2)
        ]
        assert lines[-1].endswith("; the run saw just that")
    audit.main([mixture, f"--observed={logs}", "--global_batch_size=24"])
    assert capsys.readouterr().out.count("; the run saw just that") == 2
    with pytest.raises(UsageError, match="the run's order has global_batch_size=16, not 12"):
        audit.main([f"{folders}/a=1,{b}", f"--observed={logs}", "--global_batch_size=24"])


@pytest.mark.slow
def test_a_schedule_may_change_ahead_and_resumes_with_the_same_bits(folders, mixture, tmp_path, capsys):
    a, b = f"{folders}/a", f"{folders}/b:train[:39]"
    changed = f"--mixture_schedule=0:{a}=2,{b}=1;3:{a}=1,{b}=1;7:{a}=1,{b}=2"
    flags = ("--eval_split=none", "--checkpoint_every=5")
    run.main(flags_of(mixture, tmp_path / "whole", *flags, changed))
    first = f"--mixture_schedule=0:{a}=2,{b}=1;3:{a}=1,{b}=1;6:{a}=1,{b}=5"
    run.main(flags_of(mixture, tmp_path / "run", *flags, first, "--train_steps=5"))
    with pytest.raises(
        UsageError, match=r"has changed: schedule was 0:16\+8,3:12\+12, is 0:16\+8,4:12\+12; use the old"
    ):
        run.main(flags_of(mixture, tmp_path / "run", *flags, first.replace(";3:", ";4:")))
    capsys.readouterr()
    run.main(flags_of(mixture, tmp_path / "run", *flags, changed))
    assert (
        "changed since ckpt-5: schedule was 0:16+8,3:12+12,6:4+20, is 0:16+8,3:12+12,7:8+16, which differ only from "
        "step 5 on"
    ) in capsys.readouterr().out
    assert checkpoint_bytes(tmp_path / "run", STEPS) == checkpoint_bytes(tmp_path / "whole", STEPS)
    inspect.main([f"--model_dir={tmp_path}/run", "--step=8", "--json"])
    shown = json.loads(capsys.readouterr().out)["rows"]
    assert [sum(row["source"] == source for row in shown) for source in (0, 1)] == [8, 16]
    row, places = next(row for row in shown if row["source"] == 1 and row["weight"]), []
    for epoch in range(3):
        inspect.main([f"--model_dir={tmp_path}/run", f"--key={row['key']}", f"--epoch={epoch}", "--json"])
        found = [one for one in json.loads(capsys.readouterr().out)["records"] if one["source"] == 1]
        places += [(one["step"], one["row"]) for one in found[0]["rows"]]
    assert (8, row["row"]) in places


def test_a_source_without_the_split_is_not_evaluated(folders, tmp_path, capsys):
    write_dataset(tmp_path / "c", (30,), (16, 16, 3), test_counts=(5,))
    edit_manifest(tmp_path / "c", lambda made: made["splits"].pop("test"))
    mixture = f"{folders}/a=2,{tmp_path}/c=1"
    run.main(flags_of(mixture, tmp_path / "run", "--train_steps=1"))
    out = capsys.readouterr().out
    assert f"note: {tmp_path}/c has no split 'test': it is not evaluated" in out
    assert re.findall(r"(\S+) accuracy = .* \((\d+) examples\)", out) == [("a:test", "20")]
    with pytest.raises(UsageError, match="--eval_split=tset: .*did you mean 'test'.*--eval_split=none trains without"):
        run.main(flags_of(mixture, tmp_path / "other", "--eval_split=tset"))


@pytest.mark.parametrize(
    ("flags", "message"),
    [
        (["--num_replicas=3", "--strategy=mirrored"], "a:train 16, .*8 rows, of which 3 replicas need equal parts"),
        (["--virtual_replicas=12"], r"16, .* 8 rows, of which 12 virtual replicas need equal parts; nearest .*=36"),
        (["--eval_split=dev"], "--eval_split=dev: .*unknown.*dev"),
        (["--global_batch_size=2", "--train_split=val"], "val"),
        ([*SERVERS, "--join_timeout=0.4"], "with --strategy=parameter_server: a step uses one data set"),
    ],
)
def test_wrong_flags(mixture, tmp_path, flags, message):
    with pytest.raises(UsageError, match=message):
        run.main(flags_of(mixture, tmp_path / "run", *flags))


def test_the_flag_of_a_source_without_a_weight(folders, tmp_path):
    with pytest.raises(UsageError, match="the source '.*b' has no weight"):
        run.main(flags_of(f"{folders}/a=2,{folders}/b", tmp_path / "run"))


@pytest.mark.slow
def test_killed_and_resumed_on_other_processes_it_ends_with_the_same_bits(mixture, tmp_path):
    flags = (
        *FLAGS,
        "--virtual_replicas=4",
        "--train_steps=40",
        "--checkpoint_every=3",
        "--log_every=2",
        "--steps_per_loop=2",
    )
    train(mixture, tmp_path / "whole", *flags)
    workers = start_workers(mixture, [tmp_path / "run"] * 2, *flags)
    wait_for_step(workers[0], 8)
    time.sleep(random.Random(8).uniform(0, 0.3))
    kill(*workers)
    out = train(mixture, tmp_path / "run", *flags)
    assert re.search(r"resumed from .*ckpt-\d+", out)
    assert checkpoint_bytes(tmp_path / "run", 40) == checkpoint_bytes(tmp_path / "whole", 40)
    succeed(*start_workers(mixture, [tmp_path / "two"] * 2, *flags))
    assert checkpoint_bytes(tmp_path / "two", 40) == checkpoint_bytes(tmp_path / "whole", 40)
