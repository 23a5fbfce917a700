"""What real nodes have pulled and built: a cache that only grows, emptied where it is too much.

That is where room on the disk is short, and where the base image has changed several times: a node
then keeps layers of gigabytes that nobody asks for any more.
"""

import shutil
from collections.abc import Sequence
from typing import Final

from devcluster.host import GIB
from devcluster.images.base_image import PYTORCH
from devcluster.orphans import running_elsewhere
from devcluster.paths import Layout
from devcluster.spec import Kind

ENOUGH: Final = 12 * GIB
"""Bytes that should be free: a first start writes about as much."""

GENERATIONS: Final = 3
"""Base images whose layers the nodes may have."""

_PULLED: Final = "base-images"
"""Their names, a line each, in the order of their first start."""


def make_room(layout: Layout) -> str:
    """Empties the nodes' image stores where they have become too much; what to say, or nothing.

    Only while no cluster runs on this machine, since all share the cache.
    """
    if not layout.node_stores.exists() or running_elsewhere(Kind.REAL):
        return ""
    noted = layout.node_stores / _PULLED
    pulled = noted.read_text().split() if noted.exists() else []
    if PYTORCH.name not in pulled:
        pulled.append(PYTORCH.name)
    said = _emptied(layout, pulled)
    layout.node_stores.mkdir(parents=True, exist_ok=True)
    noted.write_text("\n".join(pulled[-1:] if said else pulled) + "\n")
    return said


def _emptied(layout: Layout, pulled: Sequence[str]) -> str:
    free = shutil.disk_usage(layout.cache).free
    if free < ENOUGH:
        why = f"only {free / GIB:.1f} GiB were free"
    elif len(pulled) > GENERATIONS:
        why = f"they had layers of {len(pulled)} base images"
    else:
        return ""
    shutil.rmtree(layout.node_stores, ignore_errors=True)
    gained = (shutil.disk_usage(layout.cache).free - free) / GIB
    return (
        f"the nodes' cached images are removed ({gained:.1f} GiB) and are pulled again, since {why}"
    )
