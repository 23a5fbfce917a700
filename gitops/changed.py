"""`python -m gitops changed`: list the environments that a change affects. Requires only Git."""

import argparse
import json
import posixpath
import re
import subprocess
import sys
from pathlib import Path, PurePosixPath
from typing import Any, Final

from gitops.engine import PROJECT
from gitops.errors import GitopsError

HELP = "list the environments that a change affects, as JSON"
DESCRIPTION = """\
Print the stacks whose resources or rules may have changed since a Git revision. If the program or
the policy pack has changed, all stacks are listed. Otherwise, a stack is listed if its
configuration has changed or refers to a changed path, such as a Dockerfile or a source directory of
an image. Stacks with a money budget are also listed if gitops/, which contains the price table, has
changed. Removed environments are reported on stderr.

With --gitlab, print a child pipeline for GitLab with the jobs of these stacks and, for each removed
environment, a job that warns about it.
"""
EPILOG = """\
examples:
  python -m gitops changed --base origin/main
  python -m gitops changed --skip dev --skip simulated
  python -m gitops changed --base origin/main --gitlab preview

Without --base, or with an unknown revision (first push of a branch), all stacks are listed.
"""

_JOBS: Final = "gitops/gitlab/jobs.gitlab-ci.yml"
_PROGRAM_PATHS: Final = (
    *("__main__.py", "Pulumi.yaml", "requirements.txt"),
    *("infra/", "kube/", "policies/", "training/", "inference/", "workload/"),
)
_PRICING_DIRECTORY: Final = "gitops/"
"""Directory with the price table and the code that computes the prices of sweeps."""
_PACK_CONFIGURATIONS: Final = "policies/config/"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the command's arguments to the parser."""
    parser.add_argument("--base", default="", metavar="REVISION", help="revision to compare with")
    parser.add_argument(
        "--skip",
        action="append",
        default=[],
        metavar="STACK",
        help="omit this stack; may be repeated",
    )
    parser.add_argument(
        "--gitlab",
        choices=["preview", "rendered", "update", "drift"],
        help="print a GitLab child pipeline with jobs of this kind",
    )
    parser.add_argument(
        "--last", default="prod", metavar="STACK", help="list this stack last (default: prod)"
    )


def run(options: argparse.Namespace) -> int:
    """Run the command and return its exit status."""
    stacks = [stack for stack in known_stacks(PROJECT) if stack not in options.skip]
    files = _changed_files(PROJECT, options.base)
    deleted = _deleted_environments(PROJECT, files or [])
    removed_stacks = [stack for stack in deleted if stack not in options.skip]
    for removed in removed_stacks:
        sys.stderr.write(
            f"the {removed} environment was removed, but its stack may still exist: destroy "
            f"it with `pulumi destroy --stack {removed}` (docs/destroying.md)\n"
        )
    affected = stacks if files is None else [s for s in stacks if affects(files, s, PROJECT)]
    affected.sort(key=lambda stack: (stack == options.last, stack))
    kind = options.gitlab
    # JSON is valid YAML, and writing it requires no package.
    output = affected if kind is None else child_pipeline(kind, affected, removed_stacks)
    sys.stdout.write(json.dumps(output) + "\n")
    return 0


def child_pipeline(kind: str, stacks: list[str], removed: list[str]) -> dict[str, Any]:
    """Return a GitLab child pipeline with the jobs of each stack. Updates run in list order."""
    jobs: dict[str, Any] = {}
    if kind == "preview":
        # If the change no longer affects a stack, this job marks the stack's comment as outdated.
        jobs["outdated"] = {"extends": ".outdated", "variables": {"STACKS": json.dumps(stacks)}}
    jobs |= {
        f"removed-{stack}": {"extends": ".removed", "variables": {"STACK": stack}}
        for stack in removed
    }
    for number, stack in enumerate(stacks):
        job: dict[str, Any] = {"extends": f".{kind}", "variables": {"STACK": stack}}
        if kind == "update":
            jobs[f"plan-{stack}"] = {
                **job,
                "extends": ".plan",
                "environment": _preview_environment(stack),
            }
            job["environment"] = {"name": stack}
            earlier = stacks[:number][-1:]
            job["needs"] = [f"plan-{stack}", *(f"update-{name}" for name in earlier)]
        elif kind != "rendered":
            job["environment"] = _preview_environment(stack)
        jobs[f"{kind}-{stack}"] = job
    # GitLab rejects a pipeline without jobs.
    placeholder = {
        "no-environment": {"extends": ".gitops", "before_script": [], "script": ["true"]}
    }
    return {"include": [{"local": _JOBS}], **(jobs or placeholder)}


