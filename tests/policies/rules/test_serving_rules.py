"""Rules for model servers: effective probes, disruption budgets, spread, updates and routes."""

from typing import Any

import pytest

from policies.catalogue import RULES_BY_NAME
from tests.policies import manifests
from tests.policies.harness import REMOVED, Manifest, changed, evaluate_rule

POD = "spec/template/spec"
MAIN = f"{POD}/containers/0"


def server(*edits: tuple[str, Any]) -> Manifest:
    return changed(manifests.deployment(), *edits)


@pytest.mark.parametrize(
    "command",
    [
        ["true"],
        ["/bin/true"],
        ["sh", "-c", "true"],
        ["/bin/sh", "-c", "exit 0"],
        ["bash", "-ec", "curl localhost:8080/health || true"],
        ["echo", "ok"],
    ],
)
def test_probes_that_cannot_fail_are_rejected(command: list[str]) -> None:
    edit = (f"{MAIN}/livenessProbe", {"exec": {"command": command}})
    (message,) = evaluate_rule("inference-probes", server(edit))
    assert "livenessProbe.exec.command" in message


@pytest.mark.parametrize(
    "command",
    [["/app/health"], ["sh", "-c", "curl -f localhost:8080/health"], ["test", "-f", "/tmp/ready"]],
)
def test_probes_with_a_command_that_can_fail_pass(command: list[str]) -> None:
    edit = (f"{MAIN}/livenessProbe", {"exec": {"command": command}})
    assert evaluate_rule("inference-probes", server(edit)) == []


@pytest.mark.parametrize(
    ("names", "reported"),
    [(["metrics"], 0), (["http-envoy-prom"], 0), (["prompts"], 3), (["metrics", "http"], 3)],
)
def test_only_containers_that_receive_requests_need_probes(names: list[str], reported: int) -> None:
    ports = [{"name": name, "containerPort": port} for port, name in enumerate(names, 9000)]
    sidecar = {**manifests.container("side", None), "ports": ports}
    edits = (f"{POD}/containers/1", sidecar)
    assert len(evaluate_rule("inference-probes", server(edits))) == reported


def group(leader: str, worker: str) -> Manifest:
    """Return a LeaderWorkerSet without one field of the leader's and worker's container."""

    def pod(removed: str) -> Manifest:
        edit = (f"{MAIN}/{removed}", REMOVED)
        found: Manifest = server(*([edit] if removed else []))["spec"]["template"]
        return found

    leaders = {"leaderTemplate": pod(leader)} if leader != "none" else {}
    return {
        "apiVersion": "leaderworkerset.x-k8s.io/v1",
        "kind": "LeaderWorkerSet",
        "metadata": manifests.metadata(
            "model", labels={"app.kubernetes.io/component": "inference"}
        ),
        "spec": {"leaderWorkerTemplate": {"size": 2, **leaders, "workerTemplate": pod(worker)}},
    }


def test_only_the_leader_of_a_leader_worker_set_needs_probes() -> None:
    assert evaluate_rule("inference-probes", group("", "readinessProbe")) == []
    (message,) = evaluate_rule("inference-probes", group("readinessProbe", ""))
    assert "leaderTemplate" in message
    (message,) = evaluate_rule("inference-probes", group("none", "readinessProbe"))
    assert "workerTemplate" in message


def test_workers_need_probes_if_their_leader_does_not_serve() -> None:
    leader_worker_set = group("", "readinessProbe")
    leader = leader_worker_set["spec"]["leaderWorkerTemplate"]["leaderTemplate"]
    leader["metadata"] = {"labels": {"app.kubernetes.io/component": "training"}}
    (message,) = evaluate_rule("inference-probes", leader_worker_set)
    assert "workerTemplate" in message


@pytest.mark.parametrize("rule", ["inference-spread", "inference-disruption-budget"])
@pytest.mark.parametrize("leader", ["", "none"], ids=["leader", "only workers"])
def test_availability_rules_count_groups_of_pods_as_replicas(rule: str, leader: str) -> None:
    single = group(leader, "")
    for template in single["spec"]["leaderWorkerTemplate"].values():
        if isinstance(template, dict):
            template["spec"].pop("topologySpreadConstraints")
    assert evaluate_rule(rule, single) == []
    assert evaluate_rule(rule, changed(single, ("spec/replicas", 2)))


