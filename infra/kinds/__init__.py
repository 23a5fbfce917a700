"""Builders for the job kinds: each turns a gang into the manifests of one kind."""

from collections.abc import Callable, Mapping
from typing import Final

from infra.kinds import indexed, jobset, mpi, notebook, pytorch, ray, volcano
from infra.kinds.gang import Gang
from infra.manifests import Manifest
from kube.kinds import JobKind

BUILDERS: Final[Mapping[JobKind, Callable[[Gang], list[Manifest]]]] = {
    "volcano": volcano.build,
    "indexed": indexed.build,
    "pytorch": pytorch.build,
    "trainjob": jobset.build_train_job,
    "mpi": mpi.build,
    "tensorflow": volcano.build_tensorflow,
    "ray": ray.build,
    "plain": volcano.build_plain,
    "jobset": jobset.build,
    "notebook": notebook.build,
}
"""Maps the kinds to the functions that build their manifests.

The last manifest is the job, the JobFlow that starts it, or, for a stopped run, the Command that
terminates it.
"""
