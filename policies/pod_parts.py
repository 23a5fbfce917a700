"""Containers, images and devices of pods.

The registry of workload kinds contains the paths of these parts for each kind. Any object with a
list of containers is treated as a pod specification, even if its kind is not in the registry.
"""

from __future__ import annotations

import posixpath
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Final, Literal

from kube.quantities import quantity_or_none
from kube.workloads.record import Devices, Pods, steps
from policies.values import UNKNOWN, Key, Node, nodes_at

ContainerKind = Literal["main", "init", "sidecar", "ephemeral"]

LISTS: Final[tuple[tuple[str, ContainerKind], ...]] = (
    ("containers", "main"),
    ("initContainers", "init"),
    ("ephemeralContainers", "ephemeral"),
)
_SIDECARS: Final = ("sidecars", "sidecarContainers")
_REPLACING: Final = ("resourcesPerNode",)
"""Fields that replace inherited values instead of being merged with them."""


class LayeredNode(Node):
    """An object whose absent fields are looked up in defaults.

    If `inherited` is empty, all fields have defaults; otherwise, only the fields in `inherited` do.
    """

    __slots__ = ("_defaults", "_inherited")

    def __init__(
        self, node: Node, defaults: Sequence[Node], partial: bool, inherited: Sequence[str]
    ) -> None:
        super().__init__(node.value, node.parent, node.key, partial)
        self._defaults = defaults
        self._inherited = inherited

    def __getitem__(self, key: Key) -> Node:
        inherits = not self._inherited or key in self._inherited
        if inherits and self.value.get(key) is None:
            for default in self._defaults:
                if not default[key].absent:
                    return default[key]
        return super().__getitem__(key)

    def every(self, key: Key) -> list[Node]:
        """Return the field of the object and of each default that sets it."""
        nodes = [super().__getitem__(key), *(default[key] for default in self._defaults)]
        return [node for node in nodes if node.value is not None]


class InheritingNode(Node):
    """An object that inherits absent fields, at any depth, from a template."""

    __slots__ = ("_own", "_template")

    def __init__(self, own: Node, template: Node) -> None:
        value = {**template.value, **{key: v for key, v in own.value.items() if v is not None}}
        super().__init__(value, own.parent, own.key, own.partial)
        self._own = own
        self._template = template

    def __getitem__(self, key: Key) -> Node:
        own, inherited = self._own[key], self._template[key]
        if isinstance(own.value, dict) and isinstance(inherited.value, dict):
            return InheritingNode(own, inherited)
        return inherited if self._own.value.get(key) is None and not inherited.absent else own

    def fields(self) -> Iterator[tuple[str, Node]]:
        """Yield the fields of the object and of the template."""
        for key in self.value:
            yield key, self[key]


class JoinedNode(Node):
    """A list that joins the items of several lists."""

    __slots__ = ("_nodes",)

    def __init__(self, nodes: Sequence[Node]) -> None:
        first = nodes[0]
        super().__init__(first.value, first.parent, first.key)
        self._nodes = nodes

    @property
    def complete(self) -> bool:
        """True if all items of all lists are known."""
        return all(node.complete for node in self._nodes)

    def items(self) -> Iterator[Node]:
        """Yield the known items of all lists."""
        for node in self._nodes:
            yield from node.items()


class RenamedNode(Node):
    """An object with some fields at non-standard paths. `standard` contains the other fields."""

    __slots__ = ("_fields", "_inner", "_standard")

    def __init__(self, node: Node, fields: Mapping[str, str], standard: Node) -> None:
        super().__init__(standard.value, standard.parent, standard.key, standard.partial)
        self._inner = node
        self._fields = fields
        self._standard = standard

    def __getitem__(self, key: Key) -> Node:
        path = self._fields.get(str(key))
        found = self._inner.at(path) if path else self._standard[key]
        return found if found.present else self._standard[key]


class ContainerNode(Node):
    """A container with fields at non-standard paths, or fields set by the controller or the pod."""

    __slots__ = ("_fields", "_inner", "_limits", "_supplied")

    def __init__(self, node: Node, location: Pods, limits: Mapping[str, Any]) -> None:
        super().__init__(node.value, node.parent, node.key, node.partial)
        self._inner = node
        self._fields = location.fields
        self._supplied = location.supplied
        self._limits = limits

    def __getitem__(self, key: Key) -> Node:
        path = steps(self._fields.get(str(key), "")) or (key,)
        found = self._inner
        for step in path:
            found = found[step]
        if not found.present and isinstance(self.value, dict) and key in self.value:
            found = self._inner[key]
        if found.absent and key in self._supplied:
            return Node(UNKNOWN, found.parent, found.key)
        if path[-1] in _REPLACING and isinstance(found.value, dict):
            return Node(found.value, found.parent, found.key)
        if key == "image":
            return _image(self, found)
        return self._with_devices(found) if key == "resources" and self._limits else found

    def _with_devices(self, resources: Node) -> Node:
        devices = resources.value if isinstance(resources.value, dict) else {}
        limits = {**(devices.get("limits") or {}), **self._limits}
        return Node({**devices, "limits": limits}, self, resources.key, self.partial)


