"""Training with TensorFlow: `python -m examples.tensorflow`.

The program reads the flags of `python -m training`, and rejects those that it does not support.
The exit codes are defined in workload.exit_codes.
"""

import os
import signal
import sys
import threading
from collections.abc import Callable

from examples.tensorflow.cluster import Worker, read_worker
from training.command_line import read_config
from training.config import TrainingConfig
from workload import exit_codes
from workload.configuration import ConfigurationError
from workload.report import conclude


def main() -> int:
    """Run the program and return its exit code."""
    try:
        config = read_config(sys.argv[1:], os.environ)
        if problems := config.tensorflow_problems():
            raise ConfigurationError("; ".join(problems))
        worker = read_worker(os.environ)
    except ConfigurationError as error:
        conclude("error", message=str(error), exit_code=exit_codes.BAD_INPUT)
        return exit_codes.BAD_INPUT
    return run(config, worker)


def run(config: TrainingConfig, worker: Worker) -> int:
    """Train until the last epoch, or until SIGTERM arrives, and return the exit code."""
    os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "2")
    # The import takes seconds, and --help and errors about invalid flags should appear immediately.
    from examples.tensorflow.train import InterruptedRunError
    from examples.tensorflow.train import run as train

    try:
        train(config, worker, handle_sigterm)
    except InterruptedRunError as stop:
        conclude("interrupted", message=str(stop), exit_code=exit_codes.INTERRUPTED)
        return exit_codes.INTERRUPTED
    except ConfigurationError as error:
        conclude("error", message=str(error), exit_code=exit_codes.BAD_INPUT)
        return exit_codes.BAD_INPUT
    except Exception as error:
        # The cause may be the loss of a peer. The gang then restarts from its latest checkpoint.
        conclude("error", message=f"{type(error).__name__}: {error}", exit_code=exit_codes.FAILED)
        return exit_codes.FAILED
    return exit_codes.DONE


def handle_sigterm() -> Callable[[], bool]:
    """Install a SIGTERM handler that sets a flag, and return a function that reads the flag."""
    requested = threading.Event()
    signal.signal(signal.SIGTERM, lambda *_: requested.set())
    return requested.is_set


if __name__ == "__main__":
    code = main()
    sys.stdout.flush()
    sys.stderr.flush()
    # After the loss of a peer, the threads of collective operations would keep the process alive.
    os._exit(code)
