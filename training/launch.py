"""`python -m training.launch ARGS`: torchrun, with the same arguments, but an exit code that tells.

torchrun itself ends with 1 whatever happened. A job's failure policy needs to know more, so this
ends with the code of the process that failed first (workload.exit_codes), or as interrupted after
SIGTERM, once its processes had time to save.
"""

import os
import sys
from collections.abc import Callable, Sequence

from torch.distributed import DistError
from torch.distributed.elastic.multiprocessing import SignalException
from torch.distributed.elastic.multiprocessing.errors import ChildFailedError
from torch.distributed.run import parse_args, run

from training.distributed import NEW_STORE
from workload import exit_codes


def main(arguments: Sequence[str]) -> int:
    """Start the processes of this machine, wait for them, and give the exit code of all."""
    parsed = parse_args(list(arguments))  # type: ignore[no-untyped-call]
    os.environ.pop(NEW_STORE, None)
    if parsed.standalone or parsed.rdzv_backend != "static":
        # A process that was not lost itself counts no restart, so the count cannot tell the starts.
        os.environ[NEW_STORE] = "1"
    return ended(lambda: run(parsed))  # type: ignore[no-untyped-call]


def ended(launch: Callable[[], object]) -> int:
    """Let a launcher that is made of torchrun start its processes, and give the exit code of all.

    A port that another program listens at is BAD_INPUT: it would be taken again.
    """
    try:
        launch()
    except ChildFailedError as error:
        rank, failure = error.get_first_failure()
        sys.stderr.write(f"process {rank} ended with {failure.exitcode}, the first to fail\n")
        return shell_code(failure.exitcode)
    except DistError as error:
        sys.stderr.write(f"the processes of this gang cannot meet: {error}\n")
        return exit_codes.BAD_INPUT if "EADDRINUSE" in str(error) else exit_codes.FAILED
    except SignalException as error:
        sys.stderr.write(f"interrupted: {error}\n")
        return exit_codes.INTERRUPTED
    return exit_codes.DONE


def shell_code(code: int) -> int:
    """A negative code is the signal that ended a process; a shell would say 128 and the signal."""
    return code if code >= 0 else 128 - code


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
