"""promtool from PATH or, otherwise, from Debian's package, unpacked into the cache."""

import json
import shutil
import subprocess
from collections.abc import Collection, Iterable, Sequence
from pathlib import Path
from typing import Any

from filelock import FileLock

from devcluster.paths import cache_root
from infra.observability.alerts import rule_groups
from infra.settings.monitoring import MonitoringSettings
from tests.platforms import unavailable

SETTINGS = MonitoringSettings(prometheus="operator", gpu_prices={"NVIDIA-L4": 0.75})
PACKAGE = "prometheus"


def promtool() -> Path:
    """Return the path of promtool."""
    if installed := shutil.which("promtool"):
        return Path(installed)
    folder = cache_root() / "tools" / "debian-prometheus"
    program = folder / "usr" / "bin" / "promtool"
    folder.parent.mkdir(parents=True, exist_ok=True)
    # Several test processes may unpack promtool at the same time.
    with FileLock(f"{folder}.lock"):
        if not program.exists():
            if shutil.which("apt-get") is None:
                unavailable("promtool is not on PATH, and apt-get is not available")
            _unpack(folder)
    return program


def _unpack(folder: Path) -> None:
    part = folder.with_name(f"{folder.name}.part")
    shutil.rmtree(part, ignore_errors=True)
    part.mkdir(parents=True)
    if not _download(part):
        # The package lists are outdated or missing.
        subprocess.run(["apt-get", "--quiet", "update"], check=False, capture_output=True)
        if not _download(part):
            unavailable(f"cannot download Debian's package {PACKAGE}")
    (found,) = part.glob("*.deb")
    subprocess.run(["dpkg-deb", "--extract", str(found), str(part)], check=True)
    found.unlink()
    part.rename(folder)


def _download(folder: Path) -> bool:
    command = ["apt-get", "--quiet", "download", PACKAGE]
    return subprocess.run(command, cwd=folder, capture_output=True).returncode == 0


Files = Iterable[tuple[Sequence[dict[str, Any]], Collection[str]]]
"""Pairs of promtool tests and the alerts that they evaluate."""


def check(program: Path, folder: Path, *tests: dict[str, Any], alerts: Collection[str] = ()) -> str:
    """Return the errors that promtool finds in the rules with these tests.

    Without alerts, all recording rules are evaluated; otherwise only the named alerts and the
    recording rules that they and the tests use.
    """
    return check_all(program, folder, [(tests, alerts)])


def check_all(program: Path, folder: Path, files: Files) -> str:
    """Return the errors of one promtool run with several test files."""
    names = []
    for number, (tests, alerts) in enumerate(files):
        rule_names = _required_rules(tests, alerts) if alerts else _RECORDED
        groups = [
            group | {"rules": [r for r in group["rules"] if _name(r) in rule_names]}
            for group in rule_groups(SETTINGS)
        ]
        rules, name = f"rules-{number}.yaml", f"tests-{number}.yaml"
        # JSON is YAML, and faster to write.
        (folder / rules).write_text(json.dumps({"groups": groups}))
        document = {"rule_files": [rules], "evaluation_interval": "30s", "tests": list(tests)}
        (folder / name).write_text(json.dumps(document))
        names.append(name)
    completed = subprocess.run(
        [str(program), "test", "rules", *names],
        cwd=folder,
        env={"GOMAXPROCS": "1", "GOGC": "400"},
        capture_output=True,
        text=True,
    )
    return "" if completed.returncode == 0 else completed.stdout + completed.stderr


def _name(rule: dict[str, Any]) -> str:
    return str(rule.get("record") or rule["alert"])


_RULES = [rule for group in rule_groups(SETTINGS) for rule in group["rules"]]
_RECORDED = {_name(rule) for rule in _RULES if "record" in rule}


def _required_rules(tests: Sequence[dict[str, Any]], alerts: Collection[str]) -> set[str]:
    """Return the alerts, and the recording rules that the alerts or tests query."""
    found, texts = {*alerts}, [json.dumps(tests)]
    texts += [rule["expr"] for rule in _RULES if _name(rule) in alerts]
    while texts:
        text = texts.pop()
        more = {name for name in _RECORDED - found if name in text}
        texts += [rule["expr"] for rule in _RULES if _name(rule) in more]
        found |= more
    return found


def expression_test(
    series: dict[str, str], minutes: int, expr: str, *samples: dict[str, Any]
) -> dict[str, Any]:
    """Return a promtool test for an expression over series with one value per minute."""
    return {
        "interval": "1m",
        "input_series": [{"series": name, "values": values} for name, values in series.items()],
        "promql_expr_test": [
            {"expr": expr, "eval_time": f"{minutes}m", "exp_samples": list(samples)}
        ],
    }
