"""Archive failures of runs, roll back canaries, and start scheduled runs.

    python3 -m recorder watch --claims /claims     archive the failures in the recorder's namespace
    python3 -m recorder show RUN                   print the archived record of a run's last failure
    python3 -m recorder rollback PLAN              roll back a canary that exceeds its limits
    python3 -m recorder attempt PLAN               start a scheduled run and wait until it finishes

The logs of all runs are streamed while the pods exist, because logs of deleted pods cannot be read.
If a container fails, or if its pod is deleted while the container is running, a record is written
to <claim>/<run>/failures/<time>/. It contains the container's last log lines and exit code, and the
events of the pod and of the run.
"""

import argparse
import asyncio
import logging
import re
import sys
from pathlib import Path

from recorder.records import Bounds, failure_text, newest_failure

CLAIMS = Path("/claims")
_CONTROLS = re.compile(r"[\x00-\x08\x0b-\x1f\x7f-\x9f]")


def main() -> int:
    """Run a command and return its exit code."""
    options = _parser().parse_args()
    if options.command == "show":
        try:
            directory = newest_failure(options.claims, options.run, _report_unreadable)
        except OSError as error:
            sys.stderr.write(f"{options.claims} cannot be read: {error.strerror}\n")
            return 1
        if directory is None:
            sys.stderr.write(f"no failures of {options.run} are recorded in {options.claims}\n")
            return 1
        for text in failure_text(directory):
            sys.stdout.write(_without_controls(text))
        return 0
    logging.basicConfig(level=logging.INFO, format="%(levelname)s %(name)s: %(message)s")
    logging.getLogger("httpx2").setLevel(logging.WARNING)
    if options.command == "rollback":
        from recorder.rollback import roll_back

        roll_back(options.plan)
    if options.command == "attempt":
        from recorder.attempts import start

        return start(options.plan)
    from recorder.watch import watch

    bounds = Bounds(options.lines, options.kib * 1024, options.failures, options.pods)
    asyncio.run(watch(options.claims, bounds))
    return 0


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="python3 -m recorder",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    commands = parser.add_subparsers(dest="command", required=True)
    watch_parser = commands.add_parser("watch", help="archive failures until terminated")
    watch_parser.add_argument(
        "--lines", type=_positive, default=500, help="maximum number of log lines per container"
    )
    watch_parser.add_argument(
        "--kib", type=_positive, default=64, help="maximum log size (KiB) per container"
    )
    watch_parser.add_argument(
        "--failures", type=_positive, default=10, help="number of failures to keep per run"
    )
    watch_parser.add_argument(
        "--pods",
        type=_positive,
        default=16,
        help="maximum number of recorded containers per failure",
    )
    show_parser = commands.add_parser(
        "show", help="print the archived record of a run's last failure"
    )
    show_parser.add_argument("run", metavar="RUN", help="name of the run")
    rollback_parser = commands.add_parser(
        "rollback", help="roll back a canary that exceeds its limits"
    )
    attempt_parser = commands.add_parser("attempt", help="start a run and wait until it finishes")
    for each in (rollback_parser, attempt_parser):
        each.add_argument("plan", metavar="PLAN", help="JSON document written by the stack")
    for each in (watch_parser, show_parser):
        each.add_argument(
            "--claims", type=Path, default=CLAIMS, help="directory in which the claims are mounted"
        )
    return parser


def _report_unreadable(error: OSError) -> None:
    sys.stderr.write(f"{error.filename} cannot be read: {error.strerror}\n")


def _without_controls(text: str) -> str:
    """Escape control characters, because a terminal would interpret them.

    Carriage returns become newlines, so each update of a progress bar is printed as a line.
    """
    lines = re.sub(r"\r\n?", "\n", text)
    return _CONTROLS.sub(lambda match: f"\\x{ord(match[0]):02x}", lines)


def _positive(text: str) -> int:
    number = int(text)
    if number < 1:
        raise argparse.ArgumentTypeError(f"{text} is not greater than 0")
    return number


if __name__ == "__main__":
    sys.exit(main())
