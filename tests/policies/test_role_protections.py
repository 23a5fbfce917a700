"""Fields that the role of pods requires cannot be omitted from any good manifest."""

import copy
from collections.abc import Callable
from typing import Any

import pytest

from policies.pod_search import find_pods
from policies.resources import Resource
from policies.settings import RoleConfig
from tests.policies.harness import Manifest, type_of
from tests.policies.test_cases import SETTINGS
from tests.policies.ways.way import GOOD, documents, refusing

Chosen = Callable[[str, Any], bool]
NAMES = sorted(path.stem for path in GOOD.glob("*.yaml"))


def without(node: Any, chosen: Chosen) -> Any:
    """Return a copy without the fields, and the items of lists, that are chosen."""
    if isinstance(node, dict):
        return {k: without(v, chosen) for k, v in node.items() if not chosen(k, v)}
    if isinstance(node, list):
        return [without(item, chosen) for item in node if not chosen("", item)]
    return copy.deepcopy(node)


def field(*names: str) -> Chosen:
    return lambda key, _: key in names


def queue(key: str, value: Any) -> bool:
    return "queue" in key.lower() and isinstance(value, str)


def shared_memory(key: str, value: Any) -> bool:
    return key == "" and isinstance(value, dict) and value.get("mountPath") == "/dev/shm"


def role(manifest: Manifest) -> set[str]:
    """Return the roles of the pods of a manifest."""
    pods = find_pods(Resource(type_of(manifest), manifest))
    return {pod.role(RoleConfig()) for pod in pods}


def cases(
    role_of_pods: str, chosen: Chosen, rules: str, *exceptions: str
) -> list[tuple[str, Chosen, set[str]]]:
    """Return the good manifests with a role from which something can be removed."""
    return [
        (name, chosen, set(rules.split()))
        for name in NAMES
        if name not in exceptions
        and any(role_of_pods in role(item) for item in documents(name))
        and without(documents(name), chosen) != documents(name)
    ]


SUPPLIED = (
    *("dynamo_components", "kserve_model_format", "ray_service"),
    *("llmisvc_data_parallel", "llmisvc_prefill_decode", "llmisvc_single_gpu"),
)
"""Manifests of kinds whose controller adds the probes."""
CASES = [
    # Kueue admits them; their pods use the default scheduler as well.
    *cases(
        "training", field("schedulerName"), "training-scheduler", "app_wrapper", "g16_kueue_job"
    ),
    *cases("training", queue, "training-queue-named training-pod-group-whole"),
    *cases("training", shared_memory, "shm-mounted", "xgboost_job"),  # It has no GPU.
    *(
        (name, shared_memory, {"shm-mounted"})
        for name in ("vllm_tensor_parallel", "vllm_multi_node", "sglang_rdma", "lws_sglang")
    ),
    *cases("serving", field("readinessProbe"), "inference-probes", *SUPPLIED),
]


@pytest.mark.parametrize(
    ("name", "chosen", "rules"), CASES, ids=[f"{name}-{min(rules)}" for name, _, rules in CASES]
)
def test_fields_required_by_a_role_cannot_be_omitted(
    name: str, chosen: Chosen, rules: set[str]
) -> None:
    assert rules & refusing(without(documents(name), chosen), SETTINGS["good"].get(name, {}))
