"""The flags of `--target=kubernetes`."""

from __future__ import annotations

import dataclasses
import posixpath
import re

from pipeline.commands.flags import check, check_all, check_most, fields_with, flag
from pipeline.errors import UsageError
from trainer.launching.flags import MOST_NUMBER, check_variable, pairs

KINDS = ("jobset", "trainjob")
# Names as Kubernetes validates them (apimachinery/pkg/util/validation).
_NAMESPACE = re.compile(r"(?=.{1,63}$)[a-z0-9]([a-z0-9-]*[a-z0-9])?")
_SUBDOMAIN = re.compile(r"(?=.{1,253}$)[a-z0-9]([a-z0-9-]*[a-z0-9])?(\.[a-z0-9]([a-z0-9-]*[a-z0-9])?)*")
_SECRET_KEY = re.compile(r"(?!\.\.?$)[-._a-zA-Z0-9]{1,253}")
_LABEL_NAME = re.compile(r"(?=.{1,63}$)[A-Za-z0-9]([-A-Za-z0-9_.]*[A-Za-z0-9])?")
# The name of an image (github.com/distribution/reference).
_PART = r"[a-z0-9]+(?:(?:\.|_|__|-+)[a-z0-9]+)*"
_WORD = r"[a-zA-Z0-9](?:[a-zA-Z0-9-]*[a-zA-Z0-9])?"
_HOST = rf"(?:{_WORD}(?:\.{_WORD})*|\[[0-9a-fA-F:]+\])(?::\d+)?"
_IMAGE = re.compile(rf"(?:{_HOST}/)?{_PART}(?:/{_PART})*(?::\w[\w.-]{{0,127}})?(?:@sha256:[0-9a-f]{{64}})?", re.ASCII)
_EFFECTS = ("NoSchedule", "PreferNoSchedule", "NoExecute")
_LONGEST_IMAGE = 255
_OBJECT = {"is_object": True}  # metadata: the flag names an object of the cluster


@dataclasses.dataclass(frozen=True)
class Mount:
    """A volume claim in a cluster, and its mount path in pods."""

    claim: str
    path: str
    is_read_only: bool = False


