"""Arguments of the plugin's components that are not settings of a stack."""

from typing import Any

import pytest
from pulumi.errors import InputPropertiesError

from gpu_platform.plugin import schema
from gpu_platform.plugin.components import _check_additional, _gpu_nodes
from gpu_platform.plugin.gpu_nodes import AdditionalSettings, GpuNodesSettings
from infra.gpu_stack import gpu_nodes
from infra.settings.cluster import GpuSettings

GPU = "nvidia.com/gpu"


def test_toleration_has_the_schema_defaults() -> None:
    nodes = _gpu_nodes({"gpu_nodes": {"resource": GPU, "tolerations": [{"key": GPU}]}})
    assert nodes.tolerations == [{"key": GPU, "operator": "Exists"}]


@pytest.mark.parametrize(
    "toleration",
    [{}, {"effect": None}, {"effect": "NoExecute"}, {"operator": "Equal", "value": "a"}],
    ids=str,
)
def test_gpu_stack_output_is_accepted_as_an_argument(toleration: dict[str, Any]) -> None:
    settings = {"tolerations": [{"key": GPU, **toleration}], "runtime_class": {"name": "nvidia"}}
    nodes = gpu_nodes(GpuSettings.model_validate(settings))
    output = GpuNodesSettings.of(nodes).output
    assert None not in output.values()
    assert _gpu_nodes({"gpu_nodes": output}) == nodes


@pytest.mark.parametrize(
    ("wrong", "path"),
    [
        ({"resource": "a b"}, "gpuNodes.resource"),
        ({"resource": "gpu"}, "gpuNodes.resource"),
        ({"node_selector": {"pool": "a b"}}, "gpuNodes.nodeSelector.pool"),
        ({"tolerations": [{"key": GPU, "operator": "Equal"}]}, "gpuNodes.tolerations[0]"),
        ({"tolerations": [{"key": GPU, "effect": "Never"}]}, "gpuNodes.tolerations[0].effect"),
    ],
    ids=str,
)
def test_error_for_invalid_gpu_nodes_contains_the_key(wrong: dict[str, Any], path: str) -> None:
    with pytest.raises(InputPropertiesError) as found:
        _gpu_nodes({"gpu_nodes": {"resource": GPU, **wrong}})
    assert [each["property_path"] for each in found.value.errors or []] == [path]


def test_default_is_an_nvidia_gpu_on_any_node() -> None:
    nodes = _gpu_nodes({})
    assert (nodes.resource, nodes.node_selector, nodes.tolerations) == (GPU, {}, [])


@pytest.mark.parametrize(
    ("component", "wrong", "path"),
    [
        ("TrainingJob", {"namespace": ""}, "namespace"),
        ("TrainingJob", {"claims": {"checkpoints": "Shared"}}, "claims.checkpoints"),
        ("TrainingJob", {"service_account": "a b"}, "serviceAccount"),
        ("InferenceService", {"domain": "cluster local"}, "domain"),
        ("Tenancy", {"gpu_resource": "gpu"}, "gpuResource"),
        ("Storage", {"namespace": "Vision"}, "namespace"),
        ("FailureRecorder", {"namespace": "Vision"}, "namespace"),
        ("NodeHealth", {"runs_namespace": "Vision"}, "runsNamespace"),
        ("Monitoring", {"volcano_namespace": ""}, "volcanoNamespace"),
        ("Monitoring", {"ports": [8080.0, 70000.0]}, "ports[1]"),
    ],
)
def test_error_for_an_additional_argument_contains_its_name(
    component: str, wrong: dict[str, Any], path: str
) -> None:
    with pytest.raises(InputPropertiesError) as found:
        _check_additional(component, wrong)
    assert [each["property_path"] for each in found.value.errors or []] == [path]


def test_additional_arguments_are_checked_unless_they_have_another_check() -> None:
    additional = {name for _, each in schema.COMPONENTS.values() for name in each}
    checked_elsewhere = {"image", "canary_image", "platform", "isolated"}
    assert additional == AdditionalSettings.model_fields.keys() | checked_elsewhere
