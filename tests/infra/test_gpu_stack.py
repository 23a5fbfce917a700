from typing import Any

import pytest
import yaml

from infra.gpu_stack import GpuStackArgs, gpu_nodes, manifests, plugin_config
from infra.manifests import Manifest
from infra.settings.cluster import GpuSettings


def gpu(**values: Any) -> GpuSettings:
    return GpuSettings.model_validate(values)


def objects(settings: GpuSettings) -> dict[str, Manifest]:
    return {manifest["kind"]: manifest for manifest in manifests(GpuStackArgs(gpu=settings))}


def test_device_plugin_has_namespace_quota_and_configuration() -> None:
    assert list(objects(gpu())) == ["Namespace", "ResourceQuota", "ConfigMap", "DaemonSet"]


def test_quota_lets_gke_admit_the_plugins_critical_pods() -> None:
    found = objects(gpu())
    (scope,) = found["ResourceQuota"]["spec"]["scopeSelector"]["matchExpressions"]
    pod = found["DaemonSet"]["spec"]["template"]["spec"]
    assert scope["scopeName"] == "PriorityClass"
    assert pod["priorityClassName"] in scope["values"]
    assert found["ResourceQuota"]["metadata"]["namespace"] == "gpu-system"


def test_existing_provider_creates_no_objects() -> None:
    assert objects(gpu(provider="existing")) == {}


def test_runtime_class_is_created_unless_create_is_false() -> None:
    created_class = gpu(provider="existing", runtime_class={})
    existing_class = gpu(provider="existing", runtime_class={"create": False})
    assert objects(created_class)["RuntimeClass"]["handler"] == "nvidia"
    assert objects(existing_class) == {}
    assert gpu_nodes(existing_class).runtime_class == "nvidia"


def test_whole_gpus_are_the_default() -> None:
    assert plugin_config(gpu()) == {"version": "v1", "flags": {"migStrategy": "none"}}


def test_time_slicing_and_mig_are_in_the_plugin_configuration() -> None:
    settings = gpu(mig_strategy="mixed", time_slicing={"replicas": 4})
    assert plugin_config(settings) == {
        "version": "v1",
        "flags": {"migStrategy": "mixed"},
        "sharing": {
            "timeSlicing": {
                "renameByDefault": True,
                "failRequestsGreaterThanOne": True,
                "resources": [{"name": "nvidia.com/gpu", "replicas": 4}],
            }
        },
    }


@pytest.mark.parametrize(
    ("settings", "resource_name"),
    [
        ({}, "nvidia.com/gpu"),
        ({"time_slicing": {"replicas": 4}}, "nvidia.com/gpu.shared"),
        ({"time_slicing": {"replicas": 4, "rename": False}}, "nvidia.com/gpu"),
    ],
    ids=str,
)
def test_workloads_request_the_resource_name_that_nodes_offer(
    settings: dict[str, Any], resource_name: str
) -> None:
    assert gpu_nodes(gpu(**settings)).resource == resource_name


def test_plugin_reads_its_mounted_configuration() -> None:
    settings = gpu(time_slicing={"replicas": 2})
    found = objects(settings)
    spec = found["DaemonSet"]["spec"]["template"]["spec"]
    (container,) = spec["containers"]
    variables = {item["name"]: item.get("value") for item in container["env"]}
    mounts = {mount["name"]: mount["mountPath"] for mount in container["volumeMounts"]}
    volumes = {volume["name"]: volume for volume in spec["volumes"]}
    assert variables["CONFIG_FILE"] == f"{mounts['config']}/config.yaml"
    assert volumes["config"]["configMap"]["name"] == found["ConfigMap"]["metadata"]["name"]
    assert yaml.safe_load(found["ConfigMap"]["data"]["config.yaml"]) == plugin_config(settings)


def test_plugin_mounts_the_kubelets_socket_directory() -> None:
    spec = objects(gpu())["DaemonSet"]["spec"]["template"]["spec"]
    assert spec["volumes"][0]["hostPath"]["path"] == "/var/lib/kubelet/device-plugins"
    assert spec["containers"][0]["volumeMounts"][0]["mountPath"] == (
        "/var/lib/kubelet/device-plugins"
    )


