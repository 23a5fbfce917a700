"""A fine-tune in the style of SDXL, as users write it: diffusers' UNet, started by accelerate.

    accelerate launch --multi_gpu --num_processes=2 -m examples.diffusion --run-dir=DIR

It uses nothing of this project but how a run reports and ends, so it runs wherever the training
program runs, and the jobs' failure policies understand its exit codes.
"""

import argparse
import sys
import traceback
from pathlib import Path
from typing import NoReturn

from training.gang.preflight import check_run_dir
from workload import exit_codes
from workload.configuration import ConfigurationError
from workload.report import conclude


class Parser(argparse.ArgumentParser):
    """Raises instead of exiting with a code of its own."""

    def error(self, message: str) -> NoReturn:
        """Raise ConfigurationError."""
        raise ConfigurationError(message)


def parser() -> Parser:
    """The flags."""
    made = Parser(
        prog="accelerate launch -m examples.diffusion",
        description="Fine-tune a UNet of SDXL's kind on made pictures. A run that was interrupted "
        "continues from its last checkpoint when it is started again with the same run-dir. "
        "Exit codes: 0 done, 64 wrong input (do not retry), 75 interrupted after saving (retry).",
        formatter_class=argparse.ArgumentDefaultsHelpFormatter,
        allow_abbrev=False,
    )
    made.add_argument("--run-dir", type=Path, required=True, help="for checkpoints and the result")
    made.add_argument(
        "--unet",
        type=Path,
        help="folder of the UNet to begin with, as diffusers saves it; without it a tiny one "
        "begins at random",
    )
    made.add_argument("--steps", type=positive, default=200, help="of the optimizer")
    made.add_argument("--batch-size", type=positive, default=8, help="pictures a process and step")
    made.add_argument("--learning-rate", type=float, default=2e-3, help="peak of a cosine")
    made.add_argument("--checkpoint-every", type=positive, default=50, help="steps")
    made.add_argument("--log-every", type=positive, default=10, help="steps")
    made.add_argument("--seed", type=int, default=0, help="of pictures, weights and noise")
    return made


def positive(text: str) -> int:
    """A whole number of at least 1."""
    number = int(text)
    if number < 1:
        raise ValueError(text)
    return number


def main() -> int:
    """Run the fine-tune and give its exit code."""
    try:
        options = parser().parse_args()
        check_run_dir(options.run_dir)
        # Takes seconds; mistakes are answered before.
        from examples.diffusion.finetune import finetune

        return finetune(options)
    except ConfigurationError as error:
        return failed(str(error), exit_codes.BAD_INPUT)
    except Exception as error:
        traceback.print_exc()
        return failed(f"{type(error).__name__}: {error}", exit_codes.FAILED)


def failed(message: str, code: int) -> int:
    """Say what went wrong as the training program does."""
    conclude("error", message=message, exit_code=code)
    return code


if __name__ == "__main__":
    sys.exit(main())
