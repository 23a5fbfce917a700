"""The `ray` kind: a KubeRay RayJob. The head has no GPUs; every other pod is one Ray worker.

The stack's PodGroup makes the head and the workers one gang, regardless of the batch scheduler
that KubeRay is configured to use. KubeRay generates the pods' commands (`ray start`).
"""

import re
import shlex
from dataclasses import replace

from infra.kinds.gang import (
    LAUNCHER_LABEL,
    Gang,
    command_variables,
    metadata,
    pod_group,
    pod_group_template,
)
from infra.manifests import Manifest, compact
from infra.pods import Pod
from kube.kinds import RAY_HEAD, RAY_JOB, RAY_WORKER
from kube.names import QUEUE_LABEL

_DASHBOARD_PORT = 8265
_AGENT_PORT = 52365
_REFERENCE = re.compile(r"\$\(([A-Za-z_][A-Za-z0-9_]*)\)")


def build(gang: Gang) -> list[Manifest]:
    """Return the PodGroup, the head's NetworkPolicy, and the RayJob."""
    job = {
        "apiVersion": RAY_JOB.api_version,
        "kind": RAY_JOB.kind,
        "metadata": metadata(gang, {QUEUE_LABEL: gang.queue}),
        "spec": compact(
            {
                "entrypoint": " ".join(_shell_word(word) for word in gang.pod.command),
                # The operator submits the command itself. By default, it would create a pod to
                # submit the command.
                "submissionMode": "HTTPMode",
                "backoffLimit": gang.retries,
                "activeDeadlineSeconds": gang.deadline_seconds,
                "suspend": gang.suspend or None,
                # Without this setting, the Ray cluster of a finished job would keep its GPUs.
                "shutdownAfterJobFinishes": True,
                "rayClusterSpec": _cluster(gang),
            }
        ),
    }
    return [pod_group(gang, additional=1), _head_network_policy(gang), job]


def _shell_word(word: str) -> str:
    """Quote an argument for the shell, and replace Kubernetes' $(NAME) with the shell's ${NAME}."""
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
        gang.launcher or gang.pod,
        ports={"gcs": 6379, "dashboard": _DASHBOARD_PORT, "client": 10001},
    )
    workers = {
        "groupName": "workers",
        "replicas": gang.size,
        "minReplicas": gang.size,
        "maxReplicas": gang.size,
        "rayStartParams": {},
        "template": _template(gang, gang.pod, RAY_WORKER),
    }
    return {
        "headGroupSpec": {
            "rayStartParams": {"dashboard-host": "0.0.0.0", "num-gpus": "0"},  # noqa: S104
            "template": _template(gang, head, RAY_HEAD),
        },
        "workerGroupSpecs": [workers],
    }


def _template(gang: Gang, pod: Pod, container: str) -> Manifest:
    env = {**command_variables(gang), **pod.env}
    ray_pod = replace(pod, container=container, command=[], env=env)
    template: Manifest = pod_group_template(gang, ray_pod)
    # KubeRay's default probes call wget, which an image may lack. Every Ray node serves this path.
    health_check = {"httpGet": {"port": _AGENT_PORT, "path": "/api/local_raylet_healthz"}}
    probe = {**health_check, "periodSeconds": 5, "timeoutSeconds": 5}
    template["spec"]["containers"][0] |= {
        "readinessProbe": {**probe, "failureThreshold": 10},
        "livenessProbe": {**probe, "initialDelaySeconds": 30, "failureThreshold": 120},
    }
    return template


def _head_network_policy(gang: Gang) -> Manifest:
    """Return the NetworkPolicy that lets only KubeRay and the run's pods connect to the head."""
    # `app.kubernetes.io/name: kuberay` is too broad: KubeRay also adds this label to all Ray pods.
    component = {"app.kubernetes.io/component": "kuberay-operator"}
    operator = {"namespaceSelector": {}, "podSelector": {"matchLabels": component}}
    return {
        "apiVersion": "networking.k8s.io/v1",
        "kind": "NetworkPolicy",
        "metadata": metadata(gang),
        "spec": {
            "podSelector": {"matchLabels": {**gang.selector, **LAUNCHER_LABEL}},
            "policyTypes": ["Ingress"],
            "ingress": [
                {"from": [operator], "ports": [{"port": _DASHBOARD_PORT, "protocol": "TCP"}]},
                {"from": [{"podSelector": {"matchLabels": gang.selector}}]},
            ],
        },
    }
