"""Certificates of code hosts, which all clients of a process read only once."""

import ssl
from functools import cache

import pytest

_create_context = cache(ssl.create_default_context)


@pytest.fixture(autouse=True)
def certificates_read_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """Share the certificates of clients: reading them takes longer than most of these tests."""
    monkeypatch.setattr(ssl, "create_default_context", _create_context)
