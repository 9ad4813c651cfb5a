"""A TFJob of Training Operator 1, which composes TF_CONFIG itself, and restarts pods one by one by their exit code."""

from __future__ import annotations

from trainer.launching.job import Job
from trainer.launching.targets import pods
from trainer.launching.targets.pods import Manifest

_CONTAINER, _PORT_NAME = "tensorflow", "tfjob-port"  # what the operator looks for
_REPLICAS = {"chief": "Chief", "worker": "Worker", "ps": "PS"}
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


def documents(job: Job) -> list[Manifest]:
    """Returns the manifest."""
    ttl = job.elsewhere.kubernetes.ttl
    spec = {
        "runPolicy": {
            "cleanPodPolicy": "Running",  # parameter servers do not end by themselves
            **({} if ttl is None else {"ttlSecondsAfterFinished": ttl}),
            **({"backoffLimit": job.max_restarts} if job.max_restarts else {}),
        },
        **({} if "chief" in job.roles else {"successPolicy": "AllWorkers"}),
        "tfReplicaSpecs": {_REPLICAS[role]: _replicas(job, role) for role in job.roles},
    }
    return [{"apiVersion": "kubeflow.org/v1", "kind": "TFJob", "metadata": pods.metadata(job), "spec": spec}]


def _replicas(job: Job, role: str) -> Manifest:
    container = {
        **pods.container(job, role, _CONTAINER),
        "ports": [{"name": _PORT_NAME, "containerPort": pods.port(job)}],
        "command": ["sh", "-c", pods.escaped(_PASS_ON), "sh", *pods.command(job)],
        "env": pods.variables(job),
    }
    return {
        "replicas": job.roles[role],
        "restartPolicy": "ExitCode" if job.max_restarts else "Never",
        "template": {"spec": pods.pod_spec(job, container)},
    }
