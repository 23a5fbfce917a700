"""Progress output for long steps: a live line on a terminal, or plain lines in a log."""

import time
from collections.abc import Iterator
from contextlib import contextmanager

from rich.console import Console
from rich.markup import escape
from rich.progress import Progress, SpinnerColumn, TextColumn, TimeElapsedColumn

QUIET_INTERVAL = 10.0


class Reporter:
    """Progress reporter.

    On a terminal, the current step has a live line. In a log, a line with the step's progress is
    printed at most every ten seconds.
    """

    def __init__(self, console: Console | None = None) -> None:
        self.console = console or Console(highlight=False, soft_wrap=True)
        self.began = time.monotonic()
        self.durations: dict[str, float] = {}

    def say(self, text: str) -> None:
        """Print a line with the time since the command began."""
        self.console.print(f"[dim]{time.monotonic() - self.began:6.1f} s[/dim]  {escape(text)}")

    @contextmanager
    def step(self, name: str) -> Iterator["Step"]:
        """Report a step of unknown length and store its duration in `durations` (seconds)."""
        began = time.monotonic()
        step = Step(self, name)
        with step:
            yield step
        self.durations[name] = time.monotonic() - began
        if step.printed != step.line:
            self.say(step.line)


class Step:
    """A running step. `update` reports its progress."""

    def __init__(self, reporter: Reporter, name: str) -> None:
        self.name = name
        self.detail = ""
        self.printed = ""
        """The last line that `update` printed."""
        self._reporter = reporter
        self._reported = time.monotonic()
        self._live: Progress | None = None

    def __enter__(self) -> "Step":
        if self._reporter.console.is_terminal:
            text = TextColumn("{task.description}", markup=False)
            columns = (SpinnerColumn(), text, TimeElapsedColumn())
            self._live = Progress(*columns, console=self._reporter.console, transient=True)
            self._live.add_task(self.name)
            self._live.start()
        return self

    def __exit__(self, *_: object) -> None:
        if self._live is not None:
            self._live.stop()

    @property
    def line(self) -> str:
        """Name and detail of the step."""
        return f"{self.name}: {self.detail}" if self.detail else self.name

    def update(self, detail: str) -> None:
        """Show a detail: immediately on a terminal, or at most every ten seconds in a log."""
        self.detail = detail
        if self._live is not None:
            self._live.update(self._live.task_ids[0], description=self.line)
        elif time.monotonic() - self._reported > QUIET_INTERVAL:
            self._reported = time.monotonic()
            self.printed = self.line
            self._reporter.say(self.line)
