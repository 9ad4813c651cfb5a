"""Jobs with parameter servers on this machine: asynchronous, synchronous, kills, the classic flags. Real processes."""

import json
import pathlib
import re
import shutil
import signal
import time

import numpy as np
import pytest
import tensorflow as tf
from tensorboard.backend.event_processing import event_accumulator

from benchmarks import straggler
from pipeline import input_fn
from pipeline.index.__main__ import main as index
from tests.helpers import augmenting_tasks, forked
from tests.helpers.converting import convert_in_process
from tests.helpers.datasets import flip
from tests.helpers.parameter_servers import WORKER_LINE, Job, ledger_of, wait_for_line
from tests.helpers.runs import ON_ONE_CORE, STOPS, finish, saved_steps, scalars, start, train, wait_for_step
from tests.integration import parameter_server_tasks as tasks

DATA = forked.ROOT.parent / "shared" / "data"
needs_data = pytest.mark.skipif(not DATA.exists(), reason="needs MNIST in ../shared/data")
ROWS, BATCH = 120, 12
LINE = (
    *("--task=tests.integration.parameter_server_tasks:Line", "--eval_split=none", f"--global_batch_size={BATCH}"),
    *("--optimizer=sgd", "--learning_rate=0.1", "--schedule=constant"),
)
RERUN = "rerun the same commands to resume from the last checkpoint"
LOST_PS = rf"lost ps 0 \(localhost:\d+\), and the weights there; {RERUN}"


@pytest.fixture(scope="module")
def line(tmp_path_factory):
    folder = tmp_path_factory.mktemp("line")
    tasks.write(folder, ROWS)
    index([str(folder), "--split=train:train-*.tfrecord"])
    return folder


def rows_of(outs):
    """Returns the numbers of all rows that workers have trained on, sorted."""
    said = [re.findall(r'^rows "([\d,]+)"$', out, re.M) for out in outs.values()]
    return sorted(int(number) for lines in said for text in lines for number in text.split(","))


def test_asynchronous_every_row_of_every_epoch_once(line, tmp_path):
    flags = (*LINE, "--epochs=6", "--steps_per_loop=2", "--log_every=5", "--ema=0.9", "--histogram_every=25")
    outs = Job(2, 1, line, tmp_path, *flags).succeed()
    out = outs["chief 0"]
    stored = tf.train.load_checkpoint(str(tmp_path / "ckpt-60"))
    averages = [stored.get_tensor(f"averages/values/{i}/.ATTRIBUTES/VARIABLE_VALUE").item() for i in (0, 1)]
    assert f"given {averages}\n" in out
    assert "parameter_server: 2 workers, 1 ps, asynchronous; " in out
    assert ledger_of(out) == (60, 60, 0, 0)
    assert scalars(tmp_path / "logs")["ledger/once", 60] == 60.0
    assert f"checkpoint: {tmp_path}/ckpt-60" in out
    assert [int(step) for step in re.findall(r"^step (\d+), loss", out, re.M)] == list(range(5, 61, 5))
    assert rows_of(outs) == sorted(list(range(ROWS)) * 6)
    shown = event_accumulator.EventAccumulator(str(tmp_path / "logs"), {"histograms": 0}).Reload()
    tags = shown.Tags()["histograms"]
    assert {tag.partition("/")[0] for tag in tags} == {"weights", "gradients"}
    assert all([event.step for event in shown.Histograms(tag)] == [1, 25, 50] for tag in tags)
    names = [node.name for node in shown.Graph().node]
    assert any(name.startswith("worker/gradients/") for name in names)
    assert any("/job:ps/" in node.device for node in shown.Graph().node)
    lines = [WORKER_LINE.match(text) for i in (0, 1) for text in outs[f"worker {i}"].splitlines()]
    counts = [int(match[1]) for match in lines if match]
    assert counts
    assert all(count % 5 == 0 for count in counts)
    assert all(int(match[1]) <= int(match[2]) <= 60 for match in lines if match)


@pytest.fixture(scope="module")
def line_with_columns(tmp_path_factory):
    folder = tmp_path_factory.mktemp("columns")
    tasks.write(folder, ROWS)
    index([str(folder), "--split=train:train-*.tfrecord", "--add_columns=records:number"])
    return folder


