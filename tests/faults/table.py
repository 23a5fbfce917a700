"""Table of faults, written after every row and drawn at the end."""

import json
import os
import platform
from dataclasses import asdict, replace
from datetime import UTC, datetime
from pathlib import Path

import psutil

from tests.faults.plot import draw
from tests.faults.row import Row

HEAD = ("fault", "steps repeated", "training paused", "requests lost", "new gang", "passed")


class Table:
    """Rows of one machine by fault; a repeated fault replaces its row."""

    def __init__(self, folder: Path) -> None:
        self._json, self._markdown = folder / "faults.json", folder / "faults.md"
        self._picture = folder / "faults.svg"
        self._rows: dict[str, Row] = {}
        if self._json.exists():
            kept = json.loads(self._json.read_text())
            if kept["machine"] == machine():
                self._rows = {row["fault"]: Row(**row) for row in kept["rows"]}

    def add(self, row: Row) -> None:
        """Add a row. A row without a verdict is ignored, because its fault was interrupted."""
        if not row.verdict:
            return
        now = datetime.now(UTC).isoformat(timespec="seconds")
        self._rows[row.fault] = replace(row, at=now)
        self._json.parent.mkdir(exist_ok=True)
        document = {"machine": machine(), "rows": [asdict(row) for row in self._rows.values()]}
        self._json.write_text(json.dumps(document, indent=2) + "\n")
        lines = [HEAD, ["---"] * len(HEAD), *(row.cells() for row in self._rows.values())]
        self._markdown.write_text("".join(f"| {' | '.join(line)} |\n" for line in lines))

    def draw(self) -> None:
        """Draw the plot of all rows, if there are any."""
        if self._rows:
            draw(list(self._rows.values()), self._picture)


def machine() -> str:
    memory = psutil.virtual_memory().total / 2**30
    return f"{os.cpu_count()} cores, {memory:.0f} GiB, Linux {platform.release()}"
