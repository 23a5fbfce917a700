"""Assumptions about the mounts of a node."""

from pathlib import Path

from devcluster.nodes import mounts


def test_nodes_have_their_own_kernel_settings() -> None:
    for key, value in mounts.SYSCTLS.items():
        assert Path("/proc/sys", key).exists(), key
        assert value.isdigit()
