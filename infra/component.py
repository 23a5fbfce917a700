"""What all components have in common: children that wait, and say so."""

from collections.abc import Iterable, Sequence
from importlib.metadata import version

import pulumi

from infra.manifests import Manifest


class KubernetesObject(pulumi.CustomResource):
    """Any Kubernetes object, created from its manifest as it stands."""

    def __init__(
        self, resource_name: str, manifest: Manifest, opts: pulumi.ResourceOptions | None = None
    ) -> None:
        group_version, kind = manifest["apiVersion"], manifest["kind"]
        group_version = group_version if "/" in group_version else f"core/{group_version}"
        super().__init__(
            f"kubernetes:{group_version}:{kind}",
            resource_name,
            dict(manifest),
            pulumi.ResourceOptions.merge(
                pulumi.ResourceOptions(version=version("pulumi-kubernetes")), opts
            ),
        )


class Component(pulumi.ComponentResource):
    """A component whose children wait for what the component waits for.

    Pulumi itself delays children until their parent's dependencies are there, but records no
    dependency, so that everything would be deleted at once: the queue before its jobs.
    """

    def __init__(self, kind: str, name: str, opts: pulumi.ResourceOptions | None) -> None:
        super().__init__(f"gpu-platform:index:{kind}", name, None, opts)
        self._before = _dependencies(opts)

    def wait_for(self, resources: Iterable[pulumi.Resource]) -> None:
        """Children that are created from now on wait for these as well."""
        self._before = [*self._before, *resources]

    def options(
        self,
        *,
        after: Sequence[pulumi.Resource] = (),
        protect: bool | None = None,
        retain: bool | None = None,
        ignore: list[str] | None = None,
    ) -> pulumi.ResourceOptions:
        """Options of a child that waits for `after`, too."""
        return pulumi.ResourceOptions(
            parent=self,
            depends_on=[*self._before, *after],
            protect=protect,
            retain_on_delete=retain,
            ignore_changes=ignore,
        )

    def create(
        self, name: str, manifest: Manifest, options: pulumi.ResourceOptions | None = None
    ) -> KubernetesObject:
        """Create a Kubernetes object as a child."""
        return KubernetesObject(name, manifest, options or self.options())


def _dependencies(
    opts: pulumi.ResourceOptions | None,
) -> list[pulumi.Input[pulumi.Resource]]:
    depends_on = opts.depends_on if opts else None
    if isinstance(depends_on, pulumi.Resource):
        return [depends_on]
    if isinstance(depends_on, Sequence):
        return list(depends_on)
    if depends_on is None:
        return []
    raise TypeError("a component waits for resources, and not for outputs that hold them")
