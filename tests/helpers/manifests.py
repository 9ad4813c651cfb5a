"""Kubernetes manifests checked against the published models, and how a pod interprets them."""

from __future__ import annotations

import re
from typing import Any

import kubernetes_validate

Manifest = dict[str, Any]


_MODELS = {
    "JobSet": "JobsetV1alpha2JobSet",
    "TrainingRuntime": "TrainerV1alpha1TrainingRuntime",
    "TrainJob": "TrainerV1alpha1TrainJob",
}


def check(manifest: Manifest) -> None:
    """Fails if a manifest does not fit the published model of its kind, or has a field that the model does not know.

    The Jobs in a JobSet or TrainingRuntime are checked one by one, too.
    """
    if manifest["kind"] not in _MODELS:
        kubernetes_validate.validate(manifest, kubernetes_validate.latest_version(), strict=True)
        return
    from kubeflow_trainer_api import models

    read = getattr(models, _MODELS[manifest["kind"]]).from_dict(manifest)
    assert read is not None
    found = unknown(manifest, read.to_dict())
    assert not found, found
    for name, spec in jobs_of(manifest).items():
        check({"apiVersion": "batch/v1", "kind": "Job", "metadata": {"name": name}, "spec": spec})


def jobs_of(manifest: Manifest) -> dict[str, Manifest]:
    """Returns the specs of the Jobs in a JobSet or TrainingRuntime, by name."""
    spec = manifest["spec"]["template"]["spec"] if manifest["kind"] == "TrainingRuntime" else manifest["spec"]
    return {job["name"]: job["template"]["spec"] for job in spec.get("replicatedJobs", ())}


def unknown(given: Any, read: Any, path: str = "") -> list[str]:
    """Returns the paths of given values that are missing or different after reading."""
    if isinstance(given, dict) and isinstance(read, dict):
        missing = [f"{path}.{name}" for name in given if name not in read]
        return missing + [line for k in given if k in read for line in unknown(given[k], read[k], f"{path}.{k}")]
    if isinstance(given, list) and isinstance(read, list) and len(given) == len(read):
        return [line for i, pair in enumerate(zip(given, read, strict=True)) for line in unknown(*pair, f"{path}[{i}]")]
    return [] if given == read else [f"{path}: {given!r} became {read!r}"]


def environment(container: Manifest, annotations: dict[str, str]) -> dict[str, str]:
    """Returns the variables of a container as the kubelet makes them: `$(NAME)` is one that stands before it.

    Those from secrets are left out.
    """
    found: dict[str, str] = {}
    for variable in container["env"]:
        if reference := variable.get("valueFrom"):
            if "secretKeyRef" in reference:
                continue
            (key,) = re.fullmatch(r"metadata\.annotations\['(.+)'\]", reference["fieldRef"]["fieldPath"]).groups()
            found[variable["name"]] = annotations[key]
        else:
            found[variable["name"]] = expanded(variable["value"], found)
    return found


def expanded(text: str, variables: dict[str, str]) -> str:
    """Expands a text in a command or variable like the kubelet: a byte-by-byte port of Expand in expansion.go.

    `$$` is one dollar, `$(NAME)` a variable that is known, or stays; what else follows a dollar is copied as a rune of
    its own, one byte of it.
    """
    given, found, checkpoint, cursor = text.encode(), b"", 0, 0
    while cursor < len(given):
        if given[cursor : cursor + 1] == b"$" and cursor + 1 < len(given):
            found += given[checkpoint:cursor]
            rest = given[cursor + 1 :]
            end = rest.find(b")") if rest[:1] == b"(" else -1
            if end >= 0:
                name = rest[1:end].decode(errors="replace")
                read, advance = variables.get(name, f"$({name})").encode(), end + 1
            else:
                read, advance = (b"" if rest[:1] == b"$" else b"$") + chr(rest[0]).encode(), 1
            found, cursor = found + read, cursor + advance
            checkpoint = cursor + 1
        cursor += 1
    return (found + given[checkpoint:]).decode()
