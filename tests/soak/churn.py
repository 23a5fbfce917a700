"""Short-lived jobs: submitted by updates of the stack, killed in each way, and replaced."""

import contextlib
import itertools
import os
import re
import shlex
import signal
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, Final

import numpy as np

from tests.cluster.platform import Platform, await_
from tests.soak.memory import pod_processes
from training.data import held_out_digits

STEADY: Final = "steady"
SERVED: Final = "digits"
NAMESPACE: Final = "ml-dev"
_RUN: Final = "gpu-platform.dev/run"


@dataclass
class Done:
    """Counts of all actions so far."""

    updates: int = 0
    submitted: int = 0
    killed: dict[str, int] = field(default_factory=dict)

    def __str__(self) -> str:
        kills = ", ".join(f"{number} {what}" for what, number in self.killed.items())
        return f"{self.submitted} runs in {self.updates} updates, killed: {kills or 'nothing'}"


class Churn:
    """Continuous changes to the stack of a running platform."""

    def __init__(self, platform: Platform) -> None:
        self.done = Done()
        self.pods: dict[str, str] = {}
        self._platform = platform
        ways = {
            "containers": self._kill_processes,
            "pods at once": lambda pod: self._delete(pod, "--grace-period=0", "--force"),
            "pods": lambda pod: self._delete(pod, "--wait=false"),
        }
        self._ways: itertools.cycle[tuple[str, Callable[[str], None]]] = itertools.cycle(
            ways.items()
        )

    def pods_by_uid(self) -> dict[str, str]:
        """Return the pods whose memory is sampled: all except pods of short-lived runs."""
        return dict(self.pods)

    def start(self) -> None:
        """Add the run that trains during the whole soak."""
        self._platform.edit(lambda config: _jobs(config).update({STEADY: job(seed=1, steady=True)}))
        self._update()
        run = self._platform.run_name(STEADY)
        await_(lambda: bool(self._running(run)), run)
        for pod in self._platform.kubectl("get", "pods", "--all-namespaces")["items"]:
            labels, uid = pod["metadata"].get("labels", {}), pod["metadata"]["uid"]
            if labels.get("gpu-platform.dev/service") == SERVED:
                self.pods[uid] = "server"
            elif labels.get(_RUN) == run:
                self.pods[uid] = "trainer"
            elif _RUN not in labels:
                # Strip the trailing digits that controllers add to the name.
                self.pods[uid] = re.sub(
                    r"(-[0-9a-f]{6,10})?-[a-z0-9]{5}$", "", pod["metadata"]["name"]
                )

    def turn(self, number: int) -> None:
        """Replace the jobs with new runs, and kill a part of each once it is training."""
        made = {
            "gang": job(seed=number + 2, nodes=2),
            "alone": job(seed=number + 2, kind=("volcano", "indexed")[number % 2]),
        }
        self._platform.edit(lambda config: _jobs(config).update(made))
        self._update()
        self.done.submitted += len(made)
        for key in made:
            run = self._platform.run_name(key)
            await_(lambda run=run: bool(self._running(run)), f"{run} trains")  # type: ignore[misc]
            way, kill = next(self._ways)
            kill(self._running(run)[-1])
            self.done.killed[way] = self.done.killed.get(way, 0) + 1

    def clear(self) -> None:
        """Remove all runs except the served one and the one that trains throughout."""
        self._platform.edit(
            lambda config: [_jobs(config).pop(key, None) for key in ("gang", "alone")]
        )
        self._update()

    def _update(self) -> None:
        stack = self._platform.stack
        options = f"--yes --skip-preview --non-interactive --color never --stack {stack}"
        self._platform.shell(f"pulumi up {options} 2>&1")
        self.done.updates += 1

    def _running(self, run: str) -> list[str]:
        found = self._platform.kubectl(
            "get",
            "pods",
            "-n",
            NAMESPACE,
            "-l",
            f"{_RUN}={run}",
            "--field-selector=status.phase=Running",
        )
        return [pod["metadata"]["name"] for pod in found["items"]]

    def _kill_processes(self, pod: str) -> None:
        """Kill all processes of the pod's container, as the kernel does when out of memory."""
        found = self._platform.kubectl("get", "pod", "-n", NAMESPACE, pod)
        for pid in pod_processes(self._platform.state, found["metadata"]["uid"]):
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)

    def _delete(self, pod: str, *options: str) -> None:
        command = ["kubectl", "delete", "pod", "-n", NAMESPACE, pod, "--ignore-not-found", *options]
        self._platform.shell(f"{shlex.join(command)} 2>&1")


def job(
    *, seed: int, nodes: int = 1, kind: str = "volcano", steady: bool = False
) -> dict[str, Any]:
    """Return the settings of a small job that ends in half a minute or outlasts the soak."""
    return {
        "kind": kind,
        "queue": "research",
        "nodes": nodes,
        "gpus_per_node": 1,
        "cpu": "100m",
        "memory": "1Gi",
        "shm": "64Mi",
        "omp_threads": 1,
        "grace_seconds": 10,
        "on_change": "replace",
        "hyperparameters": {
            "model": "digits-net",
            "dataset": "digits",
            "batch_size": 32,
            "seed": seed,
            "epochs": 100_000 if steady else 10,
            "step_delay": 0.2 if steady else 0.02,
        },
    }


def model_url(platform: Platform) -> str:
    """Return the URL of the served model."""
    service = platform.outputs()["inference"][SERVED]
    found = platform.kubectl("get", "service", service["service"], "-n", NAMESPACE)["spec"]
    address = f"http://{found['clusterIP']}:{found['ports'][0]['port']}"
    return f"{address}/v2/models/{service['model']}/infer"


def inference_request() -> dict[str, Any]:
    """Return a request with four held-out digits."""
    images, _ = held_out_digits((1, 8, 8))
    batch = np.asarray(images[:4])
    data = batch.ravel().tolist()
    tensor = {"name": "images", "datatype": "FP32", "shape": list(batch.shape), "data": data}
    return {"inputs": [tensor], "outputs": [{"name": "class"}]}


def _jobs(config: dict[str, Any]) -> dict[str, Any]:
    jobs: dict[str, Any] = config["gpu-platform:training"]["jobs"]
    return jobs
