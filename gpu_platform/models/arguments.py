"""Arguments of `python -m gpu_platform models`."""

import argparse
from pathlib import Path
from typing import Any

_DESCRIPTION = """\
Publish the export of a finished run to an OCI registry, and promote it to a stage.

A published model is an OCI artifact as specified by ModelPack. Its digest is its version. It
contains the files of the export and lineage.json, which records the run, its image, the digest of
its data, its metrics and the result of the policy check. A signature covers every file.

Stages are tags. `promote` verifies the signature and the lineage, moves the tag, and adds the
digest to the ConfigMap gpu-platform-models/promoted-models, which admission policies read
(docs/model-registry.md).
"""
_EPILOG = """\
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

Registries: credentials are read from ~/.docker/config.json (docker login), certificates of a
private CA from SSL_CERT_FILE. The commands require the packages in requirements/models.txt.
"""


def add_models(
    commands: "argparse._SubParsersAction[Any]", parser: type[argparse.ArgumentParser]
) -> None:
    """Add the command `models`."""
    models = commands.add_parser(
        "models",
        help="publish, show, compare and promote models in a registry",
        description=_DESCRIPTION,
        epilog=_EPILOG,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    actions = models.add_subparsers(dest="action", required=True, metavar="ACTION")
    registry = parser(add_help=False)
    registry.add_argument(
        "--plain-http", action="store_true", help="connect to the registry without TLS (tests only)"
    )

    cluster = parser(add_help=False)
    cluster.add_argument("--context", metavar="NAME", help="default: the current context")
    cluster.add_argument(
        "--kubeconfig", metavar="FILE", type=Path, help="default: kubectl's default"
    )

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
    promote.add_argument("stage", choices=("staging", "production"))
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
