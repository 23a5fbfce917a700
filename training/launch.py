"""`python -m training.launch ARGS`: torchrun, with the same arguments, but an exit code that tells.

torchrun itself ends with 1 whatever happened. A job's failure policy needs to know more, so this
ends with the code of the process that failed first (training.exit_codes), or as interrupted after
SIGTERM, once its processes had time to save.
"""

import sys
from collections.abc import Sequence

from torch.distributed import DistError
from torch.distributed.elastic.multiprocessing import SignalException
from torch.distributed.elastic.multiprocessing.errors import ChildFailedError
from torch.distributed.run import parse_args, run

from training import exit_codes


def main(arguments: Sequence[str]) -> int:
    """Start the processes of this machine, wait for them, and give the exit code of all."""
    try:
        run(parse_args(list(arguments)))  # type: ignore[no-untyped-call]
    except ChildFailedError as error:
        rank, failure = error.get_first_failure()
        sys.stderr.write(f"process {rank} ended with {failure.exitcode}, the first to fail\n")
        # A negative code is the signal that ended it; a shell would say 128 and the signal.
        return failure.exitcode if failure.exitcode >= 0 else 128 - failure.exitcode
    except DistError as error:
        sys.stderr.write(f"the processes of this gang cannot meet: {error}\n")
        return exit_codes.FAILED
    except SignalException as error:
        sys.stderr.write(f"interrupted: {error}\n")
        return exit_codes.INTERRUPTED
    return exit_codes.DONE


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
