"""`python -m gitops status`: show runs with progress, cost and reasons for waiting."""

import argparse
import contextlib
import json
import sys
import threading
import time
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING

from gitops.errors import FAILED, UNCHANGED, GitopsError, UsageError, object_name

if TYPE_CHECKING:
    from gitops.prices import Prices
    from gitops.runs.status import RunStatus

HELP = "show the training runs of a cluster: progress, cost and reasons for waiting"
DESCRIPTION = """\
Show the training runs of all users in the cluster to which kubectl is connected: state, pods and
GPUs; epochs, loss and remaining time as reported by their programs; GPU-hours and cost; position in
the queue and reasons for waiting; last log lines of a failed run. The cluster is not changed.
"""
EPILOG = """\
examples:
  python -m gitops status
  python -m gitops status --namespace team-vision --watch
  python -m gitops status --json | jq '.runs[] | select(.state == "waiting") | .reasons'

GPU-hours and cost include only pods that still exist. gitops/config/prices.yaml contains the prices
of GPU models, keyed by the value of the nvidia.com/gpu.product node label. Nodes without this label
are assumed to have the model of --stack.

exit status: 0 if no run has failed; 1 if a run has failed or the cluster does not respond; 64 if an
argument is invalid.
"""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the command's arguments to the parser."""
    parser.add_argument(
        "--namespace", "-n", metavar="NAME", type=object_name, help="default: all namespaces"
    )
    parser.add_argument("--context", metavar="NAME", help="default: the current context")
    parser.add_argument(
        "--kubeconfig", metavar="FILE", type=Path, help="default: kubectl's default"
    )
    parser.add_argument(
        "--stack",
        metavar="NAME",
        default="",
        help="stack whose GPU model is assumed for unlabeled nodes",
    )
    parser.add_argument(
        "--prices",
        metavar="FILE",
        type=Path,
        help="price table; default: gitops/config/prices.yaml",
    )
    views = parser.add_mutually_exclusive_group()
    views.add_argument("--watch", "-w", action="store_true", help="refresh until Ctrl-C")
    views.add_argument("--json", action="store_true", help="print JSON")
    views.add_argument(
        "--svg", metavar="FILE", type=Path, help="also write the table as an SVG image"
    )
    parser.add_argument(
        "--every",
        metavar="SECONDS",
        type=_period,
        default=2.0,
        help="seconds between refreshes with --watch; default: 2",
    )


def _period(text: str) -> float:
    with contextlib.suppress(ValueError):
        if 0 < (seconds := float(text)) < threading.TIMEOUT_MAX:
            return seconds
    raise argparse.ArgumentTypeError(
        f"{text} is not a valid number of seconds: use a positive number, such as 2"
    )


def run(options: argparse.Namespace) -> int:
    """Run the command and return its exit status.

    Raises:
        GitopsError: If the cluster does not respond, or the price table does not list --stack.
    """
    from gitops import prices
    from kube.kinds.record import State

    table = prices.load(options.prices or prices.DEFAULT)
    if options.stack and options.stack not in table.environments:
        known = ", ".join(table.environments) or "none"
        raise UsageError(
            f"--stack {options.stack} is not under environments in the price table, which lists: "
            f"{known}"
        )
    product = table.environment(options.stack).product or ""
    if options.watch:
        return _watch(options, table, product)
    now = datetime.now(UTC)
    statuses = _read(options, table, now, product)
    if options.json:
        document = {"currency": table.currency, "runs": [run.as_json() for run in statuses]}
        sys.stdout.write(json.dumps(document, indent=2) + "\n")
    else:
        from gitops.runs.table import as_svg, render, terminal

        console = terminal(record=options.svg is not None)
        console.print(render(statuses, table.currency, now, options.namespace))
        if options.svg is not None:
            options.svg.write_text(as_svg(console, "python -m gitops status"))
    return FAILED if any(run.state is State.FAILED for run in statuses) else UNCHANGED


def _read(
    options: argparse.Namespace, table: "Prices", now: datetime, product: str
) -> "list[RunStatus]":
    from gitops.runs.snapshot import PERMISSION_REMEDY, Cluster, ForbiddenError
    from gitops.runs.status import read_runs

    try:
        # Created on each refresh, because CRDs may be installed between refreshes.
        return read_runs(Cluster(kubectl(options), options.namespace), table, now, product=product)
    except ForbiddenError as error:
        if options.namespace is not None:
            raise GitopsError(f"{error}; {PERMISSION_REMEDY}") from None
        raise GitopsError(
            f"{error}. If you are allowed to list the pods of a namespace, add --namespace NAME"
        ) from None


def _watch(options: argparse.Namespace, table: "Prices", product: str) -> int:
    import gc

    from rich.live import Live
    from rich.text import Text

    from gitops.runs.table import render

    gc.enable()  # the CLI disables it, but --watch runs indefinitely
    with Live(screen=False, auto_refresh=False) as live:
        while True:
            now = datetime.now(UTC)
            try:
                statuses = _read(options, table, now, product)
                live.update(render(statuses, table.currency, now, options.namespace), refresh=True)
            except GitopsError as error:
                live.update(Text(f"{error}\nretrying"), refresh=True)
            time.sleep(options.every)


def kubectl(options: argparse.Namespace) -> list[str]:
    """Return the kubectl command, with --kubeconfig and --context if the options contain them."""
    command = ["kubectl"]
    if options.kubeconfig:
        command += ["--kubeconfig", str(options.kubeconfig)]
    if options.context:
        command += ["--context", options.context]
    return command
