"""Slow node reports, and the objects that the controller writes."""

import json
from dataclasses import replace
from datetime import UTC, datetime
from typing import Any, cast

import httpx2
import pytest
from lightkube import AsyncClient
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
from tests.recorder.examples import CONFIG, pod_manifest, terminated_state
from tests.recorder.test_node_decisions import DEVICES, POLICY

START = datetime(2026, 11, 21, 21, tzinfo=UTC).timestamp()


def reporting_pod(
    name: str, uid: str, *, slow: str = "gpu-node-0", run: str = "r1", at: float = 0
) -> Pod:
    message = f"preflight: slow node {slow}: 2.1 GB/s"
    finished = datetime.fromtimestamp(START + at, UTC).isoformat()
    state = terminated_state(1, at=finished, message=f"slow node {slow}: 2.1 GB/s\n{message}")
    manifest = pod_manifest(name, state)
    manifest["metadata"] |= {"uid": uid, "labels": {"gpu-platform.dev/run": run}}
    return cast(Pod, Pod.from_dict(manifest))


def test_reports_from_pods_of_the_same_attempt_count_once() -> None:
    reports = SlowReports()
    for pod in (
        reporting_pod("worker-0", "1"),
        reporting_pod("worker-1", "2"),
        reporting_pod("worker-0", "1"),
    ):
        reports.add(pod, START)
    assert reports.count(START) == {"gpu-node-0": 1}
    reports.add(reporting_pod("worker-0", "3", at=10), START + 10)
    reports.add(reporting_pod("worker-0", "4", run="r2", at=10), START + 10)
    assert reports.count(START + 20) == {"gpu-node-0": 3}
    assert reports.count(START + 24 * 3600 + 5) == {"gpu-node-0": 2}


def test_report_of_a_relisted_pod_keeps_the_time_of_termination() -> None:
    reports, pod = SlowReports(), reporting_pod("worker-0", "1")
    day = 24 * 3600
    for hours in (0, 12, 25):
        reports.add(pod, START + hours * 3600)
    assert reports.count(START + day - 1) == {"gpu-node-0": 1}
    assert reports.count(START + day + 1) == {}
    reports.add(pod, START + day + 1)
    assert reports.count(START + day + 1) == {}


def test_run_cannot_report_a_node_on_which_it_has_no_pod() -> None:
    reports = SlowReports()
    reports.add(reporting_pod("worker-0", "1", slow="gpu-node-9"), START)
    assert reports.count(START) == {}


def test_xids_of_all_gpus_are_grouped_by_node() -> None:
    result = [
        {"metric": {"Hostname": "a", "gpu": "0"}, "value": [1, "79"]},
        {"metric": {"Hostname": "a", "gpu": "1"}, "value": [1, "0"]},
        {"metric": {"Hostname": "b", "gpu": "0"}, "value": [1, "31"]},
        {"metric": {"gpu": "0"}, "value": [1, "0"]},
    ]
    assert xids_of({"data": {"result": result}}) == {"a": {79}, "b": {31}}


class Api:
    """An API server with one node; it records all write requests."""

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
        self.pods = [pod_manifest()]
        self.writes: list[tuple[str, str, Any]] = []
        self.rejected_path = ""

    def controller(self) -> Controller:
        client = AsyncClient(CONFIG, transport=httpx2.MockTransport(self._respond))
        return Controller(client, replace(POLICY, fault_seconds=0), "ml")

    async def _respond(self, request: httpx2.Request) -> httpx2.Response:
        path = request.url.path
        if request.method == "GET" and path.endswith("/nodes"):
            return httpx2.Response(200, json={"metadata": {}, "items": [self.node]})
        if request.method == "GET":
            assert request.url.params["fieldSelector"] == "spec.nodeName=gpu-node-0"
            finished = pod_manifest("finished") | {"status": {"phase": "Succeeded"}}
            return httpx2.Response(200, json={"metadata": {}, "items": [*self.pods, finished]})
        body = json.loads(request.content)
        self.writes.append((request.method, path, body))
        if self.rejected_path and path.endswith(self.rejected_path):
            refusal = {"kind": "Status", "code": 409, "message": "changed"}
            return httpx2.Response(409, json=refusal)
        return httpx2.Response(200, json=self.node if "/nodes/" in path else body)


@pytest.mark.parametrize("resource", ["nvidia.com/gpu", "nvidia.com/gpu.shared"])
def test_shared_gpus_and_mig_devices_count_as_gpus_but_other_resources_do_not(
    resource: str,
) -> None:
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


