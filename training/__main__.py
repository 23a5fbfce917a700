"""`python -m training`, alone or under torchrun: read the configuration, run, say how it ended."""

import os
import sys
import traceback

from training import exit_codes
from training.config import ConfigurationError, TrainingConfig, read_config
from training.report import conclude


def main() -> int:
    """Run the program and give its exit code (training.exit_codes)."""
    rank = os.environ.get("RANK", "0")
    try:
        config = read_config(sys.argv[1:], os.environ)
        # Read before torch is imported: --help and mistakes are answered at once.
        return run(config)
    except ConfigurationError as error:
        conclude("error", message=str(error), rank=rank)
        return exit_codes.BAD_INPUT


def run(config: TrainingConfig) -> int:
    """Train, and turn every failure into one plain line and an exit code."""
    import torch.distributed as dist

    from training.data import DataError
    from training.distributed import read_world, use_threads
    from training.train import DivergedError
    from training.train import run as train

    world = read_world(os.environ)
    use_threads(os.environ)
    try:
        return train(config, world)
    except (DataError, DivergedError) as error:
        conclude("error", message=str(error), rank=world.rank)
        return exit_codes.BAD_INPUT
    except OSError as error:
        conclude("error", message=f"the run cannot be saved: {error}", rank=world.rank)
    except dist.DistError as error:
        conclude("error", message=f"the gang cannot be joined: {error}", rank=world.rank)
    except Exception as error:
        traceback.print_exc()
        conclude("error", message=f"{type(error).__name__}: {error}", rank=world.rank)
    return exit_codes.FAILED


if __name__ == "__main__":
    code = main()
    sys.stdout.flush()
    sys.stderr.flush()
    if code == exit_codes.FAILED:
        # Threads of a broken process group must not keep a failed process alive.
        os._exit(code)
    sys.exit(code)
