from collections.abc import Iterator, Mapping
from typing import Any

import pytest
import yaml

from infra.gpu_stack import GpuStackArgs, chart_values, gpu_nodes, manifests, plugin_config
from infra.manifests import Manifest
from infra.settings.cluster import GpuSettings
from tests.infra.conftest import Provision
from tests.infra.examples import good, problems

# From deployments/gpu-operator/values.yaml at tag v26.7.0; the chart has no schema for its values.
VERSION = "v26.7.0"
KEY_LIST = """
cdi.enabled cdi.nriPluginEnabled
daemonsets.annotations daemonsets.labels daemonsets.priorityClassName daemonsets.tolerations
daemonsets.updateStrategy
dcgmExporter.enabled dcgmExporter.env dcgmExporter.serviceMonitor.additionalLabels
dcgmExporter.serviceMonitor.enabled dcgmExporter.serviceMonitor.honorLabels
devicePlugin.config.create devicePlugin.config.data devicePlugin.config.default
devicePlugin.config.name devicePlugin.enabled devicePlugin.env
driver.enabled driver.kernelModuleType driver.rdma.enabled driver.repository driver.version
gfd.enabled
mig.strategy
nfd.enabled nfd.nodefeaturerules
node-feature-discovery.worker.config node-feature-discovery.worker.tolerations
toolkit.enabled toolkit.env toolkit.installDir toolkit.version
"""
KEYS = frozenset(KEY_LIST.split())


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


def operator_gpu(operator: Mapping[str, Any] | None = None, **values: Any) -> GpuSettings:
    chart = {"operator": operator} if operator is not None else {}
    return GpuSettings.model_validate({"provider": "gpu-operator", **values, **chart})


def values(settings: GpuSettings) -> dict[str, Any]:
    return chart_values(settings, plugin_config(settings))


def paths(written: Mapping[str, Any], *before: str) -> Iterator[str]:
    """Yield the dotted paths of values, down to keys whose whole value the chart copies."""
    for key, value in written.items():
        path = ".".join((*before, key))
        if isinstance(value, dict) and path not in KEYS:
            yield from paths(value, *before, key)
        else:
            yield path


@pytest.mark.parametrize(
    "settings",
    [
        operator_gpu(),
        operator_gpu(
            {"driver_version": "595.91.07"}, time_slicing={"replicas": 4}, mig_strategy="mixed"
        ),
    ],
)
def test_every_generated_key_exists_in_the_chart(settings: GpuSettings) -> None:
    assert settings.operator.version == VERSION
    assert set(paths(values(settings))) <= KEYS


def test_key_that_the_chart_lacks_is_detected() -> None:
    assert "driver.enable" not in KEYS
    assert set(paths({"driver": {"enable": True}})) - KEYS == {"driver.enable"}


def test_components_that_nodes_already_have_are_disabled() -> None:
    chart = values(
        operator_gpu({"driver": False, "toolkit": False, "node_feature_discovery": False})
    )
    assert (chart["driver"], chart["toolkit"]) == ({"enabled": False}, {"enabled": False})
    assert chart["nfd"] == {"enabled": False}


def test_operator_pods_tolerate_the_taints_of_gpu_nodes() -> None:
    chart = values(operator_gpu(tolerations=[{"key": "sku", "operator": "Equal", "value": "gpu"}]))
    taint = {"key": "sku", "operator": "Equal", "value": "gpu", "effect": "NoSchedule"}
    assert chart["daemonsets"]["tolerations"] == [taint]
    assert taint in chart["node-feature-discovery"]["worker"]["tolerations"]


def test_time_slicing_becomes_a_device_plugin_configuration() -> None:
    config = values(operator_gpu(time_slicing={"replicas": 4}))["devicePlugin"]["config"]
    read = yaml.safe_load(config["data"][config["default"]])
    assert read["sharing"]["timeSlicing"]["resources"] == [
        {"name": "nvidia.com/gpu", "replicas": 4}
    ]
    assert values(operator_gpu())["devicePlugin"]["config"] == {"create": False}


def test_custom_values_override_single_keys() -> None:
    chart = values(
        operator_gpu({"values": {"driver": {"version": "580.1"}, "psa": {"enabled": True}}})
    )
    assert chart["driver"] == {"enabled": True, "version": "580.1"}
    assert chart["psa"] == {"enabled": True}


def test_stack_creates_no_device_plugin_with_the_operator() -> None:
    assert objects(operator_gpu()) == {}


def test_release_namespace_admits_critical_privileged_pods(provision: Provision) -> None:
    plan = provision(good() | {"gpu": {"provider": "gpu-operator"}})
    release = plan.inputs("gpu-operator-release")
    assert (release["chart"], release["version"]) == ("gpu-operator", VERSION)
    assert release["repositoryOpts"]["repo"] == "https://helm.ngc.nvidia.com/nvidia"
    assert release["namespace"] == "gpu-operator"
    space = plan.inputs("gpu-operator-namespace")
    assert space["metadata"]["labels"]["pod-security.kubernetes.io/enforce"] == "privileged"
    assert plan.inputs("gpu-operator-quota")["spec"]["scopeSelector"]


@pytest.mark.parametrize(
    ("settings", "part"),
    [
        ({"operator": {}}, "operator, but provider is device-plugin"),
        ({"provider": "existing", "operator": {}}, "operator, but provider is existing"),
        (
            {"provider": "gpu-operator", "device_lists": ["cdi-cri"], "image": "a/b:1"},
            "device_lists, image, which the GPU Operator does not read: remove them",
        ),
        ({"provider": "gpu-operator", "runtime_class": {}}, "the GPU Operator creates the Run"),
        (
            {"provider": "gpu-operator", "operator": {"namespace": "ml"}},
            "is 'ml', which is also the value of gpu-platform:gpu.operator.namespace",
        ),
    ],
)
def test_settings_that_do_not_fit_the_provider_are_rejected(
    settings: dict[str, Any], part: str
) -> None:
    [problem] = problems(good() | {"gpu": settings})
    assert part in problem


def test_second_dcgm_exporter_is_rejected() -> None:
    values = good() | {"gpu": {"provider": "gpu-operator"}}
    values["monitoring"] = {"prometheus": "plain"}
    [problem] = problems(values)
    assert "set dcgm_exporter: {install: false, existing: {}}" in problem
    values["monitoring"]["dcgm_exporter"] = {"install": False, "existing": {}}
    assert problems(values) == []
