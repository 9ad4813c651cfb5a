"""`--target=kubernetes`: a job as manifests for `kubectl apply`.

A JobSet has a Job with indexed pods for each role; depending on the exit code, they restart together. A TrainJob of
Kubeflow Trainer 2 wraps a JobSet in a runtime.
"""

from __future__ import annotations

import json
import posixpath
import secrets
from typing import Any

import jinja2
import yaml

from pipeline.errors import UsageError
from pipeline.files.paths import with_version
from trainer.cluster.tf_config import VARIABLE
from trainer.config import meaning
from trainer.config.meaning import PARAMETER_SERVER
from trainer.config.model import IMAGENET
from trainer.launching.flags import PAGE_PORT, SCHEDULERS, LaunchFlags
from trainer.launching.job import Job
from trainer.launching.schedulers.kubernetes_flags import KubernetesFlags, Mount

_PORT = 2222  # port of each process; pods have their own addresses
_LONGEST_LABEL = 63  # characters in the name of a pod or volume
_LONGEST_VARIABLE = (1 << 17) - 100  # maximum size of a variable in Linux, minus room for its name
_SUFFIX = 6  # characters that Kubernetes appends: -x7k2p


def _check_no_variable_twice(launch: LaunchFlags, flags: KubernetesFlags) -> None:
    for name in flags.secrets:
        if name in launch.processes.variables:
            raise UsageError(f"--secret_env: {name} is given by --env, too; leave one out")


