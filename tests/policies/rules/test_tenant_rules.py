"""Rules about quotas, network policies, volumes and checkpoints of tenants."""

from typing import Any

import pytest

from tests.policies import manifests
from tests.policies.harness import REMOVED, Manifest, changed, judge

MAIN = "spec/tasks/0/template/spec/containers/0"


def quota_findings(hard: Manifest, *workloads: Manifest, **spec: Any) -> list[str]:
    quota = changed(manifests.quota(), ("spec", {"hard": hard, **spec}))
    return judge("namespace-gpu-quota", *(workloads or (manifests.volcano_job(),)), quota)


def with_gpu(name: str) -> Manifest:
    job = changed(manifests.volcano_job(), ("metadata/name", "other"))
    for key in ("requests", "limits"):
        resources = job["spec"]["tasks"][0]["template"]["spec"]["containers"][0]["resources"][key]
        del resources["nvidia.com/gpu"]
        resources[name] = 1
    return job


@pytest.mark.parametrize(
    ("version", "kind", "field"),
    [
        ("argoproj.io/v1alpha1", "ClusterWorkflowTemplate", "templates"),
        ("argoproj.io/v1alpha1", "ClusterAnalysisTemplate", "metrics"),
        ("tekton.dev/v1beta1", "ClusterTask", "steps"),
    ],
)
@pytest.mark.parametrize("rule", ["namespace-gpu-quota", "namespace-default-deny"])
def test_the_namespace_of_a_cluster_scoped_template_is_unknown(
    rule: str, version: str, kind: str, field: str
) -> None:
    container = manifests.container("main")
    pod = {"spec": {"template": {"spec": {"containers": [container]}}}}
    items = {
        "templates": {"name": "main", "container": container},
        "metrics": {"name": "main", "provider": {"job": pod}},
        "steps": {**container, "computeResources": container["resources"]},
    }
    template = {
        "apiVersion": version,
        "kind": kind,
        "metadata": {"name": "a"},
        "spec": {field: [items[field]]},
    }
    assert judge(rule, template) == []


@pytest.mark.parametrize(
    ("hard", "spec"),
    [
        ({"limits.nvidia.com/gpu": 8}, {}),
        ({"nvidia.com/gpu": 8}, {}),
        ({"requests.nvidia.com/gpu": "10001"}, {}),
        ({"requests.nvidia.com/gpu": "all"}, {}),
        ({"requests.nvidia.com/gpu": 8}, {"scopes": ["Terminating"]}),
        ({"requests.amd.com/gpu": 8}, {}),
    ],
)
def test_a_quota_that_does_not_count_is_refused(hard: Manifest, spec: Manifest) -> None:
    assert quota_findings(hard, **spec)


def test_every_requested_accelerator_needs_a_quota() -> None:
    jobs = (manifests.volcano_job(), with_gpu("amd.com/gpu"))
    (message,) = quota_findings({"requests.nvidia.com/gpu": 8}, *jobs)
    assert "requests.amd.com/gpu" in message
    both = {"requests.nvidia.com/gpu": 8, "requests.amd.com/gpu": 8}
    assert quota_findings(both, *jobs) == []


def test_a_quota_that_counts_is_accepted() -> None:
    assert quota_findings({"requests.nvidia.com/gpu": "8"}) == []


def test_a_quota_below_the_gpus_of_one_workload_is_refused() -> None:
    (message,) = quota_findings({"requests.nvidia.com/gpu": 1})
    assert "found 2 of requests.nvidia.com/gpu in one workload" in message


@pytest.mark.parametrize("counts", [(8, 1), (1, 8)])
def test_the_smallest_of_several_quotas_counts(counts: tuple[int, int]) -> None:
    quotas = [
        changed(
            manifests.quota(),
            ("metadata/name", f"quota-{count}"),
            ("spec/hard/requests.nvidia.com~gpu", count),
        )
        for count in counts
    ]
    (message,) = judge("namespace-gpu-quota", manifests.volcano_job(), *quotas)
    assert "found 2 of requests.nvidia.com/gpu in one workload; write at most 1" in message


def policy_findings(*rules: Any, **spec: Any) -> list[str]:
    fields = {"podSelector": {}, "policyTypes": ["Ingress"], "ingress": list(rules), **spec}
    policy = changed(manifests.default_deny(), ("metadata/name", "allow"), ("spec", fields))
    job = manifests.volcano_job()
    return judge("namespace-default-deny", job, manifests.default_deny(), policy)


@pytest.mark.parametrize(
    "rule",
    [
        {},
        {"from": []},
        {"ports": [{"port": 1, "endPort": 65535}]},
        {"from": [{"namespaceSelector": {}, "podSelector": {}}]},
        {"from": [{"ipBlock": {"cidr": "::/0"}}]},
    ],
)
def test_a_policy_that_admits_everybody_undoes_the_one_that_denies(rule: Manifest) -> None:
    (message,) = policy_findings(rule)
    assert 'NetworkPolicy "allow"' in message


@pytest.mark.parametrize(
    "rule",
    [
        {"from": [{"podSelector": {}}]},
        {"from": [{"namespaceSelector": {"matchLabels": {"a": "b"}}}]},
        {"from": [{"ipBlock": {"cidr": "10.0.0.0/8"}}]},
    ],
)
def test_a_policy_that_admits_some_is_accepted(rule: Manifest) -> None:
    assert policy_findings(rule) == []


