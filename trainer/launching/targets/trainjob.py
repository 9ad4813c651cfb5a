"""A TrainJob of Kubeflow Trainer 2, with the runtime that it needs: plain, since there is none for TensorFlow.

The runtime is the JobSet; the TrainJob has what changes from run to run. Its `node` is the role that reports how
training goes: the chief, or the workers of whom the first is chief.
"""

from __future__ import annotations

from trainer.launching.job import Job
from trainer.launching.targets import jobset, pods
from trainer.launching.targets.pods import Manifest

_API = "trainer.kubeflow.org/v1alpha1"
_RUNTIME = "TrainingRuntime"
_NODE = "node"  # what Kubeflow Trainer expects as the name of the job and of the container
_LABELS = {"trainer.kubeflow.org/trainjob-ancestor-step": "trainer"}
_CONTAINER = "trainer"  # in the other jobs


def documents(job: Job) -> list[Manifest]:
    """Returns the manifests of the runtime and of the job."""
    main = next(iter(job.roles))
    jobs = {role: _NODE if role == main else role for role in job.roles}
    replicated = [_node(job, main), *(_other(job, role, jobs) for role in job.roles if role != main)]
    count, metadata = job.roles[main], pods.metadata(job)
    runtime = {
        "apiVersion": _API,
        "kind": _RUNTIME,
        "metadata": metadata,
        "spec": {"mlPolicy": {"numNodes": count}, "template": {"spec": jobset.spec(job, replicated, jobs)}},
    }
    resources = pods.resources(job, main)
    trainer = {
        "image": job.elsewhere.kubernetes.image,
        "command": pods.command(job),
        "env": pods.environment(job, main, jobs),
        "numNodes": count,
        **({"resourcesPerNode": resources} if resources else {}),
    }
    reference = {"apiGroup": _API.partition("/")[0], "kind": _RUNTIME, "name": metadata["name"]}
    spec = {"runtimeRef": reference, "trainer": trainer}
    return [runtime, {"apiVersion": _API, "kind": "TrainJob", "metadata": metadata, "spec": spec}]


def _node(job: Job, role: str) -> Manifest:
    found = jobset.replicated_job(job, role, _NODE, pods.container(job, role, _NODE))
    found["template"] = {"metadata": {"labels": _LABELS}, **found["template"]}
    return found


def _other(job: Job, role: str, jobs: dict[str, str]) -> Manifest:
    container = {
        **pods.container(job, role, _CONTAINER),
        "command": pods.command(job),
        "env": pods.environment(job, role, jobs),
    }
    return jobset.replicated_job(job, role, role, container)
