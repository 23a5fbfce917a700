"""`python -m gitops changed`: which environments a change concerns. Needs Python and Git alone."""

import argparse
import json
import subprocess
import sys
from pathlib import Path
from typing import Final

from gitops.engine import PROJECT
from gitops.errors import GitopsError

HELP = "list the environments that a change concerns, as JSON"
DESCRIPTION = """\
Prints the stacks whose resources or rules may differ from those at a Git revision: all of them
where the program, the pack or what goes into images has changed, else those whose own files have.
"""
EPILOG = """\
examples:
  python -m gitops changed --base origin/main
  python -m gitops changed --skip dev --skip simulated

Without --base, or with one that Git does not know (the first push of a branch), all are listed.
"""

_EVERYWHERE: Final = (
    *("__main__.py", "Pulumi.yaml", "requirements.txt", "requirements/workload.txt"),
    *("infra/", "kube/", "policies/", "training/", "inference/", "workload/", "recorder/"),
)
_OWN_RULES: Final = "policies/config/"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declares what the command takes."""
    parser.add_argument("--base", default="", metavar="REVISION", help="compared with")
    parser.add_argument(
        "--skip", action="append", default=[], metavar="STACK", help="never list this one"
    )
    parser.add_argument(
        "--last", default="prod", metavar="STACK", help="list this one last (default: prod)"
    )


def run(options: argparse.Namespace) -> int:
    """Runs the command; returns its exit status."""
    stacks = [stack for stack in known_stacks(PROJECT) if stack not in options.skip]
    files = _changed_files(PROJECT, options.base)
    found = stacks if files is None else [stack for stack in stacks if concerns(files, stack)]
    found.sort(key=lambda stack: (stack == options.last, stack))
    sys.stdout.write(json.dumps(found) + "\n")
    return 0


def known_stacks(project: Path) -> list[str]:
    """The stacks that have a configuration in the project."""
    files = sorted(project.glob("Pulumi.*.yaml"))
    return [file.name.removeprefix("Pulumi.").removesuffix(".yaml") for file in files]


def concerns(files: list[str], stack: str) -> bool:
    """Whether one of the changed files has a say in a stack."""
    own = {f"Pulumi.{stack}.yaml", f"{_OWN_RULES}{stack}.json"}
    return any(
        file in own or (file.startswith(_EVERYWHERE) and not file.startswith(_OWN_RULES))
        for file in files
    )


def _changed_files(project: Path, base: str) -> list[str] | None:
    """The files that differ from where the branch left the base; None where there is no base."""
    if base.startswith("-"):
        raise GitopsError(f"--base {base!r} is no Git revision")
    if not base or _git(project, "cat-file", "-e", f"{base}^{{commit}}") is None:
        return None
    found = _git(project, "diff", "--name-only", "-z", f"{base}...HEAD")
    return None if found is None else [name for name in found.split("\0") if name]


def _git(project: Path, *arguments: str) -> str | None:
    """What Git says, or None where it fails."""
    done = subprocess.run(
        ["git", *arguments], cwd=project, capture_output=True, text=True, check=False
    )
    return done.stdout if done.returncode == 0 else None
