"""The connection to the one cluster that a stack is for."""

from typing import Final

import pulumi
import pulumi_kubernetes as kubernetes

from infra.settings.cluster import ClusterSettings

_AMBIENT: Final = ""
"""Find the kubeconfig as kubectl does. Without it $KUBECONFIG becomes part of the stack's state."""


def connect(cluster: ClusterSettings) -> kubernetes.Provider:
    """A provider for the configured context, or one that writes manifests into a folder."""
    if cluster.render_to is not None:
        return kubernetes.Provider(
            "cluster", render_yaml_to_directory=cluster.render_to, kubeconfig=_AMBIENT
        )
    return kubernetes.Provider(
        "cluster",
        context=cluster.context,
        # Otherwise a cluster that comes back with new certificates or another address would be
        # taken for a new one, and everything in it for lost.
        cluster_identifier=cluster.context,
        kubeconfig=cluster.kubeconfig or _AMBIENT,
        enable_server_side_apply=True,
    )


def options(provider: kubernetes.Provider, *after: pulumi.Resource) -> pulumi.ResourceOptions:
    """Options of a component: everything in it goes to the cluster, after other components."""
    return pulumi.ResourceOptions(providers=[provider], depends_on=list(after))
