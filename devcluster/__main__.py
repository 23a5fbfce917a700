"""`python -m devcluster`: commands for the embedded cluster, used by the Makefile."""

import argparse
import os
import subprocess
import sys
from collections import deque
from contextlib import nullcontext

from devcluster import DevclusterError, environment, host, launcher, lifecycle
from devcluster.launcher import exclusive
from devcluster.operators import Requirements
from devcluster.paths import Layout
from devcluster.progress import Reporter
from devcluster.spec import Kind, cluster_spec
from devcluster.toolchain.pins import OPERATORS, OTHER_VOLCANO_RELEASES, Operator
from gitops.errors import GitopsError
from policies import output
from simulation import ClusterError


def main(arguments: list[str] | None = None) -> int:
    """Run a command and return its exit status."""
    options = _parser().parse_args(arguments)
    os.umask(0o022)  # non-root containers must be able to read images and the kubelet's volumes
    os.environ.update(environment.proxy_exclusions())  # for kubectl and skopeo
    os.environ["KUBERC"] = "off"  # the user's kuberc may make deletions interactive
    try:
        return int(options.run(options))
    except BrokenPipeError:
        raise  # handled by policies.output
    except (ClusterError, GitopsError, OSError) as error:
        print(f"error: {error}", file=sys.stderr)
        return 1
    except subprocess.CalledProcessError as error:
        command = error.cmd if isinstance(error.cmd, str) else " ".join(map(str, error.cmd))
        print(f"error: `{command}` exited with {error.returncode}", file=sys.stderr)
        if printed := error.stderr:
            text = printed if isinstance(printed, str) else printed.decode(errors="replace")
            print(text.strip(), file=sys.stderr)
        return 1
    except KeyboardInterrupt:
        print("interrupted: `make up` resumes an interrupted start", file=sys.stderr)
        return 130


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="python -m devcluster",
        description="Embedded cluster: a real Kubernetes API server with Volcano. Nodes are real "
        "(they run containers with simulated GPUs; root required) or simulated (no root required).",
    )
    commands = parser.add_subparsers(required=True, metavar="COMMAND")
    for name, run, text in (
        ("up", _up, "start the cluster, unless it is running"),
        (
            "deploy",
            _deploy,
            "start the cluster, update its stack, wait for training, and request a prediction",
        ),
        ("down", _down, "stop the cluster; checkpoints and the stack's state are kept"),
        ("status", _status, "list runs and the reasons why pending runs wait"),
        ("env", _env, "print shell exports for pulumi, kubectl and docker"),
        ("logs", _logs, "list log files, or print the last lines of one"),
    ):
        command = commands.add_parser(name, help=text, description=text)
        command.set_defaults(run=run)
        command.add_argument(
            "--nodes",
            default="auto",
            metavar="KIND",
            help="real, simulated, or auto. By default (auto), the up and deploy commands use real "
            "nodes if the host supports them, env uses a running cluster, and the other commands "
            "cover both kinds",
        )
        if name in ("up", "deploy"):
            command.add_argument(
                "--simulated-nodes",
                type=_count,
                metavar="N",
                help="minimum number of simulated nodes, each with 8 GPUs; existing nodes are kept",
            )
        if name == "up":
            command.add_argument(
                "--operators",
                type=_operators,
                default=(),
                metavar="NAMES",
                help=f"additional job operators to run (real nodes only): {','.join(OPERATORS)}; "
                "the deploy command starts the operators that the stack's jobs need",
            )
            minors = ", ".join(name.removeprefix("volcano-") for name in OTHER_VOLCANO_RELEASES)
            command.add_argument(
                "--volcano",
                default="",
                metavar="VERSION",
                help="version of Volcano's scheduler, such as 1.10.0 (simulated nodes only); any "
                f"minor version other than {minors} selects the default release",
            )
        if name == "down":
            command.add_argument(
                "--purge", action="store_true", help="also delete checkpoints and the stack's state"
            )
        if name == "logs":
            command.add_argument("process", nargs="?", help="process, such as gpu-node-0/kubelet")
    return parser


def _count(text: str) -> int:
    if not text.isdecimal():
        raise argparse.ArgumentTypeError(f"{text!r} is not a valid number of nodes: use 0, 1, 2 …")
    return int(text)


def _operators(text: str) -> tuple[Operator, ...]:
    names = text.split(",")
    if unknown := sorted(set(names) - set(OPERATORS)):
        raise argparse.ArgumentTypeError(f"unknown operators {unknown}: use {', '.join(OPERATORS)}")
    return tuple(name for name in OPERATORS if name in names)


