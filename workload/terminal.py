"""Progress on a terminal: text lines with a bar below them. This module requires rich."""

from collections.abc import Mapping
from typing import Final

from rich.console import Console
from rich.progress import BarColumn, Progress, Task, TaskProgressColumn, TextColumn
from rich.progress import ProgressColumn as Column
from rich.progress import TimeRemainingColumn as EtaColumn
from rich.text import Text

STYLES: Final = {"error": "bold red", "warning": "yellow", "finished": "bold green"}


class Terminal:
    """Standard output with lines above an optional bar."""

    def __init__(self) -> None:
        self._console = Console(soft_wrap=True)
        self._progress: Progress | None = None

    def write_event(self, event: str, fields: Mapping[str, object]) -> None:
        """Write `event`, followed by the name and value of each field."""
        line = Text(f"{event:<12}", style=STYLES.get(event, "bold"))
        for name, value in fields.items():
            text = f"{value:.6g}" if isinstance(value, float) else str(value)
            line.append(f" {name} ", style="not bold dim").append(text, style="not bold")
        self._console.print(line)

    def open(self, total: int, done: int) -> None:
        """Show the bar; both arguments count samples."""
        self._progress = Progress(
            BarColumn(bar_width=None),
            TaskProgressColumn(),
            TextColumn("step {task.fields[step]}  loss {task.fields[loss]}"),
            _Speed(),
            EtaColumn(),
            console=self._console,
            transient=True,
            expand=True,
        )
        self._progress.add_task("", total=total, completed=done, step="-", loss="-")
        self._progress.start()

    def show(self, done: int, step: int, loss: float) -> None:
        """Show `done` samples, the step and the loss in the bar."""
        if self._progress is not None:
            task = self._progress.task_ids[0]
            self._progress.update(task, completed=done, step=step, loss=f"{loss:.4g}")

    def close(self) -> None:
        """Remove the bar and restore the cursor."""
        if self._progress is not None:
            self._progress.stop()
        self._progress = None


class _Speed(Column):
    def render(self, task: Task) -> Text:
        return Text(f"{task.speed:,.0f} samples/s" if task.speed else "")