CILIUM = ("cilium.io/v2", "CiliumNetworkPolicy")
CALICO = ("projectcalico.org/v3", "NetworkPolicy")


def cilium(rule: Manifest) -> Manifest:
    return {"endpointSelector": {}, "ingress": [rule]}


def calico(**source: Any) -> Manifest:
    ingress = [{"action": "Allow", "source": source}]
    return {"spec": {"selector": "all()", "ingress": ingress}}


@pytest.mark.parametrize(
    ("kind", "fields", "refused"),
    [
        (CILIUM, {"specs": [cilium({"fromEntities": ["all"]})]}, True),
        (CILIUM, {"spec": cilium({"fromCIDRSet": [{"cidr": "0.0.0.0/0"}]})}, True),
        (CILIUM, {"specs": [cilium({"fromEndpoints": [{"matchLabels": {"a": "b"}}]})]}, False),
        (CILIUM, {"spec": cilium({"fromCIDRSet": [{"cidr": "10.0.0.0/8"}]})}, False),
        (CALICO, calico(nets=["0.0.0.0/0"]), True),
        (CALICO, calico(namespaceSelector="all()"), True),
        (CALICO, calico(namespaceSelector="all()", selector="all()"), True),
        (CALICO, calico(nets=["10.0.0.0/8"]), False),
        (CALICO, calico(nets=["0.0.0.0/0"], notNets=["10.0.0.0/8"]), False),
        (CALICO, calico(namespaceSelector="all()", selector="app == 'web'"), False),
        (CALICO, calico(selector="all()"), False),
    ],
)
def test_policies_of_network_plugins_may_not_admit_everybody(
    kind: tuple[str, str], fields: Manifest, refused: bool
) -> None:
    metadata = {"name": "allow", "namespace": "training"}
    policy = {"apiVersion": kind[0], "kind": kind[1], "metadata": metadata, **fields}
    workload = manifests.volcano_job()
    found = judge("namespace-default-deny", workload, manifests.default_deny(), policy)
    assert bool(found) is refused


def test_a_policy_of_some_pods_may_admit_everybody() -> None:
    assert policy_findings({}, podSelector={"matchLabels": {"app": "web"}}) == []


@pytest.mark.parametrize(
    ("source", "refused"),
    [
        ({"hostPath": {"path": "/dev"}}, True),
        ({"local": {"path": "/"}}, True),
        ({"csi": {"driver": "hostpath.csi.k8s.io", "volumeHandle": "a"}}, True),
        ({"csi": {"driver": "local.csi.openebs.io", "volumeHandle": "a"}}, True),
        ({"csi": {"driver": "ebs.csi.aws.com", "volumeHandle": "a"}}, False),
        ({"nfs": {"server": "nfs.example.com", "path": "/"}}, False),
    ],
)
def test_a_volume_does_not_reach_the_node(source: Manifest, refused: bool) -> None:
    volume = changed(manifests.volume(), ("spec", source))
    assert bool(judge("no-host-volume", volume)) is refused


def stateful_set(name: str, storage_class: str = "fast") -> Manifest:
    claim = {"metadata": {"name": name}, "spec": {"storageClassName": storage_class}}
    return changed(
        manifests.deployment(),
        ("kind", "StatefulSet"),
        ("spec/volumeClaimTemplates", [claim]),
        ("spec/strategy", {}),
    )


@pytest.mark.parametrize(
    ("workload", "refused"),
    [
        (stateful_set("checkpoints"), True),
        (stateful_set("checkpoints", "shared"), False),
        (stateful_set("cache"), False),
    ],
)
def test_claims_of_a_stateful_set_are_kept(workload: Manifest, refused: bool) -> None:
    stack = (workload, manifests.storage_class())
    assert bool(judge("checkpoints-kept", *stack)) is refused


def volcano_claim(storage_class: str) -> Manifest:
    volume = {"mountPath": "/out", "volumeClaim": {"storageClassName": storage_class}}
    return changed(manifests.volcano_job(), ("spec/volumes", [volume]))


@pytest.mark.parametrize(("storage_class", "refused"), [("fast", True), ("shared", False)])
def test_claims_that_volcano_creates_are_kept(storage_class: str, refused: bool) -> None:
    stack = (volcano_claim(storage_class), manifests.storage_class())
    assert bool(judge("checkpoints-kept", *stack)) is refused


@pytest.mark.parametrize("source", [{"emptyDir": {}}, {"ephemeral": {"volumeClaimTemplate": {}}}])
@pytest.mark.parametrize("name", ["checkpoints", "data"])
def test_checkpoints_do_not_die_with_the_pod(source: Manifest, name: str) -> None:
    pod = "spec/tasks/0/template/spec"
    job = changed(
        manifests.volcano_job(),
        (f"{pod}/volumes/1", {"name": name, **source}),
        (f"{MAIN}/volumeMounts/1", {"name": name, "mountPath": "/checkpoints"}),
    )
    assert judge("checkpoints-kept", job)


def test_a_cache_of_training_may_die_with_the_pod() -> None:
    job = changed(
        manifests.volcano_job(),
        ("spec/tasks/0/template/spec/volumes/1", {"name": "cache", "emptyDir": {}}),
        (f"{MAIN}/volumeMounts/1", {"name": "cache", "mountPath": "/cache"}),
        (f"{MAIN}/env", REMOVED),
    )
    assert judge("checkpoints-kept", job) == []
