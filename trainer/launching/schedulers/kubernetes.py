"""`--target=kubernetes`: a job as manifests for `kubectl apply`.

A JobSet has a Job with indexed pods for each role; depending on the exit code, they restart together. A TrainJob of
Kubeflow Trainer 2 wraps a JobSet in a runtime.
"""

from __future__ import annotations

import json
import math
import posixpath
import secrets
from collections.abc import Callable, Mapping
from typing import Any

import yaml

from pipeline.errors import UsageError
from pipeline.files.paths import with_version
from pipeline.manifest.sources import parse_sources, sources_of
from trainer.callbacks import heartbeat
from trainer.checkpoint import fresh
from trainer.cluster.tf_config import VARIABLE
from trainer.config import meaning
from trainer.config.meaning import PARAMETER_SERVER
from trainer.config.model import IMAGENET
from trainer.launching.flags import PAGE_PORT, SCHEDULERS, LaunchFlags
from trainer.launching.job import Job
from trainer.launching.schedulers.kubernetes_flags import KubernetesFlags, Mount

Manifest = dict[str, Any]

_PORT = 2222  # of each process; pods have their own addresses
# A restart would fail again: bad data or flags (trainer.run), or no such command (a shell's codes, and containerd's
# 128).
_FINAL_CODES = [1, 2, 126, 127, 128]
_LONGEST_LABEL = 63  # characters in the name of a pod or volume
_HEARTBEAT = "/tmp/stepfeed-heartbeat.json"
_STARTING, _PROBED_EVERY = 900, 30  # seconds
_INDEX = "TASK_INDEX"
_INDEX_PATH = "metadata.annotations['batch.kubernetes.io/job-completion-index']"
_GPU = "nvidia.com/gpu"
_PAGE = "page"
_TRAINS = "worker"  # role whose processes get GPUs
_LONGEST_VARIABLE = (1 << 17) - 100  # most bytes of a variable in Linux, minus its name
_SUFFIX = 6  # characters that Kubernetes appends: -x7k2p

# JobSet
_CONTAINER = "trainer"
# Reason that Kubernetes' Job controller gives for a failure by podFailurePolicy.
_BY_POLICY = "PodFailurePolicy"
_FINAL, _EVICTED = 0, 1  # rules of the jobs' failure policies
_ALONE = "worker"  # role whose processes restart one at a time if training is asynchronous

# TrainJob
_TRAINER_API = "trainer.kubeflow.org/v1alpha1"
_RUNTIME = "TrainingRuntime"
_NODE = "node"  # name that Kubeflow Trainer expects of the job and its container
_NODE_LABELS = {"trainer.kubeflow.org/trainjob-ancestor-step": "trainer"}


def _check_no_variable_twice(launch: LaunchFlags, flags: KubernetesFlags) -> None:
    """Raises UsageError if a variable is given both a value and a secret."""
    for name in flags.secrets:
        if name in launch.processes.variables:
            raise UsageError(f"--secret_env: {name} is given by --env, too; leave one out")


@SCHEDULERS.named("kubernetes", flags=KubernetesFlags, check=_check_no_variable_twice)
def render(job: Job) -> str:
    """Returns the manifests as a stream of YAML documents.

    Raises:
      UsageError: a flag is missing, or cannot be used with Kubernetes.
    """
    flags = _flags(job)
    _check(job, flags)
    documents = _KINDS[flags.kind or "jobset"](job)
    if job.launch.job.page is not None:
        documents.append(_page(job))
    return yaml.dump_all(documents, Dumper=_Plain, sort_keys=False, explicit_start=True, width=1 << 20)


class _Plain(yaml.SafeDumper):
    """Writes repeated values in full instead of as aliases, and multi-line texts as blocks."""

    def ignore_aliases(self, data: object) -> bool:
        return True


def _text(dumper: yaml.SafeDumper, text: str) -> yaml.ScalarNode:
    return dumper.represent_scalar("tag:yaml.org,2002:str", text, style="|" if "\n" in text else None)


