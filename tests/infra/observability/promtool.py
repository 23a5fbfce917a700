"""promtool: what is on PATH, else Debian's, unpacked into the cache and not installed."""

import json
import shutil
import subprocess
from pathlib import Path
from typing import Any

from devcluster.paths import cache_root
from infra.observability.alerts import rule_groups
from infra.settings.monitoring import MonitoringSettings
from tests.tiers import unavailable

SETTINGS = MonitoringSettings(prometheus="operator", gpu_prices={"NVIDIA-L4": 0.75})
PACKAGE = "prometheus"


def promtool() -> Path:
    """Path of the program."""
    if installed := shutil.which("promtool"):
        return Path(installed)
    folder = cache_root() / "tools" / "debian-prometheus"
    program = folder / "usr" / "bin" / "promtool"
    if not program.exists():
        if shutil.which("apt-get") is None:
            unavailable("there is neither promtool on PATH nor apt-get")
        _unpack(folder)
    return program


def _unpack(folder: Path) -> None:
    part = folder.with_name(f"{folder.name}.part")
    shutil.rmtree(part, ignore_errors=True)
    part.mkdir(parents=True)
    if not _download(part):
        # The lists of packages are old, or there are none.
        subprocess.run(["apt-get", "--quiet", "update"], check=False, capture_output=True)
        if not _download(part):
            unavailable(f"Debian's package {PACKAGE} cannot be had")
    (found,) = part.glob("*.deb")
    subprocess.run(["dpkg-deb", "--extract", str(found), str(part)], check=True)
    found.unlink()
    part.rename(folder)


def _download(folder: Path) -> bool:
    command = ["apt-get", "--quiet", "download", PACKAGE]
    return subprocess.run(command, cwd=folder, capture_output=True).returncode == 0


def check(program: Path, folder: Path, *tests: dict[str, Any]) -> str:
    """What promtool finds wrong with the rules under these tests; empty where nothing is."""
    rules = {"groups": rule_groups(SETTINGS)}
    # JSON is YAML, and faster to write.
    (folder / "rules.yaml").write_text(json.dumps(rules))
    document = {"rule_files": ["rules.yaml"], "evaluation_interval": "30s", "tests": list(tests)}
    (folder / "tests.yaml").write_text(json.dumps(document))
    done = subprocess.run(
        [str(program), "test", "rules", "tests.yaml"], cwd=folder, capture_output=True, text=True
    )
    return "" if done.returncode == 0 else done.stdout + done.stderr


def told(
    series: dict[str, str], minutes: int, expr: str, *samples: dict[str, Any]
) -> dict[str, Any]:
    """A test of promtool: series with a value a minute, and what an expression gives then."""
    return {
        "interval": "1m",
        "input_series": [{"series": name, "values": values} for name, values in series.items()],
        "promql_expr_test": [
            {"expr": expr, "eval_time": f"{minutes}m", "exp_samples": list(samples)}
        ],
    }
