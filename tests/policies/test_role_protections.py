"""Fields required by the role of a pod cannot be removed from any good manifest."""

import copy
from collections.abc import Callable, Sequence
from typing import Any

import pytest

from policies.pod_search import find_pods
from policies.resources import Resource
from policies.settings import RoleConfig
from tests.policies.harness import Manifest, type_of
from tests.policies.test_cases import SETTINGS
from tests.policies.ways.way import GOOD, documents, rejecting_rules

Selector = Callable[[str, Any], bool]
NAMES = sorted(path.stem for path in GOOD.glob("*.yaml"))


def without(node: Any, selected: Selector) -> Any:
    """Return a copy without the selected fields and list items."""
    if isinstance(node, dict):
        return {k: without(v, selected) for k, v in node.items() if not selected(k, v)}
    if isinstance(node, list):
        return [without(item, selected) for item in node if not selected("", item)]
    return copy.deepcopy(node)


def field(*names: str) -> Selector:
    return lambda key, _: key in names


def queue(key: str, value: Any) -> bool:
    return "queue" in key.lower() and isinstance(value, str)


def shared_memory(key: str, value: Any) -> bool:
    return key == "" and isinstance(value, dict) and value.get("mountPath") == "/dev/shm"


def role(manifest: Manifest) -> set[str]:
    """Return the roles of the pods of a manifest."""
    pods = find_pods(Resource(type_of(manifest), manifest))
    return {pod.role(RoleConfig()) for pod in pods}


PROBES_ADDED_BY_CONTROLLER = (
    *("dynamo_components", "kserve_model_format", "ray_service"),
    *("llmisvc_data_parallel", "llmisvc_prefill_decode", "llmisvc_single_gpu"),
)
"""Manifests of kinds whose controllers add the probes."""


@pytest.mark.parametrize(
    ("role_of_pods", "selected", "rules", "exceptions"),
    [
        # Kueue admits these workloads, so their pods may use the default scheduler.
        (
            *("training", field("schedulerName"), ["training-scheduler"]),
            ("app_wrapper", "g16_kueue_job"),
        ),
        ("training", queue, ["training-queue-named", "training-pod-group-whole"], ()),
        ("training", shared_memory, ["shm-mounted"], ("xgboost_job",)),  # no GPUs
        ("serving", field("readinessProbe"), ["inference-probes"], PROBES_ADDED_BY_CONTROLLER),
    ],
)
def test_manifest_without_a_field_required_by_its_role_is_rejected(
    role_of_pods: str, selected: Selector, rules: Sequence[str], exceptions: Sequence[str]
) -> None:
    incomplete = {
        name: without(documents(name), selected)
        for name in NAMES
        if any(role_of_pods in role(item) for item in documents(name))
    }
    changed = {name for name, manifests in incomplete.items() if manifests != documents(name)}
    accepted = {name for name in changed if not _rejecting(name, incomplete[name], rules)}
    assert changed
    assert accepted <= {*exceptions}


@pytest.mark.parametrize(
    "name", ["vllm_tensor_parallel", "vllm_multi_node", "sglang_rdma", "lws_sglang"]
)
def test_server_on_several_gpus_without_shared_memory_is_rejected(name: str) -> None:
    assert _rejecting(name, without(documents(name), shared_memory), ["shm-mounted"])


def _rejecting(name: str, manifests: list[Manifest], rules: Sequence[str]) -> set[str]:
    return rejecting_rules(manifests, SETTINGS.get(name, {}), *rules)
