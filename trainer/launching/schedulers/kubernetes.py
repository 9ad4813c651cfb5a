"""`--target=kubernetes`: a job as manifests for `kubectl apply`.

A JobSet is a Job of indexed pods for each role, restarted together by the exit code. A TrainJob of Kubeflow Trainer 2
wraps a JobSet in a runtime. A TFJob of Training Operator 1 restarts pods one by one.
"""

from __future__ import annotations

import posixpath
from collections.abc import Callable

import yaml

from pipeline.errors import UsageError
from pipeline.manifest.sources import parse_sources, sources_of
from trainer.launching.flags import KubernetesFlags, Mount
from trainer.launching.job import PARAMETER_SERVER, Job
from trainer.launching.schedulers import pods
from trainer.launching.schedulers.pods import Manifest

_LONGEST_NAME = pods.LONGEST_LABEL  # of a pod
_LONGEST_VARIABLE = (1 << 17) - 100  # bytes that Linux takes in a variable, less its name
_SUFFIX = 6  # that Kubernetes appends: -x7k2p

# JobSet
_CONTAINER = "trainer"
# What Kubernetes' Job controller calls a failure by podFailurePolicy.
_BY_POLICY = "PodFailurePolicy"
_FINAL, _EVICTED = 0, 1  # the rules of the jobs' policies
_ALONE = "worker"  # the role whose processes restart one by one, where training is asynchronous

# TrainJob
_TRAINER_API = "trainer.kubeflow.org/v1alpha1"
_RUNTIME = "TrainingRuntime"
_NODE = "node"  # what Kubeflow Trainer expects as the name of the job and of the container
_NODE_LABELS = {"trainer.kubeflow.org/trainjob-ancestor-step": "trainer"}

# TFJob
_TFJOB_CONTAINER, _TFJOB_PORT = "tensorflow", "tfjob-port"  # what the operator looks for
_TFJOB_ROLES = {"chief": "Chief", "worker": "Worker", "ps": "PS"}
# The operator restarts a pod after codes of 128 and more only; it leaves 138 to users.
_RETRIED = 138
_PASS_ON = f"""\
"$@" & child=$!
trap 'kill -TERM "$child"' TERM
wait "$child"; code=$?
while kill -0 "$child" 2>/dev/null; do wait "$child"; code=$?; done
if [ "$code" -eq {pods.RERUN_CODE} ]; then code={_RETRIED}; fi
exit "$code"
"""


def render(job: Job) -> str:
    """Returns the manifests as a stream of YAML documents.

    Raises:
      UsageError: a flag is missing, or cannot work there.
    """
    flags = job.launch.kubernetes
    _check(job, flags)
    documents = _KINDS[flags.kind or "jobset"](job)
    if job.launch.job.page is not None:
        documents.append(pods.page(job))
    return yaml.dump_all(documents, Dumper=_Plain, sort_keys=False, explicit_start=True, width=1 << 20)


class _Plain(yaml.SafeDumper):
    """Repeats what occurs twice, instead of aliases, and writes texts of several lines as they are."""

    def ignore_aliases(self, data: object) -> bool:
        return True


def _text(dumper: yaml.SafeDumper, text: str) -> yaml.ScalarNode:
    return dumper.represent_scalar("tag:yaml.org,2002:str", text, style="|" if "\n" in text else None)


_Plain.add_representer(str, _text)


def _check(job: Job, flags: KubernetesFlags) -> None:
    if not flags.image:
        raise UsageError("--image is missing: --target=kubernetes needs a container image, see docs/clusters.md")
    if flags.ttl is not None and flags.kind == "trainjob":
        raise UsageError(f"--ttl={flags.ttl} with --kind=trainjob: a TrainJob has no time to live; leave --ttl out")
    _check_folders(job, flags)
    name = job.launch.processes.job_name
    longest = max(len(f"{name}-{role}-0-{count - 1}") for role, count in job.roles.items()) + _SUFFIX
    if longest > _LONGEST_NAME:
        raise UsageError(
            f"--name={name}: must be {len(name) - longest + _LONGEST_NAME} characters or less, so that the names of "
            f"pods have {_LONGEST_NAME}"
        )
    for variable in pods.environment(job, next(iter(job.roles)), {role: role for role in job.roles}):
        size = len(variable.get("value", "").encode())
        if size > _LONGEST_VARIABLE:
            raise UsageError(
                f"{variable['name']} has {size:,} bytes, of which Linux takes at most "
                f"{_LONGEST_VARIABLE:,}; give fewer processes, or a shorter value"
            )


