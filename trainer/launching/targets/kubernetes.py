"""`--target=kubernetes`: a job as manifests for `kubectl apply`."""

from __future__ import annotations

import posixpath
from collections.abc import Callable

import yaml

from pipeline.errors import UsageError
from pipeline.manifest.sources import parse_sources, sources_of
from trainer.launching.job import Job
from trainer.launching.target_flags import KubernetesFlags, Mount
from trainer.launching.targets import jobset, pods, tfjob, trainjob
from trainer.launching.targets.pods import Manifest

_KINDS: dict[str, Callable[[Job], list[Manifest]]] = {
    "jobset": jobset.documents,
    "trainjob": trainjob.documents,
    "tfjob": tfjob.documents,
}
_LONGEST_NAME = pods.LONGEST_LABEL  # of a pod
_LONGEST_VARIABLE = (1 << 17) - 100  # bytes that Linux takes in a variable, less its name
_SUFFIX = 6  # that Kubernetes appends: -x7k2p


def render(job: Job) -> str:
    """Returns the manifests as a stream of YAML documents.

    Raises:
      UsageError: a flag is missing, or cannot work there.
    """
    flags = job.elsewhere.kubernetes
    _check(job, flags)
    documents = _KINDS[flags.kind or "jobset"](job)
    return yaml.dump_all(documents, Dumper=_Plain, sort_keys=False, explicit_start=True, width=1 << 20)


class _Plain(yaml.SafeDumper):
    """Writes what occurs twice twice, and texts of several lines as they stand."""

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
    name = job.elsewhere.processes.job_name
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
    """Checks that pods have what they read and keep what they write: all of it lies on volumes, or is at a URL."""
    config = job.config
    written = {
        "model_dir": config.run.model_dir,
        "log_keys": config.run.log_keys,
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
    """Returns the volume that a path lies on: of several, the innermost."""
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
