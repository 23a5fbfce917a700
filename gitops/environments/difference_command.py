"""`python -m gitops diff`: compare the settings of two environments."""

import argparse
import sys
from pathlib import Path

from gitops.engine import PROJECT
from gitops.errors import CHANGES, UNCHANGED, GitopsError

HELP = "compare the settings of two environments"
DESCRIPTION = """\
Print the settings in which two environments differ, including defaults. The values of secrets are
not compared.
"""
EPILOG = """\
example:
  python -m gitops diff staging prod

exit status: 0 if the settings are equal, 2 if they differ, 1 if a file is unreadable or invalid.
"""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the command's arguments to the parser."""
    parser.add_argument("one", metavar="A", help="name or file of an environment")
    parser.add_argument("other", metavar="B", help="name or file of the other environment")


def run(options: argparse.Namespace) -> int:
    """Run the command and return its exit status."""
    from gitops.environments.difference import differences, settings_of
    from infra.settings import SettingsError

    compared = []
    for name in (options.one, options.other):
        try:
            compared.append(settings_of(_file(name)))
        except SettingsError as error:
            raise GitopsError(f"{name}: {error}") from None
    all_differences = differences(compared[0], compared[1])
    section = ""
    for item in all_differences:
        if item.section != section:
            section = item.section
            sys.stdout.write(f"\n{section}\n")
        sys.stdout.write(f"  {item.between((options.one, options.other))}\n")
    if not all_differences:
        sys.stdout.write(f"{options.one} and {options.other} have the same settings.\n")
    return CHANGES if all_differences else UNCHANGED


def _file(name: str) -> Path:
    path = Path(name)
    return path if path.suffix in (".yaml", ".yml") else PROJECT / f"Pulumi.{name}.yaml"
