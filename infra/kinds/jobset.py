"""The `jobset` and `trainjob` kinds: a JobSet whose pods Volcano schedules as a gang.

A TrainJob of Kubeflow Trainer 2 only refers to its TrainingRuntime, which contains the complete
specification, so policies can check the specification in one object. The override fields of
TrainJobs are not used, because they have changed between releases.
"""

from collections.abc import Mapping
from dataclasses import replace

from infra.kinds.gang import Gang, metadata, pod_group, pod_group_template
from infra.kinds.indexed import failure_policy, indexed_pod, success_policy
from infra.manifests import Manifest, compact
from kube.kinds import JOB_SET, TRAIN_JOB, TRAINER_NODE, TRAINING_RUNTIME
from kube.names import QUEUE_LABEL

_WORKER = "worker"
_ANCESTOR_LABEL = {"trainer.kubeflow.org/trainjob-ancestor-step": "trainer"}


def build(gang: Gang) -> list[Manifest]:
    """Return the PodGroup and the JobSet, which creates the Service for the pods' host names."""
    job_set = {
        "apiVersion": JOB_SET.api_version,
        "kind": JOB_SET.kind,
        "metadata": metadata(gang, {QUEUE_LABEL: gang.queue}),
        "spec": compact(
            {
                "network": {"enableDNSHostnames": True, "publishNotReadyAddresses": True},
                "suspend": gang.suspend or None,
                **_job_set_spec(gang, _WORKER, gang.pod.container),
            }
        ),
    }
    return [pod_group(gang), job_set]


def build_train_job(gang: Gang) -> list[Manifest]:
    """Return the PodGroup, TrainingRuntime and TrainJob.

    Trainer creates a JobSet from the TrainingRuntime and the TrainJob.
    """
    object_metadata = metadata(gang, {QUEUE_LABEL: gang.queue})
    spec = _job_set_spec(gang, TRAINER_NODE, TRAINER_NODE, labels=_ANCESTOR_LABEL)
    runtime = {
        "apiVersion": TRAINING_RUNTIME.api_version,
        "kind": TRAINING_RUNTIME.kind,
        "metadata": object_metadata,
        "spec": {"mlPolicy": {"numNodes": gang.size}, "template": {"spec": spec}},
    }
    reference = {
        "apiGroup": TRAINING_RUNTIME.group,
        "kind": TRAINING_RUNTIME.kind,
        "name": gang.name,
    }
    job = {
        "apiVersion": TRAIN_JOB.api_version,
        "kind": TRAIN_JOB.kind,
        "metadata": object_metadata,
        "spec": compact({"runtimeRef": reference, "suspend": gang.suspend or None}),
    }
    return [pod_group(gang), runtime, job]


def _job_set_spec(
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
