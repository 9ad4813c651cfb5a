"""`--target=kubernetes`: a job as manifests for `kubectl apply`."""

from __future__ import annotations

from collections.abc import Callable

import yaml

from pipeline.errors import UsageError
from trainer.launching.job import Job
from trainer.launching.target_flags import KubernetesFlags
from trainer.launching.targets import jobset, tfjob, trainjob
from trainer.launching.targets.pods import Manifest

_KINDS: dict[str, Callable[[Job], list[Manifest]]] = {
    "jobset": jobset.documents,
    "trainjob": trainjob.documents,
    "tfjob": tfjob.documents,
}
_LONGEST_NAME = 63  # of a pod
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
    folders = ", ".join(mount.path for mount in flags.mounts) or "none"
    if not _is_mounted(job.model_dir, flags):
        raise UsageError(
            f"--model_dir={job.model_dir}: lies on no volume of --volume ({folders}), so checkpoints would be lost "
            "with their pod, and other pods could not read them; give --volume=CLAIM:/FOLDER and a folder in it"
        )
    for path in _config_files(job.flags):
        if not _is_mounted(path, flags):
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
    paths = [mount.path for mount in flags.mounts]
    for path in paths:
        if paths.count(path) > 1:
            raise UsageError(f"--volume={flags.volume}: {path} is there twice; give each claim a folder of its own")


def _is_mounted(path: str, flags: KubernetesFlags) -> bool:
    return any(path == mount.path or path.startswith(f"{mount.path}/") for mount in flags.mounts)


def _config_files(words: tuple[str, ...]) -> list[str]:
    pairs = zip(words, [*words[1:], ""], strict=True)
    return [
        following if word == "--config" else word.partition("=")[2]
        for word, following in pairs
        if word == "--config" or word.startswith("--config=")
    ]
