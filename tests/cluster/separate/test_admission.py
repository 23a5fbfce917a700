"""Admission policies in a real API server: what they deny, admit and count."""

from datetime import UTC, datetime
from typing import Any

import pytest
import yaml

from tests.cluster.admission import CHANGED_BY_THE_API, PARTIAL, SETTINGS, SPACE, Cluster, violated
from tests.cluster.api_server import ApiServer, Manifest
from tests.policies import fixtures
from tests.policies.manifests import pod_spec

PODS = f"/api/v1/namespaces/{SPACE}/pods"
TASKS = "/apis/example.com/v1/tasks"
CONTROLLER = f"system:serviceaccount:{SPACE}:tasks"
DEFINITION = f"""\
apiVersion: apiextensions.k8s.io/v1
kind: CustomResourceDefinition
metadata: {{name: tasks.example.com}}
spec:
  group: example.com
  scope: Cluster
  names: {{kind: Task, plural: tasks}}
  versions:
    - name: v1
      served: true
      storage: true
      schema:
        openAPIV3Schema: {{type: object, x-kubernetes-preserve-unknown-fields: true}}
---
apiVersion: rbac.authorization.k8s.io/v1
kind: ClusterRole
metadata: {{name: tasks}}
rules:
  - {{apiGroups: ["", example.com], resources: ["*"], verbs: ["*"]}}
---
apiVersion: rbac.authorization.k8s.io/v1
kind: ClusterRoleBinding
metadata: {{name: tasks}}
roleRef: {{apiGroup: rbac.authorization.k8s.io, kind: ClusterRole, name: tasks}}
subjects:
  - {{kind: User, apiGroup: rbac.authorization.k8s.io, name: "{CONTROLLER}"}}
  - {{kind: User, apiGroup: rbac.authorization.k8s.io, name: alice}}
"""
"""A custom kind that the rules do not know, and the rights of its controller."""


@pytest.fixture(scope="module", autouse=True)
def _tasks(admission: Cluster) -> None:
    file = admission.platform.checkout / "definition.yaml"
    file.write_text(DEFINITION)
    admission.apply(file)
    admission.platform.shell(
        "kubectl wait --for=condition=established crd/tasks.example.com --timeout=600s"
    )


def pod(name: str, **spec: Any) -> Manifest:
    """Return a pod that violates no mandatory rule, with additional changes."""
    good = pod_spec()
    good["volumes"] = good["volumes"][:1]
    good["containers"][0]["volumeMounts"] = good["containers"][0]["volumeMounts"][:1]
    return {"apiVersion": "v1", "kind": "Pod", "metadata": {"name": name}, "spec": {**good, **spec}}


def violating_pod(name: str, **metadata: Any) -> Manifest:
    manifest = pod(name, hostPID=True)
    manifest["metadata"].update(metadata)
    return manifest


def reconcile(api: ApiServer) -> dict[str, str]:
    """Create the pod of every Task, as a controller would; return the denials by name."""
    denials = {}
    for task in api.get(TASKS)["items"]:
        name = task["metadata"]["name"]
        denials[name] = api.create(task["run"], SPACE, dry_run=False).denied
    return denials


@pytest.mark.slow
def test_custom_controller_cannot_create_any_bad_pod_in_the_fixtures(admission: Cluster) -> None:
    configuration = admission.install("deny")
    mandatory = {rule.name for rule, is_mandatory, _ in configuration.rules if is_mandatory}
    expected: dict[str, set[str]] = {}
    tasks = []
    for fixture, manifest in fixtures.objects(SPACE).values():
        # The controller copies only the specification, not the annotations.
        copied = {key: value for key, value in manifest.items() if key != "metadata"}
        rules = violated(copied, configuration) & mandatory
        rules -= CHANGED_BY_THE_API.get(fixture, set()) | PARTIAL
        if manifest["kind"] == "Pod" and rules:
            name = f"task-{len(tasks)}"
            expected[name] = rules
            metadata = {"name": name}
            tasks.append({"apiVersion": "example.com/v1", "kind": "Task", "metadata": metadata})
            tasks[-1]["run"] = {**manifest, "metadata": {**manifest["metadata"], "name": name}}
    file = admission.platform.checkout / "tasks.yaml"
    file.write_text(yaml.safe_dump_all(tasks))
    admission.apply(file)
    denials = reconcile(admission.api.as_user(CONTROLLER))
    assert admission.api.get(PODS)["items"] == []
    named = [name for name, text in denials.items() if any(r in text for r in expected[name])]
    assert len(named) > 50, "the API server rejected too many pods as invalid"
    admission.api.delete(TASKS)


