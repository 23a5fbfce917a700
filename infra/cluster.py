"""The stack's Kubernetes provider, and the identity of its cluster.

A cluster is identified by the UID of its `kube-system` namespace. Context names, addresses and
certificates may change while the cluster stays the same.
"""

import os
from collections.abc import Collection, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final, Self

import pulumi
import pulumi_kubernetes as kubernetes
import yaml

from infra.component import KubernetesObject, cluster_uid
from infra.manifests import with_metadata
from infra.outputs import ClusterOutput
from infra.settings.cluster import IN_CLUSTER, MOVE_ERROR, ClusterSettings, expand_home

OUTPUT: Final = "cluster"
"""Stack output with the identity of the cluster."""

STARTED_RUNS: Final = "startedRuns"
"""Stack output with the names of the runs whose jobs exist. Only successful updates write it."""

_DEFAULT_KUBECONFIG: Final = ""
"""Value of the provider's `kubeconfig` argument that selects the same file as kubectl.

If the argument were omitted, the value of $KUBECONFIG would become part of the state.
"""

_ACCOUNT_PATH: Final = Path("/var/run/secrets/kubernetes.io/serviceaccount")


def connect(settings: ClusterSettings) -> kubernetes.Provider:
    """Return a provider for the configured cluster, or one that renders manifests.

    Unless manifests are rendered, also export the `cluster` stack output, which the next update
    uses to recognize the cluster. The provider fails with RunError if the stack is already deployed
    to a different cluster and `allow_move` is False.
    """
    return Target.of(settings).provider


@dataclass(frozen=True, kw_only=True)
class Target:
    """The cluster in which the stack's components are created."""

    provider: kubernetes.Provider
    settings: ClusterSettings
    runs: pulumi.Output[Collection[str]]
    """Names of the runs that the last successful update recorded as started, if it deployed to the
    same cluster and namespace."""

    @classmethod
    def of(cls, settings: ClusterSettings, namespace: str | None = None) -> Self:
        """Build the target for the configured cluster. The workloads run in `namespace`."""
        if settings.render_to is not None:
            rendering = kubernetes.Provider(
                "cluster",
                # The provider does not expand this path, although it expands `kubeconfig`.
                render_yaml_to_directory=expand_home(settings.render_to),
                kubeconfig=_DEFAULT_KUBECONFIG,
            )
            return cls(provider=rendering, settings=settings, runs=pulumi.Output.from_input([]))
        recorded = _recorded_outputs()
        cluster_identity = _identity(settings, recorded)
        pulumi.export(OUTPUT, cluster_identity)
        return cls(
            provider=_provider(
                "cluster", settings, cluster_identity.apply(lambda each: each["identifier"])
            ),
            settings=settings,
            runs=pulumi.Output.all(recorded, cluster_identity).apply(
                lambda both: recorded_runs(both[0], both[1], namespace)
            ),
        )

    def options(self, *after: pulumi.Resource) -> pulumi.ResourceOptions:
        """Return the options for a component that depends on other components."""
        return pulumi.ResourceOptions(
            providers=[self.provider],
            depends_on=list(after),
            # Components pass transformations on to their children.
            transformations=[self._with_metadata],
        )

    def _with_metadata(
        self, args: pulumi.ResourceTransformationArgs
    ) -> pulumi.ResourceTransformationResult | None:
        if not isinstance(args.resource, KubernetesObject):
            return None
        props = with_metadata(dict(args.props), self.settings.labels, self.settings.annotations)
        return pulumi.ResourceTransformationResult(props, args.opts)


def identity(
    uid: str, recorded: Mapping[str, Any], context: str, *, allow_move: bool
) -> ClusterOutput:
    """Return the identity to record, based on the cluster's UID and the stack's last outputs.

    Pulumi replaces every resource when the provider's identifier changes, so a stack keeps its
    identifier as long as it stays in its cluster. Early releases recorded no identifier; a stack
    that they deployed keeps the name of the context as its identifier.

    Raise RunError if the stack would move to another cluster and `allow_move` is False.
    """
    recorded_cluster = recorded.get(OUTPUT)
    if recorded_cluster is None:
        return {"uid": uid, "identifier": context if recorded else uid}
    if recorded_cluster["uid"] == uid:
        return {"uid": uid, "identifier": recorded_cluster["identifier"]}
    if not allow_move:
        raise pulumi.RunError(
            f"The stack {MOVE_ERROR}: it is deployed to the cluster whose kube-system namespace "
            f"has the UID {recorded_cluster['uid']}, but the context {context!r} points to the "
            f"cluster {uid}. Everything would be created in the new cluster and deleted from the "
            "old one. Correct gpu-platform:cluster.context, or set gpu-platform:cluster.allow_move "
            "to true (docs/moving.md)."
        )
    return {"uid": uid, "identifier": uid}


