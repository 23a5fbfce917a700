"""Exit codes of the training program and the model server, for failure policies of jobs.

The codes follow sysexits.h where it defines a suitable code. Any other code (for example after a
signal) has the same effect as FAILED: the gang restarts and resumes from its last checkpoint.
"""

import contextlib
import os
import sys
from typing import Final, NoReturn

DONE: Final = 0
"""The run is complete: this attempt or an earlier one has written the export."""

FAILED: Final = 1
"""A failure, often of another process in the gang: restart from the last checkpoint."""

BAD_INPUT: Final = 64
"""The configuration, data, code or environment is invalid, or the loss is not finite.

A restart would fail in the same way (EX_USAGE).
"""

SLOW_NODE: Final = 69
"""A node of the gang is slow; the error names the node. Restart on other nodes (EX_UNAVAILABLE)."""

INTERRUPTED: Final = 75
"""SIGTERM was received and the state was saved: restart to resume (EX_TEMPFAIL)."""

HUNG: Final = 76
"""No progress for hang_timeout seconds; the stacks are on standard error.

Restart from the last checkpoint (EX_PROTOCOL).
"""


class FatalError(Exception):
    """An error that would recur after every restart. `workload.run` then exits with BAD_INPUT."""


def exit_process(code: int, immediately: bool = True) -> NoReturn:
    """Exit the process, by default without shutting down the interpreter.

    During a shutdown of the interpreter, threads of torch.distributed occasionally abort the
    process, because their library is being unloaded.
    """
    if not immediately:
        raise SystemExit(code)
    # A stream may be a closed pipe, or a file on a full disk.
    with contextlib.suppress(OSError):
        sys.stdout.flush()
        sys.stderr.flush()
    os._exit(code)
