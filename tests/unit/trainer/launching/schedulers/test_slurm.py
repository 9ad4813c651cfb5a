"""The batch script: its text, and runs with stubs of Slurm's commands, and of Python for the processes.

The texts are beside this module, in __snapshots__/test_slurm; `--snapshot-update` takes new ones.
"""

import ast
import json
import pathlib
import subprocess
import sys

import pytest

from pipeline.errors import UsageError
from tests.helpers.snapshots import Text
from tests.unit.trainer.launching.schedulers.conftest import NASTY
from trainer.cluster import tf_config
from trainer.launching.schedulers import slurm as target

TRAINER = ("--data_dir=data/mnist", "--model_dir=run/", "--global_batch_size=24")
SHELLCHECK = pathlib.Path(sys.executable).with_name("shellcheck")
SETUP = ("--setup=. venv/bin/activate", "--env=A=it's")
CASES = {
    "all_reduce": (
        *(*SETUP, "--cpus=8", "--memory=16Gi", "--gpus_per_worker=1", "--tasks_per_node=2", "--time_limit=1-12"),
        *("--partition=gpu", "--account=ml", "--name=mnist", "--stop_timeout=90"),
        "--sbatch=--qos=high; --exclude=n1,n2",
    ),
    "parameter_servers": (*SETUP, "--num_ps=2"),
}
# A process that notes its TF_CONFIG, says that it has made $MADE steps, saves $CHECKPOINT, and ends with the code of
# its rank; or waits for SIGTERM, saves (or not: wait2; or counts SIGTERMs: slow) and ends with 75 (or 2: fail); or ends
# once rank 2 waits.
PYTHON = """#!/bin/bash
echo "${TF_CONFIG-not set}" > "$STUB/config-$SLURM_PROCID"
echo started >> "$STUB/starts-$SLURM_PROCID"
[ -z "$STEPFEED_HEARTBEAT" ] || echo "{\\"pid\\": 1, \\"made\\": ${MADE-12}, \\"achieved\\": 5}" > "$STEPFEED_HEARTBEAT"
until grep -q made "$BEATS" 2> /dev/null; do sleep 0.05; done  # a worker killed before the first step stays away
[ -z "${CHECKPOINT-}" ] || { mkdir -p run; touch "run/ckpt-$CHECKPOINT.index" "run/ckpt-x.index"; }
read -ra codes <<< "$CODES"
[ "$SLURM_PROCID" != 0 ] || sleep "${CHIEF_SECONDS-0.5}"  # the chief ends last
if [ "${codes[SLURM_PROCID]}" = wait2 ]; then  # without saving
    trap 'exit 75' TERM
    touch "$STUB/waits-$SLURM_PROCID"
    while :; do sleep 0.05; done
fi
if [ "${codes[SLURM_PROCID]}" = wait ]; then
    trap 'echo saved >> "$STUB/saved-$SLURM_PROCID"; touch run/ckpt-7.index; exit 75' TERM
    touch "$STUB/waits-$SLURM_PROCID"
    while :; do sleep 0.05; done
fi
if [ "${codes[SLURM_PROCID]}" = fail ]; then
    trap 'exit 2' TERM
    touch "$STUB/waits-$SLURM_PROCID"
    while :; do sleep 0.05; done
fi
if [ "${codes[SLURM_PROCID]}" = slow ]; then
    trap 'echo term >> "$STUB/terms-$SLURM_PROCID"' TERM
    touch "$STUB/waits-$SLURM_PROCID"
    until [ -e "$STUB/terms-$SLURM_PROCID" ]; do sleep 0.05; done
    sleep 1.5
    exit 75
fi
if [ "${codes[SLURM_PROCID]}" = last ]; then
    until [ -e "$STUB/waits-2" ]; do sleep 0.05; done
    exit 0
fi
if [ "$(wc -l < "$STUB/starts-$SLURM_PROCID")" -gt 2 ]; then exit 0; fi
exit "${codes[SLURM_PROCID]}"
"""