_Plain.add_representer(str, _text)


def _check(job: Job, flags: KubernetesFlags) -> None:
    if not flags.image:
        raise UsageError("--image is missing: --target=kubernetes needs a container image; docs/training_clusters.md")
    if flags.ttl is not None and flags.kind == "trainjob":
        raise UsageError(f"--ttl={flags.ttl} with --kind=trainjob: a TrainJob has no time to live; leave --ttl out")
    _check_folders(job, flags)
    name = job.launch.processes.job_name
    longest = max(len(f"{name}-{role}-0-{count - 1}") for role, count in job.roles.items()) + _SUFFIX
    if longest > _LONGEST_LABEL:
        raise UsageError(
            f"--name={name}: must be {len(name) - longest + _LONGEST_LABEL} characters or less, so that the names of "
            f"pods have {_LONGEST_LABEL}"
        )
    for variable in _environment(job, next(iter(job.roles)), {role: role for role in job.roles}):
        size = len(variable.get("value", "").encode())
        if size > _LONGEST_VARIABLE:
            raise UsageError(
                f"{variable['name']} has {size:,} bytes, of which Linux takes at most "
                f"{_LONGEST_VARIABLE:,}; give fewer processes, or a shorter value"
            )


def _check_folders(job: Job, flags: KubernetesFlags) -> None:
    """Checks that everything pods read or write is on a volume or at a URL; otherwise they would lack or lose it."""
    config = job.config
    for flag, path in meaning.given(config, "writes").items():
        mount = _mount_of(path, flags)
        if mount is None:
            raise UsageError(
                f"--{flag}={path}: lies on {_no_volume(flags)}, so it would be lost with its pod, and other pods could "
                "not read it; give --volume=CLAIM:/FOLDER and a path in it"
            )
        if mount.is_read_only:
            raise UsageError(f"--{flag}={path}: lies on a volume that is mounted read-only ({mount.path}:ro)")
    given = {name: path for name, path in meaning.given(config, "reads").items() if path != IMAGENET}
    read = [*given.items(), *(("config", path) for path in _config_files(job.flags))]
    read += [("data_dir", folder) for folder in _data_folders(config.data.data_dir)]
    for flag, path in read:
        if "://" not in path and not _mount_of(path, flags):
            raise UsageError(
                f"--{flag}: {path} lies on {_no_volume(flags)}, so pods do not have it; give "
                "--volume=CLAIM:/FOLDER:ro and a path in it"
            )


def _no_volume(flags: KubernetesFlags) -> str:
    return f"no volume of --volume ({', '.join(mount.path for mount in flags.mounts) or 'none'})"


def _mount_of(path: str, flags: KubernetesFlags) -> Mount | None:
    """Returns the innermost volume that contains a path; None if no volume does."""
    path = posixpath.normpath(path)
    found = [mount for mount in flags.mounts if path == mount.path or path.startswith(f"{mount.path}/")]
    return max(found, key=lambda mount: len(mount.path), default=None)


def _data_folders(data_dir: str) -> list[str]:
    return [with_version(each.data_dir)[0] for each in sources_of(parse_sources(data_dir), "train")]


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
    return [{"apiVersion": "jobset.x-k8s.io/v1alpha2", "kind": "JobSet", "metadata": _metadata(job), "spec": spec}]


def _jobset_spec(job: Job, replicated_jobs: list[Manifest], jobs: dict[str, str]) -> Manifest:
    """Returns the spec of a JobSet.

    Args:
      job: job to run.
      replicated_jobs: replicated jobs, one per role.
      jobs: {role: name of its replicated job}.
    """
    chief = {"successPolicy": {"operator": "All", "targetReplicatedJobs": [jobs["chief"]]}} if "chief" in jobs else {}
    ttl = _flags(job).ttl
    return {
        "network": {"enableDNSHostnames": True, "publishNotReadyAddresses": True},
        **({} if ttl is None else {"ttlSecondsAfterFinished": ttl}),
        **chief,
        "failurePolicy": {
            "maxRestarts": job.restarts.max_restarts,
            "restartStrategy": "BlockingRecreate",  # the old pods have saved and ended before new ones start
            "rules": [
                _rule("badDataOrFlag", "FailJobSet", _FINAL),
                _rule("evicted", "RestartJobSetAndIgnoreMaxRestarts", _EVICTED),
            ],
        },
        "replicatedJobs": replicated_jobs,
    }