@pytest.mark.slow
@pytest.mark.parametrize(
    ("flags", "fed"),
    [
        (["--where=number % 5 in (1, 3)"], [number for number in range(ROWS) if number % 5 in (1, 3)]),
        (["--where=number < 9", "--weigh=number", "--sync"], [number for number in range(9) for _ in range(number)]),
    ],
    ids=["a subset", "weighted, synchronous"],
)
def test_the_rows_of_a_view_are_trained_on_exactly(line_with_columns, tmp_path, flags, fed):
    outs = Job(2, 1, line_with_columns, tmp_path, *LINE, *flags, "--epochs=5", "--steps_per_loop=2").succeed()
    steps = 5 * len(fed) // BATCH
    assert ledger_of(outs["chief 0"]) == (steps, steps, 0, 0)
    assert rows_of(outs) == sorted(fed * 5)


@pytest.mark.slow
def test_skipped_steps_are_made_by_workers_and_change_nothing(line_with_columns, tmp_path):
    flags = ("--train_steps=6", "--skip_steps=0:6", "--log_every=1", "--ema=0.9", "--summary_every=1")
    flags += (f"--metrics_jsonl={tmp_path}/metrics.jsonl",)
    outs = Job(2, 1, line_with_columns, tmp_path, *LINE, *flags).succeed()
    out = outs["chief 0"]
    assert ledger_of(out) == (6, 6, 0, 0)
    assert re.search(r"^given \[-?\d\.\d+, 0\.0\]$", out, re.M)  # the bias, as it was made
    assert re.findall(r"^step (\d), skipped \(", out, re.M) == [*"123456"]
    metrics = [json.loads(line) for line in (tmp_path / "metrics.jsonl").read_text().splitlines()]
    assert not [name for line in metrics for name in line if "loss" in name]


@pytest.mark.slow
def test_workers_augment_by_layers_of_keras_as_any_other_input_does(digits, tmp_path):
    flags = ("--task=tests.helpers.augmenting_tasks:Tells", "--model=softmax_regression", "--augment=none")
    steps = ("--global_batch_size=48", "--train_steps=36", "--eval_every=0")  # of 30 per epoch
    outs = Job(2, 1, digits, tmp_path, *flags, *steps).succeed()
    assert ledger_of(outs["chief 0"]) == (36, 36, 0, 0)
    assert "augment by Tells.augment" in outs["chief 0"]
    told = [re.findall(r'^sums "([\d,]+)"$', out, re.M) for out in outs.values()]
    found = sorted(int(number) for lines in told for text in lines for number in text.split(","))
    wanted = input_fn(digits, global_batch_size=48, training=True, augment=augmenting_tasks.Moves.augment)
    fed = [augmenting_tasks.sums_of(images).numpy() for images, _, _ in wanted.take(36)]
    assert found == sorted(np.concatenate(fed).tolist())


@pytest.mark.slow
def test_a_function_that_calls_python_ends_all_processes_before_they_connect(digits, tmp_path):
    flags = ("--task=tests.helpers.augmenting_tasks:InPython", "--model=softmax_regression", "--augment=none")
    outcomes = Job(2, 1, digits, tmp_path, *flags, "--global_batch_size=48", "--train_steps=6").finish(code=2)
    why = "Task.augment: the function calls Python (the op PyFuncStateless), but the workers of --strat"
    assert [name for name, end in outcomes.items() if why not in end[2]] == [], [end[2] for end in outcomes.values()]
    assert not list(tmp_path.glob("ckpt-*"))


@pytest.mark.slow
def test_two_servers_three_workers_and_the_recipes(digits, tmp_path):
    flags = ["--optimizer=adam", "--learning_rate=0.02", "--clip_norm=1", "--ema=0.98", "--label_smoothing=0.1"]
    flags += ["--weight_decay=0.001", "--schedule=cosine", "--global_batch_size=48", "--model=softmax_regression"]
    flags += ["--augment=shift(pixels=1)", "--augment_on=device"]
    out = Job(3, 2, digits, tmp_path, *flags, "--epochs=4", "--eval_every=60").succeed()["chief 0"]
    assert ledger_of(out) == (120, 120, 0, 0)
    assert re.search(r"^step 60, test accuracy = 0\.\d+, loss = \d\.\d+ \(368 examples; averaged weights\)$", out, re.M)
    accuracy = float(
        re.search(r"^test accuracy = (0\.\d+), loss = \S+ \(368 examples; averaged weights\)$", out, re.M)[1]
    )
    assert accuracy > 0.9
    assert re.findall(r"^epoch (\d) of 4, step (\d+): loss = \d\.\d+, accuracy = 0\.\d+(; test loss)?", out, re.M) == [
        ("1", "30", ""),
        ("2", "60", "; test loss"),
        ("3", "90", ""),
        ("4", "120", "; test loss"),
    ]
    resumed = train(digits, tmp_path, *flags, "--epochs=5")  # on one device
    assert f"step 120 to 150 of 48 examples, 30 per epoch; resumed from {tmp_path}/ckpt-120" in resumed


