"""Progress output of a program: JSON lines, or text and a progress bar on a terminal.

The last event is also the pod's termination message, as JSON unless the program passes text.
"""

import contextlib
import importlib.util
import json
import os
import sys
import time
import traceback
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Final, Protocol, Self, SupportsFloat

from workload.exit_codes import BAD_INPUT, FAILED, FatalError

if TYPE_CHECKING:
    from workload.progress import Event
    from workload.terminal import Terminal

TERMINATION_LOG: Final = Path("/dev/termination-log")
"""File that contains the pod's termination message. It exists only in pods."""

MAX_MESSAGE_BYTES: Final = 4096
"""Maximum size (bytes) of a termination message; Kubernetes truncates longer ones."""

REFRESH_SECONDS: Final = 0.25
"""Minimum time (s) between updates of the bar.

Reading the loss stalls a GPU, so the loss is not read more often.
"""

_terminals: list["Terminal"] = []


class Listener(Protocol):
    """Object that receives a copy of each progress line of this process."""

    def receive(self, content: Mapping[str, object]) -> None:
        """Receive the fields of a line."""

    def close(self) -> None:
        """Write all received lines. This is called before the process writes its last line."""


listeners: list[Listener] = []
"""Receivers of all lines, including the last one (workload.tracking)."""


def emit(event: "str | Event", **fields: object) -> str:
    """Write one event to standard output; return its JSON."""
    content = _content(event, fields)
    for listener in listeners:
        listener.receive(content)
    return _write(content)


def conclude(event: "str | Event", text: str = "", /, **fields: object) -> None:
    """Write the last line of a run; this line or `text` is also the pod's termination message.

    If several processes of a pod call this function, the first message is kept, because the other
    processes often fail as a consequence of the first failure.
    """
    terminal = _terminal()
    if terminal is not None:
        # The process may exit immediately and must restore the terminal's cursor.
        terminal.close()
    content = _content(event, fields)
    while listeners:
        listener = listeners.pop()
        listener.receive(content)
        listener.close()
    with contextlib.suppress(OSError):
        if TERMINATION_LOG.stat().st_size == 0:
            message = text or _shortened(content)
            TERMINATION_LOG.write_bytes(message.encode()[:MAX_MESSAGE_BYTES])
    _write(content)


def fail(
    error: str | Exception, code: int = FAILED, text: str = "", *, rank: int | None = None
) -> int:
    """Write an error as the last line, with the rank ($RANK by default); return the exit code.

    For a FatalError, the exit code is always BAD_INPUT. If the code is FAILED, the traceback of an
    exception is printed to standard error.
    """
    if isinstance(error, FatalError):
        code = BAD_INPUT
    elif isinstance(error, Exception) and code == FAILED:
        traceback.print_exception(error)
    message = error if isinstance(error, str) else f"{type(error).__name__}: {error}"
    found = os.environ.get("RANK", "0") if rank is None else str(rank)
    conclude("error", text, message=message, rank=found, exit_code=code)
    return code


def _content(event: "str | Event", fields: Mapping[str, object]) -> dict[str, object]:
    return {"event": event, **fields} if isinstance(event, str) else event.line()


def _write(content: Mapping[str, object]) -> str:
    line = json.dumps(content, default=str)
    terminal = _terminal()
    # Standard output may be a closed pipe, or a file on a full disk. The program must continue.
    with contextlib.suppress(OSError):
        if terminal is not None:
            rest = {name: value for name, value in content.items() if name != "event"}
            terminal.write_event(str(content["event"]), rest)
        else:
            sys.stdout.write(line + "\n")
            sys.stdout.flush()
    return line


def _shortened(content: Mapping[str, object]) -> str:
    """Shorten the message of an event until its line fits, because truncated JSON is not valid."""
    message, line = str(content.get("message", "")), json.dumps(content, default=str)
    while message and (excess := len(line) - MAX_MESSAGE_BYTES) > 0:
        # A character takes at most 12 bytes of JSON.
        message = message[: -max(excess // 12, 1)]
        line = json.dumps({**content, "message": f"{message}…"}, default=str)
    return line


class Bar:
    """Context manager for a progress bar, which is shown if standard output is a terminal.

    The bar counts samples. `total` is the number of samples in the whole run, and `done` is the
    number of samples that earlier attempts have processed.
    """

    def __init__(self, total: int, done: int, shown: bool = True) -> None:
        self._total, self._done = total, done
        self._terminal = _terminal() if shown else None
        self._refreshed = -REFRESH_SECONDS

    def advance(self, done: int, step: int, loss: SupportsFloat) -> None:
        """Show `done` samples after `step` steps; `loss` is read only when the bar is updated."""
        if self._terminal is None:
            return
        now = time.monotonic()
        if now - self._refreshed >= REFRESH_SECONDS:
            self._refreshed = now
            self._terminal.show(done, step, float(loss))

    def __enter__(self) -> Self:
        if self._terminal is not None:
            self._terminal.open(self._total, self._done)
        return self

    def __exit__(self, *_: object) -> None:
        if self._terminal is not None:
            self._terminal.close()


def _terminal() -> "Terminal | None":
    """Return the terminal; None if standard output is not a terminal or rich is not installed."""
    if not sys.stdout.isatty() or importlib.util.find_spec("rich") is None:
        return None
    if not _terminals:
        from workload.terminal import Terminal

        _terminals.append(Terminal())
    return _terminals[0]
