"""Limits on the size of outputs, and memory of failed requests, without a server."""

import asyncio
import dataclasses
import gc
import json
import weakref
from contextlib import nullcontext
from types import SimpleNamespace
from typing import Any, cast
from unittest.mock import MagicMock

import numpy as np
import pytest

from inference.config import InferenceConfig
from inference.engine.engine import ModelEngine
from inference.engine.interface import Answer, InputError, OverloadedError, TensorSpec
from inference.http.application import Application, Pending, Route
from inference.http.endpoints import (
    MAX_LOADS,
    PATHS,
    _infer,
    _load,
    _requested_seconds,
)
from inference.http.limits import Limits
from inference.http.messages import LARGE_STRINGS, Request
from inference.service import Service
from tests.inference.protocol.models import SERVED

SHARE = 2048


def infer(samples: int, body_bytes: int) -> Any:
    """Send samples with outputs of 80 bytes each to a server without free memory for outputs."""
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
def test_outputs_that_can_never_fit_into_memory_are_invalid(samples: int, body_bytes: int) -> None:
    max_bytes = SHARE - body_bytes
    with pytest.raises(InputError, match=f"have {80 * samples} bytes, more than {max_bytes}: send"):
        infer(samples, body_bytes)


@pytest.mark.parametrize(("samples", "body_bytes"), [(25, 0), (20, 448)])
def test_outputs_that_may_fit_into_memory_later_are_refused_temporarily(
    samples: int, body_bytes: int
) -> None:
    with pytest.raises(OverloadedError, match="try again"):
        infer(samples, body_bytes)


def test_more_samples_than_the_queue_holds_are_refused_before_their_values_are_read() -> None:
    with pytest.raises(InputError, match="shape has 513 samples: send at most 512 at once"):
        infer(513, 0)


@pytest.mark.parametrize(
    ("max_bytes", "free_bytes", "error"),
    [(10_000, 10_000, None), (2000, 10_000, InputError), (10_000, 1000, OverloadedError)],
)
async def test_outputs_larger_than_expected_are_reserved_before_they_are_sent(
    max_bytes: int, free_bytes: int, error: type[Exception] | None
) -> None:
    config = InferenceConfig(model_name="digits", model_path="/none", max_output_bytes=max_bytes)
    served = dataclasses.replace(SERVED, outputs=(TensorSpec("text", "BYTES", (-1,)),))
    future = asyncio.get_running_loop().create_future()
    queued = SimpleNamespace(future=future, samples=1)
    pool = MagicMock(served=served, **{"submit.return_value": queued})
    service = MagicMock(config=config, tracing=None, **{"pool.return_value": pool})
    sizes: list[int] = []

    def reserve(size: int) -> bool:
        sizes.append(size)
        return sum(sizes) <= free_bytes

    tensor = {"name": "images", "shape": [1, 1, 2, 2], "datatype": "FP32", "data": [0] * 4}
    request = Request(body=json.dumps({"inputs": [tensor]}).encode())
    pending = _infer(service, request, reserve)
    assert isinstance(pending, Pending)
    text = np.array([b"x" * 5000], np.object_)
    future.set_result(Answer({"text": text}, served, 0.0, 0.0, 1))
    with nullcontext() if error is None else pytest.raises(error):
        assert len(pending.finish(future).body) > 5000
    assert sum(sizes) > 5004 or (error is InputError and sum(sizes) == 64)


@pytest.mark.parametrize("text", ["", "soon", "1_0", "nan", "inf", "-1", "0", "86401"])
def test_invalid_timeout_is_refused(text: str) -> None:
    request = Request(headers={"x-request-timeout": text})
    with pytest.raises(InputError, match=f"X-Request-Timeout is '{text}': it must be a number"):
        _requested_seconds(MagicMock(), request)


@pytest.mark.parametrize("names", ["m" * 81, "digits/versions/" + "1" * 81])
def test_path_with_a_long_name_is_neither_logged_nor_traced(names: str) -> None:
    config = InferenceConfig(model_name="digits", model_path="/none")
    service = MagicMock(config=config, access=None)
    request = Request(method="POST", path=f"/v2/models/{names}/infer", headers={"host": "a"})
    response = Application(service, PATHS, Limits(config, 1)).begin(request, "1.1")
    assert response is not None
    assert response.status == 404
    assert request.route is None
    service.tracing.begin.assert_not_called()


