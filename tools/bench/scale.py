"""Measures jobs at cluster size: `make bench-scale`.

On simulated clusters of its own (real API server, real Volcano; nodes that run nothing), in two
parts. Placement: a thousand nodes of eight GPUs get jobs that fill all of them, first as gangs by
Volcano and then the same pods as plain pods by kube-scheduler, in turns; a watch sees each binding,
and whether a part of a gang ever had nodes while the rest was left waiting. Updates: `pulumi up` of
10, 100 and 1,000 jobs, in stacks of 50 that are updated at the same time as docs/scale.md advises,
beside one stack of 100 and `kubectl apply --server-side` of the same objects, with the memory of
each. Prints the goals, missed ones as well, and writes every sample to .bench/scale.json.
"""

from __future__ import annotations

import argparse
from typing import Any

from tools.bench.outcome import Goal, conclude
from tools.bench.scale_placement import placement, placement_goals
from tools.bench.scale_updates import update_goals, updates

_SMALL = {"nodes": 80, "jobs": 10, "repetitions": 1, "sizes": [10, 50]}


def main() -> None:
    """Measures, prints and writes the result."""
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
    parser.add_argument("--part", choices=["placement", "updates"], help="only this one")
    parser.add_argument("--small", action="store_true", help="80 nodes, 10 jobs; updates of 10, 50")
    parser.add_argument("--nodes", type=int, default=1000, help="of eight GPUs; default: 1000")
    parser.add_argument("--jobs", type=int, default=125, help="to place; default: 125")
    parser.add_argument("--pods", type=int, default=8, help="of a job to place; default: 8")
    parser.add_argument(
        "--sizes",
        type=lambda text: [int(number) for number in text.split(",")],
        default=[10, 100, 1000],
        help="numbers of jobs to update; default: 10,100,1000",
    )
    parser.add_argument("--per-stack", type=int, default=50, help="jobs of a stack; default: 50")
    parser.add_argument(
        "--repetitions",
        type=int,
        default=2,
        help="of all but the largest update, which is done once; default: 2",
    )
    options = parser.parse_args()
    if options.jobs * options.pods > options.nodes:
        parser.error(f"{options.jobs} jobs of {options.pods} pods do not fit {options.nodes} nodes")
    return options


if __name__ == "__main__":
    main()
