"""Temporary cluster for a simulation, with a real API server, real Volcano and simulated nodes."""

import base64
import itertools
import json
import os
import re
import shlex
import ssl
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Collection, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Any, Final, NamedTuple

import httpx

from gitops.engine import PROJECT
from gitops.errors import GitopsError
from gitops.forecast.objects import GANG_LABEL, NAMESPACE, Manifest, cluster_objects, node
from gitops.forecast.scheduler_log import SchedulerLog
from gitops.forecast.state import State
from simulation.nodes import NEW_NODE_TAINT
from simulation.volcano import FLAGS, scheduler_program

_CORE: Final = "/api/v1"
_VOLCANO: Final = "/apis/scheduling.volcano.sh/v1beta1"
_NAMESPACE: Final = f"namespaces/{NAMESPACE}"
_PODS: Final = f"{_CORE}/{_NAMESPACE}/pods"
_GROUPS: Final = f"{_VOLCANO}/{_NAMESPACE}/podgroups"
_PATHS: Final = {
    "Namespace": f"{_CORE}/namespaces",
    "Node": f"{_CORE}/nodes",
    "Pod": _PODS,
    "PodGroup": _GROUPS,
    "PriorityClass": "/apis/scheduling.k8s.io/v1/priorityclasses",
    "Queue": f"{_VOLCANO}/queues",
}
_THREADS: Final = 8
TIMEOUT_SECONDS = 90.0
"""Maximum time (s) that the sandbox waits for a cluster state, such as Ready nodes."""
PERIOD: Final = 0.1
"""Time (s) between two scheduler sessions. Volcano's default is one second."""
_FLAGS: Final = "--schedule-period={}s\n--vmodule=session=3,cache=3,event_handlers=3{}\n"
_PREEMPTION: Final = ",preempt=4"
"""Log level for preemption.

At this level, the scheduler logs every node that it considers for a pod. The level is therefore set
only if the scheduler preempts pods.
"""
_CONFIGURATION_FILE: Final = "scheduler.conf"
_PAUSE_ACTION: Final = "shuffle"
"""Scheduler action while scheduling is paused. It never places pods, and it evicts only pods that
plugins select. The paused scheduler has no plugins, so it evicts nothing."""
_DEFAULT_CONFIGURATION: Final = """\
actions: enqueue, allocate, backfill
tiers:
- plugins: [{name: priority}, {name: gang}, {name: conformance}]
- plugins:
    [{name: overcommit}, {name: drf}, {name: predicates}, {name: proportion}, {name: nodeorder}]
"""
"""Configuration that Volcano 1.14 uses if its configuration file is missing or invalid."""
_NO_GRACE_PERIOD: Final = {"gracePeriodSeconds": "0"}
_TABLE: Final = "application/json;as=Table;v=v1;g=meta.k8s.io"
"""Media type of a list as `kubectl get --output=wide` prints it."""
_STDERR: Final = 2


class PodState(NamedTuple):
    """A pod's node (None if the pod is not scheduled) and its status, as printed by kubectl."""

    node: str | None
    status: str

    @property
    def is_transient(self) -> bool:
        """True if the pod is terminating, or is placed but not running yet.

        A placed pod cannot be preempted until it is running.
        """
        return self.status == "Terminating" or (self.node is not None and self.status != "Running")


