"""Kind `trainjob`: a TrainJob of Kubeflow Trainer with a custom TrainingRuntime."""

from typing import Final

from kube.kinds.record import Kind, Resource, State

JOB: Final = Resource(
    group="trainer.kubeflow.org",
    version="v1alpha1",
    kind="TrainJob",
    plural="trainjobs",
    title="TrainJob",
    states={
        "Complete": State.SUCCEEDED,
        "Failed": State.FAILED,
        "Suspended": State.SUSPENDED,
    },
)

RUNTIME: Final = Resource(
    group=JOB.group,
    version=JOB.version,
    kind="TrainingRuntime",
    plural="trainingruntimes",
    title="TrainingRuntime",
)


NODE: Final = "node"
"""Name that Trainer expects for the training job and for its container."""

KIND: Final = Kind(
    resource=JOB,
    capabilities=frozenset(
        {
            "hyperparameters",
            "torchtitan",
            "attempt_deadline_seconds",
            "state: suspended",
            "success: all",
            "fatal_exit_codes",
        }
    ),
    objects="TrainJob and TrainingRuntime `trainer.kubeflow.org/v1alpha1`, PodGroup",
    needs="Volcano, Kubeflow Trainer 2, JobSet",
    operator="trainer",
    pod_suffix="-node-0-{last}-abcde",
    containers=(NODE,),
    ports=frozenset({29500}),  # PET_MASTER_PORT, which Trainer sets
)
