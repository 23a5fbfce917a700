"""Kind `jobset`: a JobSet with one Indexed Job, whose pods Volcano schedules as a gang."""

from collections.abc import Mapping
from dataclasses import replace

from infra.kinds.gang import Gang, metadata, pod_group, pod_group_template
from infra.kinds.indexed import failure_policy, indexed_pod, success_policy
from infra.manifests import Manifest, compact
from kube.kinds.jobset import JOB
from kube.names import QUEUE_LABEL

_WORKER = "worker"


def build(gang: Gang) -> list[Manifest]:
    """Return the PodGroup and the JobSet, which creates the Service for the pods' host names."""
    job_set = {
        "apiVersion": JOB.api_version,
        "kind": JOB.kind,
        "metadata": metadata(gang, {QUEUE_LABEL: gang.queue}),
        "spec": compact(
            {
                "network": {"enableDNSHostnames": True, "publishNotReadyAddresses": True},
                "suspend": gang.suspend or None,
                **job_set_spec(gang, _WORKER, gang.pod.container),
            }
        ),
    }
    return [pod_group(gang), job_set]


def job_set_spec(
    gang: Gang, name: str, container: str, *, labels: Mapping[str, str] | None = None
) -> Manifest:
    """Return the specification of a JobSet with one Indexed Job named `name`.

    When a pod fails without being evicted, the Job fails, and the JobSet restarts all pods unless
    the exit code is fatal.
    """
    # The controller names pods <JobSet>-<job>-<replica>-<index>, and the Service <JobSet>.
    pod = indexed_pod(gang, f"{gang.name}-{name}-0-0.{gang.name}")
    job = compact(
        {
            "completionMode": "Indexed",
            "completions": gang.size,
            "parallelism": gang.size,
            "backoffLimit": 0,
            "podFailurePolicy": failure_policy(container, gang.fatal_exit_codes),
            "successPolicy": success_policy(gang),
            "template": pod_group_template(gang, replace(pod, container=container)),
        }
    )
    return {
        "failurePolicy": {
            "maxRestarts": gang.retries,
            "rules": [
                {
                    "name": "fatalExitCode",
                    "action": "FailJobSet",
                    "onJobFailureReasons": ["PodFailurePolicy"],
                }
            ],
        },
        "replicatedJobs": [
            {
                "name": name,
                "replicas": 1,
                "template": compact(
                    {"metadata": {"labels": labels} if labels else None, "spec": job}
                ),
            }
        ],
    }