class Sandbox:
    """Client for the simulated cluster.

    `log` is the scheduler's log, `settings` its configuration file, and `volcano` the version of
    Volcano.
    """

    def __init__(
        self, api: httpx.Client, log: Path, volcano: str = "", settings: Path = Path()
    ) -> None:
        self.volcano = volcano
        self.rejects_configuration = False
        """True if the scheduler rejected its configuration and uses Volcano's default instead."""
        self.generation = 0
        """Number of `clear` calls; part of the gangs' names."""
        self._settings = settings
        self._api = api
        self._log = SchedulerLog(log)
        self._loaded: dict[tuple[str, str], Manifest] = {}
        self._markers = itertools.count()

    def sessions(self) -> int:
        """Return the number of sessions that the scheduler has completed."""
        return self._log.read().sessions

    def mark(self) -> str:
        """Create a marker pod, and return its name.

        The scheduler handles pod events in order. Once it knows about the marker pod, it also knows
        about all earlier changes to pods. The marker pod affects no placement, because its node
        does not exist.
        """
        name = f"marker-{next(self._markers)}"
        spec = {"nodeName": "none", "containers": [{"name": "none", "image": "none"}]}
        pod = {"metadata": {"name": name}, "spec": spec}
        self._raise_if_rejected(self._problem(self._api.post(_PODS, json=pod)))
        return name

    def known_since(self, marker: str) -> int | None:
        """Return the number of sessions that ended before the scheduler saw a marker pod.

        Return None if the scheduler has not seen the pod yet.
        """
        return self._log.read().markers.get(marker)

    def untried_preemptions(self, queues: Collection[str], since: int) -> set[str]:
        """Return the members of `queues` in which Volcano has not tried all preemptions yet.

        Only the sessions from number `since` + 2 onwards count, because earlier ones may have
        started before the last change. Volcano 1.14 tries all preemptions only in the queue that a
        session considers first, and chooses this queue at random
        (https://github.com/volcano-sh/volcano/issues/5140). Queues without admitted gangs are not
        returned, because Volcano never considers them.
        """
        log = self._log.read()
        return {
            q
            for q in queues
            if q in log.queues and log.last_session_as_first.get(q, 0) <= since + 1
        }

    def load(self, state: State) -> None:
        """Create the nodes, queues and PriorityClasses, or update the changed objects.

        Raises:
            GitopsError: If the API server rejects an object, or nodes do not become Ready.
        """
        # Volcano rejects a queue until its webhooks are ready and have seen the queue's parent.
        for each in self._changed_objects(cluster_objects(state)):
            if each["kind"] == "PriorityClass":
                # A PriorityClass's value and preemption policy are immutable.
                self._api.delete(f"{_PATHS[each['kind']]}/{_name(each)}")
            self._wait_while(partial(self._apply, each), f"rejected {each['kind']} {_name(each)}")
        nodes = [node(each) for each in state.nodes]
        # A server-side apply takes ten times as long as a create request, so it is used only for
        # nodes that already exist.
        self._for_each(
            lambda each: self._create(each) and self._apply(each), self._changed_objects(nodes)
        )
        self._wait_while(lambda: self._not_ready(len(nodes)), "nodes are not Ready")
        account = f"{_CORE}/{_NAMESPACE}/serviceaccounts/default"
        self._wait_while(
            lambda: self._problem(self._api.get(account)), "the default ServiceAccount is missing"
        )

    @contextmanager
    def scheduler_paused(self) -> Iterator[None]:
        """Pause scheduling during a `with` block.

        When scheduling resumes, the scheduler knows about all nodes and all gangs created in the
        block, so it considers them together.

        Raises:
            GitopsError: If pods do not start, or the scheduler's log does not mention them in time.
        """
        configuration = self._settings.read_text()
        self._configure(f"actions: {_PAUSE_ACTION}\n")
        self._await_sessions(2)  # the first session may have started before the change
        yield
        self._wait_while(self._pods_not_running, "pods did not start")
        marker = self.mark()
        self._wait_while(
            lambda: f"it has not seen pod {marker}" if self.known_since(marker) is None else "",
            "the scheduler has not seen all pods in time",
        )
        self._wait_while(
            self._unseen_objects, "the scheduler has not seen all nodes and gangs in time"
        )
        self._configure(configuration)
        if self._log.actions == _PAUSE_ACTION:
            self.rejects_configuration = True
            self._configure(_DEFAULT_CONFIGURATION)

    def _configure(self, text: str) -> None:
        """Configure the scheduler. A session that has already started keeps its configuration."""
        before = self._log.read().configuration_reads
        # The scheduler rereads its configuration whenever a file in the configuration's directory
        # changes, so the file is written elsewhere and then moved.
        new = self._settings.parent.with_name(_CONFIGURATION_FILE)
        new.write_text(text)
        new.replace(self._settings)
        self._wait_while(
            lambda: (
                "" if self._log.read().configuration_reads > before else "its log reports no reload"
            ),
            "the scheduler has not read its configuration in time",
        )

    def _await_sessions(self, count: int) -> None:
        end = self.sessions() + count
        missing = f"its log does not contain {count} new lines with 'Close Session'"
        self._wait_while(
            lambda: "" if self.sessions() >= end else missing,
            "the scheduler has not completed enough sessions in time",
        )

    def _unseen_objects(self) -> str:
        log, groups = self._log.read(), len(self._items(_GROUPS))
        nodes = sum(kind == "Node" for kind, _ in self._loaded)
        if (log.gangs, log.nodes) == (groups, nodes):
            return ""
        return f"it has seen {log.gangs} of {groups} gangs and {log.nodes} of {nodes} nodes"

    def _pods_not_running(self) -> str:
        placed = [pod for pod in self.pod_states().values() if pod.node is not None]
        waiting = sum(pod.is_transient for pod in placed)
        return f"{waiting} of {len(placed)} pods are not running" if waiting else ""

    def create_groups(self, groups: Sequence[Manifest]) -> None:
        """Create PodGroups in the given order. Raise GitopsError if one is rejected."""
        for each in groups:
            self._raise_if_rejected(self._create(each))

    def create_pods(self, pods: Sequence[Manifest]) -> None:
        """Create pods. Raise GitopsError if one is rejected."""
        self._for_each(self._create, pods)

    def end(self, *gangs: str, pods_only: bool = False) -> None:
        """Delete the pods of gangs and, unless `pods_only` is set, their PodGroups.

        The deletion begins right after the start of a session, so that no session considers only
        some of the pods as deleted.
        """
        before = self._log.read().opened
        self._wait_while(
            lambda: "" if self._log.read().opened > before else "its log reports no new session",
            "the scheduler does not start a session",
            pause=0.01,
        )
        selector = f"{GANG_LABEL} in ({','.join(gangs)})"
        self._api.delete(_PODS, params={"labelSelector": selector, **_NO_GRACE_PERIOD})
        for gang in () if pods_only else gangs:
            self._api.delete(f"{_GROUPS}/{gang}")

    def clear(self, *, nodes: bool = False) -> None:
        """Delete all gangs and, if `nodes` is set, all nodes.

        New pods need new names, because kwok sometimes does not start a pod that has the name of a
        deleted pod.
        """
        self.generation += 1
        self._delete_all(_PODS)
        self._delete_all(_GROUPS)
        if nodes:
            self._delete_all(_PATHS["Node"])
            self._loaded = {k: each for k, each in self._loaded.items() if k[0] != "Node"}

    def _delete_all(self, path: str) -> None:
        self._api.delete(path, params=_NO_GRACE_PERIOD)
        self._wait_while(
            lambda: f"{left} remain" if (left := len(self._items(path))) else "",
            f"objects under {path} were not deleted",
        )

    def _items(self, path: str, **parameters: str) -> list[dict[str, Any]]:
        response = self._api.get(path, params=parameters)
        return list(response.raise_for_status().json()["items"])

    def pods(self) -> list[dict[str, Any]]:
        """Return the pods of all gangs, including terminating pods."""
        return self._items(_PODS, labelSelector=GANG_LABEL)

    def pod_states(self) -> dict[str, PodState]:
        """Return the states of the pods of all gangs, by name.

        Listing the pods themselves takes about ten times as long.
        """
        response = self._api.get(
            _PODS,
            params={"labelSelector": GANG_LABEL, "includeObject": "None"},
            headers={"Accept": _TABLE},
        )
        table = response.raise_for_status().json()
        columns = [column["name"] for column in table["columnDefinitions"]]
        rows = (dict(zip(columns, row["cells"], strict=True)) for row in table["rows"])
        return {
            row["Name"]: PodState(None if row["Node"] == "<none>" else row["Node"], row["Status"])
            for row in rows
        }

    def phases(self) -> dict[str, str]:
        """Return the PodGroup phases that the scheduler has stored."""
        groups = self._items(_GROUPS)
        return {_name(g): phase for g in groups if (phase := g.get("status", {}).get("phase"))}

    def _changed_objects(self, objects: Sequence[Manifest]) -> list[Manifest]:
        """Return and record the objects that are new or have changed since the last call."""
        by_name = {(each["kind"], _name(each)): each for each in objects}
        changed = {key: each for key, each in by_name.items() if self._loaded.get(key) != each}
        self._loaded |= changed
        return [*changed.values()]

    def _for_each(self, request: Callable[[Manifest], str], objects: Sequence[Manifest]) -> None:
        with ThreadPoolExecutor(_THREADS) as threads:
            for problem in threads.map(request, objects):
                self._raise_if_rejected(problem)

    def _create(self, manifest: Manifest) -> str:
        return self._problem(self._api.post(_PATHS[manifest["kind"]], json=manifest))

    def _apply(self, manifest: Manifest) -> str:
        return self._problem(
            self._api.patch(
                f"{_PATHS[manifest['kind']]}/{_name(manifest)}",
                params={"fieldManager": "simulation", "force": "true"},
                headers={"Content-Type": "application/apply-patch+yaml"},
                content=json.dumps(manifest),
            )
        )

    @staticmethod
    def _problem(response: httpx.Response) -> str:
        return "" if response.is_success else response.text

    @staticmethod
    def _raise_if_rejected(problem: str) -> None:
        if problem:
            raise GitopsError(f"the simulated cluster rejected an object: {problem[-600:]}")

    def _not_ready(self, count: int) -> str:
        ready = 0
        for each in self._items(_PATHS["Node"]):
            conditions = {c["type"]: c["status"] for c in each["status"].get("conditions", ())}
            taints = {taint["key"] for taint in each["spec"].get("taints", ())}
            ready += conditions.get("Ready") == "True" and NEW_NODE_TAINT not in taints
        return "" if ready >= count else f"{ready} of {count} are Ready"

    def _wait_while(self, problem: Callable[[], str], failure: str, pause: float = 0.1) -> None:
        deadline = time.monotonic() + TIMEOUT_SECONDS
        while text := problem():
            if time.monotonic() > deadline:
                raise GitopsError(f"simulated cluster: {failure}: {text[-600:]}")
            time.sleep(pause)


