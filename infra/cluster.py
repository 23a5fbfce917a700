"""The connection to the one cluster that a stack is for."""

import pulumi
import pulumi_kubernetes as kubernetes

from infra.settings.cluster import ClusterSettings


def connect(cluster: ClusterSettings) -> kubernetes.Provider:
    """A provider for the configured context, or one that writes manifests into a folder."""
    if cluster.render_to is not None:
        return kubernetes.Provider("cluster", render_yaml_to_directory=cluster.render_to)
    return kubernetes.Provider(
        "cluster",
        context=cluster.context,
        kubeconfig=cluster.kubeconfig,
        enable_server_side_apply=True,
    )


def options(provider: kubernetes.Provider, *after: pulumi.Resource) -> pulumi.ResourceOptions:
    """Options of a component: everything in it goes to the cluster, after other components."""
    return pulumi.ResourceOptions(providers=[provider], depends_on=list(after))
