"""Assumptions about the mounts and kernel settings of a node."""

from pathlib import Path

from devcluster.nodes import mounts


def test_kernel_settings_of_nodes_exist_and_are_integers() -> None:
    for key, value in mounts.SYSCTLS.items():
        assert Path("/proc/sys", key).exists(), key
        assert value.isdigit()