def _name(manifest: Manifest) -> str:
    return str(manifest["metadata"]["name"])


@contextmanager
def sandbox(
    configuration: str | None, volcano: str | None = None, period: float = PERIOD
) -> Iterator[Sandbox]:
    """Run a simulated cluster with this scheduler configuration (None: Volcano's default).

    The scheduler comes from the Volcano release with the same minor version as `volcano` or, if
    this project does not build that version, from the default release. Missing programs are built
    first, and the progress is written to stderr. `period` is the time (s) between two scheduler
    sessions.

    Raises:
        GitopsError: If the cluster does not start.
    """
    with tempfile.TemporaryDirectory(prefix="gpu-platform-simulation-") as directory:
        environment = {**os.environ, "GPU_PLATFORM_STATE": directory}
        state = Path(directory) / "simulated"
        settings = state / "volcano"
        settings.mkdir(parents=True)
        preempts = "preempt" in (configuration or "")
        (settings / FLAGS).write_text(_FLAGS.format(period, _PREEMPTION if preempts else ""))
        (settings / _CONFIGURATION_FILE).write_text(
            _DEFAULT_CONFIGURATION if configuration is None else configuration
        )
        try:
            requested = volcano or ""
            _devcluster(environment, "up", "--simulated-nodes=0", f"--volcano={requested}")
            exported = _devcluster(environment, "env")
            assignments = shlex.split(exported)
            variables = dict(w.split("=", 1) for w in assignments if "=" in w)
            binaries = Path(variables["PATH"].partition(os.pathsep)[0])
            version = _version(scheduler_program(binaries, requested))
            with connect(Path(variables["KUBECONFIG"])) as api:
                log = state / "logs" / "vc-scheduler.log"
                yield Sandbox(api, log, version, settings / _CONFIGURATION_FILE)
        finally:
            _devcluster(environment, "down", "--purge")


