"""A gang as a RayJob of KubeRay: a head without GPUs, and one worker of Ray for each node.

The head's pods and the workers' are one gang by a PodGroup of its own, whatever scheduler KubeRay
was started with. KubeRay writes the pods' commands (`ray start`) by itself.
"""

import re
import shlex
from dataclasses import replace

from infra.backends.command import command_variables
from infra.backends.gang import LEADER, Gang, group_annotations, metadata, pod_group
from infra.manifests import Manifest, compact
from infra.pods import Pod, pod_template
from kube.names import QUEUE_LABEL

_DASHBOARD_PORT = 8265
_REFERENCE = re.compile(r"\$\(([A-Za-z_][A-Za-z0-9_]*)\)")


def build(gang: Gang) -> list[Manifest]:
    """PodGroup, the way in for KubeRay, and the RayJob."""
    described = metadata(gang)
    job = {
        "apiVersion": "ray.io/v1",
        "kind": "RayJob",
        "metadata": {**described, "labels": {**described["labels"], QUEUE_LABEL: gang.queue}},
        "spec": compact(
            {
                "entrypoint": " ".join(_word(word) for word in gang.pod.command),
                # The operator submits by itself; otherwise a pod would that nobody describes.
                "submissionMode": "HTTPMode",
                "backoffLimit": gang.retries,
                "activeDeadlineSeconds": gang.deadline_seconds,
                "suspend": gang.suspend or None,
                # Else the cluster of a finished job keeps its GPUs.
                "shutdownAfterJobFinishes": True,
                "rayClusterSpec": _cluster(gang),
            }
        ),
    }
    return [pod_group(gang, others=1), _way_in(gang), job]


def _word(word: str) -> str:
    """A word of the command for the shell that reads it, which writes $(NAME) another way."""
    parts = _REFERENCE.split(word)
    if len(parts) == 1:
        return shlex.quote(word)
    texts, names = parts[::2], [*parts[1::2], None]
    return "".join(
        (shlex.quote(text) if text else "") + (f'"${{{name}}}"' if name else "")
        for text, name in zip(texts, names, strict=True)
    )


def _cluster(gang: Gang) -> Manifest:
    head = replace(
        gang.leader or gang.pod,
        ports={"gcs": 6379, "dashboard": _DASHBOARD_PORT, "client": 10001},
    )
    workers = {
        "groupName": "workers",
        "replicas": gang.nodes,
        "minReplicas": gang.nodes,
        "maxReplicas": gang.nodes,
        "rayStartParams": {},
        "template": _template(gang, gang.pod, "worker"),
    }
    return {
        "headGroupSpec": {
            "rayStartParams": {"dashboard-host": "0.0.0.0", "num-gpus": "0"},  # noqa: S104
            "template": _template(gang, head, "head"),
        },
        "workerGroupSpecs": [workers],
    }


def _template(gang: Gang, pod: Pod, role: str) -> Manifest:
    return pod_template(
        replace(
            pod,
            container=f"ray-{role}",
            command=[],
            env={**command_variables(gang), **pod.env},
            annotations={**pod.annotations, **group_annotations(gang)},
            scheduler="volcano",
            restart_policy="Never",
            priority_class=gang.priority_class,
        )
    )


def _way_in(gang: Gang) -> Manifest:
    """KubeRay asks the head how the job is; the namespace lets nobody in by itself."""
    operator = {
        "namespaceSelector": {},
        "podSelector": {"matchLabels": {"app.kubernetes.io/name": "kuberay-operator"}},
    }
    return {
        "apiVersion": "networking.k8s.io/v1",
        "kind": "NetworkPolicy",
        "metadata": metadata(gang),
        "spec": {
            "podSelector": {"matchLabels": {**gang.selector, **LEADER}},
            "policyTypes": ["Ingress"],
            "ingress": [
                {"from": [operator], "ports": [{"port": _DASHBOARD_PORT, "protocol": "TCP"}]}
            ],
        },
    }