def recorded_runs(
    recorded: Mapping[str, Any], cluster: ClusterOutput, namespace: str | None
) -> list[str]:
    """Return the names of the runs that the outputs list as started.

    The list is empty if the stack moves to a new cluster or namespace, where its runs start again.
    The `runs` output is not used, because failed updates also write it.
    """
    recorded_cluster = recorded.get(OUTPUT)
    moves = recorded_cluster is not None and recorded_cluster["uid"] != cluster["uid"]
    moves = moves or recorded.get("namespace") != namespace
    return [] if moves else list(recorded.get(STARTED_RUNS, []))


def _recorded_outputs() -> pulumi.Output[Mapping[str, Any]]:
    """Return the known outputs of the stack's last update."""
    stack_name = f"{pulumi.get_organization()}/{pulumi.get_project()}/{pulumi.get_stack()}"
    reference = pulumi.StackReference("recorded-cluster", stack_name=stack_name)
    outputs = reference.outputs

    async def known() -> Mapping[str, Any]:
        # In a preview, a single unknown output would make all outputs unknown.
        found = await outputs.future(with_unknowns=True) or {}
        return {key: value for key, value in found.items() if not pulumi.contains_unknowns(value)}

    return pulumi.Output(
        outputs.resources(), known(), reference.name.is_known(), outputs.is_secret()
    )


def _identity(
    settings: ClusterSettings, recorded: pulumi.Output[Mapping[str, Any]]
) -> pulumi.Output[ClusterOutput]:
    # The UID is read before the stack's provider exists, with a provider whose identifier never
    # changes.
    reader = _provider("cluster-identity", settings, "identity")
    uid = cluster_uid("kube-system", pulumi.ResourceOptions(provider=reader))
    context = str(settings.context)
    return pulumi.Output.all(uid, recorded).apply(
        lambda found: identity(found[0], found[1], context, allow_move=settings.allow_move)
    )


def _provider(
    name: str, settings: ClusterSettings, identifier: pulumi.Input[str]
) -> kubernetes.Provider:
    in_cluster = settings.context == IN_CLUSTER
    file = settings.kubeconfig
    if file is not None and not in_cluster and not Path(expand_home(file)).exists():
        # The provider would parse the path of a missing file as the contents of a kubeconfig.
        raise pulumi.RunError(
            f"gpu-platform:cluster.kubeconfig is {file!r}, but this file does not exist: correct "
            "the path, or remove the setting to use $KUBECONFIG or ~/.kube/config."
        )
    return kubernetes.Provider(
        name,
        context=settings.context,
        # By default, the provider treats new certificates or a new address as a new cluster, so
        # Pulumi would replace every resource.
        cluster_identifier=identifier,
        kubeconfig=in_cluster_kubeconfig() if in_cluster else file or _DEFAULT_KUBECONFIG,
        enable_server_side_apply=True,
        # By default, the provider deletes a changed ConfigMap or Secret and creates it again.
        enable_config_map_mutable=True,
        enable_secret_mutable=True,
    )


def in_cluster_kubeconfig(account: Path = _ACCOUNT_PATH) -> str:
    """Return a kubeconfig for the cluster and the service account of this process's pod.

    Raise RunError outside of a pod.
    """
    host, port = (os.environ.get(f"KUBERNETES_SERVICE_{name}") for name in ("HOST", "PORT"))
    if host is None or not (account / "token").exists():
        raise pulumi.RunError(
            f"gpu-platform:cluster.context is {IN_CLUSTER!r}, but this process is not in a pod "
            f"with a service account: KUBERNETES_SERVICE_HOST or {account / 'token'} is missing. "
            "Set cluster.context to the name of a context."
        )
    cluster = {
        "server": f"https://{f'[{host}]' if ':' in host else host}:{port}",
        "certificate-authority": str(account / "ca.crt"),
    }
    return yaml.safe_dump(
        {
            "apiVersion": "v1",
            "kind": "Config",
            "clusters": [{"name": IN_CLUSTER, "cluster": cluster}],
            "users": [{"name": IN_CLUSTER, "user": {"tokenFile": str(account / "token")}}],
            "contexts": [
                {"name": IN_CLUSTER, "context": {"cluster": IN_CLUSTER, "user": IN_CLUSTER}}
            ],
            "current-context": IN_CLUSTER,
        }
    )
