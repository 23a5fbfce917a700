"""`python -m gitops snapshot`: write the scheduling state of a cluster to a file."""

import argparse
import sys
from datetime import UTC, datetime
from pathlib import Path

from gitops.errors import UNCHANGED
from workload.files import write_atomically

HELP = "write the nodes, queues and gangs of a cluster to a file, for simulations"
DESCRIPTION = """\
Write the scheduling state of the cluster to which kubectl is connected: nodes (with labels, taints
and allocatable resources), queues, PriorityClasses, the scheduler's configuration, and the running,
pending and suspended gangs (with priority, age, deadline and progress). The cluster is not changed.
"""
EPILOG = """\
examples:
  python -m gitops snapshot --out cluster.yaml
  python -m gitops snapshot --redact --out cluster.json

The file contains no environment variables, images, commands or pod annotations. --redact also
replaces the names of nodes, namespaces, gangs, queues and PriorityClasses.
"""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the command's arguments to the parser."""
    parser.add_argument(
        "--out",
        type=Path,
        metavar="FILE",
        help="output file: JSON if its name ends in .json, otherwise YAML; default: stdout",
    )
    parser.add_argument("--redact", action="store_true", help="replace names with pseudonyms")
    parser.add_argument("--context", metavar="NAME", help="default: the current context")
    parser.add_argument(
        "--kubeconfig", metavar="FILE", type=Path, help="default: kubectl's default"
    )


def run(options: argparse.Namespace) -> int:
    """Run the command and return its exit status.

    Raises:
        GitopsError: If the cluster does not respond.
    """
    from gitops.forecast.capture import capture
    from gitops.forecast.state import dump, redact
    from gitops.runs.command import kubectl
    from gitops.runs.snapshot import Cluster

    state = capture(Cluster(kubectl(options)), datetime.now(UTC).replace(microsecond=0))
    if options.redact:
        state = redact(state)
    text = dump(state, as_yaml=options.out is None or options.out.suffix != ".json")
    for note in state.notes:
        sys.stderr.write(f"warning: {note}\n")
    if options.out is None:
        sys.stdout.write(text)
    else:
        write_atomically(options.out, text.encode())
        counts = f"nodes: {len(state.nodes)}, gangs: {len(state.gangs)}"
        sys.stderr.write(f"wrote {options.out} ({counts})\n")
    return UNCHANGED
