"""The `indexed` kind: a Kubernetes Indexed Job whose pods Volcano schedules as a gang.

The stack creates the gang's PodGroup. The PodGroup that Volcano creates for each Job is not used,
because its minimum is always one pod in releases before 1.11.
"""

from collections.abc import Collection
from dataclasses import replace

from infra.kinds.gang import (
    Gang,
    command,
    command_variables,
    metadata,
    pod_group,
    pod_group_template,
)
from infra.manifests import Manifest, compact
from infra.pods import Pod
from kube.kinds.record import RENDEZVOUS_PORT
from kube.names import INDEX_ANNOTATION


def build(gang: Gang) -> list[Manifest]:
    """Return the PodGroup, a headless Service if there are several pods, and the Job."""
    services = [_headless_service(gang)] if gang.size > 1 else []
    return [pod_group(gang), *services, _job(gang)]


def indexed_pod(gang: Gang, master: str) -> Pod:
    """Return the gang's pod with the rendezvous variables for an Indexed Job.

    `master` is the address of pod 0.
    """
    index = f"metadata.annotations['{INDEX_ANNOTATION}']"
    rendezvous = {
        "RANK": {"valueFrom": {"fieldRef": {"fieldPath": index}}},
        "MASTER_ADDR": master,
        "MASTER_PORT": str(RENDEZVOUS_PORT),
    }
    return replace(
        gang.pod,
        command=command(gang),
        env={**(rendezvous if gang.size > 1 else {}), **command_variables(gang), **gang.pod.env},
    )


def failure_policy(container: str, fatal_exit_codes: Collection[int]) -> Manifest:
    """Return the pod failure policy: fatal exit codes fail the Job, and evictions are ignored.

    If an eviction makes the pod's peers fail, their failures still count, because nothing records
    that the eviction caused them.
    """
    fatal = {
        "action": "FailJob",
        "onExitCodes": {
            "containerName": container,
            "operator": "In",
            "values": sorted(fatal_exit_codes),
        },
    }
    disrupted = {
        "action": "Ignore",
        "onPodConditions": [{"type": "DisruptionTarget", "status": "True"}],
    }
    return {"rules": [fatal, disrupted] if fatal_exit_codes else [disrupted]}


def success_policy(gang: Gang) -> Manifest | None:
    """Return the success policy if only the first pod must succeed, or None if all must."""
    return {"rules": [{"succeededIndexes": "0"}]} if gang.success == "first" else None


def _job(gang: Gang) -> Manifest:
    subdomain = gang.name if gang.size > 1 else None
    pod = replace(indexed_pod(gang, f"{gang.name}-0.{gang.name}"), subdomain=subdomain)
    return {
        "apiVersion": "batch/v1",
        "kind": "Job",
        "metadata": metadata(gang),
        "spec": compact(
            {
                "completionMode": "Indexed",
                "completions": gang.size,
                "parallelism": gang.size,
                "suspend": gang.suspend or None,
                # When one pod fails, its peers fail too, and each failure counts.
                "backoffLimit": gang.retries * gang.size,
                "activeDeadlineSeconds": gang.deadline_seconds,
                "podFailurePolicy": failure_policy(gang.pod.container, gang.fatal_exit_codes),
                "successPolicy": success_policy(gang),
                "template": pod_group_template(gang, pod),
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
            # Peers resolve each other's names before they are ready.
            "publishNotReadyAddresses": True,
            "selector": gang.selector,
            "ports": [{"name": "rendezvous", "port": RENDEZVOUS_PORT, "protocol": "TCP"}],
        },
    }
