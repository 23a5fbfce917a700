"""The `pytorch` kind: a PyTorchJob (Training Operator v1) whose pods Volcano gang-schedules.

The PodGroup has the name that the operator expects if its gang scheduling is enabled. The job
therefore always has exactly one PodGroup, and is gang-scheduled even if the operator's gang
scheduling is disabled.
"""

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
from kube.kinds import PYTORCH_CONTAINER, PYTORCH_JOB
from kube.kinds.record import RENDEZVOUS_PORT

# Every failure is retried. The operator's ExitCode policy would not retry exit codes 1 to 127.
_RESTART = "OnFailure"


def build(gang: Gang) -> list[Manifest]:
    """Return the PodGroup and the PyTorchJob.

    Unless the gang is elastic, the operator sets RANK, MASTER_ADDR and MASTER_PORT.
    """
    job = {
        "apiVersion": PYTORCH_JOB.api_version,
        "kind": PYTORCH_JOB.kind,
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
            # The operator adds up the restarts of all containers and fails the job at this limit.
            "backoffLimit": gang.retries * gang.size + 1,
            "activeDeadlineSeconds": gang.deadline_seconds,
            "schedulingPolicy": compact(
                {
                    "minAvailable": gang.minimum,
                    "queue": gang.queue,
                    "priorityClass": gang.priority_class,
                }
            ),
        }
    )


def _elastic_policy(gang: Gang) -> Manifest:
    return {
        "minReplicas": gang.minimum,
        "maxReplicas": gang.size,
        "maxRestarts": gang.retries,
        "rdzvBackend": "c10d",
        "rdzvId": gang.name,
        "rdzvPort": RENDEZVOUS_PORT,
    }


def _replicas(gang: Gang) -> Manifest:
    env = {**command_variables(gang), **gang.pod.env}
    if gang.is_elastic:
        # Without a master, the operator does not set MASTER_ADDR. Worker 0 hosts the rendezvous.
        env = {"MASTER_ADDR": f"{gang.name}-worker-0", "MASTER_PORT": str(RENDEZVOUS_PORT), **env}
    pod = replace(gang.pod, container=PYTORCH_CONTAINER, command=command(gang), env=env)
    template = pod_group_template(gang, pod, restart_policy=_RESTART)

    def replica(count: int) -> Manifest:
        return {"replicas": count, "restartPolicy": _RESTART, "template": template}

    if gang.is_elastic:
        return {"Worker": replica(gang.size)}
    if gang.size == 1:
        return {"Master": replica(1)}
    return {"Master": replica(1), "Worker": replica(gang.size - 1)}
