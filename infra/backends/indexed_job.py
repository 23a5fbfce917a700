"""A gang as an Indexed Job of Kubernetes, still placed as a whole by Volcano.

An own PodGroup makes the gang: Volcano makes one for a plain Job, too, but before 1.11 only with
a minimum of one pod.
"""

from dataclasses import replace

from infra.backends.command import command, command_variables, rank_variables
from infra.backends.gang import (
    RENDEZVOUS_PORT,
    Gang,
    group_annotations,
    metadata,
    pod_group,
)
from infra.manifests import Manifest, compact
from infra.pods import Pod, pod_template
from kube.names import INDEX_ANNOTATION


def build(gang: Gang) -> list[Manifest]:
    """The Job, after the PodGroup and the headless Service that its pods need."""
    before = [pod_group(gang)]
    if gang.nodes > 1:
        before.append(_headless_service(gang))
    return [*before, _job(gang)]


def failure_policy(gang: Gang, container: str) -> Manifest:
    """Exit codes that end a Job at once, and evictions, which are not counted.

    The peers of a pod that was evicted are: their failures do not tell what began them.
    """
    fatal = {
        "action": "FailJob",
        "onExitCodes": {
            "containerName": container,
            "operator": "In",
            "values": sorted(gang.fatal_exit_codes),
        },
    }
    disrupted = {
        "action": "Ignore",
        "onPodConditions": [{"type": "DisruptionTarget", "status": "True"}],
    }
    return {"rules": [fatal, disrupted] if gang.fatal_exit_codes else [disrupted]}


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
                "suspend": gang.suspend or None,
                # When one pod fails its peers fail too, and every one of them counts.
                "backoffLimit": gang.retries * gang.nodes,
                "activeDeadlineSeconds": gang.deadline_seconds,
                "ttlSecondsAfterFinished": gang.ttl_seconds,
                "podFailurePolicy": failure_policy(gang, gang.pod.container),
                "successPolicy": (
                    {"rules": [{"succeededIndexes": "0"}]} if gang.success == "first" else None
                ),
                "template": pod_template(_pod(gang)),
            }
        ),
    }


def _pod(gang: Gang) -> Pod:
    rendezvous = rank_variables(f"{gang.name}-0.{gang.name}", INDEX_ANNOTATION)
    return replace(
        gang.pod,
        command=command(gang),
        env={
            **(rendezvous if gang.nodes > 1 else {}),
            **command_variables(gang),
            **gang.pod.env,
        },
        annotations={**gang.pod.annotations, **group_annotations(gang)},
        scheduler="volcano",
        restart_policy="Never",
        priority_class=gang.priority_class,
        subdomain=gang.name if gang.nodes > 1 else None,
    )


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