@dataclasses.dataclass(frozen=True)
class KubernetesFlags:
    """What --target=kubernetes prints."""

    kind: str | None = flag(None, "jobset or trainjob (Kubeflow Trainer 2) (None: jobset)", known=KINDS)
    image: str | None = flag(None, "container image with this package; required")
    namespace: str | None = flag(None, "namespace of the job (None: kubectl's)")
    volume: str | None = flag(
        None, "CLAIM:/FOLDER or CLAIM:/FOLDER:ro, comma-separated: claims and where pods mount them"
    )
    secret_env: list[str] | None = flag(None, "variable from a secret", metavar="NAME=SECRET:KEY", repeated=True)
    service_account: str | None = flag(None, "account of the pods (None: the namespace's default)", meaning=_OBJECT)
    node_selector: list[str] | None = flag(None, "label of the nodes to run on", metavar="LABEL=VALUE", repeated=True)
    toleration: list[str] | None = flag(None, "node taint to tolerate", metavar="KEY[=VALUE][:EFFECT]", repeated=True)
    priority_class: str | None = flag(None, "priority class of the pods", meaning=_OBJECT)
    pull_secret: list[str] | None = flag(
        None, "secret for the image's registry", metavar="SECRET", repeated=True, meaning=_OBJECT
    )
    run_as: str | None = flag(
        None, "UID or UID:GID of the processes; volumes are given to the group (None: the image's)"
    )
    ttl: int | None = flag(
        None, "seconds after its end at which the job is deleted (None: never)", least=0, most=MOST_NUMBER
    )

    def __post_init__(self) -> None:
        check_all(
            *(lambda: check(self), lambda: check_most(self)),
            *(self._check_namespace, self._check_image, self._check_objects),
            *(lambda: self.mounts, lambda: self.secrets, lambda: self.node_labels),
            *(lambda: self.tolerations, lambda: self.user),
        )

    def _check_namespace(self) -> None:
        if self.namespace is not None and not _NAMESPACE.fullmatch(self.namespace):
            raise UsageError(
                f"--namespace={self.namespace}: must be lower-case letters, digits and hyphens, at most 63"
            )

    def _check_image(self) -> None:
        if self.image and not (_IMAGE.fullmatch(self.image) and len(self.image) <= _LONGEST_IMAGE):
            raise UsageError(
                f"--image={self.image}: is not the name of an image, such as registry.example/team/stepfeed:0.2.0"
            )

    def _check_objects(self) -> None:
        for field in fields_with(self, "is_object"):
            given = getattr(self, field.name)
            for name in [given] if isinstance(given, str) else given or ():
                _check_name_of_object(field.name, name, name)

    @property
    def mounts(self) -> tuple[Mount, ...]:
        """The volumes in --volume."""
        mounts = tuple(self._mount(part) for part in (self.volume or "").split(",") if part)
        paths = [mount.path for mount in mounts]
        for path in paths:
            if paths.count(path) > 1:
                raise UsageError(f"--volume={self.volume}: {path} is mounted twice; give each claim its own folder")
        return mounts

    @property
    def secrets(self) -> dict[str, tuple[str, str]]:
        """The secret and key of each variable in --secret_env."""
        found = {}
        form = "NAME=SECRET:KEY, such as AWS_SECRET_ACCESS_KEY=store:key"
        for name, value in pairs("secret_env", self.secret_env, form, check_variable).items():
            secret, colon, key = value.partition(":")
            if not (colon and _SECRET_KEY.fullmatch(key)):
                raise UsageError(f"--secret_env={name}={value}: must be {form}")
            _check_name_of_object("secret_env", secret, f"{name}={value}")
            found[name] = (secret, key)
        return found

    @property
    def node_labels(self) -> dict[str, str]:
        """The labels in --node_selector."""
        found = pairs("node_selector", self.node_selector, "LABEL=VALUE, such as pool=gpu", _check_label)
        for name, value in found.items():
            _check_label_value("node_selector", value, f"{name}={value}")
        return found

    @property
    def tolerations(self) -> list[dict[str, str]]:
        """The tolerations in --toleration, in the form of a pod's spec."""
        return [_toleration(text) for text in self.toleration or ()]

    @property
    def user(self) -> tuple[int, int] | None:
        """The user and group in --run_as; the group id defaults to the user id."""
        if self.run_as is None:
            return None
        user, colon, group = self.run_as.partition(":")
        ids = (user, group if colon else user)
        if not all(each.isascii() and each.isdecimal() and int(each) <= MOST_NUMBER for each in ids):
            raise UsageError(
                f"--run_as={self.run_as}: must be UID or UID:GID, numbers up to {MOST_NUMBER}, such as 1000:100"
            )
        return int(ids[0]), int(ids[1])

    def _mount(self, text: str) -> Mount:
        claim, colon, rest = text.partition(":")
        path, _, mode = rest.partition(":")
        path = path.rstrip("/")
        if not (
            _SUBDOMAIN.fullmatch(claim)
            and colon
            and path.startswith("/")
            and posixpath.normpath(path) == path
            and not path.startswith("//")
            and rest.partition(":")[1:] in (("", ""), (":", "ro"))
        ):
            raise UsageError(
                f"--volume={self.volume}: {text!r} is not CLAIM:/FOLDER or CLAIM:/FOLDER:ro, such as "
                "data:/data:ro,runs:/runs for the claims data and runs; a folder has no colon and no .."
            )
        return Mount(claim, path, mode == "ro")


def _check_label(flag: str, name: str, text: str) -> None:
    prefix, slash, rest = name.rpartition("/")
    if not ((_SUBDOMAIN.fullmatch(prefix) if slash else True) and _LABEL_NAME.fullmatch(rest)):
        raise UsageError(
            f"--{flag}={text}: {name!r} is not a name of a label, such as pool or cloud.google.com/gke-accelerator"
        )


def _check_label_value(flag: str, value: str, text: str) -> None:
    if value and not _LABEL_NAME.fullmatch(value):
        raise UsageError(
            f"--{flag}={text}: {value!r} must be at most 63 letters, digits, '-', '_' and '.', and begin and end with "
            "a letter or digit"
        )


def _check_name_of_object(flag: str, name: str, text: str) -> None:
    if not _SUBDOMAIN.fullmatch(name):
        raise UsageError(
            f"--{flag}={text}: {name!r} must be lower-case letters, digits, hyphens and dots, and begin and end with a "
            "letter or digit"
        )


def _toleration(text: str) -> dict[str, str]:
    taint, colon, effect = text.rpartition(":") if ":" in text else (text, "", "")
    key, equals, value = taint.partition("=")
    _check_label("toleration", key, text)
    _check_label_value("toleration", value, text)
    if colon and effect not in _EFFECTS:
        raise UsageError(f"--toleration={text}: the effect must be one of {', '.join(_EFFECTS)}, or left out for all")
    operator = {"operator": "Equal", "value": value} if equals else {"operator": "Exists"}
    return {"key": key, **operator, **({"effect": effect} if colon else {})}
