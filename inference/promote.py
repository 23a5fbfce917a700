"""Check conditions on the metrics of a new model and of the served model.

  python -m inference.promote CANDIDATE INCUMBENT "accuracy >= incumbent - 0.002"

The program runs before the server starts. It fails if a condition is false or cannot be evaluated,
and the server then does not start.
"""

import argparse
import sys
from collections.abc import Sequence
from pathlib import Path

from workload import exit_codes
from workload.manifest import ExportError, read_manifest
from workload.promotion import parse_named, violations
from workload.report import conclude, emit


def main(arguments: Sequence[str] | None = None) -> int:
    """Compare two exports, log the result and return the exit code."""
    parser = argparse.ArgumentParser(
        prog="python -m inference.promote",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("candidate", type=Path, help="directory of the new export")
    parser.add_argument("incumbent", type=Path, help="directory of the served export")
    parser.add_argument(
        "conditions", nargs="+", metavar="CONDITION", help='condition, such as "accuracy >= 0.95"'
    )
    options = parser.parse_args(arguments)
    try:
        conditions = parse_named(options.conditions)
        candidate, incumbent = read_manifest(options.candidate), read_manifest(options.incumbent)
        if found := list(violations(conditions, candidate.metrics, incumbent.metrics)):
            raise ValueError(f"{candidate.run} is not promoted: {'; '.join(found)}")
    except (ExportError, ValueError) as error:
        conclude("error", message=str(error), exit_code=exit_codes.FAILED)
        return exit_codes.FAILED
    emit("promoted", run=candidate.run, incumbent=incumbent.run, metrics=candidate.metrics)
    return exit_codes.DONE


if __name__ == "__main__":
    sys.exit(main())