@pytest.mark.parametrize(
    ("api", "kind", "spec", "labels"),
    [
        (
            "serving.kserve.io/v1beta1",
            "InferenceService",
            {"predictor": {"minReplicas": 2, "model": {"modelFormat": {"name": "triton"}}}},
            {"serving.kserve.io/inferenceservice": "model", "component": "predictor"},
        ),
        (
            "serving.kserve.io/v1alpha1",
            "LLMInferenceService",
            {"replicas": 2, "template": {"containers": [{"name": "main"}]}},
            {"app.kubernetes.io/name": "model", "app.kubernetes.io/part-of": "llminferenceservice"},
        ),
        (
            "leaderworkerset.x-k8s.io/v1",
            "LeaderWorkerSet",
            {**group("", "")["spec"], "replicas": 2},
            {"leaderworkerset.sigs.k8s.io/name": "model"},
        ),
    ],
)
def test_disruption_budget_may_select_labels_that_the_controller_adds(
    api: str, kind: str, spec: Manifest, labels: Manifest
) -> None:
    metadata = manifests.metadata("model", labels={"app.kubernetes.io/component": "inference"})
    service = {"apiVersion": api, "kind": kind, "metadata": metadata, "spec": spec}

    def violations(selected: Manifest) -> list[str]:
        selector = {"matchLabels": selected}
        disruption_budget = budget(maxUnavailable=1, selector=selector)
        return evaluate_rule("inference-disruption-budget", service, disruption_budget)

    assert violations(labels) == []
    assert violations(dict.fromkeys(labels, "other"))


@pytest.mark.parametrize("rule", ["inference-spread", "inference-disruption-budget"])
def test_availability_rules_ignore_pods_that_do_not_serve(rule: str) -> None:
    head = {"template": {"spec": {"containers": [{"name": "head"}]}}}
    workers = {"replicas": 1, "template": server()["spec"]["template"]}
    workers["template"]["spec"].pop("topologySpreadConstraints")
    cluster = {"headGroupSpec": head, "workerGroupSpecs": [workers]}
    service = {
        "apiVersion": "ray.io/v1",
        "kind": "RayService",
        "metadata": manifests.metadata("model"),
        "spec": {"rayClusterConfig": cluster},
    }
    assert evaluate_rule(rule, service) == []
    workers["replicas"] = 2
    assert evaluate_rule(rule, service)


def predictor(annotations: dict[str, str]) -> Manifest:
    container = {
        "name": "kserve-container",
        "ports": [{"containerPort": 8080}],
        "readinessProbe": {"httpGet": {"path": "/ready", "port": 8080}},
    }
    labels = {"app.kubernetes.io/component": "inference"}
    return {
        "apiVersion": "serving.kserve.io/v1beta1",
        "kind": "InferenceService",
        "metadata": manifests.metadata("model", labels=labels, annotations=annotations),
        "spec": {"predictor": {"containers": [container]}},
    }


def test_knative_needs_only_a_readiness_probe() -> None:
    assert evaluate_rule("inference-probes", predictor({})) == []
    raw = predictor({"serving.kserve.io/deploymentMode": "RawDeployment"})
    assert len(evaluate_rule("inference-probes", raw)) == 2


def budget(**spec: Any) -> Manifest:
    return changed(manifests.disruption_budget(), ("spec", spec))


SELECTOR = {"matchLabels": {"app": "digits"}}


@pytest.mark.parametrize(
    "spec",
    [
        {"minAvailable": 0, "selector": SELECTOR},
        {"minAvailable": "0%", "selector": SELECTOR},
        {"maxUnavailable": "100%", "selector": SELECTOR},
        {"maxUnavailable": 2, "selector": SELECTOR},
        {"selector": SELECTOR},
        {"maxUnavailable": 1},
        {
            "maxUnavailable": 1,
            "selector": {
                "matchExpressions": [{"key": "app", "operator": "NotIn", "values": ["digits"]}]
            },
        },
    ],
)
def test_budgets_that_do_not_protect_a_replica_are_rejected(spec: dict[str, Any]) -> None:
    assert evaluate_rule("inference-disruption-budget", server(), budget(**spec))