def _preview_environment(stack: str) -> dict[str, str]:
    return {"name": f"preview-{stack}", "action": "prepare"}


def known_stacks(project: Path) -> list[str]:
    """Return the stacks with a configuration file in the project."""
    files = sorted(project.glob("Pulumi.*.yaml"))
    return [file.name.removeprefix("Pulumi.").removesuffix(".yaml") for file in files]


def affects(files: list[str], stack: str, project: Path = PROJECT) -> bool:
    """Return whether one of the changed files affects a stack."""
    stack_files = {f"Pulumi.{stack}.yaml", f"{_PACK_CONFIGURATIONS}{stack}.json"}
    text = (project / f"Pulumi.{stack}.yaml").read_text("utf-8", "replace")
    referenced = _possible_paths(text)
    if "dockerfile" in text:
        stack_files.add(".dockerignore")
    program = (*_PROGRAM_PATHS, _PRICING_DIRECTORY) if "money" in text else _PROGRAM_PATHS
    return any(
        file in stack_files
        or (file.startswith(program) and not file.startswith(_PACK_CONFIGURATIONS))
        or not referenced.isdisjoint([file, *map(str, PurePosixPath(file).parents)])
        for file in files
    )


def _possible_paths(configuration: str) -> set[str]:
    """Return every string in a configuration that may be a path.

    YAML is not parsed, because this command runs without installed packages. Strings that are not
    paths may therefore cause an unaffected stack to be listed, but affected stacks are never
    omitted.
    """
    text = re.sub(r"(?m)(^|\s)#.*$|[^\s,{\[]+:(?=\s|$)", " ", configuration)
    words = re.findall(r"[^\s,\[\]{}\"']+", text)
    # Paths may contain spaces or, in quotes, any character.
    unquoted = [each.strip().removeprefix("- ") for each in re.findall(r"[^\n,\[\]{}]+", text)]
    code = re.sub(r"(?m)^\s*#.*$", "", configuration)
    quoted = [each for _, each in re.findall(r"(?<![^\s,\[{])([\"'])(.*?)\1", code)]
    candidates = (each.strip() for each in [*words, *unquoted, *quoted])
    return {posixpath.normpath(each) for each in candidates if each}


def _deleted_environments(project: Path, files: list[str]) -> list[str]:
    """Return the environments whose configuration file the change deletes."""
    matches = (re.fullmatch(r"Pulumi\.(.+)\.yaml", file) for file in files)
    return [match[1] for match in matches if match and not (project / match[0]).exists()]


def _changed_files(project: Path, base: str) -> list[str] | None:
    """Return the files that changed since the merge base, or None if the base is unknown."""
    if base.startswith("-"):
        raise GitopsError(f"--base {base!r} is not a Git revision")
    if not base or _git(project, "cat-file", "-e", f"{base}^{{commit}}") is None:
        return None
    # Paths are relative to the project, which may be a subdirectory of the repository.
    options = ("--name-only", "--no-renames", "--relative", "-z")
    names = _git(project, "diff", *options, f"{base}...HEAD")
    return None if names is None else [name for name in names.split("\0") if name]


def _git(project: Path, *arguments: str) -> str | None:
    """Return the output of Git, or None if it fails."""
    done = subprocess.run(
        ["git", *arguments],
        cwd=project,
        capture_output=True,
        encoding="utf-8",
        errors="surrogateescape",
        check=False,
    )
    return done.stdout if done.returncode == 0 else None