@pytest.mark.parametrize(
    "mark",
    ["", "7", '{"reason": "XidError", "message": "", "gpus": 1e999}', "[" * 10**5],
    ids=["empty", "number", "infinite", "brackets"],
)
async def test_node_with_an_unreadable_mark_stays_cordoned(mark: str) -> None:
    api = Api(annotations={MARK: mark})
    api.node["spec"]["unschedulable"] = True
    controller = api.controller()
    await controller.check(0)
    [(_, path, condition)] = api.writes
    assert path == "/api/v1/nodes/gpu-node-0/status"
    assert condition["status"]["conditions"][0]["reason"] == "UnreadableMark"


async def test_infinite_number_from_prometheus_does_not_end_the_controller() -> None:
    series = {"metric": {"Hostname": "gpu-node-0", "gpu": "0"}, "value": [1, "+Inf"]}
    response = httpx2.Response(200, json={"data": {"result": [series]}})
    controller = Api(offered=7).controller()
    controller.prometheus = "http://prometheus"
    controller._http = httpx2.AsyncClient(transport=httpx2.MockTransport(lambda _: response))
    assert await controller._xid_errors() == {}


async def test_faulty_node_gets_a_cordon_a_condition_and_an_event() -> None:
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


async def test_conflict_when_cordoning_a_node_stops_further_writes() -> None:
    api = Api(offered=7)
    api.rejected_path = "/nodes/gpu-node-0"
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


async def test_only_pods_of_reporting_runs_are_evicted_from_a_slow_node() -> None:
    api = Api(annotations={MARK: to_annotation(Fault("SlowInGangs", "", 8))})
    api.node["spec"]["unschedulable"] = True
    api.node["status"]["conditions"].append({"type": CONDITION, "status": "True"})
    api.pods = [pod_manifest("worker-0"), pod_manifest("worker-1")]
    api.pods[1]["metadata"]["labels"] = {"gpu-platform.dev/run": "r1"}
    controller = api.controller()
    assert controller.reports.add(reporting_pod("worker-0", "1"), START)
    assert not controller.reports.add(reporting_pod("worker-0", "1"), START)
    await controller.check(START)
    assert [path.split("/")[-2] for _, path, _ in api.writes] == ["worker-1"]


async def test_rejected_eviction_does_not_stop_the_eviction_of_other_pods() -> None:
    api = Api(offered=7, annotations={MARK: to_annotation(DEVICES)})
    api.node["spec"]["unschedulable"] = True
    api.node["status"]["conditions"].append({"type": CONDITION, "status": "True"})
    api.pods = [pod_manifest("worker-0"), pod_manifest("worker-1")]
    api.rejected_path = "worker-0/eviction"
    await api.controller().check(0)
    pods = [path.split("/")[-2] for _, path, _ in api.writes]
    assert pods == ["worker-0", "worker-1"]


async def test_slow_node_reports_before_an_uncordon_are_ignored_even_after_a_restart() -> None:
    api = Api(annotations={MARK: to_annotation(Fault("SlowInGangs", "", 8))})
    await api.controller().check(START + 20)
    annotations = api.writes[0][2]["metadata"]["annotations"]
    assert "spec" not in api.writes[0][2]
    assert annotations.pop(MARK) is None

    restarted = Api(annotations=annotations)
    controller = restarted.controller()
    for uid in "123":
        controller.reports.add(reporting_pod("worker-0", uid, at=int(uid)), START + 30)
    for seconds in (30, 45):
        await controller.check(START + seconds)
    assert restarted.writes == []
    for uid in "456":
        controller.reports.add(reporting_pod("worker-0", uid, at=50 + int(uid)), START + 60)
    await controller.check(START + 60)
    assert "SlowInGangs" in restarted.writes[0][2]["metadata"]["annotations"][MARK]


async def test_slow_node_reports_about_an_earlier_node_of_the_same_name_are_ignored() -> None:
    created = datetime.fromtimestamp(START + 15, UTC).isoformat()
    api = Api(creationTimestamp=created)
    controller = api.controller()
    for uid in "123":
        controller.reports.add(reporting_pod("worker-0", uid, at=int(uid)), START + 20)
    await controller.check(START + 20)
    assert api.writes == []


async def test_another_fault_of_a_cordoned_node_is_added_to_its_mark() -> None:
    api = Api(annotations={MARK: to_annotation(DEVICES)})
    api.node["spec"]["unschedulable"] = True
    api.node["status"]["conditions"].append({"type": CONDITION, "status": "True"})
    controller = api.controller()
    for uid in "123":
        controller.reports.add(reporting_pod("worker-0", uid, at=int(uid)), START + 20)
    await controller.check(START + 20)
    patch, condition = api.writes[0][2], api.writes[1][2]
    assert "spec" not in patch
    assert json.loads(patch["metadata"]["annotations"][MARK])["reason"] == "SlowInGangs"
    assert condition["status"]["conditions"][0]["reason"] == "SlowInGangs"
    assert controller.check_soon.is_set()


async def test_recovered_node_is_uncordoned_and_its_mark_is_removed() -> None:
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
