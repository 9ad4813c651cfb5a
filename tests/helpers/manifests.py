"""Kubernetes manifests checked against the published models, and how a pod interprets them."""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Any

import kubernetes_validate

Manifest = dict[str, Any]


def check_built_in(manifest: Manifest) -> None:
    """Fails where a manifest of Kubernetes' own kinds does not fit their schema, unknown fields included."""
    kubernetes_validate.validate(manifest, kubernetes_validate.latest_version(), strict=True)


def check_job(spec: Manifest) -> None:
    """Fails if this is not a valid Job."""
    check_built_in({"apiVersion": "batch/v1", "kind": "Job", "metadata": {"name": "job"}, "spec": spec})


def check_pod(spec: Manifest) -> None:
    """Fails if this is not a valid pod."""
    check_built_in({"apiVersion": "v1", "kind": "Pod", "metadata": {"name": "pod"}, "spec": spec})


def check_trainer_api(manifest: Manifest, model: str, moments: Sequence[str] = ()) -> None:
    """Fails where a manifest does not fit a model of kubeflow-trainer-api, or has a field that it does not know.

    The fields called as in `moments` are read as moments, and are not compared as texts.
    """
    from kubeflow_trainer_api import models

    read = getattr(models, model).from_dict(manifest)
    assert read is not None
    _check_known(manifest, read.to_dict(), moments)


def _check_known(given: Any, read: Any, moments: Sequence[str] = ()) -> None:
    found = [line for line in unknown(given, read) if not line.partition(":")[0].endswith(tuple(moments))]
    assert not found, found


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
