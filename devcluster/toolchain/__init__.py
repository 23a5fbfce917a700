"""Pinned tools of the embedded cluster, built from source unless they are installed."""

from devcluster.toolchain.pins import (
    GROUPS,
    OPERATORS,
    OTHER_VOLCANO_RELEASES,
    Extra,
    Group,
    Operator,
    volcano_release,
)
from devcluster.toolchain.toolchain import Toolchain, ensure, go_caches, missing

__all__ = [
    "GROUPS",
    "OPERATORS",
    "OTHER_VOLCANO_RELEASES",
    "Extra",
    "Group",
    "Operator",
    "Toolchain",
    "ensure",
    "go_caches",
    "missing",
    "volcano_release",
]
