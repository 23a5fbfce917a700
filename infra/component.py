"""The base class of all components, and a function that creates Helm releases."""

from collections.abc import Iterable, Mapping, Sequence
from importlib.metadata import version
from typing import Any, Final, TypeVar

import pulumi
import pulumi_kubernetes as kubernetes
from pulumi.runtime.mocks import MockMonitor
from pulumi.runtime.settings import get_monitor

from infra.configuration import RegistryLogin
from infra.manifests import Manifest, system_namespace
from infra.settings.cluster import GpuOperatorSettings
from infra.settings.monitoring import KubePrometheusStackSettings
from infra.settings.volcano import VolcanoSettings
from kube.names import PATCH_FORCE_ANNOTATION, PULUMI_ANNOTATION, STACK_ANNOTATION

_SDK_VERSION: Final = version("pulumi-kubernetes")


_Dependency = TypeVar("_Dependency", bound="Component")


class KubernetesObject(pulumi.CustomResource):
    """A Kubernetes object, created from its manifest without changes."""

    metadata: pulumi.Output[dict[str, Any]]

    def __init__(
        self, resource_name: str, manifest: Manifest, opts: pulumi.ResourceOptions | None = None
    ) -> None:
        group_version, kind = manifest["apiVersion"], manifest["kind"]
        group_version = group_version if "/" in group_version else f"core/{group_version}"
        super().__init__(
            f"kubernetes:{group_version}:{kind}",
            resource_name,
            dict(manifest),
            pulumi.ResourceOptions.merge(pulumi.ResourceOptions(version=_SDK_VERSION), opts),
        )


class _Namespace(pulumi.CustomResource):
    """An existing namespace.

    Pulumi's own class is not used, because importing it takes 0.2 s, or 0.9 s without bytecode.
    """

    metadata: pulumi.Output[dict[str, Any] | None]

    def __init__(self, resource_name: str, name: str, opts: pulumi.ResourceOptions) -> None:
        options = pulumi.ResourceOptions(id=name, version=_SDK_VERSION)
        options = pulumi.ResourceOptions.merge(options, opts)
        super().__init__("kubernetes:core/v1:Namespace", resource_name, {"metadata": None}, options)


def cluster_uid(resource_name: str, opts: pulumi.ResourceOptions) -> pulumi.Output[str | None]:
    """Return the UID of the `kube-system` namespace, which identifies the cluster.

    The UID is None if the provider only renders manifests.
    """
    metadata = _Namespace(resource_name, "kube-system", opts).metadata
    return metadata.apply(lambda found: found["uid"] if found else None)


class Component(pulumi.ComponentResource):
    """A component whose children depend explicitly on the component's dependencies.

    Pulumi delays children until their parent's dependencies exist, but records no dependency for
    the children themselves. Without explicit dependencies, `pulumi destroy` could, for example,
    delete a queue before its jobs.
    """

    def __init__(self, kind: str, name: str, opts: pulumi.ResourceOptions | None) -> None:
        super().__init__(f"gpu-platform:index:{kind}", name, None, opts)
        self._child_dependencies = _dependencies(opts)

    def dependencies(self, kind: type[_Dependency]) -> list[_Dependency]:
        """Return the components of type `kind` that this component depends on."""
        return [each for each in self._child_dependencies if isinstance(each, kind)]

    def wait_for(self, resources: Iterable[pulumi.Resource]) -> None:
        """Add dependencies to all children that are created after this call."""
        self._child_dependencies = [*self._child_dependencies, *resources]

    def options(
        self,
        *,
        after: Sequence[pulumi.Resource] = (),
        protect: bool | None = None,
        retain: bool | None = None,
        ignore: list[str] | None = None,
    ) -> pulumi.ResourceOptions:
        """Return the options for a child. `after` lists its additional dependencies."""
        return pulumi.ResourceOptions(
            parent=self,
            depends_on=[*self._child_dependencies, *after],
            protect=protect,
            retain_on_delete=retain,
            ignore_changes=ignore,
        )

    def create(
        self,
        name: str,
        manifest: Manifest,
        options: pulumi.ResourceOptions | None = None,
        *,
        references: Sequence[pulumi.CustomResource] = (),
    ) -> KubernetesObject:
        """Create a Kubernetes object as a child.

        `references` are the objects that must exist before a webhook accepts the manifest. A
        namespace is kept when the stack is destroyed, because other stacks may use it.
        """
        manifest = without_dry_run(manifest, references) if references else manifest
        options = options or self.options()
        if manifest["kind"] == "Namespace":
            retained = pulumi.ResourceOptions(retain_on_delete=True)
            options = pulumi.ResourceOptions.merge(options, retained)
        elif _belongs_to_one_stack(manifest):
            manifest = _with_stack(manifest)
        return KubernetesObject(name, manifest, options)

    def create_in_order(
        self, name: str, manifests: Iterable[Manifest], after: Sequence[pulumi.Resource] = ()
    ) -> None:
        """Create objects of different kinds as children, one after another."""
        earlier = list(after)
        for manifest in manifests:
            options = self.options(after=earlier)
            earlier.append(self.create(f"{name}-{manifest['kind'].lower()}", manifest, options))


def _belongs_to_one_stack(manifest: Manifest) -> bool:
    """Return True if only one stack may manage the object.

    Stacks adopt existing namespaces, so a namespace's quota and limits carry the annotation in its
    place: they are created before all other objects in the namespace, and deleted with the stack.
    """
    metadata = manifest["metadata"]
    if PATCH_FORCE_ANNOTATION in (metadata.get("annotations") or {}):
        return False
    return "namespace" not in metadata or manifest["kind"] in ("LimitRange", "ResourceQuota")