def _version(scheduler: Path) -> str:
    done = subprocess.run([scheduler, "--version"], capture_output=True, text=True, check=False)
    match = re.search(r"^Version: (\S+)", done.stdout, re.MULTILINE)
    return match[1] if match else "an unknown version"


def connect(kubeconfig: Path) -> httpx.Client:
    """Return a client for an embedded cluster, authenticated by the administrator's certificate."""
    config = json.loads(kubeconfig.read_text())
    cluster, user = config["clusters"][0]["cluster"], config["users"][0]["user"]

    def text(encoded: str) -> str:
        return base64.b64decode(encoded).decode()

    context = ssl.create_default_context(cadata=text(cluster["certificate-authority-data"]))
    # The ssl module reads client certificates from files only.
    with tempfile.NamedTemporaryFile("w", dir=kubeconfig.parent, suffix=".pem") as file:
        file.write(text(user["client-certificate-data"]) + text(user["client-key-data"]))
        file.flush()
        context.load_cert_chain(file.name)
    return httpx.Client(base_url=cluster["server"], verify=context, timeout=60, trust_env=False)


def _devcluster(environment: dict[str, str], *arguments: str) -> str:
    command = [sys.executable, "-m", "devcluster", *arguments, "--nodes", "simulated"]
    done = subprocess.run(
        command,
        env=environment,
        cwd=PROJECT,
        stdout=_STDERR if arguments[0] == "up" else subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        check=False,
    )
    if done.returncode:
        raise GitopsError(f"the simulated cluster does not start: {done.stderr.strip()[-600:]}")
    return done.stdout
