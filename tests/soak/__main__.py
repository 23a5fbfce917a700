"""Soak test: `make test-soak`, 20 minutes, or `SOAK_MINUTES=2` for a short trial.

On a separate embedded cluster with real nodes, jobs are continuously submitted, killed and
replaced, while a model is served under load and one run trains undisturbed. The memory of the model
server, of that run and of the cluster's processes is sampled every few seconds. At the end, all
submitted jobs are removed. The jobs must leave no objects in the cluster, no processes, mounts or
links on its nodes, and, after `make down`, nothing on the host.

The program prints the goals, including missed ones. It writes all samples to .bench/soak.json and a
plot to .bench/soak.svg, and exits with 1 if a goal is missed.
"""

import argparse
import os
import sys
import tempfile
import time
from dataclasses import asdict
from pathlib import Path
from typing import Any

from devcluster import host
from devcluster.spec import Kind
from tests.cluster.host_state import HostState
from tests.cluster.load import Load
from tests.cluster.platform import Platform, copy_checkout
from tests.soak import inventory
from tests.soak.churn import Churn, inference_request, model_url
from tests.soak.goals import draw, goals_of
from tests.soak.memory import Sampler, cluster_processes
from tools.bench.outcome import DIRECTORY, conclude, load, print_line

CLIENTS, PAUSE = 4, 0.2
EVERY = 5.0
"""Seconds between two memory samples."""


def main() -> None:
    """Run the soak test; exit with 1 if a goal is missed."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    default = float(os.environ.get("SOAK_MINUTES") or 20)
    parser.add_argument(
        "--minutes",
        type=float,
        default=default,
        help="duration of the churn; default: SOAK_MINUTES, else 20",
    )
    minutes = parser.parse_args().minutes
    verdict = host.choose_kind("auto")
    if verdict.kind is not Kind.REAL:
        sys.exit(f"real nodes cannot run here: {verdict.reason}")
    before = HostState.now()
    with tempfile.TemporaryDirectory(prefix="soak-") as folder:
        state = Path(os.environ.get("GPU_PLATFORM_STATE") or Path(folder) / "state")
        platform = Platform(copy_checkout(Path(folder) / "checkout"), state, "real")
        try:
            result = soak(platform, minutes)
        finally:
            print_line("taking the cluster down")
            platform.make("down", "PURGE=1")
    result["leftOnHost"] = HostState.now().added_since(before)
    goals = goals_of(result)
    conclude("soak", {"minutes": minutes, **result}, goals)
    draw(load("soak"), DIRECTORY / "soak.svg")
    sys.exit(0 if all(goal.met for goal in goals) else 1)


def soak(platform: Platform, minutes: float) -> dict[str, Any]:
    """Run the cluster until the last sample and leave it running."""
    print_line("starting the cluster and training the model that is served")
    platform.make("up")
    churn = Churn(platform)
    churn.start()
    with Load(model_url(platform), inference_request(), CLIENTS, PAUSE) as requests:
        churn.turn(0)
        churn.clear()
        first = inventory.take(platform)
        sampler = Sampler(lambda: cluster_processes(platform.state), churn.pods_by_uid, EVERY)
        began = time.monotonic()
        with sampler:
            turn = 0
            while time.monotonic() < began + minutes * 60:
                turn += 1
                at = (time.monotonic() - began) / 60
                print_line(f"minute {at:.1f} of {minutes:g}: turn {turn}, {churn.done}")
                churn.turn(turn)
            # Memory is also sampled while the last turn is removed.
            churn.clear()
        seen = requests.seen()
    last = inventory.settled(platform, first)
    return {
        "turns": turn,
        "churn": asdict(churn.done),
        "requests": {"answered": seen.answered, "failed": seen.failed},
        "memory": sampler.samples,
        "left": inventory.added(first, last),
        "inventory": {name: len(items) for name, items in last.items()},
    }


if __name__ == "__main__":
    main()
