"""`python -m devcluster`: the embedded cluster, by itself. `make up` does this and the rest."""

import argparse
import os
import subprocess
import sys
from collections import deque

from devcluster import environment, host, launcher, lifecycle
from devcluster.demands import Demands
from devcluster.errors import DevclusterError
from devcluster.lock import exclusive
from devcluster.orphans import end_orphans
from devcluster.paths import Layout
from devcluster.progress import Reporter
from devcluster.spec import Kind, cluster_spec
from devcluster.toolchain import OPERATORS, Operator
from gitops.errors import GitopsError
from gitops.runs.snapshot import Cluster
from gitops.runs.table import print_runs


def main(arguments: list[str] | None = None) -> int:
    """Runs one command; returns its exit status."""
    options = _parser().parse_args(arguments)
    os.environ.update(environment.past_proxies())  # for kubectl and skopeo
    try:
        return int(options.run(options))
    except (DevclusterError, GitopsError) as error:
        print(f"error: {error}", file=sys.stderr)
        return 1
    except subprocess.CalledProcessError as error:
        command = error.cmd if isinstance(error.cmd, str) else " ".join(map(str, error.cmd))
        print(f"error: `{command}` ended with {error.returncode}", file=sys.stderr)
        return 1
    except KeyboardInterrupt:
        print("interrupted: what is done is kept, and `make up` goes on from it", file=sys.stderr)
        return 130


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="python -m devcluster",
        description="The embedded cluster: a real Kubernetes API server with Volcano, and nodes "
        "that are real (containers, simulated GPUs; needs root) or simulated (no root).",
    )
    commands = parser.add_subparsers(required=True, metavar="COMMAND")
    for name, run, text in (
        ("up", _up, "start the cluster, or say that it is up"),
        ("deploy", _deploy, "start it, update its Pulumi stack, wait for training, predict"),
        ("down", _down, "end the cluster; checkpoints and the stack's state are kept"),
        ("status", _status, "what runs, and why each pending job waits"),
        ("env", _env, "print shell exports for pulumi, kubectl and docker"),
        ("logs", _logs, "where the logs are, with the last lines of one of them"),
    ):
        command = commands.add_parser(name, help=text, description=text)
        command.set_defaults(run=run)
        command.add_argument(
            "--nodes",
            default="auto",
            metavar="KIND",
            help="real, simulated, or auto: real where the machine can (default)",
        )
        if name in ("up", "deploy"):
            command.add_argument(
                "--simulated-nodes", type=_count, metavar="N", help="nodes of eight simulated GPUs"
            )
        if name == "up":
            command.add_argument(
                "--operators",
                type=_operators,
                default=(),
                metavar="NAMES",
                help=f"run operators of Kubeflow as well, on real nodes: {','.join(OPERATORS)}; "
                "deploy brings those that the stack's jobs need",
            )
        if name == "down":
            command.add_argument(
                "--purge", action="store_true", help="remove checkpoints and the stack's state too"
            )
        if name == "logs":
            command.add_argument("process", nargs="?", help="such as gpu-node-0/kubelet")
    return parser


def _count(text: str) -> int:
    if not text.isdecimal():
        raise argparse.ArgumentTypeError(f"{text!r} is not a number of nodes: write 0, 1, 2 …")
    return int(text)


def _operators(text: str) -> tuple[Operator, ...]:
    names = text.split(",")
    if unknown := sorted(set(names) - set(OPERATORS)):
        raise argparse.ArgumentTypeError(f"{unknown} is not known: write {', '.join(OPERATORS)}")
    return tuple(name for name in OPERATORS if name in names)


def _up(options: argparse.Namespace) -> int:
    verdict = host.choose_kind(options.nodes)
    reporter = Reporter()
    reporter.say(f"{verdict.kind} nodes: {verdict.reason}")
    spec = cluster_spec(verdict.kind, options.simulated_nodes)
    if options.operators and verdict.kind is not Kind.REAL:
        raise DevclusterError("--operators needs real nodes: they are pods, and here none runs")
    with exclusive(Layout.of(verdict.kind).lock, "devcluster up"):
        lifecycle.up(spec, reporter, Demands(operators=options.operators))
    return 0


def _deploy(options: argparse.Namespace) -> int:
    # Here, not above: the other commands do not need what deploying imports.
    from devcluster.deploy.up import bring_up

    verdict = host.choose_kind(options.nodes)
    reporter = Reporter()
    reporter.say(f"{verdict.kind} nodes: {verdict.reason}")
    spec = cluster_spec(verdict.kind, options.simulated_nodes)
    with exclusive(Layout.of(verdict.kind).lock, "make up"):
        return bring_up(spec, reporter)


def _kinds(asked: str) -> list[Kind]:
    if asked == "auto":
        return list(Kind)
    if asked not in list(Kind):
        raise DevclusterError(f"NODES is {asked!r}: write NODES=real, NODES=simulated or leave it")
    return [Kind(asked)]


def _down(options: argparse.Namespace) -> int:
    status = 0
    for kind in _kinds(options.nodes):
        layout = Layout.of(kind)
        if not layout.state.exists():
            if end_orphans(kind):
                print(f"the {kind} cluster, whose state folder is gone, is down")
            continue
        with exclusive(layout.lock, "devcluster down"):
            was_up = launcher.running(layout) is not None
            left = lifecycle.down(kind, purge=options.purge)
        if was_up or options.purge:
            kept = "its state is removed" if options.purge else "checkpoints and state are kept"
            print(f"the {kind} cluster is down; {kept}")
        for path in left:
            print(f"could not be removed: {path}", file=sys.stderr)
            status = 1
    return status


def _status(options: argparse.Namespace) -> int:
    found = False
    for kind in _kinds(options.nodes):
        record = launcher.running(Layout.of(kind))
        if record is not None:
            found = True
            cluster = lifecycle.attach(kind, cluster_spec(kind))
            print(f"{kind} cluster, process {record.pid}, from the checkout {record.checkout}")
            subprocess.run([*cluster.kubectl, "get", "nodes"], check=False)
            print_runs(Cluster(cluster.kubectl))
    if not found:
        print("no embedded cluster is up")
    return 0 if found else 3


def _running_kind(asked: str) -> Kind:
    for kind in _kinds(asked):
        if launcher.running(Layout.of(kind)) is not None:
            return kind
    raise DevclusterError("no embedded cluster is up: `make up` brings it up")


def _env(options: argparse.Namespace) -> int:
    kind = _running_kind(options.nodes)
    cluster = lifecycle.attach(kind, cluster_spec(kind))
    print(environment.exports(environment.variables(cluster.layout, cluster.toolchain, kind)))
    return 0


def _logs(options: argparse.Namespace) -> int:
    found = options.process is None
    for kind in _kinds(options.nodes):
        logs = Layout.of(kind).logs
        if not logs.exists():
            continue
        if options.process is None:
            for file in sorted(logs.rglob("*.log")):
                print(file)
        elif (file := logs / f"{options.process}.log").exists():
            found = True
            with file.open(errors="replace") as lines:
                sys.stdout.writelines(deque(lines, maxlen=100))
    if not found:
        raise DevclusterError(f"there is no log of {options.process!r}: name none to list them")
    return 0


if __name__ == "__main__":
    sys.exit(main())
