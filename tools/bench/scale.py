"""Scalability of clusters and stacks: `make bench-scale`.

The benchmark has two parts, each on a separate simulated cluster (real API server, real Volcano,
nodes that run no processes):

- Placement: jobs fill a thousand nodes with eight GPUs each, alternately as gangs with Volcano and
  as plain pods with kube-scheduler. A watch records each pod binding, so that partially bound gangs
  are detected.
- Updates: `pulumi up` of 10, 100 and 1,000 jobs, in stacks of 50 jobs that are updated concurrently
  as docs/scale.md recommends. Duration, CPU time and memory are compared with those of a single
  stack of 100 jobs and of `kubectl apply --server-side` with the same objects.

The benchmark prints the goals, including missed ones, and writes all samples to .bench/scale.json.
"""

from __future__ import annotations

import argparse
from typing import Any

from tools.bench.outcome import Goal, conclude
from tools.bench.scale_placement import placement, placement_goals
from tools.bench.scale_updates import update_goals, updates

_SMALL = {"nodes": 80, "jobs": 10, "repetitions": 1, "sizes": [10, 50]}


def main() -> None:
    """Measure, print and write the result."""
    options = _options()
    if options.small:
        vars(options).update(_SMALL)
    result: dict[str, Any] = {}
    goals: list[Goal] = []
    if options.part != "updates":
        result["placement"] = placement(
            options.nodes, options.jobs, options.pods, options.repetitions
        )
        goals += placement_goals(result["placement"])
    if options.part != "placement":
        result["updates"] = updates(options.sizes, options.per_stack, options.repetitions)
        goals += update_goals(result["updates"])
    conclude("scale", result, goals)


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--part", choices=["placement", "updates"], help="run only this part")
    parser.add_argument(
        "--small", action="store_true", help="80 nodes and 10 jobs; updates of 10 and 50 jobs"
    )
    parser.add_argument(
        "--nodes", type=int, default=1000, help="number of nodes with eight GPUs; default: 1000"
    )
    parser.add_argument(
        "--jobs", type=int, default=125, help="number of jobs to place; default: 125"
    )
    parser.add_argument("--pods", type=int, default=8, help="pods per placed job; default: 8")
    parser.add_argument(
        "--sizes",
        type=lambda text: [int(number) for number in text.split(",")],
        default=[10, 100, 1000],
        help="numbers of jobs to update; default: 10,100,1000",
    )
    parser.add_argument(
        "--per-stack", type=int, default=50, help="number of jobs per stack; default: 50"
    )
    parser.add_argument(
        "--repetitions",
        type=int,
        default=2,
        help="repetitions of each measurement; the largest update runs only once; default: 2",
    )
    options = parser.parse_args()
    if options.jobs * options.pods > options.nodes:
        parser.error(
            f"{options.jobs} jobs of {options.pods} pods do not fit on {options.nodes} nodes"
        )
    return options


if __name__ == "__main__":
    main()
