"""Cordon nodes with unhealthy GPUs, move their runs, and uncordon nodes that have recovered.

The program runs in a pod: `python3 -m recorder.node_health --namespace ml` (docs/node-health.md).

A node is unhealthy if its device plugin offers fewer GPUs than the node has, if Prometheus reports
one of the Xid errors in `--xid`, or if at least `--slow-reports` run starts reported the node as
slow. An unhealthy node is cordoned and gets the `GpuUnhealthy` condition, and the pods of its runs
are evicted. If the node was cordoned only because it is slow, only the pods of runs that reported
the node are evicted. The program neither cordons nor uncordons a node if its health is unknown or
if someone else has cordoned it.
"""

import argparse
import asyncio
import contextlib
import logging
import re
import sys
import time
from collections import Counter, defaultdict
from collections.abc import Awaitable, Callable, Mapping, Sequence
from contextlib import aclosing
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from typing import Any, Final

import httpx2
from lightkube import AsyncClient
from lightkube.models.core_v1 import EventSource, ObjectReference
from lightkube.models.meta_v1 import ObjectMeta
from lightkube.operators import exists
from lightkube.resources.core_v1 import Event, Node, Pod, PodEviction

from kube.names import RUN_LABEL
from recorder.node_decisions import (
    CONDITION,
    MARK,
    UNCORDONED_ANNOTATION,
    Action,
    Fault,
    Memory,
    NodeState,
    Policy,
    decide,
    node_state,
    to_annotation,
)
from recorder.pods import failed_containers, run_of

REPORT_HOURS: Final = 24.0
WATCH_SECONDS: Final = 240.0
_SLOW_NODE_LINE: Final = re.compile(r"^slow node ([a-z0-9.-]+):", re.MULTILINE)
_RETRY_SECONDS: Final = 5.0
_PAUSE_SECONDS: Final = 1.0
"""Minimum time (s) between two checks, even if pods send new reports."""

_log = logging.getLogger("node-health")


class SlowReports:
    """Slow-node reports, parsed from `slow node NODE: …` lines in pods' termination messages."""

    def __init__(self) -> None:
        self._reports: dict[tuple[str, str, str, str, int], float] = {}
        """Maps (node, run, pod's host name, pod's UID, restart count) to the time of the report."""
        self._nodes: dict[str, dict[str, float]] = defaultdict(dict)
        """Maps each run to its nodes, and each node to the time when a pod of the run was last
        observed there."""

    def add(self, pod: Pod, now: float) -> bool:
        """Record the node and the reports of a pod. Return whether any report is new."""
        before = len(self._reports)
        run, spec = run_of(pod), pod.spec
        if spec is not None and spec.nodeName:
            self._nodes[run][spec.nodeName] = now
        for termination in failed_containers(pod):
            for node in _SLOW_NODE_LINE.findall(termination.message):
                attempt = termination.attempt
                host = (spec.hostname if spec else None) or attempt.pod
                key = (node, run, host, attempt.uid, attempt.restarts)
                # List requests return terminated pods again. Rereading a report does not change
                # its time, because the container's finish time stays the same.
                if termination.finished is not None:
                    self._reports[key] = termination.finished.timestamp()
        return len(self._reports) > before

    def runs(self, node: str) -> set[str]:
        """Return the runs that reported a node as slow."""
        return {run for reported, run, *_ in self._reports if reported == node}

    def forget(self, node: str, until: float) -> None:
        """Drop the reports about a node that are not newer than `until`."""
        remaining = (
            each for each in self._reports.items() if each[0][0] != node or each[1] > until
        )
        self._reports = dict(remaining)

    def count(self, now: float) -> Counter[str]:
        """Count how many recent run starts reported each node as slow.

        Reports expire after `REPORT_HOURS`. Pods keep their host name when their run restarts, and
        report a node at most once per start. Reports are therefore counted per host name, and the
        largest count is the number of starts. Reports about nodes on which no pod of the run was
        observed are ignored.
        """
        oldest = now - REPORT_HOURS * 3600
        self._reports = {key: at for key, at in self._reports.items() if at >= oldest}
        for run, times in list(self._nodes.items()):
            self._nodes[run] = {node: at for node, at in times.items() if at >= oldest}
            if not self._nodes[run]:
                del self._nodes[run]
        starts: dict[tuple[str, str], Counter[str]] = defaultdict(Counter)
        for node, run, host, _, _ in self._reports:
            if node in self._nodes.get(run, {}):
                starts[node, run][host] += 1
        counter: Counter[str] = Counter()
        for (node, _), hosts in starts.items():
            counter[node] += max(hosts.values())
        return counter