def _with_stack(manifest: Manifest) -> Manifest:
    """Return the manifest with an annotation that names the stack.

    If another stack has created the object, the annotation causes a conflict. Without a conflict,
    both stacks would manage the object, and destroying one of them would delete it.
    """
    metadata = manifest["metadata"]
    annotations = metadata.get("annotations") or {}
    stack = f"{pulumi.get_project()}/{pulumi.get_stack()}"
    return {
        **manifest,
        "metadata": {**metadata, "annotations": {**annotations, STACK_ANNOTATION: stack}},
    }


def without_dry_run(manifest: Manifest, references: Sequence[pulumi.CustomResource]) -> Manifest:
    """Return the manifest with an unknown value in a Pulumi annotation until the references exist.

    In a preview, the provider requests a dry run only if all values are known. Webhooks would
    reject the dry run, because the preview does not create the references.
    """
    metadata = manifest["metadata"]
    annotations: dict[str, Any] = dict(metadata["annotations"])
    key = next(name for name in annotations if name.startswith(PULUMI_ANNOTATION))
    known = annotations[key]
    annotations[key] = pulumi.Output.all(*(each.id for each in references)).apply(lambda _: known)
    return {**manifest, "metadata": {**metadata, "annotations": annotations}}


def existing(outputs: Mapping[str, Any]) -> Any:
    """Return the outputs of resources by key, omitting resources that do not exist.

    With `--target`, an update creates only the targets, and the outputs of new resources that are
    not targets remain unknown. A single unknown value among the stack's outputs makes all of them
    unknown in later previews. With `--continue-on-error`, the outputs of a failed resource raise an
    error, which would prevent the update from writing the stack's outputs.
    """

    async def known() -> dict[str, Any]:
        found = {
            key: await pulumi.Output.from_input(value).recover(lambda _: None).future()
            for key, value in outputs.items()
        }
        return {key: value for key, value in found.items() if value is not None}

    return outputs if pulumi.runtime.is_dry_run() else pulumi.Output.from_input(known())


def on_error(name: str, function: pulumi.ErrorHookFunction) -> pulumi.ResourceOptions:
    """Return options with a hook that decides whether to retry failed operations.

    Pulumi's mocks cannot call hooks, so the options are empty in unit tests of users' programs.
    """
    if isinstance(get_monitor(), MockMonitor):
        return pulumi.ResourceOptions()
    hook = pulumi.ErrorHook(name, function)
    return pulumi.ResourceOptions(hooks=pulumi.ResourceHookBinding(on_error=[hook]))


def before_create(name: str, function: pulumi.ResourceHookFunction) -> pulumi.ResourceOptions:
    """Return options with a hook that may reject the creation of a resource, even in a preview.

    Pulumi's mocks cannot call hooks, so the options are empty in unit tests of users' programs.
    """
    if isinstance(get_monitor(), MockMonitor):
        return pulumi.ResourceOptions()
    hook = pulumi.ResourceHook(name, function, pulumi.ResourceHookOptions(on_dry_run=True))
    return pulumi.ResourceOptions(hooks=pulumi.ResourceHookBinding(before_create=[hook]))


def _dependencies(opts: pulumi.ResourceOptions | None) -> list[pulumi.Input[pulumi.Resource]]:
    depends_on = opts.depends_on if opts else None
    if isinstance(depends_on, pulumi.Resource):
        return [depends_on]
    if isinstance(depends_on, Sequence):
        return list(depends_on)
    if depends_on is None:
        return []
    raise TypeError("depends_on must list resources, not outputs of resources")


Chart = VolcanoSettings | KubePrometheusStackSettings | GpuOperatorSettings


def chart_release(
    parent: Component,
    prefix: str,
    release: str,
    chart: Chart,
    values: dict[str, Any],
    *,
    rendering: bool,
    login: RegistryLogin | None = None,
) -> list[pulumi.Resource]:
    """Create a Helm release in a namespace for system pods.

    `prefix` is prepended to the logical names of the resources. `release` is the name of the Helm
    release. If manifests are only rendered, the release is skipped with a warning, because
    installing it needs a cluster. If `login` is given, the namespace gets the registry's pull
    secret. Return the resources that must exist before the chart's custom resources can be created.
    """
    namespace_manifest, quota = system_namespace(chart.namespace, release)
    namespace = parent.create(f"{prefix}-namespace", namespace_manifest)
    after: list[pulumi.Resource] = [namespace]
    in_namespace = parent.options(after=[namespace])
    after.append(parent.create(f"{prefix}-quota", quota, in_namespace))
    if login is not None:
        after.append(
            parent.create(f"{prefix}-registry", login.secret(chart.namespace), in_namespace)
        )
    if rendering:
        pulumi.log.warn(
            f"The release of chart {chart.chart} {chart.version} is not rendered, because it needs "
            f"a cluster: install it from {chart.repository} with the values of this stack.",
            parent,
        )
        return after
    oci = chart.repository.startswith("oci://")
    return [
        kubernetes.helm.v3.Release(
            f"{prefix}-release",
            kubernetes.helm.v3.ReleaseArgs(
                name=release,
                chart=f"{chart.repository.rstrip('/')}/{chart.chart}" if oci else chart.chart,
                version=chart.version,
                namespace=chart.namespace,
                # Helm accepts an OCI registry only as part of the chart's name.
                repository_opts=None
                if oci
                else kubernetes.helm.v3.RepositoryOptsArgs(repo=chart.repository),
                values=values,
                timeout=chart.timeout_seconds,
            ),
            parent.options(after=after),
        )
    ]
