import re

import pytest

from workload.promotion import parse_named, violations


def test_every_condition_is_evaluated() -> None:
    conditions = parse_named(["accuracy >= 0.95", "loss <= incumbent + 0.1"])
    violated = list(violations(conditions, {"accuracy": 0.5, "loss": 0.5}, {"loss": 0.3}))
    assert violated == [
        "accuracy is 0.5, but must be >= 0.95 (>= 0.95)",
        "loss is 0.5, but must be <= 0.4 (<= incumbent + 0.1)",
    ]


def test_second_condition_for_the_same_metric_is_rejected() -> None:
    message = "accuracy has two conditions, '>= 0.95' and '>= incumbent - 0.002': write one"
    with pytest.raises(ValueError, match=re.escape(message)):
        parse_named(["accuracy >= 0.95", "accuracy >= incumbent - 0.002"])


def test_error_quotes_the_invalid_condition() -> None:
    with pytest.raises(ValueError, match=r"'accuracy>=0\.9': after the metric and a space, the"):
        parse_named(["loss <= 1", "accuracy>=0.9"])