def test_a_pod_without_violations_is_admitted(admission: Cluster) -> None:
    admission.install("deny")
    assert admission.api.create(pod("good"), SPACE, dry_run=False).status == 201
    admission.api.delete(PODS)


def test_kubernetes_controllers_cannot_create_bad_pods(admission: Cluster) -> None:
    admission.install("audit")
    labels = {"app": "old"}
    template = {"metadata": {"labels": labels}, "spec": violating_pod("old")["spec"]}
    spec = {"selector": {"matchLabels": labels}, "template": template}
    metadata = {"name": "old"}
    old = {"apiVersion": "apps/v1", "kind": "Deployment", "metadata": metadata, "spec": spec}
    assert admission.api.create(old, SPACE, dry_run=False).status == 201
    wait = "kubectl wait --for=create pods -l app=old --timeout=600s"
    admission.platform.shell(wait)
    admission.install("deny")
    assert (
        "no-host-namespaces"
        in admission.api.create({**old, "metadata": {"name": "new"}}, SPACE).denied
    )
    admission.platform.shell("kubectl delete pods -l app=old --timeout=600s")
    condition = "--for=condition=ReplicaFailure deployment/old --timeout=600s"
    admission.platform.shell(f"kubectl wait {condition}")
    assert admission.api.get(PODS)["items"] == []
    # A ReplicaSet that still exists would create a pod once the next test admits violations.
    admission.platform.shell("kubectl delete deployment old --cascade=foreground --timeout=600s")


def test_existing_bad_pod_can_be_labeled_and_deleted(admission: Cluster) -> None:
    admission.install("audit")
    admission.api.create(
        violating_pod("old", finalizers=["example.com/kept"]), SPACE, dry_run=False
    )
    admission.install("deny")
    relabeled = admission.api.patch(f"{PODS}/old", {"metadata": {"labels": {"a": "b"}}})
    assert relabeled.status == 200
    changed = {"spec": {"activeDeadlineSeconds": 60}}
    assert "no-host-namespaces" in admission.api.patch(f"{PODS}/old", changed).denied
    admission.api.delete(f"{PODS}/old")
    released = admission.api.patch(
        f"{PODS}/old", {"metadata": {"$deleteFromPrimitiveList/finalizers": ["example.com/kept"]}}
    )
    assert released.status == 200
    assert admission.api.get(PODS)["items"] == []


def test_added_ephemeral_container_is_checked(admission: Cluster) -> None:
    admission.install("deny")
    admission.api.create(pod("good"), SPACE, dry_run=False)
    debugger = {"name": "debugger", "image": "quay.io/busybox:1"}
    added = {"spec": {"ephemeralContainers": [debugger]}}
    answer = admission.api.patch(f"{PODS}/good/ephemeralcontainers", added)
    assert "quay.io/busybox:1" in answer.denied
    admission.api.delete(PODS)


def test_resized_pod_is_checked(admission: Cluster) -> None:
    admission.install("deny")
    good = pod("good")
    admission.api.create(good, SPACE, dry_run=False)
    (main,) = good["spec"]["containers"]
    allowed = {"name": main["name"], "resources": {"requests": {"cpu": "3"}}}
    resized = admission.api.patch(f"{PODS}/good/resize", {"spec": {"containers": [allowed]}})
    assert resized.status == 200, resized.body
    refused = {"name": main["name"], "resources": {"requests": {"cpu": "1m"}}}
    answer = admission.api.patch(f"{PODS}/good/resize", {"spec": {"containers": [refused]}})
    assert "gpu-cpu-requested: container" in answer.denied, answer.body
    admission.api.delete(PODS)


SYSTEM = {**SETTINGS, "no-host-namespaces": {"systemWorkloads": [f"{SPACE}/DaemonSet/agent"]}}
OWNER = {
    "apiVersion": "apps/v1",
    "kind": "DaemonSet",
    "name": "agent",
    "uid": "12345678-1234-1234-1234-123456789012",
    "controller": True,
}