@pytest.mark.parametrize(
    "spec",
    [
        {"minAvailable": 1, "selector": SELECTOR},
        {"maxUnavailable": "50%", "selector": SELECTOR},
        {"maxUnavailable": 1, "selector": {}},
        {
            "maxUnavailable": 1,
            "selector": {"matchExpressions": [{"key": "app", "operator": "Exists"}]},
        },
    ],
)
def test_budgets_that_keep_a_replica_pass(spec: dict[str, Any]) -> None:
    assert evaluate_rule("inference-disruption-budget", server(), budget(**spec)) == []


@pytest.mark.parametrize(("minimum", "violations"), [(1, 0), (2, 1), (3, 1), (4, 0)])
def test_budget_must_keep_a_pod_at_the_minimum_size_of_an_autoscaler(
    minimum: int, violations: int
) -> None:
    scaled = server(("spec/replicas", REMOVED))
    scaler = changed(manifests.autoscaler(), ("spec/minReplicas", minimum))
    disruption_budget = budget(maxUnavailable=3, selector=SELECTOR)
    assert (
        len(evaluate_rule("inference-disruption-budget", scaled, scaler, disruption_budget))
        == violations
    )


CONSTRAINT = f"{POD}/topologySpreadConstraints/0"


@pytest.mark.parametrize(
    "edit",
    [
        (f"{CONSTRAINT}/topologyKey", "kubernetes.io/os"),
        (f"{CONSTRAINT}/maxSkew", 2),
        (f"{CONSTRAINT}/labelSelector", REMOVED),
        (f"{CONSTRAINT}/labelSelector/matchLabels/app", "other"),
    ],
)
def test_constraints_that_do_not_spread_replicas_are_rejected(edit: tuple[str, Any]) -> None:
    assert evaluate_rule("inference-spread", server(edit))


def affinity(key: str) -> dict[str, Any]:
    term = {"topologyKey": key, "labelSelector": SELECTOR}
    return {
        "podAntiAffinity": {
            "preferredDuringSchedulingIgnoredDuringExecution": [
                {"weight": 100, "podAffinityTerm": term}
            ]
        }
    }


@pytest.mark.parametrize(
    ("key", "accepted"), [("kubernetes.io/hostname", True), ("kubernetes.io/arch", False)]
)
def test_anti_affinity_must_spread_replicas_over_nodes(key: str, accepted: bool) -> None:
    edits = (
        (f"{POD}/topologySpreadConstraints", REMOVED),
        (f"{POD}/affinity", affinity(key)),
    )
    assert (evaluate_rule("inference-spread", server(*edits)) == []) is accepted


@pytest.mark.parametrize(
    ("handler", "seconds"),
    [
        ({"exec": {"command": ["sleep", "40"]}}, "40"),
        ({"exec": {"command": ["/bin/sh", "-c", "sleep 10; drain; sleep 1m"]}}, "70"),
        ({"sleep": {"seconds": 35}}, "35"),
        ({"exec": {"command": ["python3", "-c", "import time; time.sleep(45)"]}}, "45"),
    ],
)
def test_sleep_of_a_pre_stop_command_counts_towards_the_grace_period(
    handler: dict[str, Any], seconds: str
) -> None:
    (message,) = evaluate_rule(
        "inference-grace-period", server((f"{MAIN}/lifecycle/preStop", handler))
    )
    assert f"more than {seconds} seconds" in message


def test_sleep_of_a_sidecar_counts_towards_the_grace_period() -> None:
    lifecycle = {"preStop": {"sleep": {"seconds": 35}}}
    proxy = {**manifests.container("proxy", gpus=None), "lifecycle": lifecycle}
    path = f"{POD}/initContainers"
    assert evaluate_rule("inference-grace-period", server((path, [proxy]))) == []
    sidecar = {**proxy, "restartPolicy": "Always"}
    (message,) = evaluate_rule("inference-grace-period", server((path, [sidecar])))
    assert "because proxy needs this time" in message