def test_a_changed_configuration_restarts_the_plugin() -> None:
    def annotations(settings: GpuSettings) -> Manifest:
        found: Manifest = objects(settings)["DaemonSet"]["spec"]["template"]["metadata"]
        return found["annotations"]

    assert annotations(gpu()) != annotations(gpu(mig_strategy="single"))


def test_only_mig_and_device_files_need_privileges() -> None:
    def security(settings: GpuSettings) -> Manifest:
        spec = objects(settings)["DaemonSet"]["spec"]["template"]["spec"]
        return spec["containers"][0]["securityContext"]

    assert security(gpu())["capabilities"] == {"drop": ["ALL"]}
    assert security(gpu())["allowPrivilegeEscalation"] is False
    assert security(gpu(mig_strategy="single"))["capabilities"] == {
        "drop": ["ALL"],
        "add": ["SYS_ADMIN"],
    }
    assert security(gpu(pass_device_specs=True)) == {
        "privileged": True,
        "readOnlyRootFilesystem": True,
    }


def test_plugin_namespace_is_privileged() -> None:
    labels = objects(gpu(namespace="gpus"))["Namespace"]["metadata"]["labels"]
    assert labels["pod-security.kubernetes.io/enforce"] == "privileged"


def test_plugin_runs_on_the_nodes_used_by_workloads() -> None:
    settings = gpu(node_selector={"pool": "a100"}, tolerations=[{"key": "only-gpu"}])
    spec = objects(settings)["DaemonSet"]["spec"]["template"]["spec"]
    nodes = gpu_nodes(settings)
    assert spec["nodeSelector"] == nodes.node_selector == {"pool": "a100"}
    assert spec["tolerations"] == list(nodes.tolerations)
    assert nodes.tolerations == [{"key": "only-gpu", "operator": "Exists", "effect": "NoSchedule"}]


def test_isolated_plugin_has_no_network_access() -> None:
    built = manifests(GpuStackArgs(gpu=gpu(), isolated=True))
    (policy,) = (each for each in built if each["kind"] == "NetworkPolicy")
    (daemon_set,) = (each for each in built if each["kind"] == "DaemonSet")
    selected = policy["spec"].pop("podSelector")["matchLabels"].items()
    assert selected <= daemon_set["spec"]["template"]["metadata"]["labels"].items()
    assert policy["spec"] == {"policyTypes": ["Ingress", "Egress"]}


def test_plugin_mounts_the_driver_and_cdi_directories_for_cdi() -> None:
    settings = gpu(device_lists=["cdi-cri", "envvar"], pass_device_specs=True)
    spec = objects(settings)["DaemonSet"]["spec"]["template"]["spec"]
    paths = {each["name"]: each["hostPath"]["path"] for each in spec["volumes"][2:]}
    mounts = {each["name"]: each for each in spec["containers"][0]["volumeMounts"]}
    assert plugin_config(settings)["flags"]["plugin"] == {
        "deviceListStrategy": ["cdi-cri", "envvar"],
        "passDeviceSpecs": True,
    }
    assert paths == {"driver": "/", "cdi": "/var/run/cdi"}
    # The plugin's default for containerDriverRoot.
    assert mounts["driver"] == {"name": "driver", "mountPath": "/driver-root", "readOnly": True}
    assert mounts["cdi"] == {"name": "cdi", "mountPath": "/var/run/cdi"}


def test_plugin_can_use_a_driver_outside_the_root() -> None:
    settings = gpu(driver_root="/run/nvidia/driver")
    (driver,) = objects(settings)["DaemonSet"]["spec"]["template"]["spec"]["volumes"][2:]
    assert driver == {"name": "driver", "hostPath": {"path": "/run/nvidia/driver"}}
    assert plugin_config(settings)["flags"]["nvidiaDriverRoot"] == "/run/nvidia/driver"
