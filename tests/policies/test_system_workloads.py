"""Object addresses, and the system workloads configured for the whole pack."""

from typing import Any

import pytest

from policies.binding import Binding
from policies.catalogue import RULES
from policies.configuration import configure
from policies.documents import Document
from policies.evaluation import evaluate
from policies.resources import Resource
from policies.rule import ConfigurationError
from tests.policies.harness import Manifest, arguments, rule_named, type_of

ADDRESS = "gpu-system/DaemonSet/plugin"
SYSTEM = {"systemWorkloads": {"workloads": [ADDRESS]}}
RULES_OF_NODES = {"no-host-path", "not-privileged", "no-host-namespaces", "run-as-non-root"}


def daemon_set(version: str = "apps/v1") -> Manifest:
    container = {
        "name": "main",
        "image": "registry.example.com/plugin:1.0",
        "securityContext": {"privileged": True},
    }
    spec = {
        "hostPID": True,
        "containers": [container],
        "volumes": [{"name": "root", "hostPath": {"path": "/"}}],
    }
    return {
        "apiVersion": version,
        "kind": "DaemonSet",
        "metadata": {"name": "plugin", "namespace": "gpu-system"},
        "spec": {"template": {"spec": spec}},
    }


def rejecting_rules(manifest: Manifest, config: dict[str, Any]) -> set[str]:
    documents = [Document("-", manifest, None)]
    found = evaluate(documents, configure(config, RULES), whole_stack=False)
    return {finding.rule for finding in found if finding.mandatory}


@pytest.mark.parametrize(
    ("version", "address"),
    [
        ("apps/v1", "gpu-system/DaemonSet/plugin"),
        ("v1", "gpu-system/DaemonSet/plugin"),
        ("storage.k8s.io/v1", "gpu-system/DaemonSet/plugin"),
        ("apps.kruise.io/v1alpha1", "gpu-system/DaemonSet.apps.kruise.io/plugin"),
        ("jobset.x-k8s.io/v1alpha2", "gpu-system/DaemonSet.jobset.x-k8s.io/plugin"),
        ("EVIL.k8s.io.example.com/v1", "gpu-system/DaemonSet.evil.k8s.io.example.com/plugin"),
    ],
)
def test_only_built_in_kinds_have_addresses_without_an_api_group(
    version: str, address: str
) -> None:
    manifest = daemon_set(version)
    assert Resource(type_of(manifest), manifest).address == address


def test_shared_system_workload_is_exempt_from_all_node_rules() -> None:
    assert rejecting_rules(daemon_set(), {}) >= RULES_OF_NODES
    assert not rejecting_rules(daemon_set(), SYSTEM) & RULES_OF_NODES


def test_object_with_a_generated_name_is_exempt_only_by_a_pattern() -> None:
    manifest = {**daemon_set(), "metadata": {"generateName": "plugin-", "namespace": "gpu-system"}}
    (finding, *_) = evaluate([Document("-", manifest, None)], configure({}, RULES))
    assert finding.message.startswith('DaemonSet "plugin-…" in namespace "gpu-system": ')
    for address, is_exempt in (("plugin-*", True), ("plugin-", False), ("other-*", False)):
        config = {"systemWorkloads": {"workloads": [f"gpu-system/DaemonSet/{address}"]}}
        assert (not rejecting_rules(manifest, config) & RULES_OF_NODES) is is_exempt


def test_custom_resource_with_the_same_kind_and_name_is_not_exempt() -> None:
    assert rejecting_rules(daemon_set("apps.kruise.io/v1alpha1"), SYSTEM) >= RULES_OF_NODES


def test_system_workloads_of_a_rule_are_added_to_the_shared_ones() -> None:
    config = {"not-privileged": {"systemWorkloads": [ADDRESS]}}
    shared = {"systemWorkloads": {"workloads": ["other/DaemonSet/agent"]}}
    assert "not-privileged" not in rejecting_rules(daemon_set(), config | shared)
    assert "no-host-path" in rejecting_rules(daemon_set(), config | shared)


@pytest.mark.parametrize("value", [[ADDRESS], {"workloads": ADDRESS}, {"workload": [ADDRESS]}])
def test_error_names_the_key_of_an_invalid_system_workload_list(value: Any) -> None:
    with pytest.raises(ConfigurationError, match="systemWorkloads"):
        configure({"systemWorkloads": value}, RULES)


CARDS = ["example.com/card*"]


def gpu_findings(config: dict[str, Any]) -> set[str]:
    manifest = daemon_set()
    container = manifest["spec"]["template"]["spec"]["containers"][0]
    container["resources"] = {"limits": {"example.com/card-a": 1}}
    return {rule for rule in rejecting_rules(manifest, config) if rule.startswith("gpu-")}


def test_other_devices_of_the_cluster_are_not_accelerators_for_any_rule() -> None:
    assert gpu_findings({}) >= {"gpu-memory-guaranteed", "gpu-cpu-requested"}
    assert not gpu_findings({"cluster": {"otherDevices": CARDS}})


def test_other_devices_of_a_rule_are_added_to_those_of_the_cluster() -> None:
    config = {"gpu-cpu-requested": {"otherDevices": CARDS}, "cluster": {"otherDevices": ["a/b"]}}
    assert "gpu-cpu-requested" not in gpu_findings(config)
    assert "gpu-memory-guaranteed" in gpu_findings(config)


def test_error_names_the_key_of_an_invalid_cluster_setting() -> None:
    with pytest.raises(ConfigurationError, match=r"cluster\.queueSystems"):
        configure({"cluster": {"queueSystems": ["slurm"]}}, RULES)


def messages(config: Manifest) -> list[str]:
    binding = Binding()
    binding.configure(config)
    policy: Any = binding.policies([rule_named("not-privileged")])[0]
    found: list[str] = []

    def report(message: str, urn: str | None = None) -> None:
        found.append(message)

    policy.validate(arguments(daemon_set()), report)
    return found


def test_engine_policies_apply_the_shared_system_workloads() -> None:
    assert messages({})
    assert messages(SYSTEM) == []


@pytest.mark.parametrize(("key", "policy"), [("cluster", 2), ("systemWorkloads", 1)])
def test_engine_policies_report_an_invalid_pack_setting(key: str, policy: int) -> None:
    binding = Binding()
    binding.configure({key: {"unknown": 1}})
    found: list[str] = []

    def report(message: str, urn: str | None = None) -> None:
        found.append(message)

    root = {"apiVersion": "v1", "kind": "Stack"}
    root_arguments = arguments(root)
    root_arguments.resource_type = "pulumi:pulumi:Stack"
    reporting: Any = binding.configuration_policies()[policy]
    reporting.validate(root_arguments, report)
    assert f"{key}.unknown" in found[0]
