"""Reports about slow nodes, and the objects that the controller writes."""

import json
from dataclasses import replace
from datetime import UTC, datetime
from typing import Any, cast

import httpx2
import pytest
from lightkube import AsyncClient
from lightkube.config.kubeconfig import KubeConfig
from lightkube.config.models import Cluster, User
from lightkube.resources.core_v1 import Node, Pod

from recorder.node_decisions import (
    CONDITION,
    MARK,
    UNCORDONED_ANNOTATION,
    Fault,
    node_state,
    to_annotation,
)
from recorder.node_health import Controller, SlowReports, xids_of
from tests.recorder.examples import document, ended
from tests.recorder.test_node_decisions import DEVICES, POLICY

BEGIN = datetime(2026, 11, 21, 21, tzinfo=UTC).timestamp()


def reporter(
    name: str, uid: str, *, slow: str = "gpu-node-0", run: str = "r1", at: float = 0
) -> Pod:
    message = f"preflight: slow node {slow}: 2.1 GB/s"
    finished = datetime.fromtimestamp(BEGIN + at, UTC).isoformat()
    state = ended(1, at=finished, message=f"slow node {slow}: 2.1 GB/s\n{message}")
    made = document(name, state)
    made["metadata"] |= {"uid": uid, "labels": {"gpu-platform.dev/run": run}}
    return cast(Pod, Pod.from_dict(made))


def test_pods_of_one_start_count_as_one_report() -> None:
    reports = SlowReports()
    for pod in (reporter("worker-0", "1"), reporter("worker-1", "2"), reporter("worker-0", "1")):
        reports.add(pod, BEGIN)
    assert reports.count(BEGIN) == {"gpu-node-0": 1}
    reports.add(reporter("worker-0", "3", at=10), BEGIN + 10)
    reports.add(reporter("worker-0", "4", run="r2", at=10), BEGIN + 10)
    assert reports.count(BEGIN + 20) == {"gpu-node-0": 3}
    assert reports.count(BEGIN + 24 * 3600 + 5) == {"gpu-node-0": 2}


def test_a_pod_that_is_listed_again_reports_at_the_time_of_its_end() -> None:
    reports, kept = SlowReports(), reporter("worker-0", "1")
    day = 24 * 3600
    for hours in (0, 12, 25):
        reports.add(kept, BEGIN + hours * 3600)
    assert reports.count(BEGIN + day - 1) == {"gpu-node-0": 1}
    assert reports.count(BEGIN + day + 1) == {}
    reports.add(kept, BEGIN + day + 1)
    assert reports.count(BEGIN + day + 1) == {}


def test_a_run_cannot_report_a_node_without_a_pod_of_it() -> None:
    reports = SlowReports()
    reports.add(reporter("worker-0", "1", slow="gpu-node-9"), BEGIN)
    assert reports.count(BEGIN) == {}


def test_errors_of_all_gpus_of_a_node_are_read() -> None:
    result = [
        {"metric": {"Hostname": "a", "gpu": "0"}, "value": [1, "79"]},
        {"metric": {"Hostname": "a", "gpu": "1"}, "value": [1, "0"]},
        {"metric": {"Hostname": "b", "gpu": "0"}, "value": [1, "31"]},
    ]
    assert xids_of({"data": {"result": result}}) == {"a": {79}, "b": {31}}


class Api:
    """An API server with one node, and what was written to it."""

    def __init__(self, offered: int = 8, **metadata: Any) -> None:
        self.node: dict[str, Any] = {
            "metadata": {"name": "gpu-node-0", "resourceVersion": "41", **metadata},
            "spec": {},
            "status": {
                "capacity": {"cpu": "8", "nvidia.com/gpu": "8"},
                "allocatable": {"cpu": "8", "nvidia.com/gpu": str(offered)},
                "conditions": [{"type": "Ready", "status": "True"}],
            },
        }
        self.pods = [document()]
        self.writes: list[tuple[str, str, Any]] = []
        self.refused = ""

    def controller(self) -> Controller:
        config = KubeConfig.from_one(
            cluster=Cluster(server="http://api"), user=User(token="token"), namespace="ml"
        )
        client = AsyncClient(config, transport=httpx2.MockTransport(self._answer))
        return Controller(client, replace(POLICY, fault_seconds=0), "ml")

    async def _answer(self, request: httpx2.Request) -> httpx2.Response:
        path = request.url.path
        if request.method == "GET" and path.endswith("/nodes"):
            return httpx2.Response(200, json={"metadata": {}, "items": [self.node]})
        if request.method == "GET":
            assert request.url.params["fieldSelector"] == "spec.nodeName=gpu-node-0"
            over = document("over") | {"status": {"phase": "Succeeded"}}
            return httpx2.Response(200, json={"metadata": {}, "items": [*self.pods, over]})
        body = json.loads(request.content)
        self.writes.append((request.method, path, body))
        if self.refused and path.endswith(self.refused):
            refusal = {"kind": "Status", "code": 409, "message": "changed"}
            return httpx2.Response(409, json=refusal)
        return httpx2.Response(200, json=self.node if "/nodes/" in path else body)