@pytest.fixture
def script_of(job_of, slurm):
    slurm.command("python", PYTHON)

    def script_of(*flags, workers=2, trainer=TRAINER):
        return target.render(job_of("--target=slurm", f"--num_workers={workers}", *flags, trainer=trainer))

    return script_of


def ended(slurm, script, codes, end):
    """Returns the exit code and the output of a job that is ended, by `slurm.cancel` or `warn`, once its tasks wait."""
    process = slurm.start(script, CODES=codes)
    slurm.wait_for("waits-0", "waits-1")
    end(process)
    output, _ = process.communicate(timeout=60)
    return process.returncode, output


@pytest.mark.parametrize(
    ("given", "asked"), [("1500M", "3000M"), ("1500Mi", "3000M"), ("16g", "32G"), ("1T", "2T"), ("512K", "1024K")]
)
def test_memory_as_slurm_or_kubernetes_writes_it(script_of, given, asked):
    assert f"\n#SBATCH --mem={asked}\n" in script_of(f"--memory={given}", "--tasks_per_node=2")


@pytest.mark.parametrize("case", CASES)
def test_script(script_of, tmp_path, snapshot, case):
    path = tmp_path / "script"
    task = tmp_path / "task"
    text = script_of(*CASES[case], workers=4)
    path.write_text(text)
    task.write_text(text.partition("\ntask='\n")[2].partition("\n'\n")[0])
    for each in (path, task):
        assert subprocess.run(["bash", "-n", each], check=False).returncode == 0
        found = subprocess.run(
            [SHELLCHECK, "-s", "bash", "-e", "SC1091,SC2153", each], check=False, capture_output=True, text=True
        )
        assert (found.returncode, found.stdout) == (0, "")
    assert text == snapshot(extension_class=Text)


def test_each_task_gets_its_task_index(script_of, slurm):
    assert slurm.run(script_of(workers=3), hosts="n1 n2 n3", CODES="0 0 0")[0] == 0
    port = 10000 + 4711
    for rank in range(3):
        cluster = tf_config.parse((slurm.folder / f"config-{rank}").read_text())
        assert cluster == tf_config.Cluster((f"n1:{port}", f"n2:{port}", f"n3:{port}"), rank)


def test_tasks_of_one_node_have_ports_of_their_own(script_of, slurm):
    script = script_of("--tasks_per_node=2", "--port=3000", workers=4)
    assert slurm.run(script, hosts="n1 n2", CODES="0 0 0 0")[0] == 0
    cluster = tf_config.parse((slurm.folder / "config-3").read_text())
    assert cluster == tf_config.Cluster(("n1:3000", "n1:3001", "n2:3000", "n2:3001"), 3)


def test_roles_with_a_parameter_server(script_of, slurm):
    assert slurm.run(script_of("--num_ps=1"), hosts="n1 n2 n3 n4", CODES="0 0 0 0")[0] == 0
    found = [json.loads((slurm.folder / f"config-{rank}").read_text()) for rank in range(4)]
    addresses = [f"n{number}:{10000 + 4711}" for number in (1, 2, 3, 4)]
    jobs = {"chief": addresses[:1], "worker": addresses[1:3], "ps": addresses[3:]}
    assert [content["cluster"] for content in found] == [jobs] * 4
    tasks = [("chief", 0), ("worker", 0), ("worker", 1), ("ps", 0)]
    assert [(content["task"]["type"], content["task"]["index"]) for content in found] == tasks


def test_one_process_has_no_cluster(script_of, slurm):
    assert slurm.run(script_of(workers=1), CODES="0", TF_CONFIG="{}")[0] == 0
    assert (slurm.folder / "config-0").read_text() == "not set\n"


