"""Ancestors of queues."""

import pytest

from gitops.queues import with_ancestors

PARENTS = {"vision": "science", "science": "root", "lab": None, "odd": "even", "even": "odd"}


@pytest.mark.parametrize(
    ("queue", "found"),
    [
        ("vision", ["vision", "science", "root"]),
        ("lab", ["lab"]),
        ("unknown", ["unknown"]),
        ("odd", ["odd", "even"]),
    ],
)
def test_a_queue_is_followed_by_its_ancestors(queue: str, found: list[str]) -> None:
    assert with_ancestors(queue, PARENTS) == found