def test_exempt_owner_only_exempts_pods_created_by_its_controller(admission: Cluster) -> None:
    admission.install("deny", SYSTEM)
    owned = violating_pod("agent-x7k2p", ownerReferences=[OWNER])
    controller = "system:serviceaccount:kube-system:daemon-set-controller"
    assert admission.api.as_user(controller).create(owned, SPACE).status == 201
    assert "no-host-namespaces" in admission.api.as_user("alice").create(owned, SPACE).denied
    assert (
        "no-host-namespaces"
        in admission.api.as_user("alice").create(violating_pod("agent"), SPACE).denied
    )


def test_pods_of_a_custom_resource_are_exempt_if_its_controller_is_trusted(
    admission: Cluster,
) -> None:
    exempt = {"systemWorkloads": [f"{SPACE}/Task.example.com/agent"]}
    settings = {**SETTINGS, "no-host-namespaces": exempt}
    owner = {**OWNER, "apiVersion": "example.com/v1", "kind": "Task"}
    owned = violating_pod("agent-x7k2p", ownerReferences=[owner])
    controller = admission.api.as_user(CONTROLLER)
    admission.install("deny", settings)
    assert "no-host-namespaces" in controller.create(owned, SPACE).denied
    admission.install("deny", settings, trusted=(CONTROLLER,))
    assert controller.create(owned, SPACE).status == 201
    assert "no-host-namespaces" in admission.api.as_user("alice").create(owned, SPACE).denied


@pytest.mark.parametrize(
    ("kind", "version", "name"),
    [("ReplicaSet", "apps/v1", "web-5d4f8c"), ("Job", "batch/v1", "web-29384756")],
)
def test_pods_of_exempt_deployments_and_cron_jobs_are_exempt(
    admission: Cluster, kind: str, version: str, name: str
) -> None:
    maker = {"ReplicaSet": "Deployment", "Job": "CronJob"}[kind]
    exempt = {"systemWorkloads": [f"{SPACE}/{maker}/web"]}
    admission.install("deny", {**SETTINGS, "no-host-namespaces": exempt})
    owner = {**OWNER, "apiVersion": version, "kind": kind, "name": name}
    owned = violating_pod(f"{name}-x7k2p", ownerReferences=[owner])
    assert admission.api.create(owned, SPACE).status == 201
    # Kinds in other API groups have the same name, such as Volcano's Job.
    owner["apiVersion"] = "example.com/v1"
    owned = violating_pod(f"{name}-x7k2p", ownerReferences=[owner])
    assert "no-host-namespaces" in admission.api.create(owned, SPACE).denied


def test_exemption_is_valid_until_the_end_of_its_expiry_date(admission: Cluster) -> None:
    last = datetime.now(UTC).date()
    exemption = {"workload": f"{SPACE}/Pod/old", "rule": "no-host-namespaces", "reason": "moves"}
    exemptions = {"workloads": [{**exemption, "expires": str(last)}]}
    admission.install("deny", {**SETTINGS, "exemptions": exemptions})
    assert admission.api.create(violating_pod("old"), SPACE).status == 201
    assert "no-host-namespaces" in admission.api.create(violating_pod("other"), SPACE).denied


def test_policies_do_not_apply_to_excluded_namespaces(admission: Cluster) -> None:
    admission.install("deny")
    assert admission.api.create(violating_pod("agent"), "kube-system").status == 201


def test_audit_mode_counts_violations_but_denies_nothing(admission: Cluster) -> None:
    admission.install("audit")
    counter = "apiserver_validating_admission_policy_check_total"
    labels = {"policy": "gpu-platform-pods", "enforcement_action": "audit"}
    before = admission.api.metric(counter, **labels)
    answer = admission.api.create(violating_pod("old"), SPACE)
    assert (answer.status, answer.warnings) == (201, ())
    assert admission.api.metric(counter, **labels) == before + 1


def test_large_pods_stay_within_the_cost_limits_of_cel(admission: Cluster) -> None:
    admission.install("deny")
    large = pod("large")
    (main,) = large["spec"]["containers"]
    main["env"] = [{"name": f"VARIABLE_{i}", "value": "x" * 100} for i in range(300)]
    volumes = [{"name": f"v{i}", "emptyDir": {}} for i in range(2000)]
    large["spec"]["volumes"] += volumes
    main["volumeMounts"] += [{"name": v["name"], "mountPath": f"/m/{v['name']}"} for v in volumes]
    sidecars = [
        {**main, "name": f"side-{i}", "volumeMounts": [], "resources": {}} for i in range(30)
    ]
    large["spec"]["containers"] += sidecars
    assert admission.api.create(large, SPACE).denied == ""