@dataclass
class Controller:
    """Control loop that reads nodes, pods and metrics, and cordons, drains and uncordons nodes."""

    client: AsyncClient
    policy: Policy
    namespace: str
    """Namespace whose runs are moved to other nodes."""
    resource: str = "nvidia.com/gpu"
    prometheus: str | None = None
    reports: SlowReports = field(default_factory=SlowReports)
    check_soon: asyncio.Event = field(default_factory=asyncio.Event)
    """Event that requests another check soon. It is set after a new report, and after a node has
    been cordoned, because the next check evicts the node's pods."""
    _has_watched: bool = False
    _memory: Memory = field(default_factory=dict)
    _http: httpx2.AsyncClient = field(default_factory=lambda: httpx2.AsyncClient(timeout=10))

    async def check(self, now: float) -> None:
        """Read the state of all nodes once, and apply the decisions."""
        nodes = [node async for node in self.client.list(Node)]
        errors = await self._xid_errors()
        states = [node_state(node, self.resource, errors) for node in nodes]
        for state in states:
            self.reports.forget(state.name, state.checked_at)
        counted = self.reports.count(now)
        states = [replace(state, reports=counted[state.name]) for state in states]
        actions, self._memory = decide(states, self._memory, now, self.policy)
        for action in actions:
            try:
                await self._apply(action, now)
            except httpx2.HTTPError as error:
                # For example, the node has changed since it was read. The next check retries.
                _log.warning("%s: the %s action failed: %s", action.node.name, action.kind, error)

    async def watch_pods(self) -> None:
        """Collect reports from pods until the connection closes, for at most `WATCH_SECONDS`."""
        listed = self.client.list(Pod, namespace=self.namespace, labels={RUN_LABEL: exists()})
        async for pod in listed:
            self._add(pod)
        changes: Any = self.client.watch(
            Pod,
            namespace=self.namespace,
            labels={RUN_LABEL: exists()},
            resource_version=listed.resourceVersion,
        )
        if not self._has_watched:
            _log.info("collecting reports from the pods of runs in namespace %s", self.namespace)
            self._has_watched = True
        try:
            async with asyncio.timeout(WATCH_SECONDS), aclosing(changes):
                async for _, pod in changes:
                    self._add(pod)
        except TimeoutError:
            return

    def _add(self, pod: Pod) -> None:
        if self.reports.add(pod, time.time()):
            self.check_soon.set()

    async def _xid_errors(self) -> Mapping[str, frozenset[int]] | None:
        """Return each node's Xid errors; {} if the query fails, None without a Prometheus URL."""
        if self.prometheus is None:
            return None
        try:
            url = f"{self.prometheus.rstrip('/')}/api/v1/query"
            response = await self._http.get(url, params={"query": xid_query(self.policy)})
            response.raise_for_status()
            return xids_of(response.json())
        except (httpx2.HTTPError, ValueError, LookupError, TypeError, OverflowError) as error:
            _log.warning("cannot read Xid errors from Prometheus: %s", error)
            return {}

    async def _apply(self, action: Action, now: float) -> None:
        """Execute an action: log it, evict pods, set the condition, or patch the node."""
        node, fault = action.node, action.fault
        if action.kind == "wait":
            message = "%s is unhealthy (%s), but the maximum number of nodes is already cordoned"
            _log.warning(message, node.name, fault.message if fault else "")
        elif action.kind == "evict":
            await self._evict(node.name)
        elif action.kind == "evict_reporting_runs":
            await self._evict(node.name, self.reports.runs(node.name))
        elif action.kind == "set_condition":
            await self._set_condition(node, fault)
        else:
            annotations = {MARK: to_annotation(fault)}
            if fault is None:
                annotations[UNCORDONED_ANNOTATION] = datetime.fromtimestamp(now, UTC).isoformat()
            metadata: dict[str, Any] = {"annotations": annotations}
            # The API server rejects the patch if the node has changed since it was read.
            metadata["resourceVersion"] = node.version
            patch: dict[str, Any] = {"metadata": metadata}
            if action.kind in ("cordon", "uncordon"):
                patch["spec"] = {"unschedulable": action.kind == "cordon"}
            await self.client.patch(Node, node.name, patch)
            if action.kind in ("cordon", "mark"):
                self.check_soon.set()
            await self._set_condition(node, fault)
            await self._create_event(node, fault)

    async def _set_condition(self, node: NodeState, fault: Fault | None) -> None:
        now = datetime.now(UTC).strftime("%Y-%m-%dT%H:%M:%SZ")
        condition = {
            "type": CONDITION,
            "status": "False" if fault is None else "True",
            "reason": "GpusHealthy" if fault is None else fault.reason,
            "message": "" if fault is None else fault.message,
            "lastHeartbeatTime": now,
            "lastTransitionTime": now,
        }
        await self.client.patch(Node.Status, node.name, {"status": {"conditions": [condition]}})

    async def _create_event(self, node: NodeState, fault: Fault | None) -> None:
        message = "the node is schedulable again" if fault is None else fault.message
        _log.info("%s: %s", node.name, message if fault is None else f"cordoned: {message}")
        now = datetime.now(UTC)
        event = Event(
            metadata=ObjectMeta(generateName=f"{node.name}.", namespace="default"),
            involvedObject=ObjectReference(apiVersion="v1", kind="Node", name=node.name),
            type="Normal" if fault is None else "Warning",
            reason="GpuHealthy" if fault is None else CONDITION,
            message=message,
            source=EventSource(component="node-health"),
            firstTimestamp=now,
            lastTimestamp=now,
            count=1,
        )
        await self.client.create(event)

    async def _evict(self, node: str, runs: set[str] | None = None) -> None:
        """Evict the pods of `runs` (None: all) from a node. Their gangs restart on other nodes."""
        pods = self.client.list(
            Pod,
            namespace=self.namespace,
            labels={RUN_LABEL: exists()},
            fields={"spec.nodeName": node},
        )
        async for pod in pods:
            metadata = pod.metadata
            phase = pod.status.phase if pod.status else None
            if metadata is None or metadata.deletionTimestamp or phase in ("Succeeded", "Failed"):
                continue
            if runs is not None and run_of(pod) not in runs:
                continue
            name = metadata.name or ""
            _log.info("evicting %s of %s from %s", name, run_of(pod), node)
            body = PodEviction(metadata=ObjectMeta(name=name, namespace=self.namespace))
            try:
                await self.client.create(body, name)
            except httpx2.HTTPError as error:
                # For example, a PodDisruptionBudget forbids the eviction. The next check retries.
                _log.warning("eviction of %s failed: %s", name, error)