def _image(container: Node, image: Node) -> Node:
    """Return the name of an image, even if the repository and the tag are separate fields."""
    if isinstance(image.value, dict):
        parts = [image[key] for key in ("repository", "tag", "version")]
        if any(part.awaited for part in parts):
            return Node(UNKNOWN, container, image.key)
        name, tag = image["repository"].text, image["tag"].text or image["version"].text
    elif isinstance(container.value, dict) and "repository" in container.value:
        parts = [container[key] for key in ("repository", "version", "tag")]
        if any(part.awaited for part in (image, *parts)):
            return Node(UNKNOWN, container, image.key)
        name = f"{container['repository'].text}/{container.value.get('image')}"
        tag = container["version"].text or container["tag"].text
    else:
        return image
    joined = f"{name}@{tag}" if tag and tag.startswith("sha256:") else f"{name}:{tag}"
    return Node(joined if tag else name, container, image.key)


def containers_at(spec: Node, location: Pods) -> Iterator[tuple[Node, ContainerKind]]:
    """Yield each container of a pod with its type."""
    for key, kind in LISTS:
        for node in spec[key].items():
            is_sidecar = kind == "init" and node["restartPolicy"].value == "Always"
            is_first = key == "containers" and node.key == 0
            supplied = location.supplied and (is_first or not location.first_supplied)
            container = ContainerNode(node, location, {}) if supplied else node
            yield container, "sidecar" if is_sidecar else kind
    limits = dict(devices_at(spec, location.devices))
    for path in location.containers:
        keys = steps(path)
        for node in nodes_at(spec, keys):
            if isinstance(node.value, dict):
                sidecar = bool(keys) and keys[0] in _SIDECARS
                kind = "sidecar" if sidecar else "main"
                container_limits = {} if sidecar else limits
                if location.reference and node[location.reference].present:
                    node = Node(node.value, node.parent, node.key, partial=True)
                template = spec.at(location.templates.get(path, ""))
                if path in location.templates and isinstance(template.value, dict):
                    node = InheritingNode(node, template)
                yield ContainerNode(node, location, container_limits), kind


def images_at(spec: Node, location: Pods) -> Iterator[Node]:
    """Yield the images that a pod specifies outside its containers."""
    for path in location.images:
        for node in nodes_at(spec, steps(path)):
            image = _image(node, node["image"]) if isinstance(node.value, dict) else node
            uri = image.text or ""
            if "://" not in uri:
                yield image
            elif name := image_of_uri(uri):
                yield Node(name, image.parent, image.key)


def image_of_uri(uri: str) -> str:
    """Return the image that the URI of a model refers to; empty if it refers to something else.

    KServe also supports variants of the `oci` scheme, such as `oci+native`.
    """
    scheme, _, name = uri.partition("://")
    return name if scheme.partition("+")[0] == "oci" else ""


def devices_at(spec: Node, devices: Sequence[Devices]) -> dict[str, Any]:
    """Map resources to the amounts that a pod requests outside its containers."""
    found: dict[str, Any] = {}
    for location in devices:
        summed: dict[str, Any] = {}
        for node in nodes_at(spec, steps(location.each)):
            is_number = not (location.resource or location.name)
            name = str(node.key) if is_number else location.resource or node.at(location.name).text
            count = node.at(location.count).value if location.count or is_number else 1
            if not is_number and not isinstance(node.value, dict):
                continue
            if name and count is not None and count is not UNKNOWN:
                amount = quantity_or_none(count)
                known = quantity_or_none(summed.get(name, 0))
                both_known = amount is not None and known is not None
                summed[name] = str(known + amount) if both_known else count  # type: ignore[operator]
        for name, amount in summed.items():
            known, new = quantity_or_none(found.get(name, 0)), quantity_or_none(amount)
            if known is None or new is None or new > known:
                found[name] = amount
    return found


def normalize_path(value: str) -> str:
    """Return a mount path as the kubelet uses it: absolute, without `.`, `..` and `//`."""
    return "/" + posixpath.normpath(f"/{value}").lstrip("/")


def structural_specs(root: Node, patterns: Sequence[str]) -> Iterator[Node]:
    """Yield every object with a list of containers.

    The status is ignored, as is everything at or below the paths in `patterns`.
    """
    skipped = {node.steps for path in patterns for node in nodes_at(root, steps(path))}
    pending = [root]
    while pending:
        node = pending.pop()
        if skipped and node.steps in skipped:
            continue
        if isinstance(node.value, dict):
            if any(key in node.value for key, _ in LISTS):
                yield node
            at_root = node.parent is None
            children = [child for child in node.branches() if child.key != "status" or not at_root]
        else:
            children = node.branches()
        pending.extend(reversed(children))
