"""Kinds of training job: each module turns a gang into the objects of one kind."""

from collections.abc import Callable, Mapping
from typing import Final

from infra.backends import indexed_job, volcano_job
from infra.backends.gang import Gang
from infra.manifests import Manifest

BACKENDS: Final[Mapping[str, Callable[[Gang], list[Manifest]]]] = {
    "volcano": volcano_job.build,
    "indexed": indexed_job.build,
}
"""Builders by the name that a job's setting `kind` has; the job itself comes last."""
