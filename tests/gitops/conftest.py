"""TLS certificates, loaded only once in a test process."""

import ssl
from functools import cache

import pytest

_create_context = cache(ssl.create_default_context)


@pytest.fixture(autouse=True)
def certificates_read_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """Share one TLS context: loading certificates takes longer than most of these tests."""
    monkeypatch.setattr(ssl, "create_default_context", _create_context)
