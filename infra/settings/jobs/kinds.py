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
    """What a kind is made of, what the cluster needs for it, and what happens after a fault."""

    objects: str
    needs: str
    after_fault: str


_GANG_RESTARTS: Final = "all pods are removed and start again together"

FACTS: Final[Mapping[JobKind, KindFacts]] = {
    "volcano": KindFacts("Volcano Job with plugin `pytorch`", "Volcano", _GANG_RESTARTS),
    "indexed": KindFacts(
        "`batch/v1` Indexed Job, PodGroup, headless Service",
        "Volcano",
        "each failed pod is replaced; its peers fail by `peer_timeout` and are replaced, too; "
        "evictions are not counted as retries",
    ),
    "pytorch": KindFacts(
        "PyTorchJob `kubeflow.org/v1`, PodGroup",
        "Volcano, Kubeflow Training Operator 1.8 or 1.9",
        "each failed container starts again in its pod, and so do its peers by `peer_timeout`",
    ),
    "trainjob": KindFacts(
        "TrainJob and TrainingRuntime `trainer.kubeflow.org/v1alpha1`, PodGroup",
        "Volcano, Kubeflow Trainer 2, JobSet",
        _GANG_RESTARTS,
    ),
    "mpi": KindFacts(
        "Volcano Job with plugins `mpi` and `ssh`: a launcher beside the workers",
        "Volcano; Open MPI and OpenSSH in the image",
        _GANG_RESTARTS,
    ),
    "tensorflow": KindFacts(
        "Volcano Job with plugin `tensorflow` (`TF_CONFIG`)",
        "Volcano; TensorFlow in the image",
        _GANG_RESTARTS,
    ),
    "ray": KindFacts(
        "RayJob `ray.io/v1`, PodGroup, NetworkPolicy",
        "Volcano, KubeRay 1.1 or later; Ray in the image",
        "the whole Ray cluster is made anew",
    ),
    "plain": KindFacts("Volcano Job", "Volcano", _GANG_RESTARTS),
}
