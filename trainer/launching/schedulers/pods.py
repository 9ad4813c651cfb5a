"""The pods of a job, the same in every kind of manifest except for how a process learns which one it is."""

from __future__ import annotations

import json
import math
import secrets
from collections.abc import Mapping
from typing import Any

from trainer.callbacks import heartbeat
from trainer.checkpoint import fresh
from trainer.cluster.tf_config import VARIABLE
from trainer.launching.flags import PAGE_PORT
from trainer.launching.job import Job

Manifest = dict[str, Any]

PORT = 2222  # of each process, in its own pod
# The data or a flag is bad (of trainer.run), or there is no such command (a shell's codes, and 128, which containerd
# gives where it cannot start one): it would fail again.
FINAL_CODES = [1, 2, 126, 127, 128]
RERUN_CODE = 75
LONGEST_LABEL = 63  # characters, of names of pods and volumes
_HEARTBEAT = "/tmp/stepfeed-heartbeat.json"
_STARTING, _PROBED_EVERY = 900, 30  # seconds
_INDEX = "TASK_INDEX"
_INDEX_PATH = "metadata.annotations['batch.kubernetes.io/job-completion-index']"
_GPU = "nvidia.com/gpu"
_PAGE = "page"
_TRAINS = "worker"  # the role whose processes get GPUs


def metadata(job: Job) -> Manifest:
    """Returns name and namespace."""
    flags = job.launch
    space = {"namespace": flags.kubernetes.namespace} if flags.kubernetes.namespace else {}
    return {"name": flags.processes.job_name, **space}


def port(job: Job) -> int:
    """Returns the port that each process listens on."""
    return job.launch.processes.port or PORT


def escaped(text: str) -> str:
    """Returns a form of `text` that Kubernetes turns into it: it replaces `$$` by `$`, and `$(NAME)` by a value."""
    return text.replace("$", "$$")


def command(job: Job) -> list[str]:
    """Returns what a container runs."""
    return list(map(escaped, job.command))


def environment(job: Job, role: str, jobs: Mapping[str, str]) -> list[Manifest]:
    """Returns the variables of a role's pods: TF_CONFIG, from the stable names of JobSet and the pod's own index.

    Args:
      job: whose pods they are.
      role: of the pods.
      jobs: what each role's replicated job is called in the JobSet.
    """
    if sum(job.roles.values()) == 1:  # any strategy, which would ask why there is a cluster
        return variables(job)
    name = job.launch.processes.job_name
    cluster = {
        each: [f"{name}-{jobs[each]}-0-{index}.{name}:{port(job)}" for index in range(count)]
        for each, count in job.roles.items()
    }
    task = f'{{"type": "{role}", "index": $({_INDEX})}}'
    return [
        *variables(job),
        {"name": _INDEX, "valueFrom": {"fieldRef": {"fieldPath": _INDEX_PATH}}},  # first: TF_CONFIG refers to it
        {"name": VARIABLE, "value": f'{{"cluster": {json.dumps(cluster)}, "task": {task}}}'},
    ]


def variables(job: Job) -> list[Manifest]:
    """Returns the variables that all processes have: the launcher's, those of --env and of --secret_env."""
    return [
        {"name": "PYTHONUNBUFFERED", "value": "1"},
        {"name": heartbeat.VARIABLE, "value": _HEARTBEAT},
        # The same in each pod that is made of this manifest, however often.
        *([{"name": fresh.VARIABLE, "value": secrets.token_hex(8)}] if job.config.run.fresh else []),
        *_given_variables(job),
    ]


def _given_variables(job: Job) -> list[Manifest]:
    given, hidden = job.launch.processes.variables, job.launch.kubernetes.secrets
    return [
        *({"name": name, "value": escaped(value)} for name, value in given.items()),
        *(
            {"name": name, "valueFrom": {"secretKeyRef": {"name": secret, "key": key}}}
            for name, (secret, key) in hidden.items()
        ),
    ]


def _probes(job: Job) -> Manifest:
    """Returns the probes that have a process killed which gives no sign of life.

    A beat may be late by the time that the one before it announced, as when a library holds the interpreter's lock.
    Until the first beat, Python has time to start.
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


def resources(job: Job, role: str) -> Manifest:
    """Returns what each process of a role gets: as much as it asks for, and no more. Only workers get GPUs."""
    flags = job.launch.processes
    asked = {"cpu": str(flags.cpus) if flags.cpus else None, "memory": flags.memory}
    requests: Manifest = {name: value for name, value in asked.items() if value is not None}
    gpus = {_GPU: str(job.launch.job.gpus_per_worker)} if job.launch.job.gpus_per_worker and role == _TRAINS else {}
    limits = {**requests, **gpus}
    return {"requests": requests, "limits": limits} if requests else {"limits": limits} if limits else {}


def container(job: Job, role: str, name: str) -> Manifest:
    """Returns the container of a pod, without command and environment."""
    mounts = _mounts(job)
    found: Manifest = {"name": name, "image": job.launch.kubernetes.image, **_probes(job)}
    if sum(job.roles.values()) > 1:
        found["ports"] = [{"containerPort": port(job)}]
    if asked := resources(job, role):
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
        for mount in job.launch.kubernetes.mounts
    ]


def page(job: Job) -> Manifest:
    """Returns the Deployment of the job's page (--page).

    It is not part of the job, which its failure thus cannot touch, and stays when the job has ended. Others in the
    cluster reach it, so that the page asks for a token: its log has it, or --secret_env gives it.
    """
    listens = job.launch.job.page or PAGE_PORT
    own = metadata(job)
    name = f"{own['name']}-{_PAGE}"
    container: Manifest = {
        "name": _PAGE,
        "image": job.launch.kubernetes.image,
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
        "template": {"metadata": {"labels": labels}, "spec": pod_spec(job, container)},
    }
    return {"apiVersion": "apps/v1", "kind": "Deployment", "metadata": {**own, "name": name}, "spec": spec}


def pod_spec(job: Job, container: Manifest) -> Manifest:
    """Returns the specification of a pod with this container."""
    flags = job.launch.kubernetes
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
        "terminationGracePeriodSeconds": math.ceil(job.restarts.stop_timeout),  # SIGTERM saves
        "shareProcessNamespace": True,  # process 1 of a container gets no SIGTERM until it handles it
        **{name: value for name, value in given.items() if value},
        "containers": [container],
        **({"volumes": volumes} if volumes else {}),
    }


def _volume_names(job: Job) -> dict[str, str]:
    """Returns the name of each claim's volume: the claim's own, unless one is too long for a volume or has dots."""
    claims = list(dict.fromkeys(mount.claim for mount in job.launch.kubernetes.mounts))
    if all(len(claim) <= LONGEST_LABEL and "." not in claim for claim in claims):
        return {claim: claim for claim in claims}
    return {claim: f"volume-{index}" for index, claim in enumerate(claims)}


def _security(user: tuple[int, int] | None) -> Manifest:
    if user is None:
        return {}
    return {
        "runAsUser": user[0],
        "runAsGroup": user[1],
        "fsGroup": user[1],  # which volumes are given to
        **({"runAsNonRoot": True} if user[0] else {}),
    }