def _rule(name: str, action: str, index: int) -> Manifest:
    """Returns the action after a job failed by a rule of its policy; the failure's message ends with the index."""
    return {
        "name": name,
        "action": action,
        "onJobFailureReasons": [_BY_POLICY],
        "onJobFailureMessagePatterns": [f"matching FailJob rule at index {index}$"],
    }


def _replicated_job(job: Job, role: str, name: str, container: Manifest) -> Manifest:
    """Returns a role's pods. A failed pod restarts the whole JobSet; an asynchronous worker restarts alone."""
    count = job.roles[role]
    alone = job.strategy == PARAMETER_SERVER and role == _ALONE
    codes = {"containerName": container["name"], "operator": "In", "values": _FINAL_CODES}
    # An eviction does not count as a restart: the pod alone is replaced, or the whole JobSet restarts.
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
                # A worker that has no restarts left is lost, and the others continue.
                **({"backoffLimitPerIndex": job.restarts.max_restarts} if alone else {"backoffLimit": 0}),
                "podFailurePolicy": {"rules": [{"action": "FailJob", "onExitCodes": codes}, evicted]},
                "template": {"spec": {"restartPolicy": "Never", **_pod_spec(job, container)}},
            }
        },
    }


def _role_job(job: Job, role: str, jobs: dict[str, str]) -> Manifest:
    container = {
        **_container(job, role, _CONTAINER),
        "command": _command(job),
        "env": _environment(job, role, jobs),
    }
    return _replicated_job(job, role, role, container)


def _trainjob(job: Job) -> list[Manifest]:
    """Returns the manifests of the runtime and of the job."""
    main = next(iter(job.roles))
    jobs = {role: _NODE if role == main else role for role in job.roles}
    # The `trainer` section below has the command and variables of the main role's container.
    node = _replicated_job(job, main, _NODE, _container(job, main, _NODE))
    node["template"] = {"metadata": {"labels": _NODE_LABELS}, **node["template"]}
    replicated = [node, *(_role_job(job, role, jobs) for role in job.roles if role != main)]
    count, metadata = job.roles[main], _metadata(job)
    runtime = {
        "apiVersion": _TRAINER_API,
        "kind": _RUNTIME,
        "metadata": metadata,
        "spec": {"mlPolicy": {"numNodes": count}, "template": {"spec": _jobset_spec(job, replicated, jobs)}},
    }
    resources = _resources(job, main)
    trainer = {
        "image": _flags(job).image,
        "command": _command(job),
        "env": _environment(job, main, jobs),
        "numNodes": count,
        **({"resourcesPerNode": resources} if resources else {}),
    }
    reference = {"apiGroup": _TRAINER_API.partition("/")[0], "kind": _RUNTIME, "name": metadata["name"]}
    spec = {"runtimeRef": reference, "trainer": trainer}
    return [runtime, {"apiVersion": _TRAINER_API, "kind": "TrainJob", "metadata": metadata, "spec": spec}]


_KINDS: dict[str, Callable[[Job], list[Manifest]]] = {"jobset": _jobset, "trainjob": _trainjob}


def _flags(job: Job) -> KubernetesFlags:
    flags: KubernetesFlags = job.launch.own
    return flags


# The pods, the same in every kind of manifest except for how a process learns which one it is.


def _metadata(job: Job) -> Manifest:
    """Returns the name and namespace."""
    flags = _flags(job)
    space = {"namespace": flags.namespace} if flags.namespace else {}
    return {"name": job.launch.processes.job_name, **space}


