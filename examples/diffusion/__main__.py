"""Fine-tuning of a diffusers UNet with SDXL's architecture, launched with accelerate.

    accelerate launch --multi_gpu --num_processes=2 -m examples.diffusion --run-dir=DIR

The program reports its progress and uses exit codes in the same way as this project's training
program. Training jobs can therefore run it, and their failure policies apply to it.
"""

import argparse
import sys
from pathlib import Path
from typing import NoReturn

from training.gang.preflight import check_run_dir
from workload import exit_codes
from workload.configuration import ConfigurationError
from workload.report import fail


class Parser(argparse.ArgumentParser):
    """Argument parser that raises an error instead of exiting."""

    def error(self, message: str) -> NoReturn:
        """Raise ConfigurationError."""
        raise ConfigurationError(message)


def parser() -> Parser:
    """Return the command-line parser."""
    flags = Parser(
        prog="accelerate launch -m examples.diffusion",
        description="Fine-tune an SDXL-style UNet on synthetic images. An interrupted run "
        "resumes from its last checkpoint if it is restarted with the same run-dir. "
        "Exit codes: 0 done, 64 invalid input (do not retry), 75 interrupted after saving (retry).",
        formatter_class=argparse.ArgumentDefaultsHelpFormatter,
        allow_abbrev=False,
    )
    flags.add_argument(
        "--run-dir", type=Path, required=True, help="directory for checkpoints and the export"
    )
    flags.add_argument(
        "--unet",
        type=Path,
        help="directory with the initial UNet, as saved by diffusers; by default a tiny UNet with "
        "random weights",
    )
    flags.add_argument("--steps", type=positive, default=200, help="optimizer steps")
    flags.add_argument("--batch-size", type=positive, default=8, help="images per process")
    flags.add_argument(
        "--learning-rate", type=float, default=2e-3, help="peak of the cosine schedule"
    )
    flags.add_argument(
        "--checkpoint-every", type=positive, default=50, help="steps between checkpoints"
    )
    flags.add_argument(
        "--log-every", type=positive, default=10, help="steps between progress lines"
    )
    flags.add_argument("--seed", type=int, default=0, help="seed for images, weights and noise")
    return flags


def positive(text: str) -> int:
    """Parse an integer of at least 1."""
    number = int(text)
    if number < 1:
        raise ValueError(text)
    return number


def main() -> int:
    """Run the fine-tuning and return its exit code."""
    try:
        options = parser().parse_args()
        check_run_dir(options.run_dir)
        # The import takes seconds, and invalid flags should be reported immediately.
        from examples.diffusion.finetune import finetune

        return finetune(options)
    except ConfigurationError as error:
        return fail(str(error), exit_codes.BAD_INPUT)
    except Exception as error:
        return fail(error, exit_codes.FAILED)


if __name__ == "__main__":
    sys.exit(main())