@pytest.mark.parametrize(
    ("codes", "code", "requeued"),
    [
        ("0 0", 0, 0),
        ("1 75", 1, 0),
        ("75 2", 2, 0),
        ("75 75", 75, 1),
        ("137 75", 75, 1),
        ("2 137", 2, 0),
        ("3 0", 75, 1),
        ("127 0", 127, 0),
        ("0 126", 126, 0),
        ("2 127", 127, 0),
    ],
)
def test_exit_codes(script_of, slurm, codes, code, requeued):
    assert slurm.run(script_of(), CODES=codes)[0] == code
    assert slurm.requeued() == requeued


@pytest.mark.parametrize("codes", ["75 75", "137 75", "3 0"])
def test_a_failure_before_the_first_step_is_not_requeued(script_of, slurm, codes):
    code, output = slurm.run(script_of(), CODES=codes, MADE="0")
    assert code == max(map(int, codes.split()))
    assert slurm.requeued() == 0
    said = f"the job ended with code {code} before its first step, and is not requeued; no checkpoint is saved"
    assert output.splitlines()[-1] == said


def test_but_a_later_attempt_may_fail_at_its_start(script_of, slurm):
    script = script_of()
    assert slurm.run(script, CODES="75 75", CHECKPOINT="5")[0] == 75
    code, output = slurm.run(script, CODES="137 75", MADE="0")
    assert (code, slurm.requeued()) == (75, 2)
    assert (
        output.splitlines()[-1] == "the job ended with code 137, and is requeued (restart 2 of 10); run/ckpt-5 is saved"
    )


@pytest.mark.parametrize(
    ("flag", "said"), [("--setup=false", 1), ("--setup=. none/bin/activate", 1), ("--setup=set -e; false; true", 1)]
)
def test_a_setup_that_fails_is_final(script_of, slurm, flag, said):
    code, output = slurm.run(script_of(flag), CODES="0 0")
    assert (code, slurm.requeued(), slurm.tasks()) == (said, 0, [])
    if "set -e" not in flag:
        assert output.splitlines()[-1] == "--setup failed with code 1; the job is not requeued"


def test_flags_and_variables_reach_the_process_as_they_are(script_of, slurm):
    code = f"import os, sys; print([sys.argv[1:], [os.environ[f'V{{i}}'] for i in range({len(NASTY)})]])"
    slurm.command("python", f'#!/bin/bash\nexec {sys.executable} -c "{code}" "$@" > "$STUB/got"\n')
    trainer = ("--data_dir=" + "".join(NASTY), "--model_dir=run/" + "".join(NASTY))
    flags = [f"--env=V{index}={word}" for index, word in enumerate(NASTY)]
    code, output = slurm.run(script_of(*flags, workers=1, trainer=trainer), CODES="0")
    assert code == 0, output
    arguments, values = ast.literal_eval((slurm.folder / "got").read_text())
    assert arguments == ["-m", "trainer.run", *trainer, "--strategy=multiworker"]
    assert values == NASTY
    assert (slurm.folder / f"run/{''.join(NASTY)}/launch/heartbeats").is_dir()


def test_no_python_is_final_and_ends_the_tasks_that_wait(script_of, slurm):
    """On one of two nodes: the other task would wait for it until --join_timeout."""
    slurm.command("python", PYTHON.replace("#!/bin/bash", '#!/bin/bash\n[ "$SLURM_PROCID" = 0 ] || exit 127'))
    code, output = slurm.run(script_of(), CODES="wait 0")
    assert (code, slurm.requeued()) == (127, 0)
    assert "a command could not be run (code 127): see --setup, and python in PATH on each node" in output


def test_no_srun_is_final(script_of, slurm):
    (slurm.folder / "bin" / "srun").unlink()
    code, output = slurm.run(script_of())
    assert (code, slurm.requeued()) == (127, 0)
    assert "a command could not be run (code 127)" in output


