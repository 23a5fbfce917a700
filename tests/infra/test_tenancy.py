from contextlib import nullcontext
from typing import Any

import pytest
from pydantic import ValidationError

from infra.manifests import Manifest
from infra.settings import validate
from infra.settings.inference.service import InferenceServiceSettings
from infra.settings.tenancy import TenancySettings
from infra.tenancy import (
    TenancyArgs,
    limit_range,
    manifests,
    namespace,
    network_policies,
    quotas,
    service_accounts,
    system_namespaces,
)
from tests.infra.examples import good

GPU = "nvidia.com/gpu"


def tenancy(**values: Any) -> TenancySettings:
    return TenancySettings.model_validate({"namespace": "ml", **values})


def policies(settings: TenancySettings, ports: tuple[int, ...] = (8080,)) -> dict[str, Manifest]:
    built = network_policies(settings, ports)
    return {policy["metadata"]["name"]: policy["spec"] for policy in built}


def test_namespace_enforces_the_restricted_standard_by_default() -> None:
    def enforced(settings: TenancySettings) -> object:
        return namespace(settings)["metadata"]["labels"]["pod-security.kubernetes.io/enforce"]

    assert enforced(tenancy()) == "restricted"
    assert enforced(tenancy(pod_security="privileged")) == "privileged"


@pytest.mark.parametrize(
    ("address_range", "valid"),
    [
        ("10.1.0.5/32", True),
        ("2001:db8::/32", True),
        ("10.1.0.5", False),
        ("10.1.0.5/16", False),
        ("10.1.0.0/255.255.0.0", False),
        ("10.1.0.0/", False),
        ("fe80::%eth0/64", False),
    ],
)
def test_address_ranges_must_be_valid_kubernetes_cidrs(address_range: str, valid: bool) -> None:
    values: dict[str, Any] = {"namespace": "ml", "network": {"egress_cidrs": [address_range]}}
    with nullcontext() if valid else pytest.raises(ValidationError, match="an address range"):
        TenancySettings.model_validate(values)


def test_quota_uses_the_stacks_gpu_resource_name() -> None:
    settings = tenancy(quota={"gpus": 8, "cpu": 4, "memory_limits": "16Gi"})
    (quota,) = quotas(settings, "amd.com/gpu")
    assert quota["spec"]["hard"] == {
        "requests.amd.com/gpu": "8",
        "requests.cpu": "4",
        "limits.memory": "16Gi",
    }


def test_quota_of_zero_gpus_is_created() -> None:
    (quota,) = quotas(tenancy(quota={"gpus": 0}), "nvidia.com/gpu")
    assert quota["spec"]["hard"] == {"requests.nvidia.com/gpu": "0"}


def test_no_quota_is_created_without_limits() -> None:
    assert quotas(tenancy(), "nvidia.com/gpu") == []


def test_containers_get_memory_limits_but_never_cpu_limits() -> None:
    (limits,) = limit_range(tenancy(limits={"max_memory": "8Gi"}))["spec"]["limits"]
    assert limits["default"] == {"memory": "256Mi"}
    assert limits["defaultRequest"] == {"cpu": "100m", "memory": "256Mi"}
    assert limits["max"] == {"memory": "8Gi"}


def test_workload_service_accounts_have_no_tokens() -> None:
    accounts = service_accounts(tenancy(), with_secret=False)
    assert [account["metadata"]["name"] for account in accounts] == ["training", "inference"]
    assert all(account["automountServiceAccountToken"] is False for account in accounts)
    assert all("imagePullSecrets" not in account for account in accounts)


def test_service_accounts_use_the_registry_login() -> None:
    accounts = service_accounts(tenancy(), with_secret=True)
    assert all(account["imagePullSecrets"] == [{"name": "registry"}] for account in accounts)


def test_network_is_denied_except_for_required_traffic() -> None:
    found = policies(tenancy())
    assert set(found) == {
        "default-deny",
        "allow-dns",
        "allow-training-gangs",
        "allow-ray-heads",
        "allow-inference",
    }
    assert found["default-deny"] == {"podSelector": {}, "policyTypes": ["Ingress", "Egress"]}


def test_dns_is_allowed() -> None:
    (rule,) = policies(tenancy())["allow-dns"]["egress"]
    assert {port["protocol"] for port in rule["ports"]} == {"UDP", "TCP"}
    assert {port["port"] for port in rule["ports"]} == {53, 5353}


