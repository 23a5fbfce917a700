"""Metrics of a benchmark run, computed from its requests."""

from collections import Counter
from dataclasses import dataclass
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

OK: Final = 200
TOO_MANY_REQUESTS: Final = 429


@dataclass(frozen=True)
class Records:
    """One row per request: due time (s), latency (s) until the end of the response, and status."""

    rows: NDArray[np.float64]

    @property
    def codes(self) -> NDArray[np.int64]:
        """HTTP status codes; 0 means no response."""
        return self.rows[:, 2].astype(np.int64)

    @property
    def successful(self) -> NDArray[np.float64]:
        """Requests with status 200."""
        good: NDArray[np.float64] = self.rows[self.codes == OK]
        return good


@dataclass(frozen=True)
class Figures:
    """Metrics of one benchmark run: latencies (s) of successful responses, and rates per second."""

    throughput: float
    goodput: float
    """Responses per second with status 200 within the deadline."""
    offered: float
    """Requests per second that were due in the window."""
    p50: float | None
    """None if no response was successful."""
    p95: float | None
    p99: float | None
    requests: int
    rejected: int
    """Requests rejected with 429."""
    errors: int
    """Requests with any status other than 200 and 429."""
    codes: dict[str, int]


@dataclass(frozen=True)
class Window:
    """The measured interval, after the warm-up, in seconds from the start of the load."""

    begin: float
    end: float

    def due(self, rows: NDArray[np.float64]) -> NDArray[np.float64]:
        """Return the requests that were due in the window, or all requests if none were."""
        inside = rows[(rows[:, 0] >= self.begin) & (rows[:, 0] <= self.end)]
        return inside if len(inside) else rows

    def completed(self, rows: NDArray[np.float64]) -> tuple[NDArray[np.float64], float]:
        """Return the requests whose responses completed in the window, and the window's length (s).

        Each end of the window is first moved back to the last response that completed within the
        preceding 10% of the window's length, if there is one. A slow server completes only a few
        batches in a window. With fixed ends, a batch that completes just outside the window would
        distort the rate.
        """
        ends = rows[:, 0] + rows[:, 1]
        slack = (self.end - self.begin) / 10
        begin, end = _last(ends, self.begin, slack), _last(ends, self.end, slack)
        return rows[(ends > begin) & (ends <= end)], end - begin


def figures(records: Records, deadline: float, window: Window) -> Figures:
    """Compute the metrics of a window.

    Throughput and goodput are computed from the responses that completed in the window, so later
    responses, such as those to queued requests, are ignored. Latencies and the offered rate are
    computed from the requests that were due in the window. Status codes are counted for all
    requests. Raise ValueError if no request was sent.
    """
    if not len(records.rows):
        raise ValueError("no request was sent")
    due = Records(window.due(records.rows))
    good, seconds = window.completed(records.successful)
    p50, p95, p99 = _percentiles(due.successful[:, 1])
    codes = Counter(str(code) for code in records.codes)
    rejected = codes[str(TOO_MANY_REQUESTS)]
    return Figures(
        throughput=len(good) / seconds,
        goodput=float((good[:, 1] <= deadline).sum()) / seconds,
        offered=len(due.rows) / (window.end - window.begin),
        p50=p50,
        p95=p95,
        p99=p99,
        requests=len(records.rows),
        rejected=rejected,
        errors=len(records.rows) - len(records.successful) - rejected,
        codes=dict(codes),
    )


def pooled(turns: list[tuple[Records, Window]], deadline: float) -> dict[str, Any]:
    """Return latency percentiles and the share of responses within the deadline, over all rounds.

    A single round has too few requests for tail latencies.
    """
    due = [Records(window.due(records.rows)).successful for records, window in turns]
    rows = np.concatenate(due)
    p50, p95, p99 = _percentiles(rows[:, 1])
    within = float((rows[:, 1] <= deadline).mean()) if len(rows) else 0.0
    return {"p50": p50, "p95": p95, "p99": p99, "withinDeadline": within}


def _last(ends: NDArray[np.float64], edge: float, slack: float) -> float:
    """Return the last of `ends` that is at most `slack` seconds before `edge`, or else `edge`."""
    near = ends[(ends <= edge) & (ends >= edge - slack)]
    return float(near.max()) if len(near) else edge


def _percentiles(latencies: NDArray[np.float64]) -> tuple[float | None, float | None, float | None]:
    if not len(latencies):
        return None, None, None
    p50, p95, p99 = np.percentile(latencies, (50, 95, 99)).tolist()
    return p50, p95, p99
