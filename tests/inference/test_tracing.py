"""The configuration of tracing, and the export of spans at shutdown."""

import json
import os
import socket
import subprocess
import sys
import time
from collections.abc import Iterator

import pytest

from inference.tracing import Tracing
from workload import exit_codes


@pytest.fixture
def unresponsive_collector() -> Iterator[str]:
    """URL of a collector that accepts connections but never responds."""
    with socket.create_server(("127.0.0.1", 0)) as listening:
        yield f"http://127.0.0.1:{listening.getsockname()[1]}/v1/traces"


@pytest.mark.parametrize(
    ("variable", "value"),
    [("OTEL_BSP_MAX_EXPORT_BATCH_SIZE", "0"), ("OTEL_SPAN_ATTRIBUTE_COUNT_LIMIT", "-1")],
)
def test_error_names_the_variables_that_may_be_invalid(variable: str, value: str) -> None:
    server = subprocess.run(
        [sys.executable, "-m", "inference"],
        env={
            **os.environ,
            variable: value,
            "INFERENCE_MODEL_NAME": "digits",
            "INFERENCE_MODEL_PATH": "/none",
            "INFERENCE_TRACING_ENDPOINT": "http://127.0.0.1:1/v1/traces",
        },
        capture_output=True,
        text=True,
        check=False,
    )
    assert server.returncode == exit_codes.BAD_INPUT
    assert f"one of the variables {variable} is invalid" in json.loads(server.stdout)["message"]


def test_unresponsive_collector_does_not_delay_the_shutdown(unresponsive_collector: str) -> None:
    tracing = Tracing(unresponsive_collector, 1.0, "digits")
    tracing.end(tracing.begin("infer", {}, {}), 200)
    begun = time.monotonic()
    tracing.close(0.2)
    assert 0.2 <= time.monotonic() - begun < 5
