"""A JobSet: a Job of indexed pods for each role, restarted together by the exit code."""

from __future__ import annotations

from trainer.launching.job import PARAMETER_SERVER, Job
from trainer.launching.targets import pods
from trainer.launching.targets.pods import Manifest

_CONTAINER = "trainer"
# What Kubernetes' Job controller calls a failure by podFailurePolicy.
_BY_POLICY = "PodFailurePolicy"
_FINAL, _EVICTED = 0, 1  # the rules of the jobs' policies
_ALONE = "worker"  # the role whose processes restart one by one, where training is asynchronous


def documents(job: Job) -> list[Manifest]:
    """Returns the manifest."""
    return [
        {
            "apiVersion": "jobset.x-k8s.io/v1alpha2",
            "kind": "JobSet",
            "metadata": pods.metadata(job),
            "spec": spec(job, [_replicated_job(job, role) for role in job.roles], {role: role for role in job.roles}),
        }
    ]


def spec(job: Job, replicated_jobs: list[Manifest], jobs: dict[str, str]) -> Manifest:
    """Returns what a JobSet is.

    Args:
      job: that it runs.
      replicated_jobs: of its roles.
      jobs: what they are called.
    """
    chief = {"successPolicy": {"operator": "All", "targetReplicatedJobs": [jobs["chief"]]}} if "chief" in jobs else {}
    ttl = job.elsewhere.kubernetes.ttl
    return {
        "network": {"enableDNSHostnames": True, "publishNotReadyAddresses": True},
        **({} if ttl is None else {"ttlSecondsAfterFinished": ttl}),
        **chief,
        "failurePolicy": {
            "maxRestarts": job.max_restarts,
            "restartStrategy": "BlockingRecreate",  # the last pods have saved and are gone before new ones start
            "rules": [
                _rule("badDataOrFlag", "FailJobSet", _FINAL),
                _rule("evicted", "RestartJobSetAndIgnoreMaxRestarts", _EVICTED),
            ],
        },
        "replicatedJobs": replicated_jobs,
    }


def _rule(name: str, action: str, index: int) -> Manifest:
    """Returns what follows when a job failed by a rule of its policy, which the message ends with."""
    return {
        "name": name,
        "action": action,
        "onJobFailureReasons": [_BY_POLICY],
        "onJobFailureMessagePatterns": [f"matching FailJob rule at index {index}$"],
    }


def replicated_job(job: Job, role: str, name: str, container: Manifest) -> Manifest:
    """Returns the pods of a role. The first that fails, fails the JobSet, which then restarts; or it restarts alone."""
    count = job.roles[role]
    alone = job.strategy == PARAMETER_SERVER and role == _ALONE
    codes = {"containerName": container["name"], "operator": "In", "values": pods.FINAL_CODES}
    # Its pod is replaced alone, or the whole JobSet starts again, without being counted.
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
                # Of each worker; one that has none left is lost, and the others go on.
                **({"backoffLimitPerIndex": job.max_restarts} if alone else {"backoffLimit": 0}),
                "podFailurePolicy": {"rules": [{"action": "FailJob", "onExitCodes": codes}, evicted]},
                "template": {"spec": {"restartPolicy": "Never", **pods.pod_spec(job, container)}},
            }
        },
    }


def _replicated_job(job: Job, role: str) -> Manifest:
    container = {
        **pods.container(job, role, _CONTAINER),
        "command": pods.command(job),
        "env": pods.environment(job, role, {each: each for each in job.roles}),
    }
    return replicated_job(job, role, role, container)
