"""Multi-node replicas: LeaderWorkerSets whose leaders handle the requests."""

import json
from pathlib import Path
from typing import Any

import pytest

from infra.inference_service import build, build_canary, routes
from infra.kinds.gang import LAUNCHER_LABEL
from infra.manifests import Manifest
from infra.observability.alerts import server_groups
from infra.pods import exclusive_node_affinity
from infra.serving.rollback import rollback_objects
from infra.serving.traffic import stable_backends
from infra.settings import validate
from infra.settings.amounts import services_total, update_surge
from infra.settings.tenancy import TenancySettings
from infra.tenancy import network_policies
from kube.names import WORKLOAD_LABEL
from policies.catalogue import RULES
from tests.infra.examples import changed, good, problems
from tests.infra.observability.promtool import check, expression_test, promtool
from tests.infra.serving.examples import (
    GATEWAY,
    canary_objects,
    environment,
    objects,
    service_problems,
    serving,
)
from tests.infra.serving.test_runtimes import LLM
from tests.policies.harness import evaluate_rule

GROUP = {**LLM, "server": {"nnodes": 3}}


def templates(workload: Manifest) -> tuple[Manifest, Manifest]:
    group = workload["spec"]["leaderWorkerTemplate"]
    return group["leaderTemplate"], group["workerTemplate"]


def containers(workload: Manifest) -> list[Manifest]:
    return [template["spec"]["containers"][0] for template in templates(workload)]


def test_multi_node_replica_is_a_group_with_one_pod_per_node() -> None:
    found = objects(serving(**GROUP, replicas=2))
    assert "Deployment" not in found
    workload = found["LeaderWorkerSet"]
    assert workload["apiVersion"] == "leaderworkerset.x-k8s.io/v1"
    assert workload["spec"]["replicas"] == 2
    assert workload["spec"]["leaderWorkerTemplate"]["size"] == 3
    # The controller must not adopt the Service that receives the requests.
    assert workload["spec"]["networkConfig"] == {"subdomainPolicy": "UniquePerReplica"}
    for each in containers(workload):
        assert each["resources"]["limits"]["nvidia.com/gpu"] == "2"
        assert {
            "--tensor-parallel-size=2",
            "--pipeline-parallel-size=3",
            "--nnodes=3",
            "--node-rank=$(LWS_WORKER_INDEX)",
            "--master-addr=$(LWS_LEADER_ADDRESS)",
        } <= set(each["command"])
        address = environment(each)["VLLM_HOST_IP"]
        assert address == {"fieldRef": {"fieldPath": "status.podIP"}}


def test_pods_of_a_group_cannot_share_a_node_with_a_whole_node_job() -> None:
    (term,) = exclusive_node_affinity(WORKLOAD_LABEL, LAUNCHER_LABEL)["podAntiAffinity"][
        "requiredDuringSchedulingIgnoredDuringExecution"
    ]
    exists_expression, not_in_expression = term["labelSelector"]["matchExpressions"]
    assert (exists_expression["operator"], not_in_expression["operator"]) == ("Exists", "NotIn")
    for template in templates(objects(serving(**GROUP))["LeaderWorkerSet"]):
        labels = template["metadata"]["labels"]
        assert exists_expression["key"] in labels
        assert labels[not_in_expression["key"]] not in not_in_expression["values"]


def test_only_leaders_receive_requests_probes_and_scrapes() -> None:
    found = objects(serving(**GROUP))
    leader, worker = templates(found["LeaderWorkerSet"])
    leader_container, worker_container = containers(found["LeaderWorkerSet"])
    assert worker_container["command"] == [*leader_container["command"], "--headless"]
    assert "readinessProbe" in leader_container
    assert (
        not {"ports", "startupProbe", "livenessProbe", "readinessProbe"} & worker_container.keys()
    )
    assert worker["metadata"]["annotations"] == {"prometheus.io/scrape": "false"}
    selector = found["Service"]["spec"]["selector"].items()
    assert selector <= leader["metadata"]["labels"].items()
    assert not selector <= worker["metadata"]["labels"].items()
    budget = found["PodDisruptionBudget"]["spec"]["selector"]["matchLabels"].items()
    assert budget <= leader["metadata"]["labels"].items()
    assert budget <= worker["metadata"]["labels"].items()


