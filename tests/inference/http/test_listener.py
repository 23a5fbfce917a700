"""The limit on connections."""

import resource
from collections.abc import Iterator

import pytest

from inference.http.listener import OTHER_FILES, allow_connections


@pytest.fixture
def soft() -> Iterator[int]:
    """The soft limit on open files, restored at the end."""
    before = resource.getrlimit(resource.RLIMIT_NOFILE)
    lower = (OTHER_FILES + 100, before[1])
    resource.setrlimit(resource.RLIMIT_NOFILE, lower)
    yield lower[0]
    resource.setrlimit(resource.RLIMIT_NOFILE, before)


def test_the_limit_on_open_files_is_raised_for_connections(soft: int) -> None:
    assert allow_connections(10) == 10
    assert resource.getrlimit(resource.RLIMIT_NOFILE)[0] == soft
    assert allow_connections(500) == 500
    assert resource.getrlimit(resource.RLIMIT_NOFILE)[0] == 500 + OTHER_FILES


def test_connections_are_limited_by_open_files(soft: int) -> None:
    hard = resource.getrlimit(resource.RLIMIT_NOFILE)[1]
    if hard == resource.RLIM_INFINITY:
        pytest.skip("there may be any number of files here")
    assert allow_connections(hard) == hard - OTHER_FILES


def test_few_open_files_leave_half_of_them_to_connections(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(resource, "getrlimit", lambda _: (256, 256))
    assert allow_connections(4096) == 128