def _check_folders(job: Job, flags: KubernetesFlags) -> None:
    """Checks that everything that pods read or write lies on a volume or at a URL: else they lack it, or lose it."""
    config = job.config
    written = {
        "model_dir": config.run.model_dir,
        "log_keys": config.run.log_keys,
        "log_losses": config.run.log_losses,
        "metrics_jsonl": config.output.metrics_jsonl,
    }
    for flag, path in written.items():
        if path is None:
            continue
        mount = _mount_of(path, flags)
        if mount is None:
            raise UsageError(
                f"--{flag}={path}: lies on {_no_volume(flags)}, so it would be lost with its pod, and other pods could "
                "not read it; give --volume=CLAIM:/FOLDER and a path in it"
            )
        if mount.is_read_only:
            raise UsageError(f"--{flag}={path}: lies on a volume that is mounted read-only ({mount.path}:ro)")
    read = [("initialize_from", config.model.initialize_from), *(("config", path) for path in _config_files(job.flags))]
    read += [("data_dir", folder) for folder in _data_folders(config.data.data_dir) if "://" not in folder]
    for flag, path in read:
        if path is not None and not _mount_of(path, flags):
            raise UsageError(
                f"--{flag}: {path} lies on {_no_volume(flags)}, so pods do not have it; give "
                "--volume=CLAIM:/FOLDER:ro and a path in it"
            )


def _no_volume(flags: KubernetesFlags) -> str:
    return f"no volume of --volume ({', '.join(mount.path for mount in flags.mounts) or 'none'})"


def _mount_of(path: str, flags: KubernetesFlags) -> Mount | None:
    """Returns the volume that a path lies on, the innermost of several; None: it lies on none."""
    path = posixpath.normpath(path)
    found = [mount for mount in flags.mounts if path == mount.path or path.startswith(f"{mount.path}/")]
    return max(found, key=lambda mount: len(mount.path), default=None)


def _data_folders(data_dir: str) -> list[str]:
    given = parse_sources(data_dir)
    return [given] if isinstance(given, str) else [str(each.data_dir) for each in sources_of(given, "train")]


def _config_files(words: tuple[str, ...]) -> list[str]:
    pairs = zip(words, [*words[1:], ""], strict=True)
    return [
        following if word == "--config" else word.partition("=")[2]
        for word, following in pairs
        if word == "--config" or word.startswith("--config=")
    ]


def _jobset(job: Job) -> list[Manifest]:
    jobs = {role: role for role in job.roles}
    spec = _jobset_spec(job, [_role_job(job, role, jobs) for role in job.roles], jobs)
    return [{"apiVersion": "jobset.x-k8s.io/v1alpha2", "kind": "JobSet", "metadata": pods.metadata(job), "spec": spec}]


def _jobset_spec(job: Job, replicated_jobs: list[Manifest], jobs: dict[str, str]) -> Manifest:
    """Returns the specification of a JobSet.

    Args:
      job: that it runs.
      replicated_jobs: of its roles.
      jobs: what they are called, by role.
    """
    chief = {"successPolicy": {"operator": "All", "targetReplicatedJobs": [jobs["chief"]]}} if "chief" in jobs else {}
    ttl = job.launch.kubernetes.ttl
    return {
        "network": {"enableDNSHostnames": True, "publishNotReadyAddresses": True},
        **({} if ttl is None else {"ttlSecondsAfterFinished": ttl}),
        **chief,
        "failurePolicy": {
            "maxRestarts": job.restarts.max_restarts,
            "restartStrategy": "BlockingRecreate",  # the last pods have saved and are gone before new ones start
            "rules": [
                _rule("badDataOrFlag", "FailJobSet", _FINAL),
                _rule("evicted", "RestartJobSetAndIgnoreMaxRestarts", _EVICTED),
            ],
        },
        "replicatedJobs": replicated_jobs,
    }


def _rule(name: str, action: str, index: int) -> Manifest:
    """Returns what follows when a job failed by a rule of its policy; the failure's message ends with the index."""
    return {
        "name": name,
        "action": action,
        "onJobFailureReasons": [_BY_POLICY],
        "onJobFailureMessagePatterns": [f"matching FailJob rule at index {index}$"],
    }