@pytest.mark.parametrize(("codes", "code"), [("2 wait", 2), ("1 wait", 1)])
def test_a_task_that_fails_for_good_ends_the_tasks_that_wait(script_of, slurm, codes, code):
    """The others would wait for it until --join_timeout."""
    found, output = slurm.run(script_of(), CODES=codes)
    assert (found, slurm.requeued()) == (code, 0), output
    assert (slurm.folder / "saved-1").read_text() == "saved\n"


def test_a_task_that_fails_after_sigterm_does_not_disturb_those_that_save(script_of, slurm):
    """A second SIGTERM would end them without saving."""
    ended(slurm, script_of(), "fail slow", slurm.cancel)
    assert (slurm.folder / "terms-1").read_text() == "term\n"


def test_restarts_end(script_of, slurm):
    codes = []
    script = script_of("--max_restarts=2")
    for _ in range(3):
        for path in slurm.folder.glob("starts-*"):
            path.unlink()
        codes.append(slurm.run(script, CODES="75 75"))
    assert [code for code, _ in codes] == [75, 75, 75]
    assert slurm.requeued() == 2
    assert "after 2 restarts (--max_restarts) without a new checkpoint" in codes[2][1]


def test_a_job_that_begins_anew_has_one_name_over_its_restarts(script_of, slurm):
    slurm.command("python", '#!/bin/bash\necho "$STEPFEED_FRESH" >> "$STUB/names"; echo "$@" >> "$STUB/got"; exit 0\n')
    script = script_of("--max_restarts=2", workers=1, trainer=(*TRAINER, "--fresh"))
    assert [slurm.run(script, CODES="0")[0] for _ in range(2)] == [0, 0]
    names = (slurm.folder / "names").read_text().split()
    assert len(names) == 2
    assert len(set(names)) == 1
    assert "--fresh" in (slurm.folder / "got").read_text()
    assert "STEPFEED_FRESH" not in script_of(workers=1)


def test_a_new_checkpoint_forgives_restarts(script_of, slurm):
    script = script_of("--max_restarts=1")
    for attempt, (checkpoint, requeued) in enumerate([("", 1), ("100", 2), ("250", 3), ("90", 3)]):
        for path in slurm.folder.glob("starts-*"):
            path.unlink()
        code, output = slurm.run(script, CODES="75 137", CHECKPOINT=checkpoint)
        assert slurm.requeued() == requeued, (attempt, output)
    assert code == 137
    assert output.splitlines()[-1].endswith("without a new checkpoint; run/ckpt-250 is saved")


def test_a_time_limit_that_comes_before_any_checkpoint_is_not_met_for_ever(script_of, slurm):
    script = script_of("--max_restarts=1")
    for _ in range(2):
        for path in slurm.folder.glob("waits-*"):
            path.unlink()
        code, output = ended(slurm, script, "wait2 wait2", slurm.warn)
        assert (code, slurm.requeued()) == (75, 1), output
    assert "after 1 restarts (--max_restarts) without" in output


@pytest.mark.parametrize(("end", "restarts", "requeued"), [("warn", 0, 1), ("cancel", 10, 0)])
def test_tasks_save_at_the_time_limit_which_requeues_the_job_and_when_it_is_cancelled(
    script_of, slurm, end, restarts, requeued
):
    code, _ = ended(slurm, script_of(f"--max_restarts={restarts}"), "wait wait", getattr(slurm, end))
    assert (code, slurm.requeued()) == (75, requeued)
    for rank in range(2):
        assert (slurm.folder / f"saved-{rank}").read_text() == "saved\n"  # once: a second signal ends without saving


def test_an_asynchronous_worker_restarts_alone(script_of, slurm):
    code, output = slurm.run(script_of("--num_ps=1"), hosts="n1 n2 n3 n4", CODES="0 0 137 0", CHIEF_SECONDS="6")
    assert code == 0
    assert [len((slurm.folder / f"starts-{rank}").read_text().split()) for rank in range(4)] == [1, 1, 3, 1]
    assert "worker 1 ended with code 137; restart 1 of 10" in output
    assert slurm.requeued() == 0


