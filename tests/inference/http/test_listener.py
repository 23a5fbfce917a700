"""How many connections there can be."""

import resource
from collections.abc import Iterator

import pytest

from inference.http.listener import OTHERS, connections


@pytest.fixture
def soft() -> Iterator[int]:
    """The limit of open files, which is set back."""
    before = resource.getrlimit(resource.RLIMIT_NOFILE)
    lower = (OTHERS + 100, before[1])
    resource.setrlimit(resource.RLIMIT_NOFILE, lower)
    yield lower[0]
    resource.setrlimit(resource.RLIMIT_NOFILE, before)


def test_the_limit_of_open_files_is_raised_for_the_connections(soft: int) -> None:
    assert connections(10) == 10
    assert resource.getrlimit(resource.RLIMIT_NOFILE)[0] == soft
    assert connections(500) == 500
    assert resource.getrlimit(resource.RLIMIT_NOFILE)[0] == 500 + OTHERS


def test_there_are_no_more_connections_than_files_may_be_open(soft: int) -> None:
    hard = resource.getrlimit(resource.RLIMIT_NOFILE)[1]
    if hard == resource.RLIM_INFINITY:
        pytest.skip("there may be any number of files here")
    assert connections(hard) == hard - OTHERS
