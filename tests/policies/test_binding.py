"""Conversion of rules to policies for the Pulumi engine."""

import json
from typing import Any

import pytest
from pulumi_policy import Secret, StackValidationArgs

from policies.binding import Binding, config_schema
from policies.catalogue import RULES
from policies.rule import Level, Severity, pod_rule, resource_rule
from policies.settings import NoConfig
from tests.policies import manifests
from tests.policies.harness import (
    MAIN,
    POD,
    REMOVED,
    UNKNOWN_VALUE,
    arguments,
    changed,
    evaluate_rule,
    remediate,
    rule_named,
    stack_resource,
)

SECRET = {"4dabf18193072939515e22adb298388d": "1b47061264138c4ac30d75fd1eb44270", "value": "x"}


@pytest.mark.parametrize("error", [ZeroDivisionError("oh"), SystemExit("oh")])
def test_crash_of_a_rule_is_reported_as_a_violation(error: BaseException) -> None:
    @resource_rule(
        name="broken",
        description="Always fails.",
        severity=Severity.LOW,
        level=Level.MANDATORY,
        remediation="None.",
        config=NoConfig,
    )
    def broken(resource: Any, config: NoConfig) -> list[Any]:
        raise error

    messages: list[str] = []
    policy: Any = Binding().policies([broken])[0]
    policy.validate(arguments(manifests.service()), lambda message, urn: messages.append(message))
    (message,) = messages
    assert "the rule broken itself failed" in message
    assert f"{type(error).__name__}: oh" in message
    assert "counts as a violation" in message


def test_violations_found_before_a_crash_are_still_reported() -> None:
    @pod_rule(
        name="half-broken",
        description="Report a violation, then crash.",
        severity=Severity.LOW,
        level=Level.MANDATORY,
        remediation="None.",
        config=NoConfig,
    )
    def half_broken(pod: Any, config: NoConfig) -> Any:
        yield from rule_named("not-privileged").check(pod, rule_named("not-privileged").config())
        raise KeyError("oh")

    job = changed(manifests.volcano_job(), (f"{MAIN}/securityContext/privileged", True))
    messages: list[str] = []
    policy: Any = Binding().policies([half_broken])[0]
    policy.validate(arguments(job), lambda message, urn: messages.append(message))
    assert len(messages) == 2


def test_invalid_configuration_is_explained_and_counts_as_a_violation() -> None:
    (message,) = evaluate_rule("shm-fits-memory", manifests.volcano_job(), config={"share": 7})
    assert "shm-fits-memory.share: found 7" in message
    (message,) = evaluate_rule("shm-per-gpu", manifests.volcano_job(), config={"perGpu": "a lot"})
    assert "shm-per-gpu.perGpu: found 'a lot'" in message
    (message,) = evaluate_rule("shm-fits-memory", manifests.volcano_job(), config={"shar": 1})
    assert "shm-fits-memory.shar" in message


def test_invalid_configuration_is_reported_once_rather_than_for_every_resource() -> None:
    job = manifests.volcano_job()
    assert len(evaluate_rule("shm-fits-memory", job, job, job, config={"share": 7})) == 1


def test_integer_settings_accept_the_floats_that_the_engine_sends() -> None:
    assert (
        evaluate_rule(
            "training-retries-bounded", manifests.volcano_job(), config={"maxRetries": 3.0}
        )
        == []
    )
    assert evaluate_rule(
        "training-retries-bounded", manifests.volcano_job(), config={"maxRetries": 2.0}
    )


def test_configuration_schema_uses_only_types_that_the_engine_supports() -> None:
    schemas = {rule.config: config_schema(rule.config) for rule in RULES}
    for config, schema in schemas.items():
        properties = {} if schema is None else schema.properties
        assert "$ref" not in json.dumps(properties), config
        for key, setting in properties.items():
            assert setting["type"] in ("array", "string", "number", "integer", "object"), key
            assert setting["description"].endswith((".", ".`")), key


def test_each_rule_becomes_a_separate_policy() -> None:
    policies = Binding().policies(RULES)
    assert [policy.name for policy in policies] == [rule.name for rule in RULES]
    assert all(policy.remediation_steps and policy.severity for policy in policies)


