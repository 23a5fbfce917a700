"""What the mounts of a node take for granted."""

from pathlib import Path

from devcluster.nodes import mounts


def test_the_kernel_has_the_settings_that_get_files_of_the_nodes_own():
    for key, value in mounts.SYSCTLS.items():
        assert Path("/proc/sys", key).exists(), key
        assert value.isdigit()
