"""What a run says: one JSON object a line, and the last one where Kubernetes looks for it."""

import contextlib
import json
import sys
from pathlib import Path
from typing import Final

TERMINATION_LOG: Final = Path("/dev/termination-log")
"""Becomes the pod's terminated.message. Kubernetes makes the file; elsewhere it is not there."""

LONGEST_MESSAGE: Final = 4096
"""Bytes of a termination message that Kubernetes keeps."""


def emit(event: str, **fields: object) -> str:
    """Write one line of progress to standard output and return it."""
    line = json.dumps({"event": event, **fields}, default=str)
    sys.stdout.write(line + "\n")
    sys.stdout.flush()
    return line


def conclude(event: str, **fields: object) -> None:
    """Write the last line of a run, also as the pod's termination message.

    Of several processes in a pod the first is heard: the others often fail because of it.
    """
    line = emit(event, **fields)
    with contextlib.suppress(OSError):
        if TERMINATION_LOG.stat().st_size == 0:
            TERMINATION_LOG.write_bytes(line.encode()[:LONGEST_MESSAGE])
