"""The pods of a job: the same for every kind of manifest, but for who tells a process which one it is."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from typing import Any

from trainer.cluster.tf_config import VARIABLE
from trainer.launching.job import Job

Manifest = dict[str, Any]

PORT = 2222  # of each process, in its own pod
FINAL_CODES = [1, 2]  # of trainer.run: the data or a flag is bad, and would be again
RERUN_CODE = 75
_INDEX = "TASK_INDEX"
_INDEX_PATH = "metadata.annotations['batch.kubernetes.io/job-completion-index']"
_GPU = "nvidia.com/gpu"
_TRAINS = "worker"  # the role whose processes get GPUs


def metadata(job: Job) -> Manifest:
    """Returns name and namespace."""
    flags = job.elsewhere
    space = {"namespace": flags.kubernetes.namespace} if flags.kubernetes.namespace else {}
    return {"name": flags.processes.job_name, **space}


def port(job: Job) -> int:
    """Returns the port that each process listens on."""
    return job.elsewhere.processes.port or PORT


def command(job: Job) -> list[str]:
    """Returns what a container runs. Kubernetes would replace `$(NAME)` in it."""
    return [word.replace("$(", "$$(") for word in job.command]


def environment(job: Job, role: str, jobs: Mapping[str, str]) -> list[Manifest]:
    """Returns the variables of a role's pods: TF_CONFIG, from the stable names of JobSet and the pod's own index.

    Args:
      job: of which they are.
      role: of the pods.
      jobs: what each role's replicated job is called in the JobSet.
    """
    unbuffered = {"name": "PYTHONUNBUFFERED", "value": "1"}
    if sum(job.roles.values()) == 1:  # any strategy, which would ask why there is a cluster
        return [unbuffered]
    name = job.elsewhere.processes.job_name
    cluster = {
        each: [f"{name}-{jobs[each]}-0-{index}.{name}:{port(job)}" for index in range(count)]
        for each, count in job.roles.items()
    }
    task = f'{{"type": "{role}", "index": $({_INDEX})}}'
    return [
        unbuffered,
        {"name": _INDEX, "valueFrom": {"fieldRef": {"fieldPath": _INDEX_PATH}}},  # first: TF_CONFIG refers to it
        {"name": VARIABLE, "value": f'{{"cluster": {json.dumps(cluster)}, "task": {task}}}'},
    ]


def resources(job: Job, role: str) -> Manifest:
    """Returns what each process of a role gets: as much as it asks for, and no more. GPUs only where gradients are."""
    flags = job.elsewhere.processes
    asked = {"cpu": str(flags.cpus) if flags.cpus else None, "memory": flags.memory}
    requests: Manifest = {name: value for name, value in asked.items() if value is not None}
    gpus = {_GPU: str(job.gpus_per_worker)} if job.gpus_per_worker and role == _TRAINS else {}
    limits = {**requests, **gpus}
    return {"requests": requests, "limits": limits} if requests else {"limits": limits} if limits else {}


def container(job: Job, role: str, name: str) -> Manifest:
    """Returns the container of a pod, without command and environment."""
    mounts = [{"name": mount.claim, "mountPath": mount.path} for mount in job.elsewhere.kubernetes.mounts]
    found: Manifest = {"name": name, "image": job.elsewhere.kubernetes.image}
    if sum(job.roles.values()) > 1:
        found["ports"] = [{"containerPort": port(job)}]
    if asked := resources(job, role):
        found["resources"] = asked
    if mounts:
        found["volumeMounts"] = mounts
    return found


def pod_spec(job: Job, container: Manifest) -> Manifest:
    """Returns what a pod with this container is."""
    claims = dict.fromkeys(mount.claim for mount in job.elsewhere.kubernetes.mounts)
    volumes = [{"name": claim, "persistentVolumeClaim": {"claimName": claim}} for claim in claims]
    return {
        "terminationGracePeriodSeconds": math.ceil(job.stop_timeout),  # SIGTERM saves
        "shareProcessNamespace": True,  # process 1 of a container gets no SIGTERM until it handles it
        "containers": [container],
        **({"volumes": volumes} if volumes else {}),
    }
