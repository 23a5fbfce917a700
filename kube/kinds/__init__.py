"""Job kinds: API resources, requirements and supported settings.

The builders in `infra.kinds` create the objects of each kind.
"""

from collections.abc import Mapping
from typing import Final, Literal

from kube.kinds.record import (
    GANG_RESTARTS,
    PEERS_FAIL_TOO,
    RENDEZVOUS_PORT,
    Capability,
    Kind,
    Resource,
    State,
)
from kube.kinds.volcano import FLOW
from kube.kinds.volcano import JOB as VOLCANO_JOB

INDEXED_JOB: Final = Resource(
    group="batch",
    version="v1",
    kind="Job",
    plural="jobs",
    title="Job",
    states={"Complete": State.SUCCEEDED, "Failed": State.FAILED, "Suspended": State.SUSPENDED},
)

PYTORCH_JOB: Final = Resource(
    group="kubeflow.org",
    version="v1",
    kind="PyTorchJob",
    plural="pytorchjobs",
    title="PyTorchJob",
    states={
        "Succeeded": State.SUCCEEDED,
        "Failed": State.FAILED,
        "Suspended": State.SUSPENDED,
        "Restarting": State.RESTARTING,
    },
)

TRAIN_JOB: Final = Resource(
    group="trainer.kubeflow.org",
    version="v1alpha1",
    kind="TrainJob",
    plural="trainjobs",
    title="TrainJob",
    states={"Complete": State.SUCCEEDED, "Failed": State.FAILED, "Suspended": State.SUSPENDED},
)

TRAINING_RUNTIME: Final = Resource(
    group=TRAIN_JOB.group,
    version=TRAIN_JOB.version,
    kind="TrainingRuntime",
    plural="trainingruntimes",
    title="TrainingRuntime",
)

RAY_JOB: Final = Resource(
    group="ray.io",
    version="v1",
    kind="RayJob",
    plural="rayjobs",
    title="RayJob",
    phase=("jobDeploymentStatus",),
    states={
        "Complete": State.SUCCEEDED,
        "Failed": State.FAILED,
        "Suspended": State.SUSPENDED,
        "Retrying": State.RESTARTING,
    },
)

JOB_SET: Final = Resource(
    group="jobset.x-k8s.io",
    version="v1alpha2",
    kind="JobSet",
    plural="jobsets",
    title="JobSet",
    states={"Completed": State.SUCCEEDED, "Failed": State.FAILED, "Suspended": State.SUSPENDED},
    restarts=("restarts",),
)

PYTORCH_CONTAINER: Final = "pytorch"
"""Name that the Training Operator requires for the training container."""

TRAINER_NODE: Final = "node"
"""Name that Trainer expects for the training job and for its container."""

RAY_WORKER: Final = "ray-worker"
RAY_HEAD: Final = "ray-head"
"""Names of the containers in worker pods and in the head pod."""

NOTEBOOK_CONTAINER: Final = "notebook"

SSH_PORT: Final = 2222

JobKind = Literal[
    "volcano",
    "indexed",
    "pytorch",
    "trainjob",
    "mpi",
    "tensorflow",
    "ray",
    "plain",
    "jobset",
    "notebook",
]

_PROGRAMS: Final[frozenset[Capability]] = frozenset({"hyperparameters", "torchtitan"})
_RETRIES: Final[frozenset[Capability]] = frozenset({"attempt_deadline_seconds", "fatal_exit_codes"})
_STEPS: Final[frozenset[Capability]] = frozenset({"state: stopped", "steps", "schedule"})
_SUCCESS: Final[frozenset[Capability]] = frozenset({"success: all", "success: first"})

