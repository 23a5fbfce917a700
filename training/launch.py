"""`python -m training.launch ARGS`: run torchrun with ARGS, and exit with a meaningful code.

torchrun itself always exits with 1 after a failure. A job's failure policy needs the actual exit
code, so this program exits with the code of the process that failed first (workload.exit_codes).
After SIGTERM, it waits until its processes have saved their state, and exits with their code.
Kubernetes limits this wait to the pod's grace period.
"""

import contextlib
import os
import signal
import sys
from collections.abc import Callable, Iterator, Sequence
from typing import Any, Final

from torch.distributed import DistError
from torch.distributed.elastic.multiprocessing import SignalException
from torch.distributed.elastic.multiprocessing.api import SubprocessContext
from torch.distributed.elastic.multiprocessing.errors import ChildFailedError
from torch.distributed.run import parse_args, run

from training.gang.distributed import NEW_STORE
from workload import exit_codes
from workload.report import fail

SHUTDOWN_TIMEOUT: Final = "TORCH_ELASTIC_SHUTDOWN_TIMEOUT"
"""Environment variable with the time (s) from SIGTERM until torchrun kills its processes
(torchrun's default: 30)."""

MAX_GRACE_SECONDS: Final = 3600
"""Maximum grace period of a pod."""

SIGNAL_CAUSES: Final = {
    signal.SIGABRT: "a library aborted; NCCL does so if a rank is lost or hangs",
    signal.SIGBUS: "probably /dev/shm is full",
    signal.SIGKILL: "probably the memory limit was exceeded",
    signal.SIGSEGV: "a fault in native code",
}
"""Probable causes of signals that kill a process before it can report an error."""


def main(arguments: Sequence[str]) -> int:
    """Start the processes of this node, wait for them, and return one exit code for all."""
    parsed = parse_args(list(arguments))  # type: ignore[no-untyped-call]
    os.environ.pop(NEW_STORE, None)
    if parsed.standalone or parsed.rdzv_backend != "static":
        # An agent counts a restart only if one of its own processes failed. Restart counts may thus
        # differ between agents and cannot serve as the key prefix in a shared store.
        os.environ[NEW_STORE] = "1"
    return run_launcher(lambda: run(parsed))  # type: ignore[no-untyped-call]


def run_launcher(launch: Callable[[], object]) -> int:
    """Run a launcher based on torchrun; return one exit code for all of its processes."""
    os.environ.setdefault(SHUTDOWN_TIMEOUT, str(MAX_GRACE_SECONDS))
    with recorded_exit_codes() as codes:
        try:
            launch()
        except ChildFailedError as error:
            rank, failure = error.get_first_failure()
            sys.stderr.write(f"process {rank} failed first, with exit code {failure.exitcode}\n")
            report_signal(rank, failure.exitcode)
            return shell_code(failure.exitcode)
        except DistError as error:
            sys.stderr.write(f"the processes of this gang cannot connect: {error}\n")
            # A retry would find the port in use again.
            return exit_codes.BAD_INPUT if "EADDRINUSE" in str(error) else exit_codes.FAILED
        except (SignalException, UnboundLocalError) as error:
            # If a signal arrives during the first line of torchrun's metrics wrapper, the wrapper
            # fails with an UnboundLocalError whose context is the SignalException.
            signal_error = error if isinstance(error, SignalException) else error.__context__
            if not isinstance(signal_error, SignalException):
                raise
            sys.stderr.write(f"interrupted: {signal_error}\n")
            return interrupted_code(codes, signal_error.sigval)
    return exit_codes.DONE


@contextlib.contextmanager
def recorded_exit_codes() -> Iterator[list[int]]:
    """Yield a list that receives the exit codes of the processes when torchrun closes them.

    torchrun does not report the exit codes after SIGTERM.
    """
    codes: list[int] = []
    close = SubprocessContext._close

    def closing(self: SubprocessContext, *arguments: Any, **named: Any) -> None:
        close(self, *arguments, **named)
        ended = [handler.proc.poll() for handler in self.subprocess_handlers.values()]
        codes[:] = [-signal.SIGKILL if code is None else code for code in ended]

    SubprocessContext._close = closing  # type: ignore[method-assign]
    try:
        yield codes
    finally:
        SubprocessContext._close = close  # type: ignore[method-assign]


def interrupted_code(codes: Sequence[int], number: int) -> int:
    """Combine the exit codes of the processes into one, after signal `number`.

    The result is INTERRUPTED or DONE only if every process has saved its state or has finished.
    """
    failed = [code for code in codes if code not in (exit_codes.DONE, exit_codes.INTERRUPTED)]
    if failed or not codes:
        return shell_code(failed[0] if failed else -number)
    return max(codes)


def report_signal(rank: int, code: int) -> None:
    """Report that a process was killed by a signal, which the process cannot report itself."""
    if code < 0:
        name = signal.Signals(-code)
        cause = SIGNAL_CAUSES.get(name, signal.strsignal(name))
        message = f"rank {rank} was killed by {name.name}: {cause}"
        fail(message, shell_code(code), rank=rank)


def shell_code(code: int) -> int:
    """Return the exit code that a shell reports: 128 plus the signal number for a negative code."""
    return code if code >= 0 else 128 - code


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
