"""Kinds of training job: each module turns a gang into the objects of one kind."""

from collections.abc import Callable, Mapping
from typing import Final

from infra.backends import (
    indexed_job,
    mpi_job,
    plain_job,
    pytorch_job,
    ray_job,
    tensorflow_job,
    train_job,
    volcano_job,
)
from infra.backends.gang import Gang
from infra.manifests import Manifest
from kube.kinds import JobKind

BACKENDS: Final[Mapping[JobKind, Callable[[Gang], list[Manifest]]]] = {
    "volcano": volcano_job.build,
    "indexed": indexed_job.build,
    "pytorch": pytorch_job.build,
    "trainjob": train_job.build,
    "mpi": mpi_job.build,
    "tensorflow": tensorflow_job.build,
    "ray": ray_job.build,
    "plain": plain_job.build,
}
"""Builders by the name that a job's setting `kind` has; the job itself comes last."""