def controlled(version: str, kind: str, **spec: Any) -> Manifest:
    whole = server(("spec/replicas", 4))
    return {**whole, "apiVersion": version, "kind": kind, "spec": {**whole["spec"], **spec}}


def updated(**limits: int) -> dict[str, Any]:
    return {"type": "RollingUpdate", "rollingUpdate": limits}


@pytest.mark.parametrize(
    "manifest",
    [
        controlled(
            "apps/v1", "StatefulSet", updateStrategy={"rollingUpdate": {"maxUnavailable": 3}}
        ),
        controlled("argoproj.io/v1alpha1", "Rollout", strategy={"canary": {}}),
        controlled("apps/v1", "Deployment", strategy=updated(maxSurge=1, maxUnavailable=1)),
        controlled("apps/v1", "Deployment", strategy=updated(maxSurge=0, maxUnavailable=2)),
        controlled(
            "leaderworkerset.x-k8s.io/v1",
            "LeaderWorkerSet",
            rolloutStrategy={"rollingUpdateConfiguration": {"maxUnavailable": 2}},
        ),
    ],
    ids=lambda manifest: manifest["kind"],
)
def test_updates_that_remove_replicas_are_rejected_for_every_kind(manifest: Manifest) -> None:
    assert evaluate_rule("inference-rolling-update", manifest)


@pytest.mark.parametrize(
    "manifest",
    [
        controlled("apps/v1", "StatefulSet"),
        # The default of maxSurge is 0, so the webhook rejects 0 for maxUnavailable.
        controlled("leaderworkerset.x-k8s.io/v1", "LeaderWorkerSet"),
        controlled("argoproj.io/v1alpha1", "Rollout", strategy={"blueGreen": {}}),
        controlled("argoproj.io/v1alpha1", "Rollout", strategy={"canary": {"maxUnavailable": 0}}),
        # Without spare GPUs, one pod must terminate before its successor starts.
        controlled("apps/v1", "Deployment", strategy=updated(maxSurge=0, maxUnavailable=1)),
    ],
)
def test_updates_that_keep_replicas_pass(manifest: Manifest) -> None:
    assert evaluate_rule("inference-rolling-update", manifest) == []


@pytest.mark.parametrize("leader", ["", "none"])
@pytest.mark.parametrize(("replicas", "rejected"), [(2, False), (4, True)])
def test_percentages_of_a_leader_worker_set_refer_to_groups(
    leader: str, replicas: int, rejected: bool
) -> None:
    limits = {"maxUnavailable": "50%", "maxSurge": 0}
    strategy = {"rollingUpdateConfiguration": limits}
    leader_worker_set = group(leader, "")
    leader_worker_set["spec"] |= {"replicas": replicas, "rolloutStrategy": strategy}
    assert bool(evaluate_rule("inference-rolling-update", leader_worker_set)) is rejected


@pytest.mark.parametrize("kind", ["TLSRoute", "TCPRoute", "UDPRoute"])
def test_routes_of_every_kind_must_refer_to_a_declared_service(kind: str) -> None:
    route = {**manifests.http_route(), "kind": kind}
    route["apiVersion"] = "gateway.networking.k8s.io/v1alpha2"
    assert evaluate_rule("route-backends-declared", route)
    assert evaluate_rule("route-backends-declared", route, manifests.service()) == []


def test_target_of_which_an_autoscaler_scales_a_part_may_set_replicas() -> None:
    service = controlled("orchestration.aibrix.ai/v1alpha1", "StormService")
    scaler = changed(
        manifests.autoscaler(),
        ("apiVersion", "autoscaling.aibrix.ai/v1alpha1"),
        ("kind", "PodAutoscaler"),
        ("spec/scaleTargetRef", {"kind": "StormService", "name": service["metadata"]["name"]}),
    )
    assert evaluate_rule("autoscaled-without-replicas", service, scaler)
    of_role = changed(scaler, ("spec/subTargetSelector", {"roleName": "decode"}))
    assert evaluate_rule("autoscaled-without-replicas", service, of_role) == []