def _port(job: Job) -> int:
    """Returns the port that each process listens on."""
    return job.launch.processes.port or _PORT


def escaped(text: str) -> str:
    """Returns `text` escaped for Kubernetes, which replaces `$$` by `$` and `$(NAME)` by a value."""
    return text.replace("$", "$$")


def _command(job: Job) -> list[str]:
    """Returns the command of a container."""
    return list(map(escaped, job.command))


def _environment(job: Job, role: str, jobs: Mapping[str, str]) -> list[Manifest]:
    """Returns the variables of a role's pods: TF_CONFIG, built from JobSet's stable names and the pod's own index.

    Args:
      job: job that the pods belong to.
      role: role of the pods.
      jobs: {role: name of its replicated job in the JobSet}.
    """
    if sum(job.roles.values()) == 1:  # without TF_CONFIG: a strategy for one process rejects a cluster
        return _variables(job)
    name = job.launch.processes.job_name
    cluster = {
        each: [f"{name}-{jobs[each]}-0-{index}.{name}:{_port(job)}" for index in range(count)]
        for each, count in job.roles.items()
    }
    task = f'{{"type": "{role}", "index": $({_INDEX})}}'
    return [
        *_variables(job),
        {"name": _INDEX, "valueFrom": {"fieldRef": {"fieldPath": _INDEX_PATH}}},  # first, since TF_CONFIG refers to it
        {"name": VARIABLE, "value": f'{{"cluster": {json.dumps(cluster)}, "task": {task}}}'},
    ]


def _variables(job: Job) -> list[Manifest]:
    """Returns the variables of all processes: the launcher's own, --env and --secret_env."""
    return [
        {"name": "PYTHONUNBUFFERED", "value": "1"},
        {"name": heartbeat.VARIABLE, "value": _HEARTBEAT},
        # The same in all pods made from this manifest, however often it is applied.
        *([{"name": fresh.VARIABLE, "value": secrets.token_hex(8)}] if job.config.run.fresh else []),
        *_given_variables(job),
    ]


def _given_variables(job: Job) -> list[Manifest]:
    given, hidden = job.launch.processes.variables, _flags(job).secrets
    return [
        *({"name": name, "value": escaped(value)} for name, value in given.items()),
        *(
            {"name": name, "valueFrom": {"secretKeyRef": {"name": secret, "key": key}}}
            for name, (secret, key) in hidden.items()
        ),
    ]


def _probes(job: Job) -> Manifest:
    """Returns the probes that kill a process without a sign of life.

    A heartbeat may be late by the time that the previous one announced, as when a library holds the interpreter lock.
    The startup probe gives Python time to start.
    """
    code = f"import json, time; beat = json.load(open({_HEARTBEAT!r}))"
    program = ["python", "-I", "-S", "-c"]
    late = f"raise SystemExit(time.time() - beat['time'] > {job.restarts.silent_timeout:g} + beat['quiet'])"
    each = {"periodSeconds": _PROBED_EVERY, "timeoutSeconds": _PROBED_EVERY}
    return {
        "startupProbe": {
            "exec": {"command": [*program, code]},
            "periodSeconds": 5,
            "timeoutSeconds": _PROBED_EVERY,
            "failureThreshold": _STARTING // 5,
        },
        "livenessProbe": {"exec": {"command": [*program, f"{code}; {late}"]}, **each, "failureThreshold": 2},
    }


def _resources(job: Job, role: str) -> Manifest:
    """Returns the resources of each process of a role, with requests equal to limits. Only workers get GPUs."""
    flags = job.launch.processes
    memory = None
    if size := flags.memory_of:
        memory = f"{size.amount}{size.unit}i" if size.is_binary else f"{size.amount}{size.unit.replace('K', 'k')}"
    asked = {"cpu": str(flags.cpus) if flags.cpus else None, "memory": memory}
    requests: Manifest = {name: value for name, value in asked.items() if value is not None}
    gpus = {_GPU: str(job.launch.job.gpus_per_worker)} if job.launch.job.gpus_per_worker and role == _TRAINS else {}
    limits = {**requests, **gpus}
    return {"requests": requests, "limits": limits} if requests else {"limits": limits} if limits else {}


