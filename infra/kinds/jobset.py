"""Kind `jobset`: a JobSet with one Indexed Job, whose pods Volcano places together."""

from infra.kinds.gang import Gang, metadata, pod_group
from infra.kinds.trainjob import job_set_spec
from infra.manifests import Manifest, compact
from kube.kinds.jobset import JOB
from kube.names import QUEUE_LABEL

_WORKER = "worker"


def build(gang: Gang) -> list[Manifest]:
    """Return the PodGroup and the JobSet, which makes the Service for the pods' host names."""
    spec = job_set_spec(gang, _WORKER, gang.pod.container)
    if gang.success == "first":
        (worker,) = spec["replicatedJobs"]
        worker["template"]["spec"]["successPolicy"] = {"rules": [{"succeededIndexes": "0"}]}
    job_set = {
        "apiVersion": JOB.api_version,
        "kind": JOB.kind,
        "metadata": metadata(gang, {QUEUE_LABEL: gang.queue}),
        "spec": compact(
            {
                "network": {"enableDNSHostnames": True, "publishNotReadyAddresses": True},
                "suspend": gang.suspend or None,
                "ttlSecondsAfterFinished": gang.ttl_seconds,
                **spec,
            }
        ),
    }
    return [pod_group(gang), job_set]
