"""Preview changes, create environments, simulate queues, and show runs."""

import argparse
import gc
import os
import sys
from collections.abc import Sequence
from typing import Any

from gitops import access_command as access
from gitops import changed, comment
from gitops.environments import difference_command, new_command
from gitops.errors import FAILED, GitopsError, Parser
from gitops.forecast import simulate_command, snapshot_command
from gitops.preview import command as preview
from gitops.runs import command as status
from policies import output

_COMMANDS: dict[str, Any] = {
    "preview": preview,
    "comment": comment,
    "changed": changed,
    "new-environment": new_command,
    "diff": difference_command,
    "status": status,
    "access": access,
    "snapshot": snapshot_command,
    "simulate": simulate_command,
}


def main(arguments: Sequence[str] | None = None) -> int:
    """Run a command and return its exit status."""
    parser = Parser(prog="python -m gitops", description=__doc__)
    commands = parser.add_subparsers(dest="command", required=True, metavar="COMMAND")
    for name, module in _COMMANDS.items():
        subparser = commands.add_parser(
            name,
            help=module.HELP,
            description=module.DESCRIPTION,
            epilog=module.EPILOG,
            formatter_class=argparse.RawDescriptionHelpFormatter,
        )
        module.add_arguments(subparser)
    options = parser.parse_args(arguments)
    os.environ["KUBERC"] = "off"  # the user's kuberc may make deletions interactive
    try:
        exit_status: int = _COMMANDS[options.command].run(options)
    except GitopsError as error:
        sys.stderr.write(f"error: {error}\n")
        return error.status
    except ModuleNotFoundError as error:
        sys.stderr.write(
            f"error: the {error.name} package is not installed for {sys.executable}: use a virtual "
            "environment in which requirements.txt is installed, such as .venv/bin/python\n"
        )
        return FAILED
    except BrokenPipeError:
        raise  # handled by policies.output
    except OSError as error:
        sys.stderr.write(f"error: {error}\n")  # such as a directory that is not writable
        return FAILED
    except KeyboardInterrupt:
        sys.stderr.write("interrupted\n")
        return 130
    return exit_status


if __name__ == "__main__":
    # Without this handler, SIGTERM would leave temporary directories, Pulumi's engine and simulated
    # clusters behind.
    output.exit_on_termination()
    # Most commands run for only a few seconds, and garbage collection would account for a fifth
    # of the import time.
    gc.disable()
    sys.exit(output.run(main))
