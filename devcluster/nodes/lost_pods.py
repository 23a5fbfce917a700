"""Deletion of pods whose containers were killed with their nodes.

Volcano evaluates a job's policies only for changes of pods that its controllers see. If a pod fails
while the controllers are not running, the job is not restarted: it fails, or it waits forever for
the pod, because the scheduler does not start the rest of a gang with a failed pod.
"""

import json
from collections.abc import Callable, Iterable
from typing import Any

from kube.kinds.record import State
from kube.kinds.volcano import JOB

_IMMEDIATELY = ("--force", "--grace-period=0", "--wait=false")
_FINISHED = (State.SUCCEEDED, State.FAILED)


def delete_lost_pods(kubectl: Callable[..., str], nodes: Iterable[str]) -> None:
    """Delete the unfinished pods of nodes, and the failed pods of unfinished Volcano Jobs.

    Args:
        kubectl: Runs kubectl with the given arguments and returns its output.
        nodes: Names of the nodes.
    """
    for name in nodes:
        active = f"spec.nodeName={name},status.phase!=Succeeded,status.phase!=Failed"
        selected = ("--all-namespaces", f"--field-selector={active}")
        kubectl("delete", "pods", *selected, *_IMMEDIATELY)
    for job in _unfinished_jobs(kubectl):
        name, namespace = job["metadata"]["name"], job["metadata"]["namespace"]
        selected = (
            f"--selector=volcano.sh/job-name={name}",
            "--field-selector=status.phase=Failed",
        )
        kubectl("delete", "pods", f"--namespace={namespace}", *selected, *_IMMEDIATELY)


def _unfinished_jobs(kubectl: Callable[..., str]) -> Iterable[dict[str, Any]]:
    if not kubectl("get", "crd", JOB.name, "--ignore-not-found", "--output=name"):
        return []
    items = json.loads(kubectl("get", JOB.name, "--all-namespaces", "--output=json"))["items"]
    return [item for item in items if JOB.state(item.get("status", {})) not in _FINISHED]
