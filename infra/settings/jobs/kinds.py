"""The kinds of training job, and what there is to know about each."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final, Literal, get_args

JobKind = Literal["volcano", "indexed", "pytorch", "trainjob", "mpi", "tensorflow", "ray", "plain"]

KINDS: Final[tuple[JobKind, ...]] = get_args(JobKind)


LED: Final[tuple[JobKind, ...]] = ("mpi", "ray")
"""Kinds with one more pod, which starts the others and computes nothing."""


@dataclass(frozen=True)
class KindFacts:
    """What a kind is made of, what it needs, and what happens after a fault.

    `needs` is in the cluster; `program` in the image, beyond what the training image has.
    """

    objects: str
    needs: str
    after_fault: str
    program: str | None = None


_GANG_RESTARTS: Final = "all pods are removed and start again together"
_BY_TIMEOUT: Final = "by `peer_timeout`; a `command` has to see to that itself"

FACTS: Final[Mapping[JobKind, KindFacts]] = {
    "volcano": KindFacts("Volcano Job with plugin `pytorch`", "Volcano", _GANG_RESTARTS),
    "indexed": KindFacts(
        "`batch/v1` Indexed Job, PodGroup, headless Service",
        "Volcano",
        f"each failed pod is replaced, and so are its peers, which fail {_BY_TIMEOUT}",
    ),
    "pytorch": KindFacts(
        "PyTorchJob `kubeflow.org/v1`, PodGroup",
        "Volcano, Kubeflow Training Operator 1.8 or 1.9",
        "each failed container starts again in its pod, and so do its peers, which fail "
        f"{_BY_TIMEOUT}",
    ),
    "trainjob": KindFacts(
        "TrainJob and TrainingRuntime `trainer.kubeflow.org/v1alpha1`, PodGroup",
        "Volcano, Kubeflow Trainer 2, JobSet",
        _GANG_RESTARTS,
    ),
    "mpi": KindFacts(
        "Volcano Job with plugins `mpi` and `ssh`: a launcher beside the workers",
        "Volcano",
        _GANG_RESTARTS,
        program="Open MPI and OpenSSH",
    ),
    "tensorflow": KindFacts(
        "Volcano Job with plugin `tensorflow` (`TF_CONFIG`)",
        "Volcano",
        _GANG_RESTARTS,
        program="TensorFlow",
    ),
    "ray": KindFacts(
        "RayJob `ray.io/v1`, PodGroup, NetworkPolicy",
        # Of 1.2 are the retries of a RayJob.
        "Volcano, KubeRay 1.2 or later",
        "the whole Ray cluster is made anew",
        program="Ray",
    ),
    "plain": KindFacts("Volcano Job", "Volcano", _GANG_RESTARTS),
}
