"""Rules for the quotas, network policies, volumes and checkpoints of tenants."""

from typing import Any

import pytest

from tests.policies import manifests
from tests.policies.harness import REMOVED, UNKNOWN_VALUE, Manifest, changed, evaluate_rule

MAIN = "spec/tasks/0/template/spec/containers/0"


def quota_findings(hard: Manifest, *workloads: Manifest, **spec: Any) -> list[str]:
    quota = changed(manifests.quota(), ("spec", {"hard": hard, **spec}))
    return evaluate_rule("namespace-gpu-quota", *(workloads or (manifests.volcano_job(),)), quota)


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
def test_namespace_rules_do_not_apply_to_cluster_scoped_templates(
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
    assert evaluate_rule(rule, template) == []


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
def test_ineffective_gpu_quota_is_rejected(hard: Manifest, spec: Manifest) -> None:
    assert quota_findings(hard, **spec)


def test_each_requested_accelerator_needs_a_quota() -> None:
    jobs = (manifests.volcano_job(), with_gpu("amd.com/gpu"))
    (message,) = quota_findings({"requests.nvidia.com/gpu": 8}, *jobs)
    assert "requests.amd.com/gpu" in message
    both_quotas = {"requests.nvidia.com/gpu": 8, "requests.amd.com/gpu": 8}
    assert quota_findings(both_quotas, *jobs) == []


def test_effective_gpu_quota_is_accepted() -> None:
    assert quota_findings({"requests.nvidia.com/gpu": "8"}) == []


def test_quota_below_the_gpus_of_one_workload_is_rejected() -> None:
    (message,) = quota_findings({"requests.nvidia.com/gpu": 1})
    assert "found requests.nvidia.com/gpu: 2 in one workload" in message


@pytest.mark.parametrize("counts", [(8, 1), (1, 8)])
def test_smallest_of_several_quotas_applies(counts: tuple[int, int]) -> None:
    quotas = [
        changed(
            manifests.quota(),
            ("metadata/name", f"quota-{count}"),
            ("spec/hard/requests.nvidia.com~gpu", count),
        )
        for count in counts
    ]
    (message,) = evaluate_rule("namespace-gpu-quota", manifests.volcano_job(), *quotas)
    assert "found requests.nvidia.com/gpu: 2 in one workload; write at most 1" in message


def policy_findings(*rules: Any, **spec: Any) -> list[str]:
    fields = {"podSelector": {}, "policyTypes": ["Ingress"], "ingress": list(rules), **spec}
    policy = changed(manifests.default_deny(), ("metadata/name", "allow"), ("spec", fields))
    job = manifests.volcano_job()
    return evaluate_rule("namespace-default-deny", job, manifests.default_deny(), policy)


@pytest.mark.parametrize(
    "rule",
    [
        {},
        {"from": []},
        {"ports": [{"port": 1, "endPort": 65535}]},
        {"from": [{"namespaceSelector": {}, "podSelector": {}}]},
        {"from": [{"ipBlock": {"cidr": "::/0"}}]},
        {"from": [{"ipBlock": {"cidr": "2000::/3"}}]},
        {"from": [{"ipBlock": {"cidr": f"{first}.0.0.0/2"}} for first in (0, 64, 128, 192)]},
    ],
)
def test_network_policy_that_allows_all_traffic_is_rejected(rule: Manifest) -> None:
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
def test_network_policy_that_allows_selected_traffic_is_accepted(rule: Manifest) -> None:
    assert policy_findings(rule) == []


CILIUM = ("cilium.io/v2", "CiliumNetworkPolicy")
CALICO = ("projectcalico.org/v3", "NetworkPolicy")


ANTREA = ("crd.antrea.io/v1beta1", "NetworkPolicy")
TRAINING = "app.kubernetes.io/component"


def cilium(rule: Manifest, **labels: str) -> Manifest:
    return {"endpointSelector": {"matchLabels": labels} if labels else {}, "ingress": [rule]}


def antrea(**labels: str) -> Manifest:
    targets = [{"podSelector": {"matchLabels": labels}}]
    return {"spec": {"appliedTo": targets, "ingress": [{"action": "Allow"}]}}


def calico(**source: Any) -> Manifest:
    ingress = [{"action": "Allow", "source": source}]
    return {"spec": {"selector": "all()", "ingress": ingress}}


def calico_for(selector: str) -> Manifest:
    return {"spec": {"selector": selector, "ingress": [{"action": "Allow"}]}}


@pytest.mark.parametrize(
    ("kind", "fields", "rejected"),
    [
        (CILIUM, {"specs": [cilium({"fromEntities": ["all"]})]}, True),
        (CILIUM, {"spec": cilium({"fromCIDRSet": [{"cidr": "0.0.0.0/0"}]})}, True),
        (CILIUM, {"specs": [cilium({"fromEndpoints": [{"matchLabels": {"a": "b"}}]})]}, False),
        (CILIUM, {"spec": cilium({"fromCIDRSet": [{"cidr": "10.0.0.0/8"}]})}, False),
        (CILIUM, {"spec": cilium({"fromEndpoints": [], "toPorts": [{"ports": []}]})}, False),
        (CILIUM, {"spec": cilium({"fromEntities": ["all"]}, **{TRAINING: "training"})}, True),
        (CILIUM, {"spec": cilium({}, **{f"k8s:{TRAINING}": "training"})}, True),
        (CILIUM, {"spec": cilium({"fromEntities": ["all"]}, app="web")}, False),
        (CILIUM, {"spec": cilium({"fromCIDR": ["0.0.0.0/2", "128.0.0.0/2"]})}, True),
        (CILIUM, {"spec": cilium({"fromCIDR": ["0.0.0.0/2", "0.0.0.0/3", "32.0.0.0/3"]})}, False),
        (ANTREA, antrea(**{TRAINING: "training"}), True),
        (ANTREA, antrea(app="web"), False),
        (CALICO, calico_for(f"{TRAINING} == 'training'"), True),
        (CALICO, calico_for(f"has({TRAINING})"), True),
        (CALICO, calico_for("app == 'web' && has(a)"), False),
        (CALICO, calico(nets=["0.0.0.0/0"]), True),
        (CALICO, calico(namespaceSelector="all()"), True),
        (CALICO, calico(namespaceSelector="all()", selector="all()"), True),
        (CALICO, calico(nets=["10.0.0.0/8"]), False),
        (CALICO, calico(nets=["0.0.0.0/0"], notNets=["10.0.0.0/8"]), False),
        (CALICO, calico(namespaceSelector="all()", selector="app == 'web'"), False),
        (CALICO, calico(selector="all()"), False),
        (CALICO, calico(ports=[80], serviceAccounts={"names": ["a"]}), False),
    ],
)
def test_network_plugin_policies_must_not_allow_all_traffic(
    kind: tuple[str, str], fields: Manifest, rejected: bool
) -> None:
    metadata = {"name": "allow", "namespace": "training"}
    policy = {"apiVersion": kind[0], "kind": kind[1], "metadata": metadata, **fields}
    workload = manifests.volcano_job()
    found = evaluate_rule("namespace-default-deny", workload, manifests.default_deny(), policy)
    assert bool(found) is rejected


@pytest.mark.parametrize(
    ("labels", "rejected"),
    [
        ({"app": "web"}, False),
        ({"volcano.sh/job-name": "other"}, False),
        ({"app.kubernetes.io/component": UNKNOWN_VALUE}, False),
        ({"app.kubernetes.io/component": "training"}, True),
        ({"volcano.sh/job-name": "digits"}, True),
        ({"volcano.sh/queue-name": "research"}, True),
        ({"volcano.sh/job-name": "other", "volcano.sh/task-spec": "worker"}, False),
    ],
)
def test_network_policy_may_allow_all_traffic_only_to_other_pods_than_training(
    labels: Manifest, rejected: bool
) -> None:
    assert bool(policy_findings({}, podSelector={"matchLabels": labels})) is rejected


@pytest.mark.parametrize(
    ("source", "rejected"),
    [
        ({"hostPath": {"path": "/dev"}}, True),
        ({"local": {"path": "/"}}, True),
        ({"csi": {"driver": "hostpath.csi.k8s.io", "volumeHandle": "a"}}, True),
        ({"csi": {"driver": "local.csi.openebs.io", "volumeHandle": "a"}}, True),
        ({"csi": {"driver": "ebs.csi.aws.com", "volumeHandle": "a"}}, False),
        ({"nfs": {"server": "nfs.example.com", "path": "/"}}, False),
    ],
)
def test_persistent_volumes_on_the_node_are_rejected(source: Manifest, rejected: bool) -> None:
    volume = changed(manifests.volume(), ("spec", source))
    assert bool(evaluate_rule("no-host-volume", volume)) is rejected


def test_volume_of_the_pods_of_a_custom_resource_is_reported_only_once() -> None:
    application = {
        "apiVersion": "sparkoperator.k8s.io/v1beta2",
        "kind": "SparkApplication",
        "metadata": {"name": "etl"},
        "spec": {"volumes": [{"name": "a", "hostPath": {"path": "/"}}], "driver": {"cores": 1}},
    }
    (message,) = evaluate_rule("no-host-path", application)
    assert "spec.volumes[0].hostPath" in message
    assert evaluate_rule("no-host-volume", application) == []


@pytest.mark.parametrize(
    ("provisioner", "rejected"), [("efs.csi.aws.com", False), ("openebs.io/local", True)]
)
def test_base_directory_must_be_in_a_network_file_system(provisioner: str, rejected: bool) -> None:
    storage_class = {
        "apiVersion": "storage.k8s.io/v1",
        "kind": "StorageClass",
        "metadata": {"name": "shared"},
        "provisioner": provisioner,
        "parameters": {"provisioningMode": "efs-ap", "basePath": "/dynamic"},
    }
    assert bool(evaluate_rule("no-host-volume", storage_class)) is rejected


def stateful_set(name: str, storage_class: str = "fast") -> Manifest:
    claim = {"metadata": {"name": name}, "spec": {"storageClassName": storage_class}}
    return changed(
        manifests.deployment(),
        ("kind", "StatefulSet"),
        ("spec/volumeClaimTemplates", [claim]),
        ("spec/strategy", {}),
    )


@pytest.mark.parametrize(
    ("workload", "rejected"),
    [
        (stateful_set("checkpoints"), True),
        (stateful_set("checkpoints", "shared"), False),
        (stateful_set("cache"), False),
    ],
)
def test_checkpoint_claims_of_a_stateful_set_must_be_retained(
    workload: Manifest, rejected: bool
) -> None:
    stack = (workload, manifests.storage_class())
    assert bool(evaluate_rule("checkpoints-kept", *stack)) is rejected


@pytest.mark.parametrize(("policy", "rejected"), [("Retain", False), ("Delete", True)])
def test_volume_of_a_checkpoint_claim_must_be_retained(policy: str, rejected: bool) -> None:
    volume = changed(
        manifests.volume(),
        ("metadata/name", "a"),
        ("spec/persistentVolumeReclaimPolicy", policy),
    )
    claim = changed(manifests.claim(), ("spec/volumeName", "a"))
    assert bool(evaluate_rule("checkpoints-kept", claim, volume)) is rejected


def volcano_claim(storage_class: str) -> Manifest:
    volume = {"mountPath": "/out", "volumeClaim": {"storageClassName": storage_class}}
    return changed(manifests.volcano_job(), ("spec/volumes", [volume]))


@pytest.mark.parametrize(("storage_class", "rejected"), [("fast", True), ("shared", False)])
def test_checkpoint_claims_created_by_volcano_must_be_retained(
    storage_class: str, rejected: bool
) -> None:
    stack = (volcano_claim(storage_class), manifests.storage_class())
    assert bool(evaluate_rule("checkpoints-kept", *stack)) is rejected


@pytest.mark.parametrize("source", [{"emptyDir": {}}, {"ephemeral": {"volumeClaimTemplate": {}}}])
@pytest.mark.parametrize(
    ("name", "path"), [("checkpoints", "/checkpoints"), ("data", "/checkpoints"), ("data", "/ckpt")]
)
def test_checkpoints_on_pod_local_volumes_are_rejected(
    source: Manifest, name: str, path: str
) -> None:
    pod = "spec/tasks/0/template/spec"
    job = changed(
        manifests.volcano_job(),
        (f"{pod}/volumes/1", {"name": name, **source}),
        (f"{MAIN}/volumeMounts/1", {"name": name, "mountPath": path}),
    )
    assert evaluate_rule("checkpoints-kept", job)


def test_cache_on_a_pod_local_volume_is_accepted() -> None:
    job = changed(
        manifests.volcano_job(),
        ("spec/tasks/0/template/spec/volumes/1", {"name": "cache", "emptyDir": {}}),
        (f"{MAIN}/volumeMounts/1", {"name": "cache", "mountPath": "/cache"}),
        (f"{MAIN}/env", REMOVED),
    )
    assert evaluate_rule("checkpoints-kept", job) == []
