"""The table of faults: what each took, and how long. Written after every row."""

import json
import os
import platform
from dataclasses import asdict, dataclass
from datetime import UTC, datetime
from pathlib import Path

import psutil

HEAD = ("fault", "steps repeated", "training stood still", "requests lost", "new gang", "held")


@dataclass(frozen=True)
class Row:
    """One fault. Times in seconds; None where the fault has no such side."""

    fault: str
    repeated: int | None
    standstill: float | None
    lost: dict[str, int]
    """Requests without an answer 200, by what came instead."""
    answered: int
    new_gang: float | None
    """Until a gang that was submitted in the fault had run."""
    verdict: str
    """`yes`, or what did not hold."""
    seconds: float
    """Of the whole test, the run itself included."""
    at: str = ""

    def cells(self) -> list[str]:
        """As the Markdown table has it."""
        lost = ", ".join(f"{count} x {name}" for name, count in sorted(self.lost.items()))
        return [
            self.fault,
            "-" if self.repeated is None else str(self.repeated),
            _seconds(self.standstill),
            f"{lost or '0'} of {self.answered + sum(self.lost.values())}" if self.answered else "-",
            _seconds(self.new_gang),
            self.verdict.splitlines()[0][:120].replace("|", "/"),
        ]


class Table:
    """The rows of a machine by fault; what is run again replaces its row."""

    def __init__(self, folder: Path) -> None:
        self._json, self._markdown = folder / "faults.json", folder / "faults.md"
        self._rows: dict[str, Row] = {}
        if self._json.exists():
            kept = json.loads(self._json.read_text())
            if kept["machine"] == machine():
                self._rows = {row["fault"]: Row(**row) for row in kept["rows"]}

    def add(self, row: Row) -> None:
        """Takes a row that has a verdict: of what was interrupted nothing is known."""
        if not row.verdict:
            return
        now = datetime.now(UTC).isoformat(timespec="seconds")
        self._rows[row.fault] = Row(**{**asdict(row), "at": now})
        self._json.parent.mkdir(exist_ok=True)
        document = {"machine": machine(), "rows": [asdict(row) for row in self._rows.values()]}
        self._json.write_text(json.dumps(document, indent=2) + "\n")
        lines = [HEAD, ["---"] * len(HEAD), *(row.cells() for row in self._rows.values())]
        self._markdown.write_text("".join(f"| {' | '.join(line)} |\n" for line in lines))


def machine() -> str:
    memory = psutil.virtual_memory().total / 2**30
    return f"{os.cpu_count()} cores, {memory:.0f} GiB, Linux {platform.release()}"


def _seconds(value: float | None) -> str:
    return "-" if value is None else f"{value:.1f} s"