def _container(job: Job, role: str, name: str) -> Manifest:
    """Returns a pod's container, without its command and environment."""
    mounts = _mounts(job)
    found: Manifest = {"name": name, "image": _flags(job).image, **_probes(job)}
    if sum(job.roles.values()) > 1:
        found["ports"] = [{"containerPort": _port(job)}]
    if asked := _resources(job, role):
        found["resources"] = asked
    if mounts:
        found["volumeMounts"] = mounts
    return found


def _mounts(job: Job, reads_only: bool = False) -> list[Manifest]:
    names = _volume_names(job)
    return [
        {
            "name": names[mount.claim],
            "mountPath": mount.path,
            **({"readOnly": True} if mount.is_read_only or reads_only else {}),
        }
        for mount in _flags(job).mounts
    ]


def _page(job: Job) -> Manifest:
    """Returns the Deployment of the job's page (--page).

    It is not part of the job, so that its failure does not affect the job, and it stays after the job has ended. Others
    in the cluster can reach it, so the page asks for a token, which is in its log or given by --secret_env.
    """
    listens = job.launch.job.page or PAGE_PORT
    own = _metadata(job)
    name = f"{own['name']}-{_PAGE}"
    container: Manifest = {
        "name": _PAGE,
        "image": _flags(job).image,
        "command": [
            *("python", "-m", "trainer.watch", escaped(str(job.folder.path))),
            *("--host=0.0.0.0", f"--port={listens}"),
        ],
        "env": [{"name": "PYTHONUNBUFFERED", "value": "1"}, *_given_variables(job)],
        "ports": [{"name": _PAGE, "containerPort": listens}],
        "readinessProbe": {"tcpSocket": {"port": listens}},
        "volumeMounts": _mounts(job, reads_only=True),
    }
    labels = {"app": name}
    spec = {
        "replicas": 1,
        "selector": {"matchLabels": labels},
        "template": {"metadata": {"labels": labels}, "spec": _pod_spec(job, container)},
    }
    return {"apiVersion": "apps/v1", "kind": "Deployment", "metadata": {**own, "name": name}, "spec": spec}


def _pod_spec(job: Job, container: Manifest) -> Manifest:
    """Returns the spec of a pod with this container."""
    flags = _flags(job)
    volumes = [
        {"name": name, "persistentVolumeClaim": {"claimName": claim}} for claim, name in _volume_names(job).items()
    ]
    given: Manifest = {
        "serviceAccountName": flags.service_account,
        "nodeSelector": flags.node_labels,
        "tolerations": flags.tolerations,
        "priorityClassName": flags.priority_class,
        "imagePullSecrets": [{"name": name} for name in flags.pull_secret or ()],
        "securityContext": _security(flags.user),
    }
    return {
        "terminationGracePeriodSeconds": math.ceil(job.restarts.stop_timeout),  # SIGTERM makes it save
        "shareProcessNamespace": True,  # as process 1, a program receives no SIGTERM before it handles it
        **{name: value for name, value in given.items() if value},
        "containers": [container],
        **({"volumes": volumes} if volumes else {}),
    }


def _volume_names(job: Job) -> dict[str, str]:
    """Returns a volume name for each claim: the claim's own, unless one is too long for a volume or contains dots."""
    claims = list(dict.fromkeys(mount.claim for mount in _flags(job).mounts))
    if all(len(claim) <= _LONGEST_LABEL and "." not in claim for claim in claims):
        return {claim: claim for claim in claims}
    return {claim: f"volume-{index}" for index, claim in enumerate(claims)}


def _security(user: tuple[int, int] | None) -> Manifest:
    if user is None:
        return {}
    return {
        "runAsUser": user[0],
        "runAsGroup": user[1],
        "fsGroup": user[1],  # group that owns the volumes
        **({"runAsNonRoot": True} if user[0] else {}),
    }
