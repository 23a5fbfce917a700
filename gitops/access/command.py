"""`python -m gitops access`: print the Roles that pipelines need to preview and update a stack."""

import argparse
import re
import sys
from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, Any

from gitops.errors import UNCHANGED, GitopsError

if TYPE_CHECKING:
    from gitops.engine import Stack
    from gitops.preview.events import Plan

HELP = "print the Roles that pipelines need to preview or update a stack"
DESCRIPTION = """\
Prints Roles, bindings and an admission policy for the groups of pipelines. They grant only the
permissions that the objects of the stack need. An administrator applies them once, and again when
the stack gets objects of other kinds or namespaces.

Previews may only do dry runs: the admission policy refuses all other writes of their group.
Snapshots for simulations need to list nodes, pods and runs, and their logs.
"""
EPILOG = """\
examples:
  python -m gitops access --stack prod --previewers ci-preview --updaters ci-update
  python -m gitops access --stack prod --previewers ci-preview | kubectl apply --filename -
  python -m gitops access --stack prod --snapshotters ci-snapshot | kubectl apply --filename -
"""
_RELEASE = re.compile(r"The release of chart (\S+)")
_GROUP = re.compile(r"[^'\\\x00-\x1f]+")


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the arguments of the command."""
    parser.add_argument("--stack", required=True, metavar="NAME", help="stack of the project")
    for who, what in (
        ("previewers", "run previews"),
        ("updaters", "run updates"),
        ("snapshotters", "take snapshots of the cluster for simulations"),
    ):
        parser.add_argument(
            f"--{who}",
            nargs="+",
            default=[],
            metavar="GROUP",
            help=f"groups that {what}, as the API server receives them",
        )


def run(options: argparse.Namespace) -> int:
    """Run the command and return its exit status.

    Raises:
        GitopsError: If a group is invalid, or the stack cannot be rendered.
    """
    import yaml

    from gitops.access.rights import snapshots
    from gitops.engine import Stack
    from gitops.stack_file import document, section
    from infra.settings.volcano import VolcanoSettings

    groups = [*options.previewers, *options.updaters, *options.snapshotters]
    if not groups:
        raise GitopsError(
            "no group is given: write --previewers GROUP, --updaters GROUP or --snapshotters GROUP"
        )
    for group in groups:
        if group.startswith("system:") or not _GROUP.fullmatch(group):
            raise GitopsError(f"{group!r} is not a valid group for pipelines: write a custom group")
    if both := set(options.previewers) & set(options.updaters):
        raise GitopsError(
            f"{', '.join(sorted(both))} is a group of previews and of updates: write two "
            "different groups"
        )
    stack = Stack(options.stack)
    made: list[Mapping[str, Any]] = []
    if options.snapshotters:
        stated = section(document(stack.file), "volcano").get("namespace")
        namespace = stated or VolcanoSettings.model_fields["namespace"].default
        made += snapshots(options.snapshotters, namespace)
    if options.previewers or options.updaters:
        made += _of_stack(stack, options)
    yaml.safe_dump_all(made, sys.stdout, sort_keys=False)
    return UNCHANGED


def _of_stack(stack: "Stack", options: argparse.Namespace) -> "Iterator[Mapping[str, Any]]":
    from gitops.access.rights import Object, access

    sys.stderr.write(f"rendering {options.stack}…\n")
    found = _plan(stack)
    objects = {
        Object.of(step.new.inputs)
        for step in found.steps
        if step.new is not None and step.type.startswith("kubernetes:")
    }
    for warning in found.warnings:
        if release := _RELEASE.search(warning):
            sys.stderr.write(
                f"warning: the chart {release[1]} also needs permissions for everything that "
                "it installs, usually those of an administrator\n"
            )
    chosen = {"preview": options.previewers, "update": options.updaters}
    return access(options.stack, objects, chosen)  # type: ignore[arg-type]


def _plan(stack: "Stack") -> "Plan":
    """Return the plan that creates each object of a stack; charts are not rendered."""
    from gitops.engine import Preview
    from gitops.preview.events import plan, read
    from gitops.rendered import workspace

    with workspace(stack, None) as used, Preview(used, None) as engine:
        ended = engine.wait()
        found = plan(read(engine.log)) if engine.log.exists() else None
    if found is None or not found.succeeded:
        raise GitopsError(found.errors[0] if found and found.errors else ended.output.strip())
    return found
