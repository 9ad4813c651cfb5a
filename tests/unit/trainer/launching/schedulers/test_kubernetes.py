"""The manifests: their text, against the published models, and what their pods do.

The texts are beside this module, in __snapshots__/test_kubernetes; `--snapshot-update` takes new ones.
"""

import ast
import dataclasses
import json
import os
import re
import subprocess
import sys
import time

import hypothesis
import pytest
import yaml
from hypothesis import strategies as st

from pipeline.errors import UsageError
from tests.helpers import manifests
from tests.helpers.lanes import examples
from tests.helpers.snapshots import Text
from tests.unit.trainer.launching.schedulers.conftest import KUBERNETES, NASTY
from trainer.callbacks.heartbeat import Heartbeat
from trainer.cluster import tf_config
from trainer.journal import Beat
from trainer.launching.schedulers import kubernetes

INDEX = "batch.kubernetes.io/job-completion-index"
LARGE = ("--num_workers=2", "--cpus=8", "--memory=16Gi", "--gpus_per_worker=2", "--namespace=ml", "--max_restarts=3")
OPERATOR = (
    *("--env=HTTP_PROXY=http://proxy:3128", "--env=EMPTY=", "--secret_env=AWS_SECRET_ACCESS_KEY=store.s3:secret-key"),
    *("--service_account=trainer", "--node_selector=pool=gpu"),
    *("--node_selector=cloud.google.com/gke-accelerator=nvidia-l4", "--priority_class=batch-low"),
    *("--toleration=nvidia.com/gpu:NoSchedule", "--toleration=team=vision:NoExecute", "--toleration=spot"),
    *("--pull_secret=registry", "--pull_secret=mirror", "--run_as=1000:100"),
    "--volume=data:/data:ro,runs.v2:/runs",  # a claim's name may have a dot, a volume's may not
)
PAGE = ("--num_workers=2", "--namespace=ml", "--secret_env=STEPFEED_WATCH_TOKEN=page:token", "--page=9000")
CASES = {
    "jobset": LARGE,
    "jobset_of_one_process_as_root": ("--run_as=0", "--page"),
    "jobset_with_parameter_servers": (*LARGE, "--num_ps=2", "--port=3000", "--stop_timeout=90.5"),
    "jobset_with_page": (*OPERATOR, *PAGE, "--ttl=3600"),
    "jobset_with_parameter_servers_of_an_operator": (*OPERATOR, "--num_ps=1", "--ttl=3600"),
    "trainjob": ("--kind=trainjob", *LARGE, "--run_as=7"),
    "trainjob_with_parameter_servers": ("--kind=trainjob", *LARGE, *OPERATOR, "--num_ps=2"),
    "trainjob_with_page": ("--kind=trainjob", *OPERATOR, *PAGE),
}


@pytest.fixture
def text_of(job_of):
    def text_of(*flags, **options):
        return kubernetes.render(job_of(*KUBERNETES, *flags, **options))

    return text_of


@pytest.fixture
def documents_of(text_of):
    def documents_of(*flags, **options):
        return list(yaml.safe_load_all(text_of(*flags, **options)))

    return documents_of


def trainer_of(documents):
    """Returns the container of the workers, or what a TrainJob has of it."""
    if documents[-1]["kind"] == "TrainJob":
        return documents[-1]["spec"]["trainer"]
    (container,) = manifests.jobs_of(documents[0])["worker"]["template"]["spec"]["containers"]
    return container


@pytest.mark.parametrize("case", CASES)
def test_manifests(text_of, snapshot, case):
    text = text_of(*CASES[case])
    for manifest in yaml.safe_load_all(text):
        manifests.check(manifest)
    assert text == snapshot(extension_class=Text)


@pytest.mark.parametrize(("kind", "part"), [("jobset", "failurePolicy"), ("trainjob", "trainer")])
def test_a_misspelt_field_is_found(documents_of, kind, part):
    manifest = documents_of(f"--kind={kind}")[-1]
    manifest["spec"][part]["maxRestart"] = 3
    with pytest.raises(AssertionError, match=rf"{part}\.maxRestart"):
        manifests.check(manifest)


@pytest.mark.parametrize(("kind", "name"), [("jobset", "worker"), ("trainjob", "node")])
def test_each_pod_gets_its_task_index(documents_of, kind, name):
    container = trainer_of(documents_of(f"--kind={kind}", "--num_workers=3", "--name=mnist"))
    addresses = tuple(f"mnist-{name}-0-{index}.mnist:2222" for index in range(3))
    for index in range(3):
        variables = manifests.environment(container, {INDEX: str(index)})
        assert tf_config.parse(variables["TF_CONFIG"]) == tf_config.Cluster(addresses, index)


