"""Plain data with the path of each value, and a marker for unknown values.

This module is independent of Pulumi; `policies.properties` creates the data from the policy SDK's
properties, and `policies.documents` creates it from YAML.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator, Sequence
from enum import Enum
from fnmatch import fnmatchcase
from typing import Any, Final

from kube.workloads.record import steps


class Unknown(Enum):
    """Type of `UNKNOWN`."""

    UNKNOWN = "unknown"

    def __repr__(self) -> str:
        return "a value that is not known yet"


UNKNOWN: Final = Unknown.UNKNOWN

_MERGED_LISTS: Final = frozenset(
    {
        *("containers", "initContainers", "ephemeralContainers", "volumes", "env", "ports"),
        *("volumeMounts", "volumeDevices", "resourceClaims", "claims", "imagePullSecrets"),
        *("topologySpreadConstraints", "hostAliases", "listeners"),
    }
)
"""Lists whose items are merged with the existing items by a patch. A patch replaces other lists."""

_PLAIN_NAME = re.compile(r"[A-Za-z_$][A-Za-z0-9_$-]*")

Key = str | int


class Node:
    """A value with its path.

    Reading never fails: a missing key returns a node with the value None, and anything below an
    unknown value is unknown. In a partial manifest, such as a patch, a missing key is unknown too,
    because the rest of the manifest may set it. The items of a list that a patch replaces are
    complete.
    """

    __slots__ = ("_key", "_parent", "_partial", "value")

    def __init__(
        self, value: Any, parent: Node | None = None, key: Key = "", partial: bool = False
    ) -> None:
        self.value = value
        self._parent = parent
        self._key = key
        self._partial = partial

    def __getitem__(self, key: Key) -> Node:
        value: Any = None
        if isinstance(self.value, dict):
            value = self.value.get(key, UNKNOWN if self._partial else None)
        elif self.value is UNKNOWN or (self.value is None and self._partial):
            value = UNKNOWN
        elif isinstance(self.value, list) and isinstance(key, int) and key < len(self.value):
            value = self.value[key]
        return self._child(value, key)

    def _child(self, value: Any, key: Key) -> Node:
        replaced = isinstance(self.value, list) and self._key not in _MERGED_LISTS
        return Node(value, self, key, self._partial and not replaced)

    def at(self, path: str) -> Node:
        """Return the value at a path in the syntax of `kube.workloads.record`, without `*`."""
        node = self
        for step in steps(path):
            node = node[step]
        return node

    @property
    def key(self) -> Key:
        """The key or index of the value in its parent."""
        return self._key

    @property
    def partial(self) -> bool:
        """True if the rest of the manifest is defined elsewhere."""
        return self._partial

    @property
    def steps(self) -> tuple[Key, ...]:
        """The keys from the resource down to this value."""
        if self._parent is None:
            return ()
        return (*self._parent.steps, self._key)

    @property
    def path(self) -> str:
        """The path as text, such as `spec.containers[0].resources.limits["nvidia.com/gpu"]`."""
        text = ""
        for step in self.steps:
            if isinstance(step, int):
                text += f"[{step}]"
            elif _PLAIN_NAME.fullmatch(step):
                text += f".{step}" if text else step
            else:
                text += f'["{step}"]'
        return text

    @property
    def parent(self) -> Node | None:
        """The object or list that contains this value; None at the root."""
        return self._parent

    @property
    def known(self) -> bool:
        """True if the value itself is known."""
        return self.value is not UNKNOWN

    @property
    def awaited(self) -> bool:
        """True if the manifest sets the value, or an object that contains it, to an unknown value.

        An unset value of a partial manifest is unknown as well, but it is not awaited.
        """
        if self.value is not UNKNOWN or self._parent is None:
            return self.value is UNKNOWN
        siblings = self._parent.value
        is_set = isinstance(siblings, dict) and siblings.get(self._key) is UNKNOWN
        return is_set or isinstance(siblings, list) or self._parent.awaited

    @property
    def absent(self) -> bool:
        """True if the value is absent; null counts as absent, as in Kubernetes."""
        return self.value is None

    @property
    def present(self) -> bool:
        """True if there is a known value."""
        return self.value is not None and self.value is not UNKNOWN

    @property
    def text(self) -> str | None:
        """The value if it is a string, else None."""
        return self.value if isinstance(self.value, str) else None

    @property
    def complete(self) -> bool:
        """True if all items of a list are known, so that a missing item is really missing."""
        if isinstance(self.value, list):
            return all(item is not UNKNOWN for item in self.value)
        return self.value is not UNKNOWN

    def items(self) -> Iterator[Node]:
        """Yield the known items of a list; yield nothing for other values."""
        if isinstance(self.value, list):
            for index, item in enumerate(self.value):
                if item is not None and item is not UNKNOWN:
                    yield self._child(item, index)

    def fields(self) -> Iterator[tuple[str, Node]]:
        """Yield the keys and values of an object; yield nothing for other values."""
        if isinstance(self.value, dict):
            for key, item in self.value.items():
                yield key, Node(item, self, key, self._partial)

    def branches(self) -> list[Node]:
        """Return the children of this value that are objects or lists."""
        if isinstance(self.value, dict):
            pairs: Iterable[tuple[Key, Any]] = self.value.items()
        elif isinstance(self.value, list):
            pairs = enumerate(self.value)
        else:
            return []
        return [self._child(item, key) for key, item in pairs if isinstance(item, dict | list)]


def any_field(value: Any, test: Callable[[str, Any], bool]) -> bool:
    """Return whether `test(key, value)` is true for a field of plain data, at any depth.

    Items of lists have an empty key. Rules that search a whole manifest call this function
    first, because a search with `Node` takes five times as long.
    """
    pending = [value]
    while pending:
        item = pending.pop()
        pairs = item.items() if isinstance(item, dict) else [("", child) for child in item]
        for key, child in pairs:
            if test(key, child):
                return True
            if isinstance(child, dict | list):
                pending.append(child)
    return False


def nodes_at(root: Node, path: Sequence[str]) -> Iterator[Node]:
    """Yield the nodes at a path, in which `*` stands for every item or value.

    A key that contains `*` stands for all matching keys. If a plain `*` matches nothing, yield one
    node, whose value is absent or unknown.
    """
    if not path:
        yield root
        return
    head, *rest = path
    if "*" in head and head != "*":
        for key, child in root.fields():
            if fnmatchcase(key, head):
                yield from nodes_at(child, rest)
        return
    if head != "*":
        yield from nodes_at(root[head], rest)
        return
    children = [*root.items(), *(node for _, node in root.fields())]
    for child in children or [root[0]]:
        yield from nodes_at(child, rest)
