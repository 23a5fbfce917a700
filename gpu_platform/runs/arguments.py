"""Command line of `python -m gpu_platform`."""

import argparse
from pathlib import Path

from gitops.errors import FAILED, USAGE, Parser
from gpu_platform.models.arguments import add_models

REJECTED = 3
_EPILOG = f"""\
examples:
  python -m gpu_platform run job.yaml --namespace vision --dry-run
  python -m gpu_platform run job.yaml --namespace vision --simulate cluster.yaml
  python -m gpu_platform run job.yaml --namespace vision --follow
  python -m gpu_platform list --namespace vision
  python -m gpu_platform sweeps --namespace vision
  python -m gpu_platform suspend digits-1a2b3c4d --namespace vision
  python -m gpu_platform models --help

job.yaml contains jobs by key, with the same settings as training.jobs of a stack (docs/jobs.md):

  digits:
    queue: research
    nodes: 2
    gpus_per_node: 8
    cpu: 32
    memory: 256Gi
    hyperparameters: {{model: digits-net, dataset: digits, epochs: 20}}

The run of a job has the same name and objects as in a stack. Submitting the job again does not
start another run, and adding the job to the stack later keeps the run.

exit status:
  0   done
  {FAILED}   the file is invalid, the cluster reported an error, or the followed run has failed
  {REJECTED}   a mandatory policy rejects the run, or a model is not promoted; nothing was changed
  {USAGE}  invalid arguments
  130 interrupted; a run that was created remains
"""


def parser() -> argparse.ArgumentParser:
    """Return the command-line parser."""
    parsed = Parser(
        prog="python -m gpu_platform",
        description="Submit, watch and stop training runs with the permissions of a team member; "
        "publish and promote their models.",
        epilog=_EPILOG,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    commands = parsed.add_subparsers(dest="command", required=True, metavar="COMMAND")
    shared = Parser(add_help=False)
    shared.add_argument(
        "--namespace", "-n", metavar="NAME", required=True, help="namespace of the team"
    )
    shared.add_argument("--context", metavar="NAME", help="default: the current context")
    shared.add_argument(
        "--kubeconfig", metavar="FILE", type=Path, help="default: kubectl's default"
    )

    def add(name: str, text: str) -> argparse.ArgumentParser:
        return commands.add_parser(name, help=text, description=text, parents=[shared])

    run = add("run", "submit the jobs in a file")
    run.add_argument("file", type=Path, metavar="FILE", help="jobs by key, as in training.jobs")
    run.add_argument(
        "--platform",
        type=Path,
        metavar="FILE",
        help="read the description of the platform from this file instead of the cluster",
    )
    run.add_argument(
        "--policy-config",
        type=Path,
        metavar="FILE",
        help="configuration of the policy pack; default: policies/config/STACK.json, if it exists",
    )
    run.add_argument(
        "--prices",
        type=Path,
        metavar="FILE",
        help="price table; default: gitops/config/prices.yaml",
    )
    modes = run.add_mutually_exclusive_group()
    modes.add_argument(
        "--dry-run", action="store_true", help="print the manifests and create nothing"
    )
    modes.add_argument(
        "--export", action="store_true", help="print the equivalent configuration of a stack"
    )
    modes.add_argument(
        "--simulate",
        type=Path,
        metavar="SNAPSHOT",
        help="simulate how the scheduler would handle the jobs, and create nothing",
    )
    modes.add_argument("--follow", "-f", action="store_true", help="follow the logs")

    add("list", "list the runs in the namespace")
    sweeps = add("sweeps", "show the hyperparameter sweeps in the namespace and their best trials")
    sweeps.add_argument(
        "--html",
        type=Path,
        metavar="FILE",
        help="write an HTML page with plots and all trials instead of printing the best trials",
    )
    for name, text in (
        ("logs", "print the logs of a run"),
        ("suspend", "suspend a run and release its GPUs"),
        ("resume", "resume a suspended run from its last checkpoint"),
        ("stop", "delete a run; its checkpoints and logs remain"),
    ):
        command = add(name, text)
        command.add_argument("name", metavar="RUN", help="name of the run")
        if name == "logs":
            command.add_argument(
                "--follow", "-f", action="store_true", help="follow until the run ends"
            )
    add_models(commands, Parser)
    return parsed