def _replicated_job(job: Job, role: str, name: str, container: Manifest) -> Manifest:
    """Returns the pods of a role. A pod that fails restarts the whole JobSet; an asynchronous worker restarts alone."""
    count = job.roles[role]
    alone = job.strategy == PARAMETER_SERVER and role == _ALONE
    codes = {"containerName": container["name"], "operator": "In", "values": pods.FINAL_CODES}
    # An eviction is not counted as a restart: the pod is replaced alone, or the whole JobSet starts again.
    evicted = {
        "action": "Ignore" if alone else "FailJob",
        "onPodConditions": [{"type": "DisruptionTarget", "status": "True"}],
    }
    return {
        "name": name,
        "replicas": 1,
        "template": {
            "spec": {
                "completionMode": "Indexed",
                "completions": count,
                "parallelism": count,
                # A worker without restarts left is lost, and the others go on.
                **({"backoffLimitPerIndex": job.restarts.max_restarts} if alone else {"backoffLimit": 0}),
                "podFailurePolicy": {"rules": [{"action": "FailJob", "onExitCodes": codes}, evicted]},
                "template": {"spec": {"restartPolicy": "Never", **pods.pod_spec(job, container)}},
            }
        },
    }


def _role_job(job: Job, role: str, jobs: dict[str, str]) -> Manifest:
    container = {
        **pods.container(job, role, _CONTAINER),
        "command": pods.command(job),
        "env": pods.environment(job, role, jobs),
    }
    return _replicated_job(job, role, role, container)


def _trainjob(job: Job) -> list[Manifest]:
    """Returns the manifests of the runtime and of the job."""
    main = next(iter(job.roles))
    jobs = {role: _NODE if role == main else role for role in job.roles}
    # Of the main role's container, the trainer below gives command and variables.
    node = _replicated_job(job, main, _NODE, pods.container(job, main, _NODE))
    node["template"] = {"metadata": {"labels": _NODE_LABELS}, **node["template"]}
    replicated = [node, *(_role_job(job, role, jobs) for role in job.roles if role != main)]
    count, metadata = job.roles[main], pods.metadata(job)
    runtime = {
        "apiVersion": _TRAINER_API,
        "kind": _RUNTIME,
        "metadata": metadata,
        "spec": {"mlPolicy": {"numNodes": count}, "template": {"spec": _jobset_spec(job, replicated, jobs)}},
    }
    resources = pods.resources(job, main)
    trainer = {
        "image": job.launch.kubernetes.image,
        "command": pods.command(job),
        "env": pods.environment(job, main, jobs),
        "numNodes": count,
        **({"resourcesPerNode": resources} if resources else {}),
    }
    reference = {"apiGroup": _TRAINER_API.partition("/")[0], "kind": _RUNTIME, "name": metadata["name"]}
    spec = {"runtimeRef": reference, "trainer": trainer}
    return [runtime, {"apiVersion": _TRAINER_API, "kind": "TrainJob", "metadata": metadata, "spec": spec}]


def _tfjob(job: Job) -> list[Manifest]:
    ttl = job.launch.kubernetes.ttl
    spec = {
        "runPolicy": {
            "cleanPodPolicy": "Running",  # parameter servers do not end by themselves
            **({} if ttl is None else {"ttlSecondsAfterFinished": ttl}),
            **({"backoffLimit": job.restarts.max_restarts} if job.restarts.max_restarts else {}),
        },
        **({} if "chief" in job.roles else {"successPolicy": "AllWorkers"}),
        "tfReplicaSpecs": {_TFJOB_ROLES[role]: _tfjob_replicas(job, role) for role in job.roles},
    }
    return [{"apiVersion": "kubeflow.org/v1", "kind": "TFJob", "metadata": pods.metadata(job), "spec": spec}]


def _tfjob_replicas(job: Job, role: str) -> Manifest:
    container = {
        **pods.container(job, role, _TFJOB_CONTAINER),
        "ports": [{"name": _TFJOB_PORT, "containerPort": pods.port(job)}],
        "command": ["sh", "-c", pods.escaped(_PASS_ON), "sh", *pods.command(job)],
        "env": pods.variables(job),
    }
    return {
        "replicas": job.roles[role],
        "restartPolicy": "ExitCode" if job.restarts.max_restarts else "Never",
        "template": {"spec": pods.pod_spec(job, container)},
    }


_KINDS: dict[str, Callable[[Job], list[Manifest]]] = {
    "jobset": _jobset,
    "trainjob": _trainjob,
    "tfjob": _tfjob,
}
