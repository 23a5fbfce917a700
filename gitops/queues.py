"""Hierarchy of Volcano's queues."""

from collections.abc import Mapping


def with_ancestors(queue: str, parents: Mapping[str, str | None]) -> list[str]:
    """Return a queue and its ancestors, whose limits also apply to it, starting with the queue.

    If the parents form a cycle, each queue of the cycle appears once.
    """
    found: list[str] = []
    name: str | None = queue
    while name and name not in found:
        found.append(name)
        name = parents.get(name)
    return found
