"""`python -m training.launch_accelerate ARGS`: accelerate launch, but with an exit code that tells.

accelerate itself ends with 1 whatever happened, and a single process that it has started does not
hear of SIGTERM. The arguments are those of `accelerate launch`; see training.launch.
"""

import contextlib
import signal
import subprocess
import sys
from collections.abc import Sequence

from training.launch import ended, shell_code
from workload import exit_codes


def main(arguments: Sequence[str]) -> int:
    """Start the processes of this machine, wait for them, and give the exit code of all."""
    try:
        from accelerate.commands.launch import launch_command, launch_command_parser
    except ImportError as error:
        sys.stderr.write(f"accelerate is not in this image: {error}\n")
        return exit_codes.BAD_INPUT
    # torchrun, which starts several processes, puts its own handler in place of this one.
    signal.signal(signal.SIGTERM, lambda *_: _pass_on())
    try:
        options = launch_command_parser().parse_args(list(arguments))
        return ended(lambda: launch_command(options))
    except subprocess.CalledProcessError as error:
        sys.stderr.write(f"the process ended with {error.returncode}\n")
        return shell_code(error.returncode)
    except ValueError as error:
        sys.stderr.write(f"accelerate launch cannot do this: {error}\n")
        return exit_codes.BAD_INPUT


def _pass_on() -> None:
    import psutil

    for child in psutil.Process().children():
        with contextlib.suppress(psutil.NoSuchProcess):
            child.terminate()


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
