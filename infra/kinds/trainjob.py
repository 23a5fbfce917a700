"""Kind `trainjob`: a TrainJob of Kubeflow Trainer 2 with a custom TrainingRuntime.

The TrainJob only refers to the runtime, which contains the complete specification, so policies can
check the specification in one object. The override fields of TrainJobs are not used, because they
have changed between releases.
"""

from infra.kinds.gang import Gang, metadata, pod_group
from infra.kinds.jobset import job_set_spec
from infra.manifests import Manifest, compact
from kube.kinds.trainjob import JOB, NODE, RUNTIME
from kube.names import QUEUE_LABEL

_ANCESTOR_LABEL = {"trainer.kubeflow.org/trainjob-ancestor-step": "trainer"}


def build(gang: Gang) -> list[Manifest]:
    """Return the PodGroup, TrainingRuntime and TrainJob.

    Trainer creates a JobSet from the TrainingRuntime and the TrainJob.
    """
    object_metadata = metadata(gang, {QUEUE_LABEL: gang.queue})
    runtime = {
        "apiVersion": RUNTIME.api_version,
        "kind": RUNTIME.kind,
        "metadata": object_metadata,
        "spec": {
            "mlPolicy": {"numNodes": gang.size},
            "template": {"spec": job_set_spec(gang, NODE, NODE, labels=_ANCESTOR_LABEL)},
        },
    }
    job = {
        "apiVersion": JOB.api_version,
        "kind": JOB.kind,
        "metadata": object_metadata,
        "spec": compact(
            {
                "runtimeRef": {
                    "apiGroup": RUNTIME.group,
                    "kind": RUNTIME.kind,
                    "name": gang.name,
                },
                "suspend": gang.suspend or None,
            }
        ),
    }
    return [pod_group(gang), runtime, job]
