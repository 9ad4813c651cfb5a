"""The manifests: against the published models, and what their pods do."""

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
from tests.unit.trainer.launching.schedulers.conftest import KUBERNETES, NASTY
from trainer.callbacks.heartbeat import Heartbeat
from trainer.cluster import tf_config
from trainer.journal import Beat
from trainer.launching import flags
from trainer.launching.schedulers import kubernetes

INDEX = "batch.kubernetes.io/job-completion-index"
LARGE = ("--cpus=8", "--memory=16Gi", "--gpus_per_worker=2", "--namespace=ml", "--max_restarts=3")


@pytest.fixture
def documents_of(job_of):
    def documents_of(*flags, **options):
        return list(yaml.safe_load_all(kubernetes.render(job_of(*KUBERNETES, *flags, **options))))

    return documents_of


def replicated(spec):
    return {job["name"]: job["template"]["spec"] for job in spec["replicatedJobs"]}


def container_of(job):
    (container,) = job["template"]["spec"]["containers"]
    return container


@pytest.mark.parametrize("num_ps", [0, 2])
def test_a_jobset_fits_the_published_models(documents_of, num_ps):
    (jobset,) = documents_of("--num_workers=2", *LARGE, num_ps=num_ps)
    manifests.check_trainer_api(jobset, "JobsetV1alpha2JobSet")
    assert (jobset["apiVersion"], jobset["metadata"]) == (
        "jobset.x-k8s.io/v1alpha2",
        {"name": "train", "namespace": "ml"},
    )
    jobs = replicated(jobset["spec"])
    assert list(jobs) == (["chief", "worker", "ps"] if num_ps else ["worker"])
    for job in jobs.values():
        manifests.check_job(job)
        assert container_of(job)["image"] == "registry/stepfeed:1"  # KUBERNETES gives --image


@pytest.mark.parametrize("kind", ["jobset", "trainjob"])
def test_a_page_is_a_deployment_beside_the_job(documents_of, kind):
    given = (f"--kind={kind}", "--num_workers=2", "--namespace=ml", "--secret_env=STEPFEED_WATCH_TOKEN=page:token")
    job = documents_of(*given)
    *same, page = documents_of(*given, "--page=9000", "--env=TZ=UTC")
    assert [one["kind"] for one in same] == [one["kind"] for one in job]
    manifests.check_built_in(page)
    assert (page["kind"], page["metadata"]) == ("Deployment", {"name": "train-page", "namespace": "ml"})
    pod = page["spec"]["template"]
    assert page["spec"]["selector"]["matchLabels"] == pod["metadata"]["labels"]
    (container,) = pod["spec"]["containers"]
    assert container["command"] == [
        *("python", "-m", "trainer.watch", "/runs/one", "--host=0.0.0.0", "--port=9000"),
    ]
    assert container["ports"] == [{"name": "page", "containerPort": 9000}]
    assert [(mount["mountPath"], mount["readOnly"]) for mount in container["volumeMounts"]] == [
        ("/data", True),
        ("/runs", True),
    ]
    names = {one["name"]: one.get("value") for one in container["env"]}
    assert names == {"PYTHONUNBUFFERED": "1", "TZ": "UTC", "STEPFEED_WATCH_TOKEN": None}


def test_the_page_has_a_usual_port(documents_of):
    (_, page) = documents_of("--page")
    assert page["spec"]["template"]["spec"]["containers"][0]["ports"][0]["containerPort"] == flags.PAGE_PORT


@pytest.mark.parametrize("num_ps", [0, 2])
def test_a_trainjob_and_its_runtime_fit_the_published_models(documents_of, num_ps):
    runtime, job = documents_of("--kind=trainjob", "--num_workers=2", *LARGE, num_ps=num_ps)
    manifests.check_trainer_api(runtime, "TrainerV1alpha1TrainingRuntime")
    manifests.check_trainer_api(job, "TrainerV1alpha1TrainJob")
    assert job["spec"]["runtimeRef"]["name"] == runtime["metadata"]["name"] == "train"
    count = 1 if num_ps else 2
    assert runtime["spec"]["mlPolicy"] == {"numNodes": count}  # neither torch, mpi nor jax: PlainML
    assert job["spec"]["trainer"]["numNodes"] == count
    jobs = replicated(runtime["spec"]["template"]["spec"])
    assert list(jobs) == (["node", "worker", "ps"] if num_ps else ["node"])
    for each in jobs.values():
        manifests.check_job(each)
    # What trainingruntime_webhook.go wants.
    steps = {
        each["name"]: each["template"].get("metadata", {}).get("labels")
        for each in runtime["spec"]["template"]["spec"]["replicatedJobs"]
    }
    assert steps == {**dict.fromkeys(jobs), "node": {"trainer.kubeflow.org/trainjob-ancestor-step": "trainer"}}
    assert container_of(jobs["node"])["name"] == "node"


