"""Values for NVIDIA's gpu-operator chart, and the settings that produce them."""

from collections.abc import Iterator, Mapping
from typing import Any

import pytest
import yaml

from infra.gpu_operator import chart_values
from infra.gpu_stack import plugin_config
from infra.settings.cluster import GpuSettings
from tests.infra.conftest import Provision
from tests.infra.examples import good, problems
from tests.infra.test_gpu_stack import objects

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


def gpu(operator: Mapping[str, Any] | None = None, **values: Any) -> GpuSettings:
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
        gpu(),
        gpu({"driver_version": "595.91.07"}, time_slicing={"replicas": 4}, mig_strategy="mixed"),
    ],
)
def test_every_generated_key_exists_in_the_chart(settings: GpuSettings) -> None:
    assert settings.operator.version == VERSION
    assert set(paths(values(settings))) <= KEYS


def test_key_that_the_chart_lacks_is_detected() -> None:
    assert "driver.enable" not in KEYS
    assert set(paths({"driver": {"enable": True}})) - KEYS == {"driver.enable"}


def test_components_that_nodes_already_have_are_disabled() -> None:
    chart = values(gpu({"driver": False, "toolkit": False, "node_feature_discovery": False}))
    assert (chart["driver"], chart["toolkit"]) == ({"enabled": False}, {"enabled": False})
    assert chart["nfd"] == {"enabled": False}


def test_operator_pods_tolerate_the_taints_of_gpu_nodes() -> None:
    chart = values(gpu(tolerations=[{"key": "sku", "operator": "Equal", "value": "gpu"}]))
    taint = {"key": "sku", "operator": "Equal", "value": "gpu", "effect": "NoSchedule"}
    assert chart["daemonsets"]["tolerations"] == [taint]
    assert taint in chart["node-feature-discovery"]["worker"]["tolerations"]


def test_time_slicing_becomes_a_device_plugin_configuration() -> None:
    config = values(gpu(time_slicing={"replicas": 4}))["devicePlugin"]["config"]
    read = yaml.safe_load(config["data"][config["default"]])
    assert read["sharing"]["timeSlicing"]["resources"] == [
        {"name": "nvidia.com/gpu", "replicas": 4}
    ]
    assert values(gpu())["devicePlugin"]["config"] == {"create": False}


def test_custom_values_override_single_keys() -> None:
    chart = values(gpu({"values": {"driver": {"version": "580.1"}, "psa": {"enabled": True}}}))
    assert chart["driver"] == {"enabled": True, "version": "580.1"}
    assert chart["psa"] == {"enabled": True}


def test_stack_creates_no_device_plugin_with_the_operator() -> None:
    assert objects(gpu()) == {}


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
        (
            {"install": False},
            "`install`, which was replaced by `provider`: use `provider: existing`",
        ),
        ({"install": True}, "which was replaced by `provider`: use `provider: device-plugin`"),
        ({"operator": {}}, "operator, but provider is device-plugin"),
        ({"provider": "existing", "operator": {}}, "operator, but provider is existing"),
        (
            {"provider": "gpu-operator", "device_lists": ["cdi-cri"], "image": "a/b:1"},
            "device_lists, image, which the GPU Operator does not read: remove them",
        ),
        ({"provider": "gpu-operator", "runtime_class": {}}, "the GPU Operator creates it"),
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