@SCHEDULERS.named("kubernetes", flags=KubernetesFlags, check=_check_no_variable_twice)
def render(job: Job) -> str:
    """Returns the manifests as a stream of YAML documents.

    Raises:
      UsageError: a flag is missing, or cannot be used with Kubernetes.
    """
    flags: KubernetesFlags = job.launch.own
    _check(job, flags)
    page = job.launch.job.page
    claims = _volume_names(flags)
    mounts = [
        {"name": claims[mount.claim], "mountPath": mount.path, **({"readOnly": True} if mount.is_read_only else {})}
        for mount in flags.mounts
    ]
    metadata = {"name": job.launch.processes.job_name, "namespace": flags.namespace}
    environment = jinja2.Environment(
        loader=jinja2.PackageLoader(__package__, ""),
        undefined=jinja2.StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    environment.filters |= {"yaml": _yaml, "escaped": escaped}
    return environment.get_template("kubernetes.yaml.jinja").render(
        job=job,
        flags=flags,
        metadata={name: value for name, value in metadata.items() if value},
        jobs=_job_names(job),
        main=next(iter(job.roles)),
        is_async=job.strategy == PARAMETER_SERVER,
        port=_port(job),
        fresh=secrets.token_hex(8) if job.config.run.fresh else None,
        variables=_variables(job),
        tf_config={role: _tf_config(job, role) for role in job.roles},
        resources={role: _resources(job, role) for role in job.roles},
        mounts=mounts,
        pod_options={
            "serviceAccountName": flags.service_account,
            "nodeSelector": flags.node_labels,
            "tolerations": flags.tolerations,
            "priorityClassName": flags.priority_class,
            "imagePullSecrets": [{"name": name} for name in flags.pull_secret or ()],
            "volumes": [{"name": claims[claim], "persistentVolumeClaim": {"claimName": claim}} for claim in claims],
        },
        page=PAGE_PORT if page == 0 else page,
        page_mounts=[{**mount, "readOnly": True} for mount in mounts],
    )


class _Dumper(yaml.SafeDumper):
    """Writes multi-line text on one line."""


def _text(dumper: yaml.SafeDumper, text: str) -> yaml.ScalarNode:
    return dumper.represent_scalar("tag:yaml.org,2002:str", text, style='"' if "\n" in text else None)


_Dumper.add_representer(str, _text)


def _yaml(value: Any) -> str:
    """Returns a value as one line of YAML that is valid in any position."""
    text: str = yaml.dump([value], Dumper=_Dumper, sort_keys=False, default_flow_style=True, width=1 << 30)
    return text[1:-2]  # without the list's brackets


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
    config = _tf_config(job, next(iter(job.roles))) or ""
    for variable in [*_variables(job), {"name": VARIABLE, "value": config}]:
        size = len(variable.get("value", "").encode())
        if size > _LONGEST_VARIABLE:
            raise UsageError(
                f"{variable['name']} has {size:,} bytes, but Linux allows at most "
                f"{_LONGEST_VARIABLE:,}; give fewer processes, or a shorter value"
            )


def _check_folders(job: Job, flags: KubernetesFlags) -> None:
    """Checks that all that pods read or write is on a volume or at a URL; otherwise they would lack or lose it."""
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
    read += [("data_dir", with_version(source.data_dir)[0]) for source in config.data.sources]
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


def _config_files(words: tuple[str, ...]) -> list[str]:
    pairs = zip(words, [*words[1:], ""], strict=True)
    return [
        following if word == "--config" else word.partition("=")[2]
        for word, following in pairs
        if word == "--config" or word.startswith("--config=")
    ]


def _port(job: Job) -> int:
    return job.launch.processes.port or _PORT


def _job_names(job: Job) -> dict[str, str]:
    main = next(iter(job.roles)) if job.launch.own.kind == "trainjob" else None
    return {role: "node" if role == main else role for role in job.roles}  # as Kubeflow Trainer expects


def escaped(text: str) -> str:
    """Returns `text` escaped for Kubernetes, which replaces `$$` by `$` and `$(NAME)` by a value."""
    return text.replace("$", "$$")


def _variables(job: Job) -> list[dict[str, Any]]:
    given, hidden = job.launch.processes.variables, job.launch.own.secrets
    return [
        *({"name": name, "value": escaped(value)} for name, value in given.items()),
        *(
            {"name": name, "valueFrom": {"secretKeyRef": {"name": secret, "key": key}}}
            for name, (secret, key) in hidden.items()
        ),
    ]


def _tf_config(job: Job, role: str) -> str | None:
    """Returns the TF_CONFIG of a role's pods, which refers to the variable with the pod's index; None for one pod.

    It is built from JobSet's stable names.
    """
    if sum(job.roles.values()) == 1:  # a strategy for one process rejects a cluster
        return None
    name, jobs = job.launch.processes.job_name, _job_names(job)
    cluster = {
        each: [f"{name}-{jobs[each]}-0-{index}.{name}:{_port(job)}" for index in range(count)]
        for each, count in job.roles.items()
    }
    return f'{{"cluster": {json.dumps(cluster)}, "task": {{"type": "{role}", "index": $(TASK_INDEX)}}}}'


def _resources(job: Job, role: str) -> dict[str, dict[str, str]]:
    """Returns the resources of each process of a role, with requests equal to limits. Only workers get GPUs."""
    flags, gpus, memory = job.launch.processes, job.launch.job.gpus_per_worker, ""
    if size := flags.memory_of:
        memory = f"{size.amount}{size.unit}i" if size.is_binary else f"{size.amount}{size.unit.replace('K', 'k')}"
    asked = {"cpu": str(flags.cpus or ""), "memory": memory}
    requests = {name: value for name, value in asked.items() if value}
    limits = {**requests, "nvidia.com/gpu": str(gpus)} if gpus and role == "worker" else requests
    return {name: values for name, values in (("requests", requests), ("limits", dict(limits))) if values}


def _volume_names(flags: KubernetesFlags) -> dict[str, str]:
    """Returns a volume name for each claim: the claim's name, unless one is too long for a volume or contains dots."""
    claims = list(dict.fromkeys(mount.claim for mount in flags.mounts))
    if all(len(claim) <= _LONGEST_LABEL and "." not in claim for claim in claims):
        return {claim: claim for claim in claims}
    return {claim: f"volume-{index}" for index, claim in enumerate(claims)}
