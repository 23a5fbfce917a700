"""The export of spans at shutdown."""

import socket
import time
from collections.abc import Iterator

import pytest

from inference.tracing import Tracing


@pytest.fixture
def unresponsive_collector() -> Iterator[str]:
    """URL of a collector that accepts connections but never responds."""
    with socket.create_server(("127.0.0.1", 0)) as listening:
        yield f"http://127.0.0.1:{listening.getsockname()[1]}/v1/traces"


def test_unresponsive_collector_does_not_delay_the_shutdown(unresponsive_collector: str) -> None:
    tracing = Tracing(unresponsive_collector, 1.0, "digits")
    tracing.end(tracing.begin("infer", {}, {}), 200)
    begun = time.monotonic()
    tracing.close(0.2)
    assert 0.2 <= time.monotonic() - begun < 5