@pytest.mark.parametrize("reads_strings", [False, True])
def test_large_binary_body_waits_for_its_turn_if_the_model_reads_strings(
    reads_strings: bool,
) -> None:
    config = InferenceConfig(model_name="digits", model_path="/none")
    service = MagicMock(config=config, access=None, tracing=None)
    service.engine.pool.reads_strings = reads_strings
    headers = {"host": "a", "inference-header-content-length": "100"}
    request = Request(method="POST", path="/v2/models/digits/infer", headers=headers)
    assert Application(service, PATHS, Limits(config, 1)).begin(request, "1.1") is None
    assert not request.is_slow
    request.body = bytes(1 << 20)
    assert request.is_slow == reads_strings


class Inputs:
    """A request's inputs, which the test observes through a weak reference."""


async def test_inputs_are_released_when_their_computation_has_failed() -> None:
    config = InferenceConfig(model_name="digits", model_path="/none")
    application = Application(MagicMock(config=config), {}, Limits(config, 1))
    released: list[weakref.ref[Inputs]] = []

    def infer(*_: object) -> Pending:
        inputs = Inputs()
        released.append(weakref.ref(inputs))
        future = asyncio.get_running_loop().create_future()
        future.set_exception(InputError("the model cannot process this input"))
        return Pending(future, lambda computed: computed.result()[inputs])

    request = Request(route=Route(infer, "", ""))
    pending = application.answer(request, lambda _: True)
    assert isinstance(pending, Pending)
    gc.disable()
    try:
        response = application.respond(request, pending)
        assert response is not None
        assert response.status == 400
        del pending
        assert released[0]() is None
    finally:
        gc.enable()


async def test_error_of_a_load_whose_client_has_disconnected_is_retrieved() -> None:
    reported: list[dict[str, Any]] = []
    loop = asyncio.get_running_loop()
    loop.set_exception_handler(lambda _, context: reported.append(context))
    engine = ModelEngine(InferenceConfig(model_name="digits", model_path="/none"))
    service = cast(Service, SimpleNamespace(engine=engine, loop=loop, loads=set()))
    _load(service, Request(), lambda _: True).future.cancel()
    while not engine.reload_failures:
        await asyncio.sleep(0.001)
    await asyncio.sleep(0.01)
    gc.collect()
    assert reported == []


async def test_number_of_load_requests_that_wait_is_limited() -> None:
    loaded = asyncio.Event()
    engine = SimpleNamespace(reload=loaded.wait)
    loop = asyncio.get_running_loop()
    service = cast(Service, SimpleNamespace(engine=engine, loop=loop, loads=set()))
    # If the clients disconnect, their requests still wait.
    for _ in range(MAX_LOADS):
        _load(service, Request(), lambda _: True).future.cancel()
    with pytest.raises(OverloadedError, match="16 load requests are already waiting"):
        _load(service, Request(), lambda _: True)
    loaded.set()
    while service.loads:
        await asyncio.sleep(0.001)
    await _load(service, Request(), lambda _: True).future


def test_small_body_waits_for_its_turn_if_it_may_have_thousands_of_strings() -> None:
    request = Request(body=bytes(LARGE_STRINGS), reads_strings=True)
    assert not request.is_slow
    request.body += b" "
    assert request.is_slow


async def test_json_that_is_larger_than_its_values_is_reserved() -> None:
    config = InferenceConfig(model_name="digits", model_path="/none")
    served = dataclasses.replace(SERVED, outputs=(TensorSpec("numbers", "FP32", (-1, 100)),))
    future = asyncio.get_running_loop().create_future()
    queued = SimpleNamespace(future=future, samples=1)
    pool = MagicMock(served=served, **{"submit.return_value": queued})
    service = MagicMock(config=config, tracing=None, **{"pool.return_value": pool})
    sizes: list[int] = []
    tensor = {"name": "images", "shape": [1, 1, 2, 2], "datatype": "FP32", "data": [0] * 4}
    request = Request(body=json.dumps({"inputs": [tensor]}).encode())
    pending = _infer(service, request, lambda size: not sizes.append(size))
    assert isinstance(pending, Pending)
    numbers = np.full((1, 100), 1 / 3, np.float32)
    future.set_result(Answer({"numbers": numbers}, served, 0.0, 0.0, 1))
    response = pending.finish(future)
    assert response.size > 1000
    assert sum(sizes) == response.size