KINDS: Final[Mapping[JobKind, Kind]] = {
    "volcano": Kind(
        resource=VOLCANO_JOB,
        capabilities=frozenset({*_PROGRAMS, *_RETRIES, *_STEPS, *_SUCCESS, "min_nodes", "inputs"}),
        objects="Volcano Job with the `pytorch` plugin",
        needs="Volcano",
        service="several pods",
        ports=frozenset({RENDEZVOUS_PORT}),
    ),
    "indexed": Kind(
        resource=INDEXED_JOB,
        capabilities=frozenset(
            {*_PROGRAMS, *_RETRIES, *_SUCCESS, "deadline_seconds", "state: suspended"}
        ),
        objects="`batch/v1` Indexed Job, PodGroup, headless Service",
        needs="Volcano",
        after_fault=f"failed pods are replaced; {PEERS_FAIL_TOO}",
        pod_suffix="-{last}-abcde",
        service="several pods",
        ports=frozenset({RENDEZVOUS_PORT}),
    ),
    "pytorch": Kind(
        resource=PYTORCH_JOB,
        capabilities=frozenset(
            {
                *_PROGRAMS,
                "min_nodes",
                "deadline_seconds",
                "attempt_deadline_seconds",
                "state: suspended",
                "success: first",
            }
        ),
        objects="PyTorchJob `kubeflow.org/v1`, PodGroup",
        needs="Volcano, Kubeflow Training Operator 1.8 or 1.9",
        after_fault=f"failed containers restart in their pods; {PEERS_FAIL_TOO}",
        operator="training-operator",
        containers=(PYTORCH_CONTAINER,),
        service="none",
        ports=frozenset({RENDEZVOUS_PORT}),
    ),
    "trainjob": Kind(
        resource=TRAIN_JOB,
        capabilities=frozenset({*_PROGRAMS, *_RETRIES, "state: suspended", "success: all"}),
        objects="TrainJob and TrainingRuntime `trainer.kubeflow.org/v1alpha1`, PodGroup",
        needs="Volcano, Kubeflow Trainer 2, JobSet",
        operator="trainer",
        pod_suffix="-node-0-{last}-abcde",
        containers=(TRAINER_NODE,),
        ports=frozenset({29500}),  # PET_MASTER_PORT, which Trainer sets
    ),
    "mpi": Kind(
        resource=VOLCANO_JOB,
        capabilities=frozenset(
            {*_RETRIES, *_STEPS, "hyperparameters", "success: first", "launcher"}
        ),
        objects="Volcano Job with the `mpi` and `ssh` plugins: a launcher and the workers",
        needs="Volcano",
        image_needs="Open MPI and OpenSSH",
        pod_suffix="-launcher-0",
        ports=frozenset({RENDEZVOUS_PORT, SSH_PORT}),
    ),
    "tensorflow": Kind(
        resource=VOLCANO_JOB,
        capabilities=frozenset({*_RETRIES, *_STEPS, "hyperparameters", "success: all"}),
        objects="Volcano Job with the `tensorflow` plugin (`TF_CONFIG`)",
        needs="Volcano",
        image_needs="TensorFlow",
        program="examples.tensorflow",
        service="several pods",
    ),
    "ray": Kind(
        resource=RAY_JOB,
        capabilities=frozenset({"deadline_seconds", "state: suspended", "launcher"}),
        objects="RayJob `ray.io/v1`, PodGroup, NetworkPolicy",
        # Earlier releases have no retries.
        needs="Volcano, KubeRay 1.2 or later",
        after_fault="the whole Ray cluster is re-created",
        image_needs="Ray",
        operator="kuberay",
        # KubeRay rejects longer names because it derives pod names from them.
        max_run_name=47,
        containers=(RAY_WORKER, RAY_HEAD),
        service="none",
    ),
    "plain": Kind(
        resource=VOLCANO_JOB,
        capabilities=frozenset({*_RETRIES, *_STEPS, "min_nodes", "success: all"}),
        objects="Volcano Job",
        needs="Volcano",
    ),
    "jobset": Kind(
        resource=JOB_SET,
        # Without `deadline_seconds`: a deadline on the Job would restart with each attempt.
        capabilities=frozenset({*_PROGRAMS, *_RETRIES, *_SUCCESS, "state: suspended"}),
        objects="JobSet `jobset.x-k8s.io/v1alpha2`, PodGroup",
        # Earlier releases have no rules for fatal exit codes.
        needs="Volcano, JobSet 0.6 or later",
        after_fault=GANG_RESTARTS,
        operator="trainer",
        pod_suffix="-worker-0-{last}-abcde",
        ports=frozenset({RENDEZVOUS_PORT}),
    ),
    "notebook": Kind(
        resource=VOLCANO_JOB,
        capabilities=frozenset({"notebook", "attempt_deadline_seconds"}),
        objects="Volcano Job; with a route, also Service, NetworkPolicy and HTTPRoute",
        needs="Volcano; Gateway API for a route",
        after_fault="the notebook is suspended; after an eviction, it restarts",
        image_needs="JupyterLab",
        containers=(NOTEBOOK_CONTAINER,),
        service="route",
    ),
}

RESOURCES: Final[tuple[Resource, ...]] = (
    *dict.fromkeys(kind.resource for kind in KINDS.values()),
    FLOW,
)
"""Every API resource whose objects can represent a run."""


def kinds_that_support(capability: Capability) -> tuple[JobKind, ...]:
    """Return the names of the kinds that support a setting."""
    return tuple(name for name, kind in KINDS.items() if capability in kind.capabilities)
