"""A single Kubernetes object, as rules receive it."""

from __future__ import annotations

import re
from collections.abc import Sequence
from decimal import Decimal
from fnmatch import fnmatchcase
from functools import cached_property
from typing import Any

from kube.workloads import WORKLOAD_KINDS, Registry, find
from kube.workloads.record import WorkloadKind, steps
from policies.counts import upper_bound
from policies.values import UNKNOWN, Node, nodes_at

_ANCHOR = re.compile(r"^[+=^<X]?\((.*)\)$")
_PULUMI_PREFIX = "kubernetes:"
# The only type for which the provider creates no object itself: it passes the values to Helm.
RELEASE = "kubernetes:helm.sh/v3:Release"
# Types of components. Their children are registered as separate resources.
_COMPONENTS = frozenset(
    f"kubernetes:{name}"
    for name in (
        *("helm.sh/v2:Chart", "helm.sh/v3:Chart", "helm.sh/v4:Chart"),
        *("kustomize:Directory", "kustomize/v2:Directory"),
        *("yaml:ConfigFile", "yaml:ConfigGroup", "yaml/v2:ConfigFile", "yaml/v2:ConfigGroup"),
    )
)


def address_of(namespace: str, group: str, kind: str, name: str) -> str:
    """Return the address of an object: `namespace/Kind/name`, or `namespace/Kind.group/name`.

    The group is omitted only if it belongs to Kubernetes (no dot, or a subdomain of k8s.io), so
    that custom resources of other groups cannot have the same address as a built-in object.
    """
    is_built_in = "." not in group or group.endswith(".k8s.io")
    return f"{namespace}/{kind if is_built_in else f'{kind}.{group}'}/{name}"


def _without_anchors(value: Any) -> Any:
    """Return plain data without Kyverno's anchors around keys, as in `+(hostNetwork)`."""
    if isinstance(value, dict):
        return {_ANCHOR.sub(r"\1", key): _without_anchors(item) for key, item in value.items()}
    return [_without_anchors(item) for item in value] if isinstance(value, list) else value