@pytest.mark.parametrize(
    ("rollout", "limits"),
    [
        ({}, {"maxUnavailable": 0, "maxSurge": 1}),
        ({"surge": 0}, {"maxUnavailable": 1, "maxSurge": 0}),
        ({"recreate": True}, {"maxUnavailable": "100%", "maxSurge": 0}),
    ],
)
def test_rollout_settings_apply_to_whole_groups(
    rollout: dict[str, Any], limits: dict[str, Any]
) -> None:
    spec = objects(serving(**GROUP, rollout=rollout))["LeaderWorkerSet"]["spec"]
    assert spec["rolloutStrategy"]["rollingUpdateConfiguration"] == limits


def test_autoscalers_change_the_number_of_groups() -> None:
    keda = {"prometheus": "http://prometheus:9090"}
    scaling = {"max": 4, "requests_in_flight": 2}
    target = {"apiVersion": "leaderworkerset.x-k8s.io/v1", "kind": "LeaderWorkerSet"}
    found = objects(serving(**GROUP, autoscaling=scaling))["HorizontalPodAutoscaler"]
    assert found["spec"]["scaleTargetRef"] == {**target, "name": "digits"}
    found = objects(serving(**GROUP, autoscaling={**scaling, "keda": keda}))["ScaledObject"]
    assert found["spec"]["scaleTargetRef"] == {**target, "name": "digits"}
    assert 'pod=~"digits-[0-9]+"' in found["spec"]["triggers"][0]["metadata"]["query"]


def test_route_waits_for_canary_groups_and_can_roll_them_back() -> None:
    rollback = {"prometheus": "http://prometheus:9090", "image": "inference"}
    canary = {"weight": 20, "server": {"max_num_seqs": 8}, "rollback": rollback}
    args = serving(**GROUP, route=GATEWAY, canary=canary)
    workload = canary_objects(args)["LeaderWorkerSet"]
    assert workload["metadata"]["annotations"]["pulumi.com/waitFor"] == "condition=Available"
    found = {each["kind"]: each for each in rollback_objects(args, stable_backends(args))}
    assert {
        "apiGroups": ["leaderworkerset.x-k8s.io"],
        "resources": ["leaderworkersets"],
        "resourceNames": ["digits-canary"],
        "verbs": ["get"],
    } in found["Role"]["rules"]
    (program,) = found["Deployment"]["spec"]["template"]["spec"]["containers"]
    assert json.loads(program["command"][-1])["workload"] == "LeaderWorkerSet"
    (route,) = routes(args)
    changed_canary = {**canary, "server": {"max_num_seqs": 9}}
    (changed_route,) = routes(serving(**GROUP, route=GATEWAY, canary=changed_canary))
    name = "gpu-platform.dev/canary"
    assert route["metadata"]["annotations"][name] != changed_route["metadata"]["annotations"][name]


def test_readiness_of_a_service_depends_only_on_leaders(tmp_path: Path) -> None:
    settings = serving(**GROUP).service
    (group,) = server_groups({"chat": settings.runtime_of({})}, 15)
    (ready,) = [rule["expr"] for rule in group["rules"] if rule["record"] == "inference_ready"]
    series = {}
    for pod, is_ready in (("chat-0", 0), ("chat-0-1", 1)):
        labels = f'namespace="ml", pod="{pod}"'
        series |= {
            f'kube_pod_labels{{{labels}, label_gpu_platform_dev_service="chat"}}': "1x8",
            f'kube_pod_status_ready{{{labels}, condition="true"}}': f"{is_ready}x8",
            f'kube_pod_status_phase{{{labels}, phase="Running"}}': "1x8",
        }
    leader = {"labels": '{namespace="ml", pod="chat-0", service="chat"}', "value": 0}
    assert check(promtool(), tmp_path, expression_test(series, 2, ready, leader)) == ""