@pytest.mark.slow
def test_a_worker_comes_back_then_a_server_is_lost_then_the_job_resumes(digits, tmp_path):
    flags = ["--model=softmax_regression", "--global_batch_size=32", "--checkpoint_every=100", "--log_every=20"]
    flags += ["--steps_per_loop=5", "--train_steps=100000"]
    job = Job(2, 1, digits, tmp_path, *flags)
    wait_for_step(job.chief, 60)
    job.processes["worker 1"].kill()
    wait_for_line(job.chief, r"lost worker 1 \(localhost:\d+\); training continues with the other workers")
    wait_for_step(job.chief, 200)
    job.processes["worker 1"].wait()
    job.start("worker", 1)
    wait_for_line(job.chief, r"worker 1 \(localhost:\d+\) is back")
    wait_for_line(job.processes["worker 1"], r"After 20 training steps \(\d+ global steps\), ")
    job.processes["ps 0"].kill()
    began = time.monotonic()
    outcomes = job.finish()
    assert time.monotonic() - began < 20
    assert outcomes["chief 0"][0] == 75
    assert re.fullmatch(rf"trainer.run: {LOST_PS}\n", outcomes["chief 0"][2])
    for name in ("worker 0", "worker 1"):
        assert outcomes[name][0] == 75
        assert re.fullmatch(rf"trainer.run: the job has ended: {LOST_PS}\n", outcomes[name][2])

    stored = saved_steps(tmp_path)[-1]
    out = Job(2, 1, digits, tmp_path, *flags[:-1], f"--train_steps={stored + 150}").succeed()["chief 0"]
    first = int(re.search(r"resumed from \S+ckpt-(\d+)", out)[1])
    assert first == stored >= 200
    assert first % 100 == 0
    steps, once, twice, never = ledger_of(out)
    assert (steps, never) == (stored + 150, 0)
    assert once + twice == stored + 150
    assert twice <= 1


@pytest.mark.slow
def test_the_classic_flags_and_a_signal(digits, tmp_path):
    flags = ["--model=softmax_regression", "--global_batch_size=32", "--log_every=20", "--train_steps=100000"]
    job = Job(2, 1, digits, tmp_path, *flags, by_flags=True)
    wait_for_step(job.chief, 60)
    job.chief.send_signal(signal.SIGUSR2)
    saved = wait_for_line(job.chief, r"step (\d+) is saved, as SIGUSR2 asked: (\S+)")
    assert pathlib.Path(f"{saved[2]}.index").exists()
    assert int(saved[1]) >= 60
    job.chief.send_signal(signal.SIGTERM)
    outcomes = job.finish(code=75)
    line = r"training stopped by SIGTERM: step (\d+) of 100000 is saved; rerun the same commands to resume\n"
    step = int(re.fullmatch(rf"{STOPS}trainer.run: {line}", outcomes["worker 0"][2])[1])
    for name in ("worker 1", "ps 0"):
        assert re.fullmatch(rf"trainer.run: the job has ended: {line}", outcomes[name][2])

    job = Job(2, 1, digits, tmp_path, *flags[:-1], f"--train_steps={step + 40}", by_flags=True)
    outs = job.succeed()
    out = outs["worker 0"]
    assert f"resumed from {tmp_path}/ckpt-{step}" in out
    assert ledger_of(out) == (step + 40, step + 40, 0, 0)
    assert re.search(r"^After 20 training steps", out + outs["worker 1"], re.M)


