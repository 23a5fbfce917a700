"""`python -m examples.tensorflow`: the flags of `python -m training`, as far as they are followed.

Exit codes are those of workload.exit_codes.
"""

import os
import signal
import sys
import threading
from collections.abc import Callable

from examples.tensorflow.cluster import Worker, read_worker
from examples.tensorflow.settings import check
from training.command_line import read_config
from training.config import TrainingConfig
from workload import exit_codes
from workload.configuration import ConfigurationError
from workload.report import conclude


def main() -> int:
    """Run the program and give its exit code."""
    try:
        config = read_config(sys.argv[1:], os.environ)
        check(config)
        worker = read_worker(os.environ)
    except ConfigurationError as error:
        conclude("error", message=str(error), exit_code=exit_codes.BAD_INPUT)
        return exit_codes.BAD_INPUT
    return run(config, worker)


def run(config: TrainingConfig, worker: Worker) -> int:
    """Train until the end or until SIGTERM."""
    os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "2")
    # Here, since --help and mistakes are answered before it is imported, which takes seconds.
    from examples.tensorflow.train import InterruptedRunError
    from examples.tensorflow.train import run as train

    try:
        train(config, worker, listen)
    except InterruptedRunError as stop:
        conclude("interrupted", message=str(stop), exit_code=exit_codes.INTERRUPTED)
        return exit_codes.INTERRUPTED
    except ConfigurationError as error:
        conclude("error", message=str(error), exit_code=exit_codes.BAD_INPUT)
        return exit_codes.BAD_INPUT
    except Exception as error:
        # Also a lost peer: the gang starts again from its newest checkpoint.
        conclude("error", message=f"{type(error).__name__}: {error}", exit_code=exit_codes.FAILED)
        return exit_codes.FAILED
    return exit_codes.DONE


def listen() -> Callable[[], bool]:
    """From now on SIGTERM only sets a flag; the function tells whether it is set."""
    asked = threading.Event()
    signal.signal(signal.SIGTERM, lambda *_: asked.set())
    return asked.is_set


if __name__ == "__main__":
    code = main()
    sys.stdout.flush()
    sys.stderr.flush()
    # A lost peer leaves threads of the collectives behind that would keep the process.
    os._exit(code)
