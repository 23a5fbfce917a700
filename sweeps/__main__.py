"""Run the hyperparameter sweeps of a stack.

The program runs in a pod in the runs' namespace:
`python3 -m sweeps --plan /plan/plan.json --claims /claims`.
"""

import argparse
import logging
import sys
import time
from pathlib import Path

from httpx2 import HTTPError
from lightkube import Client

from infra.sweep import parse_plan
from sweeps.controller import Controller
from workload.manifest import UnavailableExportError

_log = logging.getLogger("sweeps")


def main() -> int:
    """Control the sweeps of a plan until the plan changes. The container then restarts."""
    options = _parser().parse_args()
    logging.basicConfig(level=logging.INFO, format="%(levelname)s %(name)s: %(message)s")
    logging.getLogger("httpx2").setLevel(logging.WARNING)
    try:
        text = options.plan.read_text("utf-8")
        sweeps = parse_plan(text)
    except (OSError, ValueError) as error:
        _log.error(
            "%s cannot be read: %s; use the image version that matches the stack",
            options.plan,
            error,
        )
        return 1
    api = Client()
    controllers = [
        Controller(sweep, options.claims / sweep.settings.job.checkpoints, api, options.interval)
        for sweep in sweeps.values()
    ]
    while options.plan.read_text("utf-8") == text:
        immediate = [_step(controller) for controller in controllers]
        if not any(immediate):
            time.sleep(options.interval)
    return 0


def _step(controller: Controller) -> bool:
    """Take a step, and return whether the next one should follow immediately.

    If the API server or the claim is unavailable, the step is only delayed.
    """
    try:
        return controller.step()
    except (HTTPError, OSError, UnavailableExportError) as error:
        _log.warning("%s: %s", type(error).__name__, error)
        return False


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="python3 -m sweeps", description=__doc__)
    parser.add_argument("--plan", type=Path, required=True, help="JSON file written by the stack")
    parser.add_argument(
        "--claims",
        type=Path,
        required=True,
        help="directory in which each claim is mounted under its key",
    )
    parser.add_argument(
        "--interval", type=float, default=10, help="time (s) between two checks of the trials"
    )
    return parser


if __name__ == "__main__":
    sys.exit(main())
