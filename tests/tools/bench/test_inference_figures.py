"""Figures computed from an inference measurement."""

import numpy as np
import pytest

from tools.bench.inference.figures import Records, Window, figures, pooled
from tools.bench.inference.measure import MAX_OVERLOAD_SECONDS, overloaded_after


def records(*rows: tuple[float, float, int]) -> Records:
    return Records(np.array(rows, np.float64))


ALL = Window(0, 100)


def test_rates_count_responses_that_completed_in_the_window() -> None:
    rows = ((0, 0.5, 200), (0, 1.5, 200), (2, 1.5, 200), (2, 0.5, 429), (3, 4, 200), (3, 9, 200))
    found = figures(records(*rows), deadline=1.2, window=Window(1, 4))
    assert found.throughput == pytest.approx(2 / 3)
    assert found.goodput == 0
    assert figures(records(*rows), 1.5, Window(1, 4)).goodput == pytest.approx(2 / 3)


def test_time_after_the_last_request_is_not_measured() -> None:
    steady = [(second, 3, 200) for second in range(20)]
    assert figures(records(*steady), 5, Window(3, 19)).throughput == pytest.approx(1, rel=0.1)


def test_the_rate_of_large_batches_does_not_depend_on_the_start_of_the_window() -> None:
    batches = [(0.7 * number, 0.7, 200) for number in range(40) for _ in range(16)]
    for begin in (2.0, 2.2, 2.4, 2.6):
        found = figures(records(*batches), 5, Window(begin, begin + 8))
        assert found.throughput == pytest.approx(16 / 0.7)


def test_unanswered_requests_count_as_slow() -> None:
    steady = [(0.1 * number, 0.1, 200) for number in range(20)]
    assert figures(records(*steady), 5, Window(0, 10)).throughput == pytest.approx(2)


def test_rejections_and_errors_are_counted_separately_and_have_no_latency() -> None:
    rows = records((0, 0.1, 200), (0.5, 9, 429), (1, 9, 503), (1, 9, 0))
    found = figures(rows, deadline=1, window=ALL)
    assert (found.requests, found.rejected, found.errors) == (4, 1, 2)
    assert found.p99 == pytest.approx(0.1)
    assert found.codes == {"200": 1, "429": 1, "503": 1, "0": 1}


def test_errors_before_the_window_count_and_latencies_do_not() -> None:
    found = figures(records((0, 5, 200), (0, 1, 0), (1, 0.1, 200)), 1, Window(0.5, 2))
    assert (found.requests, found.errors) == (3, 1)
    assert found.p99 == pytest.approx(0.1)


def test_server_without_responses_has_no_goodput() -> None:
    found = figures(records((0, 1, 503), (1, 1, 503)), 1, ALL)
    assert (found.throughput, found.goodput, found.errors) == (0, 0, 2)
    assert found.p50 is None


def test_measurement_without_requests_is_an_error() -> None:
    with pytest.raises(ValueError, match="no request"):
        figures(Records(np.empty((0, 3))), 1, ALL)


def test_latencies_include_requests_due_before_the_window() -> None:
    assert figures(records((0, 1, 200)), 1, Window(1, 2)).p50 == pytest.approx(1)


def test_percentiles_include_the_requests_of_all_turns() -> None:
    first, second = [(1, 0.1, 200)] * 99, [(1, 2, 200), (0, 9, 200), (1, 8, 429)]
    found = pooled([(records(*rows), Window(0.5, 5)) for rows in (first, second)], deadline=1)
    assert found["p50"] == pytest.approx(0.1)
    assert found["p99"] == pytest.approx(0.119)
    assert found["withinDeadline"] == pytest.approx(0.99)


def test_runs_without_responses_have_no_percentiles() -> None:
    assert pooled([(records((1, 1, 503)), ALL)], deadline=1)["p99"] is None


@pytest.mark.parametrize(
    ("capacity", "deadline", "seconds"),
    [(10_000, 0.05, 0.3), (100, 0.1, 6.4), (1, 1.25, MAX_OVERLOAD_SECONDS)],
)
def test_overload_begins_when_queues_are_full_or_too_long(
    capacity: float, deadline: float, seconds: float
) -> None:
    assert overloaded_after(capacity, 1.2, deadline) == pytest.approx(seconds)