@pytest.mark.parametrize(
    ("reason", "message", "action"),
    [
        (
            "PodFailurePolicy",
            "Container trainer for pod ml/train-worker-0-1 failed with exit code 2 matching FailJob rule at index 0",
            "FailJobSet",
        ),
        (
            "PodFailurePolicy",
            "Pod ml/train-worker-0-1-x7k2p has condition DisruptionTarget matching FailJob rule at index 1",
            "RestartJobSetAndIgnoreMaxRestarts",
        ),
        ("BackoffLimitExceeded", "Job has reached the specified backoff limit", "RestartJobSet"),
    ],
)
def test_what_jobset_does_when_a_job_fails(documents_of, reason, message, action):
    """By the messages of Kubernetes' Job controller, and JobSet's rule: the first that matches, else a restart."""
    (jobset,) = documents_of("--num_workers=2")
    matching = [
        rule["action"]
        for rule in jobset["spec"]["failurePolicy"]["rules"]
        if reason in rule["onJobFailureReasons"]
        and any(re.search(pattern, message) for pattern in rule["onJobFailureMessagePatterns"])
    ]
    assert [*matching, "RestartJobSet"][0] == action


@pytest.mark.parametrize(
    ("text", "made"),
    [
        ("$$(A)", "$(A)"),
        ("$(A)", "value"),
        ("$(B)$$$", "$(B)$$"),
        ("$$$(A)", "$value"),
        ("$(A", "$(A"),
        ("$A$", "$A$"),
        ("$()", "$()"),
    ],
)
def test_the_model_of_the_kubelets_rule(text, made):
    assert manifests.expanded(text, {"A": "value"}) == made


WORDS = st.text(
    st.one_of(st.sampled_from("$()A{}`\"'\\ !;&|*#~é\n"), st.characters(codec="utf-8", exclude_characters="\0"))
)


@hypothesis.settings(deadline=None, max_examples=examples(300))
@hypothesis.given(word=WORDS)
def test_any_text_reaches_the_pod_as_it_is(word):
    assert manifests.expanded(kubernetes.escaped(word), {"A": "value", "": "nothing", "HOME": "/root"}) == word


def test_a_job_that_begins_anew_has_a_name_of_its_own(documents_of):
    def name(*trainer):
        documents = documents_of(trainer=("--data_dir=/data/mnist", "--model_dir=/runs/one", *trainer))
        return manifests.environment(trainer_of(documents), {INDEX: "0"}).get("STEPFEED_FRESH")

    assert name() is None
    assert name("--fresh")
    assert name("--fresh") != name("--fresh")


@pytest.mark.parametrize("kind", ["jobset", "trainjob"])
def test_flags_and_variables_reach_the_process_as_they_are(documents_of, kind):
    """The pod's command is really run, with a program that prints its arguments instead of the trainer."""
    flags = [f"--env=V{index}={word}" for index, word in enumerate(NASTY)]
    trainer = ("--data_dir=/data/" + "".join(NASTY), "--model_dir=/runs/one")
    container = trainer_of(documents_of(f"--kind={kind}", *flags, trainer=trainer))
    variables = manifests.environment(container, {INDEX: "0"})
    command = [manifests.expanded(word, variables) for word in container["command"]]
    code = "import os, sys; print([sys.argv[1:], [os.environ[f'V{i}'] for i in range(int(sys.argv[1]))]])"
    at = command.index("python")
    program = [*command[:at], sys.executable, "-c", code, str(len(NASTY)), *command[at:]]
    done = subprocess.run(program, env={**os.environ, **variables}, capture_output=True, text=True, check=True)
    arguments, values = ast.literal_eval(done.stdout)
    assert arguments[1:] == ["python", "-m", "trainer.run", *trainer, "--strategy=multiworker"]
    assert values == NASTY


@pytest.fixture
def probes(documents_of, tmp_path):
    """Returns a function that runs the probes of a pod whose heartbeat is `text`, or none: whether each holds."""
    container = trainer_of(documents_of("--silent_timeout=20"))
    path = manifests.environment(container, {INDEX: "0"})["STEPFEED_HEARTBEAT"]
    beats = tmp_path / "beats.json"

    def probes(text):
        beats.unlink(missing_ok=True)
        if text is not None:
            beats.write_text(text)
        found = []
        for probe in ("startupProbe", "livenessProbe"):
            program, *words = (manifests.expanded(word, {}) for word in container[probe]["exec"]["command"])
            assert (program, words[-1].count(path)) == ("python", 1)
            words[-1] = words[-1].replace(path, str(beats))
            found.append(subprocess.run([sys.executable, *words], check=False, capture_output=True).returncode == 0)
        return found

    return probes