def test_only_the_configured_system_workload_is_trusted() -> None:
    plugin = {
        "apiVersion": "apps/v1",
        "kind": "DaemonSet",
        "metadata": {"name": "nvidia-device-plugin", "namespace": "gpu-system"},
        "spec": {
            "template": {
                "spec": {
                    "containers": [manifests.container(gpus=None)],
                    "volumes": [{"name": "sockets", "hostPath": {"path": "/var/lib/kubelet"}}],
                }
            }
        },
    }
    trusted = {"systemWorkloads": ["gpu-system/DaemonSet/nvidia-device-plugin"]}
    assert evaluate_rule("no-host-path", plugin)
    assert evaluate_rule("no-host-path", plugin, config=trusted) == []
    in_other_namespace = changed(plugin, ("metadata/namespace", "default"))
    assert evaluate_rule("no-host-path", in_other_namespace, config=trusted)
    in_unknown_namespace = changed(plugin, ("metadata/namespace", UNKNOWN_VALUE))
    assert evaluate_rule("no-host-path", in_unknown_namespace, config=trusted)


def test_stack_rules_evaluate_declared_objects_instead_of_returned_ones() -> None:
    deployment = changed(manifests.deployment(), ("spec/replicas", REMOVED))
    binding = Binding()
    resource_policy, stack_policy = (
        binding.policies([rule_named(name)])[0]
        for name in ("manifest-readable", "autoscaled-without-replicas")
    )
    messages: list[str] = []

    def report(message: str, urn: str | None = None) -> None:
        messages.append(message)

    untyped_resource_policy: Any = resource_policy
    untyped_stack_policy: Any = stack_policy
    untyped_resource_policy.validate(arguments(deployment), report)
    returned_resources = [
        stack_resource(manifests.deployment(), "urn:resource"),
        stack_resource(manifests.autoscaler(), "urn:other"),
    ]
    untyped_stack_policy.validate(StackValidationArgs(returned_resources), report)
    assert messages == []


def test_stack_violation_is_reported_with_the_urn_of_its_resource() -> None:
    policy: Any = Binding().policies([rule_named("checkpoints-shared")])[0]
    urns: list[str | None] = []
    claim = changed(manifests.claim(), ("spec/accessModes", ["ReadWriteOnce"]))
    stack = [claim, manifests.volcano_job()]
    resources = [stack_resource(item, f"urn:{item['kind']}") for item in stack]
    policy.validate(StackValidationArgs(resources), lambda message, urn: urns.append(urn))
    assert urns == ["urn:PersistentVolumeClaim"]


@pytest.mark.parametrize(("protect", "count"), [(False, 1), (True, 0)])
def test_protected_checkpoints_do_not_need_a_retaining_storage_class(
    protect: bool, count: int
) -> None:
    policy: Any = Binding().policies([rule_named("checkpoints-kept")])[0]
    messages: list[str] = []
    args = StackValidationArgs([stack_resource(manifests.claim(), protect=protect)])
    policy.validate(args, lambda message, urn: messages.append(message))
    assert len(messages) == count


def test_remediation_adds_missing_fields() -> None:
    incomplete = changed(
        manifests.volcano_job(),
        (f"{POD}/tolerations", REMOVED),
        (f"{POD}/volumes", REMOVED),
        (f"{MAIN}/volumeMounts", REMOVED),
    )
    with_toleration = remediate("gpu-toleration", incomplete)
    assert with_toleration is not None
    assert evaluate_rule("gpu-toleration", with_toleration) == []
    with_shared_memory = remediate("shm-mounted", incomplete, {"size": "2Gi"})
    assert with_shared_memory is not None
    for rule in ("shm-mounted", "shm-bounded-memory", "shm-fits-memory"):
        assert evaluate_rule(rule, with_shared_memory) == []


def test_remediation_does_not_change_secrets_or_unknown_values() -> None:
    job = changed(
        manifests.volcano_job(),
        (f"{POD}/tolerations", REMOVED),
        (f"{MAIN}/image", UNKNOWN_VALUE),
        (f"{MAIN}/env/0/value", SECRET),
    )
    repaired = remediate("gpu-toleration", job)
    assert repaired is not None
    container = repaired["spec"]["tasks"][0]["template"]["spec"]["containers"][0]
    assert container["image"] == UNKNOWN_VALUE
    assert container["env"][0]["value"] == SECRET


def test_remediation_does_not_change_a_compliant_resource() -> None:
    for rule in RULES:
        if rule.remedy is not None:
            assert remediate(rule.name, manifests.volcano_job()) is None
            assert remediate(rule.name, manifests.batch_job()) is None


def test_rules_evaluate_the_values_of_secrets() -> None:
    job = changed(manifests.volcano_job(), (f"{MAIN}/securityContext/privileged", Secret(True)))
    assert evaluate_rule("not-privileged", job)
