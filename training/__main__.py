"""`python -m training`, alone or under torchrun: read the configuration, run, say how it ended."""

import os
import signal
import sys
import traceback

from training.command_line import read_config
from training.config import TrainingConfig
from workload import exit_codes
from workload.configuration import ConfigurationError
from workload.progress import Failed
from workload.report import conclude


def main() -> int:
    """Run the program and give its exit code (workload.exit_codes)."""
    try:
        # Before torch is imported: --help and mistakes are answered at once.
        return run(read_config(sys.argv[1:], os.environ))
    except ConfigurationError as error:
        return failed(str(error), exit_codes.BAD_INPUT)


def run(config: TrainingConfig) -> int:
    """Train, and turn every failure into one plain line and an exit code."""
    from training.data import DataError
    from training.distributed import lost_peer
    from training.train import run as train
    from training.watching import DivergedError
    from training.world import read_world, use_threads

    try:
        use_threads(os.environ)
        return train(config, read_world(os.environ))
    except (ConfigurationError, DataError, DivergedError) as error:
        return failed(str(error), exit_codes.BAD_INPUT)
    except OSError as error:
        return failed(f"the run cannot be saved: {error}", exit_codes.FAILED)
    except Exception as error:
        if lost_peer(error):
            return failed(f"another process of the gang is lost: {error}", exit_codes.FAILED)
        traceback.print_exc()
        return failed(f"{type(error).__name__}: {error}", exit_codes.FAILED)


def failed(message: str, code: int) -> int:
    """Say what went wrong, in one line of progress and in the termination message."""
    conclude(Failed(message=message, rank=os.environ.get("RANK", "0"), exit_code=code))
    return code


if __name__ == "__main__":
    if os.getpid() == 1:
        # Process 1 of a container has no default action for SIGTERM.
        signal.signal(signal.SIGTERM, lambda *_: os._exit(exit_codes.INTERRUPTED))
    code = main()
    sys.stdout.flush()
    sys.stderr.flush()
    # All is on the disk. Leaving Python in the ordinary way may abort now and then: threads of the
    # process group still run while their library is taken down.
    os._exit(code)