@pytest.mark.parametrize(
    ("age", "quiet", "holds"), [(0, 0, True), (15, 0, True), (25, 0, False), (70, 60, True), (90, 60, False)]
)
def test_a_process_without_a_heartbeat_is_not_alive(probes, age, quiet, holds):
    beat = Beat(1, time.time() - age, quiet=float(quiet))
    assert probes(json.dumps(dataclasses.asdict(beat))) == [True, holds]


def test_before_the_first_beat_a_process_starts(probes, tmp_path):
    assert probes(None) == [False, False]
    with Heartbeat(str(tmp_path / "real.json")):
        assert probes((tmp_path / "real.json").read_text()) == [True, True]


@pytest.mark.parametrize(
    ("flags", "words"),
    [
        (["--image="], "--image is missing: --target=kubernetes needs a container image"),
        (["--volume=data:/data"], "--model_dir=/runs/one: lies on no volume of --volume (/data)"),
        (["--volume=data"], "'data' is not CLAIM:/FOLDER"),
        (["--volume=data:runs"], "'data:runs' is not CLAIM:/FOLDER"),
        (["--volume=a:/runs,b:/runs"], "/runs is mounted twice"),
        (
            ["--memory=10 GB"],
            "--memory=10 GB: must be a whole number and Mi, Gi or Ti, or K, M, G or T, without a space",
        ),
        (["--gpus_per_worker=-1"], "--gpus_per_worker=-1: must be 0 or more"),
        (["--kind=job"], "--kind: unknown 'job'; did you mean 'jobset'?"),
        (["--name=My_Job"], "--name=My_Job: must be lower-case"),
        ([f"--name={'a' * 60}"], "must be 46 characters or less"),
        (["--port=70000"], "--port=70000: must be 65535 or less"),
        (["--time_limit=10"], "--time_limit=10 with --target=kubernetes: is for --target=slurm"),
        (["--regrow_delay=10"], "--regrow_delay=10.0 with --target=kubernetes: is for --target=local"),
        (["--volume=data:/data:ro,runs:/runs:rw"], "'runs:/runs:rw' is not CLAIM:/FOLDER or CLAIM:/FOLDER:ro"),
        (["--volume=data:/data:ro,runs:/runs:ro"], "--model_dir=/runs/one: lies on a volume that is mounted read-only"),
        (["--volume=runs:/runs"], "--data_dir: /data/mnist lies on no volume of --volume (/runs)"),
        (["--volume=data:/data,runs:/runs/../x"], "'runs:/runs/../x' is not CLAIM:/FOLDER"),
        (["--volume=data:/data,runs://runs"], "'runs://runs' is not CLAIM:/FOLDER"),
        (["--volume=data:/data,Runs:/runs"], "'Runs:/runs' is not CLAIM:/FOLDER"),
        (["--volume=data:/data,runs:/"], "'runs:/' is not CLAIM:/FOLDER"),
        (["--volume=data:/data,data:/data/,runs:/runs"], "/data is mounted twice"),
        (["--image=registry/Stepfeed:1"], "--image=registry/Stepfeed:1: is not the name of an image"),
        (["--image=stepfeed:"], "is not the name of an image"),
        (["--image= stepfeed"], "is not the name of an image"),
        ([f"--image={'a' * 256}"], "is not the name of an image"),
        (["--image=https://registry/stepfeed"], "is not the name of an image"),
        (["--namespace=-ml"], "--namespace=-ml: must be lower-case letters, digits and hyphens, at most 63"),
        ([f"--namespace={'a' * 64}"], "at most 63"),
        (["--env=A"], "--env=A: must be NAME=VALUE"),
        (["--env=1A=2"], "--env=1A=2: a variable's name must be letters"),
        (["--env=A=1", "--env=A=2"], "--env=A=2: A is given twice"),
        (["--env=A=1", "--secret_env=A=s:k"], "--secret_env: A is given by --env, too"),
        (["--env=TF_CONFIG={}"], "--env=TF_CONFIG={}: the launcher sets TF_CONFIG for each process"),
        (["--secret_env=A=b"], "--secret_env=A=b: must be NAME=SECRET:KEY"),
        (["--secret_env=A=B_C:k"], "--secret_env=A=B_C:k: 'B_C' must be lower-case letters"),
        (["--secret_env=A=b:.."], "--secret_env=A=b:..: must be NAME=SECRET:KEY"),
        (["--service_account=My"], "--service_account=My: 'My' must be lower-case"),
        (["--priority_class=a_b"], "--priority_class=a_b: 'a_b' must be lower-case"),
        (["--pull_secret="], "--pull_secret=: '' must be lower-case"),
        (["--node_selector=pool"], "--node_selector=pool: must be LABEL=VALUE"),
        (["--node_selector=-p=gpu"], "'-p' is not a name of a label"),
        (["--node_selector=a/b/c=gpu"], "'a/b/c' is not a name of a label"),
        ([f"--node_selector=pool={'x' * 64}"], "must be at most 63 letters"),
        (["--toleration=a:Never"], "--toleration=a:Never: the effect must be one of NoSchedule, PreferNoSchedule"),
        (["--toleration=a b"], "'a b' is not a name of a label"),
        (["--run_as=root"], "--run_as=root: must be UID or UID:GID"),
        (["--run_as=1:"], "--run_as=1:: must be UID or UID:GID"),
        (["--run_as=4294967296"], "numbers up to 2147483647"),
        (["--ttl=-1"], "--ttl=-1: must be 0 or more"),
        (["--ttl=5", "--kind=trainjob"], "--ttl=5 with --kind=trainjob: a TrainJob has no time to live"),
        ([f"--env=A={'x' * 140000}"], "A has 140,000 bytes, but Linux allows at most"),
    ],
)
def test_what_cannot_work(documents_of, flags, words):
    with pytest.raises(UsageError) as error:
        documents_of(*flags)
    assert words in str(error.value)