@pytest.mark.parametrize(("role", "gpus"), [("decode", 11), ("prefill", 12), ("other", 3)])
def test_budget_counts_only_the_part_that_an_autoscaler_scales(role: str, gpus: int) -> None:
    pod = {"containers": [{"name": "a", "resources": {"limits": {"nvidia.com/gpu": 1}}}]}
    service = controlled("orchestration.aibrix.ai/v1alpha1", "StormService")
    roles = [
        {"name": name, "replicas": number, "template": {"spec": pod}}
        for name, number in (("prefill", 1), ("decode", 2))
    ]
    service["spec"] = {"replicas": 1, "template": {"spec": {"roles": roles}}}
    scaler = changed(
        manifests.autoscaler(),
        ("apiVersion", "autoscaling.aibrix.ai/v1alpha1"),
        ("kind", "PodAutoscaler"),
        ("spec/scaleTargetRef", {"kind": "StormService", "name": service["metadata"]["name"]}),
        ("spec/subTargetSelector", {"roleName": role}),
        ("spec/maxReplicas", 10),
    )
    (message,) = evaluate_rule("gpu-budget", service, scaler, config={"maxGpus": 1})
    assert f"found {gpus} GPUs" in str(message)


def test_autoscaled_workloads_of_any_api_group_must_not_set_replicas() -> None:
    rollout = controlled("argoproj.io/v1alpha1", "Rollout")
    scaler = manifests.autoscaler()
    scaler["spec"]["scaleTargetRef"] = {"kind": "Rollout", "name": rollout["metadata"]["name"]}
    assert evaluate_rule("autoscaled-without-replicas", rollout, scaler)


def test_route_may_use_services_listed_in_the_configuration() -> None:
    route = changed(manifests.http_route(), ("spec/rules/0/backendRefs/0/name", "of-another-stack"))
    assert evaluate_rule("route-backends-declared", route)
    config = {"existingServices": ["training/of-another-stack"]}
    assert not evaluate_rule("route-backends-declared", route, config=config)


def test_an_ingress_is_evaluated_like_a_route() -> None:
    backend = {"service": {"name": "nowhere", "port": {"name": "http"}}}
    ingress = {
        "apiVersion": "networking.k8s.io/v1",
        "kind": "Ingress",
        "metadata": manifests.metadata("server"),
        "spec": {"rules": [{"http": {"paths": [{"path": "/", "backend": backend}]}}]},
    }
    (message,) = evaluate_rule("route-backends-declared", ingress, manifests.service())
    assert 'service.name: found "nowhere"' in str(message)


def test_route_backends_in_other_namespaces_or_of_other_kinds_are_not_evaluated() -> None:
    route = manifests.http_route()
    route["spec"]["rules"][0]["backendRefs"] = [
        {"name": "nowhere", "namespace": "route"},
        {"name": "nowhere", "kind": "InferencePool", "group": "inference.networking.k8s.io"},
    ]
    assert not evaluate_rule("route-backends-declared", route)


def test_default_max_unavailable_is_rounded_down_to_zero_for_few_replicas() -> None:
    assert not evaluate_rule("inference-rolling-update", manifests.deployment())


def test_remediation_of_rolling_updates_does_not_contradict_the_message() -> None:
    # Without a surge, the API server rejects maxUnavailable 0.
    update = {"rollingUpdate": {"maxSurge": 0, "maxUnavailable": 2}}
    server = changed(manifests.deployment(), ("spec/strategy", update))
    (message,) = evaluate_rule("inference-rolling-update", server)
    assert "maxUnavailable: found 2; write 1" in message
    assert "maxUnavailable 0" not in RULES_BY_NAME["inference-rolling-update"].remediation


def test_default_grace_period_is_sufficient_without_known_drain_times() -> None:
    assert not evaluate_rule("inference-grace-period", manifests.deployment())
