"""`python -m gitops access`: print the Roles that pipelines need to preview and update a stack."""

import argparse
import re
import sys
from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, Any

from gitops.errors import UNCHANGED, GitopsError, UsageError

if TYPE_CHECKING:
    from gitops.engine import Stack
    from gitops.preview.events import Plan

HELP = "print the Roles that pipelines need to preview or update a stack"
DESCRIPTION = """\
Print Roles, bindings and an admission policy for the pipelines' groups. The Roles grant only the
permissions that the stack's objects require. An administrator applies the output, and applies it
again when the stack gets a new namespace, objects of a new kind, cluster-scoped objects, Secrets or
RBAC objects.

Previews are limited to dry runs: the admission policy rejects all other writes by previewers.
Taking snapshots for simulations requires permission to list nodes, pods and runs, and to read pod
logs.
"""
EPILOG = """\
examples:
  python -m gitops access --stack prod --previewers ci-preview --updaters ci-update
  python -m gitops access --stack prod --previewers ci-preview | kubectl apply --filename -
  python -m gitops access --stack prod --snapshotters ci-snapshot | kubectl apply --filename -
"""
_RELEASE_WARNING = re.compile(r"The release of chart (\S+)")
_GROUP_NAME = re.compile(r"[^'\\\x00-\x1f]+")


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the command's arguments to the parser."""
    parser.add_argument("--stack", required=True, metavar="NAME", help="stack to preview or update")
    for role, task in (
        ("previewers", "run previews"),
        ("updaters", "run updates"),
        ("snapshotters", "take snapshots of the cluster for simulations"),
    ):
        parser.add_argument(
            f"--{role}",
            nargs="+",
            default=[],
            metavar="GROUP",
            help=f"names of the Kubernetes groups that {task}",
        )


def run(options: argparse.Namespace) -> int:
    """Run the command and return its exit status.

    Raises:
        GitopsError: If a group is invalid, or the stack cannot be rendered.
    """
    import yaml

    from gitops.access import snapshots
    from gitops.engine import Stack
    from gitops.stack_file import document, section
    from infra.settings.volcano import VolcanoSettings
    from policies.kubernetes_yaml import Dumper

    groups = [*options.previewers, *options.updaters, *options.snapshotters]
    if not groups:
        raise UsageError(
            "no group given: add --previewers GROUP, --updaters GROUP or --snapshotters GROUP"
        )
    for group in groups:
        if group.startswith("system:") or not _GROUP_NAME.fullmatch(group):
            raise UsageError(
                f"{group!r} is not a valid group for pipelines: use a custom group without quotes "
                "or backslashes in its name"
            )
    if both := set(options.previewers) & set(options.updaters):
        raise UsageError(
            f"{', '.join(sorted(both))} cannot be used for both previews and updates: use two "
            "different groups"
        )
    stack = Stack(options.stack)
    manifests: list[Mapping[str, Any]] = []
    if options.snapshotters:
        configured = section(document(stack.file), "volcano").get("namespace")
        namespace = configured or VolcanoSettings.model_fields["namespace"].default
        manifests += snapshots(options.snapshotters, namespace)
    if options.previewers or options.updaters:
        manifests += _stack_access(stack, options)
    sys.stdout.write(yaml.dump_all(manifests, Dumper=Dumper, sort_keys=False))
    return UNCHANGED


def _stack_access(stack: "Stack", options: argparse.Namespace) -> "Iterator[Mapping[str, Any]]":
    from gitops.access import Object, access

    sys.stderr.write(f"rendering {options.stack}…\n")
    plan = _plan(stack)
    objects = {
        Object.of(step.new.inputs)
        for step in plan.steps
        if step.new is not None and step.type.startswith("kubernetes:")
    }
    for warning in plan.warnings:
        if release := _RELEASE_WARNING.search(warning):
            sys.stderr.write(
                f"warning: the {release[1]} chart also requires permissions for all objects that "
                "it installs, which usually means administrator permissions\n"
            )
    groups = {"preview": options.previewers, "update": options.updaters}
    return access(options.stack, objects, groups)  # type: ignore[arg-type]


def _plan(stack: "Stack") -> "Plan":
    """Return the plan that creates every object of a stack. Charts are not rendered."""
    from gitops.engine import Preview
    from gitops.preview.events import plan, read
    from gitops.rendered import workspace

    with workspace(stack, None) as rendered, Preview(rendered, None) as engine:
        result = engine.wait()
        found = plan(read(engine.log)) if engine.log.exists() else None
    if found is None or not found.succeeded:
        raise GitopsError(found.errors[0] if found and found.errors else result.output.strip())
    return found
