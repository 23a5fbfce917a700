"""Exit statuses of the commands, their parser, and errors that are reported without a traceback."""

import argparse
import re
import sys
from typing import Final, NoReturn

UNCHANGED = 0
FAILED = 1
CHANGES = 2
BLOCKED = 3
USAGE = 64

_NAME: Final = re.compile(r"(?=.{1,63}$)[a-z0-9]([-.a-z0-9]*[a-z0-9])?")


class GitopsError(RuntimeError):
    """Error whose message states what was found and what to do instead."""

    status = FAILED


class UsageError(GitopsError):
    """Error in the combination or the syntax of a command's arguments."""

    status = USAGE


class Parser(argparse.ArgumentParser):
    """Parser that exits with status 64 for invalid arguments, because status 2 reports changes."""

    def error(self, message: str) -> NoReturn:
        """Print the usage and the error, and exit."""
        self.print_usage(sys.stderr)
        self.exit(USAGE, f"{self.prog}: error: {message}\n")


def object_name(text: str) -> str:
    """Check the name of a namespace or run. Use this function as the `type` of an argument.

    An empty name is rejected, because kubectl would use the namespace of the kubeconfig instead.
    """
    if _NAME.fullmatch(text):
        return text
    raise argparse.ArgumentTypeError(
        f"{text!r} is not a valid name: use at most 63 lower-case letters, digits, '-' and '.', "
        "with a letter or digit at both ends"
    )
