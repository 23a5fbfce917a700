"""`python -m gitops simulate`: run real Volcano on a changed snapshot of a cluster."""

import argparse
import sys
from datetime import UTC, datetime
from pathlib import Path

from gitops.errors import UNCHANGED, UsageError
from workload.files import write_atomically

HELP = "simulate how the scheduler handles changes to a snapshot of a cluster"
DESCRIPTION = """\
Load a snapshot into a simulated cluster with a real API server and real Volcano, apply changes, and
let the scheduler decide. Simulated time advances from the end of one gang to the end of the next.
For each gang, the output states whether it starts immediately, waits (with the reason and the
expected start time) or is preempted. It also lists free and fragmented GPUs, and the GPUs per
queue. The cluster from which the snapshot was taken is not accessed.
"""
EPILOG = """\
examples:
  python -m gitops simulate --snapshot cluster.yaml
  python -m gitops simulate --snapshot cluster.yaml --add job.yaml --compare --svg queue.svg
  python -m gitops simulate --snapshot cluster.yaml --remove ml/digits-0123abcd --nodes +4 --json
  python -m gitops simulate --snapshot cluster.yaml --queue vision.weight=3
"""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the command's arguments to the parser."""
    parser.add_argument(
        "--snapshot", type=Path, required=True, metavar="FILE", help="snapshot to load"
    )
    parser.add_argument(
        "--add",
        type=Path,
        action="append",
        default=[],
        metavar="FILE",
        help="manifests of jobs to add; may be repeated",
    )
    parser.add_argument(
        "--remove",
        action="append",
        default=[],
        metavar="RUN",
        help="gang to remove; may be repeated",
    )
    parser.add_argument("--nodes", default="", metavar="+N", help="number of nodes to add")
    parser.add_argument(
        "--queue",
        action="append",
        default=[],
        metavar="NAME.weight=N",
        help="new queue weight; may be repeated",
    )
    parser.add_argument(
        "--horizon",
        type=int,
        default=20,
        metavar="N",
        help="stop after N gangs have finished; default: 20",
    )
    add_repeat(parser)
    parser.add_argument(
        "--compare", action="store_true", help="also simulate the snapshot without the changes"
    )
    parser.add_argument("--svg", type=Path, metavar="FILE", help="write a Gantt chart")
    parser.add_argument("--json", action="store_true", help="print JSON")


def add_repeat(parser: argparse.ArgumentParser) -> None:
    """Add the `--repeat` option, which `simulate` and `preview` share."""
    parser.add_argument(
        "--repeat",
        type=_count,
        metavar="N",
        help="number of simulations; their results may differ, because the scheduler chooses at "
        "random among equal gangs and nodes; default: 3 if the scheduler may evict pods, "
        "otherwise 1",
    )


def _count(text: str) -> int:
    if not text.isdecimal() or not int(text):
        raise argparse.ArgumentTypeError(
            f"{text} is not a valid number of simulations: use 1, 2, 3 …"
        )
    return int(text)


def run(options: argparse.Namespace) -> int:
    """Run the command and return its exit status.

    Raises:
        GitopsError: If a change is invalid, or the simulated cluster does not start.
    """
    from gitops.forecast.answer import render
    from gitops.forecast.gantt import svg
    from gitops.forecast.simulate import simulate
    from gitops.forecast.state import load
    from gitops.forecast.whatif import Changes

    if options.horizon < 0:
        raise UsageError(f"--horizon {options.horizon} is negative: use 0, 1, 2 …")
    changes = Changes(options.add, options.remove, options.nodes, options.queue)
    base = load(options.snapshot)
    state, assumptions = changes.apply(base)
    sys.stderr.write("starting a simulated cluster…\n")
    answer = simulate(
        state,
        datetime.now(UTC),
        options.horizon,
        base=base if options.compare else None,
        repeat=options.repeat,
    )
    answer = answer.model_copy(update={"assumptions": [*assumptions, *answer.assumptions]})
    if options.json:
        sys.stdout.write(answer.model_dump_json(by_alias=True, indent=2) + "\n")
    else:
        sys.stdout.write(render(answer))
    if options.svg is not None:
        write_atomically(options.svg, svg(answer).encode())
    return UNCHANGED
