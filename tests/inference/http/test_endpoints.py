"""Inference requests without a server."""

import json
from types import SimpleNamespace
from typing import Any, cast

import pytest

from inference.config import InferenceConfig
from inference.engine.interface import InputError, OverloadedError
from inference.http.endpoints import _infer
from inference.http.messages import Request
from inference.service import Service
from tests.inference.protocol.models import SERVED

SHARE = 2048


def infer(samples: int, body_bytes: int) -> Any:
    """Send samples, whose outputs have 80 bytes each, to a server without memory for outputs."""
    config = InferenceConfig(
        model_name="digits",
        model_path="/none",
        max_body_bytes=1024,
        max_buffered_bytes=2 * SHARE,
        max_share_per_peer=0.5,
    )
    service = SimpleNamespace(config=config, pool=lambda _: SimpleNamespace(served=SERVED))
    data = [0] * (4 * samples)
    tensor = {"name": "images", "shape": [samples, 1, 2, 2], "datatype": "FP32", "data": data}
    request = Request(body=json.dumps({"inputs": [tensor]}).encode(), charged=body_bytes)
    return _infer(cast(Service, service), request, lambda _: False)


@pytest.mark.parametrize(("samples", "body_bytes"), [(26, 0), (20, 449)])
def test_outputs_that_can_never_be_reserved_are_invalid(samples: int, body_bytes: int) -> None:
    most = SHARE - body_bytes
    with pytest.raises(InputError, match=f"have {80 * samples} bytes, more than {most}: send"):
        infer(samples, body_bytes)


@pytest.mark.parametrize(("samples", "body_bytes"), [(25, 0), (20, 448)])
def test_outputs_that_may_be_reserved_later_are_refused(samples: int, body_bytes: int) -> None:
    with pytest.raises(OverloadedError, match="try again"):
        infer(samples, body_bytes)
