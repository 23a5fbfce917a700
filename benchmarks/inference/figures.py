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


def figures(records: Records, deadline: float, warm_up: float = 0.0) -> Figures:
    """Percentiles and rates; requests due within `warm_up` seconds from the start do not count.

    Rates are over the time from the first request that counts to the end of the last answer: a
    server is not credited for a queue that it leaves behind, nor for requests never answered.
    Raises ValueError when nothing was sent.
    """
    rows = records.rows[records.rows[:, 0] >= warm_up]
    if not len(rows):
        # So few that all fell into the beginning.
        rows = records.rows
    if not len(rows):
        raise ValueError("no request was sent")
    counted = Records(rows)
    good = counted.answered
    due = rows[:, 0]
    sending = max(due.max() - due.min(), 1e-9)
    ended = float((rows[:, 0] + rows[:, 1]).max() - due.min())
    p50, p95, p99 = _percentiles(good[:, 1])
    codes = Counter(str(code) for code in counted.codes)
    refused = codes[str(TOO_MANY)]
    return Figures(
        throughput=len(good) / ended,
        goodput=int((good[:, 1] <= deadline).sum()) / ended if len(good) else 0.0,
        offered=len(rows) / sending,
        p50=p50,
        p95=p95,
        p99=p99,
        requests=len(rows),
        refused=refused,
        errors=len(rows) - len(good) - refused,
        codes=dict(codes),
    )


def pooled(records: list[Records], deadline: float, warm_up: float = 0.0) -> dict[str, Any]:
    """Percentiles over the requests of all turns: rare ones show only in many."""
    rows = np.concatenate([one.answered for one in records])
    rows = rows[rows[:, 0] >= warm_up]
    p50, p95, p99 = _percentiles(rows[:, 1])
    within = float((rows[:, 1] <= deadline).mean()) if len(rows) else 0.0
    return {"p50": p50, "p95": p95, "p99": p99, "withinDeadline": within}


def _percentiles(latencies: NDArray[np.float64]) -> tuple[float | None, float | None, float | None]:
    if not len(latencies):
        return None, None, None
    p50, p95, p99 = np.percentile(latencies, (50, 95, 99)).tolist()
    return p50, p95, p99
