"""A real control plane with simulated nodes: kwok keeps them Ready and simulates their pods."""


class ClusterError(Exception):
    """An error that the user can fix; printed without a traceback."""