def _up(options: argparse.Namespace) -> int:
    choice = host.choose_kind(options.nodes)
    reporter = Reporter()
    reporter.say(f"{choice.kind} nodes: {choice.reason}")
    spec = cluster_spec(choice.kind, options.simulated_nodes)
    if options.operators and choice.kind is not Kind.REAL:
        raise DevclusterError("--operators requires real nodes, because operators run in pods")
    if options.volcano and choice.kind is Kind.REAL:
        raise DevclusterError(
            "--volcano requires simulated nodes: on real nodes, the stack installs Volcano"
        )
    requirements = Requirements(operators=options.operators, volcano=options.volcano)
    with exclusive(Layout.of(choice.kind).lock, "devcluster up"):
        lifecycle.up(spec, reporter, requirements)
    return 0


def _deploy(options: argparse.Namespace) -> int:
    # Imported here, because the import takes time and other commands do not need it.
    from devcluster.deploy.up import bring_up

    choice = host.choose_kind(options.nodes)
    reporter = Reporter()
    reporter.say(f"{choice.kind} nodes: {choice.reason}")
    spec = cluster_spec(choice.kind, options.simulated_nodes)
    with exclusive(Layout.of(choice.kind).lock, "make up"):
        return bring_up(spec, reporter)


def _kinds(requested: str) -> list[Kind]:
    if requested == "auto":
        return list(Kind)
    if requested not in list(Kind):
        raise DevclusterError(
            f"NODES is {requested!r}: use NODES=real or NODES=simulated, or unset NODES"
        )
    return [Kind(requested)]


def _down(options: argparse.Namespace) -> int:
    status = 0
    for kind in _kinds(options.nodes):
        layout = Layout.of(kind)
        has_state = layout.state.exists()
        purged = options.purge and has_state and {*layout.state.iterdir()} - {layout.lock}
        with exclusive(layout.lock, "devcluster down") if has_state else nullcontext():
            was_up = launcher.running(layout) is not None
            remaining, orphans = lifecycle.down(kind, purge=options.purge)
        if orphans:
            print(
                f"stopped the {kind} cluster, whose record is missing: its state directory was "
                "removed, or its start was interrupted"
            )
        if was_up:
            state = "deleted its state" if options.purge else "kept checkpoints and state"
            print(f"stopped the {kind} cluster and {state}")
        elif purged:
            print(f"deleted the state of the {kind} cluster")
        for path in remaining:
            print(f"could not remove {path}", file=sys.stderr)
            status = 1
    return status


def _status(options: argparse.Namespace) -> int:
    # Imported here, because the import takes time and other commands do not need it.
    from gitops.runs.snapshot import Cluster
    from gitops.runs.table import print_runs

    any_running = False
    for kind in _kinds(options.nodes):
        record = launcher.running(Layout.of(kind))
        if record is not None:
            any_running = True
            cluster = lifecycle.attach(kind, cluster_spec(kind))
            print(f"{kind} cluster, process {record.pid}, from the checkout {record.checkout}")
            subprocess.run([*cluster.kubectl, "get", "nodes"], check=False)
            print_runs(Cluster(cluster.kubectl))
    if not any_running:
        print("no embedded cluster is running")
    return 0 if any_running else 3


def _running_kind(requested: str) -> Kind:
    for kind in _kinds(requested):
        if launcher.running(Layout.of(kind)) is not None:
            return kind
    raise DevclusterError("no embedded cluster is running: start one with `make up`")


def _env(options: argparse.Namespace) -> int:
    kind = _running_kind(options.nodes)
    cluster = lifecycle.attach(kind, cluster_spec(kind))
    print(environment.exports(environment.variables(cluster.layout, cluster.toolchain, kind)))
    return 0


def _logs(options: argparse.Namespace) -> int:
    any_file = options.process is None
    for kind in _kinds(options.nodes):
        logs = Layout.of(kind).logs
        if not logs.exists():
            continue
        if options.process is None:
            for file in sorted(logs.rglob("*.log")):
                print(file)
        elif (file := logs / f"{options.process}.log").exists():
            any_file = True
            with file.open(errors="replace") as lines:
                sys.stdout.writelines(deque(lines, maxlen=100))
    if not any_file:
        raise DevclusterError(
            f"{options.process!r} has no log: `python -m devcluster logs` lists the existing logs"
        )
    return 0


if __name__ == "__main__":
    # Without this handler, SIGTERM would leave a starting cluster and Pulumi's engine behind.
    output.exit_on_termination()
    sys.exit(output.run(main))
