"""A gang as an Indexed Job of Kubernetes, still placed as a whole by Volcano.

An own PodGroup makes the gang: Volcano makes one for a plain Job, too, but before 1.11 only with
a minimum of one pod.
"""

from dataclasses import replace
from typing import Any

from infra.backends.gang import NEVER_RETRIED, RENDEZVOUS_PORT, Gang, metadata, torchrun
from infra.manifests import Manifest, compact
from infra.pods import Pod, pod_template

_INDEX = "batch.kubernetes.io/job-completion-index"


def build(gang: Gang) -> list[Manifest]:
    """The Job, after the PodGroup and the headless Service that its pods need."""
    before = [_pod_group(gang)]
    if gang.nodes > 1:
        before.append(_headless_service(gang))
    return [*before, _job(gang)]


def _job(gang: Gang) -> Manifest:
    return {
        "apiVersion": "batch/v1",
        "kind": "Job",
        "metadata": metadata(gang),
        "spec": compact(
            {
                "completionMode": "Indexed",
                "completions": gang.nodes,
                "parallelism": gang.nodes,
                # When one pod fails its peers fail too, and every one of them counts.
                "backoffLimit": gang.retries * gang.nodes,
                "activeDeadlineSeconds": gang.deadline_seconds,
                "ttlSecondsAfterFinished": gang.ttl_seconds,
                "podFailurePolicy": {
                    "rules": [
                        {
                            "action": "FailJob",
                            "onExitCodes": {
                                "containerName": gang.pod.container,
                                "operator": "In",
                                "values": [NEVER_RETRIED],
                            },
                        },
                        {
                            "action": "Ignore",
                            "onPodConditions": [{"type": "DisruptionTarget", "status": "True"}],
                        },
                    ]
                },
                "template": pod_template(_pod(gang)),
            }
        ),
    }


def _pod(gang: Gang) -> Pod:
    rendezvous: dict[str, Any] = {}
    if gang.nodes > 1:
        rendezvous = {
            "RANK": {"valueFrom": {"fieldRef": {"fieldPath": f"metadata.annotations['{_INDEX}']"}}},
            "MASTER_ADDR": f"{gang.name}-0.{gang.name}",
            "MASTER_PORT": str(RENDEZVOUS_PORT),
        }
    return replace(
        gang.pod,
        command=torchrun(gang),
        env={**rendezvous, **gang.pod.env},
        annotations={
            **gang.pod.annotations,
            "scheduling.k8s.io/group-name": gang.name,
            "scheduling.volcano.sh/queue-name": gang.queue,
        },
        scheduler="volcano",
        restart_policy="Never",
        priority_class=gang.priority_class,
        subdomain=gang.name if gang.nodes > 1 else None,
    )


def _pod_group(gang: Gang) -> Manifest:
    return {
        "apiVersion": "scheduling.volcano.sh/v1beta1",
        "kind": "PodGroup",
        "metadata": metadata(gang),
        "spec": compact(
            {
                "minMember": gang.nodes,
                "queue": gang.queue,
                "priorityClassName": gang.priority_class,
            }
        ),
    }


def _headless_service(gang: Gang) -> Manifest:
    return {
        "apiVersion": "v1",
        "kind": "Service",
        "metadata": metadata(gang),
        "spec": {
            "clusterIP": "None",
            # Peers look each other up before any of them is ready.
            "publishNotReadyAddresses": True,
            "selector": gang.selector,
            "ports": [{"name": "rendezvous", "port": RENDEZVOUS_PORT, "protocol": "TCP"}],
        },
    }