@pytest.mark.parametrize(
    ("kind", "check", "path"),
    [
        ("jobset", lambda m: manifests.check_trainer_api(m, "JobsetV1alpha2JobSet"), ("spec", "failurePolicy")),
        ("trainjob", lambda m: manifests.check_trainer_api(m, "TrainerV1alpha1TrainJob"), ("spec", "trainer")),
    ],
)
def test_a_misspelt_field_is_found(documents_of, kind, check, path):
    manifest = documents_of(f"--kind={kind}")[-1]
    part = manifest
    for name in path:
        part = part[name]
    part["maxRestart"] = 3
    with pytest.raises(AssertionError, match=rf"{path[-1]}\.maxRestart"):
        check(manifest)


@pytest.mark.parametrize(("kind", "name"), [("jobset", "worker"), ("trainjob", "node")])
def test_each_pod_gets_its_task_index(documents_of, kind, name):
    *_, last = documents = documents_of(f"--kind={kind}", "--num_workers=3", "--name=mnist")
    spec = documents[0]["spec"]
    container = last["spec"]["trainer"] if kind == "trainjob" else container_of(replicated(spec)["worker"])
    addresses = tuple(f"mnist-{name}-0-{index}.mnist:2222" for index in range(3))
    for index in range(3):
        variables = manifests.environment(container, {INDEX: str(index)})
        assert tf_config.parse(variables["TF_CONFIG"]) == tf_config.Cluster(addresses, index)


def test_roles_with_parameter_servers(documents_of):
    (jobset,) = documents_of("--num_workers=2", "--port=3000", num_ps=1)
    hosts = {
        "chief": ["train-chief-0-0.train:3000"],
        "worker": ["train-worker-0-0.train:3000", "train-worker-0-1.train:3000"],
        "ps": ["train-ps-0-0.train:3000"],
    }
    for role, job in replicated(jobset["spec"]).items():
        last = len(hosts[role]) - 1
        variables = manifests.environment(container_of(job), {INDEX: str(last)})
        expected = {"cluster": hosts, "task": {"type": role, "index": last}}
        assert json.loads(variables["TF_CONFIG"]) == expected


def test_one_process_has_no_cluster(documents_of):
    (jobset,) = documents_of()
    assert [each["name"] for each in container_of(replicated(jobset["spec"])["worker"])["env"]] == [
        "PYTHONUNBUFFERED",
        "STEPFEED_HEARTBEAT",
    ]


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


def test_an_asynchronous_worker_restarts_alone_and_the_chief_ends_the_job(documents_of):
    (jobset,) = documents_of("--num_workers=2", "--max_restarts=3", num_ps=1)
    jobs = replicated(jobset["spec"])
    assert {name: job.get("backoffLimit") for name, job in jobs.items()} == {"chief": 0, "worker": None, "ps": 0}
    assert {name: job.get("backoffLimitPerIndex") for name, job in jobs.items()} == {
        "chief": None,
        "worker": 3,
        "ps": None,
    }
    assert "maxFailedIndexes" not in jobs["worker"]  # a worker that is lost does not end the others
    assert [rule["action"] for rule in jobs["chief"]["podFailurePolicy"]["rules"]] == ["FailJob", "FailJob"]
    assert [rule["action"] for rule in jobs["worker"]["podFailurePolicy"]["rules"]] == ["FailJob", "Ignore"]
    assert jobset["spec"]["successPolicy"] == {"operator": "All", "targetReplicatedJobs": ["chief"]}
    assert jobset["spec"]["failurePolicy"]["maxRestarts"] == 3


def test_resources_volumes_and_time_to_save(documents_of):
    (jobset,) = documents_of("--num_workers=2", *LARGE, "--stop_timeout=90.5", num_ps=1)
    jobs = replicated(jobset["spec"])
    asked = {"cpu": "8", "memory": "16Gi"}
    assert container_of(jobs["worker"])["resources"] == {"requests": asked, "limits": {**asked, "nvidia.com/gpu": "2"}}
    assert container_of(jobs["ps"])["resources"] == {"requests": asked, "limits": asked}
    for job in jobs.values():
        pod = job["template"]["spec"]
        assert pod["terminationGracePeriodSeconds"] == 91
        assert pod["shareProcessNamespace"]  # else SIGTERM is lost while no handler is set
        assert [(one["name"], one["persistentVolumeClaim"]["claimName"]) for one in pod["volumes"]] == [
            ("data", "data"),
            ("runs", "runs"),
        ]
        mounts = container_of(job)["volumeMounts"]
        assert mounts == [{"name": "data", "mountPath": "/data"}, {"name": "runs", "mountPath": "/runs"}]


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
        (jobset,) = documents_of(trainer=("--data_dir=/data/mnist", "--model_dir=/runs/one", *trainer))
        variables = manifests.environment(container_of(replicated(jobset["spec"])["worker"]), {INDEX: "0"})
        return variables.get("STEPFEED_FRESH")

    assert name() is None
    assert name("--fresh")
    assert name("--fresh") != name("--fresh")


