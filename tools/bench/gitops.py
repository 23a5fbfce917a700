"""Benchmark of the preview report: `make bench-gitops`.

A temporary Pulumi state is created from HEAD for the dev and prod stacks. Then `pulumi preview`
(alone, and with the policy pack) and `python -m gitops preview` run alternately, so that other load
on the host affects all of them equally. CPU time is measured in addition to wall-clock time,
because a busy host affects CPU time less.

The installation of requirements.txt into a new environment, which is the first step of a CI job, is
timed with a cold and with a warm wheel cache. The command prints the ratios with their spread and
writes all samples to .bench/gitops.json.
"""

from __future__ import annotations

import argparse
import os
import statistics
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

from devcluster.environment import PASSPHRASE
from devcluster.paths import CHECKOUT, cache_root
from devcluster.toolchain import Toolchain, ensure
from gitops.engine import Pack, Stack, stack_options
from gitops.rendered import workspace
from tools.bench.outcome import Goal, conclude, print_line
from tools.bench.processes import child_cpu_seconds, timed

MAX_RATIO = 1.15
Samples = dict[str, dict[str, list[float]]]
BARE, PACK, REPORT = "pulumi preview", "pulumi preview, with the pack", "gitops preview"


def main() -> None:
    """Measure, print and write the result."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument(
        "--repetitions", type=int, default=5, help="repetitions of each preview; default: 5"
    )
    parser.add_argument("--no-install", action="store_true", help="skip the installation")
    options = parser.parse_args()
    tools = ensure("engine", cache_root(), print_line)
    seconds = {name: _previews(name, tools, options.repetitions) for name in ("dev", "prod")}
    result: dict[str, Any] = {
        "seconds": seconds,
        "ratios": {
            name: {
                "toBare": _ratio(found, BARE),
                "toPreviewWithPack": _ratio(found, PACK),
                "cpuToBare": _ratio(found, BARE, "cpu"),
                "cpuToPreviewWithPack": _ratio(found, PACK, "cpu"),
            }
            for name, found in seconds.items()
        },
    }
    goals = [
        Goal(
            f"{name}: gitops preview, relative to {other}",
            ratios[key]["median"],
            MAX_RATIO,
            at_most=True,
        )
        for name, ratios in result["ratios"].items()
        for key, other in (
            ("toBare", "bare `pulumi preview`"),
            ("toPreviewWithPack", "`pulumi preview` with the same pack"),
        )
    ]
    if not options.no_install:
        result["install"] = _installation()
    _print(result)
    conclude("gitops", result, goals)


def _previews(name: str, tools: Toolchain, repetitions: int) -> Samples:
    os.environ["PATH"] = f"{tools.bin}{os.pathsep}{os.environ['PATH']}"
    os.environ["PULUMI_HOME"] = str(tools.pulumi_home)
    os.environ["PULUMI_CONFIG_PASSPHRASE"] = PASSPHRASE
    pack = Pack(CHECKOUT / "policies", CHECKOUT / "policies" / "config" / f"{name}.json")
    samples: Samples = {kind: {"clock": [], "cpu": []} for kind in (BARE, PACK, REPORT)}
    with workspace(Stack(name), "HEAD") as stack, tempfile.TemporaryDirectory() as out:
        bare = [
            "pulumi",
            "preview",
            *stack_options(stack),
            "--non-interactive",
            "--suppress-outputs",
        ]
        report = [sys.executable, "-m", "gitops", "preview", "--out", out, *stack_options(stack)]
        commands = {BARE: bare, PACK: [*bare, *pack.options], REPORT: report}
        for command in commands.values():
            _run(command, stack)  # reads files and compiles bytecode; not measured
        for turn in range(repetitions):
            for kind, command in commands.items():
                before = child_cpu_seconds()
                clock = timed(lambda command=command: _run(command, stack))  # type: ignore[misc]
                samples[kind]["clock"].append(clock)
                samples[kind]["cpu"].append(child_cpu_seconds() - before)
                print_line(f"  {name} {turn + 1}/{repetitions} {kind}: {clock:.2f} s")
    return samples


def _run(command: list[str], stack: Stack) -> None:
    done = subprocess.run(
        command,
        cwd=CHECKOUT,
        env={**os.environ, **stack.variables},
        capture_output=True,
        text=True,
        check=False,
    )
    if done.returncode not in (0, 2):
        sys.exit(f"{' '.join(command)} failed:\n{done.stdout[-4000:]}{done.stderr[-4000:]}")


def _installation() -> dict[str, Any]:
    """Return the duration and size of the installation that precedes a preview in CI."""
    with tempfile.TemporaryDirectory() as directory:
        cache, found = Path(directory) / "cache", {}
        for cache_state in ("cold", "cached"):
            environment = Path(directory) / cache_state
            subprocess.run([sys.executable, "-m", "venv", str(environment)], check=True)
            pip = [str(environment / "bin" / "pip"), "install", "--quiet", "--require-hashes"]
            options = ["--cache-dir", str(cache), "--disable-pip-version-check"]
            command = [*pip, *options, "-r", str(CHECKOUT / "requirements.txt")]
            found[cache_state] = timed(lambda command=command: subprocess.run(command, check=True))  # type: ignore[misc]
            print_line(f"  installation, {cache_state}: {found[cache_state]:.1f} s")
        size = sum(f.stat().st_size for f in (Path(directory) / "cold").rglob("*") if f.is_file())
        torch = list((Path(directory) / "cold").rglob("site-packages/torch"))
    return {"seconds": found, "megabytes": round(size / 1e6, 1), "torch": bool(torch)}


def _ratio(samples: Samples, other: str, unit: str = "clock") -> dict[str, float]:
    """Return the median, minimum and maximum ratio of REPORT to `other`, paired by round."""
    pairs = zip(samples[REPORT][unit], samples[other][unit], strict=True)
    ratios = [first / second for first, second in pairs]
    return {"median": statistics.median(ratios), "minimum": min(ratios), "maximum": max(ratios)}


def _print(result: dict[str, Any]) -> None:
    for name, samples in result["seconds"].items():
        for what, measured in samples.items():
            values = measured["clock"]
            median = statistics.median(values)
            print_line(f"{name}, {what}: {median:.2f} s ({min(values):.2f} to {max(values):.2f})")
    for name, ratios in result["ratios"].items():
        for what, spread in ratios.items():
            minimum, maximum = spread["minimum"], spread["maximum"]
            print_line(f"{name}, {what}: {spread['median']:.3f} ({minimum:.3f} to {maximum:.3f})")
    if install := result.get("install"):
        shown = ", ".join(f"{what} {value:.1f} s" for what, value in install["seconds"].items())
        print_line(f"installation of requirements.txt: {shown}, {install['megabytes']} MB")


if __name__ == "__main__":
    main()