def test_an_asynchronous_job_ends_with_its_chief(script_of, slurm):
    code, output = slurm.run(script_of("--num_ps=1"), hosts="n1 n2 n3 n4", CODES="last 0 wait 137")
    assert code == 0, output
    assert (slurm.folder / "saved-2").exists()  # it came back too late, and waited for the chief
    assert slurm.requeued() == 0


def test_an_asynchronous_job_with_a_bad_flag_fails(script_of, slurm):
    assert slurm.run(script_of("--num_ps=1"), hosts="n1 n2 n3 n4", CODES="75 2 75 75")[0] == 2
    assert slurm.requeued() == 0


def test_an_asynchronous_job_that_lost_a_parameter_server_restarts_as_a_whole(script_of, slurm):
    assert slurm.run(script_of("--num_ps=1"), hosts="n1 n2 n3 n4", CODES="75 75 75 137")[0] == 75
    assert [len((slurm.folder / f"starts-{rank}").read_text().split()) for rank in range(4)] == [1, 1, 1, 1]
    assert slurm.requeued() == 1


@pytest.mark.parametrize(
    ("flags", "words"),
    [
        (["--tasks_per_node=3"], "--tasks_per_node=3: must divide the 2 processes of the job (2 worker)"),
        (["--time_limit=1:00"], "--time_limit=1:00: must be more than the 120 s"),
        (["--time_limit=2h"], "--time_limit=2h: must be minutes"),
        (["--sbatch=qos=high"], "'qos=high' is not an option of sbatch"),
        (["--sbatch=--nodes=3"], "'--nodes=3': the launcher sets --nodes itself; give --num_workers, --num_ps and"),
        (["--sbatch=--qos=high;-N4"], "'-N4': the launcher sets -N itself"),
        (["--sbatch=--no-requeue"], "the launcher sets --no-requeue itself; give --max_restarts"),
        (["--partition=gpu --nodes=9"], "--partition=gpu --nodes=9: must be a name valid for sbatch"),
        (["--account=a'b"], "--account=a'b: must be a name"),
        (
            ["--port=65535", "--tasks_per_node=2"],
            "--port=65535 with --tasks_per_node=2: a node's processes listen",
        ),
        (["--port=0"], "--port=0: must be 1 or more"),
        (["--stop_timeout=1e5"], "--stop_timeout=100000: must be 65535 or less"),
        (["--image=x"], "--image=x with --target=slurm: is for --target=kubernetes"),
        (["--pull_secret=x"], "--pull_secret=x with --target=slurm: is for --target=kubernetes"),
        (["--silent_timeout=9"], "--silent_timeout=9.0 with --target=slurm: is for --target=local"),
        (["--env=A"], "--env=A: must be NAME=VALUE"),
        (["--elastic=1:4"], "--elastic=1:4 with --target=slurm: is for --target=local"),
        (["--memory=10 GB"], "--memory=10 GB: must be a whole number and Mi, Gi or Ti"),
        (["--memory=1500"], "--memory=1500: must be a whole number and Mi, Gi or Ti"),
        (["--memory=0M"], "--memory=0M: must be a whole number and Mi, Gi or Ti"),
        (["--gpus_per_worker=-1"], "--gpus_per_worker=-1: must be 0 or more"),
    ],
)
def test_what_cannot_work(script_of, flags, words):
    with pytest.raises(UsageError) as error:
        script_of(*flags)
    assert words in str(error.value)


def test_a_folder_of_one_node_cannot_hold_a_run_of_several(job_of):
    trainer = ("--data_dir=d", "--model_dir=/tmp/run", "--global_batch_size=24")
    with pytest.raises(UsageError, match="--model_dir=/tmp/run: is local to each node; with 2 nodes"):
        target.render(job_of("--target=slurm", "--num_workers=2", trainer=trainer))
    assert target.render(job_of("--target=slurm", "--num_workers=2", "--tasks_per_node=2", trainer=trainer))