@pytest.mark.parametrize("kind", ["jobset", "trainjob"])
def test_flags_and_variables_reach_the_process_as_they_are(documents_of, kind):
    """The pod's command is really run, with a program that prints its arguments instead of the trainer."""
    flags = [f"--env=V{index}={word}" for index, word in enumerate(NASTY)]
    trainer = ("--data_dir=/data/" + "".join(NASTY), "--model_dir=/runs/one")
    *_, last = documents_of(f"--kind={kind}", *flags, trainer=trainer)
    spec = last["spec"]
    container = spec["trainer"] if kind == "trainjob" else container_of(replicated(spec)["worker"])
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
    (jobset,) = documents_of("--silent_timeout=20")
    container = container_of(replicated(jobset["spec"])["worker"])
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


def test_before_the_first_beat_a_process_starts(probes, documents_of, tmp_path):
    assert probes(None) == [False, False]
    with Heartbeat(str(tmp_path / "real.json")):
        assert probes((tmp_path / "real.json").read_text()) == [True, True]
    (jobset,) = documents_of()
    probe = container_of(replicated(jobset["spec"])["worker"])["startupProbe"]
    assert probe["periodSeconds"] * probe["failureThreshold"] == 900


OPERATOR = (
    *("--env=HTTP_PROXY=http://proxy:3128", "--env=EMPTY=", "--secret_env=AWS_SECRET_ACCESS_KEY=store.s3:secret-key"),
    *(
        "--service_account=trainer",
        "--node_selector=pool=gpu",
        "--node_selector=cloud.google.com/gke-accelerator=nvidia-l4",
    ),
    *("--toleration=nvidia.com/gpu:NoSchedule", "--toleration=team=vision:NoExecute", "--toleration=spot"),
    *("--priority_class=batch-low", "--pull_secret=registry", "--pull_secret=mirror", "--run_as=1000:100"),
)


@pytest.mark.parametrize("num_ps", [0, 1])
@pytest.mark.parametrize("kind", ["jobset", "trainjob"])
def test_what_an_operator_sets(documents_of, kind, num_ps):
    ttl = () if kind == "trainjob" else ("--ttl=3600",)
    documents = documents_of(f"--kind={kind}", *OPERATOR, *ttl, "--volume=data:/data:ro,runs.v2:/runs", num_ps=num_ps)
    spec = documents[0]["spec"]
    owner = spec["template"]["spec"] if kind == "trainjob" else spec
    manifests.check_trainer_api(
        documents[0], "TrainerV1alpha1TrainingRuntime" if kind == "trainjob" else "JobsetV1alpha2JobSet"
    )
    templates = [job["template"]["spec"] for job in replicated(owner).values()]
    assert owner.get("ttlSecondsAfterFinished") == (3600 if ttl else None)
    assert len(templates) == (3 if num_ps else 1)
    for pod in templates:
        manifests.check_pod(pod)
        (container,) = pod["containers"]
        assert pod["serviceAccountName"] == "trainer"
        assert pod["nodeSelector"] == {"pool": "gpu", "cloud.google.com/gke-accelerator": "nvidia-l4"}
        assert pod["tolerations"] == [
            {"key": "nvidia.com/gpu", "operator": "Exists", "effect": "NoSchedule"},
            {"key": "team", "operator": "Equal", "value": "vision", "effect": "NoExecute"},
            {"key": "spot", "operator": "Exists"},
        ]
        assert pod["priorityClassName"] == "batch-low"
        assert pod["imagePullSecrets"] == [{"name": "registry"}, {"name": "mirror"}]
        security = {"runAsUser": 1000, "runAsGroup": 100, "fsGroup": 100, "runAsNonRoot": True}
        assert pod["securityContext"] == security
        claims = {volume["name"]: volume["persistentVolumeClaim"]["claimName"] for volume in pod["volumes"]}
        assert not [name for name in claims if "." in name]  # which a claim's name may have, a volume's may not
        assert [
            (claims[each["name"]], each["mountPath"], each.get("readOnly")) for each in container["volumeMounts"]
        ] == [
            ("data", "/data", True),
            ("runs.v2", "/runs", None),
        ]
        if "env" not in container:  # of a TrainJob's own part
            container = documents[1]["spec"]["trainer"]
        variables = {variable["name"]: variable for variable in container["env"]}
        assert variables["HTTP_PROXY"]["value"] == "http://proxy:3128"
        assert variables["EMPTY"]["value"] == ""
        reference = {"name": "store.s3", "key": "secret-key"}
        assert variables["AWS_SECRET_ACCESS_KEY"]["valueFrom"] == {"secretKeyRef": reference}


def test_root_and_a_user_without_a_group(documents_of):
    for given, found in (
        ("0", {"runAsUser": 0, "runAsGroup": 0, "fsGroup": 0}),
        ("7", {"runAsUser": 7, "runAsGroup": 7, "fsGroup": 7, "runAsNonRoot": True}),
    ):
        (jobset,) = documents_of(f"--run_as={given}")
        assert replicated(jobset["spec"])["worker"]["template"]["spec"]["securityContext"] == found


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
    (jobset,) = documents_of(f"--memory={given}")
    assert container_of(replicated(jobset["spec"])["worker"])["resources"]["limits"] == {"memory": asked}
