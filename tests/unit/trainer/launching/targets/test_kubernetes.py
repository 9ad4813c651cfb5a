"""The manifests: against the published models, and what their pods do."""

import contextlib
import json
import os
import signal
import subprocess
import time

import pytest
import yaml

from pipeline.errors import UsageError
from tests import manifests
from tests.unit.trainer.launching.targets.conftest import KUBERNETES
from trainer.cluster import tf_config
from trainer.launching.targets import kubernetes

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


@pytest.mark.parametrize("num_ps", [0, 2])
def test_a_tfjob_fits_the_published_models(documents_of, num_ps):
    (job,) = documents_of("--kind=tfjob", "--num_workers=2", *LARGE, num_ps=num_ps)
    manifests.check_tfjob(job)
    replicas = job["spec"]["tfReplicaSpecs"]
    counts = {name: each["replicas"] for name, each in replicas.items()}
    assert counts == ({"Chief": 1, "Worker": 2, "PS": 2} if num_ps else {"Worker": 2})
    for each in replicas.values():
        manifests.check_pod(each["template"]["spec"])
        container = container_of(each)
        assert (container["name"], container["ports"][0]["name"]) == ("tensorflow", "tfjob-port")
        assert "TF_CONFIG" not in [variable["name"] for variable in container["env"]]  # the operator sets it


@pytest.mark.parametrize(
    ("kind", "check", "path"),
    [
        ("jobset", lambda m: manifests.check_trainer_api(m, "JobsetV1alpha2JobSet"), ("spec", "failurePolicy")),
        ("trainjob", lambda m: manifests.check_trainer_api(m, "TrainerV1alpha1TrainJob"), ("spec", "trainer")),
        ("tfjob", manifests.check_tfjob, ("spec", "runPolicy")),
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
    assert [each["name"] for each in container_of(replicated(jobset["spec"])["worker"])["env"]] == ["PYTHONUNBUFFERED"]


def test_exit_codes_of_a_synchronous_job(documents_of):
    (jobset,) = documents_of("--num_workers=2", "--max_restarts=3")
    job, policy = replicated(jobset["spec"])["worker"], jobset["spec"]["failurePolicy"]
    assert job["backoffLimit"] == 0  # any pod that fails fails the Job, and the JobSet restarts, all of it
    codes = {"containerName": "trainer", "operator": "In", "values": [1, 2]}
    assert job["podFailurePolicy"] == {"rules": [{"action": "FailJob", "onExitCodes": codes}]}
    assert job["template"]["spec"]["restartPolicy"] == "Never"
    assert (policy["maxRestarts"], policy["restartStrategy"]) == (3, "BlockingRecreate")
    (rule,) = policy["rules"]
    assert (rule["action"], rule["onJobFailureReasons"]) == ("FailJobSet", ["PodFailurePolicy"])
    assert "successPolicy" not in jobset["spec"]


def test_an_asynchronous_worker_restarts_alone_and_the_chief_ends_the_job(documents_of):
    (jobset,) = documents_of("--num_workers=2", "--max_restarts=3", num_ps=1)
    jobs = replicated(jobset["spec"])
    assert {name: job["backoffLimit"] for name, job in jobs.items()} == {"chief": 0, "worker": 3, "ps": 0}
    assert [rule["action"] for rule in jobs["worker"]["podFailurePolicy"]["rules"]] == ["FailJob", "Ignore"]
    assert jobset["spec"]["successPolicy"] == {"operator": "All", "targetReplicatedJobs": ["chief"]}


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


def test_what_looks_like_a_reference_stays_as_it_is(documents_of):
    trainer = ("--data_dir=/data/$(HOME)", "--model_dir=/runs/one")
    (jobset,) = documents_of(trainer=trainer)
    command = container_of(replicated(jobset["spec"])["worker"])["command"]
    assert "--data_dir=/data/$(HOME)" in [manifests.expanded(word, {"HOME": "/root"}) for word in command]


def wrapped(documents_of, program):
    """Returns the TFJob's command with another program."""
    (job,) = documents_of("--kind=tfjob")
    command = [
        manifests.expanded(word, {}) for word in container_of(job["spec"]["tfReplicaSpecs"]["Worker"])["command"]
    ]
    return [*command[: command.index("python")], "bash", "-c", program]


@pytest.mark.parametrize(("code", "seen"), [(0, 0), (1, 1), (2, 2), (75, 138), (137, 137)])
def test_the_operator_restarts_after_75(documents_of, code, seen):
    assert subprocess.run(wrapped(documents_of, f"exit {code}"), check=False).returncode == seen


def test_a_tfjobs_process_gets_sigterm(documents_of, tmp_path):
    program = (
        f"trap 'sleep 0.3; touch {tmp_path}/saved; exit 75' TERM; touch {tmp_path}/up; while :; do sleep 0.05; done"
    )
    process = subprocess.Popen(wrapped(documents_of, program), start_new_session=True)
    try:
        while not (tmp_path / "up").exists():
            time.sleep(0.02)
        os.kill(process.pid, signal.SIGTERM)
        assert process.wait(30) == 138
    finally:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
    assert (tmp_path / "saved").exists()


@pytest.mark.parametrize(
    ("flags", "words"),
    [
        (["--image="], "--image is missing: --target=kubernetes needs a container image"),
        (["--volume=data:/data"], "--model_dir=/runs/one: lies on no volume of --volume (/data)"),
        (["--volume=data"], "'data' is not CLAIM:/FOLDER"),
        (["--volume=data:runs"], "'data:runs' is not CLAIM:/FOLDER"),
        (["--volume=a:/runs,b:/runs"], "/runs is there twice"),
        (["--memory=10 GB"], "--memory=10 GB: must be a whole number and Mi, Gi or Ti without a space, such as 16Gi"),
        (["--gpus_per_worker=-1"], "--gpus_per_worker=-1: must be 0 or more"),
        (["--kind=job"], "--kind: unknown 'job'; did you mean 'tfjob'?"),
        (["--name=My_Job"], "--name=My_Job: must be lower-case"),
        ([f"--name={'a' * 60}"], "must be 46 characters or less"),
        (["--port=70000"], "--port=70000: must be 65535 or less"),
        (["--time_limit=10"], "--time_limit=10 with --target=kubernetes: is for --target=slurm"),
        (["--silent_timeout=10"], "--silent_timeout=10.0 with --target=kubernetes: is for --target=local"),
    ],
)
def test_what_cannot_work(documents_of, flags, words):
    with pytest.raises(UsageError) as error:
        documents_of(*flags)
    assert words in str(error.value)


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
