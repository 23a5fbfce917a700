"""What a measurement comes to."""

import numpy as np
import pytest

from benchmarks.inference.figures import Records, figures, pooled


def records(*rows: tuple[float, float, int]) -> Records:
    return Records(np.array(rows, np.float64))


def test_rates_are_over_the_time_until_the_last_answer():
    found = figures(records((0, 0.5, 200), (1, 0.5, 200), (1, 3, 200)), deadline=1)
    assert found.throughput == pytest.approx(3 / 4)
    assert found.goodput == pytest.approx(2 / 4)


def test_refusals_and_errors_are_told_apart_and_have_no_latency():
    found = figures(records((0, 0.1, 200), (0.5, 9, 429), (1, 9, 503), (1, 9, 0)), deadline=1)
    assert (found.requests, found.refused, found.errors) == (4, 1, 2)
    assert found.p99 == pytest.approx(0.1)
    assert found.codes == {"200": 1, "429": 1, "503": 1, "0": 1}


def test_requests_of_the_warm_up_do_not_count():
    found = figures(records((0, 5, 200), (1, 0.1, 200), (2, 0.1, 200)), 1, warm_up=0.5)
    assert found.requests == 2
    assert found.throughput == pytest.approx(2 / 1.1)
    assert found.offered == pytest.approx(2)


def test_a_server_that_answers_nothing_has_no_goodput():
    found = figures(records((0, 1, 503), (1, 1, 503)), deadline=1)
    assert (found.throughput, found.goodput, found.errors) == (0, 0, 2)
    assert found.p50 is None


def test_nothing_sent_is_an_error():
    with pytest.raises(ValueError, match="no request"):
        figures(Records(np.empty((0, 3))), deadline=1)


def test_requests_that_all_fell_into_the_warm_up_count_after_all():
    assert figures(records((0, 1, 200)), deadline=1, warm_up=1).requests == 1


def test_percentiles_are_over_the_requests_of_all_turns():
    turns = [records(*[(1, 0.1, 200)] * 99), records((1, 2, 200), (0, 9, 200), (1, 8, 429))]
    found = pooled(turns, deadline=1, warm_up=0.5)
    assert found["p50"] == pytest.approx(0.1)
    assert found["p99"] == pytest.approx(0.119)
    assert found["withinDeadline"] == pytest.approx(0.99)


def test_turns_without_an_answer_have_no_percentiles():
    assert pooled([records((1, 1, 503))], deadline=1)["p99"] is None
