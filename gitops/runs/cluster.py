"""A cluster as kubectl reaches it: only ever asked, never changed."""

import json
import subprocess
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import Final

from gitops.errors import GitopsError
from gitops.runs.picture import Object, Picture

_KINDS: Final = (
    "jobs.batch",
    "jobs.batch.volcano.sh",
    "podgroups.scheduling.volcano.sh",
    "pytorchjobs.kubeflow.org",
    "trainjobs.trainer.kubeflow.org",
    "rayjobs.ray.io",
    "jobflows.flow.volcano.sh",
)
"""Objects that a run may be; those of them that the cluster knows are asked for."""

_CLUSTER_WIDE: Final = ("nodes", "queues.scheduling.volcano.sh")


@dataclass(frozen=True)
class Cluster:
    """`kubectl` is the command with its options; `namespace` is None for all of them."""

    kubectl: Sequence[str] = ("kubectl",)
    namespace: str | None = None

    def picture(self) -> Picture:
        """What is there now. What this user may not see, and what is not installed, is left out.

        Raises GitopsError where not even pods can be listed.
        """
        known = set((self._ask("api-resources", "--output=name") or "").split())
        asked = [
            *((kind, False) for kind in ("pods", "events")),
            *((kind, False) for kind in _KINDS if kind in known),
            *((kind, True) for kind in _CLUSTER_WIDE if kind == "nodes" or kind in known),
        ]
        with ThreadPoolExecutor(len(asked)) as pool:
            answers = list(pool.map(lambda one: self._list(*one), asked))
        return Picture.of([item for items in answers for item in items])

    def logs(self, namespace: str, pod: str, lines: int) -> list[str]:
        """The last lines of a pod's container, each behind its time; none where there are none."""
        command = ("logs", "-n", namespace, pod, f"--tail={lines}", "--timestamps")
        return (self._ask(*command) or "").splitlines()

    def _list(self, kind: str, cluster_wide: bool) -> list[Object]:
        where = ["--all-namespaces"] if self.namespace is None else ["-n", self.namespace]
        done = self._run("get", kind, *([] if cluster_wide else where), "--output=json")
        if done.returncode == 0:
            return list(json.loads(done.stdout)["items"])
        if kind == "pods":
            # kubectl repeats itself at length before it says what is wrong.
            said = (done.stderr.strip().splitlines() or ["kubectl says nothing"])[-1]
            raise GitopsError(f"the cluster does not show its pods: {said}")
        return []

    def _ask(self, *arguments: str) -> str | None:
        done = self._run(*arguments)
        return done.stdout if done.returncode == 0 else None

    def _run(self, *arguments: str) -> subprocess.CompletedProcess[str]:
        command = [*self.kubectl, *arguments]
        try:
            return subprocess.run(
                command, capture_output=True, text=True, errors="replace", stdin=subprocess.DEVNULL
            )
        except FileNotFoundError:
            raise GitopsError(
                f"{command[0]} is not to be found: install kubectl and put it on the PATH"
            ) from None
