"""The plain view of one resource, which rules receive."""

from __future__ import annotations

from collections.abc import Sequence
from fnmatch import fnmatchcase
from functools import cached_property
from typing import Any

from policies.values import UNKNOWN, Node

_PULUMI_PREFIX = "kubernetes:"
# A release passes values to Helm: the rendered objects never appear here.
_NOT_MANIFESTS = (
    *("kubernetes:helm.sh/", "kubernetes:kustomize:", "kubernetes:kustomize/"),
    *("kubernetes:yaml:", "kubernetes:yaml/"),
)


class Resource:
    """A Kubernetes object as it was declared.

    `pulumi_type` is the engine's type token, `properties` plain data (see `policies.properties`),
    `protected` whether Pulumi refuses to delete it.
    """

    def __init__(
        self,
        pulumi_type: str,
        properties: Any,
        *,
        name: str = "",
        urn: str = "",
        protected: bool = False,
    ) -> None:
        self.pulumi_type = pulumi_type
        self.pulumi_name = name
        self.urn = urn
        self.protected = protected
        self.is_manifest = pulumi_type.startswith(_PULUMI_PREFIX) and not pulumi_type.startswith(
            _NOT_MANIFESTS
        )
        self.properties = properties if isinstance(properties, dict) else {}

    @cached_property
    def api_version(self) -> str:
        """API version, such as `apps/v1`; from the manifest, or else from the type token."""
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
    def is_partial(self) -> bool:
        """True if the rest of the object is declared elsewhere, as with a server-side patch."""
        # Only Pulumi's own patches: the kind of any custom resource may end with Patch.
        built_in = "." not in self.group or self.group.endswith(".k8s.io")
        is_patch = built_in and self.pulumi_type.endswith("Patch")
        return is_patch or self.is_kind("trainer.kubeflow.org", "TrainJob")

    @cached_property
    def is_release(self) -> bool:
        """True for a Helm release: values, from which a chart renders manifests elsewhere."""
        by_pulumi = self.pulumi_type.startswith("kubernetes:helm.sh/") and self.kind == "Release"
        by_flux = self.is_kind("helm.toolkit.fluxcd.io", "HelmRelease")
        return by_pulumi or by_flux or self.is_kind("helm.cattle.io", "HelmChart")

    @cached_property
    def root(self) -> Node:
        """The object as a node."""
        return Node(self.properties, partial=self.is_partial)

    @cached_property
    def name(self) -> str:
        """Name of the object in the cluster, or Pulumi's name if that is unknown."""
        declared = self.root["metadata"]["name"].text
        return declared or self.pulumi_name or "(no name)"

    @cached_property
    def namespace(self) -> str | None:
        """Namespace, `default` if none is set, None if unknown."""
        declared = self.root["metadata"]["namespace"]
        if declared.value is UNKNOWN:
            return None
        return declared.text or "default"

    def may_be(self, namespace: str | None, name: str) -> bool:
        """Return whether it has, or might have (None is unknown), that name in that namespace."""
        declared = self.root["metadata"]["name"]
        same_name = declared.value is UNKNOWN or self.name == name
        return same_name and (namespace is None or self.namespace in (namespace, None))

    @cached_property
    def title(self) -> str:
        """Name of the resource in messages: `Job "digits" in namespace "training"`."""
        declared = self.root["metadata"]["namespace"].text
        place = f' in namespace "{declared}"' if declared else ""
        return f'{self.kind} "{self.name}"{place}'

    @cached_property
    def address(self) -> str:
        """Name of the resource in configuration: `namespace/Kind/name`."""
        return f"{self.namespace or '(unknown)'}/{self.kind}/{self.name}"

    def is_named(self, patterns: Sequence[str]) -> bool:
        """Return whether configuration names it; `*` matches anything, such as a run's suffix.

        The namespace must be known, unless the pattern matches every namespace.
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
        """Return whether this is one of the kinds of an API group, ignoring case."""
        return self.group == group and self.kind.lower() in {kind.lower() for kind in kinds}
