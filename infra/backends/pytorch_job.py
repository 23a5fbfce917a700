"""A gang as a PyTorchJob of Kubeflow's Training Operator (v1), placed as a whole by Volcano.

The PodGroup has the name that the operator gives its own where it schedules gangs itself, so it is
one and the same group, and the gang is whole even where the operator was started without that.
"""

from dataclasses import replace

from infra.backends.command import command, command_variables
from infra.backends.gang import RENDEZVOUS_PORT, Gang, group_annotations, metadata, pod_group
from infra.manifests import Manifest, compact
from infra.pods import pod_template

_CONTAINER = "pytorch"
"""The operator looks for a container of this name."""

# Retried are all failures: its own policy ExitCode would take 1 to 127 as final.
_RESTART = "OnFailure"


def build(gang: Gang) -> list[Manifest]:
    """The PodGroup and the PyTorchJob, whose operator sets RANK, MASTER_ADDR and MASTER_PORT."""
    job = {
        "apiVersion": "kubeflow.org/v1",
        "kind": "PyTorchJob",
        "metadata": metadata(gang),
        "spec": compact(
            {
                "runPolicy": _run_policy(gang),
                "nprocPerNode": str(gang.processes),
                "elasticPolicy": _elastic_policy(gang) if gang.is_elastic else None,
                "pytorchReplicaSpecs": _replicas(gang),
            }
        ),
    }
    return [pod_group(gang), job]


def _run_policy(gang: Gang) -> Manifest:
    return compact(
        {
            "cleanPodPolicy": "Running",
            "suspend": gang.suspend or None,
            # Restarts of all containers are added up, and the limit itself counts as too many.
            "backoffLimit": gang.retries * gang.nodes + 1,
            "activeDeadlineSeconds": gang.deadline_seconds,
            "ttlSecondsAfterFinished": gang.ttl_seconds,
            "schedulingPolicy": compact(
                {
                    "minAvailable": gang.fewest,
                    "queue": gang.queue,
                    "priorityClass": gang.priority_class,
                }
            ),
        }
    )


def _elastic_policy(gang: Gang) -> Manifest:
    return {
        "minReplicas": gang.fewest,
        "maxReplicas": gang.nodes,
        "maxRestarts": gang.retries,
        "rdzvBackend": "c10d",
        "rdzvId": gang.name,
        "rdzvPort": RENDEZVOUS_PORT,
    }


def _replicas(gang: Gang) -> Manifest:
    env = {**command_variables(gang), **gang.pod.env}
    if gang.is_elastic:
        # Without a master the operator gives no address, and all meet at the first worker.
        env = {
            "MASTER_ADDR": f"{gang.name}-worker-0",
            "MASTER_PORT": str(RENDEZVOUS_PORT),
            **env,
        }
    pod = replace(
        gang.pod,
        container=_CONTAINER,
        command=command(gang),
        env=env,
        annotations={**gang.pod.annotations, **group_annotations(gang)},
        scheduler="volcano",
        restart_policy=_RESTART,
        priority_class=gang.priority_class,
    )
    template = pod_template(pod)

    def replica(count: int) -> Manifest:
        return {"replicas": count, "restartPolicy": _RESTART, "template": template}

    if gang.is_elastic:
        return {"Worker": replica(gang.nodes)}
    if gang.nodes == 1:
        return {"Master": replica(1)}
    return {"Master": replica(1), "Worker": replica(gang.nodes - 1)}
