"""Deletion of pods whose containers were killed with their nodes.

Volcano evaluates a job's policies only for pod changes that its controllers observe. If a pod fails
while the controllers are not running, the job is not restarted. It either fails or waits forever
for the pod, because the scheduler does not start the remaining pods of a gang with a failed pod.
"""

import json
from collections.abc import Callable, Iterable
from typing import Any

from kube.kinds.record import State
from kube.kinds.volcano import JOB

_IMMEDIATELY = ("--force", "--grace-period=0", "--wait=false")
_LABEL = "volcano.sh/job-name"
_STOPPED = (State.SUCCEEDED, State.FAILED, State.SUSPENDED)


def delete_lost_pods(kubectl: Callable[..., str], nodes: Iterable[str]) -> None:
    """Delete the unfinished pods on the given nodes and all failed pods of active Volcano Jobs.

    Args:
        kubectl: Runs kubectl with the given arguments and returns its output.
        nodes: Names of the nodes.
    """
    for name in nodes:
        active = f"spec.nodeName={name},status.phase!=Succeeded,status.phase!=Failed"
        selected = ("--all-namespaces", f"--field-selector={active}")
        kubectl("delete", "pods", *selected, *_IMMEDIATELY)
    if not kubectl("get", "crd", JOB.name, "--ignore-not-found", "--output=name"):
        return
    jobs = _items(kubectl, JOB.name)
    active_jobs = {_key(job) for job in jobs if JOB.state(job.get("status", {})) not in _STOPPED}
    failed = _items(kubectl, "pods", f"--selector={_LABEL}", "--field-selector=status.phase=Failed")
    for pod in failed:
        namespace, name = _key(pod)
        if (namespace, pod["metadata"]["labels"][_LABEL]) in active_jobs:
            kubectl("delete", "pod", name, f"--namespace={namespace}", *_IMMEDIATELY)


def _items(kubectl: Callable[..., str], *selection: str) -> list[dict[str, Any]]:
    output = kubectl("get", *selection, "--all-namespaces", "--output=json")
    return list(json.loads(output)["items"])


def _key(item: dict[str, Any]) -> tuple[str, str]:
    return item["metadata"]["namespace"], item["metadata"]["name"]