def test_every_pod_of_a_group_counts_towards_quotas_and_claims() -> None:
    service = good()["inference"]["services"]["digits"] | GROUP | {"replicas": 2}
    service_settings = {name: value for name, value in service.items() if value is not None}
    settings = validate(changed("inference.services.digits", service_settings))
    inference, gpu = settings.inference, settings.gpu
    assert update_surge(inference, gpu)[gpu.resource] == 6
    other_gpus = sum(each.gpus for key, each in inference.services.items() if key != "digits")
    total = services_total(inference, settings.training, gpu, settings.logs)
    assert total[gpu.resource] - other_gpus == 12
    assert inference.has_groups
    read_write_once = changed("storage.claims.checkpoints.access_modes", ["ReadWriteOnce"])
    read_write_once["inference"]["services"]["digits"] = service_settings | {"replicas": 1}
    assert "but up to 3 pods mount it" in "\n".join(problems(read_write_once))


@pytest.mark.parametrize(
    ("key", "collides"),
    [("digits-0", True), ("digits-canary-12", True), ("digits-a", False), ("other-0", False)],
)
def test_service_cannot_have_the_name_of_another_services_replica(key: str, collides: bool) -> None:
    service = good()["inference"]["services"]["digits"]
    group = {name: value for name, value in {**service, **GROUP}.items() if value is not None}
    values = changed("inference.services.digits", group)
    values["inference"]["services"][key] = service
    found = "\n".join(problems(values))
    assert ("rename one of the services" in found) is collides
    assert collides or found == ""


def test_isolated_pods_of_a_group_can_reach_each_other() -> None:
    tenancy = TenancySettings.model_validate({"namespace": "ml"})
    leader, _ = templates(objects(serving(**GROUP))["LeaderWorkerSet"])

    def named(groups: bool) -> dict[str, Any]:
        built = network_policies(tenancy, (8080,), inference_groups=groups)
        return {each["metadata"]["name"]: each["spec"] for each in built}

    spec = named(groups=True)["allow-inference-groups"]
    pods = spec["podSelector"]
    assert pods["matchLabels"].items() <= leader["metadata"]["labels"].items()
    assert pods["matchExpressions"][0]["key"] in leader["metadata"]["labels"]
    assert spec["ingress"] == [{"from": [{"podSelector": pods}]}]
    assert spec["egress"] == [{"to": [{"podSelector": pods}]}]
    assert "allow-inference-groups" not in named(groups=False)


def violated(server: dict[str, Any]) -> set[str]:
    canary = {"weight": 20, "server": {"max_num_seqs": 8}}
    args = serving(**{**LLM, "server": server}, route=GATEWAY, canary=canary)
    stack = [*build(args), *build_canary(args)]
    return {rule.name for rule in RULES if evaluate_rule(rule.name, *stack)}


def test_policies_treat_a_group_like_a_single_pod() -> None:
    assert violated({"nnodes": 3}) == violated({})


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"gpus": 0}, "set gpus to at least 1"),
        ({"server": {"nnodes": 2, "data_parallel_size": 2}}, "data_parallel_size to 1, and raise"),
        ({"server": {"nnodes": 2, "tensor_parallel_size": 1}}, "but 2 pods have 4"),
        ({"server": {"nnodes": 2, "node_rank": 1}}, "server.node_rank, which the stack determines"),
        ({"server": {"nnodes": 2, "headless": True}}, "server.headless, which the stack"),
    ],
)
def test_sizes_that_do_not_fit_the_group_are_rejected(change: dict[str, Any], message: str) -> None:
    assert message in service_problems({**GROUP, **change})


def test_long_min_ready_seconds_are_accepted_for_groups() -> None:
    service = good()["inference"]["services"]["digits"] | GROUP | {"min_ready_seconds": 900}
    service_settings = {name: value for name, value in service.items() if value is not None}
    assert problems(changed("inference.services.digits", service_settings)) == []
