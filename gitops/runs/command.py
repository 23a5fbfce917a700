"""`python -m gitops status`: the runs of a cluster, how far they are and what they wait for."""

import argparse
import json
import sys
import time
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING

from gitops.errors import GitopsError
from gitops.status import FAILED, UNCHANGED

if TYPE_CHECKING:
    from gitops.prices import Prices
    from gitops.runs.cluster import Cluster

HELP = "show the training runs of a cluster: progress, cost, and why the rest waits"
DESCRIPTION = """\
Shows every training run in the cluster that kubectl reaches, whoever started it: state, pods and
GPUs, epochs, loss and time left as its program tells them, GPU hours and their price so far, its
place in the queue and why it waits, and the last words of a failed one. Changes nothing.
"""
EPILOG = """\
examples:
  python -m gitops status                         of all namespaces
  python -m gitops status --namespace team-vision --watch
  python -m gitops status --json | jq '.runs[] | select(.state == "waiting") | .reasons'

GPU hours and prices are of pods that are still there; prices are those of gitops/config/prices.yaml
for the label nvidia.com/gpu.product of the nodes, or for the stack's where they have none.

exit status: 0 where no run has failed, 1 where one has or the cluster does not answer.
"""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declares what the command takes."""
    parser.add_argument("--namespace", "-n", metavar="NAME", help="only of this one")
    parser.add_argument("--context", metavar="NAME", help="of the kubeconfig; default: its own")
    parser.add_argument("--kubeconfig", metavar="FILE", type=Path, help="default: kubectl's own")
    parser.add_argument(
        "--stack", metavar="NAME", default="", help="whose GPUs nodes have that do not say"
    )
    parser.add_argument("--prices", metavar="FILE", type=Path, help="another price table")
    shown = parser.add_mutually_exclusive_group()
    shown.add_argument("--watch", "-w", action="store_true", help="again and again, until Ctrl-C")
    shown.add_argument("--json", action="store_true", help="for machines")
    shown.add_argument("--svg", metavar="FILE", type=Path, help="as a picture of a terminal, too")
    parser.add_argument(
        "--every", metavar="SECONDS", type=float, default=2.0, help="with --watch; default: 2"
    )


def run(options: argparse.Namespace) -> int:
    """Runs the command; returns its exit status. Raises GitopsError."""
    from gitops import prices
    from gitops.runs.cluster import Cluster
    from gitops.runs.finding import runs

    table = prices.load(options.prices or prices.DEFAULT)
    cluster = Cluster(_kubectl(options), options.namespace)
    product = table.environment(options.stack).product or ""
    if options.watch:
        return _watch(cluster, table, product, options.every)
    now = datetime.now(UTC)
    found = runs(cluster, table, now, product=product)
    if options.json:
        told = {"currency": table.currency, "runs": [run.as_json() for run in found]}
        sys.stdout.write(json.dumps(told, indent=2) + "\n")
    else:
        from rich.console import Console

        from gitops.runs.screen import as_svg, screen

        console = Console(record=options.svg is not None)
        console.print(screen(found, table.currency, now))
        if options.svg is not None:
            options.svg.write_text(as_svg(console, "python -m gitops status"))
    from gitops.runs.states import State

    return FAILED if any(run.state is State.FAILED for run in found) else UNCHANGED


def _watch(cluster: "Cluster", table: "Prices", product: str, every: float) -> int:
    import gc

    from rich.live import Live

    from gitops.runs.finding import runs
    from gitops.runs.screen import screen

    gc.enable()  # other commands end too soon to need it
    with Live(screen=False, auto_refresh=False) as live:
        while True:
            now = datetime.now(UTC)
            try:
                found = runs(cluster, table, now, product=product)
                live.update(screen(found, table.currency, now), refresh=True)
            except GitopsError as error:
                live.update(f"{error}\nasking again", refresh=True)
            time.sleep(every)


def _kubectl(options: argparse.Namespace) -> list[str]:
    command = ["kubectl"]
    if options.kubeconfig:
        command += ["--kubeconfig", str(options.kubeconfig)]
    if options.context:
        command += ["--context", options.context]
    return command
