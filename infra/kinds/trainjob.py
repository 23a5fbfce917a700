"""Kind `trainjob`: a TrainJob of Kubeflow Trainer 2 with a custom TrainingRuntime.

The runtime describes everything, and the TrainJob only names it: the overrides of a TrainJob have
changed between releases, and policies should find everything in one place.
"""

from infra.kinds.gang import Gang, metadata, pod_group
from infra.kinds.jobset import job_set_spec
from infra.manifests import Manifest, compact
from kube.kinds.trainjob import JOB, RUNTIME
from kube.names import QUEUE_LABEL

_NODE = "node"
"""Name that Trainer expects of the job whose pods train, and of their container."""

_ANCESTOR_LABEL = {"trainer.kubeflow.org/trainjob-ancestor-step": "trainer"}


def build(gang: Gang) -> list[Manifest]:
    """Return the PodGroup, the TrainingRuntime and the TrainJob, which become one JobSet."""
    described = metadata(gang, {QUEUE_LABEL: gang.queue})
    runtime = {
        "apiVersion": RUNTIME.api_version,
        "kind": RUNTIME.kind,
        "metadata": described,
        "spec": {
            "mlPolicy": {"numNodes": gang.size},
            "template": {"spec": job_set_spec(gang, _NODE, _NODE, labels=_ANCESTOR_LABEL)},
        },
    }
    job = {
        "apiVersion": JOB.api_version,
        "kind": JOB.kind,
        "metadata": described,
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
