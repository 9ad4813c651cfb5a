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
_LONGEST_VARIABLE = (1 << 17) - 100  # characters that Linux takes in a variable, less its name
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
    folders = ", ".join(mount.path for mount in flags.mounts) or "none"
    mount = _mount_of(job.model_dir, flags)
    if mount is None:
        raise UsageError(
            f"--model_dir={job.model_dir}: lies on no volume of --volume ({folders}), so checkpoints would be lost "
            "with their pod, and other pods could not read them; give --volume=CLAIM:/FOLDER and a folder in it"
        )
    if mount.is_read_only:
        raise UsageError(f"--model_dir={job.model_dir}: lies on a volume that is mounted read-only ({mount.path}:ro)")
    for folder in _data_folders(job.config.data.data_dir):
        if "://" not in folder and not _mount_of(folder, flags):
            raise UsageError(
                f"--data_dir={job.config.data.data_dir}: {folder} lies on no volume of --volume ({folders}), so pods "
                "do not have it; give --volume=CLAIM:/FOLDER:ro and a folder in it, or a URL"
            )
    for path in _config_files(job.flags):
        if not _mount_of(path, flags):
            raise UsageError(
                f"--config={path}: lies on no volume of --volume ({folders}), so pods do not have it; give its flags "
                "instead"
            )
    name = job.elsewhere.processes.job_name
    longest = max(len(f"{name}-{role}-0-{count - 1}") for role, count in job.roles.items()) + _SUFFIX
    if longest > _LONGEST_NAME:
        raise UsageError(
            f"--name={name}: must be {len(name) - longest + _LONGEST_NAME} characters or less, so that the names of "
            f"pods have {_LONGEST_NAME}"
        )
    for variable in pods.environment(job, next(iter(job.roles)), {role: role for role in job.roles}):
        if len(variable.get("value", "")) > _LONGEST_VARIABLE:
            raise UsageError(
                f"{variable['name']} has {len(variable['value']):,} characters, of which Linux takes at most "
                f"{_LONGEST_VARIABLE:,}; give fewer processes, or a shorter value"
            )


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
