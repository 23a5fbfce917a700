"""A gang as a Volcano Job: Volcano places all pods or none, and restarts them together."""

from dataclasses import replace

from infra.backends.gang import NEVER_RETRIED, RENDEZVOUS_PORT, Gang, metadata, torchrun
from infra.manifests import Manifest, compact
from infra.pods import pod_template

_PLUGINS = {
    "pytorch": ["--master=master", "--worker=worker", f"--port={RENDEZVOUS_PORT}"],
    "svc": ["--publish-not-ready-addresses=true", "--disable-network-policy=true"],
    "env": [],
}

_POLICIES = [
    # The first policy that matches decides, so the exit code stands before the events.
    {"exitCode": NEVER_RETRIED, "action": "TerminateJob"},
    {"events": ["PodEvicted", "PodFailed"], "action": "RestartJob"},
]


def build(gang: Gang) -> list[Manifest]:
    """The Volcano Job. There is no policy on TaskCompleted: it would end the peers too early."""
    pod = replace(
        gang.pod,
        command=torchrun(gang),
        scheduler="volcano",
        restart_policy="Never",
        priority_class=gang.priority_class,
    )
    tasks = [{"name": "master", "replicas": 1, "template": pod_template(pod)}]
    if gang.nodes > 1:
        tasks.append({"name": "worker", "replicas": gang.nodes - 1, "template": pod_template(pod)})
    spec = compact(
        {
            "schedulerName": "volcano",
            "queue": gang.queue,
            "minAvailable": gang.nodes,
            "maxRetry": gang.retries,
            "priorityClassName": gang.priority_class,
            "ttlSecondsAfterFinished": gang.ttl_seconds,
            "plugins": _PLUGINS if gang.nodes > 1 else None,
            "policies": _POLICIES,
            "tasks": tasks,
        }
    )
    return [
        {
            "apiVersion": "batch.volcano.sh/v1alpha1",
            "kind": "Job",
            "metadata": metadata(gang),
            "spec": spec,
        }
    ]
