"""Command line of `python -m gpu_platform`, including its `models` command."""

import argparse
from pathlib import Path
from typing import Any

from gitops.errors import FAILED, USAGE, Parser, object_name

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
  130 interrupted; runs that were already created remain
"""
_MODELS_DESCRIPTION = """\
Publish the export of a finished run to an OCI registry, and promote it to a stage.

A published model is an OCI artifact as specified by ModelPack. Its digest is its version. It
contains the files of the export and lineage.json, which records the run, its image, the digest of
its data, its metrics and the result of the policy check. A signature covers every file.

Stages are tags. `promote` verifies the signature and the lineage, moves the tag, and adds the
digest to the gpu-platform-models/promoted-models ConfigMap, which admission policies read
(docs/model-registry.md).
"""
_MODELS_EPILOG = """\
examples:
  openssl ecparam -name prime256v1 -genkey -noout -out model.key
  openssl ec -in model.key -pubout -out model.pub
  python -m gpu_platform models publish export/ registry.example.com/models/digits \\
    --key model.key --namespace vision
  python -m gpu_platform models list registry.example.com/models/digits
  python -m gpu_platform models promote registry.example.com/models/digits:digits-1a2b3c4d \\
    production --key model.pub --if "accuracy >= incumbent - 0.002"
  python -m gpu_platform models diff registry.example.com/models/digits:production \\
    registry.example.com/models/digits:digits-1a2b3c4d

Registries: credentials are read from ~/.docker/config.json (docker login), and certificates of a
private CA from SSL_CERT_FILE. The commands require the packages in requirements/models.txt.
"""

_CONTEXT_HELP = "context in the kubeconfig; default: the current context"
_KUBECONFIG_HELP = "path of the kubeconfig; default: kubectl's default"


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
        "--namespace",
        "-n",
        metavar="NAME",
        type=object_name,
        required=True,
        help="namespace of the team",
    )
    shared.add_argument("--context", metavar="NAME", help=_CONTEXT_HELP)
    shared.add_argument("--kubeconfig", metavar="FILE", type=Path, help=_KUBECONFIG_HELP)

    def add(name: str, text: str) -> argparse.ArgumentParser:
        return commands.add_parser(name, help=text, description=text, parents=[shared])

    run = add("run", "submit the jobs in a file")
    run.add_argument("file", type=Path, metavar="FILE", help="jobs by key, as in training.jobs")
    run.add_argument(
        "--platform",
        type=Path,
        metavar="FILE",
        help="read the description of the platform (platform.json in the gpu-platform ConfigMap) "
        "from this file instead of the cluster",
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
        command.add_argument("name", metavar="RUN", type=object_name, help="name of the run")
        if name == "logs":
            command.add_argument(
                "--follow", "-f", action="store_true", help="follow the logs until the run ends"
            )
    _add_models(commands, Parser)
    return parsed


def _add_models(
    commands: "argparse._SubParsersAction[Any]", parser: type[argparse.ArgumentParser]
) -> None:
    """Add the `models` command."""
    models = commands.add_parser(
        "models",
        help="publish, show, compare and promote models in a registry",
        description=_MODELS_DESCRIPTION,
        epilog=_MODELS_EPILOG,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    actions = models.add_subparsers(dest="action", required=True, metavar="ACTION")
    registry = parser(add_help=False)
    registry.add_argument(
        "--plain-http", action="store_true", help="connect to the registry without TLS (tests only)"
    )

    cluster = parser(add_help=False)
    cluster.add_argument("--context", metavar="NAME", help=_CONTEXT_HELP)
    cluster.add_argument("--kubeconfig", metavar="FILE", type=Path, help=_KUBECONFIG_HELP)

    mlflow = parser(add_help=False)
    mlflow.add_argument(
        "--mlflow", action="store_true",
        help="also register the version in MLflow's model registry at MLFLOW_TRACKING_URI",
    )  # fmt: skip

    def action(name: str, text: str, *parents: argparse.ArgumentParser) -> Any:
        return actions.add_parser(name, help=text, description=text, parents=[registry, *parents])

    publish = action(
        "publish", "push an export with its lineage and its signature", cluster, mlflow
    )
    publish.add_argument("export", type=Path, metavar="EXPORT", help="directory with the export")
    publish.add_argument("repository", metavar="REPOSITORY", help="registry/repository")
    publish.add_argument(
        "--key", type=Path, required=True, metavar="FILE", help="private signing key (PEM); if it "
        "is encrypted, set MODEL_KEY_PASSWORD to its password",
    )  # fmt: skip
    objects = publish.add_mutually_exclusive_group(required=True)
    objects.add_argument(
        "--objects", type=Path, metavar="FILE",
        help="objects of the run in YAML, as printed by `python -m gpu_platform run --dry-run`",
    )  # fmt: skip
    objects.add_argument(
        "--namespace",
        "-n",
        metavar="NAME",
        type=object_name,
        help="read the objects of the run from this namespace of the cluster",
    )
    publish.add_argument(
        "--policy-config", type=Path, metavar="FILE", help="configuration of the policy pack"
    )

    listed = action("list", "list the versions of a model with their stages and metrics")
    listed.add_argument("repository", metavar="REPOSITORY", help="registry/repository")

    show = action("show", "print the lineage and the files of a version")
    show.add_argument("reference", metavar="MODEL", help="registry/repository:tag or @sha256:…")
    show.add_argument("--key", type=Path, metavar="FILE", help="also verify with this public key")

    text = "verify a version, tag it with a stage and add its digest to the promoted models"
    promote = action("promote", text, cluster, mlflow)
    promote.add_argument("reference", metavar="MODEL", help="registry/repository:tag or @sha256:…")
    promote.add_argument(
        "stage", choices=("staging", "production"), help="new stage of the version"
    )
    promote.add_argument(
        "--key",
        type=Path,
        required=True,
        metavar="FILE",
        help="public key (PEM) that verifies the signature",
    )
    promote.add_argument(
        "--if", dest="conditions", action="append", default=[], metavar="CONDITION",
        help='condition on a metric, such as "accuracy >= 0.95" or "accuracy >= incumbent - '
        '0.002", where the incumbent is the current version of the stage; may be repeated',
    )  # fmt: skip

    diff = action("diff", "compare data, code, settings and metrics of two versions")
    diff.add_argument("first", metavar="MODEL", help="registry/repository:tag or @sha256:…")
    diff.add_argument("second", metavar="MODEL", help="the version to compare with")
