"""Exit statuses of the commands, their parser, and errors that are reported without a traceback."""

import argparse
import sys
from typing import NoReturn

UNCHANGED = 0
FAILED = 1
CHANGES = 2
BLOCKED = 3
USAGE = 64


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
