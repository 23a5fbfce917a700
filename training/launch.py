"""`python -m training.launch ARGS`: torchrun with the same arguments and a meaningful exit code.

torchrun itself always exits with 1 after a failure. A job's failure policy needs more, so this
exits with the code of the process that failed first (workload.exit_codes), or with INTERRUPTED
after SIGTERM, once its processes had time to save.
"""

import os
import sys
from collections.abc import Callable, Sequence

from torch.distributed import DistError
from torch.distributed.elastic.multiprocessing import SignalException
from torch.distributed.elastic.multiprocessing.errors import ChildFailedError
from torch.distributed.run import parse_args, run

from training.gang.distributed import NEW_STORE
from workload import exit_codes


def main(arguments: Sequence[str]) -> int:
    """Start the processes of this machine, wait for them, and return their common exit code."""
    parsed = parse_args(list(arguments))  # type: ignore[no-untyped-call]
    os.environ.pop(NEW_STORE, None)
    if parsed.standalone or parsed.rdzv_backend != "static":
        # Only failed agents count a restart, so the count does not identify a start.
        os.environ[NEW_STORE] = "1"
    return run_launcher(lambda: run(parsed))  # type: ignore[no-untyped-call]


def run_launcher(launch: Callable[[], object]) -> int:
    """Run a launcher that is based on torchrun, and return the common exit code of its processes.

    A port that another program uses is BAD_INPUT, since a retry would fail again.
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
    """Return the exit code that a shell reports: 128 plus the signal number for a negative code."""
    return code if code >= 0 else 128 - code


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
