"""What a measurement comes to: pure functions of its requests."""

from collections import Counter
from dataclasses import dataclass
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

OK: Final = 200
TOO_MANY: Final = 429


@dataclass(frozen=True)
class Records:
    """One row a request: when it was due (seconds), seconds to its answer's end, status."""

    rows: NDArray[np.float64]

    @property
    def codes(self) -> NDArray[np.int64]:
        """HTTP status, 0 where no answer came."""
        return self.rows[:, 2].astype(np.int64)

    @property
    def answered(self) -> NDArray[np.float64]:
        """Those with status 200."""
        good: NDArray[np.float64] = self.rows[self.codes == OK]
        return good


@dataclass(frozen=True)
class Figures:
    """Of one measurement. Latencies in seconds, of good answers only; rates a second."""

    throughput: float
    goodput: float
    """Good answers within the deadline."""
    offered: float
    p50: float | None
    """None where nothing was answered."""
    p95: float | None
    p99: float | None
    requests: int
    refused: int
    """429."""
    errors: int
    """Everything else that is not 200."""
    codes: dict[str, int]


@dataclass(frozen=True)
class Window:
    """What counts of a measurement: seconds from its start, after it has got going."""

    begin: float
    end: float

    def due(self, rows: NDArray[np.float64]) -> NDArray[np.float64]:
        """Requests that were due in it; all of them where none was."""
        inside = rows[(rows[:, 0] >= self.begin) & (rows[:, 0] <= self.end)]
        return inside if len(inside) else rows

    def ended(self, rows: NDArray[np.float64]) -> tuple[NDArray[np.float64], float]:
        """Requests whose answers ended in it, whenever they were due, and in how many seconds.

        From answer to answer, where one ended shortly before either edge: of a slow server only a
        few batches end in a window, and one more or less would be much.
        """
        ends = rows[:, 0] + rows[:, 1]
        slack = (self.end - self.begin) / 10
        begin, end = _last(ends, self.begin, slack), _last(ends, self.end, slack)
        return rows[(ends > begin) & (ends <= end)], end - begin


def figures(records: Records, deadline: float, window: Window) -> Figures:
    """Rates of the answers that ended in the window, latencies of what was due in it, all codes.

    A slow server's last answers, which end when nobody sends any more, and the queue that a server
    leaves behind do not count. Raises ValueError when nothing was sent.
    """
    if not len(records.rows):
        raise ValueError("no request was sent")
    due = Records(window.due(records.rows))
    good, seconds = window.ended(records.answered)
    p50, p95, p99 = _percentiles(due.answered[:, 1])
    codes = Counter(str(code) for code in records.codes)
    refused = codes[str(TOO_MANY)]
    return Figures(
        throughput=len(good) / seconds,
        goodput=float((good[:, 1] <= deadline).sum()) / seconds,
        offered=len(due.rows) / (window.end - window.begin),
        p50=p50,
        p95=p95,
        p99=p99,
        requests=len(records.rows),
        refused=refused,
        errors=len(records.rows) - len(records.answered) - refused,
        codes=dict(codes),
    )


def pooled(turns: list[tuple[Records, Window]], deadline: float) -> dict[str, Any]:
    """Percentiles over the requests of all turns: rare ones show only in many."""
    due = [Records(window.due(records.rows)).answered for records, window in turns]
    rows = np.concatenate(due)
    p50, p95, p99 = _percentiles(rows[:, 1])
    within = float((rows[:, 1] <= deadline).mean()) if len(rows) else 0.0
    return {"p50": p50, "p95": p95, "p99": p99, "withinDeadline": within}


def _last(ends: NDArray[np.float64], edge: float, slack: float) -> float:
    """When the last answer ended before the edge; the edge itself where that was long before."""
    near = ends[(ends <= edge) & (ends >= edge - slack)]
    return float(near.max()) if len(near) else edge


def _percentiles(latencies: NDArray[np.float64]) -> tuple[float | None, float | None, float | None]:
    if not len(latencies):
        return None, None, None
    p50, p95, p99 = np.percentile(latencies, (50, 95, 99)).tolist()
    return p50, p95, p99
