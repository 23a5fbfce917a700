"""What real nodes have pulled and built: a cache that only grows, emptied where room is short."""

import shutil
from typing import Final

from devcluster.host import GIB
from devcluster.orphans import running_elsewhere
from devcluster.paths import Layout
from devcluster.spec import Kind

ENOUGH: Final = 12 * GIB
"""Bytes that should be free: a first start writes about as much."""


def make_room(layout: Layout) -> str:
    """Empties the nodes' image stores where less than ENOUGH is free; what to say, or nothing.

    Only while no cluster runs on this machine, since all share the cache.
    """
    if not layout.node_stores.exists() or running_elsewhere(Kind.REAL):
        return ""
    free = shutil.disk_usage(layout.cache).free
    if free >= ENOUGH:
        return ""
    shutil.rmtree(layout.node_stores, ignore_errors=True)
    gained = (shutil.disk_usage(layout.cache).free - free) / GIB
    return (
        f"only {free / GIB:.1f} GiB were free: the nodes' cached images are removed "
        f"({gained:.1f} GiB), and are pulled again"
    )
