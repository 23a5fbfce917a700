"""Condition of a step: `python3 -m workload.step --run=… --name=… -- COMMAND`.

Replaces itself with the command, unless a preceding step was skipped or a condition on the metrics
of the run's export does not hold. Then the step is skipped, which counts as success for Volcano.
"""

import argparse
import json
import os
import sys
from pathlib import Path
from typing import NoReturn

from workload.exit_codes import BAD_INPUT, DONE
from workload.files import write_atomically
from workload.manifest import ExportError, read_manifest
from workload.promotion import parse_named, violations
from workload.report import emit

STEPS_FOLDER = "steps"
"""Directory in that of the run with a file for each skipped step."""


def main() -> NoReturn:
    """Run the command, or record that the step is skipped."""
    parser = argparse.ArgumentParser(prog="python3 -m workload.step")
    parser.add_argument("--run", type=Path, required=True, help="directory of the run")
    parser.add_argument("--name", required=True, help="name of the step")
    parser.add_argument("--after", action="append", default=[], help="a preceding step")
    parser.add_argument("--when", action="append", default=[], help='such as "accuracy >= 0.97"')
    parser.add_argument("command", nargs="+")
    options = parser.parse_args()
    try:
        reason = _reason(options)
    except (ExportError, ValueError) as error:
        emit("step_failed", step=options.name, error=str(error))
        sys.exit(BAD_INPUT)
    marker = _marker(options.run, options.name)
    if reason is not None:
        marker.parent.mkdir(parents=True, exist_ok=True)
        write_atomically(marker, json.dumps({"state": "skipped", "reason": reason}).encode())
        emit("step_skipped", step=options.name, reason=reason)
        sys.exit(DONE)
    marker.unlink(missing_ok=True)
    os.execvp(options.command[0], options.command)  # noqa: S606  no shell is wanted


def _reason(options: argparse.Namespace) -> str | None:
    """Return why the step is skipped, None if it runs."""
    for earlier in options.after:
        if _marker(options.run, earlier).exists():
            return f"step {earlier} was skipped"
    if not options.when:
        return None
    metrics = read_manifest(options.run / "export").metrics
    conditions = parse_named(options.when)
    if missing := sorted(conditions.keys() - metrics.keys()):
        known = ", ".join(sorted(metrics)) or "none"
        raise ValueError(f"the export has no metric {missing[0]!r}; its metrics: {known}")
    return next(violations(conditions, metrics, {}), None)


def _marker(run: Path, step: str) -> Path:
    return run / STEPS_FOLDER / f"{step}.json"


if __name__ == "__main__":
    main()