class Resource:
    """A Kubernetes object as it was declared.

    `pulumi_type` is the engine's type token, and `properties` is plain data (see
    `policies.properties`). If `protected` is true, Pulumi rejects the deletion of the resource.
    `existing` lists address patterns of objects that already exist; patches of these objects create
    nothing. `kinds` is the registry of workload kinds. If the object is embedded in another one,
    `node` is its location there. `default_namespace` is the namespace of an object that sets none,
    or None if it is unknown. `copies` is the maximum number of copies of the object that run at the
    same time.
    """

    def __init__(
        self,
        pulumi_type: str,
        properties: Any,
        *,
        name: str = "",
        urn: str = "",
        protected: bool = False,
        existing: Sequence[str] = (),
        kinds: Registry = WORKLOAD_KINDS,
        node: Node | None = None,
        default_namespace: str | None = "default",
        copies: Decimal = Decimal(1),
    ) -> None:
        self.pulumi_type = pulumi_type
        self.pulumi_name = name
        self.urn = urn
        self.protected = protected
        self.properties = properties if isinstance(properties, dict) else {}
        self._existing = existing
        self._kinds = kinds
        self._node = node
        self._default_namespace = default_namespace
        self.copies = copies

    def list_item(self, node: Node) -> Resource:
        """Return the resource for an item of this list."""
        return self._child(node, self._default_namespace)

    def embedded_object(self, node: Node) -> Resource:
        """Return the resource for an object that is embedded in this one."""
        if self.record is None or not self.record.shares_namespace:
            return self._child(node, "default")
        return self._child(node, self.namespace if self.record.namespaced else None)

    def _child(self, node: Node, default_namespace: str | None) -> Resource:
        return Resource(
            "kubernetes:",
            node.value,
            urn=self.urn,
            existing=self._existing,
            kinds=self._kinds,
            node=node,
            default_namespace=default_namespace,
            copies=self.copies * self._embedded_copies,
        )

    @cached_property
    def _embedded_copies(self) -> Decimal:
        """Maximum number of objects that run for each embedded manifest; 1 if it is unknown."""
        count = self.record.copies if self.record is not None else None
        maximum = upper_bound(self.root, count, ()) if count is not None else None
        return Decimal(1) if maximum is None else maximum

    @cached_property
    def record(self) -> WorkloadKind | None:
        """The registry's record for the kind, if there is one."""
        return find(self._kinds, self.group, self.kind) if self.is_manifest else None

    @cached_property
    def is_manifest(self) -> bool:
        """True if the provider creates a Kubernetes object from the resource.

        Like the provider, this check uses `apiVersion` and `kind` in the properties rather than the
        type token, because anyone can register an object under a component's type token.
        """
        if not self.pulumi_type.startswith(_PULUMI_PREFIX) or self.pulumi_type == RELEASE:
            return False
        declared = {"apiVersion", "kind"} <= self.properties.keys()
        return declared or self.pulumi_type not in _COMPONENTS

    @cached_property
    def api_version(self) -> str:
        """API version, such as `apps/v1`, from the manifest or, if unset, from the type."""
        declared = self.properties.get("apiVersion")
        if isinstance(declared, str):
            return declared
        version = self.pulumi_type.removeprefix(_PULUMI_PREFIX).rpartition(":")[0]
        return version.removeprefix("core/")

    @cached_property
    def group(self) -> str:
        """API group in lower case; empty for core objects."""
        return self.api_version.rpartition("/")[0].lower()

    @cached_property
    def kind(self) -> str:
        """Kind, such as `Deployment`."""
        declared = self.properties.get("kind")
        return declared if isinstance(declared, str) else self.pulumi_type.rpartition(":")[2]

    @cached_property
    def is_patch(self) -> bool:
        """True if the provider applies a patch, which creates the object if it is absent."""
        return self.pulumi_type.endswith("Patch") and not self.kind.endswith("Patch")

    @cached_property
    def is_partial(self) -> bool:
        """True if the rest of the object is declared elsewhere.

        A patch is treated as a complete object unless the configuration states that the object
        exists.
        """
        return self.is_patch and self.is_named(self._existing)

    @cached_property
    def listed(self) -> list[Node]:
        """The items of a list, such as a PodList, each with its `apiVersion` and `kind`."""
        items = self.properties.get("items")
        if not self.kind.endswith("List") or not isinstance(items, list):
            return []
        defaults = {"apiVersion": self.api_version, "kind": self.kind.removesuffix("List")}
        nodes = self.root["items"].items()
        return [
            Node({**defaults, **node.value}, node.parent, node.key)
            for node in nodes
            if isinstance(node.value, dict)
        ]

    @cached_property
    def hidden_effects(self) -> str:
        """Effects that rules cannot see, such as `it deploys a chart`; usually empty."""
        if self.pulumi_type == RELEASE:
            return "it deploys a chart"
        if self.record is None:
            return ""
        sources = (node for path in self.record.remote for node in nodes_at(self.root, steps(path)))
        if any(source.text not in (None, "", "cluster") for source in sources):
            return "it runs definitions from outside the cluster"
        return self.record.unseen

    @cached_property
    def root(self) -> Node:
        """The object as a node."""
        if self._node is not None:
            return self._node
        anchored = self.record is not None and self.record.anchors
        properties = _without_anchors(self.properties) if anchored else self.properties
        return Node(properties, partial=self.is_partial)

    @property
    def _metadata(self) -> Node:
        """Metadata of the object. Missing fields count as absent even if the object is partial."""
        return Node(self.properties)["metadata"]

    @cached_property
    def name(self) -> str:
        """Name of the object in the cluster; if unknown, the name of the Pulumi resource."""
        declared = self._metadata["name"].text
        return declared or self.pulumi_name or "(no name)"

    @cached_property
    def _title_name(self) -> str:
        """Name of the object; if the API server generates the name, its prefix and an ellipsis."""
        prefix = self._metadata["generateName"].text
        known = self._metadata["name"].text or self.pulumi_name
        return self.name if known or not prefix else f"{prefix}…"

    @cached_property
    def namespace(self) -> str | None:
        """Namespace of the object, or the default namespace if it sets none. None if unknown."""
        declared = self._metadata["namespace"]
        if declared.value is UNKNOWN:
            return None
        return declared.text or self._default_namespace

    @property
    def awaits_namespace(self) -> bool:
        """True if the object sets a namespace that is not known yet."""
        return self._metadata["namespace"].value is UNKNOWN

    def may_be(self, namespace: str | None, name: str) -> bool:
        """Return whether this object may have the given name and namespace.

        Unknown names and namespaces match everything. `namespace` is None if it is unknown.
        """
        declared = self.root["metadata"]["name"]
        same_name = declared.value is UNKNOWN or self.name == name
        return same_name and (namespace is None or self.namespace in (namespace, None))

    @cached_property
    def title(self) -> str:
        """Name of the resource in messages: `Job "digits" in namespace "training"`."""
        declared = self.root["metadata"]["namespace"].text
        location = f' in namespace "{declared}"' if declared else ""
        return f'{self.kind} "{self._title_name}"{location}'

    @cached_property
    def address(self) -> str:
        """Address by which the configuration refers to the resource (see `address_of`)."""
        name = self._title_name
        return address_of(self.namespace or "(unknown)", self.group, self.kind, name)

    def is_named(self, patterns: Sequence[str]) -> bool:
        """Return whether a pattern matches the address.

        `*` matches any text, for example a generated suffix. The namespace must be known, unless
        the pattern matches every namespace.
        """
        return any(fnmatchcase(self.address, pattern) for pattern in patterns)

    @cached_property
    def labels(self) -> Node:
        """The object's labels."""
        return self.root["metadata"]["labels"]

    @cached_property
    def annotations(self) -> Node:
        """The object's annotations."""
        return self.root["metadata"]["annotations"]

    def is_kind(self, group: str, *kinds: str) -> bool:
        """Return whether the object has one of these kinds in the API group, ignoring case."""
        return self.group == group and self.kind.lower() in {kind.lower() for kind in kinds}
