"""The Kubernetes manifests of docs/clusters.md."""

import kubernetes_validate
import pytest

from tests.engines import manual

# The fields of Flink's operator, flink.apache.org/v1beta1, beside the pods, which are Kubernetes' own.
FLINK_SPEC = {
    "image", "imagePullPolicy", "ingress", "flinkConfiguration", "flinkVersion", "job", "jobManager",
    "logConfiguration", "mode", "podTemplate", "restartNonce", "serviceAccount", "taskManager",
}  # fmt: skip
FLINK_PART = {"podTemplate", "replicas", "resource", "resources"}
FLINK_RESOURCE = {"cpu", "ephemeralStorage", "memory"}


@pytest.fixture
def deployment():
    (manifest,) = [manifest for manifest in manual.manifests() if manifest["kind"] == "FlinkDeployment"]
    return manifest


def test_the_cluster_is_one_of_flinks_operator(deployment):
    assert (deployment["apiVersion"], deployment["kind"]) == ("flink.apache.org/v1beta1", "FlinkDeployment")
    spec = deployment["spec"]
    assert set(spec) <= FLINK_SPEC
    assert spec["image"] == "flink:1.19"
    assert spec["flinkVersion"] == "v1_19"
    assert all(isinstance(value, str) for value in spec["flinkConfiguration"].values())
    for part in ("jobManager", "taskManager"):
        assert set(spec[part]) <= FLINK_PART
        assert set(spec[part]["resource"]) <= FLINK_RESOURCE


def test_the_pods_are_kubernetes_own(deployment):
    pods = [part["podTemplate"] for part in deployment["spec"].values() if "podTemplate" in part]
    assert len(pods) == 1
    for pod in pods:
        manifest = {"apiVersion": "v1", "kind": "Pod", "metadata": {"name": "pod"}, **pod}
        kubernetes_validate.validate(manifest, kubernetes_validate.latest_version(), strict=True)


def test_a_misspelt_field_of_a_pod_is_found(deployment):
    (container,) = deployment["spec"]["taskManager"]["podTemplate"]["spec"]["containers"]
    manifest = {"apiVersion": "v1", "kind": "Pod", "spec": {"containers": [container | {"argz": []}]}}
    with pytest.raises(kubernetes_validate.ValidationError, match="argz"):
        kubernetes_validate.validate(manifest, kubernetes_validate.latest_version(), strict=True)


def test_the_command_asks_for_the_slots_that_the_cluster_has(deployment):
    workers = deployment["spec"]["taskManager"]["replicas"]
    slots = int(deployment["spec"]["flinkConfiguration"]["taskmanager.numberOfTaskSlots"])
    assert f"--parallelism={workers * slots}" in manual.command("--flink_submit_uber_jar", {})
