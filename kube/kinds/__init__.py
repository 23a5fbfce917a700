"""Registry of job kinds.

`kube.kinds.<kind>` contains the record of a kind, and `infra.kinds.<kind>` builds its objects.
"""

from collections.abc import Mapping
from importlib import import_module
from typing import Final, Literal, get_args

from kube.kinds.record import Capability, Kind, Resource
from kube.kinds.volcano import FLOW

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

KINDS: Final[Mapping[JobKind, Kind]] = {
    name: import_module(f"{__name__}.{name}").KIND for name in get_args(JobKind)
}

RESOURCES: Final[tuple[Resource, ...]] = (
    *dict.fromkeys(kind.resource for kind in KINDS.values()),
    FLOW,
)
"""Every API resource whose objects can represent a run."""


def kinds_that_support(capability: Capability) -> tuple[JobKind, ...]:
    """Return the names of the kinds that support a setting."""
    return tuple(name for name, kind in KINDS.items() if capability in kind.capabilities)