@pytest.mark.parametrize(
    ("flag", "said"),
    [
        ("--log_keys=/keys", "--log_keys=/keys: lies on no volume of --volume (/data, /ro, /runs, /ro/own)"),
        ("--log_keys=/ro/keys", "--log_keys=/ro/keys: lies on a volume that is mounted read-only (/ro:ro)"),
        ("--log_keys=/ro/own/keys", ""),
        ("--log_losses=/losses", "--log_losses=/losses: lies on no volume of --volume (/data, /ro, /runs, /ro/own)"),
        ("--metrics_jsonl=m.jsonl", "--metrics_jsonl=m.jsonl: lies on no volume"),
        ("--metrics_jsonl=/ro/m.jsonl", "--metrics_jsonl=/ro/m.jsonl: lies on a volume that is mounted read-only"),
        ("--initialize_from=/weights", "--initialize_from: /weights lies on no volume"),
        ("--initialize_from=/data/weights", ""),
        ("--data_dir=/data/a=0.7,/else/b:train[:50%]=0.3", "/else/b lies on no volume"),
        ("--data_dir=/data/a=0.7,s3://bucket/b=0.3", ""),
        ("--data_dir=/data/../etc", "/data/../etc lies on no volume"),
        ("--model_dir=/runs2/x", "--model_dir=/runs2/x: lies on no volume"),
    ],
)
def test_what_lies_on_no_volume(documents_of, flag, said):
    trainer = {"--data_dir": "/data", "--model_dir": "/runs/one", **dict([flag.split("=", 1)])}
    given = [f"{name}={value}" for name, value in trainer.items()]
    volumes = "data:/data,other:/ro:ro,runs:/runs,own:/ro/own"
    if not said:
        assert documents_of(f"--volume={volumes}", trainer=given)
        return
    with pytest.raises(UsageError) as error:
        documents_of(f"--volume={volumes}", trainer=given)
    assert said in str(error.value)


def test_a_flag_of_kubernetes_without_it(job_of):
    with pytest.raises(
        UsageError, match="--image=x with --target=local: is for --target=kubernetes; leave --image out"
    ):
        job_of("--image=x")
    with pytest.raises(UsageError, match="--cpus=2 with --target=local: is for --target=kubernetes or --target=slurm"):
        job_of("--cpus=2")


def test_a_config_file_that_pods_do_not_have(documents_of, tmp_path):
    path = tmp_path / "recipe.yaml"
    path.write_text("model: mlp\n")
    trainer = ("--data_dir=/data", "--model_dir=/runs/one", f"--config={path}")
    with pytest.raises(UsageError, match=r"lies on no volume of --volume \(/data, /runs\), so pods do not have it"):
        documents_of(trainer=trainer)


@pytest.mark.parametrize(("given", "asked"), [("1500M", "1500M"), ("1500mi", "1500Mi"), ("16g", "16G"), ("9K", "9k")])
def test_memory_as_slurm_or_kubernetes_writes_it(documents_of, given, asked):
    assert trainer_of(documents_of(f"--memory={given}"))["resources"]["limits"] == {"memory": asked}
