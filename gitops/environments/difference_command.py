"""`python -m gitops diff`: two environments compared in words."""

import argparse
import sys
from pathlib import Path

from gitops.engine import PROJECT
from gitops.errors import CHANGES, UNCHANGED, GitopsError

HELP = "compare two environments in words"
DESCRIPTION = """\
Says in which settings two environments differ, defaults included. Secrets are not read.
"""
EPILOG = """\
example:
  python -m gitops diff staging prod

exit status: 0 where they are the same, 2 where they differ, 1 where one cannot be read.
"""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declares what the command takes."""
    parser.add_argument("one", metavar="A", help="name of an environment, or its file")
    parser.add_argument("other", metavar="B", help="name of another, or its file")


def run(options: argparse.Namespace) -> int:
    """Runs the command; returns its exit status."""
    from gitops.environments.difference import differences
    from gitops.environments.reading import settings_of
    from infra.settings import SettingsError

    found = []
    for name in (options.one, options.other):
        try:
            found.append(settings_of(_file(name)))
        except SettingsError as error:
            raise GitopsError(f"{name}: {error}") from None
    told = differences(found[0], found[1], (options.one, options.other))
    section = ""
    for item in told:
        if item.concern != section:
            section = item.concern
            sys.stdout.write(f"\n{section}\n")
        sys.stdout.write(f"  {item.text}\n")
    if not told:
        sys.stdout.write(f"{options.one} and {options.other} are the same.\n")
    return CHANGES if told else UNCHANGED


def _file(name: str) -> Path:
    path = Path(name)
    return path if path.suffix in (".yaml", ".yml") else PROJECT / f"Pulumi.{name}.yaml"
