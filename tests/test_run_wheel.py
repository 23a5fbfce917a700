"""The wheel of workload.run, built and used with no package except torch."""

import json
import shutil
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest

from devcluster.paths import CHECKOUT

PROGRAM = """
import sys
for name in ("pydantic", "safetensors", "prometheus_client", "rich", "workload", "training"):
    sys.modules[name] = None
from gpu_platform_run import Run
with Run(2) as run:
    for step in range(run.resume(print) + 1, 3):
        run.step(step, 0.5, lambda folder: (folder / "state").write_text("x"), due=True)
    run.finish(lambda folder: (folder / "weights").write_text("x"), {"loss": 0.5})
"""


@pytest.fixture
def wheel(tmp_path: Path) -> Path:
    uv = str(Path(sys.executable).with_name("uv"))
    # setuptools writes next to its sources.
    for name in ("workload", "gpu_platform_run"):
        shutil.copytree(CHECKOUT / name, tmp_path / "source" / name)
    source = str(tmp_path / "source/gpu_platform_run")
    build = [uv, "build", "--wheel", "--no-build-isolation", "--python", sys.executable]
    ended = subprocess.run(
        [*build, "--out-dir", str(tmp_path), source], check=False, capture_output=True, text=True
    )
    assert ended.returncode == 0, ended.stderr
    (found,) = tmp_path.glob("*.whl")
    return found


def test_the_wheel_needs_only_torch_and_the_standard_library(wheel: Path, tmp_path: Path) -> None:
    zipfile.ZipFile(wheel).extractall(tmp_path / "site")
    ended = subprocess.run(
        [sys.executable, "-c", PROGRAM],
        check=False,
        capture_output=True,
        text=True,
        cwd=tmp_path,
        env={"PYTHONPATH": str(tmp_path / "site"), "RUN_DIR": str(tmp_path / "run")},
    )
    assert ended.returncode == 0, ended.stderr
    lines = [json.loads(line)["event"] for line in ended.stdout.splitlines()]
    assert lines == ["start", "checkpoint", "step", "checkpoint", "finished"]
    assert (tmp_path / "run/checkpoints/step-00000002/state").exists()
    assert (tmp_path / "run/export/manifest.json").exists()
