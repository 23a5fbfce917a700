"""One row of the table of faults."""

from dataclasses import dataclass


@dataclass(frozen=True)
class Row:
    """Result of one fault. Times are in seconds, None if not applicable."""

    fault: str
    repeated: int | None
    standstill: float | None
    lost: dict[str, int]
    """Number of requests without a 200 response, by status or error."""
    answered: int
    new_gang: float | None
    """Time until a gang submitted during the fault has completed."""
    verdict: str
    """`yes`, or the failed assertion."""
    seconds: float
    """Duration of the whole test, including the run."""
    at: str = ""

    @property
    def requests(self) -> int:
        """Number of requests sent."""
        return self.answered + sum(self.lost.values())

    def cells(self) -> list[str]:
        """Return the cells of the Markdown table."""
        lost = ", ".join(f"{count} x {name}" for name, count in sorted(self.lost.items()))
        return [
            self.fault,
            "-" if self.repeated is None else str(self.repeated),
            _seconds(self.standstill),
            f"{lost or '0'} of {self.requests}" if self.answered else "-",
            _seconds(self.new_gang),
            self.verdict.splitlines()[0][:120].replace("|", "/"),
        ]


def _seconds(value: float | None) -> str:
    return "-" if value is None else f"{value:.1f} s"
