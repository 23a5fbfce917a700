"""Platforms of tests do not outlive the processes that start them."""

import os
import subprocess
from pathlib import Path

from tests.cluster.platform import Platform


def test_cluster_is_taken_down_if_its_test_process_is_killed(tmp_path: Path) -> None:
    platform = Platform(tmp_path, tmp_path / "state", "simulated")
    (platform.state / platform.nodes / "control-plane").mkdir(parents=True)
    calls = tmp_path / "calls"
    os.mkfifo(calls)
    (tmp_path / "Makefile").write_text(f'down:\n\techo "$(NODES) $(PURGE)" >{calls}\n')
    with subprocess.Popen(["sleep", "infinity"]) as process:
        platform.take_down_after(process.pid)
        process.kill()
    assert calls.read_text() == "simulated 1\n"