@pytest.mark.parametrize("resource", ["nvidia.com/gpu", "nvidia.com/gpu.shared"])
def test_shares_and_mig_devices_are_gpus_and_other_resources_are_not(resource: str) -> None:
    resources = {
        "cpu": "8",
        "nvidia.com/gpu": "2",
        "nvidia.com/gpu.shared": "1k",
        "nvidia.com/mig-1g.10gb": "7",
        "nvidia.com/rdma": "4",
    }
    document = {"metadata": {"name": "a"}, "status": {"capacity": resources}}
    state = node_state(Node.from_dict(document), resource, None)
    assert (state.gpus, state.offered, state.ready) == (1009, 0, False)


async def test_a_faulty_node_is_cordoned_with_condition_and_event() -> None:
    api = Api(offered=7)
    await api.controller().check(0)
    (_, _, patch), (_, status, condition), (_, events, event) = api.writes
    assert patch["spec"] == {"unschedulable": True}
    assert patch["metadata"]["resourceVersion"] == "41"
    assert json.loads(patch["metadata"]["annotations"][MARK])["gpus"] == 8
    assert status == "/api/v1/nodes/gpu-node-0/status"
    [written_condition] = condition["status"]["conditions"]
    assert (written_condition["type"], written_condition["status"]) == (CONDITION, "True")
    assert written_condition["reason"] == "DevicesUnhealthy"
    assert written_condition["message"] == "the device plugin offers 7 of 8 GPUs"
    assert events == "/api/v1/namespaces/default/events"
    assert event["involvedObject"]["name"] == "gpu-node-0"


async def test_a_node_that_changed_meanwhile_is_not_touched_further() -> None:
    api = Api(offered=7)
    api.refused = "/nodes/gpu-node-0"
    await api.controller().check(0)
    assert len(api.writes) == 1


async def test_running_pods_of_runs_are_evicted_from_a_faulty_node() -> None:
    api = Api(offered=7, annotations={MARK: to_annotation(DEVICES)})
    api.node["spec"]["unschedulable"] = True
    api.node["status"]["conditions"].append({"type": CONDITION, "status": "True"})
    await api.controller().check(0)
    [(method, path, body)] = api.writes
    assert (method, path) == ("POST", "/api/v1/namespaces/ml/pods/worker-0/eviction")
    assert body["kind"] == "Eviction"


async def test_only_pods_of_runs_that_reported_a_slow_node_are_evicted_from_it() -> None:
    api = Api(annotations={MARK: to_annotation(Fault("SlowInGangs", "", 8))})
    api.node["spec"]["unschedulable"] = True
    api.node["status"]["conditions"].append({"type": CONDITION, "status": "True"})
    api.pods = [document("worker-0"), document("worker-1")]
    api.pods[1]["metadata"]["labels"] = {"gpu-platform.dev/run": "r1"}
    controller = api.controller()
    assert controller.reports.add(reporter("worker-0", "1"), BEGIN)
    assert not controller.reports.add(reporter("worker-0", "1"), BEGIN)
    await controller.check(BEGIN)
    assert [path.split("/")[-2] for _, path, _ in api.writes] == ["worker-1"]


async def test_a_refused_eviction_does_not_keep_the_other_pods() -> None:
    api = Api(offered=7, annotations={MARK: to_annotation(DEVICES)})
    api.node["spec"]["unschedulable"] = True
    api.node["status"]["conditions"].append({"type": CONDITION, "status": "True"})
    api.pods = [document("worker-0"), document("worker-1")]
    api.refused = "worker-0/eviction"
    await api.controller().check(0)
    pods = [path.split("/")[-2] for _, path, _ in api.writes]
    assert pods == ["worker-0", "worker-1"]


async def test_reports_before_an_uncordon_do_not_count_also_after_a_restart() -> None:
    api = Api(annotations={MARK: to_annotation(Fault("SlowInGangs", "", 8))})
    await api.controller().check(BEGIN + 20)
    annotations = api.writes[0][2]["metadata"]["annotations"]
    assert "spec" not in api.writes[0][2]
    assert annotations.pop(MARK) is None

    restarted = Api(annotations=annotations)
    controller = restarted.controller()
    for uid in "123":
        controller.reports.add(reporter("worker-0", uid, at=int(uid)), BEGIN + 30)
    for now in (30, 45):
        await controller.check(BEGIN + now)
    assert restarted.writes == []
    for uid in "456":
        controller.reports.add(reporter("worker-0", uid, at=50 + int(uid)), BEGIN + 60)
    await controller.check(BEGIN + 60)
    assert "SlowInGangs" in restarted.writes[0][2]["metadata"]["annotations"][MARK]


async def test_a_healthy_node_returns_without_its_mark() -> None:
    api = Api(annotations={MARK: to_annotation(DEVICES)})
    api.node["spec"]["unschedulable"] = True
    api.node["status"]["conditions"].append({"type": CONDITION, "status": "True"})
    controller = api.controller()
    await controller.check(0)
    assert api.writes == []
    await controller.check(POLICY.settle_seconds)
    assert api.writes[0][2]["spec"] == {"unschedulable": False}
    annotations = api.writes[0][2]["metadata"]["annotations"]
    assert annotations == {MARK: None, UNCORDONED_ANNOTATION: "1970-01-01T00:02:00+00:00"}
    assert api.writes[1][2]["status"]["conditions"][0]["status"] == "False"
