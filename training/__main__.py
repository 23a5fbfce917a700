"""Entry point of `python -m training`, which runs alone or under torchrun."""

import errno
import gc
import os
import signal
import sys
import traceback
from pathlib import Path
from typing import Final

from training.command_line import read_config
from training.config import TrainingConfig
from workload import exit_codes
from workload.configuration import ConfigurationError
from workload.report import fail
from workload.store import StoreError


def main() -> int:
    """Run the program and return its exit code (workload.exit_codes)."""
    try:
        # Read the configuration before torch is imported, so that --help and errors appear
        # immediately.
        return run(read_config(sys.argv[1:], os.environ))
    except ConfigurationError as error:
        return fail(str(error), exit_codes.BAD_INPUT)
    except KeyboardInterrupt:
        message = "interrupted without saving: start the run again to resume from its checkpoints"
        return fail(message, 128 + signal.SIGINT)


def run(config: TrainingConfig) -> int:
    """Train and return the exit code; report a failure as one event."""
    # Disabling garbage collection shortens the import of PyTorch by a sixth. After gc.freeze, later
    # collections skip PyTorch's objects.
    gc.disable()
    from torch import AcceleratorError, OutOfMemoryError

    from training.data import DataError
    from training.data.samples import UnavailableError
    from training.gang.distributed import is_lost_peer
    from training.gang.measurements import SlowNodeError
    from training.gang.preflight import FULL, describe_error
    from training.gang.world import read_world, use_threads
    from training.run import DivergedError
    from training.train import run as train
    from workload.manifest import UnavailableExportError

    gc.freeze()
    gc.enable()

    try:
        use_threads(os.environ)
        return train(config, read_world(os.environ))
    except (UnavailableError, UnavailableExportError) as error:
        return fail(str(error), exit_codes.FAILED)
    except (ConfigurationError, DataError, DivergedError, exit_codes.FatalError) as error:
        return fail(str(error), exit_codes.BAD_INPUT)
    except SlowNodeError as error:
        return fail(str(error), exit_codes.SLOW_NODE, text=str(error))
    except PROGRAM_ERRORS as error:
        traceback.print_exc()
        message = f"error in the program: {type(error).__name__}: {error}"
        return fail(message, exit_codes.BAD_INPUT)
    except StoreError as error:
        return fail(str(error), exit_codes.FAILED)
    except OSError as error:
        problem, run_dir = str(error), Path(config.run_dir)
        if error.errno == errno.ENOENT:
            problem += f"; check that no other process uses or removes run_dir {run_dir}"
        elif error.errno in FULL:
            problem = (
                f"run_dir {run_dir}: {describe_error(run_dir, error)}; free space or use a larger "
                "volume. A restart resumes from the newest checkpoint"
            )
        return fail(f"the run cannot be saved or resumed: {problem}", exit_codes.FAILED)
    except OutOfMemoryError as error:
        traceback.print_exc()
        # Omit the rest of the message, which is about PyTorch's allocator.
        message = str(error).partition(" Of the allocated memory")[0]
        remedy = "decrease batch_size and increase accumulate, or enable activation_checkpointing"
        return fail(f"{message} To reduce memory use, {remedy}", exit_codes.FAILED)
    except Exception as error:
        if isinstance(error, AcceleratorError) and DEVICE_ASSERTION in str(error):
            traceback.print_exc()
            message = f"error in the program: {str(error).splitlines()[0]}"
            return fail(message, exit_codes.BAD_INPUT)
        if is_lost_peer(error):
            return fail(f"lost connection to another rank: {error}", exit_codes.FAILED)
        return fail(error, exit_codes.FAILED)


PROGRAM_ERRORS: Final = (
    TypeError, AttributeError, NameError, LookupError, ImportError, AssertionError,
    NotImplementedError, SystemExit,
)  # fmt: skip
"""Exceptions that indicate an error in the program or in user code, such as a custom model.

The error would recur after a restart.
"""

DEVICE_ASSERTION: Final = "device-side assert"
"""Part of CUDA's error message for an index out of range. On the CPU, PyTorch raises an
IndexError instead, which is one of the PROGRAM_ERRORS."""


if __name__ == "__main__":
    if os.getpid() == 1:
        # PID 1 of a container ignores SIGTERM by default. There is nothing to save yet.
        signal.signal(signal.SIGTERM, lambda *_: os._exit(128 + signal.SIGTERM))
    exit_codes.exit_process(main())