@pytest.mark.slow
def test_each_process_may_have_but_one_core(digits, tmp_path):
    """TensorFlow's servers would run one operation at a time then, and some wait for others."""
    flags = ["--model=softmax_regression", "--train_steps=30", "--log_every=10", "--eval_split=none"]
    outs = Job(2, 1, digits, tmp_path, *flags, program=("-c", ON_ONE_CORE)).succeed(60)
    assert ledger_of(outs["chief 0"]) == (30, 30, 0, 0)


def test_the_chief_is_lost(digits, tmp_path):
    job = Job(1, 1, digits, tmp_path, "--model=softmax_regression", "--train_steps=100000", "--log_every=20")
    wait_for_step(job.chief, 20)
    job.chief.kill()
    began = time.monotonic()
    outcomes = job.finish()
    assert time.monotonic() - began < 10
    for name in ("worker 0", "ps 0"):
        assert outcomes[name][0] == 75
        assert re.fullmatch(
            rf"trainer.run: lost the chief \(localhost:\d+\); {RERUN}\n",
            outcomes[name][2],
        )


@pytest.mark.parametrize(("needed", "workers"), [(2, 3), pytest.param(2, 2, marks=pytest.mark.slow)])
def test_synchronous_every_row_of_every_epoch_once(needed, workers, line, tmp_path):
    flags = [*LINE, "--sync", f"--replicas_to_aggregate={needed}", "--epochs=3", "--checkpoint_every=7"]
    outs = Job(workers, 1, line, tmp_path, *flags).succeed()
    out = outs["chief 0"]
    assert f"{workers} workers, 1 ps, synchronous by {needed} of {workers} gradients" in out
    assert ledger_of(out) == (30, 30, 0, 0)
    computed = rows_of(outs)  # including those of dropped gradients
    assert set(computed) == set(range(ROWS))
    assert len(computed) >= 3 * ROWS


def seconds_per_step(line, tmp_path, needed):
    environment = {straggler.WORKER: "2", straggler.SECONDS: "0.4"}
    flags = [*LINE, "--sync", f"--replicas_to_aggregate={needed}", "--train_steps=30", "--log_every=30"]
    outs = Job(3, 1, line, tmp_path, *flags, environment=environment).succeed()
    out = outs["chief 0"]
    dropped = re.search(r"; (\d+) late gradients dropped", out)
    return float(re.search(r"^step 30, .*; (\d+\.\d+) sec/batch\)$", out, re.M)[1]), int(dropped[1]) if dropped else 0


@pytest.mark.slow
def test_a_slow_worker_holds_nobody_up(line, tmp_path):
    all_of_them, none_dropped = seconds_per_step(line, tmp_path / "all", 3)
    all_but_one, some_dropped = seconds_per_step(line, tmp_path / "but-one", 2)
    assert none_dropped == 0
    assert some_dropped > 0
    assert all_of_them > 0.4
    assert all_but_one < all_of_them / 2


@pytest.mark.slow
def test_gradients_of_older_weights_count_where_they_may(line, tmp_path):
    """By the first of three gradients; the two others are a step old when they come."""
    dropped = []
    for staleness in (0, 1000):
        flags = ["--sync", "--replicas_to_aggregate=1", f"--max_staleness={staleness}", "--train_steps=90"]
        outs = Job(3, 1, line, tmp_path / f"{staleness}", *LINE, *flags).succeed()
        out = outs["chief 0"]
        assert ledger_of(out)[:2] == (90, 90)
        found = re.search(r"; ([\d,]+) late gradients dropped", out)
        dropped.append(int(found[1].replace(",", "")) if found else 0)
    assert dropped[0] > 2 * dropped[1]


@pytest.mark.slow
def test_linear_regression_in_three_terminals(tmp_path):
    shutil.copy(forked.ROOT / "examples" / "regression" / "line.py", tmp_path)
    done = forked.run(["line.py"], cwd=tmp_path)
    assert (done.returncode, done.stderr) == (0, "")
    flags = re.search(r'FLAGS="(.*?)\s+--ps_hosts', (tmp_path / "line.py").read_text(), re.DOTALL)[1].split()
    given = [flag for flag in flags if not flag.startswith(("--data_dir", "--model_dir", "--strategy"))]
    outs = Job(2, 1, "line", "line-run", *given, by_flags=True, cwd=tmp_path).succeed()
    out = outs["worker 0"]
    weight, bias = map(float, re.search(r"^weight (\S+), bias (\S+)$", out, re.M).groups())
    assert abs(weight - 2) < 0.05
    assert abs(bias - 10) < 0.05
    assert ledger_of(out) == (1000, 1000, 0, 0)
    assert re.search(r"^After \d+ training steps", outs["worker 1"], re.M)