def xid_query(policy: Policy) -> str:
    """Return a PromQL query for one Xid error per GPU, preferably one in `policy.xids`.

    The exporter reports only the last error of a GPU, and repeats it until the exporter restarts. A
    later error could therefore hide one that is in `policy.xids`. For this reason, the query also
    returns the errors in `policy.xids` from the last `2 * fault_seconds`, which is long enough to
    confirm the fault.
    """
    span = f"{max(1, round(2 * policy.fault_seconds))}s"
    series, by_gpu = "DCGM_FI_DEV_XID_ERRORS", "max by (Hostname, gpu)"
    last = f"{by_gpu} ({series})"
    listed = " or ".join(
        f"{by_gpu} (max_over_time(({series} == {xid})[{span}:15s]))" for xid in sorted(policy.xids)
    )
    return f"({listed}) and {last} != 0 or {last}" if listed else last


def xids_of(response: Any) -> dict[str, frozenset[int]]:
    """Return the errors of each node in Prometheus' response, including nodes without errors.

    Series without a node, such as those of exporters with `--no-hostname`, are ignored.
    """
    xids: dict[str, set[int]] = defaultdict(set)
    for series in response["data"]["result"]:
        if (node := series["metric"].get("Hostname")) is not None:
            xids[node] |= {int(float(series["value"][1]))} - {0}
    return {node: frozenset(errors) for node, errors in xids.items()}


