"""`python -m gitops`: what a pull request shows, environments, and runs."""

import argparse
import gc
import sys
from collections.abc import Sequence
from typing import Any, NoReturn

from gitops import changed
from gitops.environments import difference_command, new_command
from gitops.errors import FAILED, USAGE, GitopsError
from gitops.hosts import command as comment
from gitops.preview import command as preview
from gitops.runs import command as status

_COMMANDS: dict[str, Any] = {
    "preview": preview,
    "comment": comment,
    "changed": changed,
    "new-environment": new_command,
    "diff": difference_command,
    "status": status,
}


class _Parser(argparse.ArgumentParser):
    """Its errors end with 64, since 2 means that something changes."""

    def error(self, message: str) -> NoReturn:
        self.print_usage(sys.stderr)
        self.exit(USAGE, f"{self.prog}: error: {message}\n")


def main(arguments: Sequence[str] | None = None) -> int:
    """Runs a command; returns its exit status."""
    parser = _Parser(prog="python -m gitops", description=__doc__)
    commands = parser.add_subparsers(dest="command", required=True, metavar="COMMAND")
    for name, module in _COMMANDS.items():
        added = commands.add_parser(
            name,
            help=module.HELP,
            description=module.DESCRIPTION,
            epilog=module.EPILOG,
            formatter_class=argparse.RawDescriptionHelpFormatter,
        )
        module.add_arguments(added)
    options = parser.parse_args(arguments)
    try:
        ended: int = _COMMANDS[options.command].run(options)
    except GitopsError as error:
        sys.stderr.write(f"error: {error}\n")
        return FAILED
    except KeyboardInterrupt:
        sys.stderr.write("interrupted\n")
        return 130
    return ended


if __name__ == "__main__":
    # It lives for seconds; looking for what could be collected takes a fifth of its imports' time.
    gc.disable()
    sys.exit(main())