def test_a_process_with_other_flags_ends_all(digits, tmp_path):
    job = Job(1, 1, digits, tmp_path)
    job.processes.pop("ps 0").kill()
    job.start("ps", 0, "--learning_rate=0.5")
    outcomes = job.finish(code=2)
    said = r"ps 0 \(localhost:\d+\) has --learning_rate=0.5, the chief has --learning_rate=0.05; .*\n"
    for _, _, err in outcomes.values():
        assert re.fullmatch(rf"trainer.run: {said}", err), err


def test_a_corrupt_record_is_named_and_ends_all(line, tmp_path):
    broken = tmp_path / "broken"
    shutil.copytree(line, broken)
    flip(shard := next(broken.glob("train-*.tfrecord")))
    outcomes = Job(2, 1, broken, tmp_path / "run", *LINE, "--epochs=1").finish(code=1)
    said = rf"worker [01] \(localhost:\d+\): {re.escape(str(shard))}, record \d+: corrupt or cut; .*\n"
    for name, (_, _, err) in outcomes.items():
        ended = "" if name == "chief 0" else "the job has ended: "
        assert re.fullmatch(f"trainer.run: {ended}{said}", err), (name, err)


def test_an_error_of_a_workers_function_has_its_words_and_ends_all(line, tmp_path):
    flags = [flag.replace(":Line", ":Asserting") for flag in LINE]
    outcomes = Job(1, 1, line, tmp_path, *flags, "--epochs=1", by_flags=True).finish()
    assert len({code for code, _, _ in outcomes.values()} - {0, 75}) == 1, outcomes
    said = r"worker 0 \(localhost:\d+\): .*the labels are not what they should be\n"
    assert re.fullmatch(f"trainer.run: {said}", outcomes["worker 0"][2])
    assert re.fullmatch(f"trainer.run: the job has ended: {said}", outcomes["ps 0"][2])


def test_who_does_not_come_is_named(digits, tmp_path):
    job = Job(1, 1, digits, tmp_path, "--join_timeout=10")
    job.processes.pop("ps 0").kill()
    outcomes = job.finish(code=75)
    assert re.search(r"^waiting for ps 0 \(localhost:\d+\)$", outcomes["chief 0"][1], re.M)
    for _, _, err in outcomes.values():
        assert re.fullmatch(r"trainer.run: (.* ended: )?ps 0 \(localhost:\d+\) did not come within .*\n", err), err


def test_usage_errors_are_one_line(digits, tmp_path):
    hosts = ["--worker_hosts=localhost:1,localhost:2", "--ps_hosts=localhost:3", "--job_name=worker", "--task_id=1"]
    flags = ["--strategy=parameter_server", *hosts]
    for more, said in (
        (["--shuffle_bytes=4000", "--streams=1"], "--shuffle_bytes=4000: with --strategy=parameter_server each worker"),
        (["--sync", "--replicas_to_aggregate=4"], "--replicas_to_aggregate=4: there are 2 workers"),
        (["--profile=3:5"], "--profile=3:5 with --strategy=parameter_server: "),
    ):
        ((code, out, err),) = finish(start(digits, tmp_path, *flags, "--join_timeout=0.4", *more))
        assert (code, out, err.count("\n")) == (2, "", 1), err
        assert err.startswith(f"trainer.run: {said}"), err


@pytest.mark.slow
@pytest.mark.timeout(1800)
@needs_data
def test_mlp_on_mnist(tmp_path):
    convert_in_process("--dataset=mnist", f"--source={DATA / 'mnist'}", f"--data_dir={tmp_path / 'mnist'}")
    flags = ["--model=mlp", "--epochs=8", "--steps_per_loop=50", "--checkpoint_every=1200"]
    out = Job(2, 1, tmp_path / "mnist", tmp_path / "run", *flags, by_flags=True).succeed()["worker 0"]
    assert float(re.search(r"test accuracy = (0\.\d+), loss = \S+ \(10000 examples", out)[1]) >= 0.97
    assert ledger_of(out) == (4800, 4800, 0, 0)