@pytest.mark.parametrize(
    ("role", "directions"), [(None, {"from", "to"}), ("worker", {"from", "to"}), ("head", {"to"})]
)
def test_training_pods_can_reach_only_each_other_but_no_ray_heads_of_other_runs(
    role: str | None, directions: set[str]
) -> None:
    labels = {"gpu-platform.dev/workload": "training"}

    def selects(selector: Manifest) -> bool:
        return selector.get("matchLabels") == labels and all(
            each["key"] == "ray.io/node-type"
            and (each["operator"] == "In") == (role in each["values"])
            for each in selector.get("matchExpressions", [])
        )

    peers = [{"podSelector": {"matchLabels": labels}}]
    found = [spec for spec in policies(tenancy()).values() if selects(spec["podSelector"])]
    rules = [rule for spec in found for key in ("ingress", "egress") for rule in spec.get(key, [])]
    assert sorted(rules, key=str) == [{direction: peers} for direction in sorted(directions)]


def test_inference_admits_the_whole_cluster_or_chosen_namespaces() -> None:
    def callers(**network: Any) -> list[Manifest]:
        found: list[Manifest] = policies(tenancy(network=network))["allow-inference"]["ingress"]
        return found

    ports = [{"port": 8080, "protocol": "TCP"}]
    chosen = {"namespaceSelector": {"matchLabels": {"kubernetes.io/metadata.name": "web"}}}
    assert callers() == [{"from": [{"namespaceSelector": {}}], "ports": ports}]
    assert callers(inference_from=["web"]) == [{"from": [chosen], "ports": ports}]


def test_inference_policy_is_omitted_without_services() -> None:
    assert "allow-inference" not in policies(tenancy(), ports=())


def test_services_of_other_stacks_are_admitted_on_configured_ports() -> None:
    found = policies(tenancy(network={"inference_ports": [8000, 9000]}), ports=(8080, 8000))
    (rule,) = found["allow-inference"]["ingress"]
    assert [port["port"] for port in rule["ports"]] == [8000, 8080, 9000]
    without_services = policies(tenancy(network={"inference_ports": [8000]}), ports=())
    assert without_services.keys() == found.keys() >= {"allow-inference", "allow-inference-groups"}


def test_separate_namespace_component_admits_requests_to_services() -> None:
    service = InferenceServiceSettings(cpu="1", memory="2Gi", run="digits-0123abcd")
    built = manifests(TenancyArgs(tenancy=tenancy(), gpu_resource="nvidia.com/gpu"))
    found = {each["metadata"]["name"]: each.get("spec", {}) for each in built}
    (rule,) = found["allow-inference"]["ingress"]
    assert {port["port"] for port in rule["ports"]} == {service.port}
    assert "allow-inference-groups" in found


def test_configured_egress_addresses_are_reachable() -> None:
    spec = policies(tenancy(network={"egress_cidrs": ["10.1.0.0/16"]}))["allow-egress"]
    assert spec["egress"] == [{"to": [{"ipBlock": {"cidr": "10.1.0.0/16"}}]}]


def test_configured_external_addresses_can_call_inference() -> None:
    network = {"inference_from": ["web"], "inference_cidrs": ["10.2.0.0/16"]}
    (rule,) = policies(tenancy(network=network))["allow-inference"]["ingress"]
    assert {"ipBlock": {"cidr": "10.2.0.0/16"}} in rule["from"]
    assert len(rule["from"]) == 2


def test_service_accounts_have_their_cloud_identities() -> None:
    role = {"eks.amazonaws.com/role-arn": "arn:aws:iam::1:role/train"}
    settings = tenancy(identities={"training": {"annotations": role, "labels": {"team": "a"}}})
    training, inference = service_accounts(settings, with_secret=False)
    assert training["metadata"]["annotations"] == role
    assert training["metadata"]["labels"] == {"team": "a"}
    assert "annotations" not in inference["metadata"]


def test_quota_can_include_gpu_slices() -> None:
    settings = tenancy(quota={"gpus": 8, "devices": {"nvidia.com/mig-1g.10gb": 7}})
    (quota,) = quotas(settings, "nvidia.com/gpu")
    assert quota["spec"]["hard"] == {
        "requests.nvidia.com/gpu": "8",
        "requests.nvidia.com/mig-1g.10gb": "7",
    }


@pytest.mark.parametrize(
    ("section", "changes", "expected"),
    [
        ("volcano", {"install": False}, ("volcano-system",)),
        ("monitoring", {}, ("monitoring", "volcano-system")),
    ],
)
def test_default_namespace_of_an_uninstalled_chart_can_be_used(
    section: str, changes: dict[str, Any], expected: tuple[str, ...]
) -> None:
    values = good()
    values["gpu"] = {"namespace": expected[0]}
    values[section] = {**values.get(section, {}), **changes}
    assert system_namespaces(validate(values)) == expected
