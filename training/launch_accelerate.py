"""`python -m training.launch_accelerate ARGS`: accelerate launch with a meaningful exit code.

accelerate itself always exits with 1 after a failure, and it does not forward SIGTERM if it starts
only one process. ARGS are those of `accelerate launch`; see training.launch.
"""

import contextlib
import signal
import subprocess
import sys
from collections.abc import Sequence

from training.launch import run_launcher, shell_code
from workload import exit_codes


def main(arguments: Sequence[str]) -> int:
    """Start the processes of this machine, wait for them, and return one exit code for all."""
    try:
        from accelerate.commands.launch import launch_command, launch_command_parser
    except ImportError as error:
        sys.stderr.write(f"accelerate is not in this image: {error}\n")
        return exit_codes.BAD_INPUT
    # For several processes, torchrun replaces this handler with its own.
    signal.signal(signal.SIGTERM, lambda *_: _forward_sigterm())
    try:
        options = launch_command_parser().parse_args(list(arguments))
        return run_launcher(lambda: launch_command(options))
    except subprocess.CalledProcessError as error:
        sys.stderr.write(f"the process failed with exit code {error.returncode}\n")
        return shell_code(error.returncode)
    except ValueError as error:
        sys.stderr.write(f"accelerate launch rejected its options: {error}\n")
        return exit_codes.BAD_INPUT


def _forward_sigterm() -> None:
    import psutil

    for child in psutil.Process().children():
        with contextlib.suppress(psutil.NoSuchProcess):
            child.terminate()


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
