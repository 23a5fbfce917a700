"""A simulated cluster that exists during a simulation: real API server, real Volcano."""

import json
import os
import shlex
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from gitops.errors import GitopsError
from gitops.forecast.objects import NAMESPACE, Manifest, node, surroundings
from gitops.forecast.state import State
from simulation.volcano import FLAGS

_PROJECT: Final = Path(__file__).resolve().parents[2]
_AT_ONCE: Final = 250
_PODS: Final = f"/api/v1/namespaces/{NAMESPACE}/pods"
PERIOD: Final = 0.1
"""Seconds between two sessions of the scheduler, whose default is one second."""
_FLAGS: Final = f"--schedule-period={PERIOD}s\n--vmodule=session=3\n"
_SESSION: Final = b"] Close Session "
"""What the scheduler writes at the end of a session, at level 3."""
_NEW: Final = "node.kubernetes.io/not-ready"


@dataclass(frozen=True)
class Sandbox:
    """Access to the simulated cluster."""

    kubectl: Sequence[str]
    log: Path
    """Log of the scheduler."""

    def sessions(self) -> int:
        """Return how many times the scheduler has considered all gangs."""
        return self.log.read_bytes().count(_SESSION) if self.log.exists() else 0

    def load(self, state: State) -> None:
        """Create nodes, queues and PriorityClasses. Raises GitopsError if the API refuses one."""
        # Volcano's webhooks refuse queues until they are served, and children before parents.
        self._until(lambda: self._apply(surroundings(state)), "the queues")
        self._apply_all([node(each) for each in state.nodes])
        self._until(lambda: self._not_ready(len(state.nodes)), "the simulated nodes")
        account = ["get", "serviceaccount", "default", f"--namespace={NAMESPACE}"]
        self._until(lambda: self._run(*account).stderr, "the service account")

    def create(self, objects: Sequence[Manifest]) -> None:
        """Create objects in this order. Raises GitopsError if the API refuses one."""
        for first in range(0, len(objects), _AT_ONCE):
            done = self._run("create", "--filename=-", items=objects[first : first + _AT_ONCE])
            if done.returncode:
                raise GitopsError(f"the simulated cluster refuses an object: {done.stderr[-600:]}")

    def delete(self, *names: str) -> None:
        """Delete objects of the gangs, each as `kind/name`, and wait until they are gone."""
        if names:
            options = ("--ignore-not-found", "--grace-period=0", "--force", "--wait")
            self._run("delete", f"--namespace={NAMESPACE}", *options, *names)

    def pods(self) -> list[dict[str, Any]]:
        """Return the pods of the gangs, those that are being deleted included."""
        return list(json.loads(self._run("get", "--raw", _PODS).stdout)["items"])

    def _apply_all(self, objects: Sequence[Manifest]) -> None:
        for first in range(0, len(objects), _AT_ONCE):
            if problem := self._apply(objects[first : first + _AT_ONCE]):
                raise GitopsError(f"the simulated cluster refuses an object: {problem[-600:]}")

    def _apply(self, objects: Sequence[Manifest]) -> str:
        arguments = ("apply", "--server-side", "--force-conflicts", "--filename=-")
        done = self._run(*arguments, items=objects)
        return done.stderr or "kubectl failed" if done.returncode else ""

    def _not_ready(self, count: int) -> str:
        nodes = json.loads(self._run("get", "--raw", "/api/v1/nodes").stdout)["items"]
        ready = 0
        for each in nodes:
            conditions = {c["type"]: c["status"] for c in each["status"].get("conditions", ())}
            taints = {taint["key"] for taint in each["spec"].get("taints", ())}
            ready += conditions.get("Ready") == "True" and _NEW not in taints
        return "" if ready == count else f"{ready} of {count} are Ready"

    def _until(self, problem: Any, what: str, seconds: float = 90) -> None:
        deadline = time.monotonic() + seconds
        while found := problem():
            if time.monotonic() > deadline:
                raise GitopsError(f"the simulated cluster does not accept {what}: {found[-600:]}")
            time.sleep(0.3)

    def _run(
        self, *arguments: str, items: Sequence[Manifest] = ()
    ) -> subprocess.CompletedProcess[str]:
        content = json.dumps({"apiVersion": "v1", "kind": "List", "items": list(items)})
        command = [*self.kubectl, *arguments]
        return subprocess.run(command, input=content, capture_output=True, text=True, check=False)


@contextmanager
def sandbox(configuration: str | None) -> Iterator[Sandbox]:
    """Run a simulated cluster whose scheduler has this configuration, or Volcano's default.

    Raises:
        GitopsError: If the cluster does not start.
    """
    with tempfile.TemporaryDirectory(prefix="gpu-platform-simulation-") as directory:
        environment = {**os.environ, "GPU_PLATFORM_STATE": directory}
        state = Path(directory) / "simulated"
        volcano = state / "volcano"
        volcano.mkdir(parents=True)
        (volcano / FLAGS).write_text(_FLAGS)
        if configuration is not None:
            (volcano / "scheduler.conf").write_text(configuration)
        try:
            _devcluster(environment, "up", "--simulated-nodes=0")
            exported = _devcluster(environment, "env")
            words = shlex.split(exported)
            variables = dict(w.split("=", 1) for w in words if "=" in w)
            kubeconfig = variables["KUBECONFIG"]
            kubectl = Path(variables["PATH"].split(":")[0]) / "kubectl"
            log = state / "logs" / "vc-scheduler.log"
            yield Sandbox([str(kubectl), f"--kubeconfig={kubeconfig}"], log)
        finally:
            _devcluster(environment, "down", "--purge")


def _devcluster(environment: dict[str, str], *arguments: str) -> str:
    command = [sys.executable, "-m", "devcluster", *arguments, "--nodes", "simulated"]
    done = subprocess.run(
        command, env=environment, cwd=_PROJECT, capture_output=True, text=True, check=False
    )
    if done.returncode:
        raise GitopsError(f"the simulated cluster does not start: {done.stderr.strip()[-600:]}")
    return done.stdout
