"""The embedded cluster: a Kubernetes cluster on one machine, with real or simulated nodes."""

from simulation import ClusterError


class DevclusterError(ClusterError):
    """An error that the user can fix. The message explains how."""