async def run(controller: Controller, interval: float) -> None:
    """Check the nodes until canceled. Outages of the API server do not end the loop."""

    async def check() -> None:
        controller.check_soon.clear()
        await controller.check(time.time())
        pause = min(interval, _PAUSE_SECONDS)
        await asyncio.sleep(pause)
        with contextlib.suppress(TimeoutError):
            await asyncio.wait_for(controller.check_soon.wait(), interval - pause)

    async with asyncio.TaskGroup() as tasks:
        tasks.create_task(_repeat(check))
        if controller.policy.slow_reports is not None:
            tasks.create_task(_repeat(controller.watch_pods))


async def _repeat(work: Callable[[], Awaitable[None]]) -> None:
    while True:
        try:
            await work()
        except httpx2.HTTPError as error:
            _log.warning("a request to the API server failed: %s", error)
            await asyncio.sleep(_RETRY_SECONDS)


def parser() -> argparse.ArgumentParser:
    """Return the command-line parser."""
    options = argparse.ArgumentParser(prog="python3 -m recorder.node_health", description=__doc__)
    options.add_argument("--resource", default="nvidia.com/gpu", help="name of the GPU resource")
    options.add_argument("--namespace", required=True, help="namespace of the runs to move")
    options.add_argument(
        "--max-nodes", type=int, default=1, help="maximum number of nodes cordoned at once"
    )
    options.add_argument(
        "--fault-seconds",
        type=float,
        default=Policy.fault_seconds,
        help="time (s) that a fault must last before the node is cordoned",
    )
    options.add_argument(
        "--settle-seconds",
        type=float,
        default=600,
        help="time (s) that a node must be healthy before it is uncordoned",
    )
    options.add_argument(
        "--slow-reports",
        type=int,
        help="number of run starts that must report a node as slow before it is cordoned",
    )
    options.add_argument(
        "--prometheus", help="URL of the Prometheus server to query for Xid errors"
    )
    options.add_argument(
        "--xid",
        type=int,
        action="append",
        default=[],
        help="Xid error that makes a node unhealthy; may be repeated",
    )
    options.add_argument("--interval", type=float, default=15, help="time (s) between checks")
    return options


def main(arguments: Sequence[str]) -> None:
    """Run the controller."""
    options = parser().parse_args(arguments)
    logging.basicConfig(level=logging.INFO, format="%(levelname)s %(name)s: %(message)s")
    logging.getLogger("httpx2").setLevel(logging.WARNING)
    limits = options.max_nodes, options.fault_seconds, options.settle_seconds
    policy = Policy(*limits, options.slow_reports, frozenset(options.xid))
    controller = Controller(
        AsyncClient(), policy, options.namespace, options.resource, options.prometheus
    )
    asyncio.run(run(controller, options.interval))


if __name__ == "__main__":
    main(sys.argv[1:])
